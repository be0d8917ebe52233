# SPDX-License-Identifier: Apache-2.0
"""Whole models of TorchRec with hpsd behind them: replace, DLRM, export, DDP, threads and quantised collections."""
import concurrent.futures
import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
import torchrec
from torchrec import EmbeddingBagConfig, EmbeddingConfig, KeyedJaggedTensor, PoolingType
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import DataType, QuantConfig
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantBags
from torchrec.quant.embedding_modules import EmbeddingCollection as QuantRows

import hpsd
import hpsd.torch as layers
from rig import PATIENCE_S, Daemon, default_config, model_config
from served import DIMS, N_ROWS, rows_of

DIM, KEYS = 8, ("ad", "site", "page", "user")


@pytest.fixture(autouse=True)
def in_inference():
    with torch.no_grad():
        yield


def weight(table):
    return torch.from_numpy(rows_of(table, np.arange(N_ROWS)))


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def batch_of(keys, n_bags, seed=1, n_rows=N_ROWS):
    rng = np.random.default_rng(seed)
    lengths = torch.from_numpy(rng.integers(0, 4, len(keys) * n_bags))
    return KeyedJaggedTensor(list(keys), torch.from_numpy(rng.integers(0, n_rows, int(lengths.sum()))), lengths=lengths)


# ---- DLRM --------------------------------------------------------------------------------------------

def users_config(**more):
    return EmbeddingBagConfig(name="users", embedding_dim=DIM, num_embeddings=N_ROWS, feature_names=list(KEYS), **more)


def dlrm(collection):
    torch.manual_seed(1)
    return DLRM(collection, dense_in_features=5, dense_arch_layer_sizes=[16, DIM], over_arch_layer_sizes=[16, 1]).eval()


def trained_dlrm():
    bags = torchrec.EmbeddingBagCollection(tables=[users_config()])
    bags.embedding_bags["users"].weight.copy_(weight("users"))
    return dlrm(bags)


def inputs(n_bags, seed=1):
    return torch.rand((n_bags, 5), generator=torch.Generator().manual_seed(seed)), batch_of(KEYS, n_bags, seed)


@pytest.mark.parametrize("make", [
    lambda client: dlrm(layers.EmbeddingBagCollection(client, [users_config()])),
    lambda client: layers.replace(trained_dlrm(), client),
], ids=["built", "replaced"])
def test_dlrm_when_its_rows_are_in_hpsd_then_the_same_outputs(client, make):
    ours, theirs = make(client), trained_dlrm()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for n_bags in (1, 4, 7):
        given = inputs(n_bags)
        close(ours(*given), theirs(*given))
        close(compiled(*given), theirs(*given))


def test_collections_when_asked_what_they_are_then_as_torchrec_says(client):
    tables = [EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=9, feature_names=["a", "b"]),
              EmbeddingBagConfig(name="wide", embedding_dim=16, num_embeddings=9, feature_names=[])]
    ours, theirs = (kind(*first, tables=tables, is_weighted=True, device=torch.device("cpu")) for kind, first in (
        (layers.EmbeddingBagCollection, [client]), (torchrec.EmbeddingBagCollection, [])))
    assert (ours.is_weighted(), ours.device) == (theirs.is_weighted(), theirs.device)
    assert ours.embedding_bag_configs() == theirs.embedding_bag_configs() and tables[1].feature_names == ["wide"]
    shared = [EmbeddingConfig(name=name, embedding_dim=8, num_embeddings=9, feature_names=["a"]) for name in ("users", "u")]
    ours, theirs = (kind(*first, tables=shared, need_indices=True) for kind, first in (
        (layers.EmbeddingCollection, [client]), (torchrec.EmbeddingCollection, [])))
    for of in ("embedding_configs", "embedding_names_by_table", "embedding_dim", "need_indices"):
        assert getattr(ours, of)() == getattr(theirs, of)()
    assert layers.EmbeddingCollection(client, shared, torch.device("meta")).device == torch.device("meta")


def test_collection_when_it_needs_indices_then_they_are_the_weights(client):
    config = EmbeddingConfig(name="users", embedding_dim=8, num_embeddings=N_ROWS, feature_names=["user", "ad"])
    given = batch_of(KEYS, 5)
    ours = layers.EmbeddingCollection(client, [config], need_indices=True)(given)
    for feature, theirs in torchrec.EmbeddingCollection(tables=[config], need_indices=True)(given).items():
        assert torch.equal(ours[feature].weights(), theirs.weights())


