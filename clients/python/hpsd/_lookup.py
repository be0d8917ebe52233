# SPDX-License-Identifier: Apache-2.0
"""A lookup without its calls: arguments to request, and reply to result. hpsd and hpsd.aio make the calls."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple, TypeVar, Union

from . import _messages
from ._answer import Again, Answer, Reading, shaped
from ._query import Options, Pooling, Query, queries, request, request_parts
from .errors import InvalidArgument, seconds

Tables = Union[str, Mapping[str, Any], Sequence[Tuple[str, Any]]]
Word = Optional[str]
Seconds = Optional[float]


class _Tensor(Protocol):
    """Matches torch.Tensor in type checks: keys as tensors give rows as tensors."""

    def data_ptr(self) -> int: ...


T = TypeVar("T", bound=_Tensor)
Keys = Union[T, Tuple[T, Any], Tuple[T, Any, Any]]

# Larger replies are streamed in pieces; each piece is copied while it is in the CPU cache.
STREAM_BYTES_MIN = 2 << 20
STREAM_BYTES_MIN_ELSE = 32 << 20  # in an event loop, where pieces cost more, and with hedging, which excludes streams


VERSIONS_MAX = 64  # in Widths


class Dims(NamedTuple):
    """Widths of the first tables of a version."""

    of_tables: Tuple[int, ...]  # values per row; 0: the version lacks the table
    width: int  # the width that all these tables have; 0: they differ


class Widths:
    """Values per row of tables: by name from the last reply, to estimate the size of the next one; and by version and
    place."""

    def __init__(self) -> None:
        self._of: Dict[str, int] = {}
        self._of_versions: Dict[Tuple[int, int], Dims] = {}

    def of_version(self, version: int, n_tables: int) -> Optional[Dims]:
        """The dims of the first tables of a version; None if unknown."""
        return self._of_versions.get((version, n_tables))

    def learn_version(self, version: int, dims: List[int]) -> Dims:
        if len(self._of_versions) >= VERSIONS_MAX:
            self._of_versions.clear()
        widths = {dim for dim in dims if dim > 0}
        self._of_versions[version, len(dims)] = made = Dims(tuple(dims), widths.pop() if len(widths) == 1 else 0)
        return made

    def expected_bytes(self, asked: List[Query]) -> int:
        size = 0
        for one in asked:
            size += one.row_count * self._of.get(one.table, 0) * 4
        return size

    def learn(self, reading: Reading) -> None:
        for query_, dim in zip(reading.asked, reading.dims):
            self._of[query_.table] = dim


class Lookup:
    """`tables` is the name of one table, with `keys`; or {name: keys}; or pairs of name and keys."""

    def __init__(self, tables: Tables, keys: Any, pooling: Pooling, concat: bool) -> None:
        self.tables = tables
        self.concat = concat
        if isinstance(tables, str):
            if keys is None:
                raise InvalidArgument(f"table {tables!r}: got no keys")
            pairs = [(tables, keys)]
        else:
            if keys is not None:
                raise InvalidArgument("keys: got keys and a mapping of tables to keys, expected only one of them")
            pairs = _pairs(tables)
        self.asked = queries(pairs, pooling)
        if concat:
            self._check_concat()

    def _check_concat(self) -> None:
        counts = [one.row_count for one in self.asked]
        if len(set(counts)) != 1:
            raise InvalidArgument(f"concat: got {counts} bags or keys for tables {[one.table for one in self.asked]}, "
                                  "expected the same number for each, and at least one table")

    def request(self, model: str, version: int, options: Options) -> bytes:
        return request(model, version, self.asked, options, self.concat)

    def path(self, widths: Widths, likes_pieces: bool) -> str:
        """The RPC to call: the streaming one if the reply is large."""
        large = self.expected_bytes(widths) >= (STREAM_BYTES_MIN if likes_pieces else STREAM_BYTES_MIN_ELSE)
        return _messages.LOOKUP_STREAM if large else _messages.LOOKUP

    def expected_bytes(self, widths: Widths) -> int:
        return widths.expected_bytes(self.asked)

    def begin(self) -> Reading:
        return Reading(self.asked, self.concat)

    def _as_given(self, of_queries: List[Any]) -> Any:
        """The items of `of_queries`, in the form of `tables`."""
        if isinstance(self.tables, str):
            return of_queries[0]
        return dict(zip(self.tables, of_queries)) if isinstance(self.tables, Mapping) else of_queries

    def _rows(self, reading: Reading) -> Any:
        if not self.concat:
            return self._as_given([shaped(one, block) for one, block in zip(self.asked, reading.blocks)])
        return shaped(self.asked[0], reading.blocks[0])

    def result(self, reading: Reading, full: bool) -> Any:
        head = reading.end()
        rows = self._rows(reading)
        if not full:
            return rows
        columns = self._as_given(reading.columns()) if self.concat else None
        return Answer(rows, self._as_given(reading.statuses()), columns, head.model, head.version,
                      head.label, head.update_sequence, head.event_time_unix_ms)


class Repeated(Lookup):
    """A lookup of one matrix that is repeated with other keys, as many in each query as in `tables`, and at least one. All
    but the keys is serialised once."""

    def __init__(self, tables: Tables, pooling: Pooling, model: str, version: int, options: Options, places: List[slice],
                 n_bytes: int) -> None:
        """places: of the keys of each query among all keys. n_bytes: the size of the rows."""
        super().__init__(tables, None, pooling, True)
        self._places, self._n_bytes, self._parts = places, n_bytes, [b""]
        self._last: Dict[str, Any] = {}
        of_keys = {id(one.keys) for one in self.asked}
        for part in request_parts(model, version, self.asked, options, True):
            if id(part) in of_keys:
                self._parts += [b"", b""]
            else:
                self._parts[-1] += bytes(part)

    def request_of(self, keys: Any) -> bytes:
        """The request with these keys, an array of int64 LE."""
        parts: List[Any] = self._parts[:]
        of_keys = memoryview(keys)
        parts[1::2] = [of_keys[place] for place in self._places]
        return b"".join(parts)

    def expected_bytes(self, widths: Widths) -> int:
        return self._n_bytes

    def begin(self) -> Reading:
        return Again(self.asked, self._last)


def _pairs(tables: Any) -> List[Tuple[str, Any]]:
    if isinstance(tables, Mapping):
        return list(tables.items())
    if isinstance(tables, Sequence) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in tables):
        return list(tables)
    raise InvalidArgument(f"tables: got {type(tables).__name__}, expected the name of a table, a mapping of names to keys, "
                          "or a list of pairs of them")


class Defaults:
    """Defaults of the calls of a client."""

    def __init__(self, model: str, timeout: float, hedge_ms: Optional[float]) -> None:
        if not isinstance(model, str):
            raise InvalidArgument(f"model: got {model!r}, expected its name")
        self.model = model
        self.timeout = seconds(timeout, "timeout")
        self.hedge_s = None if hedge_ms is None else seconds(hedge_ms, "hedge_ms", 1e-3)

    def timeout_of(self, timeout: Seconds) -> float:
        """The timeout of a call with this argument, in seconds."""
        return self.timeout if timeout is None else seconds(timeout, "timeout")


__all__ = ["Answer", "Defaults", "Dims", "Keys", "Lookup", "Options", "Pooling", "Reading", "Repeated", "Seconds", "T", "Tables", "Widths",
           "Word"]
