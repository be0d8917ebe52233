# SPDX-License-Identifier: Apache-2.0
"""Files that the genuine libraries wrote become tables with the same bits."""
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from torchrec.inference.modules import quantize_embeddings

import documents
import ports
from hpsd.convert import main
from rig import BIN, Daemon, ask, default_config, floats
from write_dcp import TABLES, full

os.environ.setdefault("KERAS_BACKEND", "torch")
HERE = os.path.dirname(os.path.abspath(__file__))


def convert(*arguments):
    assert main(["convert", *map(str, arguments)]) == 0


def loaded(directory):
    """{table: its rows as in the files}, and the types in the manifest."""
    with open(f"{directory}/manifest.json", encoding="utf-8") as file:
        tables = json.load(file)["tables"]
    return ({table["name"]: np.load(f"{directory}/{table['name']}.npy") for table in tables},
            {table["name"]: table["dtype"] for table in tables})


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()


def serves(work, directory, rows):
    """hpsd loads the directory and replies with these rows: {table: rows}"""
    with Daemon(work, default_config(server={"model_roots": [work]})) as one:
        one.ctl("load", "m", "--from", str(directory), "--activate")
        for name, expected in rows.items():
            got = floats(ask(one.stub(), "m", {name: np.arange(len(expected))}).results[0])
            np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.fixture(name="checkpoint", scope="session")
def checkpoint_of_two_ranks(tmp_path_factory):
    directory, port = tmp_path_factory.mktemp("dcp"), str(ports.take())
    ranks = [subprocess.Popen([sys.executable, f"{HERE}/write_dcp.py", str(rank), "2", port, str(directory)])
             for rank in range(2)]
    assert [rank.wait(300) for rank in ranks] == [0, 0]
    return directory


def test_dcp_when_tables_are_sharded_in_all_ways_then_they_are_put_together(work, checkpoint, capsys):
    convert("dcp", checkpoint, "--out", f"{work}/out", "--memory", 200)
    assert "not converted: over.bias, over.weight" in capsys.readouterr().out
    tables, _ = loaded(f"{work}/out")
    assert set(tables) == set(TABLES)
    for name, rows in tables.items():
        np.testing.assert_array_equal(rows, full(name).numpy())
    serves(work, f"{work}/out", {name: full(name).numpy() for name in TABLES})


def test_dcp_when_a_file_is_missing_or_cut_then_it_says_which(work, checkpoint, capsys):
    subprocess.run(["cp", "-r", checkpoint, f"{work}/c"], check=True)
    os.truncate(f"{work}/c/__1_0.distcp", 3000)
    assert main(["convert", "dcp", f"{work}/c", "--out", f"{work}/out"]) == 1
    assert "__1_0.distcp: 3000 bytes, expected at least" in capsys.readouterr().err
    os.remove(f"{work}/c/__1_0.distcp")
    assert main(["convert", "dcp", f"{work}/c", "--out", f"{work}/out"]) == 1
    assert "__1_0.distcp: missing; expected the files of all ranks" in capsys.readouterr().err
    assert not os.path.exists(f"{work}/out")


def test_dcp_when_written_as_safetensors_then_joined_files_are_read_and_shards_refused(work, capsys):
    pytest.importorskip("safetensors")
    tables = {"users": torch.randn(9, 4), "half": torch.randn(5, 3).half()}
    dcp.save(tables, storage_writer=dcp.HuggingFaceStorageWriter(f"{work}/hf", save_distributed=True,
                                                                 enable_consolidation=True), no_dist=True)
    serves(work, f"{work}/hf", {name: rows.float().numpy() for name, rows in tables.items()})
    for directory in ("hf", "hf/sharded"):
        assert main(["convert", "dcp", f"{work}/{directory}", "--dry-run"]) == 1
        assert "save them with enable_consolidation=True" in capsys.readouterr().err


