# SPDX-License-Identifier: Apache-2.0
"""`python -m hpsd convert`: its output, its limits, and hostile sources. tests/frameworks/test_convert.py converts files of
the genuine libraries."""
import io
import itertools
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from hpsd.convert import ConvertError, main
from hpsd.convert._source import Table, Tensor
from hpsd.convert._write import write
from rig import Daemon, ask, default_config, floats

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "clients", "python")


def dump(directory, name, keys, rows, world=2):
    """A dump of DynamicEmb: keys are distributed to the ranks by their remainder."""
    os.makedirs(directory, exist_ok=True)
    keys = np.asarray(keys, "<i8")
    for rank in range(world):
        mine = keys % world == rank
        for what, array in (("keys", keys[mine]), ("values", rows[mine]), ("scores", keys[mine])):
            array.tofile(f"{directory}/{name}_emb_{what}.rank_{rank}.world_size_{world}")


def random_rows(n, dim, dtype="<f4"):
    return np.random.default_rng(n).standard_normal((n, dim)).astype(dtype)


class Storage:
    """Pickles as a storage of torch."""

    def __init__(self, kind, key, n):
        self.pid = ("storage", kind, key, "cpu", n)


class Global:
    """Pickles as the class or function module.name."""

    def __init__(self, module, name):
        self.name = f"c{module}\n{name}\n".encode()


class Made:
    """Pickles as an object with this state."""

    def __init__(self, name, **state):
        self.name, self.state = f"ctorch\n{name}\n)R".encode(), state


class Pickler(pickle._Pickler):  # pylint: disable=protected-access
    """Writes the pickles of torch.save without torch."""

    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Storage) else None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Global):
            self.write(obj.name)
        elif isinstance(obj, Made):
            self.write(obj.name)
            super().save(obj.state)
            self.write(b"b")
        elif isinstance(obj, tuple) and obj and isinstance(obj[0], Global):  # a call
            self.write(obj[0].name)
            super().save(obj[1:])
            self.write(b"R")
        else:
            super().save(obj, save_persistent_id)


def save(path, content, **data):
    """A file as torch.save writes it."""
    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(content)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", buffer.getvalue())
        archive.writestr("a/byteorder", "little")
        for key, array in data.items():
            archive.writestr(f"a/data/{key}", array.tobytes())
    return path


def tensor(key, shape, strides=None, kind="FloatStorage", offset=0):
    n = int(np.prod(shape))
    return (Global("torch._utils", "_rebuild_tensor_v2"), Storage(Global("torch", kind), key, n), offset, shape,
            strides or (shape[1], 1), False, {})


def convert(*arguments):
    return main(["convert", *(str(each) for each in arguments)])


def refused(capsys, *arguments):
    assert convert(*arguments) == 1
    return capsys.readouterr().err


def test_convert_when_a_dump_then_hpsd_serves_it(work, capsys):
    keys, rows = np.array([5, -1, 2**63 - 1, 8, -2**63, 0]), random_rows(6, 4)
    dump(f"{work}/in/model/sparse", "items", keys, rows)
    assert convert("dynamicemb", f"{work}/in", "--out", f"{work}/out") == 0
    assert "model_sparse_items  6 rows  dim 4  fp32  from model/sparse/items" in capsys.readouterr().out
    with Daemon(work, default_config(server={"model_roots": [work]})) as one:
        one.ctl("load", "m", "--from", f"{work}/out", "--activate")
        np.testing.assert_array_equal(floats(ask(one.stub(), "m", {"model_sparse_items": keys}).results[0]), rows)


