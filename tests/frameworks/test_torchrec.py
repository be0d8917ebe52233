# SPDX-License-Identifier: Apache-2.0
"""hpsd.torch's collections against TorchRec's, with the same rows and the same KeyedJaggedTensors."""
import pickle
import sys
import types

import numpy as np
import pytest
import torch
import torchrec
from torchrec import EmbeddingBagConfig, EmbeddingConfig, KeyedJaggedTensor, PoolingType

import hpsd
import hpsd.torch as layers
from hpsd import _lookup
from served import DIMS, N_ROWS, rows_of

BATCH = {"clicked": [[1, 2], [], [3]], "user": [[7], [8], [9]], "bought": [[], [5, 5, 6], []], "unused": [[1], [], [2]]}


@pytest.fixture(autouse=True)
def in_inference():
    with torch.no_grad():
        yield


def bag_config(name, features, pooling=PoolingType.SUM, **more):
    return EmbeddingBagConfig(name=name, embedding_dim=DIMS[name], num_embeddings=N_ROWS, feature_names=features,
                              pooling=pooling, **more)


def config(name, features):
    return EmbeddingConfig(name=name, embedding_dim=DIMS[name], num_embeddings=N_ROWS, feature_names=features)


TABLES = [bag_config("wide", ["clicked", "bought"]), bag_config("users", ["user", "clicked"], PoolingType.MEAN)]


def jagged(bags, **more):
    """bags: {feature: list of lists of keys}"""
    flat = [bag for feature in bags.values() for bag in feature]
    return KeyedJaggedTensor(keys=list(bags), values=torch.tensor([key for bag in flat for key in bag], dtype=torch.int64),
                             lengths=torch.tensor([len(bag) for bag in flat], dtype=torch.int64), **more)


def theirs(kind, tables, **how):
    """A collection of TorchRec with the rows that hpsd serves."""
    made = kind(tables=tables, **how)
    for name, module in (made.embedding_bags if hasattr(made, "embedding_bags") else made.embeddings).items():
        module.weight.copy_(torch.from_numpy(rows_of(name, np.arange(N_ROWS))))
    return made


def same_bags(client, tables, batch, **how):
    ours = layers.EmbeddingBagCollection(client, tables, **how)(batch)
    expected = theirs(torchrec.EmbeddingBagCollection, tables, **how)(batch)
    assert isinstance(ours, torchrec.KeyedTensor)
    assert (ours.keys(), ours.length_per_key()) == (expected.keys(), expected.length_per_key())
    torch.testing.assert_close(ours.values(), expected.values(), rtol=1e-6, atol=1e-6)


def same_rows(client, tables, batch):
    ours = layers.EmbeddingCollection(client, tables)(batch)
    expected = theirs(torchrec.EmbeddingCollection, tables)(batch)
    assert list(ours) == list(expected)
    for feature, rows in expected.items():
        torch.testing.assert_close(ours[feature].values(), rows.values())
        assert ours[feature].lengths().tolist() == rows.lengths().tolist()


# ---- what TorchRec takes -----------------------------------------------------------------------------

VARIABLE = {"a": [[1, 2]], "b": [[3], [4, 5]], "z": [[6]]}
STRIDES = [[1], [2], [1]]
INVERSE = (["z", "b", "a"], torch.tensor([[0, 0, 0], [1, 0, 1], [0, 0, 0]]))


@pytest.mark.parametrize("batch", [
    jagged(BATCH),
    jagged({name: BATCH[name] for name in reversed(BATCH)}),  # another order
    jagged({name: [] for name in BATCH}),  # no bag
    jagged({name: [[], []] for name in BATCH}),  # no key
    KeyedJaggedTensor.from_offsets_sync(keys=list(BATCH), values=torch.tensor([1, 7, 5, 2], dtype=torch.int32),
                                        offsets=torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32)),
    jagged(BATCH, weights=torch.ones(11)),  # not looked at
    jagged(BATCH, stride_per_key_per_rank=[[2, 1]] * 4),
    jagged(BATCH, inverse_indices=(list(BATCH), torch.tensor([[2, 0, 0, 1]] * 4))),
])
def test_collections_when_given_what_torchrec_takes_then_the_same(client, batch):
    same_bags(client, TABLES, batch)
    same_rows(client, [config("users", ["user", "clicked"])], batch)


