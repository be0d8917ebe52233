# SPDX-License-Identifier: Apache-2.0
"""hpsd.serve(): a daemon that lives as long as its server object, and as its process."""
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import hpsd
from rig import BIN, PATIENCE_S, ROOT

ROWS = np.arange(12, dtype="<f4").reshape(4, 3)


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    """The daemon of this build, and temporary files of the test."""
    monkeypatch.setitem(sys.modules, "hpsd_server", None)
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    return tmp_path


def daemons(directory):
    """Processes whose command line names a directory."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                if str(directory).encode() in f.read():
                    found.append(int(name))
        except OSError:
            pass
    return found


def until_ended(directory):
    end = time.monotonic() + PATIENCE_S
    while daemons(directory) or os.listdir(directory):
        assert time.monotonic() < end, (daemons(directory), os.listdir(directory))
        time.sleep(0.01)


def test_serve_when_closed_then_the_daemon_and_its_files_are_removed(places):
    with hpsd.serve({"items": ROWS, "users": ROWS.astype(np.float16)}) as server:
        np.testing.assert_array_equal(server.client.lookup("items", [0, 3]), ROWS[[0, 3]])
        np.testing.assert_array_equal(server.client.lookup("users", [1]), ROWS[[1]])
        with hpsd.connect(server.address) as other:
            np.testing.assert_array_equal(other.lookup("items", [2]), ROWS[[2]])
        [directory] = os.listdir(places / "t")
        assert os.stat(places / "t" / directory).st_mode & 0o77 == 0
    until_ended(places / "t")


def test_serve_when_given_a_state_directory_then_it_stays_and_is_served_again(places):
    np.save(places / "items.npy", ROWS)
    for _ in range(2):
        server = hpsd.serve({"items": places / "items.npy"}, state_dir=places / "state")
        np.testing.assert_array_equal(server.client.lookup("items", [1]), ROWS[[1]])
        server.close()
        server.close()
        until_ended(places / "t")
    assert os.listdir(places / "state")


def test_serve_when_the_daemon_does_not_start_then_its_own_text(places):
    with pytest.raises(hpsd.Error, match="missing.npy.*No such file"):
        hpsd.serve({"items": places / "missing.npy"})
    until_ended(places / "t")
    with hpsd.serve({"items": ROWS}, state_dir=places / "state"):
        with pytest.raises(hpsd.Error, match="used by another hpsd"):
            hpsd.serve({"items": ROWS}, state_dir=places / "state")
    with pytest.raises(hpsd.Error, match="--table"):
        hpsd.serve({"": ROWS})
    until_ended(places / "t")


@pytest.mark.parametrize("table", [np.full((4, 3), np.nan, "<f4"), np.zeros(4, "<f4"), "missing.npy"])
def test_serve_when_the_state_directory_has_rows_and_a_table_is_invalid_then_an_error(places, table):
    with hpsd.serve({"items": ROWS}, state_dir=places / "state"):
        pass
    with pytest.raises(hpsd.Error, match="rows of an earlier run"):
        hpsd.serve({"items": table}, state_dir=places / "state")
    with hpsd.serve({"items": ROWS + 1}, state_dir=places / "state") as server:
        np.testing.assert_array_equal(server.client.lookup("items", [1]), ROWS[[1]] + 1)
    until_ended(places / "t")


def test_serve_when_the_keeper_of_the_daemon_gets_a_signal_then_the_daemon_ends(places):
    """killall python3 ends it together with this process."""
    server = hpsd.serve({"items": ROWS})
    server._keeper.terminate()
    until_ended(places / "t")
    server.close()


def test_serve_when_the_temporary_directory_has_a_blank_then_it_starts(places, monkeypatch):
    (places / "t t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(places / "t t"))
    with hpsd.serve({"items": ROWS}) as server:
        np.testing.assert_array_equal(server.client.lookup("items", [1]), ROWS[[1]])
    until_ended(places / "t t")


def test_serve_when_a_forked_child_exits_then_it_exits_normally_and_the_daemon_stays(places):
    code = ("import os, sys, hpsd; server = hpsd.serve({'items': [[1., 2.]]}); server.client.lookup('items', [0])\n"
            "if os.fork() == 0: sys.exit(7)\n"
            "print(os.wait()[1] >> 8, server.client.lookup('items', [0]))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}/clients/python"})
    assert (done.returncode, done.stdout) == (0, "7 [[1. 2.]]\n"), done.stderr
    until_ended(places / "t")


def test_serve_when_there_is_no_daemon_then_says_what_to_install(places, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(hpsd.Error, match="pip install hpsd-server"):
        hpsd.serve({"items": ROWS})
    assert os.listdir(places / "t") == []


@pytest.mark.parametrize("forks", [False, True])
def test_serve_when_its_process_is_killed_then_the_daemon_ends(places, forks):
    """Also if a process that it forked lives on."""
    code = ("import os, sys, time, numpy as np, hpsd; server = hpsd.serve({'items': np.eye(2, dtype='f4')})\n"
            f"if {forks} and os.fork() == 0: time.sleep(600)\n"
            "print('up', flush=True); time.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True,
                               env={**os.environ, "PYTHONPATH": f"{ROOT}/clients/python"})
    try:
        assert process.stdout.readline() == b"up\n" and daemons(places / "t")
        process.send_signal(signal.SIGKILL)
        until_ended(places / "t")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_serve_when_never_closed_then_the_interpreter_ends_normally(places):
    code = "import hpsd; print(hpsd.serve({'items': [[1., 2.]]}).client.lookup('items', [0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}/clients/python"})
    assert (done.returncode, done.stdout) == (0, "[[1. 2.]]\n"), done.stderr
    until_ended(places / "t")
