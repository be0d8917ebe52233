# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's lookups with rows from hpsd: the functions of tf.nn, a Keras layer, and the layers of HPS's plug-in.

    items = hpsd.tensorflow.Table(hpsd.connect("127.0.0.1:8601", model="dlrm"), "items")
    rows = hpsd.tensorflow.embedding_lookup(items, ids)     # tf.nn.embedding_lookup(weights, ids)

For inference: rows have no gradients. They work eagerly and in a tf.function, but not with jit_compile. A SavedModel
that another process loads needs the operator of clients/tensorflow: see load_operator.
"""
from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from . import _program
from ._address import Addresses
from ._client import Client
from ._hps import table_of
from ._program import set_token
from ._query import POOLINGS, UNKNOWN_POLICIES, number_of
from .errors import InvalidArgument

__all__ = ["Embedding", "LookupLayer", "SparseLookupLayer", "Table", "embedding_lookup", "embedding_lookup_sparse",
           "load_operator", "safe_embedding_lookup_sparse", "set_token"]

Array = npt.NDArray[Any]
Bags = Tuple[Array, Array, int, Optional[Array]]  # ids, the bag of each, the number of bags, weights
_COMBINERS = ("sum", "mean", "sqrtn")


_operator: Any = None  # of load_operator


def load_operator(path: str) -> None:
    """Load the operator of clients/tensorflow. From now on tf.functions that are traced look up with it instead of Python, so
    that another process can load them as a SavedModel. That process loads the operator, too."""
    global _operator
    _operator = tf.load_op_library(path).hpsd_rows


def _clipped(rows: Array, max_norm: float) -> Array:
    """Rows with norms above max_norm are scaled down to it."""
    norms = np.sqrt(np.square(rows).sum(-1, keepdims=True))
    return rows * (np.float32(max_norm) / np.maximum(norms, np.float32(max_norm)))


class Table:
    """A table of hpsd, in the place of the weights that TensorFlow's functions take.

    dim: values per row; None: ask the server now.
    options: the options of hpsd.Client.lookup.
    """

    def __init__(self, client: Client, name: str, dim: Optional[int] = None, **options: Any) -> None:
        if not isinstance(client, Client):
            raise InvalidArgument(f"client: got {type(client).__name__}, expected an hpsd.Client, which hpsd.connect returns")
        self.client, self.name, self.options = client, name, options
        self.dim = int(client.lookup(name, []).shape[-1]) if dim is None else int(dim)

    def _lookup(self, spec: Any, **how: Any) -> Array:
        rows = self.client.lookup(self.name, spec, **how, **self.options)
        if rows.shape[-1] != self.dim:
            raise InvalidArgument(f"table {self.name!r}: got rows of {rows.shape[-1]} values, expected {self.dim}")
        return rows

    def by_operator(self, inputs: List[Any], **how: Any) -> Any:
        """The rows, by the operator. It has the address in its attributes, and no token."""
        left = self.options.keys() - {"timeout", "unknown"}
        program = json.loads(_program.write(self.client, "operator", {}, {}))
        connection = json.loads(program["connection"])
        if left or connection["tls"] is not None:
            raise InvalidArgument(f"table {self.name!r}: got {sorted(left) or 'tls'}, which the operator of load_operator does not "
                                  "support")
        timeout_s = self.options.get("timeout") or connection["timeout"]
        unknown = number_of(UNKNOWN_POLICIES, self.options.get("unknown"), "unknown")
        return _operator(*inputs, addresses=",".join(connection["addresses"]), model=connection["model"], table=self.name,
                         version=program["version"], dim=self.dim, timeout_us=int(timeout_s * 1e6), unknown=unknown, **how)

    def rows(self, ids: Array, max_norm: Optional[float]) -> Array:
        rows = self._lookup(ids)
        return rows if max_norm is None else _clipped(rows, max_norm)

    def bags(self, ids: Array, bag_of: Array, n_bags: int, weights: Optional[Array], combiner: str,
             max_norm: Optional[float]) -> Array:
        """One row for each bag. bag_of: the bag of each id, in ascending order."""
        if np.any(bag_of[1:] < bag_of[:-1]):
            raise InvalidArgument(f"table {self.name!r}: got ids of rows in the order {bag_of[:9]}, expected ascending rows, as "
                                  "tf.sparse.reorder makes them")
        if max_norm is None:  # the server pools
            offsets = np.searchsorted(bag_of, np.arange(n_bags + 1))
            return self._lookup((ids, offsets) if weights is None else (ids, offsets, weights), pooling=combiner)
        distinct, places = np.unique(ids, return_inverse=True)
        weights = np.ones(len(ids), np.float32) if weights is None else weights.astype(np.float32)
        out, divisors = np.zeros((n_bags, self.dim), np.float32), np.zeros((n_bags, 1), np.float32)
        np.add.at(out, bag_of, self.rows(distinct, max_norm)[places] * weights[:, None])
        if combiner == "sum":
            return out
        np.add.at(divisors, bag_of, (weights if combiner == "mean" else np.square(weights))[:, None])
        divisors = divisors if combiner == "mean" else np.sqrt(divisors)
        return np.divide(out, divisors, out=np.zeros_like(out), where=divisors != 0)


def _call(function: Callable[..., Array], tensors: List[Any], shape: Any) -> Any:
    """The result of a function of arrays. Eager calls raise the errors of hpsd themselves."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if all(isinstance(tensor, tf.__internal__.EagerTensor) for tensor in tensors):
        return tf.convert_to_tensor(function(*(tensor.numpy() for tensor in tensors)))
    rows = tf.numpy_function(function, tensors, tf.float32)
    rows.set_shape(shape)
    return rows