def test_torch_when_a_state_dict_then_all_types(work):
    model = torch.nn.ModuleDict({
        "ebc": EmbeddingBagCollection(tables=[EmbeddingBagConfig(name="a", embedding_dim=4, num_embeddings=9,
                                                                 feature_names=["a"])]),
        "ec": EmbeddingCollection(tables=[EmbeddingConfig(name="b", embedding_dim=8, num_embeddings=5, feature_names=["b"])]),
    })
    torch.save(model.state_dict(), f"{work}/x.pt")
    convert("torch", f"{work}/x.pt", "--out", f"{work}/out")
    tables, dtypes = loaded(f"{work}/out")
    state = model.state_dict()
    assert dtypes == {"a": "fp32", "b": "fp32"}
    assert tables["a"].tobytes() == bits(state["ebc.embedding_bags.a.weight"])
    assert tables["b"].tobytes() == bits(state["ec.embeddings.b.weight"])
    torch.save({"step": 3, "model": {"emb": torch.randn(5, 4).bfloat16(), "emb2": torch.nn.Parameter(torch.randn(4, 2).half())}},
               f"{work}/y.pt")
    convert("torch", f"{work}/y.pt", "--out", f"{work}/y")
    tables, dtypes = loaded(f"{work}/y")
    state = torch.load(f"{work}/y.pt")["model"]
    assert dtypes == {"model_emb": "bf16", "model_emb2": "fp16"}
    assert tables["model_emb"].tobytes() == bits(state["emb"]) and tables["model_emb2"].tobytes() == bits(state["emb2"])
    serves(work, f"{work}/y", {"model_emb": state["emb"].float().numpy()})


def test_torchrec_int8_when_converted_then_replies_are_those_of_torchrec(work):
    collection = EmbeddingBagCollection(tables=[
        EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=9, feature_names=[name])
        for name, dim in (("q16", 16), ("q12", 12))])
    model = quantize_embeddings(torch.nn.Sequential(collection), dtype=torch.int8, inplace=True)
    state = model.state_dict()
    torch.save(state, f"{work}/q.pt")
    convert("torchrec-int8", f"{work}/q.pt", "--out", f"{work}/out", "--dim", "q16=16", "--dim", "q12=12")
    from torchrec import KeyedJaggedTensor  # pylint: disable=import-outside-toplevel
    every = KeyedJaggedTensor(keys=["q16", "q12"], values=torch.arange(9).repeat(2), lengths=torch.ones(18, dtype=torch.int64))
    replies = model(every).to_dict()
    serves(work, f"{work}/out", {name: reply.float().numpy() for name, reply in replies.items()})


def test_safetensors_when_written_by_the_library_then_hpsd_reads_it(work):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"a.emb": torch.randn(9, 4), "half": torch.randn(5, 3).half(), "brain": torch.randn(5, 7).bfloat16(),
               "q": torch.randint(0, 256, (6, 4), dtype=torch.uint8), "q.scale": torch.rand(6) + 1, "q.bias": torch.randn(6),
               "count": torch.arange(3), "f8": torch.randn(4, 4).to(torch.float8_e4m3fn)}
    os.mkdir(f"{work}/m")
    safetensors.save_file(tensors, f"{work}/m/model.safetensors", metadata={"format": "pt"})
    serves(work, f"{work}/m", {"a_emb": tensors["a.emb"].numpy(), "half": tensors["half"].float().numpy(),
                               "brain": tensors["brain"].float().numpy()})


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8_rowwise_f16"])
def test_export_when_safetensors_then_the_library_reads_it(work, dtype):
    safetensors = pytest.importorskip("safetensors.torch")
    rows = torch.randn(9, 4).bfloat16().float()
    os.makedirs(f"{work}/m")
    np.save(f"{work}/m/t.npy", rows.numpy())
    with Daemon(work, default_config(server={"model_roots": [work], "export_roots": [work]})) as one:
        one.ctl("load", "m", "--from", f"{work}/m", "--row-dtype", dtype, "--activate")
        one.ctl("export", "m", "--to", f"{work}/out", "--format", "safetensors")
    got = safetensors.load_file(f"{work}/out/t.safetensors")
    assert torch.equal(got["t.keys"], torch.arange(9))
    if dtype.startswith("int8"):
        back = got["t"].float() * got["t.scale"].float()[:, None] + got["t.bias"].float()[:, None]
        assert got["t"].dtype == torch.uint8 and torch.allclose(back, rows, atol=.05)
    else:
        assert got["t"].dtype == {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype] and torch.equal(got["t"].float(), rows)


def test_keras_when_saved_then_tables_have_the_names_of_layers(work):
    pytest.importorskip("h5py")
    keras = pytest.importorskip("keras")
    inputs = [keras.Input((1,), dtype="int32") for _ in range(2)]
    tower = keras.Sequential([keras.layers.Embedding(9, 4, name="inner"), keras.layers.Dense(4)], name="tower")
    outputs = [keras.layers.Embedding(7, 4, name="users")(inputs[0]), keras.layers.Embedding(5, 4, name="items")(inputs[1]),
               tower(inputs[0])]
    model = keras.Model(inputs, keras.layers.Concatenate()(outputs))
    model.save(f"{work}/m.keras")
    model.save_weights(f"{work}/m.weights.h5")
    expected = {"users": model.get_layer("users"), "items": model.get_layer("items"), "inner": tower.get_layer("inner")}
    for source, names in (("m.keras", list(expected)),
                          ("m.weights.h5", ["embedding", "embedding_1", "sequential_layers_embedding"])):
        convert("keras", f"{work}/{source}", "--out", f"{work}/{source}.out")
        tables, _ = loaded(f"{work}/{source}.out")
        assert set(tables) == set(names)
        for name, layer in zip(names, expected.values()):
            np.testing.assert_array_equal(tables[name], layer.get_weights()[0])


