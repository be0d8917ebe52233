# SPDX-License-Identifier: Apache-2.0
"""Serialise LookupRequest, and parse LookupResponse without copying rows: the result has their positions in the message.
protobuf would copy the rows twice. This code is most of the cost of a lookup of one key."""
from __future__ import annotations

import functools
from typing import Any, Dict, List, Tuple

Span = Tuple[int, int]  # byte positions in the message: begin, end
NOTHING: Span = (0, 0)
OUTPUTS_MAX = 2  # rows and statuses
VERSION_DIGITS_MAX = 20
RESULT_BYTES_MAX = 256  # of results that are cached


# ---- LookupRequest -----------------------------------------------------------------------------------

_SMALL = [bytes([value]) for value in range(128)]


def _varint_bytes(value: int) -> bytes:
    if 0 <= value < 128:
        return _SMALL[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def query_parts(table: bytes, keys: Any, offsets: Any, weights: Any, pooling: int) -> List[Any]:
    """LookupRequest.queries, as parts to join. Arrays are C-contiguous, or None."""
    inner: List[Any] = [b"\x0a", _varint_bytes(len(table)), table]
    size = 2 + len(table) if len(table) < 128 else 1 + len(inner[1]) + len(table)
    for tag, array in ((b"\x12", keys), (b"\x22", offsets), (b"\x32", weights)):
        if array is not None and array.nbytes > 0:
            length = _varint_bytes(array.nbytes)
            size += 1 + len(length) + array.nbytes
            inner += (tag, length, array)
    if pooling:
        inner += (b"\x28", _SMALL[pooling])
        size += 2
    return [b"\x1a", _varint_bytes(size), *inner]


def request_head(model: bytes, numbers: Dict[int, int]) -> bytes:
    """A LookupRequest without its queries: the model, and the numeric fields by their numbers."""
    out = b"\x0a" + _varint_bytes(len(model)) + model
    for number, value in numbers.items():
        if value != 0:
            out += _SMALL[number << 3] + _varint_bytes(value)
    return out


# ---- ModelInferRequest, ModelInferResponse of KServe ----------------------------------------------------

def _field(number: int, payload: bytes) -> bytes:
    return _SMALL[number << 3 | 2] + _varint_bytes(len(payload)) + payload


@functools.lru_cache(maxsize=256)
def infer_head(model: str, version: int, parameters: Tuple[Tuple[str, Any], ...], n_keys: int, n_counts: int,
               outputs: Tuple[str, ...]) -> Tuple[bytes, bytes]:
    """A ModelInferRequest with the inputs KEYS and NUMKEYS, in two pieces: the bytes before the keys, and the bytes
    between the keys and the counts. version 0: the active one. outputs: empty for the default."""
    out = _field(1, model.encode())
    if version != 0:
        out += _field(2, b"%d" % version)
    for name, value in parameters:
        choice = _field(3, value.encode()) if isinstance(value, str) else b"\x10" + _varint_bytes(value)
        out += _field(4, _field(1, name.encode()) + _field(2, choice))
    for tensor, datatype, n in ((b"KEYS", b"INT64", n_keys), (b"NUMKEYS", b"INT32", n_counts)):
        out += _field(5, _field(1, tensor) + _field(2, datatype) + _field(3, _varint_bytes(n)))
    for name in outputs:
        out += _field(6, _field(1, name.encode()))
    return out + b"\x3a" + _varint_bytes(n_keys * 8), b"\x3a" + _varint_bytes(n_counts * 4)


def read_infer(data: bytes) -> Tuple[int, List[Span]]:
    """The version that answered, and the positions of the outputs. All fields of the message are bytes. Raises
    Malformed."""
    at, end, version, spans = 0, len(data), b"", []
    try:
        while at < end:
            tag, size = data[at], data[at + 1]
            at += 2
            if size > 127:
                size, at = _varint(data, at - 1)
            if tag & 0x87 != 2:
                raise Malformed(f"got a field with the tag {tag}")
            if tag == 0x12:
                version = data[at:at + size]
            elif tag == 0x32:
                spans.append((at, at + size))
                if len(spans) > OUTPUTS_MAX:
                    raise Malformed(f"got more than {OUTPUTS_MAX} outputs")
            at += size
        if at > end or len(version) > VERSION_DIGITS_MAX:
            raise Malformed("got a field that is longer than its message, or a version that is too long")
        return int(version), spans
    except (IndexError, ValueError) as error:
        raise Malformed(str(error)) from None


# ---- LookupResponse ----------------------------------------------------------------------------------

class Malformed(ValueError):
    """The bytes are not a LookupResponse."""


class Result:
    """TableResult: the rows of one query, or some of them. Spans are positions in `data`."""

    __slots__ = ("data", "_table", "dim", "data_type", "row_count", "status", "column", "rows")

    def __init__(self, data: bytes, span: Span) -> None:
        field = _fields(data, span[0], span[1]).get
        self.data, self._table = data, field(1, NOTHING)
        self.dim, self.data_type, self.row_count, self.column = field(2, 0), field(3, 0), field(4, 0), field(10, 0)
        self.status: Span = field(8, NOTHING)
        self.rows: Span = field(15, NOTHING)
        _check((self.dim, self.data_type, self.row_count, self.column), (self._table, self.status, self.rows))

    @property
    def table(self) -> str:
        return _text(self.data, self._table)


@functools.lru_cache(maxsize=4096)
def _result_of(data: bytes) -> Result:
    return Result(data, (0, len(data)))


class Response:
    """LookupResponse."""

    __slots__ = ("data", "version", "results", "update_sequence", "event_time_unix_ms", "matrix", "_model", "_label")

    def __init__(self, data: bytes, results_max: int) -> None:
        field = _fields(data, 0, len(data), 4, results_max).get
        self.data: bytes = data
        self._model, self._label = field(1, NOTHING), field(3, NOTHING)
        self.version, self.update_sequence, self.event_time_unix_ms = field(2, 0), field(5, 0), field(6, 0)
        self.matrix: Span = field(15, NOTHING)
        spans: List[Span] = field(4, [])
        _check((self.version, self.update_sequence, self.event_time_unix_ms), (self._model, self._label, self.matrix, *spans))
        self.version, self.event_time_unix_ms = _signed(self.version), _signed(self.event_time_unix_ms)
        # With a matrix, results have no rows, and the same results come in many replies.
        self.results = ([Result(data, span) for span in spans] if self.matrix is NOTHING else
                        [_result_of(data[begin:end]) if end - begin <= RESULT_BYTES_MAX else Result(data, (begin, end))
                         for begin, end in spans])

    @property
    def model(self) -> str:
        return _text(self.data, self._model)

    @property
    def label(self) -> str:
        return _text(self.data, self._label)


def _check(numbers: Tuple[Any, ...], spans: Tuple[Any, ...]) -> None:
    for value in numbers:
        if value.__class__ is not int:
            raise Malformed("got bytes, expected a number")
    for value in spans:
        if value.__class__ is not tuple:
            raise Malformed("got a number, expected bytes")


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed("got a number of more than 10 bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes, at: int, end: int, repeated: int = 0, repeated_max: int = 0) -> Dict[int, Any]:
    """The fields 1 to 15 of the message in data[at:end], by number: the last value of each field, and a list of all values
    of the field `repeated`, at most repeated_max. A value is a number or the position of its bytes. Every lookup runs this
    code, so numbers below 128 are decoded inline."""
    found: Dict[int, Any] = {}
    many: List[Any] = []
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1)
        kind = tag & 7
        value: Any
        if kind == 0 or kind == 2:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1)
            if kind == 2:
                value = (at, at + value)
                at = value[1]
        elif kind == 1 or kind == 5:
            at += 8 if kind == 1 else 4
            continue  # no such field is used
        else:
            raise Malformed(f"got a field of wire type {kind}")
        if tag >> 3 == repeated:
            if len(many) == repeated_max:
                raise Malformed(f"got more than {repeated_max} values of field {repeated}")
            many.append(value)
            while at < end and data[at] == tag and data[at + 1] < 128 and kind == 2 and len(many) < repeated_max:
                many.append((at + 2, at + 2 + data[at + 1]))
                at = many[-1][1]
        elif tag < 128:
            found[tag >> 3] = value
    if at > end:
        raise Malformed("got a field that is longer than its message")
    if repeated:
        found[repeated] = many
    return found


def _text(data: bytes, span: Span) -> str:
    return data[span[0]:span[1]].decode("utf-8", "replace")


def read(data: bytes, results_max: int) -> Response:
    """Parse a LookupResponse with at most results_max results. Raises Malformed."""
    try:
        return Response(data, results_max)
    except IndexError:
        raise Malformed("the message ends within a field") from None
