"""Slides for a lecture: one figure or table of a stored chapter each, in one file."""

import base64
import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from symgen.book.inert import inert
from symgen.book.presets import BookError, chapter_names, read_chapter, read_yaml, unknown
from symgen.files import atomic

# What a slide is given in the list.
WANTED = ("title", "text", "chapter", "cell")
LONG = re.compile(r"\b\d+\.\d{4,}(?:e[+-]?\d+)?")
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
@page {{ size: 32cm 18cm; margin: 0 }}
html {{ background: #fff; color: #111; font: 3.4vh sans-serif }}
body {{ margin: 0 }}
section {{ box-sizing: border-box; height: 100vh; padding: 3vh 4vw; display: none;
  flex-direction: column; align-items: center; break-after: page }}
section:target, body:not(:has(:target)) section:first-of-type {{ display: flex }}
@media print {{ section {{ display: flex !important }} }}
h1 {{ font-size: 6vh; margin: 0 }}
p {{ margin: 1vh 0 2vh; text-align: center; text-wrap: balance }}
section > div {{ flex: 1; min-height: 0; width: 100%; display: grid; place-items: center }}
img {{ width: 100%; height: 100%; min-height: 0; object-fit: contain }}
table {{ border-collapse: collapse; font-size: 3.8vh }}
th, td {{ padding: 0.35em 0.8em; border-bottom: 1px solid #999; text-align: right }}
footer {{ font-size: 2vh; align-self: stretch; text-align: right }}
a {{ color: #595959; text-decoration: none; padding: 0 0.5em }}
</style></head><body>
{sections}
<script>
addEventListener("keydown", event => {{
  const step = {{ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1}}[event.key]
  const next = Number(location.hash.slice(1) || 1) + step
  if (document.getElementById(next)) location.hash = next
}})
</script></body></html>
"""
SECTION = """<section id="{number}"><h1>{title}</h1><p>{text}</p><div>{shown}</div>
<footer>{chapter}<a href="#{before}">‹</a>{number} / {count}<a href="#{after}">›</a></footer>
</section>"""


def write_slides(book: Path, target: Path) -> int:
    """Write the slides that ``chapters/slides.yml`` lists, and return how many there are.

    Args:
        book: the book's folder.
        target: an HTML file, which loads nothing.

    Raises:
        BookError: where the list names a chapter or a cell that is not there, or has no output, and
            for a list of anything but slides.
    """
    listed = read_yaml(path := book / "chapters" / "slides.yml").get("slides")
    whole = isinstance(listed, list) and all(isinstance(slide, dict) for slide in listed)
    if not whole or not listed or not all({*WANTED} <= {*slide} for slide in listed):
        raise BookError(
            f"{path} must hold, under slides, a list of slides, each with {', '.join(WANTED)}"
        )
    for name in {slide["chapter"] for slide in listed} - {*chapter_names(book)}:
        raise unknown("chapter", name, chapter_names(book))
    pages = {name: inert(read_chapter(book, name)) for name in {x["chapter"] for x in listed}}
    sections = []
    for number, slide in enumerate(listed, 1):
        cells = {cell.id: cell for cell in pages[slide["chapter"]].cells}
        if slide["cell"] not in cells:
            raise unknown(f"cell of {slide['chapter']}", slide["cell"], cells)
        told: dict[str, Any] = {k: html.escape(str(slide[k])) for k in ("title", "text", "chapter")}
        shown = _shown(cells[slide["cell"]], slide)
        told |= {"before": max(1, number - 1), "after": min(number + 1, len(listed))}
        sections.append(SECTION.format(**told, shown=shown, number=number, count=len(listed)))
    title = html.escape(str(read_yaml(book / "_config.yml").get("title", "The book")))
    with atomic(target) as temporary:
        page = PAGE.format(title=title, sections="\n".join(sections))
        temporary.write_text(page, encoding="utf-8")
    return len(listed)


def _shown(cell: Mapping[str, Any], slide: Mapping[str, Any]) -> str:
    """Return a cell's first figure, or the part of it that is asked for, or its first table."""
    for data in (output.data for output in cell.get("outputs", []) if "data" in output):
        if svg := data.get("image/svg+xml"):
            top, bottom = slide.get("part", (0, 1))
            whole = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
            wide, high = map(float, whole.groups())
            view = f'viewBox="0 {top * high:.1f} {wide} {(bottom - top) * high:.1f}"'
            svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
            coded = base64.b64encode(svg.replace(whole[0], view, 1).encode()).decode()
            words = html.escape(cell["metadata"]["mystnb"]["image"]["alt"])
            return f'<img alt="{words}" src="data:image/svg+xml;base64,{coded}">'
        if "<table" in (table := data.get("text/html", "")):
            return LONG.sub(lambda number: f"{float(number[0]):.3g}", table)
    raise BookError(f"{slide['chapter']}, cell {slide['cell']}: no figure or table is stored")
