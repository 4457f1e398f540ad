"""Text that was tokenised before: Megatron's indexed data sets and OLMo's token arrays, taken in without encoding."""

import ast
import re
import struct
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from maxtrain.core import files
from maxtrain.core.errors import UserError
from maxtrain.core.records import RecordError
from maxtrain.corpus.read.options import TokensConfig
from maxtrain.corpus.read.records import BadRecord, Item, RawTokens
from maxtrain.corpus.read.source import Reading
from maxtrain.corpus.read.streams import open_random
from maxtrain.corpus.read.tables import unchanged

_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of ids by their code in the index, floats left away."""
_HEAD = struct.Struct("<9sQBQQ")
_NPY = b"\x93NUMPY"
_BLOCK_IDS = 2**20
_MOST_HEADER = 10_000


def check_tokenizer(tokens: TokensConfig, sha256: str, name: str) -> None:
    """Refuse token ids of another tokenizer than the dataset's.

    Raises:
        UserError: they are.
    """
    if tokens.tokenizer_sha256 != sha256:
        raise UserError(
            f"{name}: token ids of tokenizer {tokens.tokenizer_sha256[:16]}…, but the recipe's is {sha256[:16]}…; "
            "use the same tokenizer, or give the texts to encode"
        )


def index_path(path: str) -> str:
    """Path of the index that belongs to a Megatron `.bin` file."""
    return path.removesuffix(".bin") + ".idx"


def read_megatron(reading: Reading) -> Iterator[Item]:
    """A record a document of a `.bin` file with its `.idx` beside it, which is read first."""
    path = index_path(reading.source.path)
    if not files.exists(path):
        raise UserError(f"{path}: the index is missing; a Megatron data set is a .bin and an .idx file")
    with open_random(path, reading.on_read) as index, open_random(reading.source.path, reading.on_read) as data:
        yield from unchanged(reading, data, _megatron(reading, index, data))


def _megatron(reading: Reading, index: IO[bytes], data: IO[bytes]) -> Iterator[Item]:
    head = index.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise RecordError("damaged_index", "the .idx file is no Megatron index")
    _, version, code, sequences, documents = _HEAD.unpack(head)
    if version != 1 or code not in _DTYPES:
        raise RecordError("damaged_index", f"index version {version} with type {code} is not known")
    size = index.seek(0, 2)
    if size < _HEAD.size + 12 * sequences + 8 * documents or documents < 1:
        raise RecordError("truncated_index", f"the .idx file is too short for {sequences:,} sequences")
    data_size = data.seek(0, 2)
    dtype = np.dtype(_DTYPES[code])
    bounds = _HEAD.size + 12 * sequences
    first = 0
    for block in range(0, documents, _BLOCK_IDS):
        ends = _array(index, bounds + 8 * block, min(_BLOCK_IDS, documents - block), "<i8")
        for end in ends[1 if block == 0 else 0 :].tolist():
            if not first <= end <= sequences:
                raise RecordError("damaged_index", f"document {reading.number + 1} ends at sequence {end}")
            reading.next()
            yield _megatron_document(reading, index, data, dtype, (first, end), sequences, data_size)
            first = end


def _array(file: IO[bytes], offset: int, count: int, dtype: str) -> np.ndarray:
    file.seek(offset)
    found = file.read(count * np.dtype(dtype).itemsize)
    return np.frombuffer(found[: len(found) - len(found) % np.dtype(dtype).itemsize], dtype)


def _megatron_document(
    reading: Reading,
    index: IO[bytes],
    data: IO[bytes],
    dtype: np.dtype[Any],
    part: tuple[int, int],
    sequences: int,
    data_size: int,
) -> Item:
    first, end = part
    if (end - first) * dtype.itemsize > reading.options.max_record_bytes:
        return reading.too_long()
    sizes = _array(index, _HEAD.size + 4 * first, end - first, "<i4")
    starts = _array(index, _HEAD.size + 4 * sequences + 8 * first, end - first, "<i8")
    if len(sizes) and (sizes.min() < 0 or starts.min() < 0):
        return reading.bad("damaged_index", "a sequence of negative length or place")
    total = int(sizes.astype(np.int64).sum()) * dtype.itemsize
    if total > reading.options.max_record_bytes:
        return reading.too_long()
    ids = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if start + size * dtype.itemsize > data_size:
            return reading.bad(
                "truncated_tokens", f"sequence ends at byte {start + size * dtype.itemsize:,} of {data_size:,}"
            )
        ids.append(_array(data, start, size, dtype.str))
    return _document(reading, np.concatenate(ids) if ids else np.empty(0, dtype))


def read_token_array(reading: Reading) -> Iterator[Item]:
    """A record a document of a flat array of ids, each ended by `tokens.eod_id`; with a header of numpy or without."""
    with open_random(reading.source.path, reading.on_read) as file:
        yield from unchanged(reading, file, _token_array(reading, file))


def _token_array(reading: Reading, file: IO[bytes]) -> Iterator[Item]:
    tokens = _declared(reading)
    dtype = np.dtype(tokens.dtype).newbyteorder("<")
    if file.read(len(_NPY)) == _NPY:
        dtype = _npy_dtype(file)
    else:
        file.seek(0)
    limit = reading.options.max_record_bytes // dtype.itemsize
    parts: list[np.ndarray] = []
    length = 0
    while block := file.read(_BLOCK_IDS * dtype.itemsize):
        odd = len(block) % dtype.itemsize
        ids = np.frombuffer(block[: len(block) - odd], dtype)
        start = 0
        for end in np.flatnonzero(ids == tokens.eod_id).tolist():
            length += end - start
            parts.append(ids[start:end])
            reading.next()
            yield reading.too_long() if length > limit else _document(reading, np.concatenate(parts))
            parts, length, start = [], 0, end + 1
        length += len(ids) - start
        if length > limit:
            parts.clear()
        elif start < len(ids):
            parts.append(ids[start:])
        if odd:
            raise RecordError("truncated_tokens", f"{odd} bytes are left over that are no {dtype.name}")
    if length > limit:
        reading.next()
        yield reading.too_long()
    elif length:
        raise RecordError("truncated_tokens", f"the last {length:,} ids are not ended by {tokens.eod_id}")


def _npy_dtype(file: IO[bytes]) -> np.dtype[Any]:
    """Type of the ids of an array with a header; the file stands at its first id afterwards.

    The header is read as a literal here, since numpy's own reader tokenises what is none.

    Raises:
        RecordError: it is no flat array of whole numbers.
    """
    version = file.read(2)[:1]
    size = int.from_bytes(file.read(2 if version == b"\x01" else 4), "little")
    try:
        if version not in (b"\x01", b"\x02", b"\x03") or size > _MOST_HEADER:
            raise ValueError("the header is of no known version or size")
        header = ast.literal_eval(file.read(size).decode("latin-1"))
        shape, kind = header["shape"], header["descr"]
        if not isinstance(kind, str) or not re.fullmatch(r"[<>|]?[ui][1248]", kind):
            raise ValueError(f"an array of {str(kind)[:40]}, not of ids")
        if not isinstance(shape, tuple) or len(shape) != 1:
            raise ValueError(f"an array of shape {str(shape)[:40]}, not a flat one")
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise RecordError("damaged_npy", (str(error).splitlines() or ["no header"])[0][:200]) from None
    return np.dtype(kind)


def _declared(reading: Reading) -> TokensConfig:
    tokens = reading.options.tokens
    assert tokens is not None, "the kinds of token ids need the section"
    return tokens


def _document(reading: Reading, ids: np.ndarray) -> RawTokens | BadRecord:
    tokens = _declared(reading)
    ids = ids.astype(np.int64)
    if len(ids) and ids[-1] == tokens.eod_id:
        ids = ids[:-1]
    if len(ids) and tokens.bos_id is not None and ids[0] == tokens.bos_id:
        ids = ids[1:]
    if not len(ids):
        return reading.bad("empty_text", "no ids")
    if ids.min() < 0 or ids.max() >= tokens.vocab_size:
        wrong = int(ids.max() if ids.max() >= tokens.vocab_size else ids.min())
        return reading.bad("token_out_of_range", f"id {wrong} in a vocabulary of {tokens.vocab_size:,}")
    if (ids == tokens.eod_id).any():
        return reading.bad("token_out_of_range", f"id {tokens.eod_id}, which ends documents, within one")
    source = reading.source
    return RawTokens(
        input=source.name,
        line=reading.number,
        tokens=ids,
        tokenizer_sha256=tokens.tokenizer_sha256,
        source=reading.default_source,
        lang=source.lang,
        category=source.category,
        licence=source.licence,
        original_id=f"{source.name}:{reading.number}",
        origin=f"{source.name}:{reading.number}",
    )
