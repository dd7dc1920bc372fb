"""Tables of the book: what was measured and what the paper reports, and how pages show them."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from symgen.book.layout import book_above
from symgen.fingerprints import BOOK, not_a_result
from symgen.method.claims.judgement import VERDICTS, Contrast, Judgement
from symgen.method.statistics import Interval

#: Of the book that comes with the package.
DATA = BOOK / "data"
# What a rule about samples means where trainings are repeated.
OVER_TRAININGS = (
    "Of several trainings each counts as one number, its value over its samples; the interval is "
    "over trainings, and contrasts that fewer than half of them, or fewer than two, have are left "
    "out."
)
# No more repetitions than that are worth a number.
MANY = 1_000
SIGNS = dict(zip(VERDICTS, ("+", "\u2212", "0", "?", "\u00b7"), strict=True))


def read_results(table: str, folder: Path | None = None, preset: str = "quick") -> pd.DataFrame:
    """Return a result table of all chapters: of a run, and of the stored editions.

    Args:
        table: name of the table, such as ``"claims"``.
        folder: of a run, which stands for its preset; None reads stored editions alone.
        preset: of that run.

    Returns:
        Columns preset, chapter, and those of the table. Chapters whose last run in the folder
        failed are left out of it, since what lies there is of an earlier one; ``attrs["failed"]``
        names them.
    """
    failed = sorted(p.name.split(".")[0] for p in folder.glob("*.failed.ipynb")) if folder else []
    folders = _stored_tables()
    if folder is not None:
        folders[preset] = folder / "tables"
    parts = []
    for name, path in sorted(folders.items(), key=lambda item: (item[0] != "quick", item[0])):
        for file in sorted(path.glob(f"*.{table}.csv")):
            about = {"preset": name, "chapter": file.name.split(".")[0]}
            if folder is not None and name == preset and about["chapter"] in failed:
                continue
            parts.append(pd.read_csv(file).assign(**about))
    whole = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    own = whole.columns.difference(["preset", "chapter"], sort=False)
    whole = whole.reindex(columns=["preset", "chapter", *own])
    whole.attrs["failed"] = failed
    return whole


def reported(table: str = "claims") -> pd.DataFrame:
    """Return what the paper says, one row a statement or a number, each with its place.

    Args:
        table: "claims", what it finds in words; or "reported", the numbers it gives.

    Raises:
        FileNotFoundError: for another name, or where the package came without the book.
    """
    return pd.read_csv(_file("paper", f"{table}.csv"))


def benchmarks() -> dict[str, dict]:
    """Return the stored results of `make bench`, by machine: processor or GPU, and rows."""
    return {p.stem: json.loads(p.read_text()) for p in sorted((DATA / "benchmarks").glob("*.json"))}


@not_a_result
def _stored_tables() -> dict[str, Path]:
    """Return the folder of tables of each stored edition."""
    here = book_above(Path.cwd())
    # Who laid out a book of their own keeps results in that one.
    own = here is not None and here != BOOK and (here / "data" / "editions").is_dir()
    editions = (here / "data" if own else DATA) / "editions"
    return {path.parent.name: path for path in editions.glob("*/tables")}


@not_a_result
def _file(folder: str, name: str) -> Path:
    path = DATA / folder / name
    if not path.is_file():
        known = ", ".join(p.name for p in sorted((DATA / folder).glob("*"))) or "nothing"
        raise FileNotFoundError(
            f"no {name} in data/{folder}, which holds {known}; the tables come with the book: "
            "install symgen from its wheel or from a clone of the project"
        )
    return path


class Page:
    """Text in HTML that a notebook shows.

    Args:
        text: HTML; whatever comes from data or parameters is escaped in it.
        plain: the same without markup, for readers without HTML.
    """

    def __init__(self, text: str, plain: str = ""):
        self.text, self.plain = text, plain

    def _repr_html_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.plain or "a table"


def claim_rows(name: str, judged: Mapping[str, Judgement]) -> pd.DataFrame:
    """Return what became of a claim in some settings, one row a contrast.

    Columns: claim, setting, measure, value, low95, high95, bound, margin, unit, repetitions, of
    (what is repeated), verdict (on the claim), open (what it may be where it is undecided),
    contrast (the verdict on this row alone).
    """
    rows = []
    for setting, found in judged.items():
        nothing = Contrast(
            found.note or "nothing could be measured", Interval(*(float("nan"),) * 3), 1
        )
        for one in found.contrasts or [nothing]:
            mean, low, high = one.value
            rows.append({
                "claim": name, "setting": setting, "measure": one.measure, "value": mean,
                "low95": low, "high95": high, "bound": one.bound, "margin": one.margin,
                "unit": one.unit, "repetitions": one.count or found.samples, "of": found.unit,
                "verdict": found.verdict, "open": found.open,
                "contrast": one.verdict if found.contrasts else "not tested",
            })  # fmt: skip
    return pd.DataFrame(rows)


def claim_box(name: str, rule: str, judged: Mapping[str, Judgement]) -> Page:
    """Return the box that says what became of a claim: in words, measured, and by which rule.

    Args:
        name: of the claim, as in ``data/paper/claims.csv``.
        rule: in words.
        judged: setting to judgement.
    """
    about = reported("claims").set_index("claim").loc[name]
    head = f"<b>{html.escape(about.statement)}</b> <small>{html.escape(about.place)}; paper: "
    lines = [
        f'<div class="claim"><p>{head}{html.escape(str(about.paper_value))}</small></p>',
        "<table><tr><th>setting</th><th>measured</th><th>value [95 % interval]</th>"
        "<th>claimed</th><th>verdict</th></tr>",
    ]
    plain = [f"{about.statement} ({about.place})"]
    for setting, found in judged.items():
        repeated = counted(found.samples, found.unit)
        count = f"<br><small>{repeated}</small>"
        sign = (
            f"<td rowspan={max(1, len(found.contrasts))}>{signed(found.verdict, found.open)}</td>"
        )
        where = f"<td rowspan={max(1, len(found.contrasts))}>{html.escape(setting)}{count}</td>"
        for one in found.contrasts:
            sided = "" if len(found.contrasts) == 1 else f" ({SIGNS[one.verdict]})"
            # Of fewer than the setting has.
            of = (
                f" ({counted(one.count, found.unit)})"
                if one.count not in (None, found.samples)
                else ""
            )
            cells = (f"{one.measure}{of}", _told(one), f"{_claimed(one)}{sided}")
            middle = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells[:2])
            middle += f'<td class="claimed">{html.escape(cells[2])}</td>'
            lines.append(f"<tr>{where}{middle}{sign}</tr>")
            where = sign = ""
            plain.append(f"{setting}: {one.measure}: {_told(one)}, {one.verdict}")
        if not found.contrasts:
            lines.append(f'<tr>{where}<td colspan="3">{html.escape(found.note)}</td>{sign}</tr>')
        elif found.note or found.verdict == "undecided":
            # Cells of a map are conditions that were chosen; more of them would be others.
            undecided = found.verdict == "undecided" and found.unit != "cells"
            more = found.decided_by if undecided else None
            hint = _hint(more, found.unit) if more else ""
            lines.append(
                f'<tr><td colspan="5"><small>{hint}{html.escape(found.note)}</small></td></tr>'
            )
        plain.append(f"{setting}: {found.verdict} ({repeated})")
    if any(found.unit == "trainings" for found in judged.values()):
        rule += f" {OVER_TRAININGS}"
    folded = f"<details><summary>The rule</summary><p>{html.escape(rule)}</p></details>"
    return Page("\n".join([*lines, "</table>", folded, "</div>"]), "\n".join(plain))


def counted(number: float, unit: str) -> str:
    """Return a number of repetitions in words, such as "4 trainings"."""
    return f"{number:,.0f} {unit if number != 1 else unit.removesuffix('s')}"


def _hint(more: int, unit: str) -> str:
    if more > MANY:
        return f"If the mean stayed, it would take more than {MANY:,} {unit} to decide. "
    return f"If the mean stayed, about {counted(more, unit)} would decide. "


def signed(verdict: str, more: str = "") -> str:
    """Return a verdict with its sign, and perhaps what it may still be, in HTML."""
    kind = verdict.replace(" ", "-")
    text = f'<span class="verdict {kind}">{SIGNS[verdict]} {verdict}</span>'
    return f"{text} <small>({more})</small>" if more else text


def _told(one: Contrast) -> str:
    """Return a value with its interval, in three digits or so."""
    size = max((abs(x) for x in one.value if x == x), default=0.0)
    if one.value.low == one.value.high:
        digits = ".1e" if 0 < size < 1e-3 else ".0f" if size >= 100 else ".2f"
        text = f"{one.value.mean:{digits}}"
    else:
        text = apart(one.value, one.bound, one.margin)
    return text if one.unit == "1" else f"{text} {one.unit}"


def apart(value: Interval, bound: float, margin: float, sign: str = "") -> str:
    """Return an interval with so many digits that no end of it looks like a limit it is not at.

    Args:
        value: with an interval.
        bound, margin: of the claim; its limits are the bound, and the margin off on both sides.
        sign: "+" to write that of positive numbers, too.

    Example:
        >>> apart(Interval(0.032, 0.022, 0.041), 0, 0.02), apart(Interval(0.3, 0.1, 0.5), 0, 0.02)
        ('0.032 [0.022, 0.041]', '0.30 [0.10, 0.50]')
    """
    size = max((abs(x) for x in value if x == x), default=0.0)
    if size >= 100 or 0 < size < 1e-3:
        return f"{value:{sign}{'.0f' if size >= 100 else '.1e'}}"
    limits = [bound + side * margin for side in (-1, 0, 1)]
    for digits in range(2, 5):
        as_read = {x: float(f"{x:.{digits}f}") for x in (*value[1:], *limits)}
        if not any(end != x and as_read[end] == as_read[x] for end in value[1:] for x in limits):
            break
    return f"{value:{sign}.{digits}f}"


def _claimed(one: Contrast) -> str:
    off = f" by more than {one.margin:g}" if one.margin else ""
    return f"{'above' if one.side > 0 else 'below'} {one.bound:g}{off}"


def compared(results: pd.DataFrame) -> pd.DataFrame:
    """Return what the paper claims, and what became of each claim in every setting.

    Args:
        results: the tables ``claims`` of all chapters, of `read_results`; perhaps none.

    Returns:
        Columns of ``data/paper/claims.csv``, and of the results, whose chapter is page; claims
        that nothing was measured for have no preset, and the verdict "not tested".
    """
    columns = ["claim", "page", "preset", "setting", "measure", "value", "low95", "high95", "unit",
               "repetitions", "of", "contrast", "verdict", "open"]  # fmt: skip
    found = results.rename(columns={"chapter": "page"}).reindex(columns=columns)
    found = found.astype({"claim": object, "verdict": object, "open": object})
    table = reported("claims").merge(found, on="claim", how="left")
    # An empty text is read as a missing number.
    return table.fillna({"verdict": "not tested", "open": ""})


def claims_table(table: pd.DataFrame) -> Page:
    """Return the claims as a table: under each, what every setting measured.

    Args:
        table: columns claim, place, statement, paper_value, chapter, and of the results preset and
            those of `claim_rows`; rows without a preset are claims nothing was measured for.
    """
    lines = ['<table class="claims">']
    for _, rows in table.groupby("claim", sort=False):
        first = rows.iloc[0]
        says = f"{html.escape(first.statement)} <small>({html.escape(first.place)})</small>"
        paper, chapter = html.escape(str(first.paper_value)), html.escape(str(first.chapter))
        link = f'<a href="{chapter}.html">{chapter}</a>'
        lines.append(
            f'<tr><th colspan="4">{says}<br><small>Paper: {paper} &middot; {link}</small></th></tr>'
        )
        for row in rows.itertuples():
            if pd.isna(row.preset):
                lines.append('<tr><td colspan="3">no run has measured it</td><td>not tested</td>')
                lines.append("</tr>")
                continue
            value = _number(row.value)
            if not pd.isna(row.low95) and row.low95 != row.high95:
                value += f" [{_number(row.low95)}, {_number(row.high95)}]"
            value += f" {row.unit}" if value and str(row.unit) != "1" else ""
            several = (rows["preset"].eq(row.preset) & rows["setting"].eq(row.setting)).sum() > 1
            value += f" ({SIGNS[row.contrast]})" * bool(several and row.contrast in SIGNS)
            count = "" if pd.isna(row.repetitions) else counted(row.repetitions, row.of)
            lines.append(
                f"<tr><td>{html.escape(f'{row.preset}: {row.setting}')}</td>"
                f"<td>{html.escape(str(row.measure))}</td><td>{html.escape(value)}<br>"
                f"<small>{count}</small></td><td>{signed(row.verdict)}</td></tr>"
            )
    return Page("\n".join([*lines, "</table>"]))


def verdict_matrix(table: pd.DataFrame) -> tuple[Page, pd.DataFrame]:
    """Return which claim got which verdict in which setting, as a table with numbered settings.

    Args:
        table: as of `claims_table`.

    Returns:
        The page, and the verdicts: one row a claim, one column a setting, in this order.
    """
    known = table[table["preset"].notna()]
    column = known["preset"].astype(str) + ": " + known["setting"].astype(str)
    wide = known.assign(column=column).pivot_table(
        index="claim", columns="column", values="verdict", aggfunc="last", sort=False
    )
    wide = wide.reindex(table["claim"].drop_duplicates())
    words = table.drop_duplicates("claim").set_index("claim")["statement"]
    head = "".join(f"<th>{k}</th>" for k in range(1, wide.shape[1] + 1))
    lines = [f'<table class="claims matrix"><tr><th>claim</th>{head}</tr>']
    for name, row in wide.iterrows():
        cells = "".join(
            f'<td><span class="verdict {v.replace(" ", "-")}">{SIGNS[v]}</span></td>'
            if isinstance(v, str) else "<td></td>" for v in row
        )  # fmt: skip
        lines.append(f"<tr><td>{html.escape(words[name])}</td>{cells}</tr>")
    settings = "".join(f"<li>{html.escape(name)}</li>" for name in wide.columns)
    legend = " ".join(signed(verdict) for verdict in VERDICTS)
    named = f"<details><summary>The settings, by number</summary><ol>{settings}</ol></details>"
    return Page("\n".join([f"<p>{legend}</p>", named, *lines, "</table>"])), wide


def _number(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:.3g}"


def benchmark_table(rows: pd.DataFrame) -> Page:
    """Return the comparisons of `make bench` as a table.

    Args:
        rows: columns what, against, ours, theirs, unit, ratio, must, limit, met.
    """
    lines = ['<table class="benchmarks"><tr>']
    head = ("what", "against", "ours", "theirs", "unit", "ratio", "should be", "is it?")
    lines += [f"<th>{name}</th>" for name in head] + ["</tr>"]
    for row in rows.itertuples():
        wanted = "" if pd.isna(row.must) else f"at least {row.must:g}"
        wanted = wanted if pd.isna(row.limit) else f"at most {row.limit:g}"
        met = {True: "yes", False: "<b>no</b>"}.get(row.met, "")
        texts = (html.escape(row.what), html.escape(row.against), _number(row.ours))
        texts += (_number(row.theirs), html.escape(str(row.unit)), _number(row.ratio), wanted, met)
        lines.append("<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>")
    return Page("\n".join([*lines, "</table>"]))
