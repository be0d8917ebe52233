# SPDX-License-Identifier: Apache-2.0
"""hpsd.tensorflow's Keras layer against Keras's own, alone and in models, and hpsd.hashing against both libraries."""
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import hpsd
import hpsd.tensorflow as layers
from hpsd import hashing
from rig import PATIENCE_S
from served import DIMS, N_ROWS, rows_of


def trained(table, **how):
    return keras.layers.Embedding(N_ROWS, DIMS[table], weights=[rows_of(table, np.arange(N_ROWS))], **how)


def two_towers(user, items):
    """A model of two towers: a user, and the items that the user has bought, padded with 0."""
    of_user, of_items = keras.Input((), dtype="int64"), keras.Input((None,), dtype="int64")
    tower = keras.layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(1), name="of_user")(user(of_user))
    pooled = keras.layers.GlobalAveragePooling1D()(items(of_items))
    other = keras.layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(2), name="of_items")(pooled)
    return keras.Model([of_user, of_items], keras.layers.Dot(1)([tower, other]))


INPUTS = [np.array([7, 8, 9]), np.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 0, 0]])]


def test_two_towers_when_their_rows_are_in_hpsd_then_the_same_outputs(client):
    ours = two_towers(layers.Embedding(client, "users"), layers.Embedding(client, "items", mask_zero=True))
    theirs = two_towers(trained("users"), trained("items", mask_zero=True))
    np.testing.assert_allclose(ours(INPUTS), theirs(INPUTS), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.predict(INPUTS, verbose=0), theirs.predict(INPUTS, verbose=0), rtol=1e-6, atol=1e-6)
    assert [weight.path for weight in ours.weights] == [weight.path for weight in theirs.weights if "embedding" not in weight.path]


@pytest.mark.parametrize("how, words", [({"combiner": "average"}, "combiner: got 'average'"),
                                        ({"combiner": "mean", "mask_zero": True}, "mask_zero: not with a combiner")])
def test_embedding_when_its_arguments_do_not_fit_then_the_error_names_them(client, how, words):
    with pytest.raises(hpsd.InvalidArgument, match=words):
        layers.Embedding(client, "items", **how)


LOAD = """
import sys
import keras
import numpy as np
import hpsd.tensorflow
np.save(sys.argv[1] + ".npy", keras.saving.load_model(sys.argv[1])([np.array(one) for one in eval(sys.argv[2])]))
"""


def test_two_towers_when_saved_then_another_process_looks_up_and_the_file_has_no_token(daemon, work):
    with hpsd.connect(daemon.grpc[0], "shop", token="secret") as client:
        model = two_towers(layers.Embedding(client, "users", timeout=9), layers.Embedding(client, "items", mask_zero=True))
        model.save(f"{work}/model.keras")
        expected = model(INPUTS)
        again = keras.saving.load_model(f"{work}/model.keras")
        users = next(layer for layer in again.layers if isinstance(layer, layers.Embedding) and layer.table.name == "users")
        assert users.table.options == {"timeout": 9} and users.table.client._transport is client._transport
    with open(f"{work}/model.keras", "rb") as f:
        assert b"secret" not in f.read()
    done = subprocess.run([sys.executable, "-c", LOAD, f"{work}/model.keras", repr([one.tolist() for one in INPUTS])],
                          capture_output=True, text=True, check=False, timeout=PATIENCE_S * 6,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(hpsd.__path__[0])})
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(f"{work}/model.keras.npy"), expected, rtol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_embedding_when_it_has_a_combiner_then_bags_of_each_kind_give_the_same(client, combiner):
    layer = layers.Embedding(client, "users", combiner=combiner, default_id=5)
    bags, weights = np.array([[[1, 2, -1], [3, -1, -1]], [[-1, -1, -1], [4, 4, 5]]]), rows_of("users", np.arange(N_ROWS))
    ids = tf.RaggedTensor.from_row_splits(bags[bags >= 0], [0, 2, 3, 3, 6])
    expected = tf.nn.safe_embedding_lookup_sparse(tf.constant(weights), ids.to_sparse(), combiner=combiner, default_id=5)
    np.testing.assert_allclose(layer(bags), np.reshape(expected, (2, 2, 8)), rtol=1e-6)
    np.testing.assert_allclose(layer(ids), expected, rtol=1e-6)
    np.testing.assert_allclose(layer(ids.to_sparse()), expected, rtol=1e-6)
    np.testing.assert_allclose(layer(np.zeros((2, 0), np.int64)), weights[[5, 5]], rtol=1e-6)
    one = keras.Input((None,), dtype="int64")
    model = keras.Model(one, layer(one))
    assert model.output_shape == (None, 8)
    np.testing.assert_allclose(model.predict(bags[0], verbose=0), expected[:2], rtol=1e-6)


def test_embedding_when_its_dtype_is_mixed_then_rows_of_the_compute_dtype(client):
    rows = layers.Embedding(client, "users", dtype="mixed_float16")(np.array([[1, 2]]))
    assert rows.dtype == tf.float16 and rows.shape == (1, 2, 8)


def test_embedding_when_in_a_dataset_then_each_batch_is_looked_up(client):
    table = layers.Table(client, "users")
    batches = tf.data.Dataset.range(8).batch(4).map(lambda ids: layers.embedding_lookup(table, ids), num_parallel_calls=2)
    np.testing.assert_array_equal(np.concatenate(list(batches)), rows_of("users", np.arange(8)))


# ---- hashes ------------------------------------------------------------------------------------------

WORDS = ["", "a", "hpsd", "user_123", "12345", "ünï", "x" * 200]


def test_hashes_when_of_words_then_those_of_tensorflow_and_keras():
    np.testing.assert_array_equal(hashing.to_hash_bucket_fast(WORDS, 1000), tf.strings.to_hash_bucket_fast(WORDS, 1000))
    np.testing.assert_array_equal(hashing.to_hash_bucket_strong(WORDS, 1000, (1, 2**64 - 1)),
                                  tf.strings.to_hash_bucket_strong(WORDS, 1000, [1, -1]))
    for how in ({}, {"salt": 1337}, {"salt": (7, 9)}, {"mask_value": "a"}, {"salt": 3, "mask_value": ""}):
        np.testing.assert_array_equal(hashing.hashing(WORDS, 1000, **how), keras.layers.Hashing(1000, **how)(tf.constant(WORDS)))


def test_hashes_when_of_integers_then_of_their_decimal_text():
    ids = np.array([[0, 1, 7], [12345, -1, 2**40]])
    np.testing.assert_array_equal(hashing.hashing(ids, 1000), keras.layers.Hashing(1000)(ids))
    np.testing.assert_array_equal(hashing.hashing(ids, 9, mask_value=7), keras.layers.Hashing(9, mask_value=7)(ids))
    assert hashing.hashing([0, 1, 7, 12345, -1], 1000).tolist() == [735, 849, 88, 728, 430]


@pytest.mark.parametrize("call, words", [
    (lambda: hashing.hashing([1.5], 9), "values: got 1.5"), (lambda: hashing.hashing([True], 9), "values: got True"),
    (lambda: hashing.hashing(["a"], 0), "num_buckets: got 0|num_bins: got 0"),
    (lambda: hashing.hashing(["a"], 1, mask_value="a"), "num_bins: got 1, expected a whole number from 2"),
    (lambda: hashing.to_hash_bucket_strong(["a"], 9, (1,)), "key: got \\(1,\\), expected two integers"),
])
def test_hashes_when_called_wrongly_then_say_what_was_expected(call, words):
    with pytest.raises(hpsd.InvalidArgument, match=words):
        call()
