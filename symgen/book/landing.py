"""What became of the claims, on the landing page and on one page, taken from stored results."""

import html
from collections.abc import Callable
from typing import Any, NamedTuple

import nbformat
import pandas as pd

from symgen.book.tables import Page, apart, counted, signed
from symgen.method.statistics import Interval


class Question(NamedTuple):
    """What the landing page asks: the claims that answer it, in their words there, and a figure.

    The figure is that of a chapter's cell that holds `call`; `seen` says what it shows.
    """

    claims: dict[str, str]
    chapter: str = ""
    call: str = ""
    seen: str = ""


#: The questions of the landing page, in its order.
QUESTIONS = {
    "Do simple interactions generalize better?": Question(
        {
            "low_orders": "Simple interactions generalize better than complex ones.",
            "low_orders_learned": "That lead is larger after training than before it (control of "
            "ours).",
            "low_orders_above_chance": "Above chance, too, simple interactions generalize better "
            "(control of ours).",
            "untrained_baseline": "Trained networks share more of what a network has learned than "
            "untrained ones do (control of ours).",
        },
        "02_order_generalization",
        "plot_power(",
        "Generalization power H of interactions of all, low, middle and high orders in one "
        "training, with 95 % intervals and chance levels",
    ),
    "Do the phases show?": Question(
        {
            "power": "The generalization power first rises, then falls.",
            "power_above_chance": "So does what of it lies above chance (control of ours).",
            "count": "The number of interactions first falls, then rises.",
            "gap": "The loss gap widens while the generalization power falls.",
        },
        "when",
        "plot_moves(",
        "How far H, H above chance and the number of interactions N move to their extremes, and "
        "from there to the end, by training samples and wrong labels: rises red, falls blue",
    ),
    "Does what does not generalize make the loss gap?": Question(
        {
            "removal_gap": "Taking out what does not generalize closes a part of the loss gap.",
            "removal_control": "It closes more of the gap than taking out as much at random does "
            "(control of ours).",
            "removal_shrunk": "It closes more of the gap than making the network less sure of "
            "itself does, to the same training loss (control of ours, which also shrinks what no "
            "interaction explains).",
        },
        "04_loss_gap_removal",
        "plot_removal(table)",
        "Training loss, test loss and the gap between them, averaged over trainings: with nothing "
        "removed, with what does not generalize removed, and with three controls",
    ),
    "Does training against it help?": Question(
        {
            "penalty_power": "A penalty on what does not generalize makes more of what is learned "
            "generalize.",
            "penalty_control": "It does so more than a penalty on as much at random (control of "
            "ours).",
            "penalty_accuracy": "It raises the test accuracy.",
        },
        "E_penalty",
        "plot_arms(tables)",
        "By how much test accuracy, H and the loss gap differ from those of the plain training of "
        "the same seed: with the penalty, with one at random, and with another weight decay",
    ),
    "Does the generalization power tell the loss gap?": Question(
        {
            "power_predicts": "Over many trainings, a lower generalization power, chance included, "
            "goes with a wider gap (control of ours).",
            "power_beats_simpler": "It tells the loss gap better than simpler measures do, the "
            "training loss among them (control of ours).",
        },
    ),
    "Is it the network's, or the extractor's?": Question(
        {
            "extractor_count": "By the procedure that earlier papers of the field published (this "
            "one does not print its optimizer), the number of interactions falls farther at first "
            "than by the exact split of the same outputs (control of ours).",
            "extractor_power": "By that procedure the generalization power rises farther (control "
            "of ours).",
            "extractor_chance": "So does its chance level (control of ours).",
            "extractor_orders": "Before training, that procedure finds interactions of higher "
            "order (control of ours).",
        },
        "extractor",
        "plot_planted(",
        "How the exact split and the published procedure do on planted interactions with noise: "
        "what they find, what they invent, how many, and of which order",
    ),
}
# From the smallest networks and data to the largest.
PRESETS = ("quick", "cpu", "gpu", "paper")
# How a claim is settled by the settings of the largest preset that measured it.
ANSWERS = {
    "shown in every setting": lambda found: found.eq("shown").all(),
    "shown in some settings": lambda found: found.eq("shown").any(),
    "not so, or no difference": lambda found: found.isin(["opposite", "absent"]).mean() >= 0.5,
    "not so in some settings": lambda found: found.isin(["opposite", "absent"]).any(),
    "our runs cannot say": lambda found: True,
}


# Claims to the columns of `when`, which has a verdict on them in each cell of its map.
CELLS = {"count": "finding 1", "power": "finding 2", "power_above_chance": "above chance",
         "gap": "finding 3"}  # fmt: skip


