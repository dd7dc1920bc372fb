"""`Chapter`: parameters, result tables, claims and provenance of one execution of a notebook."""

import contextlib
import datetime
import html
import importlib.util
import json
import math
import os
import platform
import re
import sys
import time
import timeit
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from symgen import __version__
from symgen.book import editions, notebooks, pages
from symgen.device import device
from symgen.figures.style import Shown
from symgen.method.language import LanguageStudy
from symgen.method.study import Study
from symgen.method.trainings import Trainings
from symgen.names import refuse_unknown
from symgen.storage import atomic

LIBRARIES = ("torch", "transformers", "numpy", "scipy", "pandas", "datasets")


def timed_batch() -> float:
    """Return the seconds of one fixed batch on this device, to compare machines."""
    layer = torch.nn.Conv2d(16, 16, 3, padding=1, device=device())
    images = torch.ones(64, 16, 32, 32, device=device())
    with torch.inference_mode():
        # `item` waits for a GPU.
        return min(timeit.repeat(lambda: layer(images).sum().item(), repeat=5, number=1))


def _names(chapter: str, variables: Mapping[str, Any]) -> Iterable[str]:
    """Return the names of a chapter's parameters.

    In a notebook, they are those that its parameters cell assigns, the cell that starts with
    ``preset``; IPython keeps what it ran. Elsewhere, they are those of the book's chapter with this
    name, and without such a chapter all plain values.
    """
    found: dict[str, Any] = {}
    for source in variables.get("In", []):
        with contextlib.suppress(SyntaxError):
            names = notebooks.assigned(source)
            found |= names if [*names][:1] == ["preset"] else {}
    if found:
        return found
    try:
        return notebooks.defaults(notebooks.read_chapter(notebooks.book_folder(), chapter))
    except notebooks.BookError:
        plain = {k for k, value in variables.items() if isinstance(value, notebooks.PLAIN)}
        return sorted(name for name in plain - {"In", "Out"} if name[0] != "_")


def _setting_names() -> set[str]:
    """Return the names of all settings that studies have."""
    return {*Study.setting_names(), *LanguageStudy.setting_names()}


def _check_settings(chapter: str, settings: Mapping[str, Any]) -> None:
    """Refuse entries of ``settings`` that nothing would read."""
    try:
        source = notebooks.read_chapter(notebooks.book_folder(), chapter)
    except notebooks.BookError:  # the chapter's own settings are not known
        return
    names = _setting_names() | {*notebooks.defaults(source).get("settings", {})}
    refuse_unknown("entry of settings", settings, sorted(names))