def test_regroup_when_of_two_collections_then_the_same(client):
    tables = [EmbeddingBagConfig(name=name, embedding_dim=DIMS[name], num_embeddings=N_ROWS, feature_names=features)
              for name, features in (("users", ["user", "ad"]), ("wide", ["site"]))]
    given = batch_of(KEYS, 3)

    def regrouped(make):
        return torchrec.KeyedTensor.regroup([make([one])(given) for one in tables], [["ad", "site"], ["user"]])

    def theirs(tables):
        made = torchrec.EmbeddingBagCollection(tables=tables)
        for name, bag in made.embedding_bags.items():
            bag.weight.copy_(weight(name))
        return made

    for got, expected in zip(regrouped(lambda of: layers.EmbeddingBagCollection(client, of)), regrouped(theirs)):
        close(got, expected)


# ---- replace -----------------------------------------------------------------------------------------

def tower(**modules):
    made = torch.nn.Module()
    for name, module in modules.items():
        setattr(made, name, module)
    return made


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = torchrec.EmbeddingBagCollection(tables=[users_config(pooling=PoolingType.MEAN)])
        self.rows = torchrec.EmbeddingCollection(tables=[
            EmbeddingConfig(name="wide", embedding_dim=16, num_embeddings=N_ROWS, feature_names=["page"])])
        self.tower = tower(items=torch.nn.EmbeddingBag(N_ROWS, 4, mode="sum", padding_idx=3), position=torch.nn.Embedding(9, 4))
        self.tower.again = self.tower.items
        self.one = torch.nn.Embedding(N_ROWS, 8, padding_idx=0, dtype=torch.float64)
        self.two = torch.nn.Embedding(N_ROWS, 4)
        self.clipped = torch.nn.Embedding(N_ROWS, 4, max_norm=1.0)
        self.tied = torch.nn.Embedding(N_ROWS, 4)
        self.head = torch.nn.Linear(4, N_ROWS, bias=False)
        self.head.weight = self.tied.weight
        self.greatest = torch.nn.EmbeddingBag(N_ROWS, 4, mode="max")
        self.bags.embedding_bags["users"].weight.copy_(weight("users"))
        self.rows.embeddings["wide"].weight.copy_(weight("wide"))
        self.tower.items.weight.copy_(weight("items"))
        self.one.weight.copy_(weight("users"))

    def forward(self, batch, keys):
        return [self.bags(batch).values(), self.rows(batch)["page"].values(), self.tower.items(keys),
                self.tower.again(keys), self.tower.position(keys % 9), self.one(keys), self.two(keys), self.tied(keys)]


def test_replace_when_a_model_has_all_kinds_then_what_it_can_and_says_what_it_left(client, capsys):
    model, theirs = Mixed().eval(), Mixed().eval()
    theirs.load_state_dict(model.state_dict())
    tables = {"one": "users", "two": "users", "clipped": "items", "tied": "items", "greatest": "items"}
    assert layers.replace(model, client, tables) is model
    said = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("hpsd.torch.replace: ") for line in said] == [
        "replaced bags (EmbeddingBagCollection): users", "replaced rows (EmbeddingCollection): wide",
        "replaced tower.items (EmbeddingBag): items", "left tower.position (Embedding): hpsd has no table 'tower.position'",
        "replaced one (Embedding): users", "left two (Embedding): table 'users' has rows of 8 values, not 4",
        "left clipped (Embedding): it has max_norm, which changes rows",
        "left tied (Embedding): another module uses its weight", "left greatest (EmbeddingBag): its mode is 'max'"]
    given = batch_of(KEYS, 3), torch.tensor([[1, 3], [3, 3]])
    for got, expected in zip(model(*given), theirs(*given)):
        assert got.dtype == expected.dtype
        close(got, expected)
    assert model.tower.again is model.tower.items and not model.one.training


class Subclass(torch.nn.Embedding):
    pass


def hooked(model):
    model.users.register_forward_hook(lambda module, given, rows: rows * 2)
    return model


def tied_to(bags):
    head = torch.nn.Linear(DIM, N_ROWS, bias=False)
    head.weight = bags.embedding_bags["users"].weight
    return tower(bags=bags, head=head)


