# SPDX-License-Identifier: Apache-2.0
"""Replies to arrays. Rows are copied once, from the message to the array that the caller gets."""
from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import grpc
import numpy as np
import numpy.typing as npt

from . import _wire
from ._query import Query
from .errors import Error, malformed

FP32, FP16, BF16 = 1, 2, 3
DIM_MAX = 65536  # values per row of any table; bounds the memory for rows that a reply announces
AGAIN_BYTES_MAX = 1 << 16  # of replies that are kept to compare the next one with
ALIGNMENT = 64  # of arrays, in bytes
_INT8_BYTES_MORE = {4: 8, 5: 4}  # bytes after the values, by type: scale and bias in fp32 or fp16
VALUES: Dict[int, "np.dtype[Any]"] = {FP32: np.dtype("<f4"), FP16: np.dtype("<f2"), BF16: np.dtype("<u2")}


class Status(enum.IntEnum):
    """Where the row of a key comes from."""

    FOUND = 1
    DEFAULTED = 2  # the default row; the server did not wait for the true row
    UNKNOWN = 3  # no tier has the key


@dataclass(frozen=True)
class Answer:
    """The result of a lookup with full=True. For several tables `rows`, `status` and `columns` are a dictionary or a
    list, like the tables in the call. With concat=True `rows` is one matrix."""

    rows: Any
    status: Any  # Status of each key as uint8, in the shape of the keys
    columns: Any  # with concat=True: the columns of each table, as slices; else None
    model: str
    version: int
    label: str
    update_sequence: int  # the rows include at least this many batches of updates
    event_time_unix_ms: int  # event time of the newest of these updates; 0: none


def _layout(result: _wire.Result) -> Tuple[int, "np.dtype[Any]"]:
    """The number and type of the elements of a row. INT8 rows are bytes: the values, then scale and bias."""
    if result.dim > DIM_MAX:
        raise _wire.Malformed(f"table {result.table!r} has rows of {result.dim} values, expected at most {DIM_MAX}")
    if result.data_type in _INT8_BYTES_MORE:
        return result.dim + _INT8_BYTES_MORE[result.data_type], np.dtype(np.uint8)
    values = VALUES.get(result.data_type or FP32)
    if values is None:
        raise _wire.Malformed(f"table {result.table!r} has rows of the unknown type {result.data_type}")
    return result.dim, values


