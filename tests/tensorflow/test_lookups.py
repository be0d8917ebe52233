# SPDX-License-Identifier: Apache-2.0
"""The functions of hpsd.tensorflow against those of tf.nn with the same rows, eagerly and in a tf.function."""
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

import documents
import hpsd
import hpsd.tensorflow as layers
from rig import Daemon, default_config, model_config, scratch
from served import DIMS, MODEL, N_ROWS, rows_of

ROWS = np.array([[1, 2], [10, 3], [100, 5], [1000, 7]], np.float32)
COMBINERS = ("sum", "mean", "sqrtn")


@pytest.fixture(name="table", scope="module")
def table_of_four_rows():
    with scratch() as work:
        np.save(f"{work}/t.npy", ROWS)
        with Daemon(work, default_config([model_config("m", [f"{work}/t.npy"], [2], ["t"], gpucache=False)])) as one, \
                hpsd.connect(one.grpc[0], "m") as made:
            yield layers.Table(made, "t")


def sparse(bags, dtype):
    """A SparseTensor of rank 2 with one row for each bag."""
    indices = [(row, column) for row, bag in enumerate(bags) for column in range(len(bag))]
    return tf.SparseTensor(np.array(indices, np.int64).reshape(-1, 2), np.array(list(itertools.chain(*bags)), dtype),
                           (len(bags), max(map(len, bags), default=0)))


def ragged(bags, dtype):
    return tf.RaggedTensor.from_row_lengths(np.array(list(itertools.chain(*bags)), dtype), [len(bag) for bag in bags])


def same(ours, theirs):
    """Both return the same, eagerly and in a tf.function."""
    expected = theirs()
    for call in (ours, tf.function(ours)):
        got = call()
        assert got.shape == expected.shape and got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def same_of_bags(cases, make, dtype, ours, theirs):
    """The same for bags, with and without weights, eagerly and in two tf.functions that are traced once each."""
    kind = tf.SparseTensorSpec if make is sparse else tf.RaggedTensorSpec
    specs = [kind([None, None], of) for of in (tf.as_dtype(dtype), tf.float32)]
    plain = tf.function(lambda ids: ours(ids, None), input_signature=specs[:1])
    weighted = tf.function(ours, input_signature=specs)
    for bags, weights in cases:
        ids, of_ids = make(bags, dtype), None if weights is None else make(weights, np.float32)
        expected = theirs(ids, of_ids)
        for got in (ours(ids, of_ids), plain(ids) if weights is None else weighted(ids, of_ids)):
            assert got.shape == expected.shape and got.dtype == expected.dtype, bags
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


# ids, weights
BAGS = [
    ([[0, 1]], None), ([[0, 1]], [[2, 3]]), ([[0, 1]], [[1, -3]]), ([[0, 1]], [[1, -1]]), ([[0, 1]], [[0, 0]]), ([[0, 0, 1]], None),
    ([[3], [], [1, 2]], None), ([[3], [], []], None), ([[], []], None), ([], None), ([[], [2]], [[], [4]]),
]
PRUNED = [*BAGS, ([[0, -1]], None), ([[-5]], None), ([[-5], [2], []], None), ([[0, 1]], [[2, 0]]), ([[1]], [[-1]]),
          ([[1, -1], [2, 3]], [[-1, 5], [0.5, 0]])]


@pytest.mark.parametrize("make", [sparse, ragged])
@pytest.mark.parametrize("combiner", [*COMBINERS, None])
@pytest.mark.parametrize("max_norm", [None, 5.0])
def test_sparse_lookup_when_of_bags_then_as_tensorflow(table, make, combiner, max_norm):
    weights, how = tf.constant(ROWS), {"combiner": combiner, "max_norm": max_norm}
    same_of_bags(BAGS, make, np.int64, lambda ids, of_ids: layers.embedding_lookup_sparse(table, ids, of_ids, **how),
                 lambda ids, of_ids: tf.nn.embedding_lookup_sparse(weights, ids, of_ids, **how))


@pytest.mark.parametrize("make", [sparse, ragged])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("default_id", [None, 3])
@pytest.mark.parametrize("max_norm", [None, 5.0])
def test_safe_lookup_when_of_bags_then_as_tensorflow(table, make, combiner, default_id, max_norm):
    weights, how = tf.constant(ROWS), {"combiner": combiner, "max_norm": max_norm, "default_id": default_id}
    same_of_bags([case for case in PRUNED if case[0]], make, np.int32,
                 lambda ids, of_ids: layers.safe_embedding_lookup_sparse(table, ids, of_ids, **how),
                 lambda ids, of_ids: tf.nn.safe_embedding_lookup_sparse(weights, ids, of_ids, **how))


@pytest.mark.parametrize("bags, weights, combiner, expected", [
    ([[0, 1]], [[1, -3]], "mean", 14.5), ([[0, 1]], [[1, -1]], "mean", 0), ([[0, 1]], [[2, 3]], "sqrtn", 32 / 13**0.5)])
def test_sparse_lookup_when_of_odd_weights_then_the_numbers_of_tensorflow(table, bags, weights, combiner, expected):
    rows = layers.embedding_lookup_sparse(table, sparse(bags, np.int64), sparse(weights, np.float32), combiner)
    assert rows[0, 0].numpy() == pytest.approx(expected)


def test_safe_lookup_when_of_three_dimensions_then_all_but_the_last_are_kept(table):
    ids = tf.SparseTensor([[0, 0, 0], [0, 2, 1], [1, 1, 0]], tf.constant([1, 2, 3], tf.int64), [2, 3, 2])
    same(lambda: layers.safe_embedding_lookup_sparse(table, ids, combiner="sum"),
         lambda: tf.nn.safe_embedding_lookup_sparse(tf.constant(ROWS), ids, combiner="sum"))


