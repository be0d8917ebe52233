# SPDX-License-Identifier: Apache-2.0
"""TorchRec's collections for inference. They take a KeyedJaggedTensor by its methods keys(), values(), offsets(),
weights_or_none() and stride(); torchrec need not be installed."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

import torch

from .._answer import as_tensor
from .._client import Client
from ..errors import InvalidArgument
from ._calls import Layer, Tensors
from ._jagged import classes
from ._layers import check_dim


@dataclass
class EmbeddingConfig:
    """A table and the features that are looked up in it; torchrec's own do as well."""

    name: str
    embedding_dim: int
    feature_names: List[str]
    num_embeddings: int = 0  # not asked for


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """The same of bags. pooling: "sum", "mean", or torchrec's PoolingType."""

    pooling: Any = "sum"


@dataclass
class _Feature:
    """One use of a table: a query of each request."""

    feature: str
    table: str
    dim: int
    pooling: str
    output: str = ""  # what its rows are called


def _pooling(config: Any, is_weighted: bool) -> str:
    given = getattr(config, "pooling", "sum")
    word = str(getattr(given, "value", given)).lower()
    if word not in ("sum", "mean"):
        raise ValueError(f"table {config.name!r}, pooling: got {given!r}, expected sum or mean")
    # TorchRec divides a weighted sum by the number of its keys.
    return "mean_by_count" if is_weighted and word == "mean" else word


def _features(tables: Sequence[Any], is_weighted: bool = False) -> List[_Feature]:
    """In the order of their rows, named as in TorchRec: those of several tables with the name of each."""
    features = [_Feature(feature, config.name, config.embedding_dim, _pooling(config, is_weighted))
                for config in tables for feature in config.feature_names]
    if not features:
        raise ValueError("tables: got none with features, expected at least one")
    names = [of.feature for of in features]
    for of in features:
        of.output = of.feature if names.count(of.feature) == 1 else f"{of.feature}@{of.table}"
    return features


class _Collection(Layer):
    def __init__(self, client: Client, features: List[_Feature], options: Dict[str, Any]) -> None:
        super().__init__(client, options)
        self._features = features
        self._keyed_tensor, self._jagged_tensor = classes()

    def _bags(self, keyed: Any) -> torch.Tensor:
        """A row for each feature: where its bags begin among all values, and where the last one ends."""
        keys, n_bags = list(keyed.keys()), keyed.stride()
        missing = [of.feature for of in self._features if of.feature not in keys]
        if missing:
            raise InvalidArgument(f"feature {missing[0]!r} is not among the keys {keys} of the KeyedJaggedTensor")
        places = [keys.index(of.feature) for of in self._features]
        offsets: torch.Tensor = keyed.offsets()
        if n_bags == 0:
            return offsets.new_zeros((len(places), 1))
        rows = offsets.unfold(0, n_bags + 1, n_bags)
        return rows if places == list(range(len(keys))) else rows[places]

    def _queries(self, tensors: Tensors) -> List[Tuple[str, Any]]:
        """Keys and offsets, or keys, offsets and weights, of each feature."""
        values, bags, weights = (None if tensor is None else tensor.detach().cpu().numpy() for tensor in tensors)
        assert values is not None and bags is not None
        ends = bags - bags[:, :1]
        spans = [slice(begin, end) for begin, end in zip(bags[:, 0].tolist(), bags[:, -1].tolist())]
        return [(of.table, (values[span], row) if weights is None else (values[span], row, weights[span]))
                for of, row, span in zip(self._features, ends, spans)]

    def extra_repr(self) -> str:
        return ", ".join(f"{of.output}: {of.table!r}, {of.dim}" for of in self._features)


class EmbeddingBagCollection(_Collection):
    """torchrec.EmbeddingBagCollection: a KeyedJaggedTensor to a KeyedTensor of [B, sum of embedding_dims]. Its matrix is
    made by hpsd: no rows are put beside each other here."""

    def __init__(self, client: Client, tables: Sequence[Any], is_weighted: bool = False, **options: Any) -> None:
        super().__init__(client, _features(tables, is_weighted), options)
        self.is_weighted = is_weighted
        self._poolings = {of.table: of.pooling for of in self._features}
        self._dims = [of.dim for of in self._features]

    def look_up(self, tensors: Tensors) -> torch.Tensor:
        answer = self.client.lookup(self._queries(tensors), pooling=self._poolings, concat=True, full=True,
                                    output=self.output, **self.options)
        for of, columns in zip(self._features, answer.columns):
            check_dim(of.table, of.dim, columns.stop - columns.start)
        return as_tensor(answer.rows)

    def shape(self, tensors: Tensors) -> List[Any]:
        assert tensors[1] is not None
        return [tensors[1].shape[1] - 1, sum(self._dims)]

    def forward(self, features: Any) -> Any:
        weights = features.weights_or_none() if self.is_weighted else None
        if self.is_weighted and weights is None:
            raise InvalidArgument("weights: the KeyedJaggedTensor has none, expected some, as is_weighted says")
        matrix = self.rows(features.values(), self._bags(features), weights)
        return self._keyed_tensor(keys=[of.output for of in self._features], length_per_key=list(self._dims),
                                  values=matrix)


class EmbeddingCollection(_Collection):
    """torchrec.EmbeddingCollection: a KeyedJaggedTensor to {feature: JaggedTensor of a row for each key}. As there, all
    tables have one embedding_dim."""

    def __init__(self, client: Client, tables: Sequence[Any], **options: Any) -> None:
        super().__init__(client, _features(tables), options)
        self.embedding_dim = self._features[0].dim
        if any(of.dim != self.embedding_dim for of in self._features):
            raise ValueError(f"embedding_dim: got {sorted({of.dim for of in self._features})}, expected one for all tables")

    def look_up(self, tensors: Tensors) -> torch.Tensor:
        pairs = [(table, spec[0]) for table, spec in self._queries(tensors)]
        rows = self.client.lookup(pairs, output=self.output, **self.options)
        for of, array in zip(self._features, rows):
            check_dim(of.table, of.dim, array.shape[1])
        return torch.cat([as_tensor(array) for array in rows])

    def shape(self, tensors: Tensors) -> List[Any]:
        library: Any = torch.library
        return [library.get_ctx().new_dynamic_size(), self.embedding_dim]  # as many as there are keys

    def forward(self, features: Any) -> Dict[str, Any]:
        bags = self._bags(features)
        rows = self.rows(features.values(), bags, None)
        lengths = bags[:, 1:] - bags[:, :-1]
        of_features = torch.split(rows, (bags[:, -1] - bags[:, 0]).tolist())
        return {of.output: self._jagged_tensor(values=values, lengths=length)
                for of, values, length in zip(self._features, of_features, lengths)}