class Memory:
    """One allocation for the arrays of all tables of a message: one for each would cost more than the copies."""

    def __init__(self, size: int, n: int) -> None:
        """For n arrays of `size` bytes in total."""
        self.of_one = n == 1
        self._bytes = None if n < 2 else np.empty(size + n * ALIGNMENT, np.uint8)
        self._used = 0

    def take(self, shape: Tuple[int, int], values: "np.dtype[Any]") -> "npt.NDArray[Any]":
        if self._bytes is None:
            return np.empty(shape, values)
        size = shape[0] * shape[1] * values.itemsize
        begin = self._used
        if begin + size > self._bytes.size:
            return np.empty(shape, values)
        self._used = begin + (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return np.ndarray(shape, values, self._bytes, begin)


class Block:
    """An array of rows, filled in order from the messages of a reply."""

    def __init__(self, row_count: int) -> None:
        self.row_count = row_count
        self.filled = 0
        self.rows: Optional[npt.NDArray[Any]] = None

    def complete(self) -> bool:
        return self.rows is not None and self.filled == self.row_count

    def add(self, data: bytes, span: _wire.Span, shape: Tuple[int, int], values: "np.dtype[Any]", memory: Memory) -> None:
        """Append the next rows. Raises _wire.Malformed."""
        begin, end = span
        n, width = shape
        if self.filled + n > self.row_count or end - begin != n * width * values.itemsize:
            raise _wire.Malformed(f"got {n} rows of {width} values in {end - begin} bytes, expected at most "
                                  f"{self.row_count - self.filled} rows")
        there: npt.NDArray[Any] = np.ndarray(shape, values, data, begin)
        if n == self.row_count and memory.of_one:
            self.rows = there.copy()
        elif self.rows is None:
            self.rows = memory.take((self.row_count, width), values)
            self.rows[:n] = there
        elif self.rows.shape[1] == width and self.rows.dtype == values:
            self.rows[self.filled:self.filled + n] = there
        else:
            raise _wire.Malformed("the width or type of rows changes within the reply")
        self.filled += n


class Statuses:
    """The status of each key of a query."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._status: Optional[npt.NDArray[np.uint8]] = None  # None: all keys so far were found

    def add(self, data: bytes, span: _wire.Span, row: int, n: int) -> None:
        """Set the statuses of the keys of n rows, beginning with `row`. Raises _wire.Malformed."""
        begin, end = span
        offsets = self._query.offsets
        first, last = (row, row + n) if offsets is None else (int(offsets[row]), int(offsets[row + n]))
        if end - begin != last - first:
            raise _wire.Malformed(f"got {end - begin} statuses for {last - first} keys")
        if self._status is None:
            self._status = np.full(len(self._query.keys), Status.FOUND, np.uint8)
        self._status[first:last] = np.frombuffer(data, np.uint8, end - begin, begin)

    def shaped(self) -> npt.NDArray[np.uint8]:
        status = self._status
        if status is None:
            status = np.full(len(self._query.keys), Status.FOUND, np.uint8)
        return status.reshape(self._query.keys_shape)


class Reading:
    """The reply to a request while its messages arrive: one message, or a stream."""

    def __init__(self, asked: List[Query], concat: bool = False) -> None:
        self.asked = asked
        self._statuses: Dict[int, Statuses] = {}  # only of queries with keys that were not found
        self.dims = [0] * len(asked)
        self.head: Optional[_wire.Response] = None
        # One for each query, or one for all queries.
        self.blocks = [Block(query.row_count) for query in (asked[:1] if concat else asked)]
        self._concat = concat
        self._at = 0  # index of the next block

    def add(self, data: bytes) -> None:
        """Add the next message."""
        try:
            response = _wire.read(data, len(self.asked))
            memory = Memory(len(data), len(response.results))
            if self._concat:
                self._add_matrix(response, memory)
            else:
                for result in response.results:
                    self._add_result(result, memory)
        except _wire.Malformed as error:
            raise malformed(error) from None
        if self.head is None:
            self.head = response

    def _add_result(self, result: _wire.Result, memory: Memory) -> None:
        if self._at == len(self.blocks):
            raise _wire.Malformed(f"got more results than the {len(self.blocks)} queries")
        block = self.blocks[self._at]
        row = block.filled
        width, values = _layout(result)
        block.add(result.data, result.rows, (result.row_count, width), values, memory)
        if result.status != _wire.NOTHING:
            self._statuses_of(self._at).add(result.data, result.status, row, result.row_count)
        self.dims[self._at] = result.dim
        self._at += block.complete()

    def _add_matrix(self, response: _wire.Response, memory: Memory) -> None:
        results = response.results
        if len(results) != len(self.asked):
            raise _wire.Malformed(f"got {len(results)} results for {len(self.asked)} queries")
        if self._at == len(self.blocks):
            raise _wire.Malformed("got more rows than bags or keys")
        block = self.blocks[0]
        row, n, column, dims, with_status = block.filled, results[0].row_count, 0, [], []
        for i, result in enumerate(results):
            if result.row_count != n or result.column != column:
                raise _wire.Malformed(f"table {result.table!r} has {result.row_count} rows from column {result.column}, "
                                      f"expected {n} from column {column}")
            dims.append(result.dim)
            column += result.dim
            if result.status is not _wire.NOTHING:
                with_status.append(i)
        self.dims = dims
        block.add(response.data, response.matrix, (n, column), _layout(results[0])[1], memory)
        for i in with_status:
            self._statuses_of(i).add(results[i].data, results[i].status, row, n)
        self._at += block.complete()

    def end(self) -> _wire.Response:
        """The fields that all messages share, after the last message."""
        if self.head is None or self._at < len(self.blocks):
            raise Error(f"the reply ended after {self._at} of {len(self.blocks)} tables", grpc.StatusCode.INTERNAL)
        return self.head

    def _statuses_of(self, i: int) -> "Statuses":
        return self._statuses.setdefault(i, Statuses(self.asked[i]))

    def statuses(self) -> List[npt.NDArray[np.uint8]]:
        """The statuses of the keys of each query."""
        return [self._statuses_of(i).shaped() for i in range(len(self.asked))]

    def columns(self) -> List[slice]:
        """The columns of each query in the matrix."""
        ends = np.cumsum([0, *self.dims]).tolist()
        return [slice(begin, end) for begin, end in zip(ends, ends[1:])]


class Again(Reading):
    """A reply with one matrix and without statuses. If it begins like the last reply, this part is not parsed. Only replies of
    one message that end with the matrix are compared."""

    def __init__(self, asked: List[Query], last: Dict[str, Any]) -> None:
        super().__init__(asked, True)
        self._last = last  # "reply": the bytes before the matrix, and their values

    def add(self, data: bytes) -> None:
        begins, size, like, head, dims = self._last.get("reply", (data, 0, None, None, None))
        first = self.head is None
        if first and len(data) == size and data.startswith(begins):
            self.head, self.dims, self._at = head, dims, 1
            self.blocks[0].rows = np.ndarray(like[0], like[1], data, len(begins)).copy()
            return
        super().add(data)
        rows = self.blocks[0].rows
        if first and self._at == 1 and self.head is not None and rows is not None and \
                self.head.matrix[1] == len(data) <= AGAIN_BYTES_MAX:
            self._last["reply"] = data[:self.head.matrix[0]], len(data), (rows.shape, rows.dtype), self.head, self.dims


def as_tensor(rows: npt.NDArray[Any]) -> Any:
    """The same memory as a torch.Tensor."""
    torch: Any = sys.modules["torch"]
    if rows.dtype == VALUES[BF16]:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


def shaped(query: Query, block: Block) -> Any:
    """The rows as the caller gets them: an array, or a tensor if the keys were a tensor."""
    assert block.rows is not None
    rows = block.rows.reshape(*query.shape, block.rows.shape[1])
    return rows if query.like is None else as_tensor(rows).to(query.like.device)
