"""Find fonts for letters that matplotlib's own font lacks, such as Chinese ones: it would draw boxes in their place."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mltools import console

OWN = "DejaVuSans.ttf"
PLAIN = ("Regular", "Book", "Medium", "Normal")


@dataclass(frozen=True)
class _Found:
    """A font that has some of the letters."""

    path: str
    family: str
    letters: frozenset[str]
    rank: tuple[bool, bool, str]
    """The lower, the nearer to our own font, which is upright and has no serifs."""


def fonts_for(text: str) -> tuple[list[str], str]:
    """Find what a text needs beside matplotlib's own font.

    Fonts are looked for where they are installed: the list that matplotlib keeps is as old as its first use.

    Returns:
        families: of fonts that have the letters which our own font lacks, to be tried in this order.
        lacking: letters that no font has.
    """
    from matplotlib.font_manager import fontManager

    lacking = frozenset(_lacking(text))
    found = sorted(_installed(lacking), key=lambda font: font.rank) if lacking else []
    families: list[str] = []
    while best := max(found, key=lambda font: len(font.letters & lacking), default=None):  # the first of equal ones
        if not best.letters & lacking:
            break
        fontManager.addfont(best.path)
        families.append(best.family)
        lacking -= best.letters
    return families, "".join(sorted(lacking))


def _lacking(text: str) -> Iterator[str]:
    import matplotlib
    from matplotlib.ft2font import FT2Font

    own = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", OWN)))
    return (letter for letter in set(text) if letter.isprintable() and not own.get_char_index(ord(letter)))


def _installed(letters: frozenset[str]) -> Iterator[_Found]:
    """Yield the installed fonts that have one of the letters."""
    from matplotlib.font_manager import findSystemFonts
    from matplotlib.ft2font import FT2Font

    for path in sorted(findSystemFonts()):
        try:
            font = FT2Font(path)
        except (OSError, RuntimeError):
            continue  # a form of font that matplotlib does not draw
        family, style = font.family_name, font.style_name
        own = frozenset(letter for letter in letters if font.get_char_index(ord(letter)))
        if own and "lastresort" not in family.replace(" ", "").lower():  # draws boxes itself
            yield _Found(path, family, own, (style not in PLAIN, "serif" in family.lower(), path))


def warn_of_lacking(letters: str) -> None:
    """Say which letters of a picture no font has, and what to do; nothing where none lacks."""
    if letters:
        shown = letters[:10] + ("…" if len(letters) > 10 else "")
        console.warn(
            f"no font here has {shown}, so that boxes stand in their place: install one that has them, such as "
            "Noto Sans CJK (fonts-noto-cjk in Debian)"
        )
