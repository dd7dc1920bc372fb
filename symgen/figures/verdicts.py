"""Tables and figures of the pages that compare: claims with verdicts, and benchmarks."""

import html
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from symgen.book.chapter import VERDICTS
from symgen.literal import no_math

SIGNS = dict(zip(VERDICTS, ("+", "(+)", "-", "?"), strict=True))
FACES = dict(zip(VERDICTS, ("#A6DBC9", "#F6E3A1", "#F2B8A0", "#EDEDED"), strict=True))


def plot_verdicts(table: pd.DataFrame) -> tuple[Axes, pd.DataFrame]:
    """Draw which claim got which verdict in which setting; settings are numbered.

    Args:
        table: columns claim, statement, preset, setting, verdict; rows without a preset are
            claims that nothing was measured for.

    Returns:
        Axes, and the verdicts: one row a claim, one column a setting, in the drawn order.
    """
    known = table[table["preset"].notna()]
    column = known["preset"].astype(str) + ": " + known["setting"].astype(str)
    wide = known.assign(column=column).pivot_table(
        index="claim", columns="column", values="verdict", aggfunc="last", sort=False
    )
    wide = wide.reindex(table["claim"].drop_duplicates())
    words = table.drop_duplicates("claim").set_index("claim")["statement"]
    # Room for the claims' words on the left and for the legend below, in inches.
    left, below, cell = 5.2, 0.6, 0.3
    size = (left + cell * max(3, wide.shape[1]) + 0.2, below + cell * len(wide) + 0.4)
    figure = plt.figure(figsize=size, layout="none")
    width, height = cell * max(1, wide.shape[1]) / size[0], cell * len(wide) / size[1]
    ax = figure.add_axes((left / size[0], below / size[1], width, height))
    for i, row in enumerate(wide.to_numpy()):
        for j, verdict in enumerate(row):
            if isinstance(verdict, str):
                ax.add_patch(plt.Rectangle((j, i), 1, 1, fc=FACES[verdict], ec="white", lw=2))
                ax.text(j + 0.5, i + 0.52, SIGNS[verdict], ha="center", va="center", size=10)
    for verdict in VERDICTS:
        ax.plot([], [], "s", ms=9, color=FACES[verdict], label=f"{SIGNS[verdict]}  {verdict}")
    ax.set(xlim=(0, max(1, wide.shape[1])), ylim=(len(wide), 0))
    short = [no_math(w if len(w) < 70 else w[:67] + "...") for w in words.loc[wide.index]]
    ax.set_yticks(np.arange(len(wide)) + 0.5, short, size=8.5)
    ax.xaxis.tick_top()
    ax.set_xticks(np.arange(wide.shape[1]) + 0.5, np.arange(wide.shape[1]) + 1, size=8.5)
    ax.tick_params(length=0)
    ax.grid(False)
    for side in ax.spines.values():
        side.set_visible(False)
    figure.legend(*ax.get_legend_handles_labels(), loc="lower left", ncols=4)
    return ax, wide


class Page:
    """Text in HTML that a notebook shows."""

    def __init__(self, text: str):
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def _number(value: Any) -> str:
    return "" if pd.isna(value) else f"{value:.3g}"


def claims_table(table: pd.DataFrame) -> Page:
    """Return the claims as a table: under each, what every setting measured.

    Args:
        table: columns claim, place, statement, paper_value, chapter, and of the results preset,
            setting, measure, value, low95, high95, unit, samples, verdict.
    """
    lines = ['<table class="claims">']
    for _, rows in table.groupby("claim", sort=False):
        first = rows.iloc[0]
        says = f"{html.escape(first.statement)} <small>({html.escape(first.place)})</small>"
        paper = html.escape(str(first.paper_value))
        chapter = html.escape(str(first.chapter))
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
            if not pd.isna(row.low95):
                value += f" [{_number(row.low95)}, {_number(row.high95)}]"
            value += f" {row.unit}" if value and str(row.unit) != "1" else ""
            count = "" if pd.isna(row.samples) else f"{row.samples:.0f} samples"
            lines.append(
                f"<tr><td>{html.escape(f'{row.preset}: {row.setting}')}</td>"
                f"<td>{html.escape(str(row.measure))}</td><td>{html.escape(value)}<br>"
                f"<small>{count}</small></td>"
                f'<td style="background:{FACES[row.verdict]};color:black">{row.verdict}</td></tr>'
            )
    return Page("\n".join([*lines, "</table>"]))


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


def plot_price(points: pd.DataFrame, memory: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw time and memory of one sample against the number of variables.

    Args:
        points: columns n, tol, seconds (a sample), gap; points that missed the gap asked for are
            drawn open.
        memory: columns n, gib, of one sample.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    styles = (("o-", "#0072B2"), ("s--", "#E69F00"))
    for (tol, rows), (line, colour) in zip(points.groupby("tol"), styles, strict=False):
        axes[0].plot(rows["n"], rows["seconds"], line, ms=5, color=colour, label=f"gap {tol:g}")
        missed = rows[rows["gap"] > tol]
        axes[0].plot(missed["n"], missed["seconds"], line[0], ms=5, mfc="white", color=colour)
    axes[0].legend()
    axes[0].set(yscale="log", ylabel="seconds a sample")
    axes[1].plot(memory["n"], memory["gib"], "D:", ms=5, color="#222222")
    axes[1].set(yscale="log", ylabel="memory of one sample (GiB)")
    for ax in axes:
        ax.set_xlabel("input variables n")
        ax.set_xticks(range(int(points["n"].min()), int(points["n"].max()) + 1))
    return figure, points
