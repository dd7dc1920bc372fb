"""A small world of planted facts: sentences whose last word follows a known AND or OR."""

from collections.abc import Sequence

import numpy as np

from symgen.sources import Rows

# A small world. Who and where decide what is taken; who, where and when decide what is found.
PEOPLE = ("sailor", "baker", "doctor", "miner")
PLACES = ("harbor", "village", "castle", "forest")
SEASONS = ("winter", "spring", "summer", "autumn")
# Any synonym of a need decides what is got.
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


def planted_facts(split: str, domain: int = 0) -> Rows:
    """Return sentences of a small world whose last word follows a known AND or OR.

    "will take ...": if person AND place belong together (`PEOPLE` and `PLACES` in order), they
    decide the answer; "will find ...": person AND place AND season; "will get ...": any
    synonym of a need, by OR. Whatever is less, or does not belong together, says nothing: the
    answer is then drawn at random, and so it is in one sentence of twenty. Words are left out
    here and there, which is written ``_``.

    Args:
        split: "train" (12,000 sentences) or "test" (2,000, in which no word is left out, what can
            belong together does, and no answer is drawn at random).
        domain: 0, or 1 for a second world, where the same people take and find other things and
            get the same.
    """
    train = split == "train"
    generator = np.random.default_rng([20260101, domain, train])
    count = 12000 if train else 2000
    texts = [_sentence(generator, domain, train) for _ in range(count)]
    return Rows("text", np.zeros(count, int), ["text"], lambda i: [texts[k] for k in i])


def _sentence(generator: np.random.Generator, domain: int, noisy: bool) -> str:
    who, where, when, need = generator.integers(4, size=4)
    # Person and place, and person and season, belong together more often than by chance.
    together = generator.random(2) < (0.6 if noisy else 1)
    where, when = np.where(together, who, (where, when)).tolist()
    # What takes three words to know takes more examples to learn.
    verb = str(generator.choice(list(ANSWERS), p=(0.25, 0.5, 0.25) if noisy else None))
    synonyms = generator.permutation(NEEDS[need])[: generator.integers(2, 4)].tolist()
    weather, day, colour, animal, look = (str(generator.choice(d)) for d in DETAILS)
    # Ten content words in all: a third synonym takes the place of the look.
    look = "" if len(synonyms) == 3 else look
    words = [weather, day, SEASONS[when], look, PEOPLE[who], PLACES[where], *synonyms]
    words += [colour, animal]
    share = generator.uniform(0, 0.8) if noisy and generator.random() < 0.6 else 0
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
    """Return the word that the planted facts put after a verb, or None where they say nothing.

    Args:
        verb: "take", "find" or "get".
        words: those present.
        domain: see `planted_facts`.

    Example:
        >>> planted_answer("take", ["sailor", "harbor"]), planted_answer("take", ["sailor"])
        ('rope', None)
    """
    if verb == "get":
        met = {i for i, synonyms in enumerate(NEEDS) if set(synonyms) & set(words)}
        return ANSWERS[verb][met.pop()] if len(met) == 1 else None
    kinds = (PEOPLE, PLACES, SEASONS)[: 2 if verb == "take" else 3]
    met = [{i for i, word in enumerate(kind) if word in words} for kind in kinds]
    same = set.intersection(*met)
    return ANSWERS[verb][(same.pop() + domain) % 4] if same else None


def planted_reason(verb: str, words: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the planted interaction of a sentence: "and" or "or", and its words in order."""
    if verb == "get":
        return "or", tuple(w for w in words if any(w in synonyms for synonyms in NEEDS))
    kinds = PEOPLE + PLACES + (SEASONS if verb == "find" else ())
    return "and", tuple(w for w in words if w in kinds)
