# SPDX-License-Identifier: Apache-2.0
"""hpsd.torch against torch's own layers with the same rows."""
import copy
import io
import json
import os
import pickle

import numpy as np
import pytest
import torch

import documents
import hpsd
import hpsd.aio
import hpsd.torch as layers
import test_documents
from hpsd import _answer, _query
from rig import Daemon, run_hpsd
from served import DIMS, MODEL, N_ROWS, rows_of


def weight(table):
    return torch.from_numpy(rows_of(table, np.arange(N_ROWS)))


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.fixture(autouse=True)
def in_inference():
    with torch.no_grad():
        yield


# ---- tensors -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_lookup_when_of_tensors_then_tensors_in_memory_of_their_own(client, dtype):
    keys = torch.tensor([[1, 2], [3, 1]], dtype=dtype)
    rows = client.lookup("items", keys)
    assert isinstance(rows, torch.Tensor)
    close(rows, weight("items")[keys.long()])
    rows += 1  # no warning, and nobody else's
    close(client.lookup("items", keys), weight("items")[keys.long()])
    both = client.lookup({"items": keys, "users": [1]})
    assert isinstance(both["items"], torch.Tensor) and isinstance(both["users"], np.ndarray)


def test_tensors_when_asked_with_then_they_are_copied_where_numpy_would():
    keys = torch.arange(12).reshape(3, 4)
    assert np.shares_memory(_query.query("items", keys).keys, keys.numpy())
    assert not np.shares_memory(_query.query("items", keys.int()).keys, keys.numpy())
    weights = torch.ones(12)
    made = _query.query("items", (keys, torch.tensor([0, 12]), weights), "sum")
    assert np.shares_memory(made.keys, keys.numpy()) and np.shares_memory(made.weights, weights.numpy())
    rows = np.ones((3, 4), np.float32)
    assert np.shares_memory(_answer.as_tensor(rows).numpy(), rows)


@pytest.mark.parametrize("output", [torch.float16, torch.bfloat16, torch.float32])
def test_lookup_when_of_another_dtype_then_rows_of_it(client, output):
    rows = client.lookup("wide", torch.arange(5), output=output)
    assert rows.dtype == output
    close(rows.float(), weight("wide")[:5])


# ---- Embedding and EmbeddingBag ----------------------------------------------------------------------

@pytest.mark.parametrize("keys", [torch.tensor(3), torch.tensor([], dtype=torch.int64), torch.arange(24).reshape(2, 3, 4)])
@pytest.mark.parametrize("padding_idx", [None, 3])
def test_embedding_when_called_then_as_torch_does(client, keys, padding_idx):
    ours = layers.Embedding(client, "users", padding_idx=padding_idx)
    theirs = torch.nn.Embedding.from_pretrained(weight("users"), padding_idx=padding_idx)
    assert ours.embedding_dim == 8
    close(ours(keys), theirs(keys))


BAGS = [
    (torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 3]), torch.tensor([0, 4, 4])),
    (torch.tensor([1, 2, 4, 5], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)),
    (torch.tensor([[1, 2, 4, 3], [3, 3, 3, 3]]), None),
    (torch.zeros((0, 3), dtype=torch.int64), None),
    (torch.tensor([], dtype=torch.int64), torch.tensor([0, 0])),
]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 3])
@pytest.mark.parametrize("keys, offsets", BAGS)
def test_embedding_bag_when_called_then_as_torch_does(client, mode, padding_idx, keys, offsets):
    how = {"mode": mode, "padding_idx": padding_idx}
    ours = layers.EmbeddingBag(client, "items", **how)
    theirs = torch.nn.EmbeddingBag.from_pretrained(weight("items"), **how)
    expected = theirs(keys, offsets) if keys.numel() or offsets is not None else torch.zeros(0, 4)
    close(ours(keys, offsets), expected)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 4])
def test_embedding_bag_when_the_last_offset_is_included_then_as_torch_does(client, mode, padding_idx):
    how = {"mode": mode, "padding_idx": padding_idx, "include_last_offset": True}
    keys, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 1, 5, 6])
    close(layers.EmbeddingBag(client, "items", **how)(keys, offsets),
          torch.nn.EmbeddingBag.from_pretrained(weight("items"), **how)(keys, offsets))


@pytest.mark.parametrize("padding_idx", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_embedding_bag_when_weighted_then_as_torch_does(client, padding_idx, dtype):
    how = {"mode": "sum", "padding_idx": padding_idx}
    ours = layers.EmbeddingBag(client, "items", **how).to(dtype)
    theirs = torch.nn.EmbeddingBag.from_pretrained(weight("items").to(dtype), **how)
    keys, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 1, 5])
    weights = torch.tensor([1.5, 2, -1, 0.5, 0, 3], dtype=dtype)
    close(ours(keys, offsets, per_sample_weights=weights), theirs(keys, offsets, per_sample_weights=weights))
    square = keys.reshape(2, 3), None, weights.reshape(2, 3)
    close(ours(*square), theirs(*square))


