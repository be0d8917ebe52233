# SPDX-License-Identifier: Apache-2.0
"""What torch makes of modules that have layers of hpsd: compiled, exported, traced. A program looks up wherever it runs;
what could not do so is not made."""
import hashlib
import io
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor

import hpsd
import hpsd.torch as layers
from hpsd import _program
from rig import PATIENCE_S, Daemon
from served import DIMS, MODEL, config

TABLES = [EmbeddingBagConfig(name="wide", embedding_dim=16, num_embeddings=200, feature_names=["clicked", "bought"]),
          EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=200, feature_names=["user"])]


class Module(torch.nn.Module):
    def __init__(self, client):
        super().__init__()
        self.one = layers.Embedding(client, "users", DIMS["users"])
        self.bag = layers.EmbeddingBag(client, "items", DIMS["items"], mode="sum", padding_idx=3)
        self.dense = torch.nn.Linear(12, 1)

    def forward(self, keys, bags):
        return self.dense(torch.cat((self.one(keys) * 2, self.bag(bags)), 1))


INPUTS = (torch.tensor([1, 2]), torch.tensor([[1, 2], [3, 4]]))
OTHERS = (torch.tensor([5, 7]), torch.tensor([[9, 3], [8, 8]]))


def same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


# ---- what is refused ---------------------------------------------------------------------------------

@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("record", [
    lambda module: torch.jit.trace(module, INPUTS),
    torch.jit.script,
    lambda module: torch.onnx.export(module, INPUTS, io.BytesIO(), dynamo=False),
    lambda module: torch.onnx.export(module, INPUTS, dynamo=True, verbose=False),
    torch.fx.symbolic_trace,
], ids=["trace", "script", "onnx", "onnx_dynamo", "fx"])
def test_recording_when_it_would_hold_rows_then_says_what_to_do(client, record):
    with pytest.raises(Exception, match=r"hpsd.torch.Embedding\(.*\) cannot be traced.*torch.export, or call client.lookup"):
        record(Module(client).eval())


# ---- torch.compile and what else sees operators ------------------------------------------------------

@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_when_a_module_has_layers_then_they_are_opaque_to_it(client, backend):
    module = Module(client).eval()
    many = layers.EmbeddingBagCollection(client, TABLES).eval()

    def both(keys, bags, batch):
        return torch.cat((module(keys, bags), many(batch).values()), 1)

    compiled = torch.compile(both, fullgraph=True, backend=backend)
    with torch.no_grad():
        for n in (3, 5):
            keys, bags = torch.arange(n), torch.arange(n * 4).reshape(n, 4)
            batch = KeyedJaggedTensor(["clicked", "bought", "user"], torch.arange(6 * n), lengths=torch.full((3 * n,), 2))
            same(compiled(keys, bags, batch), both(keys, bags, batch))


def test_compile_when_rows_are_for_each_key_then_the_same(client):
    collection = layers.EmbeddingCollection(client, TABLES[1:]).eval()
    batch = KeyedJaggedTensor(["user"], torch.tensor([7, 8, 9]), lengths=torch.tensor([2, 0, 1]))
    with torch.no_grad():
        same(torch.compile(collection, backend="aot_eager")(batch)["user"].values(), collection(batch)["user"].values())


def test_make_fx_when_a_layer_is_recorded_then_it_looks_up_again(client):
    with torch.no_grad():
        bag = layers.EmbeddingBag(client, "items", mode="sum")
        same(make_fx(bag)(INPUTS[1])(OTHERS[1]), bag(OTHERS[1]))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        assert bag(fake.from_tensor(INPUTS[1])).shape == (2, DIMS["items"])


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("module", [
    lambda client: layers.Embedding(client, "items"),
    lambda client: torch.nn.Sequential(layers.Embedding(client, "items"), torch.nn.Linear(4, 1)),
], ids=["layer", "model"])
def test_backward_when_in_training_then_says_that_it_is_for_inference(client, module, backend):
    made = module(client)
    called = made if backend is None else torch.compile(made, backend=backend)
    loss = called(torch.tensor([1])).sum()
    with pytest.raises(RuntimeError, match=r"hpsd.torch.Embedding\('items', 4\) is for inference.*eval\(\)"):
        loss.backward()
    made.eval()
    out = called(torch.tensor([1]))
    assert out.requires_grad == (len(list(made.parameters())) > 0)
    if out.requires_grad:
        out.sum().backward()
        assert all(parameter.grad is not None for parameter in made.parameters())


