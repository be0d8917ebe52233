# SPDX-License-Identifier: Apache-2.0
"""Queries of a request: keys of any integer type and shape, bags, and weights."""
from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from . import _messages, _wire
from .errors import InvalidArgument, in_range

POOLINGS = _messages.words("Pooling", "POOLING_")
OUTPUTS = {word: number for word, number in _messages.words("DataType", "DATA_TYPE_").items() if not word.startswith("int8")}
MISS_POLICIES = _messages.words("MissPolicy", "MISS_POLICY_")
UNKNOWN_POLICIES = _messages.words("UnknownKeyPolicy", "UNKNOWN_KEY_POLICY_")
CONSISTENCIES = _messages.words("Consistency", "CONSISTENCY_")
_UINT32_MAX = 2**32 - 1
NOT_POOLED = POOLINGS["none"]
_INT64: "np.dtype[Any]" = np.dtype("<i8")
CONCAT = _messages.words("RowLayout", "ROW_LAYOUT_")["concat"]

Pooling = Union[None, str, Mapping[str, Optional[str]]]

_NUMPY_OUTPUTS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass
class Query:
    """Keys of one table. Pooled: bag b has the keys offsets[b] to offsets[b + 1] - 1."""

    table: str
    keys: npt.NDArray[Any]  # int64 LE, one dimension
    shape: Tuple[int, ...]  # of the rows, without the last dimension
    keys_shape: Tuple[int, ...]  # shape of the given keys
    offsets: Optional[npt.NDArray[Any]] = None  # uint32 LE
    weights: Optional[npt.NDArray[Any]] = None  # float32 LE
    pooling: int = NOT_POOLED
    like: Any = None  # the torch.Tensor with the keys, or None

    @property
    def row_count(self) -> int:
        return len(self.keys) if self.offsets is None else len(self.offsets) - 1

    def parts(self) -> List[Any]:
        """The serialised query, in parts."""
        pooling = 0 if self.offsets is None else self.pooling
        return _wire.query_parts(self.table.encode(), self.keys, self.offsets, self.weights, pooling)


@dataclass(frozen=True)
class Options:
    """Options of all queries of a request."""

    miss: Optional[str] = None
    max_wait: Optional[float] = None  # s
    unknown: Optional[str] = None
    output: Any = None
    max_staleness: Optional[float] = None  # s
    consistency: Optional[str] = None


def is_tensor(value: object) -> bool:
    """Whether `value` is a torch.Tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def as_array(value: Any, what: str) -> npt.NDArray[Any]:
    """`value` as an array, without a copy if possible. bfloat16, which numpy lacks, becomes float32."""
    if is_tensor(value):
        torch: Any = sys.modules["torch"]
        if value.layout is not torch.strided or value.is_nested:
            raise InvalidArgument(f"{what}: got a sparse or nested tensor, expected a dense one; bags of different sizes are "
                                  "(keys, offsets)")
        try:
            dense = value.detach().cpu()
            return np.asarray((dense.float() if dense.dtype is torch.bfloat16 else dense).numpy())
        except (TypeError, NotImplementedError):
            raise InvalidArgument(f"{what}: got a tensor of {value.dtype} on the device {value.device}, expected values that "
                                  "numpy can hold") from None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{what}: got a {type(value).__name__} that is not an array, expected lists of the same length; "
                              "bags of different sizes are (keys, offsets)") from None
    if array.size == 0 and array.dtype == np.float64 and not isinstance(value, np.ndarray):
        return array.astype(np.int64)  # an empty list has no type
    return array


def integers(value: Any, what: str) -> npt.NDArray[Any]:
    array = as_array(value, what)
    if array.dtype.kind in "iu":
        return array
    # For lists with values below and above 2^63 numpy has no integer dtype, and uses float64.
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and not isinstance(value, np.ndarray) and not is_tensor(value)):
        exact = np.array(value, object)
        if all(isinstance(one, (int, np.integer)) for one in exact.flat):
            return _of_python_integers(exact, what)
    got = str(value.dtype).rpartition(".")[2] if is_tensor(value) else array.dtype
    raise InvalidArgument(f"{what}: got {got}, expected any integer dtype")


def _of_python_integers(exact: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """The integers as uint64 with the same 64 bits."""
    for one in exact.flat:
        if not -2**63 <= one < 2**64:
            raise InvalidArgument(f"{what}: got {one}, expected integers from -2^63 to 2^64 - 1")
    return np.array([int(one) % 2**64 for one in exact.flat], np.uint64).reshape(exact.shape)


def key_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The keys as int64 LE. Keys above 2^63 - 1 keep their 64 bits."""
    if array.ndim != 1:
        array = array.reshape(-1)
    return np.ascontiguousarray(array, _INT64)


