# SPDX-License-Identifier: Apache-2.0
"""Starts a daemon for a notebook or a test."""
from __future__ import annotations

import atexit
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import IO, Any, Mapping, Optional, Tuple, Type

import grpc
import numpy as np

from ._client import Client, connect
from .errors import Error

LOG_BYTES = 1 << 20  # of the log of a start
# Runs the daemon until this pipe ends, as it does when the process with its other end dies; then removes the directory.
_KEEPER = """
import os, shutil, signal, subprocess, sys, threading
directory, *command = sys.argv[1:]
daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
def watch():
    while os.read(0, 4096):
        pass
    daemon.send_signal(signal.SIGQUIT)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # as of killall python3
    signal.signal(number, lambda *_: daemon.send_signal(signal.SIGQUIT))
threading.Thread(target=watch, daemon=True).start()
code = daemon.wait()
shutil.rmtree(directory, ignore_errors=True)
raise SystemExit(code if code >= 0 else 1)
"""


class Server:
    """A daemon that `serve` started. It ends with `close`, with the `with` block, or with this process."""

    client: Client
    address: str

    def __init__(self, keeper: "subprocess.Popen[bytes]", address: str) -> None:
        self._keeper = keeper
        self.address = address
        self.client = connect(address)
        atexit.register(self.close)  # gRPC may crash if a connection is open when the interpreter ends

    def close(self) -> None:
        """Stop the daemon at once. Files in a given state directory stay."""
        atexit.unregister(self.close)
        self.client.close()
        _stop(self._keeper)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], failure: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


def _program() -> str:
    try:
        from hpsd_server import path
        return str(path("hpsd"))
    except ImportError:
        found = shutil.which("hpsd") or shutil.which("hpsd", path="/usr/local/sbin:/usr/sbin")
        if found is None:
            raise Error("there is no program hpsd: pip install hpsd-server, or install the Debian package hpsd") from None
        return found


def _stop(keeper: "subprocess.Popen[bytes]") -> None:
    assert keeper.stdin is not None and keeper.stdout is not None
    keeper.stdin.close()
    keeper.wait()
    keeper.stdout.close()


def serve(tables: Mapping[str, Any], state_dir: Any = None) -> Server:
    """Start a daemon that serves `tables` as the model "default", and return when it is ready.

    A table is a matrix with one row for each key from 0 on, or the path of a file that hpsd --table reads. The daemon
    listens on Unix sockets in a directory that only this user can read, and for metrics on a free port of this host. Without
    `state_dir` its store is temporary. Raises hpsd.Error with the text of the daemon if it does not start.
    """
    directory = tempfile.mkdtemp(prefix="hpsd-")
    try:
        command = [_program(), "--state-dir", os.fspath(state_dir if state_dir is not None else os.path.join(directory, "state")),
                   "--listen", f"unix:{directory}/grpc.sock", "--admin-listen", f"unix:{directory}/admin.sock",
                   "--http-listen", "127.0.0.1:0"]
        for number, (name, table) in enumerate(tables.items()):
            path = f"{directory}/{number}.npy"
            if isinstance(table, (str, os.PathLike)):
                path = os.fspath(table)
            else:
                np.save(path, table if hasattr(table, "dtype") else np.asarray(table, np.float32))
            command += ["--table", f"{name}={path}"]
        log = open(f"{directory}/log", "w+b")  # pylint: disable=consider-using-with
        # In a separate session: Ctrl-C in a terminal interrupts this process, not the daemon.
        keeper = subprocess.Popen([sys.executable, "-I", "-S", "-c", _KEEPER, directory, *command],  # pylint: disable=consider-using-with
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    assert keeper.stdin is not None
    os.register_at_fork(after_in_child=keeper.stdin.close)  # only this process keeps the daemon
    with log:
        try:
            _wait(keeper, log)
        except BaseException:
            _stop(keeper)
            raise
    return Server(keeper, f"unix:{directory}/grpc.sock")


def _readyz(address: str) -> Tuple[int, str]:
    connection = http.client.HTTPConnection(address)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def _wait(keeper: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
    """Until the daemon serves the tables. A daemon that cannot load a file continues, and reports it. If its store has rows of
    an earlier run, it is even ready; only its log says that they are older than the files."""
    assert keeper.stdout is not None
    listening = re.search(rb" http=(\S+)", keeper.stdout.readline())
    text = b""
    while listening and b"files of --table not served" not in text:
        try:
            status, reasons = _readyz(listening[1].decode())
        except (OSError, http.client.HTTPException):  # it has ended
            keeper.wait()
            break
        text = os.pread(log.fileno(), LOG_BYTES, 0)  # the daemon writes at the file's offset
        if status == 200 and b"files of --table not served" not in text:
            return
        if "failed to load" in reasons:
            raise Error(reasons.strip(), grpc.StatusCode.FAILED_PRECONDITION)
        time.sleep(0.02)
    if not listening:
        keeper.wait()
    text = os.pread(log.fileno(), LOG_BYTES, 0)
    raise Error(text.decode(errors="replace").strip() or "hpsd has not started", grpc.StatusCode.FAILED_PRECONDITION)
