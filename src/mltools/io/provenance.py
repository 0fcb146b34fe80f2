"""How an output was made: tool, version, command line, settings, seed, digests of the inputs.

Kept as one canonical-JSON key `mltools` in safetensors and Parquet metadata and as `mltools.json` in a
checkpoint. Holds no time, host or output path, so that the same work gives the same bytes.
"""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mltools import __version__, console

KEY = "mltools"
OPTION = "output option"
CHECKPOINT_FILE = "mltools.json"
CHECKPOINT_DATA = (
    *("*.safetensors", "*.index.json", "config.json", "tokenizer*.json", "special_tokens_map.json"),
    *("added_tokens.json", "*vocab*", "merges.txt", "dict.txt", "*.model", "*.spm", "*.bpe", "*.codes", "*.tiktoken"),
    *("*.tokenizer", "tekken.json", "emoji.json", "normalizer.json", "word_*.json", "chat_template*", "*.jinja"),
    "additional_chat_templates/*.jinja",
)
"""Every file of a checkpoint that transformers or a tokenizer reads: what is fetched, checked and digested."""

CHECKPOINT_OTHERS = (CHECKPOINT_FILE, "*_config.json")
"""What else transformers reads or writes in a checkpoint's folder."""
CHECKPOINT_INSIDE = "memorised"
"""The checkpoint that may lie in one of ours."""
LIBRARIES = ("torch", "transformers")
MODELS = ("pretrained", "noisy", "clean", "frozen", "checkpoint")
"""The roles of inputs that are checkpoints: what is made of them depends on the libraries' versions too."""


@dataclass(frozen=True)
class Provenance:
    """One run, as written into its outputs. `inputs` maps a role to {path, sha256}."""

    tool: str
    settings: Mapping[str, Any]
    seed: int | None = None
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> str:
        """Digest of what decides the result: tool, settings, and the contents (not the names) of the inputs."""
        contents = {role: entry.get("sha256") for role, entry in self.inputs.items()}
        text = json.dumps([self.tool, plain(self.settings), contents], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def by(self, option: str) -> "Provenance":
        """Say which option names the output, where it is not -o."""
        return dataclasses.replace(self, facts={**self.facts, OPTION: option})

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain values, empty entries left out."""
        from importlib import metadata  # slow to load, and needed here only

        entries = {
            "tool": self.tool,
            "version": __version__,
            "libraries": {name: metadata.version(name) for name in LIBRARIES if self.inputs.keys() & set(MODELS)},
            "threads": threads() if self.inputs.keys() & set(MODELS) else None,
            "seed": self.seed,
            "settings": plain(self.settings),
            "inputs": plain(self.inputs),
            "command": list(self.command),
            "facts": plain(self.facts),
        }
        return {key: value for key, value in entries.items() if value not in (None, {}, [])}

    def as_json(self) -> str:
        """Give canonical JSON: sorted keys, no spaces, no NaN."""
        return json.dumps(self.as_dict(), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def threads() -> int | None:
    """Give the number of threads that torch computes with, on which the order of sums depends: the last digits."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def tell_other_threads(begun: Iterable[object]) -> None:
    """Say so where work that is gone on with was begun with other numbers of threads than torch has now."""
    own = threads()
    for number in sorted({number for number in begun if isinstance(number, int)} - {own}):
        console.warn(f"begun with --threads {number}, gone on with {own}: not to the byte what either gives alone")


def command_for(provenance: Mapping[str, Any], path: str) -> list[str] | None:
    """Give the command line that makes an output again at `path`; None if the provenance does not say."""
    command = provenance.get("command")
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command) or not command:
        return None
    facts = provenance.get("facts")
    option = facts.get(OPTION, "-o") if isinstance(facts, dict) else "-o"
    return [*command, str(option), path]


def plain(value: Any) -> Any:
    """Turn dataclasses, tuples and paths into what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def folder_digest(folder: Path) -> str:
    """Digest the files of a checkpoint that decide what it computes: SHA-256 over names and contents."""
    total = hashlib.sha256()
    for file in _data_files(folder):
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{file.relative_to(folder)} {digest}\n".encode())
    return total.hexdigest()


def folder_stamp(folder: Path) -> list[tuple[str, int, int, int]]:
    """Give name, inode, size and time of change of the same files: it changes when one of them is replaced."""
    stats = ((str(file.relative_to(folder)), file.stat()) for file in _data_files(folder))
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def is_checkpoint_file(name: str) -> bool:
    """Say whether a file of this name in a checkpoint's folder is one that transformers or our digest reads."""
    return any(fnmatch(name.lower(), pattern) for pattern in (*CHECKPOINT_DATA, *CHECKPOINT_OTHERS))


def foreign(folder: Path) -> str | None:
    """Say why a folder that exists is not a checkpoint of ours, which may be replaced; an empty one may be, too."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    if found and not any(entry.name == CHECKPOINT_FILE for entry in found):
        return f"is no checkpoint that mltools wrote (it has no {CHECKPOINT_FILE})"
    for entry in found:
        inside = entry.name == CHECKPOINT_INSIDE and entry.is_dir(follow_symlinks=False)
        if inside and (reason := foreign(Path(entry.path))):
            return f"holds {entry.name}/, which {reason}"
        if not inside and not (_is_ours(entry.name) and entry.is_file(follow_symlinks=False)):
            return f"holds {entry.name}, which no checkpoint of mltools has"
    return None


def _is_ours(name: str) -> bool:
    return is_checkpoint_file(name) and (not name.endswith(".safetensors") or name.startswith("model"))


def data_entries(folder: Path) -> list[Path]:
    """List what has the name of a file that is read, be it a file or not."""
    return sorted({entry for pattern in CHECKPOINT_DATA for entry in folder.glob(pattern)})


def _data_files(folder: Path) -> list[Path]:
    return [entry for entry in data_entries(folder) if entry.is_file()]
