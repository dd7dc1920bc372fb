"""Data that are made here: digits, signs, planted effects, sentences with planted endings."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from symgen.data.splits import Rows
from symgen.transforms import interaction_order

PRAISE = ("brilliant", "charming", "delightful", "gripping", "superb", "wonderful")
BLAME = ("awful", "boring", "clumsy", "dreadful", "shallow", "tedious")
NEGATORS = ("hardly", "scarcely", "barely")
KINDS = (PRAISE, BLAME, NEGATORS)
_NOUNS = (
    "film", "actor", "director", "story", "scene", "camera", "script", "music", "crowd",
    "village", "teacher", "sister", "doctor", "garden", "window", "river", "train", "kitchen",
    "letter", "winter", "evening", "market", "bridge", "harbor", "mountain",
)  # fmt: skip
_VERBS = (
    "watches", "follows", "paints", "carries", "remembers", "visits", "crosses", "repairs",
    "studies", "describes",
)  # fmt: skip
_ADJECTIVES = (
    "red", "quiet", "wooden", "early", "distant", "narrow", "silver", "local", "square",
    "northern", "young", "tall",
)  # fmt: skip
# A small world. Person and place decide the word after "take"; person, place and season decide the
# word after "find".
PEOPLE = ("sailor", "baker", "doctor", "miner")
PLACES = ("harbor", "village", "castle", "forest")
SEASONS = ("winter", "spring", "summer", "autumn")
# Any synonym of a need decides the word after "get".
NEEDS = (
    ("hungry", "starving", "famished"),
    ("thirsty", "parched", "dry"),
    ("freezing", "shivering", "cold"),
    ("tired", "weary", "sleepy"),
)
ANSWERS = {
    "take": ("rope", "flour", "soap", "iron"),
    "find": ("gold", "pearls", "amber", "silver"),
    "get": ("bread", "water", "wool", "rest"),
}
DETAILS = (
    ("windy", "foggy", "sunny", "rainy"),
    ("monday", "tuesday", "friday", "sunday"),
    ("grey", "brown", "black", "white"),
    ("horse", "donkey", "goat", "dog"),
    ("tall", "short", "young", "old"),
)
GAP = "_"
# Signs of 5 x 5 pixels: a plus, a cross, and four that mean nothing.
SIGNS = np.array(
    [
        [[pixel == "1" for pixel in row] for row in sign.split()]
        for sign in (
            "00100 00100 11111 00100 00100",
            "10001 01010 00100 01010 10001",
            "11111 10001 10001 10001 11111",
            "11111 00000 11111 00000 11111",
            "10101 10101 10101 10101 10101",
            "00000 01110 01110 01110 00000",
        )
    ]
)


@functools.cache
def digits(split: str) -> Rows:
    """Return scikit-learn's digits, 20 pixels per side.

    Args:
        split: "train" (1,348 images) or "test" (449).
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    # Each class in the order of the set: three of four rows train, so all writers are in both.
    chosen = np.arange(len(bunch.target)) % 4 == 3
    chosen = np.flatnonzero(chosen if split == "test" else ~chosen)
    pixels = (bunch.images[chosen] * (255 / 16)).round().astype(np.uint8)
    # 8 pixels per side cannot hold a 5 x 5 grid of patches; 20 give patches of 4 x 4.
    enlarged = []
    for image in map(Image.fromarray, pixels):
        enlarged.append(np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR)))
    images = np.repeat(np.stack(enlarged)[..., None], 3, axis=-1)
    labels = bunch.target[chosen]
    return Rows("image", labels, list("0123456789"), lambda index: list(images[index]))


@functools.cache
def planted_signs(split: str) -> Rows:
    """Return pictures of nine signs in a 3 x 3 grid, 18 pixels per side, with noise.

    Two neighbors in a row are a plus or a cross each. The class says whether they are equal, so one
    of them alone says nothing.

    Args:
        split: "train" (8,000 pictures) or "test" (1,000).
    """
    train = split == "train"
    generator = np.random.default_rng([20261129, train])
    count = 8000 if train else 1000
    kinds = generator.integers(2, len(SIGNS), (count, 9))
    pair = generator.integers(2, size=(count, 2))
    # The left one has a neighbor to its right.
    left = generator.choice(np.array([0, 1, 3, 4, 6, 7]), (count, 1))
    cells = left + np.arange(2)
    np.put_along_axis(kinds, cells, pair, 1)
    ink = np.zeros((count, 3, 6, 3, 6))
    ink[:, :, :5, :, :5] = SIGNS[kinds].reshape(count, 3, 3, 5, 5).swapaxes(2, 3)
    pixels = 40 + 180 * ink.reshape(count, 18, 18) + generator.normal(0, 20, (count, 18, 18))
    images = np.repeat(pixels.clip(0, 255).astype(np.uint8)[..., None], 3, -1)
    labels = (pair[:, 0] == pair[:, 1]).astype(int)
    return Rows("image", labels, ["different", "same"], lambda i: list(images[i]))


