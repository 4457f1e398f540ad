"""Is a dataset what its manifest says? Sizes, hashes, token ids, document table."""

import hashlib

import numpy as np
from tqdm import tqdm

from maxtrain.core import files
from maxtrain.core.errors import DataError
from maxtrain.dataset.format import MANIFEST, Manifest, ShardRecord
from maxtrain.dataset.table import DocumentTable

_CURE = "restore the file or build the dataset again"


def verify_files(location: str, manifest: Manifest, *, full: bool, progress: bool) -> None:
    """Check the files of a dataset against its manifest.

    The document table and the tokenizer are always hashed; shards and attachments when `full`, else only measured.
    `full` also holds every token id against the vocabulary.

    Raises:
        DataError: the first file that is missing, truncated, damaged or holds an id over the vocabulary.
    """
    for record, what in ((manifest.documents, "document table"), (manifest.tokenizer, "tokenizer")):
        path = files.join(location, record.file)
        try:
            found = files.sha256_bytes(files.read_bytes(path))
        except FileNotFoundError:
            raise DataError(f"{path}: the {what} is missing; {_CURE}") from None
        if found != record.sha256:
            raise DataError(f"{path}: the {what} is damaged or not the dataset's own (hash differs); {_CURE}")
    for attachment in manifest.attachments:
        path = files.join(location, attachment.file)
        _check_size(path, attachment.num_bytes, "attachment")
        if full and files.sha256_file(path, attachment.num_bytes) != attachment.sha256:
            raise _damaged(path)
    total = sum(shard.num_bytes for shard in manifest.shards)
    with tqdm(
        total=total, desc="verify", unit="B", unit_scale=True, delay=2, disable=not (progress and full), leave=False
    ) as bar:
        for shard in manifest.shards:
            _verify_shard(location, manifest, shard, full=full, bar=bar)


def verify_only_own_files(location: str, manifest: Manifest) -> None:
    """Check that nothing lies in a dataset but what its manifest names.

    Raises:
        DataError: naming the files that it does not know.
        OSError: the dataset cannot be listed.
    """
    own = {MANIFEST, manifest.documents.file, manifest.tokenizer.file, *(shard.file for shard in manifest.shards)}
    own |= {attachment.file for attachment in manifest.attachments}
    foreign = [name for name in files.list_files(location) if name not in own]
    if foreign:
        more = f" and {len(foreign) - 10:,} more" if len(foreign) > 10 else ""
        names = ", ".join(name if name.isprintable() else repr(name) for name in foreign[:10])
        raise DataError(f"{location}: {names}{more}: not in the manifest; move away what is no part of the dataset")


def _verify_shard(location: str, manifest: Manifest, shard: ShardRecord, *, full: bool, bar: tqdm) -> None:
    path = files.join(location, shard.file)
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    if shard.num_bytes != shard.num_tokens * dtype.itemsize:
        raise DataError(
            f"{path}: the manifest's {shard.num_bytes} bytes are not its {shard.num_tokens} tokens; {_CURE}"
        )
    _check_size(path, shard.num_bytes, "shard")
    if not full:
        return
    digest, first = hashlib.sha256(), 0
    over: tuple[int, int] | None = None
    for part in files.iterate_chunks(path, shard.num_bytes):
        digest.update(part)
        tokens = np.frombuffer(part, dtype)
        if over is None and int(tokens.max()) >= manifest.tokenizer.vocab_size:
            place = int(np.argmax(tokens >= manifest.tokenizer.vocab_size))
            over = (first + place, int(tokens[place]))
        first += len(tokens)
        bar.update(len(part))
    if over is not None:
        raise DataError(
            f"{path}: token {over[0]} has id {over[1]}, outside the vocabulary of {manifest.tokenizer.vocab_size}; "
            f"{_CURE}"
        )
    if digest.hexdigest() != shard.sha256:
        raise _damaged(path)


def _check_size(path: str, num_bytes: int, what: str) -> None:
    try:
        if not files.has_size(path, num_bytes):
            raise DataError(f"{path}: truncated or not the expected file (should be {num_bytes} bytes); {_CURE}")
    except FileNotFoundError:
        raise DataError(f"{path}: the {what} is missing; {_CURE}") from None


def _damaged(path: str) -> DataError:
    return DataError(f"{path}: damaged (SHA-256 differs from the manifest); {_CURE}")


def verify_table(location: str, manifest: Manifest, table: DocumentTable) -> None:
    """Check that the documents tile the shards, in `doc_id` order.

    Raises:
        DataError: they do not.
    """
    num_tokens = np.array([shard.num_tokens for shard in manifest.shards], np.int64)
    same = table.shard[1:] == table.shard[:-1]
    ends = table.offset + table.num_tokens
    sums = np.bincount(table.shard, weights=table.num_tokens, minlength=len(num_tokens)).astype(np.int64)
    sound = (
        bool((table.doc_id[1:] > table.doc_id[:-1]).all())
        and bool((table.num_tokens > 0).all())
        and bool((table.offset[1:][same] == ends[:-1][same]).all())
        and bool((table.offset[1:][~same] == 0).all())
        and int(table.offset[0]) == 0
        and bool((np.diff(table.shard) >= 0).all())
        and np.array_equal(sums, num_tokens)
        and int(num_tokens.sum()) == manifest.totals.tokens
    )
    if not sound:
        raise DataError(f"{location}: the document table does not fit the shards; build the dataset again")
