"""Which parameters a chapter can run with, checked before anything is loaded or computed.

A name means the same in every chapter, so there is one rule a name (`RULES`); `CHAPTERS` has those
of single chapters. Nothing heavy is imported here: a mistake is answered at once.
"""

import difflib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from symgen.fingerprints import not_a_result

IMAGES = ("cnn", "resnet20", "resnet18", "resnet50", "resnet101", "vgg11", "vgg16", "vgg19")
TEXTS = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-large")
#: The networks that come with the package, and what they take.
NETWORKS = {**dict.fromkeys(IMAGES, "image"), **dict.fromkeys(TEXTS, "text")}


class Known(NamedTuple):
    """What is known of a data set without reading it: kind, pixels a side, content words of a
    text, and for what comes with the package how many samples of each class there are."""

    kind: str
    side: int | None = None
    words: int | None = None
    train: tuple[int, ...] = ()
    test: tuple[int, ...] = ()


DATASETS = {
    "digits": Known(
        "image", 20,
        train=(135, 136, 133, 136, 131, 141, 140, 132, 130, 134),
        test=(43, 46, 44, 47, 50, 41, 41, 47, 44, 46),
    ),
    "planted-sentiment": Known("text", words=10, train=(2000, 2000), test=(500, 500)),
    "planted-facts": Known("text", words=10),
    "planted-facts-2": Known("text", words=10),
    "uoft-cs/cifar10": Known("image", 32),
    "zh-plus/tiny-imagenet": Known("image", 64),
    "bentrevett/caltech-ucsd-birds-200-2011": Known("image", 224),
    "stanfordnlp/sst2": Known("text"),
    "fancyzhx/ag_news": Known("text"),
}  # fmt: skip
# Outputs of all samples on all masked states, at 8 bytes each, take half a GiB then.
MOST_OUTPUTS = 2**26
# What a further study may change, where its chapter has it as a parameter.
STUDY = {
    "dataset", "network", "train_size", "label_noise", "epochs", "learning_rate", "augment",
    "checkpoints", "mixed_precision", "baselines", "split", "samples", "n", "grid", "noise", "seed",
}  # fmt: skip


class Rule(NamedTuple):
    """What a parameter must be: in words, and as a test."""

    expected: str
    holds: Callable[[Any], bool]


def whole(low: int, high: int | None = None) -> Rule:
    """Return the rule for whole numbers from `low` to `high`, or from `low` on."""
    words = f"a whole number from {low} to {high}" if high else f"a whole number, {low} or more"

    def holds(x: Any) -> bool:
        return isinstance(x, int) and not isinstance(x, bool) and low <= x <= (high or x)

    return Rule(words, holds)


def number(low: float, high: float = math.inf, above: bool = False, below: bool = False) -> Rule:
    """Return the rule for numbers from `low` (or `above` it) to `high` (or `below` it)."""
    words = f"a number {f'above {low:g}' if above else f'{low:g} or more'}"
    if high < math.inf:
        words += f", {'below' if below else 'up to'} {high:g}"

    def holds(x: Any) -> bool:
        real = isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x)
        return real and low <= x <= high and not (above and x == low) and not (below and x == high)

    return Rule(words, holds)


def one_of(*values: Any) -> Rule:
    """Return the rule for one of some values."""
    words = f"one of {', '.join(map(repr, values))}"
    return Rule(words, lambda x: any(type(x) is type(v) and x == v for v in values))


def optional(rule: Rule) -> Rule:
    """Return a rule that also lets None pass."""
    return Rule(f"{rule.expected}, or None", lambda x: x is None or rule.holds(x))


def several(rule: Rule, least: int = 0, most: float = math.inf) -> Rule:
    """Return the rule for lists of `least` to `most` values, each by a rule."""
    size = f"{least}" if least == most else f"{least} or more"

    def holds(x: Any) -> bool:
        return isinstance(x, (list, tuple)) and least <= len(x) <= most and all(map(rule.holds, x))

    return Rule(f"a list of {size} values, each {rule.expected}", holds)