@pytest.mark.parametrize("padding_idx", [-1, -N_ROWS, np.int64(N_ROWS - 1)])
def test_padding_when_counted_from_the_number_of_rows_then_as_torch_does(client, padding_idx):
    keys, how = torch.tensor([[0, N_ROWS - 1, 5], [N_ROWS - 1, 0, 0]]), {"mode": "mean", "padding_idx": padding_idx}
    ours = layers.EmbeddingBag(client, "items", num_embeddings=N_ROWS, **how)
    theirs = torch.nn.EmbeddingBag.from_pretrained(weight("items"), **how)
    close(ours(keys), theirs(keys))
    close(copy.deepcopy(ours)(keys), theirs(keys))
    embedding = layers.Embedding(client, "items", num_embeddings=N_ROWS, padding_idx=padding_idx)
    assert embedding.padding_idx == ours.padding_idx == theirs.padding_idx


def test_padding_when_it_is_a_key_of_64_bits_then_that_key_is_left_out(client):
    bag = layers.EmbeddingBag(client, "items", mode="sum", padding_idx=2**64 - 5)
    close(bag(torch.tensor([[-5, 1]])), weight("items")[1:2])


@pytest.mark.parametrize("padding_idx, num_embeddings, words", [
    (-1, None, "padding_idx: got -1, expected .*from which torch counts a negative one back"),
    (-11, 10, "padding_idx: got -11, expected a whole number from -10 to 9"), (10, 10, "got 10, expected"),
    (2**64, None, "padding_idx: got 18446744073709551616"), (1.5, 10, "padding_idx: got 1.5"), ("1", 10, "padding_idx: got '1'"),
    (1, "10", "num_embeddings: got '10', expected a whole number from 1"), (1, 0, "num_embeddings: got 0"),
])
@pytest.mark.parametrize("layer", [layers.Embedding, layers.EmbeddingBag])
def test_padding_when_it_is_no_row_then_says_what_was_expected(client, layer, padding_idx, num_embeddings, words):
    with pytest.raises(hpsd.InvalidArgument, match=words):
        layer(client, "items", 4, padding_idx=padding_idx, num_embeddings=num_embeddings)


NO_KEYS = {
    "ragged": lambda: [[1], [2, 3]],
    "coo": lambda: torch.sparse_coo_tensor(torch.tensor([[0], [1]]), torch.tensor([1]), (2, 2)),
    "csr": lambda: torch.ones(2, 2, dtype=torch.int64).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])]),
    "jagged": lambda: torch.nested.nested_tensor([torch.tensor([1]), torch.tensor([2, 3])], layout=torch.jagged),
    "float8": lambda: torch.tensor([1.0]).to(torch.float8_e4m3fn),
    "bfloat16": lambda: torch.tensor([1.0], dtype=torch.bfloat16),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NO_KEYS)
def test_keys_when_they_are_no_dense_integers_then_says_what_was_expected(client, kind):
    given, zero = NO_KEYS[kind](), torch.tensor([0])
    for call in (lambda: client.lookup("items", given), lambda: client.lookup("items", (given, [0, 1]), pooling="sum"),
                 lambda: layers.Embedding(client, "items")(given), lambda: layers.EmbeddingBag(client, "items")(given, zero)):
        with pytest.raises(hpsd.InvalidArgument, match="got .*expected"):
            call()


def test_keys_when_they_are_on_no_device_then_says_what_was_expected(client):
    with pytest.raises(hpsd.InvalidArgument, match="got a tensor of torch.int64 on the device meta, expected"):
        client.lookup("items", torch.empty(2, device="meta", dtype=torch.int64))


def test_flat_when_of_tensors_then_a_tensor(client):
    keys = torch.tensor([1, 2])
    close(client.lookup_flat(keys, torch.tensor([2])), weight("items")[keys])
    close(client.lookup_flat(keys, [2], output=torch.bfloat16), weight("items")[keys].bfloat16())


