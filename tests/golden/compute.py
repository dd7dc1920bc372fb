"""The golden results: tiny computations that use every room of the package below the book.

Inputs are generated here, in float64, so that a result does not depend on the processor or on how
the package draws samples.

    python tests/golden/compute.py --write        # `make golden`: write the files again
"""

import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import symgen
from symgen.masking.mask_values import MaskValue
from symgen.masking.variables import ImageVariables, TextVariables
from symgen.method import generalization as measures, removal as removals
from symgen.method.penalty import Penalty
from symgen.models.architectures import SmallCNN
from symgen.models.registry import NETWORKS, Network
from symgen.split.sampled import sparsify_sampled
from symgen.transforms import and_or_outputs, interaction_order

FOLDER = Path(__file__).resolve().parent
DIGITS = 12
# Relative gap of splits: far below the tolerances, so that the optimal model itself is compared.
TOL = 1e-6
#: Names here of quantities that have another name in the package.
RENAMED = {"gap_nothing_shown": "gap_bias"}


def drawing(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=drawing(seed), dtype=torch.float64)


class Cnn(nn.Module):
    """Two convolutions and a linear layer, for images of 10 x 10 pixels."""

    def __init__(self, width: int = 3, classes: int = 4):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 4, 3, stride=2)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu2(self.conv2(self.relu1(self.conv1(x))))
        return 4 * self.linear(x.flatten(1))


