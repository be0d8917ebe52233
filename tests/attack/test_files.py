# SPDX-License-Identifier: Apache-2.0
"""Malicious model directories. Each load is refused with a reason. It must not allocate the sizes that a header
declares, and the loaded versions stay unchanged."""
import json
import os
import struct

import grpc
import numpy as np
import pytest
from target import DIM, many

GROWS_MAX = 256 << 20


def npy(header, body=b"", version=1, size=None):
    """`size`: the declared size of the header, if it is wrong."""
    header = header if isinstance(header, bytes) else header.encode()
    size = len(header) if size is None else size
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + header + body


def of_shape(shape, descr="'<f4'", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


ROW = b"\0" * 4 * DIM
NPY = {
    "10^12 rows in a file of one": npy(of_shape(f"({10**12}, {DIM})"), ROW),
    "2^63 rows of 2^63 values": npy(of_shape(f"({2**63}, {2**63})"), ROW),
    "2^64 rows": npy(of_shape(f"({2**64}, {DIM})"), ROW),
    "a product that wraps around": npy(of_shape(f"({2**32}, {2**32})"), b""),
    "-1 rows": npy(of_shape(f"(-1, {DIM})"), ROW),
    "rows of no values": npy(of_shape("(1, 0)")),
    "rows of 2^31 values": npy(of_shape(f"(1, {2**31})"), ROW),
    "three dimensions": npy(of_shape(f"(1, 1, {DIM})"), ROW),
    "10,000 dimensions": npy(of_shape("(" + "1, " * 10000 + ")"), ROW),
    "pickled objects": npy(of_shape("(1,)", descr="'|O'"), b"cos\nsystem\n(S'touch /tmp/owned'\ntR."),
    "the other byte order": npy(of_shape(f"(1, {DIM})", descr="'>f4'"), ROW),
    "columns first": npy(of_shape(f"(1, {DIM})", order="True"), ROW),
    "a type that is a list": npy(of_shape(f"(1, {DIM})", descr="[('a', '<f4')]"), ROW),
    "a header longer than the file": npy(of_shape(f"(1, {DIM})"), size=65535),
    "a header of 4 GiB": npy(of_shape(f"(1, {DIM})"), version=2, size=2**32 - 1),
    "version 9": npy(of_shape(f"(1, {DIM})"), ROW, version=9, size=70),
    "brackets 60,000 deep": npy("{'descr': " + "(" * 60000, size=60010),
    "a header that calls": npy("{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1, 4)}\n", ROW),
    "a NUL in it": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1\0, 4), }\n", ROW),
    "the same key twice": npy("{'descr': '<f4', 'descr': '<f4', 'shape': (1, 256), }\n", ROW),
    "half of a row": npy(of_shape(f"(1, {DIM})"), ROW[:100]),
    "more than it says": npy(of_shape(f"(1, {DIM})"), ROW + b"more"),
    "no rows that are numbers": npy(of_shape(f"(1, {DIM})"), struct.pack("<f", float("nan")) * DIM),
    "nothing": b"",
    "magic alone": b"\x93NUMPY",
}


def good_table(path, name="a"):
    np.save(os.path.join(path, f"{name}.npy"), np.zeros((3, DIM), np.float32))


def write(path, name, contents):
    path = os.path.join(path, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(contents if isinstance(contents, bytes) else contents.encode())


def manifest_of(tables, **more):
    return json.dumps({"format": "hpsd-manifest", "version": 1, "tables": tables, **more})


def table_a(**more):
    return {"name": "a", "dim": DIM, "rows": 3, "dtype": "fp32", **more}


MANIFESTS = {
    "no JSON": "{{{{",
    "noise": os.urandom(5000),
    "brackets 100,000 deep": "[" * 100000,
    "objects 100,000 deep": '{"a":' * 100000,
    "a number of 100,000 digits": '{"tables": [{"name": "a", "rows": ' + "9" * 100000 + "}]}",
    "2^64 rows": manifest_of([table_a(rows=2**64)]),
    "-1 rows": manifest_of([table_a(rows=-1)]),
    "more rows than there are": manifest_of([table_a(rows=4)]),
    "another width": manifest_of([table_a(dim=2**32 + DIM)]),
    "a type that is none": manifest_of([table_a(dtype="fp1024")]),
    "a table that is not there": manifest_of([table_a(), {"name": "b"}]),
    "a table twice": manifest_of([table_a(), table_a()]),
    "a file above it": manifest_of([table_a(files=[{"name": "../../../../etc/passwd", "bytes": 1}])]),
    "an absolute file": manifest_of([table_a(files=[{"name": "/etc/passwd", "bytes": 1}])]),
    "a file in a folder above": manifest_of([table_a(files=[{"name": "x/../../secret.npy", "bytes": 1}])]),
    "a size that is not its": manifest_of([table_a(files=[{"name": "a.npy", "bytes": 1}])]),
    "a checksum that is not its": manifest_of([table_a(files=[{"name": "a.npy", "crc32c": "00000000"}])]),
    "a NUL in a name": '{"tables": [{"name": "a\\u0000b"}]}',
    "a name that turns text around": manifest_of([{"name": "a\u202eb"}]),
    "positions below 0": manifest_of([table_a()], start_positions=[{"topic": "hps_et.m.a", "partition": -1, "offset": -9}]),
}


@pytest.fixture(name="place")
def directory_below_a_root(target, request):
    """An empty directory below a root, from which models may be loaded."""
    path = os.path.join(target.work, "models", f"bad-{abs(hash(request.node.name))}")
    os.makedirs(path)
    return path


def load_is_refused(target, path):
    before, resident = target.daemon.versions("m"), target.resident_bytes()
    with pytest.raises(grpc.RpcError) as caught:
        target.daemon.load("m", path)
    assert caught.value.details(), caught.value
    assert "\u202e" not in caught.value.details()
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
                                   grpc.StatusCode.DATA_LOSS, grpc.StatusCode.NOT_FOUND,
                                   grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED), caught.value
    assert target.daemon.versions("m") == before
    assert target.resident_bytes() - resident < GROWS_MAX


