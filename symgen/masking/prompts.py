"""Prompts of language models: a text, the text that follows it, and variables in between."""

import dataclasses
import html
import operator
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from symgen.device import device_of
from symgen.masking.hooks import evaluating, unwrapped
from symgen.masking.texts import check_tokens, options_of
from symgen.masking.variables import TextVariables, word_spans
from symgen.masking.words import check_texts, phrase_spans, token_offsets, words_of

SENTENCE = re.compile(r"(?<=[.!?])\s+")
# Of a long text, only this many characters are used.
CHARACTERS = 4000
# Places tried per text.
PLACES = 6


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt, the text that follows it, and its input variables as character spans.

    Attributes:
        text: text of the prompt.
        target: the text that follows, with the space before it if there is one: ``" year"``.
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
        """The variables' texts, numbered if a word occurs again."""
        labels = []
        for i, word in enumerate(self.words):
            count = self.words[:i].count(word) + 1
            labels.append(word if count == 1 else f"{word} ({count})")
        return tuple(labels)

    def _repr_html_(self) -> str:
        """Return the prompt with its variables in bold, and the target; all text is escaped."""
        parts = []
        at = 0
        for start, end in sorted(self.spans):
            parts.append(html.escape(self.text[at:start]))
            parts.append(f"<strong>{html.escape(self.text[start:end])}</strong>")
            at = end
        rest = html.escape(self.text[at:])
        target = html.escape(self.target.strip())
        return f"<p>{''.join(parts)}{rest} → <em>{target}</em></p>"

    @classmethod
    def of(
        cls, text: str, target: str, phrases: Sequence[str] | None = None, n: int | None = None
    ) -> "Prompt":
        """Return a prompt of your own.

        Args:
            text: text of the prompt.
            target: the text that may follow, including a space before it.
            phrases: words or phrases that become the variables, in the order of the text; by
                default the last n content words.
            n: number of variables if no phrases are given; by default all content words.

        Raises:
            ValueError: for an empty prompt or target, a phrase that is not in the text, or fewer
                content words than n.

        Example:
            >>> Prompt.of("The earth revolves around the sun for one", " year", n=3).words
            ('earth', 'revolves', 'sun')
        """
        if not text.strip() or not target.strip():
            raise ValueError(f"a prompt and a target need text; got {text!r} and {target!r}")
        if phrases:
            return cls(text, target, tuple(phrase_spans(text, phrases)))
        spans = content_spans(text)
        if len(spans) < (n or 1):
            words = ", ".join(text[a:b] for a, b in spans) or "none"
            raise ValueError(
                f"the prompt {text!r} has {len(spans)} content words ({words}), but n = {n or 1}; "
                f"give a longer prompt, n <= {len(spans)}, or the phrases"
            )
        return cls(text, target, tuple(spans[-n:] if n else spans))


