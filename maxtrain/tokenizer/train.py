"""Train a tokenizer: SentencePiece BPE with byte fallback, reproducible from the set of texts and the arguments."""

import hashlib
import heapq
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import sentencepiece

from maxtrain.core.errors import DataError, UserError
from maxtrain.tokenizer.tokenizer import SPACE_MARK, Tokenizer

NUM_RESERVED = 60
"""Reserved special tokens, so that later stages need no new vocabulary."""
MOST_IDS = 2**31 - 1
"""SentencePiece counts ids in an int32."""
LEAST_COVERAGE = 0.98
"""The trainer takes no less."""
_SPECIAL = ("<|pad|>", "<|bos|>", "<|eod|>", "<|unk|>")
_RUNS = (
    *("\n" * count for count in range(1, 9)),
    "\r\n",
    *("\t" * count for count in range(1, 9)),
    *(SPACE_MARK * count for count in range(2, 25)),
)
"""Runs of line breaks, tabs and spaces as whole pieces: without them byte fallback would write most line breaks."""
_BREAKS = re.compile(r"[\n\t]+")
_MAX_LINE = 4096


def sample_texts(texts: Iterable[str], sample_bytes: int) -> list[str]:
    """A sample that depends on the set of texts alone: those with the least hashes, until there are enough bytes.

    One pass; memory holds the sample. The result is in the order of the hashes.
    """
    heap: list[tuple[int, str, int]] = []
    total = 0
    for text in texts:
        data = text.encode()
        key = -int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
        heapq.heappush(heap, (key, text, len(data)))
        total += len(data)
        while total - heap[0][2] >= sample_bytes:
            total -= heapq.heappop(heap)[2]
    return [text for _, text, _ in sorted(heap, reverse=True)]


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Texts cut where no piece can reach across: at line breaks and tabs, and very long lines by length."""
    for text in texts:
        for line in _BREAKS.split(text.replace(SPACE_MARK, "\n")):
            for start in range(0, len(line), _MAX_LINE):
                yield line[start : start + _MAX_LINE]


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    sample_bytes: int = 100_000_000,
    character_coverage: float = 0.9995,
    num_reserved: int = NUM_RESERVED,
    num_threads: int = 2,
) -> Tokenizer:
    """Train on texts; the order of the texts and the number of threads do not change the tokenizer.

    Args:
        texts: training texts.
        vocab_size: number of ids, special tokens and the 256 bytes included.
        sample_bytes: UTF-8 bytes of text to train on at most.
        character_coverage: share of the characters, 0.98 to 1, that get a piece of their own; the rest fall back to
            bytes.
        num_reserved: reserved special tokens `<|reserved_0|>` …
        num_threads: threads.

    Raises:
        UserError: the vocabulary is too small for what every tokenizer holds, or too large for the texts; another
            argument is out of range.
        DataError: there is no text.
    """
    if num_reserved < 0:
        raise UserError(f"{num_reserved} reserved tokens: must be 0 or more")
    if sample_bytes < 1:
        raise UserError(f"sample_bytes {sample_bytes} is under 1; give the bytes of text to train on at most")
    least = len(_SPECIAL) + num_reserved + 256 + len(_RUNS) + 1
    if vocab_size < least:
        raise UserError(f"vocab_size {vocab_size} is under {least}, which special tokens, bytes and white space take")
    if vocab_size > MOST_IDS:
        raise UserError(f"vocab_size {vocab_size} is over {MOST_IDS}, the most that token ids can count; lower it")
    if not LEAST_COVERAGE <= character_coverage <= 1:
        raise UserError(f"character_coverage {character_coverage} is not between {LEAST_COVERAGE} and 1")
    sample = sample_texts(texts, sample_bytes)
    if not any(_BREAKS.sub("", text) for text in sample):
        raise DataError("no text to train a tokenizer on; give inputs (of a recipe: a train split) that hold some")
    options = {
        "vocab_size": vocab_size,
        "character_coverage": character_coverage,
        "control_symbols": [f"<|reserved_{number}|>" for number in range(num_reserved)],
        "num_threads": num_threads,
    }
    try:
        model = _train(sample, **options)
        if not _has_space(model):
            model = _train(sample, **options, required_chars=SPACE_MARK)
    except (RuntimeError, ValueError) as error:
        raise UserError(_reason(str(error), vocab_size)) from None
    return Tokenizer(model)


def _train(sample: list[str], **options: Any) -> bytes:
    """The trainer's model; what every tokenizer has in common is set here."""
    buffer = io.BytesIO()
    pad, bos, eod, unk = _SPECIAL
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_lines(sample),
        model_writer=buffer,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece=pad,
        bos_piece=bos,
        eos_piece=eod,
        unk_piece=unk,
        user_defined_symbols=list(_RUNS),
        max_sentence_length=8 * _MAX_LINE,
        minloglevel=2,
        **options,
    )
    return buffer.getvalue()


def _has_space(model: bytes) -> bool:
    """Whether a single space has a piece: not where the texts have none, or so few that the coverage drops it.

    Required of every training, it would be told in the model and change the identity of those that have it anyway.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return bool(processor.piece_to_id(SPACE_MARK) != processor.unk_id())


def _reason(message: str, vocab_size: int) -> str:
    """One line for the trainer's own error."""
    if limit := re.search(r"value <= (\d+)", message):
        return f"vocab_size {vocab_size} is too large for the texts, which support at most {limit[1]}; lower it"
    if "required_chars" in message or "smaller than" in message:
        return (
            f"vocab_size {vocab_size} is too small for the characters of the texts; "
            "raise it or lower character_coverage"
        )
    return f"the tokenizer cannot be trained: {message.splitlines()[-1].strip()}"
