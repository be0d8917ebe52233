# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the Python client: it is run from the tree, against daemons."""
import os
import sys

import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "clients", "python"), os.path.join(ROOT, "tests", "e2e")]
from rig import Daemon, scratch  # noqa: E402
from served import MODEL, config  # noqa: E402


@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


@pytest.fixture(name="daemon", scope="session")
def shared_daemon():
    """A daemon with MODEL, on TCP and on a Unix socket; nobody changes it."""
    with scratch() as path, Daemon(path, config(path), listen=("127.0.0.1:0", f"unix:{path}/hpsd.sock")) as one:
        yield one


@pytest.fixture(name="client")
def client_of_the_shared_daemon(daemon):
    import hpsd
    with hpsd.connect(daemon.grpc[0], model=MODEL) as made:
        yield made


@pytest.fixture(name="two_tables", scope="session")
def daemon_of_the_documents():
    """As the documents say: items with rows of 16 values, users with 8."""
    with scratch() as path:
        for name, dim in (("items", 16), ("users", 8)):
            np.save(f"{path}/{name}.npy", np.random.default_rng(dim).random((1000, dim), np.float32))
        flags = [flag for name in ("items", "users") for flag in ("--table", f"{name}={path}/{name}.npy")]
        with Daemon(path, flags=flags) as one:
            yield one
