"""The paper's twelve tasks (Table 1): where each is, what its columns mean, how it is split, and its licence.

Data sets with loading scripts no longer load, so all are read from the hub's own conversion to Parquet, which every
public data set there has: `ID@refs/convert/parquet/CONFIG/SPLIT/*.parquet`. The ids are as the hub had them in 2025;
they could not be tried where this was written. Licences are those of the data as their authors or the hub state
them; none is ours to give.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TEXT, PAIR, WORD, LABEL = "text", "text_pair", "word", "label"
TOPICS = "topics"
"""Reuters' label column: a list, of which its filter makes a label."""


@dataclass(frozen=True)
class PaperTask:
    """A task of the paper.

    `columns` maps the hub's columns to ours, `label` being the hub's label column. `names` are the classes in the
    hub's numbers; without names, classes are the integers below `classes` if `numbered`, else text as it is. `pool`
    is the official split that evaluation rows come from; None where there is only one split, cut 80/20. `size` is
    the number of training rows in Table 1, which is rounded.
    """

    name: str
    title: str
    hub: str
    licence: str
    size: int
    classes: int
    columns: Mapping[str, str] = field(default_factory=lambda: {"text": TEXT})
    label: str = "label"
    config: str = "default"
    pool: str | None = "validation"
    names: tuple[str, ...] = ()
    numbered: bool = False
    left_out: tuple[str, ...] = ()


_SENTENCES = {"sentence1": TEXT, "sentence2": PAIR}

TASKS: Mapping[str, PaperTask] = {
    task.name: task
    for task in (
        PaperTask(
            "wic",
            "WiC",
            "aps/super_glue",
            "CC BY-NC 4.0 (authors' site)",
            5400,
            2,
            {"word": WORD, **_SENTENCES},
            config="wic",
            numbered=True,
        ),
        PaperTask(
            "rte",
            "RTE",
            "nyu-mll/glue",
            "none stated; PASCAL challenges, research use",
            2500,
            2,
            _SENTENCES,
            config="rte",
            names=("entailment", "not_entailment"),
        ),
        PaperTask(
            "mrpc",
            "MRPC",
            "nyu-mll/glue",
            "Microsoft Research shared source licence, non-commercial",
            3700,
            2,
            _SENTENCES,
            config="mrpc",
            numbered=True,
        ),
        PaperTask(
            "cola",
            "CoLA",
            "nyu-mll/glue",
            "none stated; excerpts of published works, research use",
            8500,
            2,
            {"sentence": TEXT},
            config="cola",
            numbered=True,
        ),
        PaperTask(
            "boolq",
            "BoolQ",
            "aps/super_glue",
            "CC BY-SA 3.0",
            9400,
            2,
            {"question": TEXT, "passage": PAIR},
            config="boolq",
            numbered=True,
        ),
        PaperTask("sst2", "SST-2", "yerevann/sst2", "none stated", 6900, 2, {"sentence": TEXT}, numbered=True),
        PaperTask("sst5", "SST-5", "SetFit/sst5", "none stated", 8500, 5, numbered=True),
        PaperTask(
            "emotion",
            "Emotion",
            "dair-ai/emotion",
            "educational and research purposes only",
            16000,
            6,
            config="split",
            names=("sadness", "joy", "love", "anger", "fear", "surprise"),
        ),
        PaperTask(
            "implicithate",
            "ImplicitHate",
            "SALT-NLP/ImplicitHate",
            "see the authors' terms; tweets",
            5100,
            7,
            {"post": TEXT},
            label="implicit_class",
            pool=None,
        ),
        PaperTask(
            "stormfront",
            "Stormfront",
            "odegiber/hate_speech18",
            "CC BY-SA 3.0",
            8600,
            2,
            pool=None,
            names=("noHate", "hate", "idk/skip", "relation"),
            left_out=("idk/skip", "relation"),
        ),
        PaperTask(
            "reuters",
            "Reuters",
            "ucirvine/reuters21578",
            "research purposes only",
            5000,
            8,
            label=TOPICS,
            config="ModApte",
            pool="test",
        ),
        PaperTask(
            "trec",
            "TREC",
            "CogComp/trec",
            "none stated",
            5500,
            6,
            label="coarse_label",
            pool="test",
            names=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
        ),
    )
}