@pytest.mark.parametrize("name", NPY)
def test_npy_when_crafted_then_refused(target, place, name):
    write(place, "a.npy", NPY[name])
    good_table(place, "b")
    load_is_refused(target, place)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_when_crafted_then_refused(target, place, name):
    good_table(place)
    write(place, "manifest.json", MANIFESTS[name])
    load_is_refused(target, place)


PAIRS = {
    "more keys than rows": (np.arange(9, dtype=np.int64), np.zeros((3, DIM), np.float32)),
    "more rows than keys": (np.arange(1, dtype=np.int64), np.zeros((3, DIM), np.float32)),
    "keys with a fraction": (np.zeros(3), np.zeros((3, DIM), np.float32)),
    "keys in two dimensions": (np.zeros((3, 2), np.int64), np.zeros((3, DIM), np.float32)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pair_when_its_files_are_inconsistent_then_refused(target, place, name):
    np.save(os.path.join(place, "a.keys.npy"), PAIRS[name][0])
    np.save(os.path.join(place, "a.rows.npy"), PAIRS[name][1])
    load_is_refused(target, place)


HUGECTR = {
    "a key of 7 bytes": (b"1234567", ROW),
    "more keys than rows": (b"\0" * 800, ROW),
    "rows that are not whole": (b"\0" * 8, ROW[:-1]),
    "rows and no keys": (b"", ROW),
    "infinite rows": (b"\0" * 8, struct.pack("<f", float("inf")) * DIM),
}


@pytest.mark.parametrize("name", HUGECTR)
def test_hugectr_when_its_files_are_inconsistent_then_refused(target, place, name):
    write(place, "a/key", HUGECTR[name][0])
    write(place, "a/emb_vector", HUGECTR[name][1])
    load_is_refused(target, place)


def test_hugectr_when_the_file_is_a_directory_then_refused(target, place):
    os.makedirs(os.path.join(place, "a", "key"))
    write(place, "a/emb_vector", ROW)
    load_is_refused(target, place)


DLE = {
    "10^12 tables": {"categorical_cardinalities": [1] * 10000, "embedding_dim": [DIM]},
    "counts that are none": {"categorical_cardinalities": [-1, 2**63], "embedding_dim": DIM},
    "a width of 2^63": {"categorical_cardinalities": [3], "embedding_dim": 2**63},
    "words for numbers": {"categorical_cardinalities": "three", "embedding_dim": "wide"},
    "deep": {"categorical_cardinalities": [[[[[[3]]]]]], "embedding_dim": DIM},
}


@pytest.mark.parametrize("name", DLE)
def test_checkpoint_when_its_config_is_crafted_then_refused(target, place, name):
    good_table(place, "feature_0")
    write(place, "config.json", json.dumps(DLE[name]))
    load_is_refused(target, place)


def test_checkpoint_when_a_table_is_missing_then_refused(target, place):
    good_table(place, "feature_0")
    good_table(place, "feature_2")
    write(place, "config.json", json.dumps({"categorical_cardinalities": [3, 3, 3], "embedding_dim": DIM}))
    load_is_refused(target, place)


NAMES = ["x" * 121, "a b", "a\u202eb", "a\nb", "a\x1b[31mb", "\u200b", "..."]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_table_when_its_name_is_not_allowed_then_refused(target, place, name):
    good_table(place, name)
    load_is_refused(target, place)


def test_directory_when_it_has_too_many_tables_then_refused(target, place):
    for i in range(4097):
        os.mknod(os.path.join(place, f"t{i}.npy"))
    load_is_refused(target, place)


OUTSIDE = ["/etc", "/proc/self", "/dev", "{root}/../../state", "{root}/..", "relative", "", "/" + "x" * 5000, "{root}/\0",
           "/proc/self/root/etc", "/proc/self/fd"]


@pytest.mark.parametrize("path", OUTSIDE, ids=range(len(OUTSIDE)))
def test_directory_when_outside_of_the_roots_then_refused(target, path):
    load_is_refused(target, path.replace("{root}", os.path.join(target.work, "models")))


def test_loads_when_refused_repeatedly_then_no_descriptor_leaks(target, place):
    write(place, "a.npy", NPY["10^12 rows in a file of one"])
    before = len(os.listdir(f"/proc/{target.daemon.process.pid}/fd"))
    for _ in range(many(50, 1000)):
        load_is_refused(target, place)
    assert len(os.listdir(f"/proc/{target.daemon.process.pid}/fd")) < before + 20