FLAG, TEXT = one_of(True, False), Rule("a text", lambda x: isinstance(x, str))
NAME = Rule(
    "a name of up to 300 letters", lambda x: isinstance(x, str) and x.strip() and len(x) <= 300
)
# A part of an id becomes a folder's name.
ID = Rule(
    'a name, or an id "<owner>/<name>"',
    lambda x: (
        NAME.holds(x)
        and x.isprintable()
        and not {"", ".", ".."}.intersection(x.split("/"))
        and max(map(len, x.split("/"))) <= 100
    ),
)
COUNT, SIZE, STRENGTH = whole(1), whole(0), number(0)
# More epochs, layers or seeds than this are a slip of the pen, and would run for years.
MANY, FEW = whole(1, 10_000), whole(1, 100)
# With kappa = 1 no interaction is needed at all.
KAPPA = number(0, 1, below=True)
MAPPING = Rule("a mapping from names to values", lambda x: isinstance(x, Mapping))
SPLIT = Rule(
    'None, "halves", "test", "thirds", or "parts:K" with a whole number K, 1 or more',
    lambda x: (
        x in (None, "halves", "test", "thirds")
        or (isinstance(x, str) and x.startswith("parts:") and x[6:].isdecimal() and int(x[6:]) > 0)
    ),
)
RULES: dict[str, Rule] = {
    "preset": NAME, "dataset": ID, "network": NAME, "split": SPLIT,
    "n": whole(1, 16), "grid": COUNT, "samples": COUNT, "sample": SIZE, "sizes": several(COUNT, 1),
    "train_size": optional(COUNT), "epochs": MANY, "checkpoints": MANY, "baselines": whole(0, 100),
    "label_noise": number(0, 1), "noise": KAPPA, "kappa": KAPPA, "noise_level": STRENGTH,
    "learning_rate": optional(number(0, 1e6, above=True)), "augment": FLAG,
    "mixed_precision": one_of("no", "bf16", "fp16"), "seed": whole(0, 2**31 - 1), "seeds": FEW,
    "looks": COUNT, "followed": COUNT, "first_epoch": STRENGTH, "tau": number(0, 1, above=True),
    "others": several(MAPPING), "side": MAPPING,
    # Of the chapters on language models.
    "model": NAME, "baseline": NAME, "old": ID, "vocabularies": several(COUNT, 2, 2),
    "width": MANY, "layers": FEW, "length": COUNT, "tail": SIZE, "dtype": optional(NAME),
    "prompt": TEXT, "target": TEXT, "phrases": several(NAME), "probability": number(0, 1),
    "masking": NAME, "maskings": several(NAME, 1), "whole": FLAG, "instructions": FLAG,
    "tune_size": optional(COUNT), "tune_epochs": MANY, "tune_rate": number(0, 1e6, above=True),
    "batch_size": COUNT, "lora": SIZE,
}  # fmt: skip
#: Where a chapter needs more than others do.
LANGUAGE = {
    "learning_rate": number(0, 1e6, above=True), "mixed_precision": one_of("no", "bf16"),
    "length": whole(2), "phrases": several(NAME, 0, 16),
    "width": Rule("a multiple of 16, up to 10,000", lambda x: MANY.holds(x) and x % 16 == 0),
    "dtype": one_of(None, "auto", "float64", "float32", "bfloat16", "float16"),
}  # fmt: skip
CHAPTERS: dict[str, dict[str, Rule]] = {
    "00_planted_logic": {"n": whole(8, 12)},
    "05_llm_interactions": LANGUAGE,
    "06_fine_tuning": LANGUAGE,
    # The ten strongest interactions are looked at, and two variables have five.
    "01_interaction_extraction": {"n": whole(3, 16)},
    # Low orders, 1 and 2, are compared with higher ones.
    "02_order_generalization": {"n": whole(3, 16)},
    # There are low, middle and high orders, and a change takes two checkpoints.
    "03_three_phase_dynamics": {"n": whole(3, 16), "looks": whole(2)},
    "B_baseline_networks": {"baselines": whole(2)},
}
# What the main study of a chapter must hold, and how a chapter divides the data otherwise.
MAIN = {"01_interaction_extraction": "image"}
SPLITS = {"D_cross_validation": "thirds"}