@pytest.mark.parametrize("n_bags, size", [(1, 1), (3, 1), (5, 2), (2000, 1)])  # the last has replies that are not compared
def test_collections_when_all_bags_have_one_size_then_each_call_has_rows_of_its_keys(client, monkeypatch, n_bags, size):
    bags, rows = layers.EmbeddingBagCollection(client, TABLES), layers.EmbeddingCollection(client, [config("wide", ["bought", "user"])])
    of_bags, of_rows = theirs(torchrec.EmbeddingBagCollection, TABLES), theirs(torchrec.EmbeddingCollection, [config("wide", ["bought", "user"])])
    rng = np.random.default_rng(1)
    monkeypatch.setattr(layers.EmbeddingBagCollection, "_queries", None)  # the work for each feature
    monkeypatch.setattr(layers.EmbeddingCollection, "_queries", None)
    for names in (list(BATCH), list(BATCH), list(reversed(BATCH))):
        for dtype in (torch.int64, torch.int32):
            keys = torch.from_numpy(rng.integers(0, N_ROWS, len(names) * n_bags * size)).to(dtype)
            batch = KeyedJaggedTensor(names, keys, lengths=torch.full((len(names) * n_bags,), size))
            torch.testing.assert_close(bags(batch).values(), of_bags(batch).values(), rtol=1e-6, atol=1e-6)
            assert all(torch.equal(rows(batch)[name].values(), of_rows(batch)[name].values()) for name in ("bought", "user"))
    unknown = bags(KeyedJaggedTensor(names, torch.full((len(names) * n_bags * size,), N_ROWS), lengths=batch.lengths()))
    assert unknown["user"].unique().tolist() == [-1]  # a mean of default rows
    torch.testing.assert_close(bags(batch).values(), of_bags(batch).values(), rtol=1e-6, atol=1e-6)


def test_collection_when_bags_of_one_size_have_many_rows_then_they_are_streamed(client, monkeypatch):
    rows = layers.EmbeddingCollection(client, [config("wide", ["bought"])])
    batch = KeyedJaggedTensor(["bought"], torch.arange(400) % N_ROWS, lengths=torch.full((4,), 100))
    monkeypatch.setattr(_lookup, "STREAM_BYTES_MIN", 400 * DIMS["wide"] * 4)
    monkeypatch.setattr(client._transport, "unary", None)
    np.testing.assert_array_equal(rows(batch)["bought"].values(), rows_of("wide", np.arange(400) % N_ROWS))


def test_collection_when_pickled_after_a_call_then_the_pickle_has_no_rows(client):
    bags = layers.EmbeddingBagCollection(client, [bag_config("wide", ["bought"])])
    batch = KeyedJaggedTensor(["bought"], torch.tensor([5]), lengths=torch.tensor([1]))
    rows = bags(batch).values()
    data = pickle.dumps(bags)
    assert rows.numpy().tobytes() not in data
    assert torch.equal(pickle.loads(data)(batch).values(), rows)


def test_bag_collection_when_a_table_has_no_features_then_that_of_its_name(client):
    same_bags(client, [TABLES[0], bag_config("users", [])], jagged({**BATCH, "users": [[3], [], [4, 5]]}))


def test_collections_when_batches_differ_in_size_then_the_same(client):
    tables = [bag_config("wide", ["a", "z"]), bag_config("users", ["b"], PoolingType.MEAN)]
    same_bags(client, tables, jagged(VARIABLE, stride_per_key_per_rank=STRIDES, inverse_indices=INVERSE))
    same_rows(client, [config("users", ["b", "z"])], jagged(VARIABLE, stride_per_key_per_rank=STRIDES))


def test_bag_collection_when_weighted_then_the_same_sums(client):
    tables = [bag_config("wide", ["clicked", "bought"]), bag_config("users", ["user", "clicked"])]
    for weights in (torch.linspace(-2, 3, 11), torch.zeros(11)):
        same_bags(client, tables, jagged(BATCH, weights=weights), is_weighted=True)


def test_bag_collection_when_weighted_then_a_mean_is_by_the_number_of_keys(client):
    """That of TorchRec does it in its sharded form, and has no mean in this one."""
    bags, weights = {"user": [[1, 2], [3], []]}, torch.tensor([0.5, 3, 2])
    table = rows_of("users", np.arange(N_ROWS))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        tables = [bag_config("users", ["user"], PoolingType.MEAN)]
        out = layers.EmbeddingBagCollection(client, tables, is_weighted=True)(jagged(bags, weights=weights.to(dtype)))
        expected = np.stack([(table[1] * 0.5 + table[2] * 3) / 2, table[3] * 2, table[0] * 0])
        np.testing.assert_allclose(out["user"].numpy(), expected, rtol=1e-6)
    with pytest.raises(hpsd.InvalidArgument, match="weights: got a KeyedJaggedTensor without weights"):
        layers.EmbeddingBagCollection(client, tables, is_weighted=True)(jagged(bags))


# ---- what is refused ---------------------------------------------------------------------------------

@pytest.mark.parametrize("tables, words", [
    ([], "tables: got none"),
    ([bag_config("wide", ["a"]), bag_config("wide", ["b"], PoolingType.MEAN)], "tables: got 'wide' twice"),
    ([types.SimpleNamespace(name="x", embedding_dim=4, feature_names=["f"], pooling="max")], "'x', pooling: got 'max'"),
    ([config("wide", ["a"])], "'wide', pooling: got None, expected sum or mean"),
    ([bag_config("wide", ["a"], num_embeddings_post_pruning=7)], "'wide', num_embeddings_post_pruning: got 7"),
])
def test_bag_collection_when_made_of_what_it_cannot_serve_then_says_so(client, tables, words):
    with pytest.raises(hpsd.InvalidArgument, match=words):
        layers.EmbeddingBagCollection(client, tables)


