"""Prompts drawn from texts, cut before a word that language models expect."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from symgen.masking.prompts import Prompt, content_spans, first_probability, target_tokens
from symgen.masking.variables import WORD, check_texts, word_spans

SENTENCE = re.compile(r"(?<=[.!?])\s+")
# Of a long text, only this many characters are used.
CHARACTERS = 4000
# Places tried per text.
PLACES = 6


def draw_prompts(
    texts: Sequence,
    models: Sequence[tuple[nn.Module, Any]],
    samples: int = 20,
    n: int = 10,
    probability: float = 0.1,
    tokenizers: Sequence[Any] = (),
    words: int = 60,
    seed: int = 0,
) -> list[Prompt]:
    """Draw prompts: texts cut before a content word that the models expect (App. F, O).

    At most one prompt per text. It begins with a sentence, has at least n content words and at most
    `words` words. n of its content words are drawn as variables.

    Args:
        texts: texts to draw from, in random order.
        models: language models with tokenizers; the mean of their probabilities counts.
        samples: number of prompts.
        n: number of variables.
        probability: smallest probability of the target's first token. If no text has such a target,
            as for a model that has learned little, those with the likeliest targets are used, with
            a warning.
        tokenizers: tokenizers of further models; prompts whose variables or target they cut are
            left out.
        words: largest number of words per prompt, including function words.
        seed: seed of the draws.

    Returns:
        `samples` prompts, or as many as there are.

    Raises:
        ValueError: if there is none.
    """
    check_texts(texts)
    generator = np.random.default_rng([seed, 7])
    everyone = [*(tokenizer for _, tokenizer in models), *tokenizers]
    prompts: list[Prompt] = []
    unlikely: list[tuple[float, Prompt]] = []
    for index in generator.permutation(len(texts)).tolist():
        best = None
        for prompt in _candidates(texts[index][:CHARACTERS], n, words, generator):
            if not all(_fits(prompt, tokenizer) for tokenizer in everyone):
                continue
            chance = sum(first_probability(m, t, prompt) for m, t in models) / len(models)
            best = max(best or (chance, prompt), (chance, prompt), key=lambda pair: pair[0])
            if chance >= probability:
                prompts.append(prompt)
                break
        else:
            unlikely += [best] if best else []
        if len(prompts) == samples:
            break
    if not prompts and not unlikely:
        raise ValueError(
            f"none of {len(texts)} texts gives a prompt with n = {n} content words and a target "
            "that all tokenizers separate from it; lower n, or give longer texts"
        )
    if not prompts:
        unlikely.sort(key=lambda pair: -pair[0])
        warnings.warn(
            f"none of {len(texts)} texts has a target of probability >= {probability}; the "
            f"likeliest are used, up to {unlikely[0][0]:.2g}. Lower probability, or train the "
            "model longer",
            stacklevel=2,
        )
        prompts = [prompt for _, prompt in unlikely[:samples]]
    return prompts


def _candidates(text: str, n: int, words: int, generator: np.random.Generator) -> list[Prompt]:
    """Return some places where a text can be cut, each as the prompt before it, in random order."""
    starts = [0, *(match.end() for match in SENTENCE.finditer(text))]
    content, begins = content_spans(text), [match.start() for match in WORD.finditer(text)]
    places = []
    for number, (at, end) in enumerate(content):
        if number < n or text[at - 1 : at] != " ":
            continue
        # The latest sentence that begins before enough content words.
        begin = max((s for s in starts if s <= content[number - n][0]), default=0)
        if sum(begin <= s < at for s in begins) <= words:
            places.append((begin, at, end))
    prompts = []
    for begin, at, end in [places[i] for i in generator.permutation(len(places))[:PLACES]]:
        usable = [(a - begin, b - begin) for a, b in content if begin <= a < at]
        chosen = sorted(generator.permutation(len(usable))[:n].tolist())
        before = text[begin : at - 1].rstrip()
        spans = tuple(usable[i] for i in chosen)
        prompts.append(Prompt(before, text[at - 1 : end], spans))
    return prompts


def _fits(prompt: Prompt, tokenizer: Any) -> bool:
    """Return whether a tokenizer separates the target and all variables."""
    try:
        target_tokens(prompt, tokenizer)
        word_spans(prompt.text, prompt.spans, tokenizer)
    except ValueError:
        return False
    return True
