"""The parts of pages that are made from stored tables, and how claims and tables look."""

import base64
import html
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
CAPTION = re.compile(r"\*(?![*\s])(.+?)(?<![*\s])\*\s*(\n\s*\n|\Z)", re.S)


def digits(value: Any) -> str:
    """Return a number with three digits, thousands in full, and nothing for NaN."""
    if not isinstance(value, float) or math.isinf(value):
        return str(value)
    return "" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(frame: pd.DataFrame, max_rows: int | None = 30) -> str:
    """Return a DataFrame as HTML: no index, three digits, everything escaped."""
    return frame.to_html(
        index=False, border=0, max_rows=max_rows, float_format=digits, na_rep="", classes="results"
    )


def effect(row: Any) -> str:
    """Return ``mean [low, high] unit`` with as many digits as the interval needs.

    Example:
        >>> row = pd.Series({"mean": 0.0391, "low": 0.0252, "high": 0.0529, "unit": "nats"})
        >>> effect(row)
        '0.039 [0.025, 0.053] nats'
    """
    width = 3 * (row["high"] - row["low"])
    if not width > 0:  # an exact value, or NaN
        text = digits(float(row["mean"]))
    else:
        places = min(max(1 - math.floor(math.log10(width)), 0), 9)
        text = "{:.{p}f} [{:.{p}f}, {:.{p}f}]".format(
            row["mean"], row["low"], row["high"], p=places
        )
    return f"{text} {row['unit']}".strip()


def badge(verdict: str) -> str:
    """Return a verdict as a colored word."""
    return f'<span class="verdict {verdict}">{verdict}</span>' if verdict else ""


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
    names = (html.escape(str(name)) for name in (claim, preset))
    return '<{0} class="claim" data-claim="{1}" data-preset="{2}">{3}</{0}>'.format(
        tag, *names, content
    )


def claim_rows(rows: pd.DataFrame) -> str:
    """Return the rows of one claim as a table, a part per setting."""
    lines = []
    for setting, part in rows.groupby("setting", sort=False):
        title = html.escape(", ".join(filter(None, [str(setting), repeated(part.iloc[0])])))
        verdict = badge(part["verdict"].iloc[0])
        lines.append(f'<tr><th colspan="2">{title}</th><td>{verdict}</td></tr>')
        for _, row in part.iterrows():
            cells = (str(row["label"]), effect(row), claimed(row))
            lines.append("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
    head = "<tr><th>measured</th><th>mean [95 % interval]</th><th>claimed</th></tr>"
    return f"<table>{head}{''.join(lines)}</table>"


def claim_box(rows: pd.DataFrame, about: Any, preset: str, note: str = "") -> str:
    """Return the box of a claim: statement, place, measured rows and verdict."""
    paper = html.escape(f"{about['place']}; paper: {about['paper_value']}")
    head = f"<p><b>{html.escape(about['statement'])}</b> <small>({paper})</small></p>"
    return marked("div", rows["claim"].iloc[0], preset, head + claim_rows(rows) + note)


def claim_text(rows: pd.DataFrame) -> str:
    """Return the rows of a claim as plain text."""
    lines = (
        f"{row['setting']}: {row['label']} {effect(row)} ({repeated(row)}) "
        f"{row['row'] or 'control'}"
        for _, row in rows.iterrows()
    )
    return "\n".join(lines)


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
    hidden = ("chapter", "reads", "batch", "reused", "seconds", "versions", "cells", "parameters")
    seconds = f"{record.get('seconds', 0):,.0f} s"
    if record.get("reused"):
        seconds += f", of which {record['reused']:,.0f} s are trainings measured earlier"
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

    def count(self, claim: str, setting: str = "") -> str:
        """Return how many repetitions there are, in words."""
        rows = self._of(claim, setting=setting)
        return html.escape(repeated(rows.iloc[0])) if len(rows) else MISSING

    def verdict(self, claim: str, setting: str = "") -> str:
        """Return the verdict as a badge."""
        rows = self._of(claim, setting=setting)
        return badge(rows["verdict"].iloc[0]) if len(rows) else MISSING

    def edition(self, claim: str) -> str:
        """Return the edition that the recorded result comes from."""
        rows = self._of(claim)
        return rows["edition"].iloc[0] if len(rows) else MISSING

    def claim(self, claim: str) -> str:
        """Return the box of one claim."""
        rows, about = self._of(claim), self.paper.loc[claim]
        if rows.empty:
            statement = f"{html.escape(about['statement'])} ({html.escape(about['place'])})"
            return f'<div class="claim"><p><b>{statement}</b>: {MISSING[1:-1]}.</p></div>'
        edition, chapter = rows["edition"].iloc[0], html.escape(rows["chapter"].iloc[0])
        note = f'<p>Edition {edition}, <a href="{chapter}.html">{chapter}</a>.</p>'
        return claim_box(rows, about, edition, note)

    def claims(self, chapter: str = "") -> str:
        """Return the boxes of all claims, or of one chapter."""
        chosen = [n for n in self.paper.index if chapter in ("", self.paper.chapter[n])]
        return "".join(self.claim(name) for name in chosen)

    def table(self, chapter: str, name: str) -> str:
        """Return a recorded table of the largest edition."""
        rows = editions.read_tables(self.book, name)
        rows = rows[rows["chapter"] == chapter]
        rows = rows[rows["edition"] == rows["edition"].iloc[-1]] if len(rows) else rows
        own = rows.drop(columns=["edition", "chapter"]).dropna(axis="columns", how="all")
        return table(own, max_rows=None) if len(rows) else MISSING

    def csv(self, path: str) -> str:
        """Return a CSV file of the book as a table."""
        return table(pd.read_csv(self.book / path), max_rows=None)

    def output(self, chapter: str, tag: str) -> str:
        """Return the first output of the cell with a tag, from the largest edition."""
        for copy in editions.largest_copies(self.book, chapter).values():
            for cell, after in zip(copy.cells, [*copy.cells[1:], None], strict=True):
                if not notebooks.has_tag(cell, tag) or cell.cell_type != "code":
                    continue
                for data in (output.data for output in cell.outputs if "data" in output):
                    if shown := _shown(data, caption(after)):
                        return shown
        return MISSING

    def runs(self) -> str:
        """Return what each stored page took: edition, time, device, date."""
        rows = []
        for name in notebooks.contents(self.book):
            for edition, copy in editions.largest_copies(self.book, name).items():
                about = copy.metadata.get("symgen", {})
                rows.append({
                    "chapter": name, "edition": edition, "seconds": about.get("seconds", ""),
                    "of which reused": about.get("reused", ""), "device": about.get("device", ""),
                    "date": about.get("date", ""),
                })  # fmt: skip
        return table(pd.DataFrame(rows), max_rows=None) if rows else MISSING


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
        BookError: for an unknown part or claim, or words that do not fit the part.
    """
    if not MARK.search(text):
        return text
    parts = Parts(book)

    def made(match: re.Match) -> str:
        name, *words = shlex.split(match[1])
        if name not in (known := [part for part in vars(Parts) if part[0] != "_"]):
            raise notebooks.unknown("part of a page", name, known)
        try:
            return getattr(parts, name)(*words)
        except TypeError as error:
            raise notebooks.BookError(f"<!-- symgen: {match[1]} -->: {error}") from None

    return MARK.sub(made, text)