def test_collections_when_made_wrongly_then_say_what_was_expected(client):
    with pytest.raises(hpsd.InvalidArgument, match="embedding_dim: got \\[8, 16\\], expected one"):
        layers.EmbeddingCollection(client, TABLES)
    with pytest.raises(hpsd.InvalidArgument, match="tables: got 'wide' twice"):
        layers.EmbeddingCollection(client, [config("wide", ["a"]), config("wide", ["b"])])
    with pytest.raises(TypeError, match="unexpected argument 'use_gather_select'"):
        layers.EmbeddingCollection(client, [config("wide", ["a"])], use_gather_select=True)


def duplicated():
    return KeyedJaggedTensor(keys=["clicked", "clicked"], values=torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))


@pytest.mark.parametrize("batch, words", [
    (jagged({"clicked": [[1]], "user": [[1]]}), "feature 'bought' is not among the keys \\['clicked', 'user'\\]"),
    (KeyedJaggedTensor.empty(), "feature 'clicked' is not among the keys \\[\\]"),
    (duplicated(), "keys .*got \\['clicked', 'clicked'\\], expected each key once"),
    (torchrec.JaggedTensor(torch.tensor([1]), lengths=torch.tensor([1])), "got JaggedTensor, expected a KeyedJaggedTensor"),
    (KeyedJaggedTensor(keys=["clicked", "bought"], values=torch.arange(6), lengths=torch.tensor([1, 1, 2, 1])),
     "values .*got shape \\(6,\\), expected \\(5,\\)"),  # padded
    (KeyedJaggedTensor(keys=["clicked", "bought"], values=torch.arange(2), lengths=torch.tensor([1, 1]), stride=2),
     "lengths .*got 2, expected 4"),
    (KeyedJaggedTensor(keys=["clicked", "bought"], values=torch.tensor([1.0, 2.0]), lengths=torch.tensor([1, 1])),
     "got float32, expected any integer"),
    (jagged({"clicked": [[1]], "bought": [[1]]}, inverse_indices=(["clicked"], torch.tensor([[0]]))),
     "inverse_indices: .*expected also 'bought'"),
    (jagged({"clicked": [[1]], "bought": [[1]]}, inverse_indices=(["clicked", "bought"], torch.tensor([[0], [1]]))),
     "inverse_indices of feature 'bought': got 1 to 1, expected 0 to 0"),
    (jagged({"clicked": [[1]], "bought": [[1], [2]]}, stride_per_key_per_rank=[[1], [2]]),
     "got batches of \\[1, 2\\], expected one size, or inverse_indices"),
])
def test_bag_collection_when_called_wrongly_then_says_what_was_expected(client, batch, words):
    with pytest.raises(hpsd.InvalidArgument, match=words):
        layers.EmbeddingBagCollection(client, TABLES[:1])(batch)


def test_collections_when_the_table_has_other_rows_then_say_so(client):
    wrong = [layers.EmbeddingBagConfig("wide", 8, ["clicked"])]
    for batch in (jagged(BATCH), jagged(BATCH, inverse_indices=(list(BATCH), torch.tensor([[0]] * 4)))):
        with pytest.raises(hpsd.InvalidArgument, match="table 'wide': got rows of 16 values, expected 8"):
            layers.EmbeddingBagCollection(client, wrong)(batch)
    with pytest.raises(hpsd.InvalidArgument, match="table 'wide': got rows of 16 values, expected 8"):
        layers.EmbeddingCollection(client, wrong)(jagged(BATCH))


# ---- without torchrec --------------------------------------------------------------------------------

def test_collections_when_torchrec_is_not_installed_then_classes_of_ours(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchrec", None)
    out = layers.EmbeddingBagCollection(client, TABLES)(jagged(BATCH))
    monkeypatch.undo()
    expected = theirs(torchrec.EmbeddingBagCollection, TABLES)(jagged(BATCH))
    assert isinstance(out, layers.KeyedTensor) and out.keys() == expected.keys()
    assert out.offset_per_key() == expected.offset_per_key() and list(out.to_dict()) == list(expected.to_dict())
    torch.testing.assert_close(out["bought"], expected["bought"])
    monkeypatch.setitem(sys.modules, "torchrec", None)
    rows = layers.EmbeddingCollection(client, [config("users", ["clicked"])])(jagged(BATCH))["clicked"]
    assert isinstance(rows, layers.JaggedTensor) and rows.lengths().tolist() == [2, 0, 1]
    assert rows.offsets().tolist() == [0, 2, 2, 3] and [len(bag) for bag in rows.to_dense()] == [2, 0, 1]
