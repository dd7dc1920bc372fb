"""Whether a chapter can run with its parameters, checked before anything is loaded or computed.

Nothing heavy is imported here: a mistake is answered at once.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from symgen.book.rules import CHAPTERS, RULES
from symgen.fingerprints import not_a_result
from symgen.literal import nearest

IMAGES = ("cnn", "resnet20", "resnet18", "resnet50", "resnet101", "vgg11", "vgg16", "vgg19")
TEXTS = ("bert-micro", "bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-large")
#: The networks that come with the package, and what they take.
NETWORKS = {**dict.fromkeys(IMAGES, "image"), **dict.fromkeys(TEXTS, "text")}
MODELS = dict.fromkeys(
    ("tiny-llama", "qwen2.5-7b", "qwen2.5-7b-instruct", "deepseek-r1-distill-llama-8b",
     "stories260k")
)  # fmt: skip


class Known(NamedTuple):
    """What is known of a data set without reading it: kind, pixels a side, content words of a
    text, and for what comes with the package how many samples of each class there are."""

    kind: str = ""
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
    "rajpurkar/squad": Known(),
    "roneneldan/TinyStories": Known(),
    "karpathy/tiny_shakespeare": Known(),
    "Unilaw-R1-Data": Known(),
}  # fmt: skip
# What each kind of name may be, and where more may have been registered.
NAMES = {
    "dataset": (DATASETS, "symgen.data.hub", "DATASETS"),
    "network": (NETWORKS, "symgen.models.registry", "NETWORKS"),
    "model": (MODELS, "symgen.models.language", "CAUSAL_LMS"),
}
# Outputs of all samples on all masked states, at 8 bytes each, take half a GiB then.
MOST_OUTPUTS = 2**26
# Masked states that models of sampled ones are judged by.
HELD_OUT = 200
# What a further study may change, where its chapter has it as a parameter.
STUDY = {
    "dataset", "network", "train_size", "label_noise", "epochs", "learning_rate", "augment",
    "checkpoints", "mixed_precision", "baselines", "split", "samples", "n", "grid", "noise", "seed",
    "options", "evaluation_size",
}  # fmt: skip
# What the main study of a chapter must hold, and how a chapter divides the data otherwise.
MAIN = dict.fromkeys(
    ("01_interaction_extraction", "equally_sparse", "attributions", "more_variables"), "image"
)
SPLITS = {"D_cross_validation": "thirds", "E_penalty": "parts:3"}
# How many baseline networks a chapter takes that does not leave it open, where these are not two.
BASELINES = dict.fromkeys((*MAIN, "A_sparsity_conditions"), 0)
# The name of a parameter and what was expected of it.
Faults = Iterator[tuple[str, str]]


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
    _refuse(chapter, "", parameters, _single_faults(chapter, parameters))
    _refuse(chapter, "", parameters, _main_faults(chapter, parameters))
    main = {"split": SPLITS.get(chapter)} if chapter in SPLITS else {}
    main |= {k: v for k, v in parameters.items() if k in STUDY}
    # On how many samples losses are measured is no parameter of most chapters.
    allowed = dict.fromkeys([*main, "evaluation_size"])
    fixed = {"baselines": BASELINES.get(chapter, 2), "m": parameters.get("m", 1)}
    others = {f"others[{k}]: ": other for k, other in enumerate(parameters.get("others", []))}
    taken: dict[tuple, str] = {}
    planted = {"planted: ": dict(parameters.get("planted", {}))}
    for where, change in {"": {}, **planted, **others}.items():
        _refuse(chapter, where, change, _single_faults(chapter, change, allowed))
        study = {**fixed, **main, **change}
        _refuse(chapter, where, study, _study_faults(chapter, study))
        own = study.get("network"), study.get("dataset")
        if where in others and own in taken:
            fault = f"another than that of {taken[own]}, or another data set"
            _refuse(chapter, where, study, [("network", fault)])
        if where not in planted:
            taken.setdefault(own, where.rstrip(": ") or "the main study")
    for size, _ in parameters.get("amounts", []):
        study = {**fixed, **main, "train_size": size}
        _refuse(chapter, "amounts: ", study, _study_faults(chapter, study))


def _refuse(
    chapter: str, where: str, values: Mapping[str, Any], faults: Iterable[tuple[str, str]]
) -> None:
    """Raise the first of some faults, in words."""
    for name, expected in faults:
        told = repr(values.get(name))
        told = told if len(told) <= 200 else f"{told[:150]}... ({len(told):,} letters)"
        end = "" if expected[-1] in ".?" else "."
        raise ValueError(
            f"{chapter} cannot run with {where}{name} = {told}: expected {expected}{end} "
            "Change it in the cell tagged parameters, or with "
            f"-p {where.split('[')[0].rstrip(': ') or name} VALUE"
        )


def _single_faults(
    chapter: str, values: Mapping[str, Any], allowed: Iterable[str] | None = None
) -> Faults:
    """Find values that are not what their name stands for, and names that are not allowed."""
    rules = {**RULES, **CHAPTERS.get(chapter, {})}
    for name, value in values.items():
        if allowed is not None and name not in allowed:
            known = f"one of {', '.join(allowed)}, which a further study of this chapter may change"
            yield name, f"{known}.{nearest(name, allowed)}"
        elif name in rules and not rules[name].holds(value):
            yield name, rules[name].expected


def _main_faults(chapter: str, values: Mapping[str, Any]) -> Faults:
    """Find what a chapter's own parameters lack together, further studies aside."""
    samples, held = values.get("samples"), MAIN.get(chapter)
    if samples is not None and values.get("sample", 0) >= samples:
        yield "sample", f"one of the {samples} samples, numbered from 0 to {samples - 1}"
    if values.get("few", 0) > (samples or 0):
        yield "few", f"at most the {samples} samples that there are"
    if values.get("many", 0) > values.get("grid", 0) ** 2:
        yield "many", f"at most {values['grid'] ** 2} patches, or a finer grid"
    if values.get("calls", 0) + HELD_OUT > 2 ** values.get("many", 62):
        most = 2 ** values["many"] - HELD_OUT
        yield "calls", f"at most {most:,} of {values['many']} variables, so that some are held out"
    if max(values.get("counts", [0])) >= 2 ** values.get("n", 1):
        yield "counts", f"fewer than all {2 ** values['n']:,} masked states, so that some are left"
    if "model" in values:
        yield from _language_faults(values)
    if len(values.get("decays", ())) != (tried := len(values.get("strengths", ()))):
        yield "decays", f"as many values as strengths has, {tried}, so that both are tuned alike"
    if held and DATASETS.get(values.get("dataset"), Known(held)).kind != held:
        more = "others may stand among the further studies, `others`"
        yield "dataset", f"a data set of {held}s; {more}"


