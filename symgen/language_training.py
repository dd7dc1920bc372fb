"""Causal language models trained or fine-tuned here, on the loop of the other networks."""

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from symgen.checkpoints import Recipe, checkpoint_steps
from symgen.loop import CLIP, Loop, _generator, _rate, _seed, make_accelerator
from symgen.provenance import cache_folder, code_fingerprint, fingerprint, store
from symgen.training import TrainingRun


class Trainable(nn.Module):
    """A language model whose state is its trained parameters, shared ones once."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Tensor]:
        return {k: p.detach() for k, p in self.model.named_parameters() if p.requires_grad}

    def load_state_dict(self, weights: Mapping[str, Tensor], *args: Any, **options: Any) -> None:
        with torch.no_grad():
            for name, value in self.state_dict().items():
                value.copy_(weights[name])


class LanguageLoop(Loop):
    """The training loop of the other networks, on token sequences.

    Args:
        run: what to train.
        title: of the bar.
    """

    def __init__(self, run: "LanguageRun", title: str | None):
        self.recipe, self.part, self.stored, self.title = run.recipe, run.part, run._store, title
        size = run.recipe.evaluation_size
        self.measured = {"train": run.part[:size], "test": run.test} | run.others
        self.accelerator = make_accelerator()
        self.device = self.accelerator.device
        self.model = run.start().to(self.device)
        self.wrapped = self.accelerator.prepare(self.model)
        self.layout = torch.contiguous_format
        own = [p for p in self.model.parameters() if p.requires_grad]
        shared = {"lr": run.recipe.learning_rate, "weight_decay": run.recipe.weight_decay}
        groups = [
            {"params": [p for p in own if p.ndim >= 2]},
            {"params": [p for p in own if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW([g for g in groups if g["params"]], **shared)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)
        self.per_epoch = run.recipe.total // run.recipe.epochs

    def batches(self, start: int, last: int) -> Any:
        """Yield the batches of the steps after `start`, each a function of seed and step."""
        rank, orders = self.accelerator.process_index, {}
        for step in range(start, last):
            epoch, place = divmod(step, self.per_epoch)
            if epoch not in orders:
                shuffled = torch.randperm(len(self.part), generator=_generator(
                    self.recipe.seed, 1, epoch))  # fmt: skip
                orders = {epoch: shuffled.tensor_split(self.per_epoch)}
            index = orders[epoch][place][rank :: self.accelerator.num_processes]
            yield _padded([self.part[i] for i in index.tolist()])

    def step(self, step: int, x: Tensor, y: Tensor) -> Tensor:
        """Do one update, so that `step` have been done; return the loss of the batch."""
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * _rate(step, recipe.total, recipe.schedule)
        torch.manual_seed(_seed(recipe.seed, 3, step, self.accelerator.process_index))
        self.model.train()
        mixed = recipe.mixed_precision != "no"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=mixed):
            total, count = _loss(self.wrapped, x.to(self.device), y.to(self.device))
        # The mean over the tokens of all processes, whose gradients are averaged afterwards.
        loss = total * self.accelerator.num_processes / self.accelerator.reduce(count, "sum")
        self.accelerator.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP["adamw"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def checkpoint(self, step: int) -> dict | None:
        """Measure and store the model after `step` steps, unless that is stored already."""
        if not self.accelerator.is_main_process or self.stored.has(step):
            return None
        record: dict[str, float] = {"step": step, "epoch": step / self.per_epoch}
        for name, pieces in self.measured.items():
            record[f"{name}_loss"], record[f"{name}_accuracy"] = evaluate(self.model, pieces)
        store(self.stored.path(step), self.model.state_dict(), {"record": record})
        return record


def _padded(pieces: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return ids, padded on the right where nothing looks at them, and labels, -100 for none."""
    ids = nn.utils.rnn.pad_sequence([p for p, _ in pieces], batch_first=True)
    labels = [torch.where(torch.arange(len(p)) < first, -100, p) for p, first in pieces]
    return ids, nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)