@pytest.mark.parametrize("ids", [3, [], [[0, 1], [2, 3]]])
@pytest.mark.parametrize("max_norm", [None, 5.0])
def test_lookup_when_of_ids_of_any_shape_then_as_tensorflow(table, ids, max_norm):
    ids = tf.constant(ids, tf.int32)
    same(lambda: layers.embedding_lookup(table, ids, max_norm), lambda: tf.nn.embedding_lookup(tf.constant(ROWS), ids, max_norm))


def test_lookup_when_ragged_then_rows_for_each_id(table):
    rows = layers.embedding_lookup(table, ragged([[1, 2], [], [3]], np.int64))
    assert rows.to_list() == [[[10, 3], [100, 5]], [], [[1000, 7]]]


def test_lookup_when_in_a_function_then_its_static_shape_is_known(table):
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64), tf.SparseTensorSpec([None, None], tf.int64)])
    def rows(ids, bags):
        one, many = layers.embedding_lookup(table, ids), layers.safe_embedding_lookup_sparse(table, bags)
        assert one.shape.as_list() == [None, 3, 2] and many.shape.as_list() == [None, 2]
        return one, many

    one, many = rows(tf.constant([[1, 2, 3]], tf.int64), sparse([[1], []], np.int64))
    assert one.shape == (1, 3, 2) and many.numpy().tolist() == [[10, 3], [0, 0]]


@pytest.mark.parametrize("call, kind, words", [
    (lambda of: layers.embedding_lookup(of, [1.5]), TypeError, "got float32, expected int32 or int64; hpsd.hashing"),
    (lambda of: layers.embedding_lookup(of, ["a"]), TypeError, "got string"),
    (lambda of: layers.embedding_lookup_sparse(of, tf.constant([[1]])), TypeError, "got .*Tensor, expected a SparseTensor"),
    (lambda of: layers.embedding_lookup_sparse(of, sparse([[1]], np.int64), combiner="max"), ValueError, "got 'max'"),
    (lambda of: layers.embedding_lookup_sparse(of, sparse([[1]], np.int64), ragged([[1]], np.float32)), TypeError, "weights: got"),
    (lambda of: layers.embedding_lookup_sparse(of, sparse([[1]], np.int64), sparse([[1, 2]], np.float32)),
     hpsd.InvalidArgument, "weights: got 2 values, expected 1"),
    (lambda of: layers.embedding_lookup_sparse(of, tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2]), [2, 1])),
     hpsd.InvalidArgument, "expected ascending rows, as tf.sparse.reorder"),
    (lambda of: layers.embedding_lookup(layers.Table(of.client, "t", 3), [1]), hpsd.InvalidArgument, "got rows of 2 values"),
    (lambda of: layers.Table(None, "t"), hpsd.InvalidArgument, "client: got NoneType"),
    (lambda of: layers.embedding_lookup(layers.Table(of.client, "x", 2), [1]), hpsd.NotFound, "has no table 'x'"),
])
def test_lookups_when_called_wrongly_then_say_what_was_expected(table, call, kind, words):
    with pytest.raises(kind, match=words):
        call(table)


def test_lookup_when_it_fails_in_a_function_then_the_reason_is_in_the_error(table):
    with pytest.raises(tf.errors.OpError, match="has no table 'x'"):
        tf.function(lambda: layers.embedding_lookup(layers.Table(table.client, "x", 2), [1]))()


def test_lookup_when_rows_are_unknown_then_the_options_decide(table):
    assert layers.embedding_lookup(table, [-1]).numpy().tolist() == [[0, 0]]
    with pytest.raises(hpsd.NotFound):
        layers.embedding_lookup(layers.Table(table.client, "t", unknown="error"), [-1])


# ---- HPS ---------------------------------------------------------------------------------------------

def test_hps_layers_when_made_of_a_ps_json_then_rows_of_its_table(daemon, work):
    path = f"{work}/ps.json"
    entry = {"model": MODEL, "sparse_files": ["a", "b", "c"], "embedding_table_names": list(DIMS)}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"models": [entry], "server": {"listen": [daemon.grpc[0]]}}, f)
    how = {"model_name": MODEL, "table_id": 1, "emb_vec_size": 8, "emb_vec_dtype": tf.float32, "ps_config_file": path,
           "global_batch_size": 64}
    weights = tf.constant(rows_of("users", np.arange(N_ROWS)))
    one, many = layers.LookupLayer(**how), layers.SparseLookupLayer(**how, name="many")
    ids, bags = tf.constant([[1, 2], [3, 4]]), sparse([[1, 2], [], [3]], np.int64)
    same(lambda: one(ids), lambda: tf.nn.embedding_lookup(weights, ids))
    same(lambda: one(ids, max_norm=2.0), lambda: tf.nn.embedding_lookup(weights, ids, max_norm=2.0))
    same(lambda: many(sp_ids=bags, sp_weights=None, combiner="mean"),
         lambda: tf.nn.embedding_lookup_sparse(weights, bags, None, combiner="mean"))
    with pytest.raises(hpsd.InvalidArgument, match="emb_vec_dtype: got .*float16"):
        layers.LookupLayer(**{**how, "emb_vec_dtype": tf.float16})


# ---- the code of the documents -----------------------------------------------------------------------

@pytest.mark.parametrize("name", [name for name in documents.python_pages() if "tensorflow" in name])
def test_document_when_its_code_is_run_then_it_works(name, two_tables, work):
    documents.run_page(name, two_tables.grpc[0], work)