def _check_ids(ids: Any) -> Any:
    if ids.dtype not in (tf.int32, tf.int64):
        raise TypeError(f"ids: got {ids.dtype.name}, expected int32 or int64; hpsd.hashing turns words into ids")
    return ids


@tf.autograph.experimental.do_not_convert
def embedding_lookup(params: Table, ids: Any, max_norm: Optional[float] = None, name: Optional[str] = None) -> Any:
    """tf.nn.embedding_lookup with a table of hpsd: rows of shape ids.shape + [dim]. ids may be ragged."""
    with tf.name_scope(name or "embedding_lookup"):
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(embedding_lookup(params, ids.flat_values, max_norm))
        ids = _check_ids(tf.convert_to_tensor(ids))
        if _operator is not None and not tf.executing_eagerly():
            rows = params.by_operator([tf.cast(ids, tf.int64), *_nothing(3)])
            rows.set_shape(ids.shape.concatenate([params.dim]))
            return rows if max_norm is None else tf.clip_by_norm(rows, max_norm, axes=[-1])
        return _call(lambda keys: params.rows(keys, max_norm), [ids], ids.shape.concatenate([params.dim]))


def _nothing(n: int) -> List[Any]:
    """Empty inputs of the operator: bags, number of bags, and weights."""
    return [tf.zeros([0], kind) for kind in (tf.int64, tf.int64, tf.float32)[-n:]]


def _flat(ids: Any, weights: Any) -> Tuple[Any, Any, Any, Any]:
    """Ids, their bags, the number of bags, and weights or None."""
    if isinstance(ids, tf.RaggedTensor):
        if ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1:
            raise InvalidArgument(f"ids: got a RaggedTensor of shape {ids.shape}, expected two dimensions")
        of_weights = None if weights is None else weights.flat_values
        return _check_ids(ids.flat_values), ids.value_rowids(), ids.nrows(), of_weights
    if not isinstance(ids, tf.SparseTensor):
        raise TypeError(f"ids: got {type(ids).__name__}, expected a SparseTensor or a RaggedTensor")
    return _check_ids(ids.values), ids.indices[:, 0], ids.dense_shape[0], None if weights is None else weights.values


def _pooled(params: Table, ids: Any, weights: Any, combiner: Optional[str], max_norm: Optional[float],
            prepare: Callable[[Array, Array, int, Optional[Array]], Bags], **how: Any) -> Any:
    """prepare: a function from all bags to the bags for the lookup. how: the attributes with which the operator does so."""
    mode = combiner or "mean"
    if mode not in _COMBINERS:
        raise ValueError(f"combiner: got {combiner!r}, expected one of {', '.join(_COMBINERS)}")
    if weights is not None and type(weights) is not type(ids):
        raise TypeError(f"weights: got {type(weights).__name__}, expected {type(ids).__name__}, the type of the ids")
    flat, bag_of, n_bags, of_weights = _flat(ids, weights)
    given = [flat, bag_of, n_bags] + ([] if of_weights is None else [tf.cast(of_weights, tf.float32)])

    if _operator is not None and not tf.executing_eagerly():
        if max_norm is not None:
            raise InvalidArgument("max_norm: the operator of load_operator does not support it for bags")
        inputs = [tf.cast(flat, tf.int64), tf.cast(bag_of, tf.int64), tf.cast(n_bags, tf.int64)[tf.newaxis]]
        rows = params.by_operator(inputs + (_nothing(1) if of_weights is None else given[3:]), pooling=POOLINGS[mode], **how)
        rows.set_shape([None, params.dim])
        return rows

    def pool(keys: Array, bags: Array, n: Array, factors: Optional[Array] = None) -> Array:
        if factors is not None and factors.shape != keys.shape:
            raise InvalidArgument(f"weights: got {factors.size} values, expected {keys.size}, one for each id")
        return params.bags(*prepare(keys, bags, int(n), factors), combiner=mode, max_norm=max_norm)

    return _call(pool, given, [None, params.dim])