def _study_faults(chapter: str, values: Mapping[str, Any]) -> Faults:
    """Find names of one study that nothing has, and values that do not go together."""
    get = values.get
    data, network = get("dataset"), get("network")
    if network is None:  # no study: a language model's chapter, or one without data
        return
    for what in ("dataset", "network"):
        yield from _name_faults(what, values[what], what)
    known, line = DATASETS.get(data, Known()), _known("network").get(network, "text")
    kind = getattr(line, "kind", line)  # of the registry, or of those that are known here
    if ":" in network:  # a function, of which nothing is known before it is imported
        kind = known.kind
    n, grid, samples = get("n", 1), get("grid", 16), get("samples", 1)
    if data.startswith("planted-facts"):
        yield "dataset", f'a data set with classes; "{data}" is for language models'
    if known.kind and kind != known.kind:
        fitting = [k for k, v in NETWORKS.items() if v == known.kind]
        yield "network", f'one for {known.kind}s, as "{data}" holds: {", ".join(fitting)}'
    for name, count in (("n", n), ("m", get("m", 1))):
        if kind == "image" and count > grid**2:
            yield name, f"at most {grid**2} patches of a {grid}x{grid} grid, or a finer grid"
        if known.words and count > known.words:
            more = 'take other data or, for a further study, give it an "n" of its own'
            yield name, f'at most {known.words} words, as the texts of "{data}" have; {more}'
    if chapter.startswith("04") and samples > (get("train_size") or samples):
        more = "as many training samples are looked at as test samples"
        yield "samples", f"at most the train_size, {get('train_size')}: {more}"
    if samples * 2**n > MOST_OUTPUTS:
        yield "samples", f"at most {MOST_OUTPUTS >> n} with 2**{n} masked states each"
    if known.side:
        if network.startswith("vgg") and known.side < 32:
            more = "VGG halves them five times; take cnn or a resnet"
            yield "network", f'one for the {known.side} pixels a side of "{data}": {more}'
        halved = network in ("resnet18", "resnet50", "resnet101") and known.side > 32
        if get("grid", 0) > (side := known.side // (1 + halved)):
            yield "grid", f"at most {side}, one pixel a patch of the masked layer"
    yield from _part_faults(values, known)


def _part_faults(values: Mapping[str, Any], known: Known) -> Faults:
    """Find what the data cannot be divided into."""
    split, baselines = values.get("split"), values.get("baselines", 2)
    most = int(split[6:]) if (split or "").startswith("parts:") else 1
    if split not in (None, "thirds") and baselines > most:
        more = "without a split there are as many parts as networks"
        yield "baselines", f"at most {most} with split = {split!r}; {more}"
    if not known.train:
        return
    parts = {"test": 1, "halves": 2, "thirds": 3, None: max(2, baselines + 1)}
    count, least, tests = parts.get(split, most + 1), len(known.train), sum(known.test)
    held = sum(c // count for c in known.train)
    held = min(held, tests) if split == "test" else held
    if not least <= (values.get("train_size") or least) <= held:
        more = f"what each of {count} part(s) can have"
        yield "train_size", f"from {least}, one of each class, to {held}, {more}"
    if values.get("samples", 1) > tests:
        yield "samples", f"at most {tests}, all test samples there are"


def _language_faults(values: Mapping[str, Any]) -> Faults:
    """Find names that a language model's chapter cannot use, and what does not belong together."""
    instructions, prompt = values.get("instructions"), values.get("prompt", "")
    names = {"model": "model", "baseline": "model", "old": "dataset", "dataset": "dataset"}
    if "instructions" in values and str(values["dataset"]).endswith((".jsonl", ".json")):
        if not instructions:
            yield "dataset", "a data set; for a file of instructions also instructions = True"
        elif not os.path.isfile(_seen_from_start(values["dataset"])):
            told = f"paths are seen from {_seen_from_start()}"
            yield "dataset", f"the path of a file, and there is none; {told}"
    for name, what in names.items():
        # Instructions are a file, or a data set whose columns are looked at when it is read.
        known = DATASETS.get(values.get(name), Known())
        if name in values and (known.kind or name != "dataset" or not instructions):
            yield from _name_faults(what, values[name], name)
        if known.kind == "image":
            yield name, "a data set of texts"
    for domain in values.get("further", []):
        yield from _name_faults("dataset", domain, "further")
        if domain == values["dataset"]:
            yield "further", f'domains other than "{domain}", which `dataset` names'
    known = DATASETS.get(values["dataset"], Known())
    if instructions and known.kind:
        columns = "the columns instruction and output"
        yield "dataset", f"with instructions = True a .jsonl file or a data set with {columns}"
    if not prompt and values["n"] > (known.words or 16):
        yield "n", f'at most {known.words} words, as the texts of "{values["dataset"]}" have'
    if prompt.strip():
        from symgen.masking.prompts import Prompt

        try:
            Prompt.of(prompt, values["target"], values["phrases"] or None, values["n"])
        except ValueError as error:
            target, phrases = values["target"].strip(), values["phrases"]
            name = "target" if not target else "phrases" if phrases else "prompt"
            yield name, f"a prompt that has its variables and a target: {error}"
    elif values.get("target") or values.get("phrases"):
        name = "target" if values["target"] else "phrases"
        yield name, "nothing, since there is no prompt that it belongs to; give a prompt"
    if values.get("lora") and importlib.util.find_spec("peft") is None:
        yield "lora", "0, or peft installed: pip install 'symgen[lora]'"


def _known(what: str) -> dict[str, Any]:
    """Return the names there are: those that come with the package, and what was registered."""
    own, module, listed = NAMES[what]
    # Who has registered a name has loaded the registry, which takes seconds.
    return {**own, **getattr(sys.modules.get(module), listed, {})}


def _seen_from_start(path: str = "") -> str:
    """Return where a path leads from the folder where the program was started; that one without."""
    there = os.environ.get("SYMGEN_FROM") or os.getcwd()
    return os.path.join(there, os.path.expanduser(path)) if path else there


def _name_faults(what: str, name: str, key: str) -> Faults:
    """Find a name that no data set, network or language model has."""
    folders = [os.path.join(os.environ.get("SYMGEN_DATA", ""), name)]
    folders.append(_seen_from_start(name))
    known = _known(what)
    if name in known or any(map(os.path.isdir, folders)):
        return
    # Installed, or in the folder where the program was started: it is imported when it is built.
    if what == "network" and re.fullmatch(r"[\w.]+:[\w.]+", name):
        return
    if name.startswith((".", "~")) or os.path.isabs(name):  # as no id does
        told = f"paths are seen from {_seen_from_start()}"
        yield key, f"the path of a folder, and there is none; {told}"
    elif not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        anywhere = "any id <owner>/<name> on the hub or under SYMGEN_DATA, or the path of a folder"
        anywhere += ', or "module:function"' * (what == "network")
        yield key, f"one of {', '.join(known)}, {anywhere}.{nearest(name, known)}"