def content_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the content words of two letters or more."""
    return [(a, b) for (a, b), is_content in words_of(text) if is_content and b - a > 1]


@torch.inference_mode()
def first_probability(model: nn.Module, tokenizer: Any, prompt: Prompt) -> float:
    """Return the probability that a model gives to the first token of a prompt's target.

    Raises:
        ValueError: see `target_tokens` and `check_tokens`.
    """
    model = unwrapped(model)
    ids, target = target_tokens(prompt, tokenizer)
    check_tokens(model, [torch.cat([ids, torch.tensor(target)])])
    with evaluating(model):
        output = model(input_ids=ids[None].to(device_of(model)), **options_of(model))
    return float(output.logits[0, -1].float().softmax(-1)[target[0]])


def target_tokens(prompt: Prompt, tokenizer: Any) -> tuple[Int[Tensor, " position"], list[int]]:
    """Return the token ids of a prompt and of its target.

    Both are encoded together, so that a leading space ends up in the piece that the model expects
    (" year"). A piece that is a space alone, as before digits ("▁", "5"), is added to the prompt.

    Raises:
        ValueError: if the tokenizer ends every text with a special token, or merges the end of
            the prompt with the target.
    """
    text = prompt.text + prompt.target
    ids, joint = (tokenizer(part)["input_ids"] for part in (prompt.text, text))
    if joint[: len(ids)] != ids or len(joint) == len(ids):
        pieces = tokenizer.convert_ids_to_tokens(joint)[-6:]
        raise ValueError(
            f"the tokenizer joins the prompt's end {prompt.text[-12:]!r} with the target "
            f"{prompt.target!r}, or ends texts with a special token (last pieces: {pieces}). The "
            'space between them belongs to the target, as in "for one" and " year"'
        )
    pieces = token_offsets(text, tokenizer)[len(ids) :]
    spaces = [not text[start:end].strip(" ") for start, end in pieces]
    begin = len(ids) + (spaces.index(False) if False in spaces else 0)
    return torch.tensor(joint[:begin]), joint[begin:]


def prompt_inputs(
    prompts: Sequence[Prompt], tokenizer: Any, whole: bool = False
) -> tuple[list[Int[Tensor, " position"]], list[list[int]], TextVariables]:
    """Return the token ids of prompts, of their targets, and the variables: for `masked_outputs`.

    Args:
        prompts: all with the same number of variables.
        tokenizer: fast tokenizer of the model.
        whole: take the whole target, not only its first token.

    Raises:
        ValueError: without prompts, or for a prompt that does not fit the tokenizer.
    """
    if not prompts or not all(isinstance(prompt, Prompt) for prompt in prompts):
        raise ValueError("prompts must be a list of one or more symgen.Prompt")
    pairs = [target_tokens(prompt, tokenizer) for prompt in prompts]
    variables = [word_spans(p.text, p.spans, tokenizer) for p in prompts]
    # A space that is added to the prompt makes it longer than its variables expect.
    stacked = TextVariables.stack(TextVariables(x.groups, x.words) for x in variables)
    targets = [follow if whole else follow[:1] for _, follow in pairs]
    return [ids for ids, _ in pairs], targets, stacked


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
    chance = operator.itemgetter(0)
    likely = []
    unlikely = []
    for index in generator.permutation(len(texts)).tolist():
        rated = []
        for prompt in _candidates(texts[index][:CHARACTERS], n, words, generator):
            if all(_fits(prompt, tokenizer) for tokenizer in everyone):
                p = sum(first_probability(m, t, prompt) for m, t in models) / len(models)
                rated.append((p, prompt))
                if p >= probability:
                    break
        if rated:
            best = max(rated, key=chance)
            (likely if best[0] >= probability else unlikely).append(best)
        if len(likely) == samples:
            break
    if not likely and not unlikely:
        raise ValueError(
            f"none of {len(texts)} texts gives a prompt with n = {n} content words and a target "
            "that all tokenizers separate from it; lower n, or give longer texts"
        )
    if not likely:
        likely = sorted(unlikely, key=chance, reverse=True)[:samples]
        warnings.warn(
            f"none of {len(texts)} texts has a target of probability >= {probability}; the "
            f"likeliest are used, up to {likely[0][0]:.2g}. Lower probability, or train the "
            "model longer",
            stacklevel=2,
        )
    return [prompt for _, prompt in likely]


def _candidates(text: str, n: int, words: int, generator: np.random.Generator) -> list[Prompt]:
    """Return some places where a text can be cut, each as the prompt before it, in random order."""
    starts = [0, *(match.end() for match in SENTENCE.finditer(text))]
    content = content_spans(text)
    begins = [start for (start, _), _ in words_of(text)]
    places = []
    for first, (at, end) in zip(content, content[n:], strict=False):
        # The latest sentence that begins before n content words.
        begin = max(s for s in starts if s <= first[0])
        if text[at - 1] == " " and sum(begin <= s < at for s in begins) <= words:
            places.append((begin, at, end))
    prompts = []
    for i in generator.permutation(len(places))[:PLACES]:
        begin, at, end = places[i]
        usable = [(a - begin, b - begin) for a, b in content if begin <= a < at]
        chosen = sorted(generator.permutation(len(usable))[:n])
        spans = tuple(usable[k] for k in chosen)
        prompts.append(Prompt(text[begin : at - 1].rstrip(), text[at - 1 : end], spans))
    return prompts


def _fits(prompt: Prompt, tokenizer: Any) -> bool:
    """Return whether a tokenizer separates the target and all variables."""
    try:
        target_tokens(prompt, tokenizer)
        word_spans(prompt.text, prompt.spans, tokenizer)
    except ValueError:
        return False
    return True
