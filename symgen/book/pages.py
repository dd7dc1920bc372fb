"""The parts of pages that are made from stored tables, and how claims and tables look."""

import base64
import html
import itertools
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from symgen.book import editions, notebooks
from symgen.book.inert import clean_html

# In Markdown, `<!-- symgen: NAME ... -->` is replaced when the site is built.
MARK = re.compile(r"<!-- symgen: (.+?) -->")
MISSING = "(not measured yet)"
# How tables and verdicts look in JupyterLab; the site has a style of its own.
LAB = (
    "<style>.jp-RenderedHTMLCommon :is(.results, .claim) :is(th, td) {text-align: left}"
    ".jp-RenderedHTMLCommon .verdict {color: black; padding: 0 0.4em}"
    ".verdict.holds {background: #a6dbc9} .verdict.fails {background: #f2b8a0}"
    ".verdict.open {background: #dcdcf2}</style>"
)
CAPTION = re.compile(r"\*(?![*\s])(.+?)(?<![*\s])\*\s*(\n\s*\n|\Z)", re.S)


def digits(value: Any) -> str:
    """Return a number with three digits, thousands in full, and nothing for NaN."""
    if not isinstance(value, float) or math.isinf(value):
        return str(value)
    return "" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(frame: pd.DataFrame, max_rows: int | None = 30) -> str:
    """Return a DataFrame as HTML: no row numbers, three digits, everything escaped."""
    if not pd.api.types.is_integer_dtype(frame.index) or any(frame.index.names):
        frame = frame.reset_index()
    frame = frame.rename(columns=lambda name: str(name).replace("_", " "))
    text = frame.rename_axis(columns=None).to_html(
        index=False, border=0, max_rows=max_rows, float_format=digits, na_rep="", classes="results"
    )
    return text + LAB


def effect(row: Any) -> str:
    """Return ``mean [low, high] unit`` with as many digits as the interval needs.

    Example:
        >>> row = pd.Series({"mean": 0.0391, "low": 0.0252, "high": 0.0529, "unit": "nats"})
        >>> effect(row)
        '0.039 [0.025, 0.053] nats'
    """
    mean, low, high = row["mean"], row["low"], row["high"]
    if high > low:
        places = min(max(1 - math.floor(math.log10(3 * (high - low))), 0), 9)
        # 0.0 turns -0.0 into 0.0.
        mean, low, high = (f"{round(x, places) + 0.0:.{places}f}" for x in (mean, low, high))
        text = f"{mean} [{low}, {high}]"
    else:  # an exact value, or NaN
        text = digits(float(mean))
    return f"{text} {row['unit']}".strip()


def claims_of_paper(book: Path) -> pd.DataFrame:
    """Return ``data/paper/claims.csv`` by claim: place, statement, paper_value, chapter."""
    return pd.read_csv(book / "data" / "paper" / "claims.csv", index_col="claim").fillna("")


def repeated(row: Any) -> str:
    """Return the number of repetitions in words, such as "8 trainings"."""
    count, unit = int(row["repetitions"]), str(row["of"])
    return f"{count} {unit if count != 1 else unit.removesuffix('s')}"


def claimed(row: Any) -> str:
    """Return the side and margin that a row has to pass, or "control"."""
    limit = f"{row['side'] * row['margin'] + 0.0:g}"
    return "control" if not row["side"] else f"{'above' if row['side'] > 0 else 'below'} {limit}"


def marked(tag: str, claim: str, preset: str, content: str) -> str:
    """Return an element next to which the site adds the recorded result of a claim."""
    names = f'data-claim="{html.escape(claim)}" data-preset="{html.escape(str(preset))}"'
    return f'<{tag} class="claim" {names}>{content}</{tag}>'


def claim_rows(rows: pd.DataFrame) -> str:
    """Return the rows of one claim as a table, a part per setting."""
    lines = []
    for setting, part in rows.groupby("setting", sort=False):
        title = html.escape(", ".join(filter(None, [str(setting), repeated(part.iloc[0])])))
        verdict = part["verdict"].iloc[0]
        badge = f'<span class="verdict {verdict}">{verdict}</span>' if verdict else ""
        lines.append(f'<tr><th colspan="2">{title}</th><td>{badge}</td></tr>')
        for _, row in part.iterrows():
            cells = (str(row["label"]), effect(row), claimed(row))
            lines.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
    head = "<tr><th>measured</th><th>mean [95 % interval]</th><th>claimed</th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"


def claim_box(rows: pd.DataFrame, about: Any, preset: str, note: str = "") -> str:
    """Return the box of a claim: statement, place, measured rows and verdict."""
    paper = html.escape(f"{about['place']}; paper: {about['paper_value']}")
    head = f"<p><b>{html.escape(about['statement'])}</b> <small>({paper})</small></p>"
    return marked("div", rows["claim"].iloc[0], preset, head + claim_rows(rows) + note) + LAB


def recorded(book: Path, claim: str, preset: str) -> str:
    """Return the recorded result of the largest edition, if it is not the run that is shown."""
    rows = editions.largest_claims(book)
    rows = rows[rows["claim"] == claim]
    if rows.empty or rows["edition"].iloc[0] == preset:
        return ""
    title = f"Recorded result (edition {html.escape(rows['edition'].iloc[0])})"
    return f'<div class="claim recorded"><p>{title}</p>{claim_rows(rows)}</div>'


