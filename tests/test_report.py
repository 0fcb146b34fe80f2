"""report: one page that holds its pictures, tables and provenance, and needs nothing; opened in a browser (slow)."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import mltools
from conftest import Cli, write_jsonl
from test_plot import EACH_KIND, INVALID, layers

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KINDS = ("heatmap", "layers", "probe", "centroid", "events", "matrix", "score")
EVERY: list[dict[str, Any]] = [row for kind in KINDS for row in EACH_KIND[kind]]


class Outline(HTMLParser):
    """What a page holds: how often each element, its ids, and every address that it would open."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.ids: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in ("meta", "link", "path", "br"):
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            elif name in ("src", "href", "xlink:href", "action") and not str(value).startswith(("#", "data:")):
                self.addresses.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert not found.open
    return found


@pytest.fixture
def page(cli: Cli, tmp_path: Path) -> Path:
    """A page of records of every kind."""
    result = cli("report", write_jsonl(tmp_path / "every.jsonl", EVERY), "-o", tmp_path / "report.html")
    assert (result.code, result.out) == (0, "")
    return tmp_path / "report.html"


def test_a_page_holds_every_kind_and_opens_nothing(page: Path) -> None:
    text = page.read_text()
    found = outline(text)
    assert found.counts["svg"] == found.counts["figure"] == 8  # a heat map and maxima of the windows, one of the others
    assert found.counts["table"] == len(KINDS) + 2 + 1  # records; centres of windows and of layers; inputs
    assert len(set(found.ids)) == len(found.ids) and not found.addresses
    for title in ("Windows", "Layer scores", "Probes", "Centroid analysis", "Events", "Correlations", "Accuracy where"):
        assert f"<h2>{title}" in text
    assert "M-CoG 2.17" in text  # text of a picture stays text
    made = json.loads(re.sub("&quot;", '"', re.findall("<pre>(.*?)</pre>", text, re.S)[0]))
    (entry,) = made["inputs"].values()
    assert made["tool"] == "report" and entry["sha256"] in text.partition("<h2>Where this comes from")[2]


def test_what_is_not_valid_is_marked_and_what_cannot_be_drawn_is_said(cli: Cli, tmp_path: Path) -> None:
    rows = [{**row, **INVALID} for row in layers([1.0, 2.0], dataset="<b>&\x1b")]
    rows += EACH_KIND["heatmap"][:-2]  # a window of width 2 is missing
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    result = cli("report", path, "--strict")
    assert result.code == 1 and "invalid (noisy_not_memorised): 2 of 6 records have valid=false" in result.err
    page = cli("report", path).out
    assert page.count('<tr class="invalid">') == 3  # two records and their centre
    assert "2 of 6 records are not valid: noisy_not_memorised" in page and "[INVALID:" in page
    assert re.search("No heatmap: .*1 of 2 windows of width 2 are missing", page)
    assert "&lt;b&gt;&amp;\\x1b" in page and "<b>" not in page and "\x1b" not in page
    assert cli("report", stdin="").err == "mltools: no records came in\n"
    assert cli("report", path, "-o", tmp_path / "page.txt").code == 2


def test_the_same_records_give_the_same_page_also_in_python(cli: Cli, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", layers([1.0, 2.0]))
    page = cli("report", path).out
    assert cli("report", path).out == page
    assert outline(mltools.report(str(path))).counts == outline(page).counts


@pytest.mark.slow
def test_a_browser_shows_the_page_and_says_nothing(page: Path, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    probe = (
        "<script>(function(){const head=[...document.querySelectorAll('th')].find(h=>h.textContent==='score');"
        "head.click();head.click();const rows=[...head.closest('table').tBodies[0].rows];"
        "document.title='sorted '+rows.map(r=>r.cells[head.cellIndex].textContent).join(' ')"
        "+' figures '+[...document.querySelectorAll('figure svg')]"
        ".filter(drawn=>drawn.getBoundingClientRect().width>100).length;"
        "})()</script></body>"
    )
    opened = tmp_path / "opened.html"
    opened.write_text(page.read_text().replace("</body>", probe))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    folder = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run([CHROMIUM, *options, folder, opened.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    title = re.findall("<title>(.*?)</title>", done.stdout)[0]
    assert title.endswith("figures 8") and title.startswith("sorted 0.3 0.2 0.1")
    assert "CONSOLE" not in done.stderr


def test_tables_begin_with_what_tells_the_records_apart(cli: Cli, tmp_path: Path) -> None:
    """Tags stood behind a dozen columns, out of sight."""
    rows = [{**row, "seed": 1} for row in layers([1.0, 2.0], dataset="a")]
    page = cli("report", write_jsonl(tmp_path / "layers.jsonl", rows)).out
    heads = re.findall(r"<thead>.*?</thead>", page)
    assert heads and all(
        re.findall(r"<th [^>]*>([^<]*)", head)[:3] == ["tool", "dataset", "seed"] for head in heads[:-1]
    )


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_table_of_several_kinds_is_sorted_by_kind(cli: Cli, tmp_path: Path, ending: str) -> None:
    """Each record has the columns of all kinds, null: all were taken for windows, and nothing was drawn."""
    rows = [row for kind in ("heatmap", "layers", "events") for row in EACH_KIND[kind]]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    path = tmp_path / f"mixed.{ending}"
    frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    page = cli("report", path).out
    assert re.findall("<h2>([^<]*)", page)[:3] == ["Windows", "Events", "Layer scores"]
    assert re.findall("<figcaption>([^<]*)", page) == ["heatmap", "maxima", "events", "layers"]