class Chapter:
    """One execution of a chapter.

    Args:
        name: name of the notebook, without suffix.
        parameters: the notebook's variables, ``globals()``, right after its parameters cell.

    Attributes:
        name: name of the notebook.
        parameters: values of the names in the notebook's parameters cell. The entries of
            ``settings`` are merged into them.
        settings: those that are settings of a study, for `symgen.Study.of`.
        trainings: the store of measured trainings, for `symgen.measure`.

    Raises:
        ValueError: for an entry of ``settings`` that neither a study nor the chapter has.

    Example:
        >>> chapter = Chapter("02_order_generalization", {"seeds": 8, "settings": {"n": 6}, "x": 1})
        >>> chapter.parameters, chapter.settings
        ({'seeds': 8, 'n': 6}, {'n': 6})
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]):
        self.name = name
        values = {key: parameters[key] for key in _names(name, parameters) if key in parameters}
        settings = values.pop("settings", None) or {}
        if not isinstance(settings, Mapping):
            raise ValueError(f"settings is {settings!r}; expected a mapping such as {{'n': 8}}")
        if twice := values.keys() & settings.keys():
            raise ValueError(
                f"settings holds {min(twice)!r}, which is a parameter of its own; set that instead"
            )
        _check_settings(name, settings)
        self.parameters = {**values, **settings}
        known = _setting_names()
        self.settings = {k: value for k, value in self.parameters.items() if k in known}
        # `symgen run` says where the run stands, when it stops, and if it keeps trainings.
        orders = json.loads(os.environ.get("SYMGEN_RUN", "{}"))
        self.trainings = Trainings(
            commit=orders.get("commit", ""), until=orders.get("until", math.inf)
        )
        book = notebooks.book_above(Path.cwd())
        default = (book or Path.cwd()) / "_build"
        self.folder = Path(os.environ.get("SYMGEN_OUT") or default).expanduser() / "tables"
        # There the tables are collected that other chapters of the run have made.
        self._run = Path(orders["out"], "tables") if "out" in orders else self.folder
        self._claims: dict[tuple[str, str], pd.DataFrame] = {}
        self._reads: set[str] = set()
        self._started = time.perf_counter()
        # All tables of a notebook look alike.
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        if shell is not None:
            shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, pages.table)

    def record(self, table: str, frame: pd.DataFrame) -> Shown:
        """Write a result table to ``NAME.table.csv``, and return it for display.

        Args:
            table: name of the table, one word.
            frame: one row per observation, without index.

        Raises:
            ValueError: for a name that is not one word.
        """
        if not re.fullmatch(r"\w+", table):
            raise ValueError(f"the table is called {table!r}; expected letters, digits and _")
        with atomic(self.folder / f"{self.name}.{table}.csv") as path:
            frame.to_csv(path, index=False)
        return Shown(frame.to_string(index=False, max_rows=30), pages.table(frame))

    def claim(
        self,
        name: str,
        contrasts: Sequence[Any],
        setting: str = "",
        unit: str = "trainings",
        accuracy: float | None = None,
        near_chance: bool = False,
    ) -> Shown:
        """Judge a claim, record the result in the table ``claims``, and return its box.

        Args:
            name: name of the claim in ``data/paper/claims.csv``.
            contrasts: result of a rule of `symgen.method.claims`; those with side 0 are controls.
            setting: network and data in words.
            unit: what is repeated, "trainings" or "prompts".
            accuracy: mean test accuracy of the networks.
            near_chance: whether they learned nothing; then there is no verdict.

        Returns:
            A box with all settings so far; settings with fewer than two measurements are omitted;
            if none remain, a sentence says so.

        Raises:
            ValueError: for an unknown claim.
        """
        from symgen.method.statistics import verdict, without_verdict

        about = pages.claims_of_paper(notebooks.book_folder())
        if name not in about.index:
            raise notebooks.unknown("claim", name, about.index)
        preset = self.parameters.get("preset", "quick")
        if near_chance:
            setting += ", near chance: no verdict"
            contrasts = without_verdict(contrasts)
        if near_chance or max((len(one.values) for one in contrasts if one.side), default=0) >= 2:
            self._claims[name, setting] = pd.DataFrame(
                {
                    "claim": name, "setting": setting, "label": one.label,
                    **one.interval._asdict(), "side": one.side, "margin": one.margin,
                    "unit": one.unit, "repetitions": len(one.values), "of": unit,
                    "row": one.verdict, "verdict": verdict(contrasts), "accuracy": accuracy,
                }
                for one in contrasts
            )  # fmt: skip
            self.record("claims", pd.concat(self._claims.values(), ignore_index=True))
        parts = [rows for (claim, _), rows in self._claims.items() if claim == name]
        if not parts:
            sentence = (
                f"Not tested with these parameters, since fewer than two {unit} give a number: "
                f"{about.statement[name]}."
            )
            return Shown(sentence, pages.marked("p", name, preset, html.escape(sentence)))
        shown = pd.concat(parts, ignore_index=True)
        text = shown[["setting", "label", "mean", "low", "high", "row"]].to_string(index=False)
        return Shown(text, pages.claim_box(shown, about.loc[name], preset))

    def judge(self, name: str, cases: Mapping[str, Any], unit: str = "trainings") -> Shown:
        """Judge a claim in several settings by its rule; see `claim`.

        Args:
            name: name of the claim, and of its rule in `symgen.method.claims`.
            cases: what the rule takes, by setting in words.
            unit: what is repeated.
        """
        from symgen.method import claims
        from symgen.method.training_curves import last, learned

        box = Shown("", "")
        for setting, case in cases.items():
            known = set(case["quantity"]) if isinstance(case, pd.DataFrame) else set()
            about: dict[str, Any] = {}
            if {"test_accuracy", "guessing"} <= known:
                about = {"accuracy": last(case, "test_accuracy").mean()}
                about["near_chance"] = not learned(case)
            box = self.claim(name, getattr(claims, name)(case), setting, unit, **about)
        return box

    def outcome(self, claim: str) -> str:
        """Return a claim with the verdicts of this run, as a sentence for `finding`."""
        about = pages.claims_of_paper(notebooks.book_folder()).loc[claim]
        parts = [rows for (name, _), rows in self._claims.items() if name == claim]
        return pages.outcome_sentence(pd.concat(parts) if parts else pd.DataFrame(), about)

    def finding(self, *sentences: str) -> Shown:
        """Return the box "What this page shows".

        Its cell has the tag ``finding`` and stands near the end, where the results are known. The
        site moves it below the title.

        Args:
            sentences: what was found, in plain text, with numbers that the chapter has computed.
        """
        texts = [pages.readable(text) for text in sentences]
        texts = [text[:1].upper() + text[1:] for text in texts]
        return Shown("\n".join(texts), pages.finding(texts))

    def results(self, table: str) -> pd.DataFrame:
        """Return a table of all chapters: from the stored editions, and from the run at hand.

        Returns:
            Columns edition ("run" for the run at hand), chapter, and those of the table.
        """
        self._reads.add(table)
        return editions.read_tables(notebooks.book_folder(), table, self._run)

    def provenance(self) -> Shown:
        """Return the record of this run; the last cell of a chapter shows it.

        Its seconds include those of trainings that were read from `data/trainings`.
        """
        used = self.trainings.used.values()
        reused = float(np.nansum([seconds for seconds, _ in used]))
        place = device()
        installed = [name for name in LIBRARIES if importlib.util.find_spec(name)]
        record = {
            "chapter": self.name,
            "preset": self.parameters.get("preset", "quick"),
            "symgen": f"{__version__} {notebooks.package_commit()}".strip(),
            "device": torch.cuda.get_device_name(place)
            if place.type == "cuda"
            else f"CPU, {os.cpu_count()} cores",
            "seconds": round(time.perf_counter() - self._started + reused, 1),
            "reused": round(reused, 1),
            "measured_on": sorted({where for seconds, where in used if seconds}),
            "batch": round(timed_batch(), 6),
            "versions": {"python": platform.python_version(), **{x: version(x) for x in installed}},
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "reads": sorted(self._reads),
        }
        rows = pages.provenance_rows(record)
        text = "\n".join(f"{name}: {value}" for name, value in rows.items())
        return Shown(text, pages.provenance_table(rows), {notebooks.PROVENANCE: record})