def test_keras_when_data_may_expand_then_refused(work, capsys):
    h5py = pytest.importorskip("h5py")
    with h5py.File(f"{work}/m.weights.h5", "w") as file:
        file.create_dataset("chunks/vars/0", (1 << 20, 64), "f4", chunks=(1 << 20, 64), compression="gzip")
        file.create_dataset("hole/vars/0", (1 << 40, 64), "f4")
        file.create_dataset("none/vars/0", data=h5py.Empty("f4"))
    for name in ("chunks", "hole"):
        assert main(["convert", "keras", f"{work}/m.weights.h5", "--dry-run", "--table", f"t={name}"]) == 1
        assert f"'{name}' (table 't'): chunked or incomplete data, expected contiguous data" in capsys.readouterr().err


def test_keras_when_a_file_is_damaged_or_has_another_type_then_it_says_what_was_expected(work, capsys):
    h5py = pytest.importorskip("h5py")
    with h5py.File(f"{work}/m.weights.h5", "w") as file:
        file["embedding/vars/0"] = np.zeros((500, 4), "i8")
        file["embedding_1/vars/0"] = np.zeros(500, "f4")

    def refused(name, *more):
        assert main(["convert", "keras", f"{work}/{name}", "--dry-run", *more]) == 1
        return capsys.readouterr().err

    assert "type int64, expected fp32, fp16 or bf16" in refused("m.weights.h5", "--table", "t=embedding")
    assert "an array of shape [500], expected [rows, dim]" in refused("m.weights.h5", "--table", "t=embedding_1")
    assert "no array 'other' in the source, expected one of: embedding" in refused("m.weights.h5", "--table", "t=other")
    os.truncate(f"{work}/m.weights.h5", 9000)
    with zipfile.ZipFile(f"{work}/m.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    assert "expected a .keras or .weights.h5 file of Keras 3" in refused("m.weights.h5")
    assert "expected model.weights.h5 and config.json in it" in refused("m.keras")
    assert "expected a .keras or .weights.h5 file of Keras 3" in refused("none.keras")


@pytest.mark.parametrize("kind", ["dcp", "torch", "keras"])
def test_convert_when_the_source_is_four_times_the_memory_then_the_memory_is_enough(work, kind):
    rows = torch.randn(1 << 16, 64)  # 16 MiB
    if kind == "dcp":
        dcp.save({"emb": rows}, checkpoint_id=f"{work}/x", no_dist=True)
    elif kind == "torch":
        torch.save({"emb": rows}, f"{work}/x")
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(f"{work}/x", "w") as file:
            file["emb"] = rows.numpy()
    tracemalloc.start()
    try:
        convert(kind, f"{work}/x", "--out", f"{work}/out", "--memory", "4MiB")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(np.load(f"{work}/out/emb.npy"), rows.numpy())


@pytest.mark.parametrize("library, kind", [("torch", "dcp"), ("keras", "keras")])
def test_page_when_followed_then_a_trained_model_is_served(work, library, kind):
    pytest.importorskip({"keras": "h5py"}.get(library, library))
    pytest.importorskip(library)
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "KERAS_BACKEND": "torch",
           "PYTHONPATH": f"{documents.ROOT}/clients/python"}
    code = documents.block("docs/loading.md", f"import {library}").code
    subprocess.run([sys.executable, "-c", code], check=True, cwd=work, env=env, timeout=300)
    lines = documents.block("docs/loading.md", f"export HPSD_ADDR=unix:state/admin.sock\npython3 -m hpsd convert {kind}").code
    lines = lines.replace("python3", sys.executable).replace(" --state-dir state", (
        " --state-dir state --listen 127.0.0.1:0 --http-listen 127.0.0.1:0")) + "\nkill $!\n"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", lines], capture_output=True, text=True, cwd=work, check=False,
                          env=env, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = np.load(f"{work}/tables/users.npy")
    assert rows.shape == (1000, 16) and f"{rows[1, 0]:.6g}" in done.stdout, done.stdout


