"""The SentencePiece model as bytes: what of it is the tokenizer, and what only tells how it was trained.

Reads the protocol buffer's wire format (https://protobuf.dev/programming-guides/encoding/) directly; the schema is
SentencePiece's `sentencepiece_model.proto`.
"""

from collections.abc import Iterator

_TRAINER_SPEC = 2
_SELF_TEST = 4
_TRAINER_FIELDS_TO_CLEAR = frozenset({1, 2, 7, 16})
"""input, model_prefix, input_format, num_threads."""


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """(field number, payload, whole field with its tag) in order; the payload of a length-delimited field only."""
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        payload = b""
        wire_type = tag & 7
        if wire_type == 0:
            _, position = _varint(message, position)
        elif wire_type == 1:
            position += 8
        elif wire_type == 2:
            length, position = _varint(message, position)
            payload = message[position : position + length]
            position += length
        elif wire_type == 5:
            position += 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if position > len(message):
            raise ValueError("ends early")
        yield tag >> 3, payload, message[start:position]


def normalise(model: bytes) -> bytes:
    """The model without what does not change its encoding: input paths, thread count, self-tests.

    Normalising twice changes nothing.

    Raises:
        ValueError: the bytes are no protocol buffer message.
    """
    try:
        parts = []
        for number, payload, whole in _fields(model):
            if number == _TRAINER_SPEC:
                kept = b"".join(field for inner, _, field in _fields(payload) if inner not in _TRAINER_FIELDS_TO_CLEAR)
                parts.append(_encode_varint(_TRAINER_SPEC << 3 | 2) + _encode_varint(len(kept)) + kept)
            elif number != _SELF_TEST:
                parts.append(whole)
    except IndexError:
        raise ValueError("ends early") from None
    return b"".join(parts)
