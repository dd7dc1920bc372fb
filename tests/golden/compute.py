"""The golden results: tiny computations that use every room of the package below the book.

Inputs are generated here, in float64, so that a result does not depend on the processor or on how
the package draws samples. All calls into the package are in the first section; the rest of this
file and `test_golden.py` do not use it.

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

import torch
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parent
DIGITS = 12
# Relative gap of splits: far below the tolerances, so that the optimal model itself is compared.
TOL = 1e-6

# Calls into the package --------------------------------------------------------------------------


def image_outputs(
    model: nn.Module, x: Tensor, y: Tensor, patches: Tensor, images: Tensor
) -> Tensor:
    """Return v with patches masked at the first ReLU by the mean feature of some images."""
    from symgen.masking.mask_values import mean_feature
    from symgen.masking.outputs import masked_outputs
    from symgen.masking.variables import ImageVariables

    variables = ImageVariables(patches, 5)
    return masked_outputs(model, x, y, variables, mean_feature(model, images), progress=False)


def text_outputs(model: nn.Module, x: dict, y: Tensor, groups: tuple, token: int) -> Tensor:
    """Return v with words masked by the embedding of a token."""
    from symgen.masking.mask_values import token_embedding
    from symgen.masking.outputs import masked_outputs
    from symgen.masking.variables import TextVariables

    variables = TextVariables(groups)
    return masked_outputs(model, x, y, variables, token_embedding(model, token), progress=False)


def language_outputs(model: nn.Module, prompts: list, y: Tensor, groups: tuple) -> Tensor:
    """Return v of the next token with words masked by the mean embedding, by the prefix tree."""
    from symgen.masking.mask_values import mean_embedding
    from symgen.masking.outputs import masked_outputs
    from symgen.masking.variables import TextVariables

    variables = TextVariables(groups)
    return masked_outputs(model, prompts, y, variables, mean_embedding(model), progress=False)


def split(v: Tensor, noise: float, tol: float = TOL, few: bool = False) -> Any:
    """Return the sparsest interactions, with effects, objective and total_effect."""
    from symgen.split.sparsify import sparsify

    return sparsify(v, noise=noise, tol=tol, few=few)


def sampled_split(v: Tensor, states: Tensor, n: int, held_out: int, noise: float) -> dict:
    """Return the sparsest model of sampled states: objective, predictions and strong effects."""
    from symgen.split.sampled import sparsify_sampled

    inter = sparsify_sampled(v, states, n, held_out=held_out, noise=noise)
    least = 5e-4 * (inter.full - inter.bias).abs()
    strong = {}
    for sample, at in (inter.effects.abs() > least[:, None]).nonzero().tolist():
        name = f"sample {sample}: {'or' if inter.is_or[at] else 'and'} {int(inter.index[at])}"
        strong[name] = float(inter.effects[sample, at])
    predicted = inter.predict(states[len(states) - held_out :])
    return {"objective": inter.objective, "predicted": predicted, "effects": strong}


def interactions(effects: Tensor, bias: Tensor, full: Tensor) -> Any:
    """Return interactions with given effects (sample, 2, 2**n)."""
    from symgen.interactions import Interactions

    size = effects.abs().sum((-2, -1))
    return Interactions(effects, bias, size, torch.zeros_like(bias), full)


def transferred(target: Any, baselines: Any, metric: str = "binary") -> tuple[Tensor, Tensor]:
    """Return G of ANDs and of ORs."""
    from symgen.method.generalization import transfer

    return transfer(target, baselines, metric=metric).unbind(-2)


def measures(target: Any, baselines: list) -> dict[str, Tensor]:
    """Return what is measured of interactions and their transfer, one row per sample."""
    from symgen.method import generalization as method

    g = method.transfer(target, baselines)
    all_ = method.order_spectrum(target)
    parts = [method.order_spectrum(target, method.transfer(target, b)) for b in baselines[:2]]
    return {
        "H": method.generalization_power(target, g),
        "H_low": method.generalization_power(target, g, method.LOW_ORDERS),
        "H_high": method.generalization_power(target, g, method.HIGH_ORDERS),
        "H_absolute": method.generalization_power(target, method.transfer(target, baselines, 0.5)),
        "N": method.interaction_count(target),
        "N_half": method.interaction_count(target, 0.5),
        "spectrum": all_,
        "spectrum_generalizable": method.order_spectrum(target, g),
        "chance": method.chance_level(target, baselines, draws=10, seed=3),
        "chance_low": method.chance_level(target, baselines, method.LOW_ORDERS, draws=10, seed=3),
        "jaccard": method.jaccard(*parts),
        "mean_order": method.mean_order(all_),
        "orders": method.order_thirds(all_),
        "uncancelled": method.uncancelled(all_),
    }


def removals(target: Any, baselines: list) -> dict[str, Any]:
    """Return v without non-generalizable interactions, and of the controls (Eq. 12)."""
    from symgen.method import removal
    from symgen.method.generalization import transfer

    g = transfer(target, baselines)
    v = {
        "removed": removal.remove_interactions(target.full, target, g),
        "random": removal.remove_interactions(
            target.full, target, removal.random_share(target, g, seed=5)
        ),
        "permuted": removal.remove_interactions(
            target.full, target, removal.permuted_share(target, g, seed=5)
        ),
    }
    strong = target.full.abs()
    losses = {f"{name}_loss": removal.cross_entropy(x) for name, x in v.items()}
    return {**v, **losses, "shrinkage": removal.shrinkage(strong + 2, strong)}


def boundaries(steps: list, power: list, kept: list, lost: list, r: float = 1.0) -> list:
    """Return t1 and t2 (App. I); None for a boundary that does not exist."""
    from symgen.method.training_curves import phases

    found = phases(steps, power, kept, lost, r)
    return [found.t1, found.t2]


def penalty(model: nn.Module, x: Tensor, y: Tensor, patches: Tensor, baselines: list) -> Tensor:
    """Return the penalty on all samples and states, so that nothing is drawn."""
    from symgen.masking.variables import ImageVariables
    from symgen.method.penalty import Penalty

    term = Penalty(
        x, y, ImageVariables(patches, 5), baselines, samples=len(x),
        states=2 ** patches.shape[1], strength=2.0, tol=TOL,
    )  # fmt: skip
    return term(1, model)


@contextlib.contextmanager
def float64_network() -> Iterator[str]:
    """Register the small CNN with weights in float64 for a while, and give its name."""
    from symgen.models.architectures import SmallCNN
    from symgen.models.registry import NETWORKS, Network

    class Float64CNN(SmallCNN):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double())

    NETWORKS["golden"] = Network(lambda **options: Float64CNN(**options).double())
    try:
        yield "golden"
    finally:
        del NETWORKS["golden"]


def training(part: str) -> tuple[Any, Any]:
    """Return a training of a few steps on the digits, in float64, and its data."""
    from symgen.data.datasets import load_dataset
    from symgen.models.training import train

    data = load_dataset("digits", train_size=120, seed=1)
    settings = {"epochs": 8, "batch_size": 24, "checkpoints": 5, "seed": 2, "learning_rate": 0.1}
    options = {"width": 4}
    with float64_network() as name:
        run = train(name, data, part, progress=False, options=options, **settings)
        run.models = {step: run.load(step) for step in run.steps}
    return run, data


def followed(run: Any, baseline: Any, data: Any, patches: Tensor) -> dict[str, list]:
    """Return H, N and strengths of a training at every checkpoint, averaged over samples."""
    from symgen.method.generalization import (
        generalization_power,
        interaction_count,
        order_spectrum,
        transfer,
    )

    x, y = data.part("test").batch(torch.arange(len(patches)))

    def extracted(model: nn.Module) -> Any:
        return split(image_outputs(model, x.double(), y, patches, x.double()), 0.02)

    other, rows = extracted(baseline.models[baseline.steps[-1]]), []
    for step in run.steps:
        inter = extracted(run.models[step])
        g = transfer(inter, other)
        kept, all_ = (order_spectrum(inter, z).abs().sum((-2, -1)) for z in (g, None))
        values = generalization_power(inter, g), interaction_count(inter), kept, all_ - kept
        rows.append([float(value.nanmean()) for value in values])
    names = "H", "N", "generalizable", "non_generalizable"
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


#: Names here of quantities that have another name in the package.
RENAMED = {"gap_nothing_shown": "gap_bias"}


def study() -> dict[str, Any]:
    """Return everything that is measured of one training of a tiny study."""
    from symgen.method.study import Study
    from symgen.method.training_curves import measure

    settings = {"train_size": 100, "epochs": 2, "samples": 4, "n": 4, "checkpoints": 2, "tol": TOL}
    with float64_network() as name:
        table = measure(Study.of(settings, network=name), nulls=True, workers=1)
    steps, values = sorted(table["step"].unique().tolist()), {}
    for name in stored("study"):
        rows = table[table["quantity"] == RENAMED.get(name, name)]
        if name.startswith("spectrum"):
            # Order 0 is not in the table: it is empty.
            signs = [rows[rows["sign"] == sign] for sign in "+-"]
            values[name] = [
                [[0.0, *x[x["step"] == step].sort_values("order")["value"]] for x in signs]
                for step in steps
            ]
        elif name.startswith("gap_"):
            by_order = rows.set_index("order")["value"]
            values[name] = [float(by_order.get(m, 0.0)) for m in range(5)]
        elif len(rows) == 1:
            values[name] = float(rows["value"].iloc[0])
        else:
            values[name] = rows.sort_values("step")["value"].tolist()
    return {**values, "steps": steps}


# End of the calls into the package ---------------------------------------------------------------


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


def bits(n: int) -> Tensor:
    """Return which variable is present in which state, (2**n, n)."""
    return (torch.arange(2**n)[:, None] >> torch.arange(n) & 1).bool()


def orders(n: int) -> Tensor:
    return bits(n).sum(1)


def logical(effects: Tensor) -> Tensor:
    """Return what effects (..., 2, 2**n) add up to on every state, from the definition (Eq. 3)."""
    states = torch.arange(effects.shape[-1])
    both = states[:, None] & states
    inside, meets = (both == states).to(effects), (both > 0).to(effects)
    return effects[..., 0, :] @ inside.T + effects[..., 1, :] @ meets.T


def planted(n: int, samples: int, count: int, seed: int) -> Tensor:
    """Return effects (sample, 2, 2**n), `count` ANDs and as many ORs of orders up to 3."""
    chance, order = drawing(seed), orders(n)
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
    return 0.3 + logical(planted(7, 3, 3, 102)) + 0.01 * normal(202, 3, 2**7)


def network_outputs() -> Tensor:
    """Return v of a CNN on two samples, n = 7, the pixels masked by 0; without the package."""
    x, y, patches = images(2, 61)
    model, rows = built(Cnn, 22), []
    cells = (torch.arange(10)[:, None] // 2 * 5 + torch.arange(10) // 2).flatten()
    for image, label, cell in zip(x, y, patches, strict=True):
        owner = cells[:, None] == cell
        gone = (owner.double() @ (~bits(7)).double().T).T.reshape(-1, 1, 10, 10)
        with torch.no_grad():
            z = model(image * (1 - gone))
        others = z[:, torch.arange(4) != label].logsumexp(1)
        rows.append(z[:, label] - others)
    return torch.stack(rows)


def drawn(seed: int, like: Tensor | None = None) -> Tensor:
    """Return random effects of four samples, n = 7, all orders; half of them those of another."""
    order, shape = orders(7), (4, 2, 2**7)
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
        made.append(interactions(effects, bias, bias + effects.sum((-2, -1))))
    return made[0], made[1:]


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
    return {"v": text_outputs(model, x, torch.tensor([0, 2, 1]), groups, token=4)}


def masking_language() -> dict:
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
    return {"v": language_outputs(model, prompts, torch.tensor([7, 33]), groups)}


def _split(v: Tensor, noise: float) -> dict:
    found = split(v, noise)
    return {
        "objective": found.objective, "objective_default": split(v, noise, 1e-3).objective,
        "total_effect": found.total_effect, "effects": found.effects,
    }  # fmt: skip


def split_planted_exact() -> dict:
    return _split(planted_outputs(), 0.0)


def split_planted_noise() -> dict:
    return _split(planted_outputs(), 0.02)


def split_planted_few() -> dict:
    """The model with few effects, near a corner of the optimal face."""
    found = split(planted_outputs(), 0.02, few=True)
    return {
        "objective": found.objective,
        "total_effect": found.total_effect,
        "effects": found.effects,
    }


def split_network_exact() -> dict:
    return _split(network_outputs(), 0.0)


def split_network_noise() -> dict:
    return _split(network_outputs(), 0.02)


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
    return {
        "total_effect": (v[:, 1] - v[:, 0]).abs(),
        **{f"{k}_exact": x for k, x in sampled_split(v, states, n, 20, 0.0).items()},
        **{f"{k}_noise": x for k, x in sampled_split(v, states, n, 20, 0.02).items()},
    }


def transfer() -> dict:
    target, baselines = networks()
    nonzero = target.effects != 0
    found = {}
    for metric in ("binary", "similarity"):
        for name, others in (("one", baselines[0]), ("two", baselines)):
            g = torch.stack(transferred(target, others, metric), -2)
            found[f"{metric}_{name}"] = [row[kept] for row, kept in zip(g, nonzero, strict=True)]
    return found


def power() -> dict:
    return measures(*networks())


def removal() -> dict:
    return removals(*networks())


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
    x, y, patches = images(4, 81)
    model = built(Cnn, 82)
    other = image_outputs(built(Cnn, 83), x, y, patches[:, :4], x)
    term = penalty(model, x, y, patches[:, :4], [split(other, 0.02)])
    gradients = torch.autograd.grad(term, [*model.parameters()])
    return {
        "value": term.detach(),
        "gradient_norms": torch.stack([g.norm() for g in gradients]),
        "gradient": torch.cat([g.flatten()[:5] for g in gradients]),
    }


def training_run() -> dict:
    """A training of 40 steps, what it measured, and its curves and phases."""
    (run, data), (baseline, _) = training("target"), training("baseline")
    records = run.records
    names = "epoch", "train_loss", "test_loss", "train_accuracy", "test_accuracy"
    norms = [
        torch.cat([p.detach().flatten() for p in run.models[step].parameters()]).norm()
        for step in run.steps
    ]
    patches = torch.stack([torch.randperm(25, generator=drawing(90 + i))[:5] for i in range(5)])
    curves = followed(run, baseline, data, patches)
    strengths = curves["generalizable"], curves["non_generalizable"]
    return {
        "steps": list(run.steps),
        **{name: records[name].tolist() for name in names},
        "weight_norm": torch.stack(norms),
        **curves,
        "phases": boundaries(list(run.steps), curves["H"], *strengths),
    }


RESULTS: dict[str, Callable[[], dict]] = {
    f.__name__: f
    for f in (
        masking_image, masking_text, masking_language, split_planted_exact, split_planted_noise,
        split_planted_few, split_network_exact, split_network_noise, split_sampled, transfer, power, removal, phases,
        penalty_term, training_run, study,
    )
}  # fmt: skip


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