@pytest.mark.parametrize("dtype, numpy_dtype", [("fp16", "<f2"), ("bf16", "<u2")])
def test_convert_when_a_dump_has_another_type_then_dim_and_dtype_are_needed(work, capsys, dtype, numpy_dtype):
    rows = random_rows(8, 4, "<f2").view(numpy_dtype)
    dump(f"{work}/in", "t", np.arange(8), rows)
    assert "expected --dim too" in refused(capsys, "dynamicemb", f"{work}/in", "--dry-run", "--dtype", dtype)
    assert "expected 4 keys x 4 values x 4 bytes" in refused(capsys, "dynamicemb", f"{work}/in", "--dry-run", "--dim", 4)
    assert convert("dynamicemb", f"{work}/in", "--out", f"{work}/out", "--dim", "t=4", "--dtype", dtype) == 0
    at = np.load(f"{work}/out/t.keys.npy")
    np.testing.assert_array_equal(np.load(f"{work}/out/t.rows.npy"), rows[at])
    with open(f"{work}/out/manifest.json", encoding="utf-8") as file:
        table, = json.load(file)["tables"]
    assert (table["dtype"], table["rows"], table["dim"]) == (dtype, 8, 4)


def test_convert_when_a_dump_is_damaged_then_it_says_what_was_expected(work, capsys):
    dump(f"{work}/in", "t", np.arange(8), random_rows(8, 4))
    values = f"{work}/in/t_emb_values.rank_1.world_size_2"
    os.truncate(values, 40)
    assert "40 bytes, expected 4 keys x 4 values x 4 bytes" in refused(capsys, "dynamicemb", f"{work}/in", "--dry-run")
    os.remove(values)
    assert "t_emb_values.rank_1.world_size_2: missing" in refused(capsys, "dynamicemb", f"{work}/in", "--dry-run")
    os.remove(f"{work}/in/t_emb_keys.rank_1.world_size_2")
    assert "has the ranks [0] of world sizes [2]" in refused(capsys, "dynamicemb", f"{work}/in", "--dry-run")
    assert "expected a dump of DynamicEmb" in refused(capsys, "dynamicemb", work + "/nothing", "--dry-run") + refused(
        capsys, "dynamicemb", f"{PACKAGE}/hpsd/torch", "--dry-run")


def test_convert_when_the_source_is_four_times_the_memory_then_the_memory_is_enough(work):
    dump(f"{work}/in", "t", np.arange(1 << 16), random_rows(1 << 16, 64), world=1)  # 16 MiB
    tracemalloc.start()
    try:
        assert convert("dynamicemb", f"{work}/in", "--out", f"{work}/out", "--memory", "4MiB") == 0
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_convert_when_a_terminal_then_a_progress_bar(work):
    dump(f"{work}/in", "t", np.arange(8), random_rows(8, 4))
    command = [sys.executable, "-m", "hpsd", "convert", "dynamicemb", f"{work}/in", "--out"]
    env = {**os.environ, "PYTHONPATH": PACKAGE}
    ours, theirs = os.openpty()
    subprocess.run([*command, f"{work}/a"], env=env, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    assert f"[{'#' * 30}] 100 %  0 MiB  t" in os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert subprocess.run([*command, f"{work}/b"], env=env, capture_output=True, check=True).stderr == b""
    assert subprocess.run([*command, f"{work}/c", "--dry-run"], env=env, capture_output=True, check=True).stdout.decode() == (
        "t  8 rows  dim 4  fp32  from t\n")
    assert sorted(os.listdir(work)) == ["a", "b", "in"]


def test_convert_when_the_source_changes_then_nothing_is_left(work):
    number = itertools.count()

    class Changing(Tensor):
        """Reads other rows each time."""

        def read(self, begin, end):
            return np.full((end - begin, 2), next(number), "<f4")

        def prepare(self):
            pass

    with pytest.raises(ConvertError, match="row 0 differs from 'emb'; did the source change"):
        write([Table("t", Changing("emb", "fp32", (9, 2), []))], f"{work}/out", 1 << 20)
    assert not os.listdir(work)


def test_convert_when_interrupted_then_nothing_is_left(work):
    dump(f"{work}/in", "t", np.arange(1 << 18), random_rows(1 << 18, 64), world=1)
    os.mkdir(f"{work}/to")
    command = [sys.executable, "-m", "hpsd", "convert", "dynamicemb", f"{work}/in", "--out", f"{work}/to/out", "--memory", "64K"]
    for signum, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PACKAGE}, stdout=subprocess.DEVNULL) as child:
            while not os.listdir(f"{work}/to") and child.poll() is None:
                time.sleep(.001)
            child.send_signal(signum)
            assert child.wait(60) == code
        left = [name for _, _, files in os.walk(f"{work}/to") for name in files]
        assert all(name.endswith(".part") for name in left) and (signum == signal.SIGKILL or not left)
    assert not os.path.exists(f"{work}/to/out")