@pytest.mark.parametrize("model, line", [
    (lambda: torch.nn.Linear(1, 1), "found no embedding in the model"),
    (lambda: tower(a=tower(items=torch.nn.Embedding(9, 4)), b=tower(items=torch.nn.Embedding(9, 4))),
     "left a.items (Embedding): hpsd has no table 'a.items'"),
    (lambda: torchrec.EmbeddingBagCollection(tables=[users_config(num_embeddings_post_pruning=7)]),
     "left the model (EmbeddingBagCollection): table 'users', num_embeddings_post_pruning: got 7, expected None"),
    (lambda: tower(users=Subclass(9, DIM)), "left users (Subclass): a subclass may look up other rows"),
    (lambda: hooked(tower(users=torch.nn.Embedding(9, DIM))), "left users (Embedding): it has hooks, which may change rows"),
    (lambda: tied_to(torchrec.EmbeddingBagCollection(tables=[users_config()])),
     "left bags (EmbeddingBagCollection): another module uses its weight"),
])
def test_replace_when_it_cannot_then_the_model_stays(client, capsys, model, line):
    made = model()
    before = str(made)
    assert layers.replace(made, client) is made and str(made) == before
    assert f"hpsd.torch.replace: {line}" in capsys.readouterr().out
    with pytest.raises(hpsd.Error, match=f"replace: {re.escape(line)}"):
        layers.replace(made, client, strict=True)


def test_replace_when_strict_and_nothing_is_left_then_no_error(client):
    model = tower(bags=torchrec.EmbeddingBagCollection(tables=[users_config()]), users=torch.nn.Embedding(N_ROWS, DIM))
    layers.replace(model, client, strict=True)
    assert [type(each) for each in model.children()] == [layers.EmbeddingBagCollection, layers.Embedding]


@pytest.mark.parametrize("path", ["user", "bags", "bags.users", "bags.embedding_bags.users"])
def test_replace_when_a_path_of_tables_is_no_layer_then_refused_and_the_model_stays(client, path):
    model = tower(bags=torchrec.EmbeddingBagCollection(tables=[users_config()]), users=torch.nn.Embedding(N_ROWS, DIM))
    before = str(model)
    with pytest.raises(hpsd.InvalidArgument, match=f"tables: got '{path}', expected paths of torch.nn layers: \\['users'\\]"):
        layers.replace(model, client, {"users": "users", path: "users"})
    assert str(model) == before


def test_replace_when_layers_are_on_the_meta_device_then_rows_are_on_the_cpu(client):
    model = tower(users=torch.nn.Embedding(N_ROWS, DIM, device="meta"),
                  bags=torchrec.EmbeddingBagCollection(tables=[users_config()], device="meta"))
    layers.replace(model, client)
    assert torch.equal(model.users(torch.tensor([3])), weight("users")[[3]])
    close(model.bags(KeyedJaggedTensor(list(KEYS), torch.tensor([3]), lengths=torch.tensor([1, 0, 0, 0])))["ad"], weight("users")[[3]])


# ---- quantised collections ---------------------------------------------------------------------------

N_QUANTISED = 500


def quantised(kind, config, name):
    """A collection of TorchRec, quantised to int8, and its rows: bytes, scales and biases."""
    qconfig = QuantConfig(activation=torch.quantization.PlaceholderObserver.with_args(dtype=torch.float),
                          weight=torch.quantization.PlaceholderObserver.with_args(dtype=torch.qint8))
    torch.manual_seed(3)
    source = kind(tables=[config])
    source.qconfig = qconfig
    made = (QuantBags if kind is torchrec.EmbeddingBagCollection else QuantRows).from_float(source)
    return made, made.state_dict()[name].numpy()


@pytest.fixture(name="int8", scope="module")
def daemon_with_int8_rows(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("int8"))
    bag = EmbeddingBagConfig(name="bag", embedding_dim=12, num_embeddings=N_QUANTISED, feature_names=["ad", "site"])
    row = EmbeddingConfig(name="row", embedding_dim=16, num_embeddings=N_QUANTISED, feature_names=["user"])
    bags, of_bag = quantised(torchrec.EmbeddingBagCollection, bag, "embedding_bags.bag.weight")
    rows, of_row = quantised(torchrec.EmbeddingCollection, row, "embeddings.row.weight")
    for name, bytes_, dim in (("bag", of_bag, 12), ("row", of_row, 16)):
        np.save(f"{work}/{name}.npy", bytes_[:, 4:4 + dim])
        np.save(f"{work}/{name}.scale_bias.npy", np.ascontiguousarray(bytes_[:, :4]).view("<f2"))
    paths = [f"{work}/{name}.npy" for name in ("bag", "row")]
    config = default_config([model_config("quantised", paths, [12, 16], ["bag", "row"], gpucache=False)])
    with Daemon(work, config) as one, hpsd.connect(one.grpc[0], "quantised") as made:
        yield made, bags, rows


