# SPDX-License-Identifier: Apache-2.0
"""The collections of TorchRec for inference. They accept any object with the methods of KeyedJaggedTensor: keys(),
values(), lengths(), weights_or_none(), stride_per_key() and inverse_indices_or_none(). torchrec is optional."""
from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .._answer import as_tensor
from .._client import Client
from .._lookup import Repeated
from .._query import Options, as_array, key_bytes
from ..errors import InvalidArgument
from ._calls import Layer, Tensors
from ._jagged import classes
from ._layers import check_dim


@dataclass
class EmbeddingConfig:
    """A table and its features. The configurations of torchrec are accepted, too."""

    name: str
    embedding_dim: int
    feature_names: List[str]  # default: the name of the table
    num_embeddings: int = 0  # not used


@dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """A table, and the features that pool its rows. pooling: "sum", "mean", or a PoolingType of torchrec."""

    pooling: Any = "sum"


@dataclass
class _Feature:
    """One use of a table: one query in each request."""

    feature: str
    table: str
    dim: int
    output: str  # the name of its rows in the result


# Fields of TorchRec configurations that would change the meaning of keys, and their neutral values.
_PLAIN = {"num_embeddings_post_pruning": None, "has_feature_processor": False}


def _config(given: Any, kind: Any) -> Any:
    """The fields that the collections use, as a `kind`."""
    if isinstance(given, dict):
        return kind(**given)
    for field, plain in _PLAIN.items():
        if getattr(given, field, plain) != plain:
            raise InvalidArgument(f"table {given.name!r}, {field}: got {getattr(given, field)!r}, expected {plain!r}: hpsd "
                                  "looks up the keys unchanged")
    made = kind(given.name, int(given.embedding_dim), list(given.feature_names) or [given.name])
    if kind is EmbeddingBagConfig:
        pooling = getattr(given, "pooling", None)
        made.pooling = str(getattr(pooling, "value", pooling)).lower()
        if made.pooling not in ("sum", "mean"):
            raise InvalidArgument(f"table {given.name!r}, pooling: got {pooling!r}, expected sum or mean")
    return made