def test_convert_when_a_state_dict_then_types_names_and_views_are_kept(work, capsys):
    values = random_rows(10, 4)
    half = values.astype("<f2")
    path = save(f"{work}/x.pt", {
        "state_dict": {"emb.weight": tensor("0", (6, 4), offset=16), "b.emb": tensor("1", (10, 4), kind="BFloat16Storage"),
                       "fc.weight": tensor("0", (10, 4)), "emb.long": tensor("2", (2, 2), kind="LongStorage"),
                       "emb.t": tensor("0", (4, 10), (1, 4))}}, **{"0": values, "1": half, "2": np.zeros(4, "<i8")})
    assert convert("torch", path, "--out", f"{work}/out") == 0
    said = capsys.readouterr().out
    assert "not converted: state_dict.fc.weight, state_dict.emb.long, state_dict.emb.t" in said
    np.testing.assert_array_equal(np.load(f"{work}/out/state_dict_emb.npy"), values[4:])
    np.testing.assert_array_equal(np.load(f"{work}/out/state_dict_b_emb.npy"), half.view("<u2"))
    assert convert("torch", path, "--out", f"{work}/fc", "--table", "fc=state_dict.fc.weight") == 0
    np.testing.assert_array_equal(np.load(f"{work}/fc/fc.npy"), values)
    for source, why in (("emb.t", "strides [1, 4], expected [10, 1]"), ("emb.long", "type int64, expected fp32, fp16 or bf16"),
                        ("nothing", "no array 'state_dict.nothing' in the source, expected one of: state_dict.b.emb")):
        assert why in refused(capsys, "torch", path, "--dry-run", "--table", f"t=state_dict.{source}")
    assert "expected a new or empty directory" in refused(capsys, "torch", path, "--out", f"{work}/out")
    assert "expected NAME=SOURCE_NAME" in refused(capsys, "torch", path, "--dry-run", "--table", "t")


def test_convert_when_a_name_is_unknown_then_it_suggests_names_with_its_end_or_embeddings(work, capsys):
    names = [f"dense.{i}.weight" for i in range(9)] + ["sparse.embedding_bags.songs.weight", "user.emb", "sparse.songs"]
    path = save(f"{work}/x.pt", {name: tensor("0", (2, 2)) for name in names}, **{"0": random_rows(2, 2)})
    said = refused(capsys, "torch", path, "--dry-run", "--table", "tracks=songs")
    assert "no array 'songs' in the source, did you mean 'sparse.embedding_bags.songs.weight' or 'sparse.songs'?" in said
    said = refused(capsys, "torch", path, "--dry-run", "--table", "tracks=tracks")
    assert "expected one of: sparse.embedding_bags.songs.weight, user.emb, dense.0.weight, " in said and "and 4 more" in said


def test_convert_when_another_kind_is_right_then_it_says_which(work, capsys):
    os.mkdir(f"{work}/checkpoint")
    assert "a directory, expected a file of torch.save; for a distributed checkpoint (.metadata, __0_0.distcp) use `convert dcp`" \
        in refused(capsys, "torch", f"{work}/checkpoint", "--dry-run")
    path = save(f"{work}/q.pt", {"embedding_bags.t.weight": tensor("0", (5, 32), kind="ByteStorage")}, **{"0": np.zeros((5, 32), "u1")})
    assert "type uint8, expected fp32, fp16 or bf16; for a quantised collection of TorchRec use `convert torchrec-int8`" \
        in refused(capsys, "torch", path, "--dry-run")


def test_convert_when_a_pickle_has_code_then_it_does_not_run(work, capsys):
    bad = (Global("os", "system"), f"touch {work}/ran")
    path = save(f"{work}/x.pt", {"emb": tensor("0", (2, 2)), "bad": bad}, **{"0": random_rows(2, 2)})
    assert convert("torch", path, "--dry-run") == 0  # the object is ignored
    assert "an object of os.system" in refused(capsys, "torch", save(f"{work}/y.pt", bad), "--dry-run")
    os.mkdir(f"{work}/dcp")
    with open(f"{work}/dcp/.metadata", "wb") as file:
        Pickler(file, 2).dump(bad)
    assert "no state_dict_metadata" in refused(capsys, "dcp", f"{work}/dcp", "--dry-run")
    assert not os.path.exists(f"{work}/ran")