def held(
    claims: pd.DataFrame,
    effects: pd.DataFrame,
    cells: pd.DataFrame,
    figure: Callable[[str, str, str], str],
) -> str:
    """Return what became of the main claims, question by question, numbers folded; in Markdown.

    Args:
        claims: of `read_results`, with the rows that the pages show. Of a claim the map of
            trainings counts where it has it, with the first setting of another page beside it; else
            of the settings in which it was tested the one with the most repetitions.
        effects: of `effect_table`, what the factors of that map do; perhaps empty.
        cells: verdicts on the findings in each cell of the map; perhaps empty.
        figure: from a chapter, a call in one of its cells and what it shows to the figure, in
            Markdown; "" where the page has none.
    """
    lines, numbers = [], []
    # An empty text is read as a missing number.
    claims = claims.astype({"open": object}).fillna({"open": ""}) if len(claims) else claims
    for asked, question in QUESTIONS.items():
        found = []
        for name, words in question.claims.items():
            if len(rows := claims[claims["claim"] == name] if len(claims) else claims):
                line, values = _became(rows, words, cells)
                found.append(line)
                numbers += [f"- {words} <small>{values}</small>"] * bool(values)
        if question.chapter == "when" and len(effects):
            found += [_together(cells), _when(effects)]
        if found := [line for line in found if line]:
            drawn = question.call and figure(question.chapter, question.call, question.seen)
            told = f"<small>{question.seen}: from [its page]({question.chapter}).</small>"
            lines += [f"### {asked}", "", *found, *["", drawn, "", told] * bool(drawn), ""]
    if numbers:
        folded = "<details><summary>The numbers, with 95 % intervals</summary>"
        lines += [folded, "", *numbers, "", "</details>"]
    return "\n".join(lines) or "*No run has been stored yet.*"


def _became(rows: pd.DataFrame, words: str, cells: pd.DataFrame) -> tuple[str, str]:
    """Return the line about one claim, and its numbers; see `held`."""
    rows = rows.sort_values("repetitions", ascending=False, kind="stable")
    best = rows["chapter"].eq("when"), rows["verdict"].ne("not tested")
    first = next((rows[of].iloc[0] for of in best if of.any()), rows.iloc[0])
    mapped = first.chapter == "when"
    told = [counted(float(first.repetitions), first.of)]
    if mapped and CELLS.get(first.claim) in cells:
        alone = cells[CELLS[first.claim]]
        against = alone.isin(["opposite", "absent"]).sum()
        told = [
            f"on average over {first.repetitions:.0f} of {len(cells)} cells of our map; alone, "
            f"shown in {alone.eq('shown').sum()}, absent or opposite in {against}"
        ]
    tested = rows[rows["verdict"].ne("not tested")]
    if not mapped and tested["setting"].nunique() > 1:
        told.append(_in_settings(tested))
    values = [_numbers(rows, first)]
    elsewhere = tested[tested["chapter"].ne("when")]
    if mapped and len(elsewhere):
        one = elsewhere.iloc[0]
        of_page = _in_settings(elsewhere[elsewhere["chapter"] == one.chapter])
        told.append(f"[without the map]({one.chapter}) {of_page}")
        values.append(_numbers(elsewhere, one))
    line = (
        f"- {signed(first.verdict, first.open)} **{words}** <small>{'; '.join(told)}; "
        f"[more]({first.chapter})</small>"
    )
    return line, "; ".join(filter(None, values))


def _in_settings(tested: pd.DataFrame) -> str:
    """Return in how many of its settings a claim is shown, and in how many it is opposite."""
    verdicts = tested.drop_duplicates("setting")["verdict"]
    told = f"shown in {verdicts.eq('shown').sum()} of {len(verdicts)} settings"
    against = verdicts.eq("opposite").sum()
    return told + f", opposite in {against}" * bool(against)


def _together(cells: pd.DataFrame) -> str:
    """Return the line about cells of the map in which all findings are shown; see `held`."""
    findings = cells.filter(like="finding")
    if findings.empty:
        return ""
    count = findings.eq("shown").all(axis=1).sum()
    against = findings.isin(["absent", "opposite"]).any(axis=1).sum()
    return (
        f"- **The paper's three findings together**: all shown in {count} of {len(cells)} cells, "
        f"each by itself, one or more absent or opposite in {against}, in the others not decided"
    )


