# SPDX-License-Identifier: Apache-2.0
"""Symbolic links and special files in a model root and in a state directory. Their targets must be neither read nor
changed."""
import contextlib
import os
import shutil
import socket
import subprocess

import grpc
import numpy as np
import pytest
import wire
from rig import BIN, PATIENCE_S
from target import DIM

SECRET = b"-----BEGIN PRIVATE KEY-----\n" + b"s" * (4 * DIM - 28)  # as long as a row


@pytest.fixture(name="place")
def directory_below_a_root(target, request):
    path = os.path.join(target.work, "models", f"bad-{abs(hash(request.node.name))}")
    os.makedirs(path)
    yield path
    shutil.rmtree(path)


@pytest.fixture(name="secret")
def file_outside(target):
    path = os.path.join(target.work, "tls.key")
    with open(path, "wb") as f:
        f.write(SECRET)
    return path


def keys(path, n=1):
    np.arange(n, dtype="<i8").tofile(path)


def load_is_refused(target, path):
    before = target.daemon.versions("m")
    with pytest.raises(grpc.RpcError) as caught:
        target.daemon.load("m", path)
    assert caught.value.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED), caught.value
    assert "PRIVATE KEY" not in caught.value.details()
    assert target.daemon.versions("m") == before


def vectors_are_a_link(place, secret):
    os.makedirs(f"{place}/a")
    keys(f"{place}/a/key")
    os.symlink(secret, f"{place}/a/emb_vector")


