"""Texts: sentences with planted logic, plain texts for language models, and tokenizers."""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from symgen.sources import DATASETS, Rows, Source, nearest, open_splits, readable, text_columns

PRAISE = ("brilliant", "charming", "delightful", "gripping", "superb", "wonderful")
BLAME = ("awful", "boring", "clumsy", "dreadful", "shallow", "tedious")
NEGATORS = ("hardly", "scarcely", "barely")
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
VOCABULARY = 8192
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def planted_score(text: str) -> float:
    """Return the planted sentiment of a sentence from which any words may be missing.

    With A the words of praise (or of blame) in the sentence and N its negator, the score is
    ``s * (2 * OR(A) - 4 * N * OR(A))``, where s is +1 for praise and -1 for blame: synonyms form
    an OR, negation an AND with them. Without a negator the sparsest logical model is the OR over
    A alone. With one it joins the negator to A, and for two or more synonyms it is not unique.

    Args:
        text: words separated by spaces.

    Returns:
        2 or -2; 0 where no word of sentiment is left.

    Example:
        >>> planted_score("the film seemed superb"), planted_score("the film seemed hardly superb")
        (2.0, -2.0)
    """
    words = set(text.split())
    score = 2.0 * bool(words & set(PRAISE)) - 2.0 * bool(words & set(BLAME))
    return -score if words & set(NEGATORS) else score


def planted_sentences(split: str) -> Rows:
    """Return generated sentences of ten content words, labelled by their `planted_score`.

    Each has one to three synonyms of praise or of blame, in a third of the sentences a negator,
    and words without sentiment. Labels are balanced, with a negator and without.

    Args:
        split: "train" (4,000 sentences) or "test" (1,000, none of them in "train").
    """
    generator = np.random.default_rng(20250506)
    combinations = itertools.cycle(itertools.product((False, False, True), (PRAISE, BLAME)))
    sentences = dict.fromkeys(
        _sentence(generator, synonyms, negated)
        for (negated, synonyms), _ in zip(combinations, range(5200), strict=False)
    )
    # Cycling over the combinations keeps every stretch of them balanced.
    ordered = list(sentences)
    texts = ordered[:4000] if split == "train" else ordered[4000:5000]
    labels = np.array([int(planted_score(text) > 0) for text in texts])
    return Rows("text", labels, ["negative", "positive"], lambda i: [texts[k] for k in i])


def _sentence(generator: np.random.Generator, synonyms: tuple[str, ...], negated: bool) -> str:
    feeling = generator.permutation(synonyms)[: generator.integers(1, 4)].tolist()
    opinion = [str(generator.choice(NEGATORS))] * negated + [" and ".join(feeling)]
    subject, *others = generator.permutation(_NOUNS).tolist()
    adjectives = generator.permutation(_ADJECTIVES).tolist()
    verb = str(generator.choice(_VERBS))
    # Content words so far: subject, opinion, then person, verb, object; adjectives fill up to ten.
    missing = 10 - len(feeling) - negated - 4
    person, thing, place = others[:3]
    first = f"the {adjectives[0]} {subject} is {' '.join(opinion)}"
    missing -= 1
    second = f"the {person} {verb} the {thing}"
    if missing:
        second = f"the {person} {verb} the {adjectives[1]} {thing}"
        missing -= 1
    if missing:
        place = " ".join([*adjectives[2 : 2 + missing - 1], place])
        second += f" by the {place}"
    clauses = [first, second]
    return " and ".join(clauses if generator.random() < 0.5 else clauses[::-1])


def load_texts(
    name: str, split: str = "train", revision: str | None = None, column: str | None = None
) -> list[str]:
    """Return the distinct texts of a data set, in their order, for use with a language model.

    Args:
        name: registered name or id, such as ``"rajpurkar/squad"``.
        split: name of the split; a set's only split is taken whatever it is called.
        revision: commit, tag or branch on the hub.
        column: of the texts; by default the registered one, or the one with the longest texts.

    Raises:
        ValueError: for an unknown name, split or column, with those there are.

    Example:
        >>> len(load_texts("planted-sentiment", "test"))
        1000
    """
    splits = open_splits(name, revision)
    if split not in splits and len(splits) > 1:
        raise ValueError(
            f'data set "{name}" has no split "{split}"; it has {", ".join(splits)}.'
            f"{nearest(split, splits)}"
        )
    table = splits.get(split, next(iter(splits.values())))()
    if isinstance(table, Rows):
        if table.kind != "text":
            raise ValueError(f'data set "{name}" holds images; expected a data set of texts')
        return table.take(np.arange(len(table.labels)))
    columns = text_columns(table)
    column = column or DATASETS.get(name, Source()).text or next(iter(columns), None)
    if column not in columns:
        raise ValueError(
            f'data set "{name}" has no column of text named "{column}"; it has '
            f"{', '.join(columns) or 'none'}.{nearest(column, columns)}"
        )
    found = list(dict.fromkeys(text for text in table[column] if text and text.strip()))
    if not found:
        raise ValueError(f'column "{column}" of data set "{name}" holds no text in any row')
    return found