def test_layer_when_its_attributes_are_changed_then_the_next_call_has_them(client):
    bag, keys = layers.EmbeddingBag(client, "items", mode="sum"), torch.tensor([[3, 777]])
    compiled = torch.compile(bag.eval(), backend="aot_eager")
    with torch.no_grad():
        for change in ({"padding_idx": 3}, {"mode": "mean"}, {"options": {"unknown": "zero"}}):
            for name, value in change.items():
                setattr(bag, name, value)
            expected = client.lookup("items", torch.tensor([[777]]), pooling=bag.mode, **bag.options)
            same(bag(keys), expected)
            same(compiled(keys), expected)


def test_collection_when_its_client_or_options_are_changed_then_the_next_call_has_them(client, daemon):
    bags = layers.EmbeddingBagCollection(client, [{"name": "items", "embedding_dim": 4, "feature_names": ["f"]}]).eval()
    batch = KeyedJaggedTensor(["f"], torch.tensor([777]), lengths=torch.tensor([1]))
    assert bags(batch).values().unique().tolist() == [-1]
    bags.options = {"unknown": "zero"}
    assert bags(batch).values().unique().tolist() == [0]
    with hpsd.connect(daemon.grpc[0], model="other") as other:
        bags.client = other
        with pytest.raises(hpsd.NotFound):
            bags(batch)


@pytest.mark.parametrize("keys", [torch.empty((2, 3), dtype=torch.int64, device="meta"),
                                  FakeTensorMode(allow_non_fake_inputs=True).from_tensor(torch.zeros((2, 3), dtype=torch.int64))], ids=["meta", "fake"])
def test_layer_when_keys_have_no_values_then_a_result_without_values(client, keys):
    rows = layers.EmbeddingBag(client, "items", mode="sum").eval()(keys)
    assert rows.shape == (2, DIMS["items"]) and (type(rows) is type(keys) or rows.is_meta)


def test_backward_when_weights_have_gradients_in_eval_then_says_that_it_is_for_inference(client):
    bag = layers.EmbeddingBag(client, "items", mode="sum").eval()
    weights = torch.ones((1, 2), requires_grad=True)
    with pytest.raises(RuntimeError, match="is for inference"):
        bag(torch.tensor([[1, 2]]), per_sample_weights=weights).sum().backward()


# ---- programs of other processes ---------------------------------------------------------------------

LOAD = """
    import sys
    import torch
    import hpsd.torch
    address, path, token = sys.argv[1:]
    if token == "of a client":
        client = hpsd.connect(address, "shop", token="secret")
        others = [hpsd.torch.Embedding(client, *table) for table in (("items", 4), ("wide", 16), ("users", 8))]
    elif token:
        hpsd.torch.set_token(lambda: token)
    program = torch._inductor.aoti_load_package(path) if "aoti" in path else torch.export.load(path).module()
    torch.save(program(torch.tensor([5, 7]), torch.tensor([[9, 3], [8, 8]])), path + ".out")
    """