def offset_bytes(value: Any, n_keys: int, what: str) -> npt.NDArray[Any]:
    offsets = integers(value, what)
    if offsets.ndim != 1 or len(offsets) == 0:
        raise InvalidArgument(f"{what}: got shape {offsets.shape}, expected one dimension of bags + 1 values")
    wide = offsets.astype(np.int64, copy=False)
    if wide[0] != 0 or wide[-1] != n_keys or np.any(wide[1:] < wide[:-1]):
        raise InvalidArgument(f"{what}: got {len(wide)} values from {wide[0]} to {wide[-1]}, expected bags + 1 "
                              f"values that begin with 0, never decrease and end with {n_keys}, the number of keys")
    return wide.astype("<u4")


def _weight_bytes(value: Any, n_keys: int, what: str) -> npt.NDArray[Any]:
    weights = as_array(value, what)
    if weights.dtype.kind not in "fiu" or weights.size != n_keys:
        raise InvalidArgument(f"{what}: got {weights.size} values of {weights.dtype}, expected {n_keys} real numbers, "
                              "one for each key")
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(weights.reshape(-1)).astype("<f4", copy=False)
    except FloatingPointError:
        raise InvalidArgument(f"{what}: got values of {weights.dtype} that float32 cannot hold") from None


def number_of(words: Mapping[str, int], word: Optional[str], what: str) -> int:
    """The number of `word`; 0, the default of the server, for None."""
    if word is None:
        return 0
    number = words.get(word) if isinstance(word, str) else None
    if number is None:
        raise InvalidArgument(f"{what}: got {word!r}, expected one of {', '.join(words)}")
    return number


def output_number(output: Any) -> int:
    if output is None or isinstance(output, str):
        return number_of(OUTPUTS, output, "output")
    name = str(output).rpartition(".")[2] if is_torch_dtype(output) else _dtype_name(output)
    return number_of(OUTPUTS, _NUMPY_OUTPUTS.get(name, name), "output")


def is_torch_dtype(value: object) -> bool:
    return type(value).__module__ == "torch" and type(value).__name__ == "dtype"


def _dtype_name(output: Any) -> str:
    try:
        return np.dtype(output).name
    except TypeError:
        return repr(output)


def _split(spec: Any, what: str) -> Tuple[Any, Any, Any]:
    """Split `spec` into keys, offsets and weights."""
    if not isinstance(spec, tuple):
        return spec, None, None
    if len(spec) not in (2, 3) or isinstance(spec[0], (int, np.integer)):
        raise InvalidArgument(f"{what}: got a tuple of {len(spec)}, expected (keys, offsets) or (keys, offsets, "
                              "weights); keys alone are a list or an array")
    return spec[0], spec[1], spec[2] if len(spec) == 3 else None