@pytest.mark.parametrize("call, words", [
    (lambda bag: bag(torch.zeros((2, 2), dtype=torch.int64), torch.tensor([0])), "offsets: got offsets with an input of two"),
    (lambda bag: bag(torch.tensor([1])), "offsets: expected one dimension"),
    (lambda bag: bag(torch.tensor([1, 2]), torch.tensor([0, 0.5])), "offsets: got float32, expected any integer dtype"),
    (lambda bag: bag(torch.tensor([1, 2]), torch.tensor([1])), "offsets: got 2 values from 1 to 2, expected"),
    (lambda bag: bag(torch.tensor([1, 2]), torch.tensor([0, -1])), "offsets: got 3 values from 0 to 2, expected"),
    (lambda bag: bag(torch.tensor([1, 2]), torch.tensor([0, 9])), "offsets: got 3 values from 0 to 2, expected"),
    (lambda bag: bag(torch.zeros((1, 1, 1), dtype=torch.int64)), "input: got 3 dimensions"),
    (lambda bag: bag(torch.tensor([1.5]), torch.tensor([0])), "table 'items', keys: got float32, expected any integer"),
    (lambda bag: bag(torch.tensor([1, 2]), torch.tensor([1])), "expected bags \\+ 1 values that begin with 0"),
    (lambda bag: bag(torch.tensor([1]), torch.tensor([0]), torch.tensor([1., 2.])), "per_sample_weights: got shape \\(2,\\)"),
])
@pytest.mark.parametrize("padding_idx", [None, 1])
def test_embedding_bag_when_called_wrongly_then_says_how_it_is_called(client, call, words, padding_idx):
    with pytest.raises(hpsd.InvalidArgument, match=words):
        call(layers.EmbeddingBag(client, "items", mode="sum", padding_idx=padding_idx))


def test_layers_when_made_wrongly_then_say_what_was_expected(client):
    for make in (layers.Embedding, layers.EmbeddingBag, lambda of: layers.Embedding(of, "items", 4),
                 lambda of: layers.EmbeddingBagCollection(of, [layers.EmbeddingBagConfig("items", 4, ["f"])])):
        with pytest.raises(hpsd.InvalidArgument, match="client: got hpsd.aio.Client, expected an hpsd.Client"):
            make(hpsd.aio.connect("127.0.0.1:1"), *(["items"] if isinstance(make, type) else []))
    with pytest.raises(hpsd.InvalidArgument, match="mode: got 'max', expected 'sum' or 'mean'"):
        layers.EmbeddingBag(client, "items", mode="max")
    with pytest.raises(TypeError, match="unexpected argument 'max_norm'"):
        layers.Embedding(client, "items", max_norm=1.0)
    with pytest.raises(hpsd.NotFound, match="its tables: items, users, wide"):
        layers.Embedding(client, "itmes")
    with pytest.raises(hpsd.InvalidArgument, match="table 'items': got rows of 4 values, expected 5"):
        layers.Embedding(client, "items", 5)(torch.tensor([1]))
    with pytest.raises(hpsd.InvalidArgument, match="per_sample_weights: got weights with mode 'mean'"):
        layers.EmbeddingBag(client, "items")(torch.tensor([[1]]), None, torch.tensor([[1.]]))


# ---- what a layer is among modules -------------------------------------------------------------------

def test_module_when_it_has_layers_then_nothing_of_them_is_in_its_state(client):
    module = torch.nn.Sequential(layers.Embedding(client, "items"), torch.nn.Linear(4, 1))
    assert sorted(module.state_dict()) == ["1.bias", "1.weight"] and len(list(module.parameters())) == 2
    module.load_state_dict(module.state_dict())
    assert "Embedding('items', 4)" in repr(module)


def test_module_when_moved_then_rows_are_where_and_what_it_is(client):
    layer = layers.EmbeddingBag(client, "items", mode="sum")
    keys = torch.tensor([[1, 2]])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        rows = layer.to(dtype)(keys)
        assert rows.dtype == dtype
        close(rows.float(), weight("items")[keys].sum(1))
    meta = layers.Embedding(client, "items", 4).to("meta")
    assert meta(keys).device.type == "meta"


def test_module_when_copied_then_the_copy_works_by_itself(client):
    layer = layers.Embedding(client, "items").half()
    keys = torch.tensor([1, 2])
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, **({"weights_only": False} if torch.__version__ >= "2" else {}))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        close(other(keys), layer(keys))
        assert other.client is not layer.client


def test_backward_when_in_training_then_says_that_it_is_for_inference(client):
    layer = layers.Embedding(client, "items")
    with torch.enable_grad():
        loss = layer(torch.tensor([1])).sum()
        with pytest.raises(RuntimeError, match=r"hpsd.torch.Embedding\('items', 4\) is for inference.*eval\(\)"):
            loss.backward()
        assert not layer.eval()(torch.tensor([1])).requires_grad
        dense = torch.nn.Linear(4, 1)
        dense(layer(torch.tensor([1]))).sum().backward()
        assert dense.weight.grad is not None


