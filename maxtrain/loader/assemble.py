"""From pieces of documents to the arrays of a batch."""

import numpy as np

from maxtrain.core.errors import DataError
from maxtrain.dataset import Dataset
from maxtrain.loader.stream import Pieces

Batch = dict[str, np.ndarray]
"""tokens, targets, segment_ids, positions int32 [R, T]; weights float32 [R, T]; domain int32 [R]."""


def assemble(
    dataset: Dataset,
    pieces: Pieces,
    *,
    num_rows: int,
    sequence_length: int,
    vocab_size: int,
    cross_document_attention: bool,
) -> Batch:
    """Read the tokens of pieces and lay them out.

    Targets are the tokens shifted by one; the last position of a row has the next token of its document, wherever that
    is read. A target in another document has weight 0, as has padding. With cross_document_attention a row is one
    segment with running positions and only the end of its last document has no target.

    Args:
        dataset: where the tokens are.
        pieces: what lies in the rows; tokens of a row do not exceed sequence_length.
        num_rows: R.
        sequence_length: T.
        vocab_size: ids must be below it.
        cross_document_attention: let segments, positions and targets run across documents.

    Returns:
        The batch without its domain.

    Raises:
        DataError: a token id is outside the vocabulary.
    """
    size = num_rows * sequence_length
    counts = pieces.stop - pieces.start
    ends = np.cumsum(counts)
    before = ends - counts
    first_piece = np.searchsorted(pieces.row, pieces.row)
    in_row = before - before[first_piece]
    flat = pieces.row * sequence_length + in_row
    index = np.arange(int(ends[-1]) if ends.size else 0)
    place = index + np.repeat(flat - before, counts)

    has_next = pieces.stop < dataset.documents.num_tokens[pieces.document]
    read = np.concatenate(
        dataset.tokens_many(pieces.document.tolist(), pieces.start.tolist(), (pieces.stop + has_next).tolist())
    )
    if int(read.max()) >= vocab_size:
        raise DataError(_outside_vocabulary(dataset, pieces, vocab_size))
    read_start = np.cumsum(counts + has_next) - (counts + has_next)
    pad = dataset.pad_id
    tokens = np.full(size, pad, np.int32)
    tokens[place] = read[index + np.repeat(read_start - before, counts)]

    targets = np.append(tokens[1:], np.int32(pad))
    targets[sequence_length - 1 :: sequence_length] = pad
    last = flat + counts - 1
    targets[last[has_next]] = read[(read_start + counts)[has_next]]

    weights = np.zeros(size, np.float32)
    weights[place] = 1.0
    segment_ids = np.zeros(size, np.int32)
    positions = np.zeros(size, np.int32)
    if cross_document_attention:
        is_last_of_row = np.append(pieces.row[1:] != pieces.row[:-1], True)
        weights[last[~has_next & is_last_of_row]] = 0.0
        segment_ids[place] = 1
        positions[place] = place % sequence_length
    else:
        weights[last[~has_next]] = 0.0
        segment_ids[place] = np.repeat(np.arange(len(counts)) - first_piece + 1, counts)
        positions[place] = index - np.repeat(before, counts)
    fields = {
        "tokens": tokens,
        "targets": targets,
        "segment_ids": segment_ids,
        "positions": positions,
        "weights": weights,
    }
    return {name: field.reshape(num_rows, sequence_length) for name, field in fields.items()}


def _outside_vocabulary(dataset: Dataset, pieces: Pieces, vocab_size: int) -> str:
    for document, start, stop in zip(pieces.document, pieces.start, pieces.stop, strict=True):
        tokens = dataset.tokens(int(document), int(start), int(stop))
        if int(tokens.max()) >= vocab_size:
            place = int(start) + int(np.argmax(tokens >= vocab_size))
            return (
                f"{dataset.location}: token {place} of document {document} is {int(tokens[place - int(start)])}, "
                f"outside the vocabulary of {vocab_size}; verify the dataset with `python -m maxtrain.corpus verify`"
            )
    return f"{dataset.location}: a token id is outside the vocabulary of {vocab_size}; verify the dataset"