WRITE_TF = r"""
import sys, numpy as np, tensorflow as tf
out = sys.argv[1]
rows = lambda n, dim: (np.arange(n * dim, dtype="f4").reshape(n, dim) / 8 + n)
model = tf.keras.Sequential([tf.keras.Input((1,), dtype="int32"), tf.keras.layers.Embedding(300, 4, name="emb"),
                             tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
model.layers[0].set_weights([rows(300, 4)])
model.compile("adam", "mse")
tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(out + "/two/ckpt")
module = tf.Module()
module.users_emb = tf.Variable(rows(70, 8), name="users_emb")
module.bf_emb = tf.Variable(tf.cast(rows(5, 3), tf.bfloat16), name="bf_emb")
tf.saved_model.save(module, out + "/saved")
model.export(out + "/exported")
tf.compat.v1.disable_eager_execution()
def part_of(all_rows):
    def make(shape, dtype=None, partition_info=None):
        (row, column), (n, dim) = partition_info.var_offset, shape
        return tf.constant(all_rows[row:row + n, column:column + dim])
    return make
with tf.Graph().as_default():
    parts = tf.compat.v1.get_variable("emb/w", shape=(1000, 6), partitioner=tf.compat.v1.fixed_size_partitioner(3),
                                      initializer=part_of(rows(1000, 6)))
    sharded = tf.compat.v1.get_variable("cols/emb", shape=(9, 300), use_resource=False,
                                        partitioner=tf.compat.v1.fixed_size_partitioner(2, axis=1),
                                        initializer=part_of(rows(9, 300)))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, out + "/one/model.ckpt", global_step=7)
"""


def rows_of_tf(n, dim):
    return np.arange(n * dim, dtype="f4").reshape(n, dim) / 8 + n


@pytest.fixture(name="tensorflow", scope="session")
def files_of_tensorflow(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tf")
    python = os.environ.get("HPS_TF_PYTHON", sys.executable)  # for an environment of its own
    if subprocess.run([python, "-c", "import tensorflow"], capture_output=True, check=False).returncode != 0:
        pytest.skip("TensorFlow is not installed")
    for name in ("one", "two"):
        (directory / name).mkdir()
    subprocess.run([python, "-c", WRITE_TF, str(directory)], check=True, timeout=500,
                   env={**os.environ, "KERAS_BACKEND": "tensorflow"})
    return directory


@pytest.mark.parametrize("source, expected", [
    ("two/ckpt", {"sequential_emb": (300, 4)}), ("exported", {"sequential_emb": (300, 4)}),
    ("saved", {"users_emb": (70, 8), "bf_emb": (5, 3)}), ("one", {"emb_w": (1000, 6), "cols_emb": (9, 300)}),
    ("one/model.ckpt-7.index", {"emb_w": (1000, 6), "cols_emb": (9, 300)})])
def test_tf_when_written_by_tensorflow_then_all_variables_are_found(work, tensorflow, source, expected):
    convert("tf", tensorflow / source, "--out", f"{work}/out", "--memory", 9000)
    tables, dtypes = loaded(f"{work}/out")
    assert set(tables) == set(expected)
    for name, (n, dim) in expected.items():
        rows = rows_of_tf(n, dim)
        if dtypes[name] == "bf16":
            assert tables[name].tobytes() == bits(torch.tensor(rows).bfloat16())
        else:
            np.testing.assert_array_equal(tables[name], rows)


def test_tf_when_a_file_is_missing_or_cut_or_has_another_shape_then_it_says_what_was_expected(work, tensorflow, capsys):
    shutil.copytree(tensorflow / "one", f"{work}/one")
    prefix = f"{work}/one/model.ckpt-7"
    data = f"{prefix}.data-00000-of-00001"

    def refused(*arguments):
        assert main(["convert", "tf", *arguments, "--out", f"{work}/out"]) == 1
        return capsys.readouterr().err

    assert "an array of shape [1], expected [rows, dim]" in refused(str(tensorflow / "two" / "ckpt"), "--table",
                                                                   "t=sequential/dense/bias")
    os.truncate(data, 9000)
    assert "data-00000-of-00001: 9000 bytes, expected at least" in refused(prefix)
    os.rename(data, data + ".old")
    assert "data-00000-of-00001: missing, expected all 1 files" in refused(prefix)
    os.truncate(prefix + ".index", 100)
    assert "expected the index of a TensorFlow checkpoint (it may be truncated)" in refused(prefix)
    assert not os.path.exists(f"{work}/out")