# ---- HPS ---------------------------------------------------------------------------------------------

def test_lookup_layer_when_made_of_a_ps_json_then_its_table(daemon, work):
    path = os.path.join(work, "ps.json")
    entry = {"model": MODEL, "sparse_files": ["a", "b", "c"], "embedding_table_names": list(DIMS)}
    with open(path, "w", encoding="utf-8") as f:
        f.write("// as hpsd reads it\n" + json.dumps({"models": [entry], "server": {"listen": [daemon.grpc[0]]}}) + "/* end */")
    keys = torch.tensor([[1, 2, 3]], dtype=torch.int32)
    close(layers.LookupLayer(path, MODEL, 1, 8)(keys), weight("users")[keys.long()])
    close(layers.LookupLayer(ps_config_file=path, model_name=MODEL, table_id=0, emb_vec_size=4, address=daemon.grpc[1])(keys),
          weight("items")[keys.long()])
    with pytest.raises(hpsd.InvalidArgument, match="table_id: got 3, expected 0 to 2"):
        layers.LookupLayer(path, MODEL, 3, 8)
    with pytest.raises(hpsd.InvalidArgument, match="model_name: got 'x', expected one of .*'shop'"):
        layers.LookupLayer(path, "x", 0, 8)
    with pytest.raises(hpsd.InvalidArgument, match="address: got 8601, expected HOST:PORT"):
        layers.LookupLayer(path, MODEL, 0, 8, address=8601)
    with open(path, "w", encoding="utf-8") as f:
        f.write("{")
    with pytest.raises(hpsd.InvalidArgument, match="ps_config_file: .*ps.json is not JSON"):
        layers.LookupLayer(path, MODEL, 0, 8)


def test_lookup_layer_when_changed_as_the_migration_guide_shows_then_the_same_rows(work):
    code = test_documents.diff_side(documents.block(test_documents.MIGRATION, " import torch").code, "+")
    (_, deep), _ = test_documents.wdl(work)
    with Daemon(work, test_documents.moved(work)) as one:
        config = test_documents.moved(work)
        config["server"]["listen"] = one.grpc[0]
        with open(f"{work}/hpsd.json", "w", encoding="utf-8") as f:
            json.dump(config, f)
        names = {}
        exec(code.replace("hpsd.json", f"{work}/hpsd.json"), names)  # pylint: disable=exec-used
    close(names["vectors"], torch.from_numpy(deep.rows[[[0, 1], [2, 3]]]))


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_dataloader_when_workers_make_their_clients_then_all_batches_arrive(two_tables, work, start):
    """With spawn and forkserver also where the parent has looked up."""
    out = documents.run_page("pytorch_dataloader", two_tables.grpc[0], work, lambda code: code.replace(
        "num_workers=2", f"num_workers=2, multiprocessing_context='{start}'").replace("    for rows", (
            f"    hpsd.connect('{two_tables.grpc[0]}').lookup('items', [1])\n" if start != "fork" else "") + "    for rows"))
    assert out == "torch.Size([16, 16])\n" * 4


# ---- the code of the documents -----------------------------------------------------------------------

SERVING = "torchrec_from_training_to_serving"


def test_torchrec_when_trained_loaded_and_replaced_as_shown_then_the_same_rows(two_tables, work, monkeypatch):
    monkeypatch.setenv("HPSD_ADDR", two_tables.admin)
    export, load = documents.block("docs/torchrec.md", "export HPSD_ADDR").code.splitlines()
    assert export == "export HPSD_ADDR=unix:state/admin.sock"
    out = documents.run_page(SERVING, two_tables.grpc[0], work, lambda code: code.replace(
        "client = hpsd.connect", f"import subprocess\nsubprocess.run({load.split()}, check=True)\nclient = hpsd.connect"))
    assert out.splitlines()[-1] == "True", out
    rows = hpsd.connect(two_tables.grpc[0], "shop").lookup("products", [7])
    np.testing.assert_array_equal(rows, np.load(f"{work}/model/products.npy")[[7]])


@pytest.mark.parametrize("name", [name for name in documents.python_pages() if "torch" in name and name != SERVING])
def test_document_when_its_code_is_run_then_it_works(name, two_tables, work):
    for table, dim in (("items", 16), ("users", 8)):
        np.save(f"{work}/{table}.npy", np.zeros((1000, dim), np.float32))
    documents.run_page(name, two_tables.grpc[0], work)
    if os.path.exists(f"{work}/ps.json"):
        done = run_hpsd("--check", "--config", "ps.json", "--state-dir", f"{work}/state", cwd=work)
        assert done[0] == 0, done[2]