def _loss(model: nn.Module, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy (nats) and the number of tokens it was summed over."""
    logits, wanted = model(ids)[:, :-1].float(), labels[:, 1:]
    total = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    return total, (wanted >= 0).sum()


@torch.inference_mode()
def evaluate(model: nn.Module, pieces: Sequence[tuple[Tensor, int]]) -> tuple[float, float]:
    """Return the mean cross-entropy (nats a token) and the share of tokens that come first."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    loss = correct = count = 0.0
    for first in range(0, len(pieces), 20):
        ids, labels = (t.to(device) for t in _padded(pieces[first : first + 20]))
        logits, wanted = model(ids)[:, :-1].float(), labels[:, 1:]
        loss += F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum").item()
        correct += (logits.argmax(-1) == wanted).sum().item()
        count += (wanted >= 0).sum().item()
    model.train(training)
    return loss / count, correct / count


class LanguageRun(TrainingRun):
    """A stored training of a language model: checkpoints, and what was measured at each.

    Attributes:
        tokenizer: of the model.
        steps, network, fingerprint, folder, recipe, records: as of a `TrainingRun`; losses in
            nats a token, with ``NAME_loss`` for every further set of pieces in ``others``.
    """

    def __init__(self, start, tokenizer, recipe, part, test, others, identity, about):
        folder = cache_folder() / "training" / identity
        super().__init__(recipe, part, test, identity, folder, about)
        self.start, self.tokenizer, self.others = start, tokenizer, others

    def _network(self, weights: Mapping[str, Tensor], path: Path) -> nn.Module:
        model = self.start()
        model.load_state_dict(weights)
        whole = getattr(model.model, "merge_and_unload", lambda: model.model)()
        return whole.requires_grad_(False)

    def _train(self, main: bool, progress: bool) -> None:
        if main:
            self._describe()
        LanguageLoop(self, f"{self.network} on {self._about['data']}" if progress else None).run()


def train_causal_lm(
    model: nn.Module,
    tokenizer: Any,
    pieces: Sequence[tuple[Tensor, int]],
    test: Sequence[tuple[Tensor, int]],
    others: Mapping[str, Sequence[tuple[Tensor, int]]] | None = None,
    name: str = "language model",
    data: str = "texts",
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float = 3e-3,
    checkpoints: int | Sequence[int] = 1,
    schedule: str = "cosine",
    weight_decay: float = 0.01,
    mixed_precision: str = "no",
    lora: int = 0,
    seed: int = 0,
    evaluation_size: int = 200,
    progress: bool = True,
) -> LanguageRun:
    """Train or fine-tune a causal language model, or take up the stored run with these arguments.

    The loop is that of `train`: seeded, checkpointed, resumed with the same numbers. Weights are
    trained in the type they come in (load in float32 to tune all of them).

    Args:
        model: as it is to begin with; it is not changed.
        tokenizer: of the model.
        pieces: to train on, of `pieces_of` or `instructions_of`.
        test: to measure on as well.
        others: name to further pieces to measure on, such as those of an old domain.
        name, data: for people.
        epochs, batch_size, learning_rate, schedule, weight_decay, seed: see `train` (AdamW).
        checkpoints: how many, log-spaced over the steps; or the steps themselves.
        mixed_precision: "no" or "bf16".
        lora: rank of low-rank adapters on all linear layers; 0 trains all weights.
        evaluation_size: pieces measured on, the first ones of each set.

    Raises:
        ValueError: for no pieces, or settings that do not exist.
        ImportError: for adapters without `peft`.
        FloatingPointError: if the loss stops being a number.
    """
    for what, value, least in (("epochs", epochs, 1), ("batch_size", batch_size, 1),
                               ("pieces", len(pieces), 1), ("test", len(test), 1)):  # fmt: skip
        if value < least:
            raise ValueError(f"{what}: got {value}, expected at least {least}")
    if mixed_precision not in ("no", "bf16"):
        raise ValueError(f'mixed_precision="{mixed_precision}": expected "no" or "bf16"')
    if any(p.is_meta for p in model.parameters()):
        raise ValueError(
            "some weights of the model lie aside on a disk (device_map), where they cannot be "
            "trained; load it without device_map, on a larger device or in a smaller dtype"
        )
    total = epochs * math.ceil(len(pieces) / batch_size)
    if isinstance(checkpoints, int):
        steps = checkpoint_steps(total, checkpoints)
    else:
        steps = sorted({0, total, *(step for step in checkpoints if 0 <= step <= total)})
    recipe = Recipe(
        name, {"lora": lora}, {}, seed, epochs, batch_size, learning_rate, "adamw", weight_decay,
        schedule, tuple(steps), total, False, mixed_precision, evaluation_size,
    )  # fmt: skip
    cut = {k: list(v[:evaluation_size]) for k, v in (others or {}).items()}
    identity = fingerprint({
        "recipe": recipe, "weights": dict(model.state_dict()), "pieces": list(pieces),
        "test": list(test[:evaluation_size]), "others": cut,
        "code": code_fingerprint("loop", "language_training"),
    })  # fmt: skip
    run = LanguageRun(
        lambda: _start(model, lora), tokenizer, recipe, list(pieces),
        list(test[:evaluation_size]), cut, identity, {"data": data, "part": "train"},
    )  # fmt: skip
    run._compute(progress)
    return run


def _start(model: nn.Module, lora: int) -> Trainable:
    """Return a copy of a model that is ready to be trained."""
    model = copy.deepcopy(model).requires_grad_(not lora)
    if lora:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise ImportError(
                "low-rank adapters need peft: pip install 'symgen[lora]', or train all weights "
                "with lora=0"
            ) from error
        settings = LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear",
                              task_type="CAUSAL_LM")  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            model = get_peft_model(model, settings)
    return Trainable(model)
