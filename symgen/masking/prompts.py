"""Prompts of language models: drawn from texts or one's own, the next token as target."""

import dataclasses
import math
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from symgen.fingerprints import refusal
from symgen.literal import plain
from symgen.masking.hooks import Inputs, only_logits_at
from symgen.masking.mask_values import refuse_unknown_tokens
from symgen.masking.spans import (
    TextVariables,
    check_texts,
    phrase_spans,
    token_offsets,
    word_spans,
    words_of,
)
from symgen.masking.states import evaluating
from symgen.memory import device_of

SENTENCE = re.compile(r"(?<=[.!?])\s+")


class UnlikelyTargetWarning(UserWarning):
    """No text has a target that is likely enough; the likeliest ones are taken."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt, the text that follows it, and its input variables as character spans.

    Attributes:
        text: of the prompt.
        target: what follows, with the space before it where there is one, such as ``" year"``.
        spans: (start, end) characters of each variable; see `word_spans`.
    """

    text: str
    target: str
    spans: tuple[tuple[int, int], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The variables' texts."""
        return tuple(self.text[start:end] for start, end in self.spans)

    @property
    def labels(self) -> tuple[str, ...]:
        """The same, with a number where a word comes again."""
        words = self.words
        again = [words[:i].count(word) + 1 for i, word in enumerate(words)]
        return tuple(w if k == 1 else f"{w} ({k})" for w, k in zip(words, again, strict=True))

    def _repr_html_(self) -> str:
        """Return the prompt, its variables in bold, and what follows; inert, as `plain` has it."""
        shown, at = "", 0
        for start, end in sorted(self.spans):
            shown += f"{plain(self.text[at:start])}<strong>{plain(self.text[start:end])}</strong>"
            at = end
        return f"<p>{shown}{plain(self.text[at:])} → <em>{plain(self.target.strip())}</em></p>"

    @classmethod
    def of(
        cls, text: str, target: str, phrases: Sequence[str] | None = None, n: int | None = None
    ) -> "Prompt":
        """Return a prompt of one's own.

        Args:
            text: of the prompt.
            target: what may follow; a space before it belongs to it.
            phrases: words or phrases that become the variables, in the order of the text; by
                default the last n content words.
            n: number of variables where no phrases are given; all content words without.

        Raises:
            ValueError: for an empty prompt or target, a phrase that is not in the text, or fewer
                content words than n.

        Warns:
            UserWarning: for a target that goes on with the prompt's last word.

        Example:
            >>> Prompt.of("The earth revolves around the sun for one", " year", n=3).words
            ('earth', 'revolves', 'sun')
        """
        if not text.strip() or not target.strip():
            raise ValueError(f"a prompt and a target need text; got {text!r} and {target!r}")
        _warn_of_joined(text, target)
        if phrases:
            return cls(text, target, tuple(phrase_spans(text, phrases)))
        spans = [span for span, content in _words(text) if content]
        if len(spans) < (n or 1):
            found = ", ".join(text[a:b] for a, b in spans) or "none"
            raise ValueError(
                f"the prompt {text!r} has {len(spans)} content words ({found}), fewer than n = "
                f"{n or 1} variables; give a longer prompt, n <= {len(spans)}, or the phrases"
            )
        return cls(text, target, tuple(spans[-n:] if n else spans))


@refusal
def _warn_of_joined(text: str, target: str) -> None:
    # Letters that come in two cases are those of scripts that put spaces between words.
    if all(end.lower() != end.upper() for end in (text[-1], target[0])):
        joined = f"{text.split()[-1]}{target.split()[0]}"
        warnings.warn(
            f"the target {target!r} has no space before it, so that it goes on with the prompt's "
            f"last word, as in {joined!r}; for a word of its own give {f' {target}'!r}",
            UserWarning,
            stacklevel=3,
        )


def _words(text: str) -> list[tuple[tuple[int, int], bool]]:
    """Return the span of every word, and whether it is a content word of two letters or more."""
    return [(span, counts and span[1] - span[0] > 1) for span, counts in words_of(text)]


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

    At most one prompt a text. It begins with a sentence, has at least n content words and at most
    `words` words, and n of its content words are drawn as its variables.

    Args:
        texts: to draw from, in random order.
        models: with their tokenizers; the mean of their probabilities counts.
        samples: number of prompts.
        n: number of variables.
        probability: of the target's first token, at least; where no text has such a target, as
            with a model that has learned little, those with the likeliest are taken, and an
            `UnlikelyTargetWarning` says so.
        tokenizers: of further models; prompts whose variables or target they cut are left out.
        words: of a prompt at most, function words included.
        seed: of the draws.

    Returns:
        `samples` prompts, or as many as there are.

    Raises:
        ValueError: when there is none, with the reasons counted, or a row has no text.
    """
    check_texts(texts)
    generator = np.random.default_rng([seed, 7])
    found: list[Prompt] = []
    unlikely: list[tuple[float, Prompt]] = []
    lacking = {"enough content words": 0, "a target that all tokenizers cut off": 0}
    for index in generator.permutation(len(texts)).tolist():
        candidates = _candidates(texts[index], n, words, generator)
        likely = _first_likely(candidates, models, tokenizers, probability)
        lacking["enough content words"] += not candidates
        lacking["a target that all tokenizers cut off"] += bool(candidates and not likely)
        if likely and likely[0] >= probability:
            found.append(likely[1])
        elif likely:
            unlikely.append(likely)
        if len(found) == samples:
            break
    if not found and not unlikely:
        told = ", ".join(f"{count} lack {what}" for what, count in lacking.items())
        raise ValueError(
            f"no prompt with n = {n} variables in {len(texts)} texts ({told}); lower n, or give "
            "longer texts"
        )
    if not found:
        unlikely.sort(key=lambda pair: -pair[0])
        warnings.warn(
            f"none of {len(texts)} texts has a target of probability >= {probability}; the "
            f"likeliest ones are taken, up to {unlikely[0][0]:.2g}. Lower probability, or train "
            "the model longer",
            UnlikelyTargetWarning,
            stacklevel=2,
        )
        found = [prompt for _, prompt in unlikely[:samples]]
    return found


def _candidates(
    text: str, n: int, words: int, generator: np.random.Generator, count: int = 6
) -> list[Prompt]:
    """Return some places where a text can be cut, each the prompt before it, in random order."""
    text = text[:4000]
    starts = [0, *(m.end() for m in SENTENCE.finditer(text))]
    spans = _words(text)
    places = []
    for number, ((at, end), content) in enumerate(spans):
        before = [i for i in range(number) if spans[i][1]]
        if not content or len(before) < n or text[at - 1 : at] != " ":
            continue
        # The latest sentence from whose beginning on there are enough words.
        begin = max((s for s in starts if s <= spans[before[-n]][0][0]), default=0)
        if sum(begin <= s < at for (s, _), _ in spans) <= words:
            places.append((begin, at, end))
    found = []
    for begin, at, end in [places[i] for i in generator.permutation(len(places))[:count]]:
        usable = [(a - begin, b - begin) for (a, b), c in spans if c and begin <= a < at]
        drawn = sorted(generator.permutation(len(usable))[:n].tolist())
        prompt = text[begin : at - 1].rstrip()
        found.append(Prompt(prompt, text[at - 1 : end], tuple(usable[i] for i in drawn)))
    return found


def _first_likely(
    candidates: Sequence[Prompt], models: Any, tokenizers: Sequence[Any], least: float
) -> tuple[float, Prompt] | None:
    """Return the first prompt that is likely enough, or the likeliest, with its probability."""
    best = None
    for prompt in candidates:
        try:
            for tokenizer in [*(t for _, t in models), *tokenizers]:
                target_tokens(prompt, tokenizer)
                word_spans(prompt.text, prompt.spans, tokenizer)
        except ValueError:
            continue
        likely = sum(first_probability(model, t, prompt) for model, t in models) / len(models)
        if best is None or likely > best[0]:
            best = likely, prompt
        if likely >= least:
            return best
    return best


@torch.inference_mode()
def first_probability(model: nn.Module, tokenizer: Any, prompt: Prompt) -> float:
    """Return the probability that a model gives the first token of a prompt's target."""
    ids, target = target_tokens(prompt, tokenizer)
    refuse_unknown_tokens(model, torch.cat([ids, torch.tensor(target)]))
    with evaluating(model):
        kept = only_logits_at(model, 1)
        logits = model(input_ids=ids[None].to(device_of(model)), **kept).logits[0, -1]
    probability = float(logits.float().softmax(-1)[target[0]])
    if math.isnan(probability):
        raise FloatingPointError(
            f"{type(model).__name__} returns logits that are NaN or infinite after the prompt "
            f"{prompt.text[-30:]!r}; look for such numbers in its weights, or use a wider dtype"
        )
    return probability


def target_tokens(prompt: Prompt, tokenizer: Any) -> tuple[Int[Tensor, " position"], list[int]]:
    """Return the token ids of a prompt and those of its target, as the tokenizer joins them.

    Prompt and target are encoded together, so that a leading space ends up where the model is used
    to it: in the piece (" year"), or in none. A piece that is that space alone, as before digits
    or rare words ("▁", "5"), says nothing of the target and is given with the prompt. Rare
    characters may be several byte pieces.

    Raises:
        ValueError: when the tokenizer ends every text with a special token, or merges the end of
            the prompt with the target.
    """
    text = prompt.text + prompt.target
    ids, joint = (tokenizer(part)["input_ids"] for part in (prompt.text, text))
    if ids and ids[-1] in (getattr(tokenizer, "all_special_ids", None) or []) and len(ids) > 1:
        raise ValueError(
            f"the tokenizer ends a text with {tokenizer.convert_ids_to_tokens(ids[-1])!r}, after "
            "which nothing follows; load one for text generation (without an end token)"
        )
    if joint[: len(ids)] != ids or len(joint) == len(ids):
        pieces = tokenizer.convert_ids_to_tokens(joint)[-6:]
        raise ValueError(
            f"the tokenizer joins the prompt's end {prompt.text[-12:]!r} with the target "
            f"{prompt.target!r} (last pieces: {pieces}); end the prompt without a space, and begin "
            'the target with it, as in "... for one" and " year"'
        )
    pieces = token_offsets(text, tokenizer)[len(ids) :]
    spaces = [not text[start:end].strip(" ") for start, end in pieces]
    begin = len(ids) + (spaces.index(False) if False in spaces else 0)
    return torch.tensor(joint[:begin]), joint[begin:]


def prompt_inputs(
    prompts: Sequence[Prompt], tokenizer: Any, whole: bool = False
) -> tuple[Inputs, TextVariables]:
    """Return prompts as a language model takes them, and their variables.

    Args:
        prompts: each with as many variables.
        tokenizer: of the model, a fast one.
        whole: take the whole target, instead of its first token.

    Raises:
        ValueError: for no prompt, or one that does not fit the tokenizer.
    """
    if not prompts:
        raise ValueError("prompts is empty; give one or more, such as those of draw_prompts")
    pairs = [target_tokens(prompt, tokenizer) for prompt in prompts]
    variables = [word_spans(p.text, p.spans, tokenizer) for p in prompts]
    # A space that is given with the prompt is a token more than the variables know of.
    stacked = TextVariables.stack(TextVariables(x.groups, x.words) for x in variables)
    targets = [follow if whole else follow[:1] for _, follow in pairs]
    return Inputs([ids for ids, _ in pairs], targets), stacked