def test_convert_when_an_archive_is_damaged_then_it_says_what_was_expected(work, capsys):
    path = save(f"{work}/x.pt", {"emb": tensor("0", (3, 2))}, **{"0": random_rows(2, 2)})
    assert "'emb' has 6 values, but its data are 16 bytes" in refused(capsys, "torch", path, "--dry-run")
    os.truncate(path, os.path.getsize(path) - 30)
    assert "a damaged archive" in refused(capsys, "torch", path, "--dry-run")
    with open(path, "wb") as file:
        file.write(b"\x80\x02}q\x00.")
    assert "not a zip archive" in refused(capsys, "torch", path, "--dry-run")
    assert "No such file" in refused(capsys, "torch", path + "x", "--dry-run")


def test_convert_when_rows_are_quantised_then_values_and_scales_are_split(work, capsys):
    packed = np.arange(32 * 5, dtype=np.uint8).reshape(5, 32)
    packed[:, :4] = np.array([[.5, -1]] * 5, "<f2").view("u1")
    path = save(f"{work}/q.pt", {"m.embedding_bags.t.weight": tensor("0", (5, 32), kind="ByteStorage")}, **{"0": packed})
    assert "expected --dim N" in refused(capsys, "torchrec-int8", path, "--dry-run")
    assert "rows of 32 bytes, expected 16 for --dim 12" in refused(capsys, "torchrec-int8", path, "--dry-run", "--dim", 12)
    assert convert("torchrec-int8", path, "--out", f"{work}/out", "--dim", "t=16") == 0
    np.testing.assert_array_equal(np.load(f"{work}/out/t.npy"), packed[:, 4:20])
    np.testing.assert_array_equal(np.load(f"{work}/out/t.scale_bias.npy"), [[.5, -1]] * 5)


@pytest.mark.parametrize("data, why", [(b"", "truncated"), (b"x" * 60, "expected the index of a TensorFlow checkpoint")])
def test_convert_when_an_index_is_no_index_then_refused(work, capsys, data, why):
    with open(f"{work}/m.ckpt.index", "wb") as file:
        file.write(data)
    assert why in refused(capsys, "tf", f"{work}/m.ckpt", "--dry-run")
    assert "expected a checkpoint's prefix" in refused(capsys, "tf", f"{work}/other", "--dry-run")


def test_convert_when_names_of_a_dump_are_odd_then_found_or_refused(work, capsys):
    dump(f"{work}/a_emb_keys.old", "t", np.arange(8), random_rows(8, 4))
    assert convert("dynamicemb", f"{work}/a_emb_keys.old", "--dry-run") == 0
    os.makedirs(f"{work}/b")
    with open(f"{work}/b/t_emb_keys.rank_0.world_size_100000000000", "wb"):
        pass
    assert "expected all ranks of one world size" in refused(capsys, "dynamicemb", f"{work}/b", "--dry-run")
    dump(f"{work}/c", "t", np.arange(8), random_rows(8, 4), world=1)
    os.link(f"{work}/c/t_emb_keys.rank_0.world_size_1", f"{work}/c/t_emb_keys.rank_00.world_size_1")
    assert "expected one file of each rank" in refused(capsys, "dynamicemb", f"{work}/c", "--dry-run")


def test_convert_when_a_state_dict_is_hostile_then_refused(work, capsys):
    data = {"0": random_rows(2, 2)}
    path = save(f"{work}/x.pt", {"emb": {"a": tensor("0", (2, 2))}, "emb.a": tensor("0", (2, 2))}, **data)
    assert "two tensors are named 'emb.a'" in refused(capsys, "torch", path, "--dry-run")
    again = [tensor("0", (2, 2))]
    again.extend([again] * 9)
    assert "more than 1048576 values" in refused(capsys, "torch", save(f"{work}/y.pt", {"emb": again}, **data), "--dry-run")
    for shape, offset in (((2, -2), 0), ((2, 2), -1), ((2, "x"), 0)):
        bad = (Global("torch._utils", "_rebuild_tensor_v2"), Storage(Global("torch", "FloatStorage"), "0", 4), offset, shape, (2, 1))
        assert "expected numbers" in refused(capsys, "torch", save(f"{work}/z.pt", {"emb": bad}, **data), "--dry-run")


