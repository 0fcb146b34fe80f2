"""The page of `report`: HTML that needs nothing beside it, and whose few lines of script sort its tables."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mltools.console import printable
from mltools.io.groups import GROUPING
from mltools.io.kinds import known_columns
from mltools.io.provenance import Provenance

MOST_ROWS = 2000
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:76em;padding:0 1em;color:#111;background:#fff}
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em;border-bottom:1px solid #ccc}
figure{margin:1em 0;overflow-x:auto}figure svg{max-width:100%;height:auto}figcaption,.note{color:#555;font-size:.9em}
.table{overflow:auto;max-height:32em;border:1px solid #ccc;margin:.5em 0 1em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9em;white-space:nowrap}
th{position:sticky;top:0;background:#eee;cursor:pointer}td,th{padding:.15em .6em;text-align:right}
tr.invalid td{background:#fde8e4}.bad{color:#a00;font-weight:bold}pre{overflow:auto;background:#f6f6f6;padding:.7em}
"""
SCRIPT = """
document.querySelectorAll("th").forEach(function (head) {
  function sort() {
    const body = head.closest("table").tBodies[0], place = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    head.parentNode.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = function (row) { return row.cells[place].textContent; };
    Array.from(body.rows).sort(function (a, b) {
      const x = value(a), y = value(b), numbers = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
      const by = numbers ? x - y : x.localeCompare(y);
      return down ? -by : by;
    }).forEach(function (row) { body.appendChild(row); });
  }
  head.addEventListener("click", sort);
  head.addEventListener("keydown", function (key) { if (key.key === "Enter") { sort(); } });
});
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


class Page:
    """A page that is being put together.

    Attributes:
        records: how many records its tables were given.
        invalid: how many of them say that they are not valid.
        reasons: why not.
    """

    def __init__(self, provenance: Provenance) -> None:
        """Start a page of records whose provenance is known."""
        self._provenance = provenance
        self._parts: list[str] = []
        self._pictures = 0
        self.records = self.invalid = 0
        self.reasons: set[str] = set()

    def section(self, title: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(title)}</h2>")

    def picture(self, name: str, svg: str, note: str = "") -> None:
        """Add a picture; its parts get names of their own, as several stand in one page."""
        self._pictures += 1
        own = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>p{self._pictures}-", svg)
        self._parts.append(
            f"<figure>{own}<figcaption>{escape(' · '.join(filter(None, [name, note])))}</figcaption></figure>"
        )

    def lacks(self, what: str, reason: str) -> None:
        """Say what could not be made of the records."""
        self._parts.append(f'<p class="note">No {escape(what)}: {escape(printable(reason))}</p>')

    def table(self, rows: Sequence[Mapping[str, Any]], title: str = "Records") -> None:
        """Add records as a table, tags right after the tool; columns without a value, and lists, are left out."""
        names = [
            name
            for name in dict.fromkeys(name for row in rows for name in row)
            if any(row.get(name) is not None and not isinstance(row[name], list | dict) for row in rows)
        ]
        known = known_columns() - GROUPING
        names.sort(key=lambda name: (name != "tool", name in known))
        bad = [row for row in rows if row.get("valid") is False]
        if title == "Records":
            self.records += len(rows)
            self.invalid += len(bad)
            self.reasons |= {part for row in bad for part in str(row.get("valid_reason") or "").split(",") if part}
        head = "".join(f'<th tabindex="0">{escape(printable(name))}</th>' for name in names)
        body = "".join(_row(row, names) for row in rows[:MOST_ROWS])
        more = f", the first {MOST_ROWS} of them here" * (len(rows) > MOST_ROWS)
        marked = f', <span class="bad">{len(bad)} not valid</span>' if bad else ""
        self._parts.append(
            f'<p class="note">{escape(title)}: {len(rows)}{more}{marked}</p>'
            f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def text(self) -> str:
        """Give the whole page."""
        inputs = [
            {"input": name, "sha256": found.get("sha256")} for name, found in sorted(self._provenance.inputs.items())
        ]
        said = (
            f'<p class="bad">{self.invalid} of {self.records} records are not valid: '
            f"{escape(', '.join(sorted(self.reasons)) or 'no reason given')}. They are marked below.</p>"
            if self.invalid
            else f"<p>{self.records} records; none says that its experiment failed.</p>"
        )
        body = "\n".join(self._parts)
        self._parts = []
        self.section("Where this comes from")
        self.table(inputs, "Inputs")
        made = f"<pre>{escape(printable(self._provenance.as_json()))}</pre>"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>mltools report</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="icon" href="data:,">'
            f"<style>{STYLE}</style></head><body>\n<h1>mltools report</h1>\n{said}\n{body}\n"
            f"{self._parts[0]}{self._parts[1]}{made}\n<script>{SCRIPT}</script></body></html>\n"
        )


def _row(row: Mapping[str, Any], names: Sequence[str]) -> str:
    cells = "".join(f"<td>{escape(_cell(row.get(name)))}</td>" for name in names)
    mark = ' class="invalid"' if row.get("valid") is False else ""
    return f"<tr{mark}>{cells}</tr>"


def _cell(value: Any) -> str:
    if value is None or isinstance(value, list | dict):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else printable(str(value))