def provenance_rows(record: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as a reader sees it: name and text."""
    hidden = ("chapter", "reads", "batch", "reused", "measured_on", "seconds", "versions", "cells",
              "parameters")  # fmt: skip
    seconds = f"{record.get('seconds', 0):,.0f} s"
    if record.get("reused"):
        seconds += f", of which {record['reused']:,.0f} s are trainings measured earlier"
        seconds += f" on {', '.join(record.get('measured_on', []))}"
    rows = {name: str(value) for name, value in record.items() if name not in hidden}
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    return {**rows, "time": seconds, "libraries": versions}


def provenance_table(rows: Mapping[str, str]) -> str:
    """Return provenance as an HTML table."""
    cells = (f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>"
             for k, v in rows.items())  # fmt: skip
    return f'<table class="provenance">{"".join(cells)}</table>'


def caption(cell: Mapping | None) -> str:
    """Return the caption that a Markdown cell starts with, as plain text, or an empty text."""
    match = CAPTION.match(cell["source"]) if cell and cell["cell_type"] == "markdown" else None
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]) if match else ""
    return " ".join(re.sub(r"[`*$\\{}]", "", text).split())


class Parts:
    """The parts of pages by name. Each method takes the words of its comment.

    Args:
        book: its folder.
    """

    def __init__(self, book: Path):
        self.book = book
        self.rows = editions.largest_claims(book)
        self.paper = claims_of_paper(book)

    def _of(self, claim: str, label: str = "", setting: str = "") -> pd.DataFrame:
        if claim not in self.paper.index:
            raise notebooks.unknown("claim", claim, self.paper.index)
        rows = self.rows[self.rows["claim"] == claim]
        for column, text in (("label", label), ("setting", setting)):
            rows = rows[rows[column].astype(str).str.contains(text, regex=False)]
        return rows

    def value(self, claim: str, label: str = "", setting: str = "") -> str:
        """Return mean and interval of the first row that matches."""
        rows = self._of(claim, label, setting)
        return html.escape(effect(rows.iloc[0])) if len(rows) else MISSING

    def change(self, claim: str, label: str = "", setting: str = "") -> str:
        """Return the same as a change: "rises by 0.12 [0.09, 0.14]", or "falls by" its size."""
        rows = self._of(claim, label, setting)
        if rows.empty:
            return MISSING
        row = rows.iloc[0].copy()
        word = "rises" if row["mean"] > 0 else "falls"
        if row["mean"] <= 0:
            row[["mean", "low", "high"]] = [-row["mean"], -row["high"], -row["low"]]
        return f"{word} by {html.escape(effect(row))}"

    def count(self, claim: str, setting: str = "") -> str:
        """Return how many repetitions there are, in words."""
        rows = self._of(claim, setting=setting)
        return html.escape(repeated(rows.iloc[0])) if len(rows) else MISSING

    def claims(self, chapter: str = "") -> str:
        """Return the boxes of all claims, or of one chapter."""
        boxes = []
        for name, about in self.paper.iterrows():
            if chapter not in ("", about["chapter"]):
                continue
            rows = self._of(name)
            if rows.empty:
                words = html.escape(f"{about['statement']} ({about['place']})")
                box = f'<div class="claim"><p><b>{words}</b>: not measured yet.</p></div>'
            else:
                edition, page = rows["edition"].iloc[0], html.escape(rows["chapter"].iloc[0])
                note = f'<p>Edition {edition}, <a href="{page}.html">{page}</a>.</p>'
                box = claim_box(rows, about, edition, note)
            boxes.append(box)
        return "".join(boxes)

    def csv(self, path: str) -> str:
        """Return a CSV file of the book as a table."""
        return table(pd.read_csv(self.book / path), max_rows=None)

    def output(self, chapter: str, tag: str) -> str:
        """Return the first output of the cell with a tag, from the largest edition."""
        for copy in editions.largest_copies(self.book, chapter).values():
            for cell, after in itertools.pairwise([*copy.cells, None]):
                if not notebooks.has_tag(cell, tag) or cell.cell_type != "code":
                    continue
                for data in (output.data for output in cell.outputs if "data" in output):
                    if shown := _shown(data, caption(after)):
                        return shown
        return MISSING

    def runs(self) -> str:
        """Return what each stored page took: edition, time, device, date."""
        rows = [
            {**copy.metadata.get("symgen", {}), "chapter": name, "edition": edition}
            for name in notebooks.contents(self.book)
            for edition, copy in editions.largest_copies(self.book, name).items()
        ]
        shown = ["chapter", "edition", "seconds", "reused", "device", "date"]
        frame = pd.DataFrame(rows, columns=shown).rename(columns={"reused": "of which reused"})
        return table(frame, max_rows=None) if rows else MISSING


def _shown(data: Mapping[str, Any], words: str) -> str:
    """Return one output as HTML: a figure, or HTML of a table or the explorer."""
    said = html.escape(words)
    for kind in ("image/svg+xml", "image/png", "image/jpeg"):
        if kind in data:
            raw = data[kind]
            code = base64.b64encode(raw.encode()).decode() if "svg" in kind else raw.strip()
            image = f'<img class="drawn" alt="{said}" src="data:{kind};base64,{code}">'
            return f"<figure>{image}<figcaption>{said}</figcaption></figure>"
    # A blank line would end the HTML in Markdown.
    return re.sub(r"\n\s*\n", "\n", clean_html(data.get("text/html", ""))).strip()


def fill(text: str, book: Path) -> str:
    """Return Markdown with every `<!-- symgen: ... -->` replaced by its part.

    Raises:
        BookError: for an unknown part or claim.
    """
    if not MARK.search(text):
        return text
    parts = Parts(book)

    def made(match: re.Match) -> str:
        name, *words = shlex.split(match[1])
        if name not in (known := [part for part in vars(Parts) if part[0] != "_"]):
            raise notebooks.unknown("part of a page", name, known)
        return getattr(parts, name)(*words)

    return MARK.sub(made, text)