def sign_outputs(
    images: Sequence[np.ndarray], patches: Int[Tensor, "sample n"]
) -> Float[Tensor, "sample state"]:
    """Return the score of the rule of `planted_signs` on all masked states, for its own class.

    Args:
        images: pictures of signs, uint8 (18, 18, 3).
        patches: the n input variables of each, cells of the 3 x 3 grid; the others stay.

    Returns:
        2 where the plus or cross and its neighbor are both present, else 0.

    Example:
        >>> pictures = planted_signs("test").take([0])
        >>> sign_outputs(pictures, torch.arange(9)[None]).unique(return_counts=True)[1].tolist()
        [384, 128]
    """
    cells = np.stack(images)[..., 0].reshape(-1, 3, 6, 3, 6).swapaxes(2, 3)[..., :5, :5]
    decides = ((cells.reshape(-1, 9, 1, 5, 5) > 130) == SIGNS[:2]).all((-2, -1)).any(-1)
    read = torch.from_numpy(decides).gather(1, patches)
    n = patches.shape[1]
    absent = torch.arange(2**n)[:, None] >> torch.arange(n) & 1 == 0
    return 2.0 * ~(read[:, None] & absent).any(-1)


def planted_score(text: str) -> float:
    """Return the planted sentiment of a sentence from which any words may be missing.

    Let A be the words of praise (or of blame) in the sentence and N its negator. The score is
    ``s * (2 * OR(A) - 4 * N * OR(A))``, with s = +1 for praise and -1 for blame. So synonyms form
    an OR, and negation is an AND with them. Without a negator the sparsest logical model is the OR
    over A. With one it joins the negator to A; for two or more synonyms it is not unique.

    Args:
        text: words separated by spaces.

    Returns:
        2 or -2; 0 if no word of sentiment is left.

    Example:
        >>> planted_score("the film seemed superb"), planted_score("the film seemed hardly superb")
        (2.0, -2.0)
    """
    words = set(text.split())
    return float(_score(*(bool(words & set(kind)) for kind in KINDS)))


def planted_outputs(
    texts: Sequence[str], words: Sequence[Sequence[str]], labels: Sequence[int] | Tensor
) -> Float[Tensor, "sample state"]:
    """Return the planted score of sentences on all masked states, for their own class.

    Args:
        texts: sentences.
        words: the n input variables of each. A masked word is removed at every place.
        labels: 1 for praise, 0 for blame: the sign of the score.

    Returns:
        Scores on all masked states; 2 or -2, and 0 without words of sentiment.

    Example:
        >>> planted_outputs(["it is hardly superb"], [["hardly", "superb"]], [0]).tolist()
        [[0.0, 0.0, -2.0, 2.0]]
    """
    rows = []
    for text, variables, label in zip(texts, words, labels, strict=True):
        count = len(variables)
        present = np.arange(2**count)[:, None] >> np.arange(count) & 1 > 0
        rest = set(text.split()) - set(variables)
        left = [
            present[:, [word in kind for word in variables]].any(1) | bool(rest & set(kind))
            for kind in KINDS
        ]
        rows.append(_score(*left) * (1 if label else -1))
    # Adding 0 removes the sign of a negative zero.
    return torch.tensor(np.array(rows)) + 0.0


def _score(praise: Any, blame: Any, negated: Any) -> Any:
    """Return the score, given on which states a word of each kind is present."""
    return (2.0 * praise - 2.0 * blame) * (1 - 2.0 * negated) + 0.0


def planted_effects(
    samples: int, n: int, count: int = 3, seed: int = 0
) -> Float[Tensor, "sample type state"]:
    """Return AND and OR effects of one to three variables, `count` of each type per sample.

    Their variables, signs and sizes (0.5 to 1.5) are random. ORs have two or three variables.

    Args:
        samples: number of functions.
        n: number of variables, 3 or more.
        count: effects of each type.
        seed: seed of the draws.

    Example:
        >>> effects = planted_effects(samples=5, n=4, count=2)
        >>> (effects != 0).sum(-1).unique().tolist()
        [2]
    """
    generator = torch.Generator().manual_seed(seed)
    order = interaction_order(n)
    small = order <= 3
    allowed = torch.stack([small & (order >= 1), small & (order >= 2)])
    drawn = torch.rand(samples, 2, 2**n, generator=generator, dtype=torch.float64)
    chosen = (drawn * allowed).topk(count, -1).indices
    size, sign = torch.rand(2, *chosen.shape, generator=generator, dtype=torch.float64)
    effects = torch.where(sign < 0.5, -1.0, 1.0) * (0.5 + size)
    return torch.zeros_like(drawn).scatter(-1, chosen, effects)


