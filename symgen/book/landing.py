"""What the landing page shows and says, taken from the pages and results it leads to."""

import html

import nbformat
import pandas as pd

from symgen.book.tables import counted, signed

#: Claims to their words on the landing page, in its order.
HELD = {
    "low_orders": "Simple interactions generalize better than complex ones.",
    "power": "The generalization power first rises, then falls.",
    "power_above_chance": "So does what of it lies above chance.",
    "gap": "The loss gap opens while it falls.",
    "removal_shrunk": "Taking out what does not generalize closes more of the loss gap than making "
    "the network less sure of itself.",
    "extractor_count": "How far the number of interactions falls at first depends on how they are "
    "extracted.",
    "power_beats_simpler": "Generalization power tells the loss gap better than simpler measures.",
}
# Verdicts of the map of trainings, by the rules in its columns.
FINDINGS = ("finding 1", "finding 2", "above chance", "finding 3")


def held(claims: pd.DataFrame, cells: pd.DataFrame) -> str:
    """Return what became of the main claims, one line each, in Markdown.

    Args:
        claims: of `read_results`, with the rows that the pages show.
        cells: the table ``verdicts`` of the map of trainings; perhaps empty.
    """
    lines = []
    for name, words in HELD.items():
        rows = claims[claims["claim"] == name] if len(claims) else claims
        if not len(rows):
            continue
        rows = rows[rows["setting"] == rows["setting"].iloc[0]]
        first = rows.iloc[0]
        values = [
            f"{row.value:+.2f} [{row.low95:+.2f}, {row.high95:+.2f}]"
            for row in rows.dropna(subset=["value", "low95"]).itertuples()
        ]
        told = [", then ".join(values)] * bool(values)
        told += [html.escape(first.setting), counted(float(first.repetitions), first.of)]
        lines.append(
            f"- {signed(first.verdict)} **{words}** <small>{'; '.join(told)}; "
            f"[more]({first.chapter})</small>"
        )
    known = [name for name in FINDINGS if name in cells]
    if known:
        shown = [f"{name} in {int(cells[name].eq('shown').sum())}" for name in known]
        lines.append(
            f"- **When?** On a map of {len(cells)} settings of data, wrong labels and width, shown "
            f"are {', '.join(shown)} of them: see [When do the phases show?](when)"
        )
    return "\n".join(lines) or "*No run has been stored yet.*"


def hero(page: nbformat.NotebookNode) -> str | None:
    """Return the figure of `plot_cases` that an executed chapter holds, as SVG; None without."""
    for cell in page.cells:
        if cell.cell_type == "code" and "plot_cases(" in cell.source:
            for output in cell.get("outputs", []):
                if svg := output.get("data", {}).get("image/svg+xml"):
                    return "".join(svg)
    return None