def keys_are_a_link(place, secret):
    os.makedirs(f"{place}/a")
    os.symlink(secret, f"{place}/a/key")
    np.zeros((len(SECRET) // 8, DIM), np.float32).tofile(f"{place}/a/emb_vector")


def table_is_a_link(place, secret):
    elsewhere = os.path.join(os.path.dirname(secret), "elsewhere")
    os.makedirs(elsewhere, exist_ok=True)
    keys(f"{elsewhere}/key")
    shutil.copy(secret, f"{elsewhere}/emb_vector")
    os.symlink(elsewhere, f"{place}/a")


def npy_is_a_link(place, secret):
    np.save(secret + ".npy", np.zeros((3, DIM), np.float32))
    os.symlink(secret + ".npy", f"{place}/a.npy")


def pair_is_half_a_link(place, secret):
    np.save(f"{place}/a.keys.npy", np.arange(3))
    np.save(secret + ".npy", np.zeros((3, DIM), np.float32))
    os.symlink(secret + ".npy", f"{place}/a.rows.npy")


def manifest_is_a_link(place, secret):
    np.save(f"{place}/a.npy", np.zeros((3, DIM), np.float32))
    os.symlink(secret, f"{place}/manifest.json")


def link_through_proc(place, secret):
    os.makedirs(f"{place}/a")
    keys(f"{place}/a/key")
    os.symlink(f"/proc/self/root{secret}", f"{place}/a/emb_vector")


def link_that_goes_up(place, secret):
    os.makedirs(f"{place}/a")
    keys(f"{place}/a/key")
    os.symlink(os.path.relpath(secret, f"{place}/a"), f"{place}/a/emb_vector")


LINKS = [vectors_are_a_link, keys_are_a_link, table_is_a_link, npy_is_a_link, pair_is_half_a_link, manifest_is_a_link,
         link_through_proc, link_that_goes_up]


@pytest.mark.parametrize("make", LINKS, ids=lambda make: make.__name__)
def test_load_when_a_link_leads_out_of_the_root_then_refused_without_details(target, place, secret, make):
    make(place, secret)
    load_is_refused(target, place)


def a_pipe(path):
    os.mkfifo(path)


def a_socket(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        here = os.getcwd()
        os.chdir(os.path.dirname(path))
        sock.bind(os.path.basename(path))
        os.chdir(here)


def a_device(path):
    os.symlink("/dev/zero", path)


def a_directory(path):
    os.makedirs(path)


THINGS = [a_pipe, a_socket, a_device, a_directory]


@pytest.mark.parametrize("make", THINGS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["a.npy", "manifest.json", "a/emb_vector", "a.keys.npy"])
def test_load_when_a_file_is_not_regular_then_refused_at_once(target, place, make, name):
    """Opening a pipe must not block the thread that loads."""
    if name == "manifest.json":
        np.save(f"{place}/a.npy", np.zeros((3, DIM), np.float32))
    if name == "a.keys.npy":
        np.save(f"{place}/a.rows.npy", np.zeros((3, DIM), np.float32))
    if name == "a/emb_vector":
        os.makedirs(f"{place}/a")
        keys(f"{place}/a/key")
    make(os.path.join(place, name))
    load_is_refused(target, place)


# snapshots, restored by root into the directory of a service

def restore(target, snapshot, state):
    done = subprocess.run([os.path.join(BIN, "hpsctl"), "snapshot", "restore", snapshot, "--state-dir", state],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(name="kept", scope="module")
def snapshot_of_the_target(shared):
    path = os.path.join(shared.work, "kept")
    shared.daemon.ctl("snapshot", "create", path)
    return path


@pytest.fixture(name="state")
def state_of_a_service(target, request):
    """A state directory that belongs to another user than root, if the test runs as root."""
    path = os.path.join(target.work, f"state-{abs(hash(request.node.name))}")
    os.makedirs(path)
    if os.geteuid() == 0:
        os.chmod(target.work, 0o755)
        os.chown(path, 65534, 65534)
    return path


@pytest.fixture(name="precious")
def directory_of_root(target):
    path = os.path.join(target.work, "precious")
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    with open(os.path.join(path, "file"), "wb") as f:
        f.write(SECRET)
    return path


def is_untouched(precious):
    for path in (precious, os.path.join(precious, "file")):
        assert os.stat(path).st_uid == os.geteuid(), f"{path} was given away"
    assert os.listdir(precious) == ["file"]
    with open(os.path.join(precious, "file"), "rb") as f:
        assert f.read() == SECRET


def names_in(kept):
    return sorted(os.listdir(os.path.join(kept, "hpsd")))


WHERE = ["hpsd", "hpsd.new", "hpsd.restore", "hpsd/LOCK", "lock", "hpsd.lock", "hpsd/damaged", "damaged", "hpsd.old"]


@pytest.mark.parametrize("at", WHERE)
@pytest.mark.parametrize("to", ["directory", "file", "nothing"])
def test_restore_when_state_directory_has_links_then_not_followed(target, kept, state, precious, at, to):
    aim = {"directory": precious, "file": os.path.join(precious, "file"),
           "nothing": os.path.join(precious, "new")}[to]
    place = os.path.join(state, at)
    if os.path.dirname(place) != state:
        os.makedirs(os.path.dirname(place))
    os.symlink(aim, place)
    restore(target, kept, state)
    is_untouched(precious)


def test_restore_when_database_directory_has_links_then_not_followed(target, kept, state, precious):
    for directory in ("hpsd", "hpsd.new", "hpsd.restore"):
        os.makedirs(os.path.join(state, directory))
        for name in names_in(kept):
            os.symlink(os.path.join(precious, "file"), os.path.join(state, directory, name))
    restore(target, kept, state)
    is_untouched(precious)


CRAFTED = {
    "a file above it": "file 5 00000000 ../../precious/file\n",
    "an absolute file": "file 5 00000000 /etc/passwd\n",
    "a size of 2^64": "file 18446744073709551615 00000000 CURRENT\n",
    "a name of 100,000 bytes": "file 5 00000000 " + "x" * 100000 + "\n",
    "a million lines": "file 1 00000000 x\n" * 1000000,
    "no end": "",
    "a format that is newer": None,
}


@pytest.mark.parametrize("name", CRAFTED)
def test_restore_when_list_of_files_is_crafted_then_refused(target, kept, state, precious, name):
    copy = state + ".kept"
    shutil.copytree(kept, copy)
    lines = "hpsd-snapshot 2\nhpsd 0.1.0\ncreated 1700000000000\n" + (CRAFTED[name] or "")
    if CRAFTED[name] is None:
        lines = "hpsd-snapshot 99999999999999999999\n"
    with open(os.path.join(copy, "snapshot"), "w", encoding="utf-8") as f:
        f.write(lines)
    code, said = restore(target, copy, state)
    assert code in (1, 5) and said, (code, said)
    assert not os.path.exists(os.path.join(state, "hpsd"))
    is_untouched(precious)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST"])
def test_restore_when_a_snapshot_file_is_a_link_then_not_followed(target, kept, state, secret, name):
    copy = state + ".kept"
    shutil.copytree(kept, copy)
    victim = next(each for each in names_in(copy) if each.startswith(name))
    os.remove(os.path.join(copy, "hpsd", victim))
    os.symlink(secret, os.path.join(copy, "hpsd", victim))
    code, said = restore(target, copy, state)
    assert code in (1, 5), said
    assert not os.path.exists(os.path.join(state, "hpsd", victim))


def test_call_when_made_after_these_attacks_then_answered(target):
    with wire.Client(target.address) as client:
        client.send(wire.call(1, wire.LOOKUP, wire.lookup("m", wire.query("a", [1]))))
        assert client.code(1) == wire.OK