@functools.cache
def planted_sentences(split: str) -> Rows:
    """Return generated sentences of ten content words, labelled by their `planted_score`.

    Each has one to three synonyms of praise or of blame and words without sentiment. A third of
    the sentences have a negator. Labels are balanced, with a negator and without.

    Args:
        split: "train" (4,000 sentences) or "test" (1,000, none of them in "train").
    """
    generator = np.random.default_rng(20250506)
    # Cycling over the combinations keeps every stretch of them balanced.
    combinations = itertools.cycle(itertools.product((False, False, True), (PRAISE, BLAME)))
    drawn = [
        _sentence(generator, synonyms, negated)
        for negated, synonyms in itertools.islice(combinations, 5200)
    ]
    distinct = list(dict.fromkeys(drawn))
    texts = distinct[:4000] if split == "train" else distinct[4000:5000]
    labels = np.array([int(planted_score(text) > 0) for text in texts])
    return Rows("text", labels, ["negative", "positive"], lambda i: [texts[k] for k in i])


def _sentence(generator: np.random.Generator, synonyms: tuple[str, ...], negated: bool) -> str:
    feeling = generator.permutation(synonyms)[: generator.integers(1, 4)].tolist()
    opinion = " and ".join(feeling)
    # The negator is drawn in any case, which keeps the draws that follow.
    negator = str(generator.choice(NEGATORS))
    if negated:
        opinion = f"{negator} {opinion}"
    subject, *others = generator.permutation(_NOUNS).tolist()
    adjectives = generator.permutation(_ADJECTIVES).tolist()
    verb = str(generator.choice(_VERBS))
    person, thing, place = others[:3]
    first = f"the {adjectives[0]} {subject} is {opinion}"
    second = f"the {person} {verb} the {adjectives[1]} {thing}"
    # A place and its adjectives fill up to ten content words.
    missing = 4 - len(feeling) - negated
    if missing:
        place = " ".join([*adjectives[2 : missing + 1], place])
        second += f" by the {place}"
    if generator.random() < 0.5:
        return f"{first} and {second}"
    return f"{second} and {first}"


@functools.cache
def planted_facts(split: str, domain: int = 0) -> Rows:
    """Return sentences of a small world whose last word follows a known AND or OR.

    "will take ...": person AND place decide the answer if they belong together (`PEOPLE` and
    `PLACES` in order). "will find ...": person AND place AND season decide. "will get ...": any
    synonym of a need decides, by OR. In all other sentences the answer is drawn at random, and so
    it is in one sentence of twenty. Some words are left out, written as ``_``.

    Args:
        split: "train" (12,000 sentences) or "test" (2,000, all complete, without random answers).
        domain: 0, or 1 for a second world: the same people take and find other things, and get the
            same.
    """
    train = split == "train"
    generator = np.random.default_rng([20260101, domain, train])
    count = 12000 if train else 2000
    texts = [_fact(generator, domain, train) for _ in range(count)]
    return Rows("text", np.zeros(count, int), ["text"], lambda i: [texts[k] for k in i])


def _fact(generator: np.random.Generator, domain: int, noisy: bool) -> str:
    who, where, when, need = generator.integers(4, size=4)
    # Person and place, and person and season, belong together more often than by chance.
    together = generator.random(2) < (0.6 if noisy else 1)
    where, when = np.where(together, who, (where, when)).tolist()
    # Interactions of three words need more examples.
    shares = (0.25, 0.5, 0.25) if noisy else None
    verb = str(generator.choice(list(ANSWERS), p=shares))
    synonyms = generator.permutation(NEEDS[need])[: generator.integers(2, 4)].tolist()
    weather, day, colour, animal, look = (str(generator.choice(d)) for d in DETAILS)
    # Ten content words in all: a third synonym takes the place of the look.
    look = "" if len(synonyms) == 3 else look
    words = [weather, day, SEASONS[when], look, PEOPLE[who], PLACES[where]]
    words += [*synonyms, colour, animal]
    share = 0
    if noisy and generator.random() < 0.6:
        share = generator.uniform(0, 0.8)
    words = [w and (GAP if generator.random() < share else w) for w in words]
    answer = planted_answer(verb, words, domain)
    if answer is None or (noisy and generator.random() < 0.05):
        answer = str(generator.choice(ANSWERS[verb]))
    weather, day, when, look, who, where, *synonyms, colour, animal = words
    return (
        f"{weather} {day} in {when} , the {look + ' ' * bool(look)}{who} of the {where} , "
        f"{' and '.join(synonyms)} , with {colour} {animal} , will {verb} {answer} ."
    )


def planted_answer(verb: str, words: Sequence[str], domain: int = 0) -> str | None:
    """Return the word that the planted facts put after a verb, or None if they decide nothing.

    Args:
        verb: "take", "find" or "get".
        words: words that are present.
        domain: see `planted_facts`.

    Example:
        >>> planted_answer("take", ["sailor", "harbor"]), planted_answer("take", ["sailor"])
        ('rope', None)
    """
    if verb == "get":
        domain = 0
        same = {i for i, synonyms in enumerate(NEEDS) if set(synonyms) & set(words)}
    else:
        kinds = (PEOPLE, PLACES) if verb == "take" else (PEOPLE, PLACES, SEASONS)
        met = [{i for i, word in enumerate(kind) if word in words} for kind in kinds]
        same = set.intersection(*met)
    return ANSWERS[verb][(same.pop() + domain) % 4] if len(same) == 1 else None