@tf.autograph.experimental.do_not_convert
def embedding_lookup_sparse(params: Table, sp_ids: Any, sp_weights: Any = None, combiner: Optional[str] = None,
                            max_norm: Optional[float] = None, name: Optional[str] = None) -> Any:
    """tf.nn.embedding_lookup_sparse with a table of hpsd: one row for each row of a SparseTensor or RaggedTensor.

    As in TensorFlow, empty rows at the end are left out, and the default combiner is "mean". Unlike there, ids are keys:
    negative and unknown ones are no errors, but get the row that hpsd has for them.
    """
    def prepare(keys: Array, bags: Array, _: int, weights: Optional[Array]) -> Bags:
        return keys, bags, int(bags[-1]) + 1 if bags.size else 0, weights

    with tf.name_scope(name or "embedding_lookup_sparse"):
        return _pooled(params, sp_ids, sp_weights, combiner, max_norm, prepare)


def _kept(keys: Array, weights: Optional[Array], combiner: Optional[str]) -> Array:
    """The ids that safe_embedding_lookup_sparse does not leave out."""
    kept = keys >= 0
    return kept if weights is None or combiner == "sum" else kept & (weights > 0)


@tf.autograph.experimental.do_not_convert
def safe_embedding_lookup_sparse(embedding_weights: Table, sparse_ids: Any, sparse_weights: Any = None,
                                 combiner: Optional[str] = "mean", default_id: Optional[int] = None,
                                 max_norm: Optional[float] = None, name: Optional[str] = None) -> Any:
    """tf.nn.safe_embedding_lookup_sparse with a table of hpsd. As in TensorFlow, negative ids are left out, and with the
    combiners "mean" and "sqrtn" also ids with weights at or below zero. A row without ids gives zeroes, or the row of
    default_id. A SparseTensor may have more than two dimensions: all but the last are kept."""
    how = {"safe": True, "fills": default_id is not None, "default_id": default_id or 0}

    def prepare(keys: Array, bags: Array, n_bags: int, weights: Optional[Array]) -> Bags:
        kept = _kept(keys, weights, combiner)
        keys, bags, weights = keys[kept], bags[kept], None if weights is None else weights[kept]
        if default_id is not None:
            empty = np.setdiff1d(np.arange(n_bags), bags)
            at = np.searchsorted(bags, empty)
            keys, bags = np.insert(keys, at, default_id), np.insert(bags, at, empty)
            weights = None if weights is None else np.insert(weights, at, 1)
        return keys, bags, n_bags, weights

    with tf.name_scope(name or "safe_embedding_lookup_sparse"):
        if not isinstance(sparse_ids, tf.SparseTensor) or sparse_ids.shape.rank == 2:
            return _pooled(embedding_weights, sparse_ids, sparse_weights, combiner, max_norm, prepare, **how)
        shape, static = sparse_ids.dense_shape, sparse_ids.shape
        rows = [tf.reduce_prod(shape[:-1]), shape[-1]]
        ids, weights = (None if one is None else tf.sparse.reshape(one, rows) for one in (sparse_ids, sparse_weights))
        out = _pooled(embedding_weights, ids, weights, combiner, max_norm, prepare, **how)
        out = tf.reshape(out, tf.concat([shape[:-1], [embedding_weights.dim]], 0))
        out.set_shape(static[:-1].concatenate([embedding_weights.dim]) if static.rank else None)
        return out


# ---- layers ------------------------------------------------------------------------------------------