@not_a_result
def check_parameters(chapter: str, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that a chapter cannot run with.

    Args:
        chapter: name of the notebook.
        parameters: its parameters, defaults included; names without a rule are passed over.

    Raises:
        ValueError: with what was given, what is expected and what to do, for a value outside its
            range, an unknown name, or values that do not go together.

    Example:
        >>> check_parameters("02_order_generalization", {"n": 10, "grid": 5, "samples": 20})
    """
    _check(chapter, parameters, "")
    sample, samples = parameters.get("sample", 0), parameters.get("samples")
    if samples is not None and sample >= samples:
        raise _refusal(chapter, "", "sample", sample, f"one of the {samples} samples, which are "
                       f"numbered from 0 to {samples - 1}")  # fmt: skip
    if "model" in parameters:
        _check_language(chapter, parameters)
    held = MAIN.get(chapter)
    if held and DATASETS.get(parameters.get("dataset"), Known(held)).kind != held:
        raise _refusal(chapter, "", "dataset", parameters["dataset"], f"a data set of {held}s; "
                       "others may stand among the further studies, `others`")  # fmt: skip
    seen: dict[tuple, str] = {}
    for where, values in _studies(chapter, parameters):
        _check_study(chapter, where, values)
        own = values.get("network"), values.get("dataset")
        if where.startswith("others") and own in seen:
            raise _refusal(chapter, where, "network and dataset", own, "a network or data set that "
                           f"no other study has; {seen[own]} has the same")  # fmt: skip
        seen.setdefault(own, where.rstrip(": ") or "the main study")


def _refusal(chapter: str, where: str, name: str, value: Any, expected: str) -> ValueError:
    return ValueError(
        f"{chapter} cannot run with {where}{name} = {_short(value)}: expected {expected}. "
        "Change it in the cell tagged parameters, or with "
        f"-p {where.split('[')[0].rstrip(': ') or name} VALUE"
    )


def _short(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= 200 else f"{told[:150]}... ({len(told):,} letters)"


def _check(chapter: str, values: Mapping[str, Any], where: str) -> None:
    """Check every value by itself."""
    rules = {**RULES, **CHAPTERS.get(chapter, {})}
    for name, value in values.items():
        if name in rules and not rules[name].holds(value):
            raise _refusal(chapter, where, name, value, rules[name].expected)


def _studies(chapter: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, dict]]:
    """Yield the parameters of every study that a chapter makes, and where they stand."""
    main = {"split": SPLITS.get(chapter)} if chapter in SPLITS else {}
    main |= {k: v for k, v in parameters.items() if k in STUDY}
    side, others = dict(parameters.get("side", {})), parameters.get("others", [])
    changes = {"side: ": side} if side else {}
    changes |= {f"others[{k}]: ": dict(other) for k, other in enumerate(others)}
    yield "", main
    for where, change in changes.items():
        for name in change:
            if name not in main:
                raise ValueError(
                    f"{chapter} cannot run with {where}{name}: a further study of this chapter may "
                    f"change {', '.join(main)}.{_nearest(name, main)}"
                )
        _check(chapter, change, where)
        yield where, {**main, **side, **change}
    if chapter.startswith("03") and main.get("train_size"):
        yield "a third of ", {**main, **side, "train_size": main["train_size"] // 3}


def _check_study(chapter: str, where: str, values: Mapping[str, Any]) -> None:
    """Check the values of one study against each other, and its names."""

    def refuse(name: str, expected: str) -> ValueError:
        return _refusal(chapter, where, name, values.get(name), expected)

    get = values.get
    data, network = get("dataset"), get("network")
    known = DATASETS.get(data, Known(""))
    if network is None:  # no study: a language model's chapter, or one without data
        return
    kind = _known_kind(data, network, refuse)
    n, grid, samples = get("n", 1), get("grid", 16), get("samples", 1)
    if data.startswith("planted-facts"):
        raise refuse("dataset", f'a data set with classes; "{data}" is for language models')
    if known.kind and kind and known.kind != kind:
        fitting = [k for k, v in NETWORKS.items() if v == known.kind]
        raise refuse("network", f'one for {known.kind}s, as "{data}" holds: {", ".join(fitting)}')
    if kind == "image" and n > grid**2:
        raise refuse("n", f"at most {grid**2} patches of a {grid}x{grid} grid, or a finer grid")
    if known.words and n > known.words:
        raise refuse("n", f'at most {known.words} words, as the texts of "{data}" have; take other '
                     'data or, for a further study, give it an "n" of its own')  # fmt: skip
    if chapter.startswith("04") and samples > (get("train_size") or samples):
        raise refuse("samples", f"at most the train_size, {get('train_size')}: as many training "
                     "samples are looked at as test samples")  # fmt: skip
    if samples * 2**n > MOST_OUTPUTS:
        raise refuse("samples", f"at most {MOST_OUTPUTS >> n} with 2**{n} masked states each")
    if known.side:
        if network.startswith("vgg") and known.side < 32:
            raise refuse("network", f'one for images of {known.side} pixels a side, as "{data}" '
                         "has: VGG halves them five times; take cnn or a resnet")  # fmt: skip
        halved = network in ("resnet18", "resnet50", "resnet101") and known.side > 32
        side = known.side // (1 + halved)
        if "grid" in values and grid > side:
            raise refuse("grid", f"at most {side}, one pixel a patch of the masked layer")
    _check_parts(values, known, refuse)


def _check_language(chapter: str, values: Mapping[str, Any]) -> None:
    """Check what a language model's chapter is given: names, and what belongs together."""

    def refuse(name: str, expected: str) -> ValueError:
        return _refusal(chapter, "", name, values[name], expected)

    for name in ("model", "baseline"):
        given = values[name]
        if given != "tiny-llama" and "/" not in given and not os.path.isdir(given):
            from symgen.models.language import CAUSAL_LMS

            listed = ["tiny-llama", *CAUSAL_LMS]
            if given not in listed:
                raise refuse(
                    name,
                    f"one of {', '.join(listed)}, any id <owner>/<name> on the hub "
                    f"or in SYMGEN_DATA, or a folder.{_nearest(given, listed)}",
                )
    instructions = values.get("instructions")
    for name in ("dataset", "old") if "old" in values else ("dataset",):
        if instructions and name == "dataset" and values[name] not in DATASETS:
            continue  # a file or a data set whose columns are looked at when it is read
        _known_name("dataset", values[name], refuse, name)
        known = DATASETS.get(values[name], Known("text"))
        if known.kind != "text":
            raise refuse(name, "a data set of texts")
        if instructions and name == "dataset":
            raise refuse(name, "with instructions = True a .jsonl file or a data set with the "
                         "columns instruction and output")  # fmt: skip
        if name == "dataset" and not values.get("prompt") and values["n"] > (known.words or 16):
            raise refuse("n", f'at most {known.words} words, as the texts of "{values[name]}" have')
    if values.get("prompt", "").strip():
        from symgen.masking.prompts import Prompt

        try:
            Prompt.of(values["prompt"], values["target"], values["phrases"] or None, values["n"])
        except ValueError as error:
            raise refuse("prompt", f"one that has its variables and a target: {error}") from None
    elif values.get("target") or values.get("phrases"):
        name = "target" if values["target"] else "phrases"
        raise refuse(name, "nothing, since there is no prompt that it belongs to; give a prompt")
    if values.get("lora") and importlib.util.find_spec("peft") is None:
        raise refuse("lora", "0, or peft installed: pip install 'symgen[lora]'")


def _known_kind(data: str, network: str, refuse: Callable) -> str:
    """Return what a network takes; see that its name and that of the data are known."""
    _known_name("dataset", data, refuse)
    _known_name("network", network, refuse)
    if network in NETWORKS or "/" in network:
        return NETWORKS.get(network, "text")
    from symgen.models import registry

    return registry.NETWORKS[network].kind if network in registry.NETWORKS else "text"


def _known_name(what: str, name: str, refuse: Callable, key: str | None = None) -> None:
    """See that there is a data set or network of a name."""
    if "/" in name or name in {"dataset": DATASETS, "network": NETWORKS}[what]:
        return
    # Only now, since it takes seconds: the name may have been registered since.
    from symgen.data import hub
    from symgen.models import registry

    listed = hub.DATASETS if what == "dataset" else registry.NETWORKS
    if name not in listed and not hub.local_folder(name):
        raise refuse(key or what, f"one of {', '.join(listed)}, or any id <owner>/<name> on the "
                     f"hub or under SYMGEN_DATA.{_nearest(name, listed)}")  # fmt: skip


def _check_parts(values: Mapping[str, Any], known: Known, refuse: Callable) -> None:
    """Check how the data are divided."""
    split, baselines = values.get("split"), values.get("baselines", 1)
    most = int(split[6:]) if (split or "").startswith("parts:") else 1
    if split not in (None, "thirds") and baselines > most:
        raise refuse("baselines", f"at most {most} with split = {split!r}; without a split there "
                     "are as many parts as networks")  # fmt: skip
    if not known.train:
        return
    count = {"test": 1, "halves": 2, "thirds": 3}.get(split, most + 1)
    count = max(2, baselines + 1) if split is None else count
    held, size = sum(c // count for c in known.train), values.get("train_size")
    least = len(known.train)
    if split == "test":
        held = min(held, sum(known.test))
    if size is not None and not least <= size <= held:
        raise refuse("train_size", f"from {least}, one of each class, to {held}, what each of "
                     f"{count} part(s) can have")  # fmt: skip
    if values.get("samples", 1) > sum(known.test):
        raise refuse("samples", f"at most {sum(known.test)}, all test samples there are")


def _nearest(given: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""