def _features(configs: Sequence[Any]) -> List[_Feature]:
    """The features in the order of their rows, named as in TorchRec: with the table name if several tables have the
    feature."""
    names = [config.name for config in configs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidArgument(f"tables: got {twice[0]!r} twice, expected one configuration with all its features; to pool a "
                              "table in two ways use two collections")
    if not configs:
        raise InvalidArgument("tables: got none, expected at least one")
    uses = [feature for config in configs for feature in config.feature_names]
    return [_Feature(feature, config.name, config.embedding_dim,
                     feature if uses.count(feature) == 1 else f"{feature}@{config.name}")
            for config in configs for feature in config.feature_names]


class _Collection(Layer):
    """device: where the rows are put, as with .to(device)."""

    def __init__(self, client: Client, tables: Sequence[Any], config: Any, device: Any, options: Dict[str, Any],
                 **arguments: Any) -> None:
        configs = [_config(given, config) for given in tables]
        features = _features(configs)
        super().__init__(client, options, tables=[asdict(one) for one in configs], **arguments)
        self._configs, self._features = configs, features
        # As they were given: models read fields of them that hpsd does not use.
        self._given = [made if isinstance(given, dict) else given for given, made in zip(tables, configs)]
        for given, made in zip(self._given, configs):
            given.feature_names = made.feature_names  # as TorchRec does
        self._keyed_tensor, self._jagged_tensor = classes()
        self._names = [of.feature for of in features]
        self._names_once = self._names if len(set(self._names)) == len(self._names) else None
        self._outputs = [of.output for of in features]
        self._dims = [of.dim for of in features]
        self.to(device)

    def _describe(self) -> None:
        super()._describe()
        self._lookups: Dict[Any, Repeated] = {}  # of this client and these options

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_lookups": {}}  # which have rows

    @property
    def device(self) -> torch.device:
        return self._place.device

    def embedding_names_by_table(self) -> List[List[str]]:
        """The names of the features in the result, for each table."""
        return [[of.output for of in self._features if of.table == config.name] for config in self._configs]

    def _layout(self, keyed: Any) -> List[int]:
        """For each feature the index of its first bag among the bags of all keys, and its number of bags."""
        if not hasattr(keyed, "stride_per_key"):
            raise InvalidArgument(f"features: got {type(keyed).__name__}, expected a KeyedJaggedTensor")
        keys, strides = keyed.keys(), keyed.stride_per_key()
        begins = list(itertools.accumulate(strides, initial=0))
        n_bags = keyed.lengths().shape[0]
        if begins[-1] != n_bags:
            raise InvalidArgument(f"lengths of the KeyedJaggedTensor: got {n_bags}, expected {begins[-1]}, a batch of "
                                  f"{strides} for the keys {keys}")
        if keys == self._names_once:
            return [of for bags in zip(begins, strides) for of in bags]
        layout, places = [], {key: place for place, key in enumerate(keys)}
        if len(places) != len(keys):
            raise InvalidArgument(f"keys of the KeyedJaggedTensor: got {keys}, expected each key once")
        for name in self._names:
            if name not in places:
                raise InvalidArgument(f"feature {name!r} is not among the keys {keys} of the KeyedJaggedTensor")
            layout += [begins[places[name]], strides[places[name]]]
        return layout

    def _matrix(self, client: Client, tensors: Tensors, layout: Sequence[int], output: str, pooling: Any) -> Any:
        """The rows of all features, if each has one size and all bags have one size above 0; else None. Only the keys of such
        batches differ, so that there is no work for each feature."""
        values, lengths = (as_array(tensor, "values and lengths of the KeyedJaggedTensor") for tensor in tensors[:2])
        n_bags, size = layout[1], int(lengths[0]) if len(lengths) else 0
        if size <= 0 or n_bags == 0 or tensors[2] is not None or tensors[3] is not None or values.dtype.kind not in "iu" or \
                values.shape != (len(lengths) * size,) or list(layout[1::2]).count(n_bags) != len(self._names) or \
                (lengths != size).any():
            return None
        lookups = self._lookups  # before the options are read, which another thread may change
        key = (client._defaults.model, client._version, size, output, *layout)
        lookup = lookups.get(key)
        if lookup is None:
            n_keys = n_bags * size
            bags = (np.zeros(n_keys, np.int64), np.arange(0, n_keys + 1, size)) if pooling else np.zeros(n_keys, np.int64)
            options = {name: value for name, value in self.options.items() if name != "timeout"}
            if len(lookups) >= 64:
                lookups.clear()
            lookup = lookups[key] = client.repeated(
                [(of.table, bags) for of in self._features], pooling, Options(output=output, **options),
                [slice(first * size, (first + n_bags) * size) for first in layout[::2]],
                sum(self._dims) * (n_bags if pooling else n_keys) * 4)
        reading = client.read(lookup, lookup.request_of(key_bytes(values)), self.options.get("timeout"))
        if reading.dims != self._dims:
            for of, dim in zip(self._features, reading.dims):
                check_dim(of.table, of.dim, dim)
        return reading.blocks[0].rows

    def _queries(self, tensors: Tensors, layout: Sequence[int]) -> List[Tuple[str, Any]]:
        """Keys and offsets, or keys, offsets and weights, of each feature."""
        values, lengths, weights = (None if tensor is None else as_array(tensor, f"{what} of the KeyedJaggedTensor")
                                    for what, tensor in zip(("values", "lengths", "weights"), tensors))
        assert values is not None and lengths is not None
        ends: Any = np.concatenate((np.zeros(1, np.int64), lengths.cumsum()))
        for what, array in (("values", values), ("weights", weights)):
            if array is not None and array.shape != (ends[-1],):
                raise InvalidArgument(f"{what} of the KeyedJaggedTensor: got shape {array.shape}, expected ({ends[-1]},), the "
                                      "sum of the lengths")
        queries: List[Tuple[str, Any]] = []
        for of, first, n_bags in zip(self._features, layout[::2], layout[1::2]):
            bags = ends[first:first + n_bags + 1]
            span = slice(bags[0], bags[-1])
            queries.append((of.table, (values[span], bags - bags[0], *([] if weights is None else [weights[span]]))))
        return queries

    def extra_repr(self) -> str:
        return ", ".join(f"{of.output}: {of.table!r}, {of.dim}" for of in self._features)


class EmbeddingBagCollection(_Collection):
    """Replaces torchrec.EmbeddingBagCollection: from a KeyedJaggedTensor to a KeyedTensor of [B, sum of embedding_dims].
    hpsd builds the matrix. With inverse_indices the layer builds it from the distinct bags."""

    kind = "EmbeddingBagCollection"

    def __init__(self, client: Client, tables: Sequence[Any], is_weighted: bool = False, device: Any = None,
                 **options: Any) -> None:
        super().__init__(client, tables, EmbeddingBagConfig, device, options, is_weighted=is_weighted)
        self._is_weighted = is_weighted
        # TorchRec divides a weighted sum by the number of its keys.
        mean = "mean_by_count" if is_weighted else "mean"
        self._poolings = {config.name: mean if config.pooling == "mean" else "sum" for config in self._configs}

    def is_weighted(self) -> bool:
        return self._is_weighted

    def embedding_bag_configs(self) -> List[Any]:
        return self._given

    def lookup_rows(self, client: Client, tensors: Tensors, layout: Sequence[int], output: str) -> torch.Tensor:
        matrix = self._matrix(client, tensors, layout, output, self._poolings)
        if matrix is not None:
            return as_tensor(matrix)
        queries, indices = self._queries(tensors, layout), tensors[3]
        how: Dict[str, Any] = {"pooling": self._poolings, "output": output, **self.options}
        if indices is not None:
            return self._expanded(client.lookup(queries, **how), as_array(indices, "inverse_indices"))
        answer = client.lookup(queries, concat=True, full=True, **how)
        for of, columns in zip(self._features, answer.columns):
            check_dim(of.table, of.dim, columns.stop - columns.start)
        return as_tensor(answer.rows)

    def _expanded(self, bags: List[Any], indices: Any) -> torch.Tensor:
        """The rows of the batch, from its distinct bags."""
        for of, rows, at in zip(self._features, bags, indices):
            check_dim(of.table, of.dim, rows.shape[1])
            if at.min() < 0 or at.max() >= len(rows):
                raise InvalidArgument(f"inverse_indices of feature {of.feature!r}: got {at.min()} to {at.max()}, expected 0 to "
                                      f"{len(rows) - 1}")
        return as_tensor(np.concatenate([rows[at] for rows, at in zip(bags, indices)], 1))

    def shape(self, tensors: Tensors, layout: Sequence[Any]) -> List[Any]:
        return [layout[1] if tensors[3] is None else tensors[3].shape[1], sum(self._dims)]

    def forward(self, features: Any) -> Any:
        layout = self._layout(features)
        indices = self._inverse_indices(features)
        if indices is None and layout[1::2].count(layout[1]) != len(self._names):
            raise InvalidArgument(f"features: got batches of {layout[1::2]}, expected one size, or inverse_indices")
        weights = features.weights_or_none() if self._is_weighted else None
        if self._is_weighted and weights is None:
            raise InvalidArgument("weights: got a KeyedJaggedTensor without weights, expected weights, as is_weighted is set")
        matrix = self.rows(features.values(), features.lengths(), weights, indices, layout=layout)
        return self._keyed_tensor(keys=self._outputs[:], length_per_key=self._dims[:], values=matrix)

    def _inverse_indices(self, keyed: Any) -> Optional[torch.Tensor]:
        """The inverse indices, one row for each feature; None if the input has no inverse indices."""
        given = keyed.inverse_indices_or_none()
        if given is None or given[1].numel() == 0:
            return None
        missing = [of.feature for of in self._features if of.feature not in given[0]]
        if missing:
            raise InvalidArgument(f"inverse_indices: got the features {given[0]}, expected also {missing[0]!r}")
        rows: torch.Tensor = given[1][[given[0].index(of.feature) for of in self._features]]
        return rows


class EmbeddingCollection(_Collection):
    """Replaces torchrec.EmbeddingCollection: from a KeyedJaggedTensor to {feature: JaggedTensor with a row for each key}.
    As in TorchRec, all tables have the same embedding_dim, and inverse_indices are not used.

    need_indices: the weights of the result are the keys.
    """

    kind = "EmbeddingCollection"

    def __init__(self, client: Client, tables: Sequence[Any], device: Any = None, need_indices: bool = False,
                 **options: Any) -> None:
        super().__init__(client, tables, EmbeddingConfig, device, options, need_indices=need_indices)
        self._need_indices = need_indices
        self._embedding_dim = self._features[0].dim
        if any(of.dim != self._embedding_dim for of in self._features):
            raise InvalidArgument(f"embedding_dim: got {sorted({of.dim for of in self._features})}, expected one for all "
                                  "tables")

    def need_indices(self) -> bool:
        return self._need_indices

    def embedding_dim(self) -> int:
        return self._embedding_dim

    def embedding_configs(self) -> List[Any]:
        return self._given

    def lookup_rows(self, client: Client, tensors: Tensors, layout: Sequence[int], output: str) -> torch.Tensor:
        matrix = self._matrix(client, tensors, layout, output, None)
        if matrix is not None:
            rows = matrix.reshape(len(matrix), -1, self._embedding_dim).transpose(1, 0, 2)
            return as_tensor(np.ascontiguousarray(rows).reshape(-1, self._embedding_dim))
        pairs = [(table, spec[0]) for table, spec in self._queries(tensors, layout)]
        rows = client.lookup(pairs, output=output, **self.options)
        for of, array in zip(self._features, rows):
            check_dim(of.table, of.dim, array.shape[1])
        return torch.cat([as_tensor(array) for array in rows])

    def shape(self, tensors: Tensors, layout: Sequence[Any]) -> List[Any]:
        library: Any = torch.library
        return [library.get_ctx().new_dynamic_size(), self._embedding_dim]  # the number of keys

    def forward(self, features: Any) -> Dict[str, Any]:
        layout = self._layout(features)
        keys, lengths = features.values(), features.lengths()
        rows = self.rows(keys, lengths, layout=layout)
        of_features = [lengths[first:first + n_bags] for first, n_bags in zip(layout[::2], layout[1::2])]
        n_keys = torch.stack([one.sum() for one in of_features]).tolist()
        indices = self._keys_of_features(keys, lengths, layout, n_keys)
        return {of.output: self._jagged_tensor(values=values, lengths=length, weights=weights)
                for of, values, length, weights in zip(self._features, torch.split(rows, n_keys), of_features, indices)}

    def _keys_of_features(self, keys: Any, lengths: Any, layout: Sequence[int], n_keys: Sequence[int]) -> List[Any]:
        if not self._need_indices:
            return [None] * len(n_keys)
        begins = [int(lengths[:first].sum()) for first in layout[::2]]
        return [keys[begin:begin + n] for begin, n in zip(begins, n_keys)]
