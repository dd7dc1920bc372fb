"""Stand-ins for what a reader brings along: pictures, a classifier, a language model, in folders.

Nothing in these folders was written by this package's own means of storing: pictures lie in a
subfolder for each class, models as `save_pretrained` of `transformers` leaves them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from symgen.data.hub import import_transformers
from symgen.data.planted import planted_facts, planted_score, planted_sentences
from symgen.data.texts import MASKED, train_tokenizer
from symgen.masking.hooks import call, logits_of
from symgen.models.language import open_language_model

# Pixels a side of the pictures, and times of a series.
SIDE, TIMES = 24, 120


def fit(
    network: nn.Module, batches: Iterable[tuple[Any, Tensor]], epochs: int = 3, rate: float = 1e-3
) -> nn.Module:
    """Train a classifier in place by the plainest of loops, and return it in eval mode.

    Args:
        network: that gives logits (sample, class).
        batches: of inputs (a tensor, or a mapping of tensors) and classes (sample,), gone through
            once an epoch.
        epochs: 0 or more.
        rate: of Adam.

    Example:
        >>> x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
        >>> fit(nn.Linear(1, 2), [(x, y)], epochs=100, rate=0.1)(x).argmax(1).tolist()
        [0, 1]
    """
    optimizer = torch.optim.Adam(network.parameters(), rate)
    network.train()
    for _ in range(epochs):
        for x, y in batches:
            loss = nn.functional.cross_entropy(logits_of(call(network, x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def write_pictures(folder: Path, count: int = 300) -> Path:
    """Write the first of scikit-learn's digits as PNG files, a subfolder for each class.

    Args:
        folder: to make.
        count: number of pictures, up to 1,797.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits().images, load_digits().target
    for i, (pixels, label) in enumerate(zip(images[:count], labels[:count], strict=True)):
        path = folder / f"digit {label}" / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((pixels * (255 / 16)).round().astype("uint8"))
        picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(path)
    return folder


def write_classifier(folder: Path, epochs: int = 3, seed: int = 0) -> Path:
    """Train a tiny BERT on sentences with a planted sentiment and save it with its tokenizer.

    Args:
        folder: to write into.
        epochs: passes over 1,200 sentences.
        seed: of the weights.
    """
    transformers = import_transformers()
    rows = planted_sentences("train")
    texts = rows.take(range(1200))
    tokenizer = train_tokenizer(texts, special=MASKED)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=2,
        hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        model = transformers.BertForSequenceClassification(config)
        batches = [
            (
                dict(tokenizer(texts[i : i + 20], padding=True, return_tensors="pt")),
                torch.tensor([int(planted_score(text) > 0) for text in texts[i : i + 20]]),
            )
            for i in range(0, len(texts), 20)
        ]
        fit(model, batches, epochs, rate=2e-3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_language_model(folder: Path, epochs: int = 3, seed: int = 0) -> Path:
    """Train a tiny Llama on sentences with planted facts and save it with its tokenizer.

    Args:
        folder: to write into.
        epochs: passes over 2,000 sentences.
        seed: of the weights.
    """
    texts = planted_facts("train").take(range(2000))
    made = open_language_model(
        "tiny-llama", texts, texts[:20], words=200, length=64, tail=2, epochs=epochs,
        learning_rate=4e-3, seed=seed, progress=False,
    )  # fmt: skip
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def planted_series(
    count: int, seed: int = 0
) -> tuple[Float[Tensor, "sample 1 time"], Int[Tensor, " sample"]]:
    """Return noisy series of 120 times, of class 1 where a bump is followed by a burst.

    The bump lies in the first third, the burst, a fast oscillation, in the last. Half of the series
    have both; of the others a third have the bump, a third the burst, a third neither.

    Args:
        count: number of series.
        seed: of the draws.

    Example:
        >>> x, y = planted_series(6)
        >>> x.shape, y.tolist()
        (torch.Size([6, 1, 120]), [1, 0, 1, 0, 1, 0])
    """
    generator = torch.Generator().manual_seed(seed)
    kind = torch.arange(count)
    both = kind % 2 == 0
    bump, burst = both | (kind % 6 == 1), both | (kind % 6 == 3)
    time = torch.arange(TIMES)
    begin = torch.randint(5, 15, (2, count, 1), generator=generator)
    x = 0.3 * torch.randn(count, TIMES, generator=generator)
    first = torch.exp(-(((time - begin[0] - 10) / 5) ** 2))
    last = torch.exp(-(((time - begin[1] - 90) / 5) ** 2)) * torch.sin(2.0 * time)
    x += 2 * bump[:, None] * first + 2 * burst[:, None] * last
    return x[:, None], both.long()