def load(address, path, token):
    """Exit status and stderr of another process that loads the program; its layers, if any, are made in another order."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(LOAD), address, path, token], capture_output=True, text=True,
                          timeout=PATIENCE_S * 4, check=False, env={**os.environ, "PYTHONPATH": os.path.dirname(hpsd.__path__[0])})
    return done.returncode, done.stderr


@pytest.fixture(name="guarded")
def daemon_that_wants_a_token(work):
    roles = os.path.join(work, "roles.json")
    with open(roles, "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": ["token:app"], "may": ["lookup"]}],
                   "tokens": [{"name": "app", "sha256": hashlib.sha256(b"secret").hexdigest()}]}, f)
    with Daemon(work, config(work, server={"access": roles}), flags=["--admin-listen", "127.0.0.1:0"]) as one:
        yield one


@pytest.mark.parametrize("kind", ["export", "aoti"])
def test_program_when_loaded_by_another_process_then_it_connects_there(guarded, work, kind):
    address, path = guarded.grpc[0], os.path.join(work, f"{kind}.pt2")
    with hpsd.connect(address, MODEL, token="secret") as client, torch.no_grad():
        module = Module(client).eval()
        program = torch.export.export(module, INPUTS)
        expected = module(*OTHERS)
        same(program.module()(*OTHERS), expected)
    if kind == "aoti":
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    else:
        torch.export.save(program, path)
    with open(path, "rb") as f:
        assert b"secret" not in f.read()
    for token in ("secret", "of a client"):
        status, said = load(address, path, token)
        assert status == 0, said
        same(torch.load(path + ".out"), expected)
        os.remove(path + ".out")
    status, said = load(address, path, "")
    assert status != 0 and "UNAUTHENTICATED" in said


def test_program_when_it_has_options_then_they_hold_where_it_is_loaded(daemon, work):
    with hpsd.connect(f"unix:{os.path.relpath(daemon.grpc[1][len('unix:'):])}", MODEL, timeout=7, hedge_ms=500) as client:
        layer = layers.EmbeddingBagCollection(client.version(), TABLES, unknown="zero", timeout=9).eval()
        read = _program.read(layer._program)
        assert read._arguments == layer._arguments and read.options == {"unknown": "zero", "timeout": 9}
        for _ in range(2):  # in this process, and as in another one
            made = _program.client_of(layer._program)
            assert (made.timeout, made._version, made._pins) == (7, 1, True) and made._defaults.hedge_s == 0.5
            assert made.lookup("users", [777], **read.options).tolist() == [[0.0] * 8]
            _program._transports.clear()
        _program._connected.clear()


def test_program_when_clients_differ_in_their_tokens_alone_then_each_has_its_own(daemon):
    clients = [hpsd.connect(daemon.grpc[0], MODEL, token=token) for token in ("a", "b")]
    programs = [layers.Embedding(client, "items", 4)._program for client in clients for _ in range(2)]
    assert programs[0] == programs[1] and programs[2] == programs[3] and programs[0] != programs[2]
    assert [_program.client_of(programs[i])._transport is clients[i // 2]._transport for i in (0, 2)] == [True, True]


def test_program_when_certificates_were_bytes_then_says_that_it_has_none_of_them():
    layer = layers.Embedding(hpsd.connect("127.0.0.1:1", tls=hpsd.TLS(ca=b"pem", cert="a.pem")), "items", 4)
    program = json.loads(layer._program)
    assert json.loads(program["connection"])["tls"] == {"ca": False, "cert": os.path.abspath("a.pem"), "key": None,
                                                        "name": None}
    text = layer._program
    del layer
    with pytest.raises(hpsd.InvalidArgument, match="certificates as bytes"):
        _program.client_of(text)


@pytest.mark.parametrize("token, plaintext, allowed", [(None, False, True), ("secret", False, False), ("secret", True, True)])
def test_program_when_its_server_is_another_host_without_tls_then_connected_unless_a_token_would_go_there(
        monkeypatch, token, plaintext, allowed):
    monkeypatch.setattr(_program, "_token", None)
    client = hpsd.connect("hpsd.example", "shop", plaintext=plaintext)
    text = layers.Embedding(client, "items", 4)._program
    _program._transports.clear()  # as in another process
    hpsd.torch.set_token(token)
    if allowed:
        _program.client_of(text)
    else:
        with pytest.raises(hpsd.InvalidArgument, match="without TLS"):
            _program.client_of(text)
    _program._connected.clear()
