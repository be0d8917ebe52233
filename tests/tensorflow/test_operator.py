# SPDX-License-Identifier: Apache-2.0
"""The operator of clients/tensorflow: a SavedModel that another process loads looks up the same rows."""
import concurrent.futures
import hashlib
import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import hpsd
import hpsd.tensorflow as layers
import test_lookups
from rig import PATIENCE_S, Daemon
from served import MODEL, N_ROWS, config, rows_of

OPERATOR = os.environ.get("HPS_TF_OPERATOR", "")
pytestmark = pytest.mark.skipif(not OPERATOR, reason="HPS_TF_OPERATOR does not name the operator, which ./dev frameworks builds")
WEIGHTS = rows_of("users", np.arange(N_ROWS))


@pytest.fixture(autouse=True)
def with_the_operator(monkeypatch):
    monkeypatch.setattr(layers, "_operator", layers._operator)
    layers.load_operator(OPERATOR)


def in_function(call, *given):
    """The result of a tf.function, and that it has no call of Python."""
    function = tf.function(call).get_concrete_function(*given)
    assert not [node.op for node in function.graph.as_graph_def().node if "PyFunc" in node.op]
    return function(*given)


@pytest.mark.parametrize("make", [test_lookups.sparse, test_lookups.ragged])
@pytest.mark.parametrize("combiner", test_lookups.COMBINERS)
def test_operator_when_of_bags_then_as_tensorflow(client, make, combiner):
    table, weights = layers.Table(client, "users"), tf.constant(WEIGHTS)
    for bags, factors in test_lookups.PRUNED:
        given = [make(bags, np.int64)] + ([] if factors is None else [make(factors, np.float32)])
        for default_id in (None, 3):
            how = {"combiner": combiner, "default_id": default_id}
            if bags:
                np.testing.assert_allclose(
                    in_function(lambda *of: layers.safe_embedding_lookup_sparse(table, *of, **how), *given),
                    tf.nn.safe_embedding_lookup_sparse(weights, *given, **how), rtol=1e-6, atol=1e-6)
        if (bags, factors) in test_lookups.BAGS:
            factors = given[1] if len(given) > 1 else None
            np.testing.assert_allclose(
                in_function(lambda *of: layers.embedding_lookup_sparse(table, *of, combiner=combiner), *given),
                tf.nn.embedding_lookup_sparse(weights, given[0], factors, combiner), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ids", [3, [], [[0, 1], [2, 3]]])
@pytest.mark.parametrize("max_norm", [None, 2.0])
def test_operator_when_of_ids_of_any_shape_then_as_tensorflow(client, ids, max_norm):
    ids, table = tf.constant(ids, tf.int32), layers.Table(client, "users")
    np.testing.assert_allclose(in_function(lambda of: layers.embedding_lookup(table, of, max_norm), ids),
                               tf.nn.embedding_lookup(tf.constant(WEIGHTS), ids, max_norm), rtol=1e-6)


@pytest.mark.parametrize("call, kind, words", [
    (lambda of: layers.embedding_lookup(layers.Table(of, "x", 2), [1]), tf.errors.NotFoundError, "has no table 'x'"),
    (lambda of: layers.embedding_lookup(layers.Table(of, "users", 9), [1]), tf.errors.InvalidArgumentError, "rows of 8 values, ex|fit"),
    (lambda of: layers.embedding_lookup(layers.Table(of, "users", 7), [1]), tf.errors.OutOfRangeError, ""),
    (lambda of: layers.embedding_lookup(layers.Table(of, "users", unknown="error"), [-1]), tf.errors.NotFoundError, ""),
    (lambda of: layers.embedding_lookup(layers.Table(of, "users", miss="exact"), [1]), hpsd.InvalidArgument, "'miss'.*not support"),
    (lambda of: layers.embedding_lookup_sparse(layers.Table(of, "users"), tf.SparseTensor([[1, 0], [0, 0]], [1, 2], [2, 1])),
     tf.errors.InvalidArgumentError, "expected ascending rows"),
    (lambda of: layers.embedding_lookup_sparse(layers.Table(of, "users"), test_lookups.sparse([[1]], np.int64), max_norm=1.0),
     hpsd.InvalidArgument, "max_norm"),
])
def test_operator_when_it_fails_then_the_error_has_code_and_reason(client, call, kind, words):
    with pytest.raises(kind, match=words):
        tf.function(lambda: call(client), autograph=False)()


def test_operator_when_its_step_is_cancelled_then_the_lookup_ends():
    with socket.create_server(("127.0.0.1", 0)) as silent, concurrent.futures.ThreadPoolExecutor(1) as pool, \
            hpsd.connect("127.0.0.1:%d" % silent.getsockname()[1], timeout=PATIENCE_S * 2) as client:
        table, step = layers.Table(client, "users", 8), cancellation.CancellationManager()
        function = tf.function(lambda ids: layers.embedding_lookup(table, ids)).get_concrete_function(tf.TensorSpec([None], tf.int64))
        call = pool.submit(step.get_cancelable_function(function), tf.constant([1], tf.int64))
        connection, _ = silent.accept()
        step.start_cancel()
        with connection, pytest.raises(tf.errors.CancelledError):
            call.result(PATIENCE_S)


LOAD = """
import sys
import numpy as np
import tensorflow as tf
tf.load_op_library(sys.argv[1])
served = tf.saved_model.load(sys.argv[2]).signatures["serving_default"]
np.save(sys.argv[2] + ".npy", served(user=tf.constant([7, 8, 9], tf.int64), bought=tf.constant([[1, 2], [3, -1], [-1, -1]], tf.int64))["rows"])
"""


def test_saved_model_when_loaded_by_another_process_then_the_same_rows_with_its_token(work):
    with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": ["token:app"], "may": ["lookup"]}],
                   "tokens": [{"name": "app", "sha256": hashlib.sha256(b"secret").hexdigest()}]}, f)
    with open(f"{work}/token", "w", encoding="utf-8") as f:
        f.write("secret\n")
    with Daemon(work, config(work, server={"access": f"{work}/roles.json"}), flags=["--admin-listen", "127.0.0.1:0"]) as one, \
            hpsd.connect(one.grpc[0], MODEL, token="secret") as client:
        users, items = layers.Embedding(client, "users"), layers.Embedding(client, "items", combiner="mean", default_id=5)

        class Served(tf.Module):
            @tf.function(input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, None], tf.int64)])
            def __call__(self, user, bought):
                return {"rows": tf.concat([users(user), items(bought)], 1)}

        model = Served()
        tf.saved_model.save(model, f"{work}/model", signatures=model.__call__)
        done = subprocess.run([sys.executable, "-c", LOAD, OPERATOR, f"{work}/model"], capture_output=True, text=True, check=False,
                              timeout=PATIENCE_S * 6, env={**os.environ, "HPSD_TOKEN_FILE": f"{work}/token"})
        assert done.returncode == 0, done.stderr
    of_items = rows_of("items", np.arange(N_ROWS))
    expected = np.concatenate([WEIGHTS[[7, 8, 9]], np.stack([(of_items[1] + of_items[2]) / 2, of_items[3], of_items[5]])], 1)
    np.testing.assert_allclose(np.load(f"{work}/model.npy"), expected, rtol=1e-6)
    with open(f"{work}/model/saved_model.pb", "rb") as f:
        assert b"secret" not in f.read()
