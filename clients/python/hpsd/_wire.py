# SPDX-License-Identifier: Apache-2.0
"""LookupResponse from its bytes. protobuf would copy the rows twice before anybody sees them; here a message is walked
through and says where they lie."""
from __future__ import annotations

from typing import Any, Dict, List, Tuple

Span = Tuple[int, int]  # of bytes of the message: begin, end
NOTHING: Span = (0, 0)


class Malformed(ValueError):
    """The bytes are not a LookupResponse."""


class Result:
    """TableResult: of one query, or of some of its rows."""

    __slots__ = ("table", "dim", "data_type", "row_count", "status", "column", "rows")

    def __init__(self) -> None:
        self.table, self.dim, self.data_type, self.row_count, self.column = "", 0, 0, 0, 0
        self.status: Span = NOTHING
        self.rows: Span = NOTHING


class Response:
    """LookupResponse."""

    __slots__ = ("data", "model", "version", "label", "results", "update_sequence", "event_time_unix_ms", "matrix")

    def __init__(self, data: bytes) -> None:
        self.data, self.model, self.label = data, "", ""
        self.version, self.update_sequence, self.event_time_unix_ms = 0, 0, 0
        self.results: List[Result] = []
        self.matrix: Span = NOTHING


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
            raise Malformed("a number of more than 10 bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes, at: int, end: int, repeated: int = 0) -> Dict[int, Any]:
    """The fields of the message in data[at:end] by their numbers: of each the last one, or all in a list of the one that
    is repeated. A value is a number, or where its bytes are. Every look-up comes by here, so what is usual, numbers
    below 128, is not left to a function."""
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
            continue  # none that is looked at
        else:
            raise Malformed(f"a field of wire type {kind}")
        if tag >> 3 == repeated:
            many.append(value)
        else:
            found[tag >> 3] = value
    if at > end:
        raise Malformed("a field that is longer than its message")
    if repeated:
        found[repeated] = many
    return found


def _text(data: bytes, span: Span) -> str:
    return data[span[0]:span[1]].decode("utf-8", "replace")


def _read_result(data: bytes, span: Span) -> Result:
    field = _fields(data, *span).get
    result = Result()
    result.table = _text(data, field(1, NOTHING))
    result.dim, result.data_type, result.row_count, result.column = field(2, 0), field(3, 0), field(4, 0), field(10, 0)
    result.status, result.rows = field(8, NOTHING), field(15, NOTHING)
    return result


def read(data: bytes) -> Response:
    """Raises Malformed."""
    response = Response(data)
    try:
        field = _fields(data, 0, len(data), repeated=4).get
        response.model, response.label = _text(data, field(1, NOTHING)), _text(data, field(3, NOTHING))
        response.version, response.event_time_unix_ms = _signed(field(2, 0)), _signed(field(6, 0))
        response.update_sequence = field(5, 0)
        response.matrix = field(15, NOTHING)
        response.results = [_read_result(data, span) for span in field(4, ())]
    except IndexError:
        raise Malformed("it ends within a field") from None
    except (TypeError, ValueError) as error:
        raise Malformed(f"a number where bytes were expected, or bytes where a number was: {error}") from None
    return response
