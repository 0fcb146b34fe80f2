"""Make the panels of a picture, and draw them as text or with matplotlib."""

import sys
from collections.abc import Iterator
from importlib import import_module

from mltools.drawing.figure import FigureStyle, check_matplotlib, draw_figure
from mltools.drawing.grouped import Asked
from mltools.drawing.panels import Panel
from mltools.drawing.text import TextStyle, draw_text
from mltools.io.stdout import to_stdout, write_stdout
from mltools.run import Run
from mltools.sinks import stdout_colors


def run(run: Run) -> Iterator[Panel]:
    """Make the panels of the records given."""
    settings = run.settings
    picture = import_module(f"mltools.drawing.{settings.kind}")
    asked = Asked(settings.by, settings.value, settings.overlay, settings.pivot)
    yield from run.carried(picture.panels(run.records(), asked), "panels")


class PanelSink:
    """Takes panels, and draws them all together: as text on stdout, or as a picture."""

    def __init__(self, run: Run) -> None:
        """Draw where the run's -o says.

        Raises:
            NotFoundError: a picture without matplotlib.
        """
        self._run, self._out = run, run.get("out")
        self._panels: list[Panel] = []
        self.n = 0
        if not to_stdout(self._out):
            check_matplotlib()

    def __enter__(self) -> "PanelSink":
        return self

    def write(self, panel: Panel) -> None:
        """Keep a panel."""
        self._panels.append(panel)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        if not to_stdout(self._out):
            settings = self._run.settings
            style = FigureStyle(settings.facet, settings.width, settings.font_size, settings.dpi)
            draw_figure(self._panels, self._out, self._run.provenance, style, replace=self._run.force)
            self._run.report(panels=len(self._panels))
            return
        encoding = sys.stdout.encoding or "ascii"
        style_of_text = TextStyle(stdout_colors(), ascii_only="utf" not in encoding.lower())
        write_stdout(draw_text(self._panels, style_of_text).encode(encoding, "replace"))


sink = PanelSink


def in_python(panels: list[Panel]) -> str:
    """Give what a Python call drew, as text; nothing of a picture, which is in its file."""
    return draw_text(panels, TextStyle(0, ascii_only=False)) if panels else ""
