"""Token ids that are taken in without encoding."""

import hashlib
import io
import struct
from typing import Any

import numpy as np
import pytest

from maxtrain.core.errors import UserError
from maxtrain.corpus.read import RawTokens, ReadOptions, TokensConfig, check_tokenizer, kind_of

TOKENS: dict[str, Any] = {"tokenizer_sha256": "a" * 64, "vocab_size": 1000, "eod_id": 0, "bos_id": 1}
DOCUMENTS = [[5, 6, 7], [1, 8, 9], [999], list(range(2, 500))]
PLAIN = [[5, 6, 7], [8, 9], [999], list(range(2, 500))]


def flat(documents, dtype="<u2"):
    return np.array([n for document in documents for n in (*document, 0)], dtype)


def megatron(sequences, bounds, dtype="<u2", code=8):
    """An index and its data: `bounds` counts the sequences of each document."""
    arrays = [np.array(sequence, dtype) for sequence in sequences]
    sizes = np.array([len(array) for array in arrays], "<i4")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype("<i8") * np.dtype(dtype).itemsize
    ends = np.concatenate([[0], np.cumsum(bounds)]).astype("<i8")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sizes), len(ends))
    return head + sizes.tobytes() + starts.tobytes() + ends.tobytes(), b"".join(array.tobytes() for array in arrays)


def npy(array):
    sink = io.BytesIO()
    np.save(sink, array, allow_pickle=array.dtype == object)
    return sink.getvalue()


def ids(good):
    assert all(isinstance(item, RawTokens) and item.tokenizer_sha256 == "a" * 64 for item in good)
    return [item.tokens.tolist() for item in good]


@pytest.mark.parametrize("data", [flat(DOCUMENTS).tobytes(), npy(flat(DOCUMENTS)), npy(flat(DOCUMENTS, "<i8"))])
def test_arrays_are_cut_at_the_end_of_documents(read, data):
    digest = hashlib.sha256()
    good, bad = read("part-0.npy", data, digest.update, tokens=TokensConfig(**TOKENS))
    assert not bad
    assert ids(good) == PLAIN
    assert [item.line for item in good] == [1, 2, 3, 4]
    assert good[1].original_id == "part-0.npy:2"
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest()


def test_an_index_tells_the_documents_of_megatron(read, tmp_path):
    index, data = megatron([[5, 6], [7, 0], [1, 8, 9, 0], [999, 0], DOCUMENTS[3]], [2, 1, 1, 1])
    (tmp_path / "t.idx").write_bytes(index)
    digest = hashlib.sha256()
    good, bad = read("t.bin", data, digest.update, tokens=TokensConfig(**TOKENS))
    assert not bad
    assert ids(good) == PLAIN
    assert digest.hexdigest() == hashlib.sha256(index + data).hexdigest()
    index, data = megatron([[70000, 2]], [1], "<i4", 4)
    (tmp_path / "t.idx").write_bytes(index)
    good, bad = read("t.bin", data, tokens=TokensConfig(**TOKENS | {"vocab_size": 100_000}))
    assert ids(good) == [[70000, 2]]


def test_they_are_refused_without_their_tokenizer(read):
    with pytest.raises(UserError, match=r"^a\.npy: holds token ids.*declare read\.tokens"):
        kind_of("a.npy", ReadOptions())
    with pytest.raises(ValueError, match="needs the section tokens"):
        ReadOptions(kind="megatron")
    check_tokenizer(TokensConfig(**TOKENS), "a" * 64, "a.npy")
    with pytest.raises(UserError, match=r"^a\.npy: token ids of tokenizer aaaa.*recipe's is bbbb"):
        check_tokenizer(TokensConfig(**TOKENS), "b" * 64, "a.npy")


def test_damaged_arrays_are_told(read, reasons):
    tokens = TokensConfig(**TOKENS)
    data = flat(DOCUMENTS)
    assert reasons(read("a.npy", data[:-1].tobytes(), tokens=tokens)[1]) == [(4, "truncated_tokens")]
    assert reasons(read("a.npy", data.tobytes() + b"\1", tokens=tokens)[1]) == [(5, "truncated_tokens")]
    good, bad = read("a.npy", flat([[5], [1000], [], [1], [6]]).tobytes(), tokens=tokens)
    assert ids(good) == [[5], [6]]
    assert reasons(bad) == [(2, "token_out_of_range"), (3, "empty_text"), (4, "empty_text")]
    good, bad = read("a.npy", flat([[2], [3] * 100, [4]]).tobytes(), tokens=tokens, max_record_bytes=50)
    assert ids(good) == [[2], [4]]
    assert reasons(bad) == [(2, "too_long")]
    for array in (np.array([{"a": 1}], object), np.zeros(3), np.zeros((2, 2), "<i4")):
        assert reasons(read("a.npy", npy(array), tokens=tokens)[1]) == [(1, "damaged_npy")]
    assert reasons(read("a.npy", b"\x93NUMPY\1\0\xff\xff{", tokens=tokens)[1]) == [(1, "damaged_npy")]


def test_a_damaged_index_is_told(read, reasons, tmp_path):
    index, data = megatron(DOCUMENTS, [1, 1, 1, 1])
    with pytest.raises(UserError, match=r"t\.idx: the index is missing"):
        read("t.bin", data, tokens=TokensConfig(**TOKENS))
    for damaged, expected in (
        (b"nonsense" * 10, [(1, "damaged_index")]),
        (index[:-8], [(1, "truncated_index")]),
        (index[:9] + b"\2" + index[10:], [(1, "damaged_index")]),
        (index[:-8] + b"\x7f" + bytes(7), [(4, "damaged_index")]),
        (index[:34] + b"\xff\xff\xff\xff" + index[38:], [(1, "damaged_index")]),
    ):
        (tmp_path / "t.idx").write_bytes(damaged)
        found = reasons(read("t.bin", data, tokens=TokensConfig(**TOKENS))[1])
        assert found == expected
    (tmp_path / "t.idx").write_bytes(index)
    good, bad = read("t.bin", data[:-2], tokens=TokensConfig(**TOKENS))
    assert len(good) == 3
    assert reasons(bad) == [(4, "truncated_tokens")]
