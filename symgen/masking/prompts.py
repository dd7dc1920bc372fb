"""Prompts of language models: a text, the text that follows it, and variables in between."""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from symgen.device import device_of
from symgen.masking.causal import warn_of_repeated_start
from symgen.masking.hooks import Inputs, evaluating, last_logits_only, unwrapped
from symgen.masking.mask_values import check_tokens
from symgen.masking.variables import (
    TextVariables,
    phrase_spans,
    token_offsets,
    word_spans,
    words_of,
)


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
        words = self.words
        again = [words[:i].count(word) + 1 for i, word in enumerate(words)]
        return tuple(w if k == 1 else f"{w} ({k})" for w, k in zip(words, again, strict=True))

    def _repr_html_(self) -> str:
        """Return the prompt with its variables in bold, and the target; all text is escaped."""
        parts, at = [], 0
        for start, end in sorted(self.spans):
            parts.append(html.escape(self.text[at:start]))
            parts.append(f"<strong>{html.escape(self.text[start:end])}</strong>")
            at = end
        rest, target = html.escape(self.text[at:]), html.escape(self.target.strip())
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
    model, (ids, target) = unwrapped(model), target_tokens(prompt, tokenizer)
    check_tokens(model, [torch.cat([ids, torch.tensor(target)])])
    with evaluating(model):
        last = last_logits_only(model)
        logits = model(input_ids=ids[None].to(device_of(model)), **last).logits[0, -1]
    return float(logits.float().softmax(-1)[target[0]])


def target_tokens(prompt: Prompt, tokenizer: Any) -> tuple[Int[Tensor, " position"], list[int]]:
    """Return the token ids of a prompt and of its target.

    Both are encoded together, so that a leading space ends up in the piece that the model expects
    (" year"). A piece that is a space alone, as before digits ("▁", "5"), is added to the prompt.

    Raises:
        ValueError: if the tokenizer ends every text with a special token, or merges the end of
            the prompt with the target.

    Warns:
        RepeatedStartWarning: if the prompt begins with two beginning-of-text tokens.
    """
    text = prompt.text + prompt.target
    ids, joint = (tokenizer(part)["input_ids"] for part in (prompt.text, text))
    if joint[: len(ids)] != ids or len(joint) == len(ids):
        pieces = tokenizer.convert_ids_to_tokens(joint)[-6:]
        raise ValueError(
            f"the tokenizer joins the prompt's end {prompt.text[-12:]!r} with the target "
            f"{prompt.target!r}, or ends texts with a special token (last pieces: {pieces}). End "
            'the prompt without a space, and begin the target with it, as in "for one" and " year"'
        )
    pieces = token_offsets(text, tokenizer)[len(ids) :]
    spaces = [not text[start:end].strip(" ") for start, end in pieces]
    begin = len(ids) + (spaces.index(False) if False in spaces else 0)
    before = torch.tensor(joint[:begin])
    warn_of_repeated_start(before, getattr(tokenizer, "bos_token_id", None))
    return before, joint[begin:]


def prompt_inputs(
    prompts: Sequence[Prompt], tokenizer: Any, whole: bool = False
) -> tuple[Inputs, TextVariables]:
    """Return prompts as a language model takes them, and their variables.

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
    return Inputs([ids for ids, _ in pairs], targets), stacked