@keras.saving.register_keras_serializable("hpsd")
class Embedding(keras.layers.Layer):
    """Replaces keras.layers.Embedding, and pools if it has a combiner.

    output_dim: values per row; None: ask the server now.
    combiner: None for a row for each id; or "sum", "mean" or "sqrtn", for one row for each bag. A bag is the last
        dimension of a dense tensor, or a row of a sparse or ragged one. Negative ids are left out of bags.
    default_id: an empty bag gets the row of this id; None: zeroes.
    mask_zero: as in Keras; not with a combiner.
    options: the options of hpsd.Client.lookup.
    """

    def __init__(self, client: Client, table: str, output_dim: Optional[int] = None, *, combiner: Optional[str] = None,
                 default_id: Optional[int] = None, mask_zero: bool = False, name: Optional[str] = None, dtype: Any = None,
                 **options: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise InvalidArgument(f"KERAS_BACKEND: got {keras.backend.backend()!r}, expected 'tensorflow'")
        if combiner not in (None, "sum", "mean", "sqrtn"):
            raise InvalidArgument(f"combiner: got {combiner!r}, expected None, 'sum', 'mean' or 'sqrtn'")
        if combiner is not None and mask_zero:
            raise InvalidArgument("mask_zero: not with a combiner, which leaves out negative ids; replace 0 by -1 first")
        super().__init__(name=name, dtype=dtype, trainable=False)
        self.table = Table(client, table, output_dim, **options)
        self.combiner, self.default_id, self.mask_zero = combiner, default_id, mask_zero
        self.supports_masking = mask_zero

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def call(self, inputs: Any) -> Any:
        if not isinstance(inputs, (tf.SparseTensor, tf.RaggedTensor)):
            inputs = tf.convert_to_tensor(inputs)
            if inputs.dtype not in (tf.int32, tf.int64):
                inputs = tf.cast(inputs, tf.int64)
        return tf.cast(self._rows(inputs), self.compute_dtype)

    def _rows(self, ids: Any) -> Any:
        if self.combiner is None:
            return embedding_lookup(self.table, tf.sparse.to_dense(ids) if isinstance(ids, tf.SparseTensor) else ids)
        if isinstance(ids, (tf.SparseTensor, tf.RaggedTensor)):
            return safe_embedding_lookup_sparse(self.table, ids, combiner=self.combiner, default_id=self.default_id)
        rows = [tf.reduce_prod(tf.shape(ids)[:-1]), tf.shape(ids)[-1]]  # not -1, as all bags may be empty
        flat = tf.RaggedTensor.from_tensor(tf.reshape(ids, rows))
        out = safe_embedding_lookup_sparse(self.table, flat, combiner=self.combiner, default_id=self.default_id)
        out = tf.reshape(out, tf.concat([tf.shape(ids)[:-1], [self.table.dim]], 0))
        out.set_shape(ids.shape[:-1].concatenate([self.table.dim]))
        return out

    def get_config(self) -> Dict[str, Any]:
        how = {"table": self.table.name, "output_dim": self.table.dim, "combiner": self.combiner,
               "default_id": self.default_id, "mask_zero": self.mask_zero}
        config = super().get_config()
        return {"name": config["name"], "dtype": config["dtype"],
                "program": _program.write(self.table.client, "KerasEmbedding", how, self.table.options)}

    @classmethod
    def from_config(cls, config: Dict[str, Any]) -> "Embedding":
        text = config["program"]
        if isinstance(config["dtype"], dict):
            config["dtype"] = keras.dtype_policies.deserialize(config["dtype"])
        return cls(_program.client_of(text), **_program.read(text), name=config["name"], dtype=config["dtype"])


_program.KINDS["KerasEmbedding"] = lambda client, **arguments: arguments


class _HpsLayer(keras.layers.Layer):
    """ps_config_file: the ps.json of hpsd. The layer reads the name of the table from it, and the address of hpsd unless
    `address` is given. global_batch_size is not used."""

    def __init__(self, model_name: str, table_id: int, emb_vec_size: int, emb_vec_dtype: Any, ps_config_file: str,
                 global_batch_size: int = 1, *, address: Optional[Addresses] = None, **kwargs: Any) -> None:
        if tf.as_dtype(emb_vec_dtype) != tf.float32:
            raise InvalidArgument(f"emb_vec_dtype: got {emb_vec_dtype!r}, expected tf.float32")
        super().__init__(trainable=False, **kwargs)
        self.table = Table(*table_of(ps_config_file, model_name, table_id, address), emb_vec_size)


class LookupLayer(_HpsLayer):
    """Replaces hierarchical_parameter_server.LookupLayer, with the same arguments."""

    def call(self, ids: Any, max_norm: Optional[float] = None) -> Any:
        return embedding_lookup(self.table, ids, max_norm)


class SparseLookupLayer(_HpsLayer):
    """Replaces hierarchical_parameter_server.SparseLookupLayer, with the same arguments."""

    def call(self, sp_ids: Any, sp_weights: Any = None, name: Optional[str] = None, combiner: Optional[str] = None,
             max_norm: Optional[float] = None) -> Any:
        return embedding_lookup_sparse(self.table, sp_ids, sp_weights, combiner, max_norm, name)