def _when(effects: pd.DataFrame) -> str:
    """Return the line about what makes the rise of H larger; see `held`."""
    rises = effects[effects["change"].eq("first")].set_index(["quantity", "factor"])
    told = []
    for row in rises.loc[["power"]].itertuples():
        changes = [
            f"{Interval(one.value, one.low95, one.high95):+.2f}"
            for one in (rises.loc[(k, row.Index[1])] for k in ("power", "lift"))
        ]
        told.append(
            f"{changes[0]} (above chance {changes[1]}) with {row.Index[1]} of {row.most:g} in "
            f"place of {row.least:g}"
        )
    falls = effects[effects["change"].eq("then")]
    clear = falls["low95"].gt(0) | falls["high95"].lt(0)
    power = falls["quantity"].eq("power")
    count = (clear & power).sum()
    does = "make" if count > 1 else "makes"
    above = "; ".join(
        f"{Interval(row.value, row.low95, row.high95):+.2f} with {row.factor} of {row.most:g} in "
        f"place of {row.least:g}"
        for row in falls[clear & falls["quantity"].eq("lift")].itertuples()
    )
    return (
        f"- **When?** The rise of $H$ changes by {'; '.join(told)}: see [the map](when). For how "
        f"far it falls, {count or 'none'} of these {power.sum()} factors {does} a "
        f"difference whose interval leaves out no change{f' (above chance: {above})' * bool(above)}"
    )


def _numbers(rows: pd.DataFrame, first: Any) -> str:
    """Return what was measured of a claim in the setting of one of its rows; empty for nothing."""
    if not (values := _values(rows[rows["setting"] == first.setting])):
        return ""
    margin = f", margin {first.margin:g}" * bool(first.margin > 0)
    repeated = counted(float(first.repetitions), first.of)
    where = first.setting if repeated in first.setting else f"{first.setting}, {repeated}"
    return f"{values}{margin} ({html.escape(where)})"


def _values(rows: pd.DataFrame) -> str:
    """Return the values of a claim's contrasts with intervals and units, one after the other."""
    return " and ".join(
        apart(Interval(row.value, row.low95, row.high95), row.bound, row.margin, "+")
        + f" {html.escape(str(row.unit))}" * (str(row.unit) != "1")
        for row in rows.dropna(subset=["value", "low95"]).itertuples()
    )


def drawn_by(page: nbformat.NotebookNode, call: str) -> str | None:
    """Return the figure of a chapter's first cell that holds a call, as SVG; None without."""
    for cell in page.cells:
        if cell.cell_type == "code" and call in cell.source:
            for output in cell.get("outputs", []):
                if svg := output.get("data", {}).get("image/svg+xml"):
                    return "".join(svg)
    return None


def answer(table: pd.DataFrame) -> tuple[Page, pd.DataFrame]:
    """Return on one page what of the paper holds, what does not, and what our runs cannot say.

    Args:
        table: as of `claims_table`.

    Returns:
        The page, and its table: columns claim, answer, control (whether the claim is ours), preset,
        shown, settings. Of each claim the largest preset that measured it counts.
    """
    rows, items = [], {(name, ours): [] for name in ANSWERS for ours in (False, True)}
    for name, found in table.groupby("claim", sort=False):
        first = found.iloc[0]
        # The paper draws a conclusion from some figures that it does not test.
        ours = first.place == "control of ours" or first.paper_value == "not tested in the paper"
        known = found["preset"].dropna().unique()
        largest = max(known, key=lambda p: PRESETS.index(p) if p in PRESETS else -1, default="")
        found = _settings(found[found["preset"] == largest])
        found = found[found != "not tested"]
        *_, unknown = ANSWERS
        what = next((k for k, fits in ANSWERS.items() if len(found) and fits(found)), unknown)
        count = int(found.eq("shown").sum()), len(found)
        rows.append((name, what, ours, largest, *count))
        tested = f"{count[0]} of {count[1]}, {largest}" if count[1] else "not tested"
        of_page = table.loc[found.index, "page"].dropna() if len(found) else found
        page = html.escape(str([*of_page, first.chapter][0]))
        words = html.escape(str(first.statement))
        items[what, ours].append(
            f'<li><a href="{page}.html">{words}</a> <small>({html.escape(tested)})</small></li>'
        )
    head = "<tr><th></th><th>The paper says</th><th>Our controls</th></tr>"
    lines = [f'<table class="claims answer">{head}']
    for name in ANSWERS:
        both = (f"<td><ul>{''.join(items[name, ours])}</ul></td>" for ours in (False, True))
        lines.append(f"<tr><th>{name}</th>{''.join(both)}</tr>")
    columns = ["claim", "answer", "control", "preset", "shown", "settings"]
    return Page("\n".join([*lines, "</table>"])), pd.DataFrame(rows, columns=columns)


def _settings(found: pd.DataFrame) -> pd.Series:
    """Return the verdicts of settings; those that two pages measured alike count once.

    What is undecided between absent and opposite is as good as absent: it is not so.
    """
    kept = {}
    for setting, rows in found.groupby("setting", sort=False):
        values = rows[["value", "low95", "high95"]].astype(float)
        same = setting if values.isna().all(axis=None) else values.to_numpy().tobytes()
        not_so = rows["open"].iloc[0] == "absent or opposite"
        kept.setdefault(same, (rows.index[0], "absent" if not_so else rows["verdict"].iloc[0]))
    return pd.Series(dict(kept.values()), dtype=object)
