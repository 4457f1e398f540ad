"""A SentencePiece tokenizer that gives every text back exactly."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import sentencepiece

from maxtrain.core import files
from maxtrain.core.errors import DataError, UserError
from maxtrain.tokenizer.model_proto import normalise

SPACE_MARK = "\u2581"
"""SentencePiece writes a space as this character, so it would give a literal one back as a space."""
_PROBE = f"  a\tb\r\n\n\0{SPACE_MARK}é 你好 \U0001f600 12 <|eod|> "


class Tokenizer:
    """Text to ids and back; `load` makes one.

    Attributes:
        model: the normalised model, as `tokenizer.model` holds it.
        hash: SHA-256 of `model` in hex: the tokenizer's identity.
        vocab_size: number of ids.
        pad_id, eod_id, unk_id: special ids; no text is encoded to one.
        bos_id: likewise, or None where the model has none.
    """

    def __init__(self, model: bytes, name: str = "tokenizer") -> None:
        try:
            self.model = normalise(model)
            if not self.model:
                raise ValueError("empty")
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        except (ValueError, RuntimeError):
            raise DataError(
                f"{name}: not a SentencePiece model; python -m maxtrain.tokenizer train makes one"
            ) from None
        processor = self._processor
        self.hash = files.sha256_bytes(self.model)
        self.vocab_size: int = processor.vocab_size()
        self.pad_id: int = processor.pad_id()
        self.eod_id: int = processor.eos_id()
        self.unk_id: int = processor.unk_id()
        self.bos_id: int | None = processor.bos_id() if processor.bos_id() >= 0 else None
        self._mark_ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]
        if self.pad_id < 0 or self.eod_id < 0:
            raise DataError(f"{name}: the model has no pad or no end-of-document id; train one that has both")
        if not all(processor.is_byte(token) for token in self._mark_ids) or self.decode(self.encode(_PROBE)) != _PROBE:
            raise DataError(
                f"{name}: the model does not give texts back exactly; it needs byte fallback, identity normalisation, "
                "no dummy prefix and no whitespace removal"
            )

    @classmethod
    def load(cls, model: str | Path | bytes, *, expected_hash: str | None = None) -> Self:
        """Load a model from a path, a URL or its bytes.

        Args:
            model: where it is, or what it is.
            expected_hash: refuse another tokenizer than this.

        Raises:
            DataError: it is missing, no usable model, or not the expected one.
        """
        name = "tokenizer" if isinstance(model, bytes) else str(model)
        try:
            data = model if isinstance(model, bytes) else files.read_bytes(model)
        except FileNotFoundError:
            raise DataError(f"{name}: no such tokenizer; python -m maxtrain.tokenizer train makes one") from None
        tokenizer = cls(data, name)
        if expected_hash is not None and tokenizer.hash != expected_hash:
            raise DataError(
                f"{name}: not the expected tokenizer (hash {tokenizer.hash[:12]}, expected {expected_hash[:12]}); "
                "use the one that the dataset was built with"
            )
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special ids.

        Raises:
            UserError: the text holds half a surrogate pair, which is no character.
        """
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        """Ids of several texts; the number of threads (null: of cores, at most 8) changes nothing but the time.

        Raises:
            UserError: a text holds half a surrogate pair, which is no character.
        """
        threads = num_threads or min(os.cpu_count() or 1, 8)
        parts = [text.split(SPACE_MARK) for text in texts]
        try:
            encoded = self._processor.encode([part for group in parts for part in group], num_threads=threads)
        except TypeError:
            # SentencePiece's way of telling that a text has no UTF-8.
            _refuse_surrogates(texts)
            raise
        flat = iter(encoded)
        result: list[list[int]] = []
        for group in parts:
            ids = next(flat)
            for _ in group[1:]:
                ids = ids + self._mark_ids + next(flat)
            result.append(ids)
        return result

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special ids give nothing, bytes that are no UTF-8 give U+FFFD.

        Raises:
            UserError: an id is outside the vocabulary.
        """
        tokens = [int(token) for token in ids]
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise UserError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return str(self._processor.decode([token for token in tokens if token not in self.special_ids]))

    def piece(self, token: int) -> str:
        """The vocabulary's name for an id."""
        return str(self._processor.id_to_piece(token))

    def num_bytes(self, token: int) -> int:
        """UTF-8 bytes of text that an id stands for: over the ids of a text they add up to the text's."""
        if token in self.special_ids:
            return 0
        return 1 if self._processor.is_byte(token) else len(self.decode([token]).encode())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that no text is encoded to: pad, bos, eod, unk and the reserved ones."""
        processor = self._processor
        return frozenset(
            token for token in range(self.vocab_size) if processor.is_control(token) or processor.is_unknown(token)
        )

    @cached_property
    def reserved_ids(self) -> tuple[int, ...]:
        """Ids of the reserved special tokens, ascending."""
        named = {self.pad_id, self.bos_id, self.eod_id, self.unk_id}
        return tuple(sorted(self.special_ids - named))


def _refuse_surrogates(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the text holds a lone surrogate at character {error.start}, which is no text") from None