def load_tokenizer(tokenizer: Any, texts: list[str]) -> Any:
    """Return a tokenizer fit for masking.

    Args:
        tokenizer: one already, or the hub id or path of one, or a vocabulary size (default
            8,192) for one that is trained on the texts: WordPiece in lower case, as BERT's,
            with the special tokens [PAD], [UNK], [CLS], [SEP] and [MASK].
        texts: of the training set.

    Raises:
        ValueError: if it has no mask token, no pad token or no character offsets.
    """
    from symgen.networks import from_pretrained, import_transformers

    if isinstance(tokenizer, str):
        name, tokenizer = tokenizer, from_pretrained("AutoTokenizer", tokenizer)
    elif tokenizer is None or isinstance(tokenizer, int):
        transformers = import_transformers()
        name = "trained on the texts"
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=_train_tokenizer(texts, tokenizer or VOCABULARY),
            **{f"{token[1:-1].lower()}_token": token for token in SPECIAL},
        )
    else:
        name = type(tokenizer).__name__
    for what in ("mask", "pad"):
        if getattr(tokenizer, f"{what}_token", None) is None:
            raise ValueError(
                f'the tokenizer "{name}" has no {what} token, which masking words needs; set '
                f"tokenizer.{what}_token to one of its tokens, or choose a tokenizer of a "
                "masked language model such as BERT"
            )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f'the tokenizer "{name}" does not tell which characters a token covers; expected a '
            "fast tokenizer (with a tokenizer.json)"
        )
    advice = "copy it again; expected are a tokenizer.json and a tokenizer_config.json that fit"
    with readable(f'the tokenizer "{name}"', "what it says", advice):
        ids = tokenizer(["a word"], return_offsets_mapping=True)["input_ids"][0]
        if not all(0 <= i < len(tokenizer) for i in [*ids, *tokenizer.all_special_ids]):
            raise ValueError(f"it has {len(tokenizer)} tokens, and gives others")
    return tokenizer


def _train_tokenizer(texts: list[str], vocabulary: int) -> Any:
    """Return a WordPiece tokenizer: the most frequent words, and pieces for the others.

    The library's own trainer is not used: its result differs from run to run.
    """
    if vocabulary < 200:
        raise ValueError(
            f"tokenizer={vocabulary}: a vocabulary needs at least 200 entries, for the special "
            "tokens, the letters and some words"
        )
    words, parts = count_words(texts)
    letters = sorted({letter for word in words for letter in word})[: vocabulary // 3]
    tokens = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    # An eighth is kept for beginnings and endings, of which rare words are put together.
    frequent = most_frequent(words, vocabulary - len(tokens) - vocabulary // 8)
    tokens = list(dict.fromkeys([*tokens, *frequent]))
    for token in tokens:
        parts.pop(token, None)
    rest = most_frequent(parts, vocabulary // 8)
    tokens += rest[: vocabulary - len(tokens)]
    return word_pieces(tokens, "[CLS] $A [SEP]", ("[CLS]", "[SEP]"))


def count_words(texts: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Return how often texts have each word, in lower case, and each beginning and ending.

    Args:
        texts: any.

    Returns:
        Counts of words, and of their beginnings and, with "##" before, endings of two to six
        letters.
    """
    from tokenizers import normalizers, pre_tokenizers

    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts:
        pieces = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        words.update(word for word, _ in pieces)
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for size in range(2, min(7, len(word))):
            parts[word[:size]] += count
            parts[f"##{word[-size:]}"] += count
    return words, parts


def word_pieces(tokens: Sequence[str], around: str, special: Sequence[str]) -> Any:
    """Return a tokenizer of words and pieces, as BERT's.

    Args:
        tokens: the vocabulary, in the order of their ids.
        around: what stands before and after a text, such as ``"[CLS] $A [SEP]"``.
        special: the tokens in `around`.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(t, made.token_to_id(t)) for t in special]
    )
    return made


def most_frequent(counts: Counter[str], size: int) -> list[str]:
    """Return the most frequent entries, ties in the order of the alphabet."""
    return sorted(counts, key=lambda item: (-counts[item], item))[: max(0, size)]
