# SPDX-License-Identifier: Apache-2.0
"""Embedding and EmbeddingBag: the forward passes of the torch.nn layers, with rows from hpsd."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
import numpy.typing as npt
import torch

from .._client import Client
from .._query import integers, offset_bytes
from ..errors import InvalidArgument, in_range
from ._calls import Layer, Tensors, check_client


def check_dim(table: str, expected: Optional[int], there: int) -> None:
    if expected is not None and expected != there:
        raise InvalidArgument(f"table {table!r}: got rows of {there} values, expected {expected}")


def dim_of(client: Client, table: str) -> int:
    """Values per row. Asks the server."""
    return int(client.lookup(table, []).shape[-1])


def key_of_padding(padding_idx: Optional[int], num_embeddings: Optional[int]) -> Optional[int]:
    """The key that padding_idx means. As in torch, a negative one counts back from num_embeddings."""
    if padding_idx is None:
        return None
    least, most, expected = 0, 2**64 - 1, "num_embeddings, from which torch counts a negative one back, or a whole number"
    if num_embeddings is not None:
        n_rows = int(in_range(num_embeddings, "num_embeddings", 1, 2**63, "a whole number", whole=True))
        least, most, expected = -n_rows, n_rows - 1, "a whole number"
    key = int(in_range(padding_idx, "padding_idx", least, most, expected, whole=True))
    return key if key >= 0 else key + most + 1


class _OfOneTable(Layer):
    """embedding_dim: values per row; if it is None, the constructor asks the server."""

    def __init__(self, client: Client, table: str, embedding_dim: Optional[int], options: Any, **arguments: Any) -> None:
        if embedding_dim is None:
            check_client(client)
            embedding_dim = dim_of(client, table)
        super().__init__(client, options, table=table, embedding_dim=embedding_dim, **arguments)
        self.table, self.embedding_dim = table, embedding_dim

    def extra_repr(self) -> str:
        return f"{self.table!r}, {self.embedding_dim}"


class Embedding(_OfOneTable):
    """Replaces torch.nn.Embedding: from an input of any shape to rows of shape input.shape + (embedding_dim,).

    padding_idx: as in torch, this key is looked up like any other.
    num_embeddings: rows of the trained layer; a negative padding_idx counts back from it.
    """

    kind = "Embedding"

    def __init__(self, client: Client, table: str, embedding_dim: Optional[int] = None, *,
                 padding_idx: Optional[int] = None, num_embeddings: Optional[int] = None, **options: Any) -> None:
        padding_idx = key_of_padding(padding_idx, num_embeddings)
        super().__init__(client, table, embedding_dim, options, padding_idx=padding_idx)
        self.padding_idx = padding_idx

    def lookup_rows(self, client: Client, tensors: Tensors, layout: Sequence[int], output: str) -> torch.Tensor:
        rows: torch.Tensor = client.lookup(self.table, tensors[0], output=output, **self.options)
        check_dim(self.table, self.embedding_dim, rows.shape[-1])
        return rows

    def shape(self, tensors: Tensors, layout: Sequence[Any]) -> List[Any]:
        assert tensors[0] is not None
        return [*tensors[0].shape, self.embedding_dim]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.rows(input)


class EmbeddingBag(_OfOneTable):
    """Replaces torch.nn.EmbeddingBag with mode "sum" or "mean": from bags of keys to one row for each bag.

    input: two dimensions, for bags of one size; or one dimension, with offsets where each bag begins. With
    include_last_offset the offsets also say where the last bag ends.
    per_sample_weights: only with mode "sum".
    padding_idx: keys equal to it are left out of bags, of their sums and of the divisor of a mean.
    num_embeddings: as in Embedding.
    """

    kind = "EmbeddingBag"

    def __init__(self, client: Client, table: str, embedding_dim: Optional[int] = None, *, mode: str = "mean",
                 include_last_offset: bool = False, padding_idx: Optional[int] = None,
                 num_embeddings: Optional[int] = None, **options: Any) -> None:
        if mode not in ("sum", "mean"):
            raise InvalidArgument(f"mode: got {mode!r}, expected 'sum' or 'mean'")
        padding_idx = key_of_padding(padding_idx, num_embeddings)
        super().__init__(client, table, embedding_dim, options, mode=mode, include_last_offset=include_last_offset,
                         padding_idx=padding_idx)
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx

    def lookup_rows(self, client: Client, tensors: Tensors, layout: Sequence[int], output: str) -> torch.Tensor:
        keys, offsets, weights, _ = tensors
        assert keys is not None
        ends = self._ends(keys, offsets)
        flat = keys.reshape(-1)
        if weights is not None:
            weights = weights.reshape(-1)
        if self.padding_idx is not None:
            signed = self.padding_idx - 2**64 if self.padding_idx >= 2**63 else self.padding_idx
            kept = flat != signed
            ends = offset_bytes(ends, len(flat), f"table {self.table!r}, offsets")  # offsets into all keys
            ends = np.append(0, kept.cpu().numpy().cumsum())[ends]
            flat, weights = flat[kept], None if weights is None else weights[kept]
        spec = (flat, ends) if weights is None else (flat, ends, weights)
        rows: torch.Tensor = client.lookup(self.table, spec, pooling=self.mode, output=output, **self.options)
        check_dim(self.table, self.embedding_dim, rows.shape[-1])
        return rows

    def _ends(self, keys: torch.Tensor, offsets: Optional[torch.Tensor]) -> npt.NDArray[Any]:
        """The offsets at which bags begin, and at which the last one ends."""
        if offsets is None:
            return np.arange(keys.shape[0] + 1) * keys.shape[1]
        begins = integers(offsets, f"table {self.table!r}, offsets").astype(np.int64, copy=False)
        return begins if self.include_last_offset else np.append(begins, keys.numel())

    def shape(self, tensors: Tensors, layout: Sequence[Any]) -> List[Any]:
        keys, offsets, *_ = tensors
        assert keys is not None
        if offsets is None:
            return [keys.shape[0], self.embedding_dim]
        return [offsets.shape[0] - (1 if self.include_last_offset else 0), self.embedding_dim]

    def forward(self, input: torch.Tensor, offsets: Optional[torch.Tensor] = None,
                per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        self._check(input, offsets, per_sample_weights)
        return self.rows(input, offsets, per_sample_weights)

    def _check(self, keys: torch.Tensor, offsets: Optional[torch.Tensor], weights: Optional[torch.Tensor]) -> None:
        self.check_inputs((keys, offsets, weights))
        if keys.dim() == 2 and offsets is not None:
            raise InvalidArgument("offsets: got offsets with an input of two dimensions, expected None: its rows are the bags")
        if keys.dim() == 1 and (offsets is None or offsets.dim() != 1):
            raise InvalidArgument("offsets: expected one dimension, with an input of one dimension")
        if keys.dim() not in (1, 2):
            raise InvalidArgument(f"input: got {keys.dim()} dimensions, expected 1 or 2")
        if self.include_last_offset and offsets is not None and offsets.shape[0] == 0:
            raise InvalidArgument("offsets: got none, expected the end of the last bag, as include_last_offset is set")
        if weights is None:
            return
        if self.mode != "sum":
            raise InvalidArgument(f"per_sample_weights: got weights with mode {self.mode!r}, expected mode 'sum'")
        if weights.shape != keys.shape:
            raise InvalidArgument(f"per_sample_weights: got shape {tuple(weights.shape)}, expected {tuple(keys.shape)}, "
                                  "the shape of the input")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"
