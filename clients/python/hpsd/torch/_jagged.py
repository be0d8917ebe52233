# SPDX-License-Identifier: Apache-2.0
"""The tensor classes of TorchRec collections: from torchrec if it is installed, otherwise equivalent ones."""
from __future__ import annotations

import itertools
from typing import Any, Dict, List, Optional, Tuple

import torch


class JaggedTensor:
    """Rows of bags of different sizes, like torchrec.JaggedTensor."""

    def __init__(self, values: torch.Tensor, weights: Optional[torch.Tensor] = None,
                 lengths: Optional[torch.Tensor] = None, offsets: Optional[torch.Tensor] = None) -> None:
        self._values, self._weights = values, weights
        if offsets is None:
            assert lengths is not None
            offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        self._offsets = offsets
        self._lengths = offsets[1:] - offsets[:-1] if lengths is None else lengths

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def offsets(self) -> torch.Tensor:
        return self._offsets

    def weights_or_none(self) -> Optional[torch.Tensor]:
        return self._weights

    def to_dense(self) -> List[torch.Tensor]:
        """The rows of each bag."""
        ends = self._offsets.tolist()
        return [self._values[begin:end] for begin, end in zip(ends, ends[1:])]


class KeyedTensor:
    """A matrix with named columns, like torchrec.KeyedTensor."""

    def __init__(self, keys: List[str], length_per_key: List[int], values: torch.Tensor) -> None:
        self._keys, self._length_per_key, self._values = keys, length_per_key, values
        ends = list(itertools.accumulate(length_per_key, initial=0))
        self._columns = {key: slice(begin, end) for key, begin, end in zip(keys, ends, ends[1:])}

    def keys(self) -> List[str]:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def length_per_key(self) -> List[int]:
        return self._length_per_key

    def offset_per_key(self) -> List[int]:
        return [0, *(columns.stop for columns in self._columns.values())]

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._values[:, self._columns[key]]

    def to_dict(self) -> Dict[str, torch.Tensor]:
        return {key: self[key] for key in self._keys}


def classes() -> Tuple[Any, Any]:
    """The classes KeyedTensor and JaggedTensor for results."""
    try:
        import torchrec
    except ImportError:
        return KeyedTensor, JaggedTensor
    return torchrec.KeyedTensor, torchrec.JaggedTensor
