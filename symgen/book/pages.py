"""How tables, claims and provenance look on a page."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from symgen.book import editions, notebooks

# How tables and verdicts look in JupyterLab; the site has its own style.
LAB = (
    "<style>.jp-RenderedHTMLCommon :is(.results, .claim) :is(th, td) {text-align: left}"
    ".jp-RenderedHTMLCommon .verdict {color: black; padding: 0 0.4em}"
    ".verdict.holds {background: #a6dbc9} .verdict.fails {background: #f2b8a0}"
    ".verdict.open {background: #dcdcf2} .verdict.undone {background: #f0e0a8}</style>"
)
CAPTION = re.compile(r"\*(?![*\s])(.+?)(?<![*\s])\*\s*(\n\s*\n|\Z)", re.S)
# Facts of a run that its page does not show, or shows in other words.
HIDDEN = ("chapter", "reads", "batch", "reused", "measured_on", "seconds", "versions", "cells",
          "parameters")  # fmt: skip


def digits(value: Any) -> str:
    """Return a number with three digits, thousands in full, and nothing for NaN."""
    if not isinstance(value, float) or math.isinf(value):
        return str(value)
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


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
    """Return ``mean [low, high] unit`` with as many digits as interval and verdict need.

    Example:
        >>> row = pd.Series({"mean": 0.0391, "low": 0.0252, "high": 0.0529, "unit": "nats"})
        >>> effect(row)
        '0.039 [0.025, 0.053] nats'
    """
    mean, low, high = float(row["mean"]), float(row["low"]), float(row["high"])
    if not high > low:  # an exact value, or NaN
        return f"{digits(mean)} {row.get('unit', '')}".strip()
    limit = row.get("side", 0) * row.get("margin", 0)
    places = max(1 - math.floor(math.log10(3 * (high - low))), 0)
    # A bound must not be printed on the other side of the margin, or on it.
    for bound in (low, high):
        while places < 9 and np.sign(round(bound, places) - limit) != np.sign(bound - limit):
            places += 1
    texts = []
    for number in (mean, low, high):
        texts.append(f"{round(number, places) + 0.0:.{places}f}")  # 0.0 turns -0.0 into 0.0
    return f"{texts[0]} [{texts[1]}, {texts[2]}] {row.get('unit', '')}".strip()


def claims_of_paper(book: Path) -> pd.DataFrame:
    """Return ``data/paper/claims.csv`` by claim.

    Returns:
        place, statement, paper_value, chapter, rule and margin; ``control`` is a part of the label
        of the decisive control, and ``beyond`` says what it tests, such as "above chance".
    """
    return pd.read_csv(book / "data" / "paper" / "claims.csv", index_col="claim").fillna("")


def readable(text: str) -> str:
    """Return text with the names that people use, of ``data/paper/names.csv``, instead of ids."""
    names = pd.read_csv(notebooks.book_folder() / "data" / "paper" / "names.csv")
    for name, words in names.itertuples(index=False):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", words, text)
    return re.sub(r"\b(\d+)(\d{3}) training", r"\1,\2 training", text)


def repeated(row: Any) -> str:
    """Return the number of repetitions in words, such as "8 trainings"."""
    count, unit = int(row["repetitions"]), str(row["of"])
    return f"{count} {unit if count != 1 else unit.removesuffix('s')}"


def claimed(row: Any) -> str:
    """Return the side and margin that a row has to pass, or "control"."""
    if not row["side"]:
        return "control"
    limit = f"{row['side'] * row['margin'] + 0.0:g}"
    return f"above {limit}" if row["side"] > 0 else f"below {limit}"


def source(about: Any) -> str:
    """Return the place of a claim and the words there; not every claim is from the paper."""
    place = str(about["place"])
    return (
        f"{place if place.startswith('arXiv') else f'{place} of the paper'}: {about['paper_value']}"
    )


def decisive(rows: pd.DataFrame, about: Any) -> tuple[Any, Any]:
    """Return the row that decides the verdict of a setting, and the decisive control or None.

    Args:
        rows: those of one claim in one setting.
        about: the row of the claim in `claims_of_paper`.
    """
    judged = rows.loc[rows["side"] != 0]
    deciding = judged.loc[judged["row"] == rows["verdict"].iloc[0]]
    controls = rows.loc[rows["side"] == 0]
    controls = controls.loc[controls["label"].str.contains(about["control"], regex=False)]
    contrast = rows.iloc[0]  # of networks that learned nothing, no row is judged
    if len(judged):
        contrast = (deciding if len(deciding) else judged).iloc[-1]
    return contrast, controls.iloc[0] if about["control"] and len(controls) else None


def outcome(rows: pd.DataFrame, about: Any) -> tuple[str, str]:
    """Return the verdict after the decisive control: its kind, and in words.

    Returns:
        "holds", "fails" or "open", twice. If the control of a claim that holds is not beyond the
        margin: "undone", and words such as "holds, but not above chance". If nothing was judged:
        "open" and "no verdict". If the control lies beyond the margin on the other side, "less"
        takes the place of "more".
    """
    verdict = str(rows["verdict"].iloc[0])
    if not verdict:
        return "open", "no verdict"
    contrast, control = decisive(rows, about)
    if verdict != "holds" or control is None:
        return verdict, verdict
    low, high = sorted(contrast["side"] * control[["low", "high"]])
    if low > contrast["margin"]:
        return verdict, verdict
    if high < -abs(contrast["margin"]) and about["beyond"].startswith("more"):
        return "undone", f"holds, but {about['beyond'].replace('more', 'less', 1)}"
    if high < contrast["margin"]:
        return "undone", f"holds, but not {about['beyond']}"
    return "undone", f"holds; open whether {about['beyond']}"


def outcome_sentence(rows: pd.DataFrame, about: Any) -> str:
    """Return a claim with its verdicts and decisive numbers, as one sentence of plain text.

    Numbers are named if settings are decided by different ones.

    Args:
        rows: those of one claim in all settings; empty if it was not tested.
        about: the row of the claim in `claims_of_paper`.
    """
    if rows.empty:
        return f"{about['statement']}: not tested here."
    cases: dict[str, list[str]] = {}
    parts = list(rows.groupby("setting", sort=False))
    decided = [decisive(part, about)[0] for _, part in parts]
    same = len({contrast["label"] for contrast in decided}) == 1
    longer = [
        readable(str(setting)).split("; ")[0].split(", near chance")[0] for setting, _ in parts
    ]
    names = [name.split(" (")[0] for name in longer]
    for (_, part), contrast, name, long in zip(parts, decided, names, longer, strict=True):
        if names.count(name) > 1:
            name = long.replace(" (", ", ")
        number = effect(contrast) if same else f"{effect(contrast)}, {contrast['label']}"
        cases.setdefault(outcome(part, about)[1], []).append(f"{name}: {number}")
    texts = []
    for words, settings in cases.items():
        count = f" in {len(settings)} of {rows['setting'].nunique()} cases"
        listed = f" ({'; '.join(settings)})" if len(settings) <= 3 else ""
        texts.append(words + (count if rows["setting"].nunique() > 1 else "") + listed)
    return f"{about['statement']}: {'; '.join(texts)}."


def finding(sentences: Sequence[str]) -> str:
    """Return "What this page shows" as HTML."""
    lines = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f'<div class="finding"><p><b>What this page shows</b></p><ul>{lines}</ul></div>'


def badge(kind: str, words: str) -> str:
    """Return a verdict as HTML."""
    known = kind if kind in ("holds", "fails", "open", "undone") else "open"
    return f'<span class="verdict {known}">{html.escape(words)}</span>' if words else ""


def row_of_cells(*cells: str) -> str:
    """Return a row of an HTML table; the cells are HTML, the first one names the row."""
    first, *rest = cells
    return f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"


def marked(tag: str, claim: str, preset: str, content: str) -> str:
    """Return an element next to which the site adds the recorded result of a claim."""
    names = f'data-claim="{html.escape(claim)}" data-preset="{html.escape(str(preset))}"'
    return f'<{tag} class="claim" {names}>{content}</{tag}>'


def measured(row: Any, heading: str) -> str:
    """Return a cell with the number of a row, and its label unless the heading ends with it."""
    text = ""
    if row is not None:
        text = html.escape(effect(row))
        if not heading.endswith(row["label"]):
            text += f"<br><small>{html.escape(row['label'])}</small>"
    return f'<td data-label="{html.escape(heading)}">{text}</td>'


def heading(kind: str, rows: Sequence[Any]) -> str:
    """Return the heading of a column; the label is part of it if all its rows share it."""
    labels = {row["label"] for row in rows if row is not None}
    return f"{kind}: {labels.pop()}" if len(labels) == 1 else kind


def claim_table(rows: pd.DataFrame, about: Any) -> str:
    """Return one line per setting: verdict, decisive contrast and control; all else is folded."""
    parts = list(rows.groupby("setting", sort=False))
    pairs = [decisive(part, about) for _, part in parts]
    first = heading("decisive contrast", [contrast for contrast, _ in pairs])
    second = heading("decisive control", [control for _, control in pairs])
    has_controls = any(control is not None for _, control in pairs)
    titles = [first, second] if has_controls else [first]
    short = row_of_cells("network and data", "result", *map(html.escape, titles))
    full = row_of_cells("measured", "mean [95 % interval]", "claimed")
    for (setting, part), (contrast, control) in zip(parts, pairs, strict=True):
        names = [readable(str(setting)), repeated(part.iloc[0])]
        accuracy = part["accuracy"].iloc[0] if "accuracy" in part else math.nan
        if pd.notna(accuracy):
            names.append(f"test accuracy {accuracy:.2f}")
        title = html.escape(", ".join(filter(None, names)))
        cells = measured(contrast, first)
        if has_controls:
            cells += measured(control, second)
        short += f"<tr><th>{title}</th><td>{badge(*outcome(part, about))}</td>{cells}</tr>"
        full += row_of_cells(title, "", "")
        for _, row in part.iterrows():
            cells = (str(row["label"]), effect(row), claimed(row))
            full += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    folded = f"<details><summary>All rows</summary><table>{full}</table></details>"
    return f'<table class="short">{short}</table>{folded}'


def claim_box(rows: pd.DataFrame, about: Any, preset: str, note: str = "") -> str:
    """Return the box of a claim: statement, place, verdicts and numbers."""
    statement = html.escape(about["statement"])
    head = f"<p><b>{statement}</b> <small>({html.escape(source(about))})</small></p>"
    content = head + claim_table(rows, about) + note
    return marked("div", rows["claim"].iloc[0], preset, content) + LAB


def recorded(book: Path, claim: str, preset: str) -> str:
    """Return the recorded result of the largest edition, if it is not the run that is shown."""
    rows = editions.largest_claims(book)
    rows = rows.loc[rows["claim"] == claim]
    if rows.empty or rows["edition"].iloc[0] == preset:
        return ""
    title = f"Recorded result (edition {html.escape(rows['edition'].iloc[0])})"
    shown = claim_table(rows, claims_of_paper(book).loc[claim])
    return f'<div class="claim recorded"><p>{title}</p>{shown}</div>'


def provenance_rows(record: Mapping[str, Any]) -> dict[str, str]:
    """Return provenance as a reader sees it: name and text."""
    seconds = f"{record.get('seconds', 0):,.0f} s"
    if record.get("reused"):
        seconds += f", of which {record['reused']:,.0f} s are trainings measured earlier"
        seconds += f" on {', '.join(record.get('measured_on', []))}"
    rows = {name: str(value) for name, value in record.items() if name not in HIDDEN}
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    return {**rows, "time": seconds, "libraries": versions}


def provenance_table(rows: Mapping[str, str]) -> str:
    """Return provenance as an HTML table."""
    lines = [row_of_cells(html.escape(name), html.escape(text)) for name, text in rows.items()]
    return f'<table class="provenance">{"".join(lines)}</table>'


def caption(cell: Mapping | None) -> str:
    """Return the caption that a Markdown cell starts with, as plain text, or an empty text."""
    match = CAPTION.match(cell["source"]) if cell and cell["cell_type"] == "markdown" else None
    if not match:
        return ""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
    return " ".join(re.sub(r"[`*$\\{}]", "", text).split())