def query(table: str, spec: Any, pooling: Optional[str] = None) -> Query:
    """One query. `spec`: keys, (keys, offsets) or (keys, offsets, weights). Pooled without offsets: the last dimension
    of the keys is a bag."""
    what = f"table {table!r}"
    if not isinstance(table, str):
        raise InvalidArgument(f"{what}: got {type(table).__name__}, expected the name of a table")
    given, offsets, weights = _split(spec, what)
    keys = integers(given, f"{what}, keys")
    made = Query(table, key_bytes(keys), keys.shape, keys.shape, like=given if is_tensor(given) else None)
    made.pooling = number_of(POOLINGS, pooling, f"{what}, pooling") or NOT_POOLED
    n_keys = len(made.keys)
    if made.pooling == NOT_POOLED:
        if offsets is not None or weights is not None:
            raise InvalidArgument(f"{what}: got offsets without pooling, expected pooling= one of "
                                  f"{', '.join(word for word in POOLINGS if word != 'none')}")
        return made
    if weights is not None:
        made.weights = _weight_bytes(weights, n_keys, f"{what}, weights")
    if offsets is not None:
        made.offsets = offset_bytes(offsets, n_keys, f"{what}, offsets")
        made.shape = (made.row_count,)
    elif keys.ndim == 0:
        raise InvalidArgument(f"{what}, keys: got a single key with pooling {pooling!r}, expected at least one dimension")
    else:
        made.shape = keys.shape[:-1]
        n_bags = int(np.prod(made.shape, dtype=np.int64))
        made.offsets = (np.arange(n_bags + 1, dtype=np.int64) * keys.shape[-1]).astype("<u4")
    return made


def queries(pairs: Sequence[Tuple[str, Any]], pooling: Pooling) -> List[Query]:
    """A query for each pair of a table and its keys."""
    if not isinstance(pooling, Mapping):
        return [query(table, spec, pooling) for table, spec in pairs]
    names = [table for table, _ in pairs]
    unknown = [table for table in pooling if table not in names]
    if unknown:
        raise InvalidArgument(f"pooling: got table {unknown[0]!r}, expected tables of the lookup: "
                              f"{', '.join(map(repr, names))}")
    return [query(table, spec, pooling.get(table)) for table, spec in pairs]


def whole(seconds: Optional[float], unit: float, what: str) -> int:
    """Seconds as a number of units in a uint32, at least 1; 0 for None."""
    if seconds is None:
        return 0
    return max(1, round(in_range(seconds, what, 0, _UINT32_MAX / unit, "seconds") * unit))


# Fields of LookupRequest.
_VERSION, _MISS_POLICY, _MAX_WAIT_US, _UNKNOWN_KEY_POLICY, _OUTPUT_TYPE = 2, 4, 5, 6, 7
_MAX_STALENESS_MS, _CONSISTENCY, _ROW_LAYOUT = 10, 11, 12
_NO_OPTIONS = Options()


def request_parts(model: str, version: int, asked: List[Query], options: Options, concat: bool) -> List[Any]:
    """hps.v1.LookupRequest, serialised in parts. concat: request one matrix of all tables."""
    numbers = {_VERSION: version, _ROW_LAYOUT: CONCAT if concat else 0}
    if options != _NO_OPTIONS:
        numbers[_MISS_POLICY] = number_of(MISS_POLICIES, options.miss, "miss")
        numbers[_MAX_WAIT_US] = whole(options.max_wait, 1e6, "max_wait")
        numbers[_UNKNOWN_KEY_POLICY] = number_of(UNKNOWN_POLICIES, options.unknown, "unknown")
        numbers[_OUTPUT_TYPE] = output_number(options.output)
        numbers[_MAX_STALENESS_MS] = whole(options.max_staleness, 1e3, "max_staleness")
        numbers[_CONSISTENCY] = number_of(CONSISTENCIES, options.consistency, "consistency")
    parts = [_wire.request_head(model.encode(), numbers)]
    for one in asked:
        parts += one.parts()
    return parts


def request(model: str, version: int, asked: List[Query], options: Options, concat: bool) -> bytes:
    return b"".join(request_parts(model, version, asked, options, concat))