def test_quantised_collections_when_replaced_then_the_same_bits(int8):
    client, bags, rows = int8
    assert client.model().tables["bag"].data_type == "int8_rowwise_f16"
    given = batch_of(("ad", "site", "user"), 64, n_rows=N_QUANTISED)
    model = torch.nn.ModuleList([bags, rows])
    ours = layers.replace(torch.nn.ModuleList([bags, rows]), client)
    assert [type(one) for one in ours] == [layers.EmbeddingBagCollection, layers.EmbeddingCollection]
    assert torch.equal(ours[1](given)["user"].values(), model[1](given)["user"].values())
    assert torch.equal(ours[0](given).values(), model[0](given).values())


# ---- serving -----------------------------------------------------------------------------------------

def test_dlrm_when_called_by_16_threads_then_each_gets_its_own_answer(client):
    ours, theirs = layers.replace(trained_dlrm(), client), trained_dlrm()
    given = [inputs(3 + n % 5, n) for n in range(64)]
    expected = [theirs(*one) for one in given]

    def serve(n):
        with torch.no_grad():  # of this thread
            return ours(*given[n])

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for got, one in zip(pool.map(serve, range(64)), expected):
            close(got, one)


def run(code, *arguments):
    """Run a program of another process."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S * 4, env={**os.environ, "PYTHONPATH": os.path.dirname(hpsd.__path__[0])})
    assert done.returncode == 0, done.stderr


LOAD = """
    import sys
    import torch
    import torchrec
    import hpsd.torch
    program = torch.export.load(sys.argv[1]).module()
    dense, values, lengths = torch.load(sys.argv[1] + ".in")
    torch.save(program(dense, values, lengths), sys.argv[1] + ".out")
    """


class OfTensors(torch.nn.Module):
    """A model that makes its KeyedJaggedTensor itself: programs of torch.export have tensors as inputs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, dense, values, lengths):
        return self.model(dense, KeyedJaggedTensor(list(KEYS), values, lengths=lengths))


def test_dlrm_when_exported_then_another_process_has_the_same_outputs(client, work):
    model = OfTensors(layers.replace(trained_dlrm(), client)).eval()
    dense, batch = inputs(6)
    n_keys = torch.export.Dim.AUTO
    program = torch.export.export(model, (dense, batch.values(), batch.lengths()), dynamic_shapes=(None, {0: n_keys}, None))
    torch.export.save(program, f"{work}/dlrm.pt2")
    dense, batch = inputs(6, seed=2)
    torch.save((dense, batch.values(), batch.lengths()), f"{work}/dlrm.pt2.in")
    run(LOAD, f"{work}/dlrm.pt2")
    close(torch.load(f"{work}/dlrm.pt2.out"), trained_dlrm()(dense, batch))


DDP = """
    import sys
    import torch
    import torch.distributed as dist
    from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
    import hpsd.torch
    address, path, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=2)
    client = hpsd.connect(address, "shop")
    tables = [EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=200, feature_names=["user"])]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = hpsd.torch.EmbeddingBagCollection(client, tables).eval()
            self.dense = torch.nn.Linear(8, 1)

        def forward(self, batch):
            return self.dense(self.bags(batch).values())

    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    model.module.bags.eval()
    batch = KeyedJaggedTensor(["user"], torch.tensor([rank, 2, 3]), lengths=torch.tensor([1, 2]))
    model(batch).sum().backward()
    torch.save((model.module.dense.weight, model.module.dense.weight.grad), f"{path}/{rank}.pt")
    dist.destroy_process_group()
    """


def test_ddp_when_two_ranks_have_a_dense_layer_above_hpsd_then_its_gradient_is_their_mean(daemon, work):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: run(DDP, daemon.grpc[0], work, rank), ("0", "1")))
    (first, gradient), (second, other) = (torch.load(f"{work}/{rank}.pt") for rank in range(2))
    assert torch.equal(first, second) and torch.equal(gradient, other)
    table = weight("users")
    expected = sum(table[rank] + table[2] + table[3] for rank in range(2)) / 2
    close(gradient, expected[None])
