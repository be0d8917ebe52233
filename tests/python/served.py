# SPDX-License-Identifier: Apache-2.0
"""The model for the tests of the Python client, with rows that tests can compute, and daemons that serve it."""
import asyncio

import numpy as np
import pytest

import hpsd
import hpsd.aio
from rig import Daemon, Table, default_config, model_config, scratch

MODEL = "shop"
N_ROWS = 200
DIMS = {"items": 4, "users": 8, "wide": 16}
DEFAULT = -1.0


def rows_of(table, keys):
    """The rows of existing keys: small multiples of 1/8, which are exact in fp16 and in long sums."""
    keys = np.asarray(keys, np.int64)
    values = (keys[..., None] * 7 + np.arange(DIMS[table]) * 3 + len(table)) % 64
    return values.astype(np.float32) / 8


def tables():
    keys = np.arange(N_ROWS, dtype="<i8")
    return [Table(name, keys, rows_of(name, keys), DEFAULT) for name in DIMS]


def config(work, **more):
    """The configuration of a daemon with the model. Its files are in `work`."""
    paths = [table.save(f"{work}/files") for table in tables()]
    model = model_config(MODEL, paths, list(DIMS.values()), list(DIMS), defaults=[DEFAULT] * len(DIMS), gpucache=False)
    return default_config([model], **more)


def pooled(table, keys, offsets, weights=None, mode="sum"):
    """The pooled rows of the bags, in float32."""
    out = np.zeros((len(offsets) - 1, DIMS[table]), np.float32)
    for bag, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        w = np.ones(end - begin, np.float32) if weights is None else np.asarray(weights[begin:end], np.float32)
        total = (rows_of(table, keys[begin:end]) * w[:, None]).sum(0, dtype=np.float32)
        by = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum()), "mean_by_count": end - begin}[mode]
        out[bag] = total / by if by != 0 else 0
    return out


class Sync:
    """hpsd.aio with the interface of hpsd, so that the same test can run with both."""

    def __init__(self, *args, **kwargs):
        self.loop = asyncio.new_event_loop()
        self.client = hpsd.aio.connect(*args, **kwargs)

    def lookup(self, *args, **kwargs):
        return self.loop.run_until_complete(self.client.lookup(*args, **kwargs))

    def lookup_flat(self, *args, **kwargs):
        return self.loop.run_until_complete(self.client.lookup_flat(*args, **kwargs))

    def model(self, **how):
        return self.loop.run_until_complete(self.client.model(**how))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()


# ---- fixtures ----------------------------------------------------------------------------------------

@pytest.fixture(name="work")
def work_directory():
    with scratch() as path:
        yield path


@pytest.fixture(name="daemon", scope="session")
def shared_daemon():
    """A daemon with MODEL, on TCP and on a Unix socket. Tests do not change it."""
    with scratch() as path, Daemon(path, config(path), listen=("127.0.0.1:0", f"unix:{path}/hpsd.sock")) as one:
        yield one


@pytest.fixture(name="client")
def client_of_the_shared_daemon(daemon):
    with hpsd.connect(daemon.grpc[0], model=MODEL) as made:
        yield made


@pytest.fixture(name="two_tables", scope="session")
def daemon_of_the_documents():
    """A daemon as in the documents: items has rows of 16 values, users of 8."""
    with scratch() as path:
        for name, dim in (("items", 16), ("users", 8)):
            np.save(f"{path}/{name}.npy", np.random.default_rng(dim).random((1000, dim), np.float32))
        flags = [flag for name in ("items", "users") for flag in ("--table", f"{name}={path}/{name}.npy")]
        with Daemon(path, flags=flags) as one:
            yield one