def built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network in float64, its weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def images(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, labels of four classes and 7 patches of a 5 x 5 grid for each."""
    chance = drawing(seed)
    y = torch.randint(4, (count,), generator=chance)
    patches = torch.stack([torch.randperm(25, generator=chance)[:7] for _ in range(count)])
    return normal(seed + 1, count, 1, 10, 10), y, patches.sort(1).values


def planted(n: int, samples: int, count: int, seed: int) -> Tensor:
    """Return effects (sample, 2, 2**n), `count` ANDs and as many ORs of orders up to 3."""
    chance, order = drawing(seed), interaction_order(n)
    effects = torch.zeros(samples, 2, 2**n, dtype=torch.float64)
    for row in range(samples):
        for kind in (0, 1):
            allowed = ((order > kind) & (order <= 3)).nonzero().flatten()
            chosen = allowed[torch.randperm(len(allowed), generator=chance)[:count]]
            size = 0.5 + torch.rand(count, generator=chance, dtype=torch.float64)
            sign = torch.randint(2, (count,), generator=chance) * 2 - 1
            effects[row, kind, chosen] = size * sign
    return effects


def planted_outputs() -> Tensor:
    """Return v of three samples, n = 7: planted effects and noise."""
    return 0.3 + and_or_outputs(planted(7, 3, 3, 102)) + 0.01 * normal(202, 3, 2**7)


def network_outputs() -> Tensor:
    """Return v of a CNN on two samples, n = 7, the pixels masked by 0."""
    x, y, patches = images(2, 61)
    value = MaskValue(torch.zeros(()), None)
    return symgen.masked_outputs(built(Cnn, 22), x, y, ImageVariables(patches, 5), value)


def drawn(seed: int, like: Tensor | None = None) -> Tensor:
    """Return random effects of four samples, n = 7, all orders; half of them those of another."""
    order, shape = interaction_order(7), (4, 2, 2**7)
    rates = torch.tensor([0.0, 0.6, 0.3, 0.15, 0.1, 0.1, 0.3, 0.5])[order]
    chance = drawing(seed)
    on, size, sign, kept = (
        torch.rand(shape, generator=chance, dtype=torch.float64) for _ in range(4)
    )
    effects = (on < rates) * (0.02 + size**2) * (2.0 * (sign < 0.5) - 1)
    effects[:, 1, order == 1] = 0
    if like is None:
        return effects
    return torch.where(like != 0, (kept < 0.5) * like * (0.5 + size), effects)


def networks() -> tuple[Any, list]:
    """Return interactions of a target and two baselines, whose effects are drawn."""
    target = drawn(31)
    made = []
    for seed, effects in ((31, target), (32, drawn(32, target)), (33, drawn(33, target))):
        bias = normal(100 + seed, 4)
        full = bias + effects.sum((-2, -1))
        size = effects.abs().sum((-2, -1))
        made.append(symgen.Interactions(effects, bias, size, torch.zeros_like(bias), full))
    return made[0], made[1:]


def image_outputs(
    model: nn.Module, x: Tensor, y: Tensor, patches: Tensor, images: Tensor
) -> Tensor:
    """Return v with patches masked at the first ReLU by the mean feature of some images."""
    mean = symgen.mean_feature(model, images)
    return symgen.masked_outputs(model, x, y, ImageVariables(patches, 5), mean)


@contextlib.contextmanager
def float64_network() -> Iterator[str]:
    """Register the small CNN with weights in float64 for a while, and give its name."""

    class Float64CNN(SmallCNN):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double())

    NETWORKS["golden"] = Network(lambda **options: Float64CNN(**options).double())
    try:
        yield "golden"
    finally:
        del NETWORKS["golden"]


def boundaries(steps: list, power: list, kept: list, lost: list, r: float = 1.0) -> list:
    """Return t1 and t2 (App. I); None for a boundary that does not exist."""
    found = symgen.phases(steps, power, kept, lost, r)
    return [found.t1, found.t2]


# One function per result, named as in the files --------------------------------------------------


def masking_image() -> dict:
    x, y, patches = images(3, 41)
    model = built(Cnn, 42)
    return {"v": image_outputs(model, x, y, patches[:, :6], normal(43, 9, 1, 10, 10))}


def masking_text() -> dict:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_labels": 3}
    more = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 24}
    config = BertConfig(**sizes, **more, initializer_range=0.4)
    model = built(lambda: BertForSequenceClassification(config), 51)
    ids, lengths = torch.randint(5, 50, (3, 12), generator=drawing(52)), torch.tensor([12, 9, 11])
    mask = (torch.arange(12) < lengths[:, None]).long()
    groups = (((1,), (2, 3), (5,), (8, 10)), ((0,), (4,), (6, 7), (8,)), ((2,), (3,), (9,), (10,)))
    x = {"input_ids": ids * mask, "attention_mask": mask}
    value = symgen.token_embedding(model, 4)
    return {"v": symgen.masked_outputs(model, x, [0, 2, 1], TextVariables(groups), value)}


def masking_language() -> dict:
    """The next token, by the prefix tree."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    more = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    config = LlamaConfig(**sizes, **more, initializer_range=0.3)
    model = built(lambda: LlamaForCausalLM(config), 61)
    # The norms of Llama compute in float32; these do not.
    for name, module in [*model.named_modules()]:
        if name.endswith("norm"):
            norm = nn.RMSNorm(16, module.variance_epsilon, dtype=torch.float64)
            model.set_submodule(name, norm.requires_grad_(False))
    chance = drawing(62)
    prompts = [torch.randint(5, 61, (length,), generator=chance) for length in (12, 8)]
    groups = (((1,), (3, 4, 8), (5,), (11,), (9,)), ((7,), (0,), (4, 5), (2,), (6,)))
    value = symgen.mean_embedding(model)
    return {"v": symgen.masked_outputs(model, prompts, [7, 33], TextVariables(groups), value)}


def split(v: Tensor, noise: float) -> dict:
    found = symgen.sparsify(v, noise, TOL)
    return {
        "objective": found.objective,
        "objective_default": symgen.sparsify(v, noise).objective,
        "total_effect": found.total_effect,
        "effects": found.effects,
    }


def split_planted_few() -> dict:
    """The model with few effects, near a corner of the optimal face."""
    found = symgen.sparsify(planted_outputs(), 0.02, TOL, few=True)
    names = "objective", "total_effect", "effects"
    return {name: getattr(found, name) for name in names}


def split_sampled() -> dict:
    """300 states of 20 variables, and 20 more that the model has not seen."""
    n, chance = 20, drawing(72)
    some = torch.randint(1, 2**n - 1, (400,), generator=chance).unique()
    some = some[torch.randperm(len(some), generator=chance)][:318]
    states = torch.cat([torch.tensor([0, 2**n - 1]), some])
    rows = []
    for _ in range(2):
        v = torch.full((len(states),), 0.5, dtype=torch.float64)
        for term in range(8):
            kind, size = term % 2, 1 + term % 2 + term // 4
            chosen = torch.randperm(n, generator=chance)[:size]
            index = int((1 << chosen).sum())
            met = states & index
            effect = 0.5 + torch.rand((), generator=chance, dtype=torch.float64)
            v = v + (1 if term % 3 else -1) * effect * (met > 0 if kind else met == index)
        rows.append(v)
    v = torch.stack(rows)
    found: dict[str, Any] = {"total_effect": (v[:, 1] - v[:, 0]).abs()}
    for name, noise in (("exact", 0.0), ("noise", 0.02)):
        inter = sparsify_sampled(v, states, n, held_out=20, noise=noise)
        found[f"objective_{name}"] = inter.objective
        found[f"predicted_{name}"] = inter.predict(states[-20:])
        effects = found[f"effects_{name}"] = {}
        least = 5e-4 * (inter.full - inter.bias).abs()
        for sample, at in (inter.effects.abs() > least[:, None]).nonzero().tolist():
            kind = "or" if inter.is_or[at] else "and"
            effects[f"sample {sample}: {kind} {int(inter.index[at])}"] = inter.effects[sample, at]
    return found


def transfer() -> dict:
    target, baselines = networks()
    nonzero = target.effects != 0
    found = {}
    for metric in ("binary", "similarity"):
        for name, others in (("one", baselines[0]), ("two", baselines)):
            g = symgen.transfer(target, others, metric=metric) + 0
            found[f"{metric}_{name}"] = [row[kept] for row, kept in zip(g, nonzero, strict=True)]
    return found


def power() -> dict:
    target, baselines = networks()
    low, high = measures.LOW_ORDERS, measures.HIGH_ORDERS
    g = symgen.transfer(target, baselines)
    strict = symgen.transfer(target, baselines, 0.5)
    whole = symgen.order_spectrum(target)
    parts = [symgen.order_spectrum(target, symgen.transfer(target, one)) for one in baselines]
    return {
        "H": symgen.generalization_power(target, g),
        "H_low": symgen.generalization_power(target, g, low),
        "H_high": symgen.generalization_power(target, g, high),
        "H_absolute": symgen.generalization_power(target, strict),
        "N": symgen.interaction_count(target),
        "N_half": symgen.interaction_count(target, 0.5),
        "spectrum": whole,
        "spectrum_generalizable": symgen.order_spectrum(target, g),
        "chance": symgen.chance_level(target, baselines, draws=10, seed=3),
        "chance_low": symgen.chance_level(target, baselines, low, draws=10, seed=3),
        "jaccard": measures.jaccard(*parts),
        "mean_order": measures.mean_order(whole),
        "orders": measures.order_thirds(whole),
        "uncancelled": measures.uncancelled(whole),
    }


def removal() -> dict:
    """Outputs without non-generalizable interactions, and those of the controls (Eq. 12)."""
    target, baselines = networks()
    g = symgen.transfer(target, baselines)
    shares = {
        "removed": g,
        "random": removals.random_share(target, g, seed=5),
        "permuted": removals.permuted_share(g, seed=5),
    }
    strong = target.full.abs()
    found: dict[str, Any] = {"shrinkage": removals.shrinkage(strong + 2, strong)}
    for name, share in shares.items():
        found[name] = symgen.remove_interactions(target.full, target, share)
        found[f"{name}_loss"] = removals.cross_entropy(found[name])
    return found


def phases() -> dict:
    steps, power = [0, 1, 4, 9, 20, 40], [0.2, 0.5, 0.7, 0.65, 0.6, 0.5]
    kept, lost = [1.0, 2.0, 4.0, 5.0, 5.5, 5.6], [4.0, 3.0, 1.5, 1.8, 2.2, 3.0]
    late = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    return {
        "ratio_1": boundaries(steps, power, kept, lost),
        "ratio_3": boundaries(steps, power, kept, lost, 3.0),
        "no_third_phase": boundaries(steps, power, kept, lost, 0.01),
        "still_rising": boundaries(steps, late, kept, lost),
    }


def penalty_term() -> dict:
    """The penalty on all samples and states, so that nothing is drawn."""
    x, y, patches = images(4, 81)
    model, patches = built(Cnn, 82), patches[:, :4]
    baseline = symgen.sparsify(image_outputs(built(Cnn, 83), x, y, patches, x), 0.02, TOL)
    term = Penalty(
        x, y, ImageVariables(patches, 5), baseline, samples=4, states=16, strength=2.0, tol=TOL
    )(1, model)
    gradients = torch.autograd.grad(term, [*model.parameters()])
    return {
        "value": term.detach(),
        "gradient_norms": torch.stack([g.norm() for g in gradients]),
        "gradient": torch.cat([g.flatten()[:5] for g in gradients]),
    }


def training_run() -> dict:
    """A training of 40 steps on the digits, in float64: its records, curves and phases."""
    data = symgen.load_dataset("digits", train_size=120, seed=1)
    settings = {"epochs": 8, "batch_size": 24, "checkpoints": 5, "seed": 2, "learning_rate": 0.1}
    patches = torch.stack([torch.randperm(25, generator=drawing(90 + i))[:5] for i in range(5)])
    x, y = data.part("test").batch(torch.arange(5))

    def extracted(run: Any, step: int) -> Any:
        v = image_outputs(run.load(step), x.double(), y, patches, x.double())
        return symgen.sparsify(v, 0.02, TOL)

    rows = []
    with float64_network() as name:
        run, baseline = (
            symgen.train(name, data, part, progress=False, options={"width": 4}, **settings)
            for part in ("target", "baseline")
        )
        other = extracted(baseline, -1)
        for step in run.steps:
            inter = extracted(run, step)
            g = symgen.transfer(inter, other)
            kept, rest = symgen.salient_strength(inter, g)
            weights = [p.detach().flatten() for p in run.load(step).parameters()]
            rows.append({
                "weight_norm": float(torch.cat(weights).norm()),
                "H": float(symgen.generalization_power(inter, g).nanmean()),
                "N": float(symgen.interaction_count(inter).nanmean()),
                "generalizable": float(kept.mean()),
                "non_generalizable": float(rest.mean()),
            })  # fmt: skip
    records = run.records.drop(columns="step").to_dict("list")
    curves = pd.DataFrame(rows).to_dict("list")
    names = "H", "generalizable", "non_generalizable"
    found = boundaries(run.steps, *(curves[name] for name in names))
    return {"steps": run.steps, **records, **curves, "phases": found}


def study() -> dict:
    """Everything that is measured of one training of a tiny study."""
    settings = {"train_size": 100, "epochs": 2, "samples": 4, "n": 4, "checkpoints": 2, "tol": TOL}
    with float64_network() as name:
        table = symgen.measure(symgen.Study.of(settings, network=name), nulls=True, workers=1)
    values = {}
    for name in stored("study"):
        rows = table[table["quantity"] == RENAMED.get(name, name)].sort_values("step")
        if name == "steps":
            values[name] = sorted(table["step"].unique().tolist())
        elif name.startswith("spectrum"):
            # Order 0 is not in the table: it is empty.
            both = rows.pivot(index=["step", "sign"], columns="order", values="value")
            both.insert(0, 0.0, 0.0)
            values[name] = both.to_numpy().tolist()
        elif name.startswith("gap_"):
            by_order = rows.set_index("order")["value"]
            values[name] = by_order.reindex(range(5), fill_value=0.0).tolist()
        else:
            values[name] = rows["value"].tolist()
    return values


RESULTS: dict[str, Callable[[], dict]] = {
    "masking_image": masking_image,
    "masking_text": masking_text,
    "masking_language": masking_language,
    "split_planted_exact": lambda: split(planted_outputs(), 0.0),
    "split_planted_noise": lambda: split(planted_outputs(), 0.02),
    "split_planted_few": split_planted_few,
    "split_network_exact": lambda: split(network_outputs(), 0.0),
    "split_network_noise": lambda: split(network_outputs(), 0.02),
    "split_sampled": split_sampled,
    "transfer": transfer,
    "power": power,
    "removal": removal,
    "phases": phases,
    "penalty_term": penalty_term,
    "training_run": training_run,
    "study": study,
}


def plain(value: Any) -> Any:
    """Return a result as JSON holds it: lists, numbers of 12 digits, None for NaN."""
    if isinstance(value, dict):
        return {str(k): plain(x) for k, x in value.items()}
    if isinstance(value, Tensor):
        value = value.detach().cpu().tolist()
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
    return value


def computed(name: str) -> dict:
    """Return a result, computed now."""
    return plain(RESULTS[name]())


def stored(name: str) -> dict:
    """Return a result as it is in its file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _lines(value: Any, indent: str = "") -> str:
    """Return JSON in which a list of numbers is one line."""
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(k)}: {_lines(x, inner)}" for k, x in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(x, list) for x in value):
        return "[\n" + ",\n".join(inner + _lines(x, inner) for x in value) + f"\n{indent}]"
    return json.dumps(value)


def main(arguments: list[str]) -> None:
    if arguments != ["--write"]:
        sys.exit("usage: python tests/golden/compute.py --write")
    with tempfile.TemporaryDirectory() as cache:
        # Nothing is read that an earlier version has stored.
        os.environ["SYMGEN_CACHE"] = cache
        for name in RESULTS:
            (FOLDER / f"{name}.json").write_text(_lines(computed(name)) + "\n", encoding="utf-8")
            print(f"wrote {name}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
