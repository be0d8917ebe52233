# SPDX-License-Identifier: Apache-2.0
"""lookup_flat: one array of keys for all tables, and one array of rows. It calls ModelInfer of KServe, whose reply has
one array for any number of tables."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from . import _wire
from ._answer import BF16, FP16, FP32, VALUES, as_tensor
from ._lookup import Dims, Lookup
from ._query import MISS_POLICIES, Options, integers, is_tensor, key_bytes, number_of, output_number, whole
from .errors import InvalidArgument, malformed

_DATATYPES = {FP32: "FP32", FP16: "FP16", BF16: "BF16"}


@dataclass(frozen=True)
class FlatAnswer:
    """The result of lookup_flat with full=True."""

    rows: Any
    status: npt.NDArray[np.uint8]  # Status of each key
    dims: Tuple[int, ...]  # values per row of each table in counts; 0: the version lacks the table
    version: int


class Flat:
    """One call of lookup_flat: its request and its reply."""

    def __init__(self, keys: Any, counts: Any, miss: Optional[str], max_wait: Optional[float], output: Any,
                 full: bool) -> None:
        self.keys = key_bytes(integers(keys, "keys"))
        self.counts = integers(counts, "counts")
        self.full = full
        self._like = keys if is_tensor(keys) else None
        n_keys = len(self.keys)
        if self.counts.ndim != 1 or len(self.counts) == 0:
            raise InvalidArgument(f"counts: got shape {self.counts.shape}, expected one dimension with a count for each table")
        listed = self.counts.tolist()  # faster than ufuncs for so few values
        if min(listed) < 0 or sum(listed) != n_keys:
            raise InvalidArgument(f"counts: got {listed}, expected numbers of 0 or more with the sum {n_keys}, the number of keys")
        self._values = FP32
        self._parameters: List[Tuple[str, Any]] = []
        if miss is not None:
            number_of(MISS_POLICIES, miss, "miss")
            self._parameters.append(("hps_miss_policy", miss))
        if max_wait is not None:
            self._parameters.append(("hps_max_wait_us", whole(max_wait, 1e6, "max_wait")))
        if output is not None:
            self._values = output_number(output)
            if self._values not in _DATATYPES:
                raise InvalidArgument(f"output: got {output!r}, expected one of fp32, fp16, bf16; client.lookup supports the others")
            self._parameters.append(("hps_output_type", _DATATYPES[self._values]))

    def request(self, model: str, version: int) -> bytes:
        """inference.ModelInferRequest, serialised."""
        head, between = _wire.infer_head(model, version, tuple(self._parameters), len(self.keys), len(self.counts),
                                         ("OUTPUT0", "STATUS") if self.full else ())
        parts: List[Any] = [head, self.keys, between, np.ascontiguousarray(self.counts, "<i4")]
        return b"".join(parts)

    def read(self, data: bytes) -> int:
        """Read an inference.ModelInferResponse. Returns the version that answered."""
        try:
            version, self._tensors = _wire.read_infer(data)
        except _wire.Malformed as error:
            raise malformed(error) from None
        if len(self._tensors) != 1 + self.full:
            raise malformed(f"got {len(self._tensors)} outputs, expected {1 + self.full}")
        self._data = data
        return version

    def dims_lookup(self) -> Lookup:
        """A lookup without keys. Its reply has the dims of the tables."""
        return Lookup([("", [])] * len(self.counts), None, None, False)

    def _shape(self, dims: Dims) -> Tuple[int, ...]:
        return (len(self.keys), dims.width) if dims.width else (int(np.dot(self.counts, dims.of_tables)),)

    def fits(self, dims: Dims) -> bool:
        """Whether the size of the reply matches rows of these widths."""
        begin, end = self._tensors[0]
        return end - begin == math.prod(self._shape(dims)) * VALUES[self._values].itemsize

    def result(self, version: int, dims: Dims) -> Any:
        """The result of the call. dims: of the tables, in the version that answered."""
        n_keys, shape = len(self.keys), self._shape(dims)
        begin, end = self._tensors[0]
        if not self.fits(dims):
            raise malformed(f"got {end - begin} bytes for rows of shape {shape}")
        rows: Any = np.ndarray(shape, VALUES[self._values], self._data, begin).copy()
        if self._like is not None:
            rows = as_tensor(rows).to(self._like.device)
        if not self.full:
            return rows
        begin, end = self._tensors[1]
        if end - begin != n_keys:
            raise malformed(f"got {end - begin} statuses for {n_keys} keys")
        return FlatAnswer(rows, np.frombuffer(self._data, np.uint8, n_keys, begin).copy(), dims.of_tables, version)