def test_convert_when_compressed_data_are_damaged_then_it_says_so(work, capsys):
    with zipfile.ZipFile(f"{work}/x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"N." * 99)
    with open(f"{work}/x.pt", "r+b") as file:
        file.seek(30 + len("a/data.pkl"))
        file.write(b"\xff" * 3)
    assert "damaged, or not of the kind torch" in refused(capsys, "torch", f"{work}/x.pt", "--dry-run")


def test_convert_when_a_part_has_other_dimensions_then_refused(work, capsys):
    os.mkdir(f"{work}/dcp")
    part = Made("Chunk", offsets=(0,), sizes=(2, 2))
    with open(f"{work}/dcp/.metadata", "wb") as file:
        Pickler(file, 2).dump(Made("Metadata", storage_data={}, state_dict_metadata={
            "emb": Made("Tensor", properties=None, size=(2, 2), chunks=[part])}))
    assert "the part of 'emb' at [0] has the shape [2, 2], expected 2 dimensions" in refused(
        capsys, "dcp", f"{work}/dcp", "--dry-run")


def test_convert_when_an_archive_expands_then_it_is_not_read(work, capsys):
    path = save(f"{work}/x.pt", {"emb": tensor("0", (2, 2))}, **{"0": random_rows(2, 2)})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(f"{work}/bomb.pt", "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("a/data.pkl", old.read("a/data.pkl"))
        new.writestr("a/byteorder", bytes(64 << 20))
    tracemalloc.start()
    try:
        assert "expected little-endian data" in refused(capsys, "torch", f"{work}/bomb.pt", "--dry-run")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pickled", [
    b"\x80\x02}r" + (1 << 27).to_bytes(4, "little") + b".",  # the size of the memo
    b"\x80\x02ctorch\nSize\nq\0(]q\1(" + b"N" * (1 << 20) + b"e" + b"h\0h\1\x85R" * 100 + b"l."])  # copies of a list
def test_convert_when_a_pickle_expands_then_refused(work, capsys, pickled):
    with zipfile.ZipFile(f"{work}/x.pt", "w") as archive:
        archive.writestr("a/data.pkl", pickled)
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    assert "x.pt: needs more memory than --memory (1 MiB) and 256 MiB" in refused(
        capsys, "torch", f"{work}/x.pt", "--dry-run", "--memory", "1MiB")
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits


def varint(n):
    return bytes([n & 0x7f | 0x80]) + varint(n >> 7) if n > 0x7f else bytes([n])


def test_convert_when_an_index_expands_then_refused(work, capsys):
    long = 1 << 20  # bytes of a key; each further key repeats them
    entries = b"\0" + varint(long) + b"\0" + b"k" * long + b"".join(
        varint(long) + b"\4\0" + i.to_bytes(4, "big") for i in range(300))
    block = entries + bytes(4)
    handle = b"\0" + varint(len(block))
    index = b"\0\0" + varint(len(handle)) + handle + bytes(4)
    foot = b"\0\0" + varint(len(block) + 5) + varint(len(index))
    with open(f"{work}/m.index", "wb") as file:
        file.write(block + bytes(5) + index + bytes(5) + foot.ljust(40, b"\0") + 0xdb4775248b80fb57.to_bytes(8, "little"))
    assert "m: needs more memory than" in refused(capsys, "tf", f"{work}/m", "--dry-run", "--memory", "1MiB")


def test_convert_when_a_distributed_checkpoint_is_safetensors_then_it_says_how_to_join_it(work, capsys):
    with open(f"{work}/shard-00001-model-00001-of-00001.safetensors", "wb"):
        pass
    assert "save them with enable_consolidation=True" in refused(capsys, "dcp", work, "--dry-run")
