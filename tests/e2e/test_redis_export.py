# SPDX-License-Identifier: Apache-2.0
"""Rows that HPS has in Redis become files: `hpsd --export`, what another daemon makes of them, and what it says when
they cannot be read or written."""
import json
import os
import signal
import subprocess

import numpy as np
import pytest

import ports
import redis
from rig import BIN, PATIENCE_S, Table, ask, default_config, floats, hps_hash, model_config, until

pytestmark = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")

N_PARTS = 3
# What the export needs of a server; docs/redis.md tells it.
ACL = ["resetkeys", "%R~hps_et*", "-@all", "+hlen", "+hscan", "+@connection", "+cluster|slots"]


def write(nodes, model, table, key_type="<i8"):
    """As HPS does. Each node is tried, as one of them has the slot."""
    rows = {}
    for key, row in zip(table.keys, table.rows):
        name = hps_hash(model, table.name, key, N_PARTS)
        rows.setdefault(name, []).extend([key.astype(key_type).tobytes(), row.astype("<f4").tobytes()])
    for name, words in rows.items():
        for node in nodes:
            try:
                assert node.ask("HSET", name, *words) == len(words) // 2
                break
            except redis.ServerError as error:
                assert "MOVED" in str(error)
        else:
            raise AssertionError(f"nobody has {name}")


def config_of(address, models, long_keys=True, **volatile):
    """`models`: {name: tables}; their files are not there, and not asked for."""
    entries = [model_config(name, [f"/nowhere/{table.name}" for table in tables], [table.dim for table in tables],
                            [table.name for table in tables]) for name, tables in models.items()]
    volatile = {"type": "redis_cluster", "address": address, "num_partitions": N_PARTS, "redis_layout": "hps",
                "redis_command_timeout_ms": 1000, **volatile}
    return default_config(entries, durable=False, volatile_db=volatile, supportlonglong=long_keys)


class Export:
    """A run of hpsd that exports to the directory `out`."""

    def __init__(self, work, config, wrapper=(), out="out"):
        self.out = os.path.join(work, out)
        file = os.path.join(work, "export.json")
        with open(file, "w", encoding="utf-8") as f:
            json.dump(config, f)
        self.log_file = os.path.join(work, "export.log")
        with open(self.log_file, "wb") as log:
            self.process = subprocess.Popen(
                [*wrapper, os.path.join(BIN, "hpsd"), "--config", file, "--state-dir", os.path.join(work, "none"),
                 "--export", self.out], stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL)

    def log(self):
        with open(self.log_file, encoding="utf-8") as f:
            return f.read()

    def end(self, code):
        """The end of it; returns what it printed."""
        out = self.process.communicate(timeout=4 * PATIENCE_S)[0].decode()
        assert self.process.returncode == code, self.log()
        return out

    def files(self):
        """All of them, the hidden ones, too."""
        return sorted(os.path.relpath(os.path.join(at, name), self.out) for at, _, names in os.walk(self.out)
                      for name in names)


def check(daemon, model, tables):
    """Every row is there, bit by bit."""
    reply = ask(daemon.stub(), model, {table.name: table.keys for table in tables})
    for result, table in zip(reply.results, tables):
        assert floats(result).tobytes() == table.rows.astype("<f4").tobytes()


def loaded(daemon, config, files):
    """A daemon with RocksDB, and all tables from the export."""
    models = []
    for entry in config["models"]:
        (found,) = [one["sparse_files"] for one in files["models"] if one["model"] == entry["model"]]
        models.append({**entry, "sparse_files": found})
    return daemon(default_config(models, supportlonglong=config["supportlonglong"]))


@pytest.mark.parametrize("masters", [0, 3])
def test_export_when_hps_has_written_rows_then_another_daemon_loads_all_of_them(daemon, work, masters):
    models = {"m": [Table.random("a", 3000, 8), Table.random("b", 500, 2, number=1)],
              "other": [Table.random("a", 700, 16, seed=2)]}
    where = os.path.join(work, "redis")
    with (redis.Cluster(where, masters=masters, replicas=0) if masters else redis.Redis(where)) as servers:
        nodes = servers.nodes if masters else [servers]
        for model, tables in models.items():
            for table in tables:
                write(nodes, model, table)
        for node in nodes:
            node.ask("ACL", "SETUSER", "mover", "on", ">secret", *ACL)
        names = [sorted(node.ask("KEYS", "*")) for node in nodes]
        config = config_of(nodes[0].address, models, user_name="mover", password="secret")
        export = Export(work, config)
        files = json.loads(export.end(0))
        assert [sorted(node.ask("KEYS", "*")) for node in nodes] == names
        assert [node.ask("ACL", "LOG") for node in nodes] == [[] for _ in nodes]
    assert not os.path.exists(os.path.join(work, "none"))
    assert export.files() == sorted(f"{model}/{table.name}/{name}" for model, tables in models.items()
                                            for table in tables for name in ("emb_vector", "key"))
    one = loaded(daemon, config, files)
    for model, tables in models.items():
        check(one, model, tables)
        for table in tables:
            keys = np.fromfile(os.path.join(export.out, model, table.name, "key"), "<i8")
            assert sorted(keys) == sorted(table.keys)


def test_export_when_keys_have_32_bits_then_another_daemon_loads_all_of_them(daemon, work):
    table = Table.random("a", 3000, 8)
    keys = np.unique(table.keys.astype("<u4")).astype("<i8")
    table = Table("a", keys, table.rows[:len(keys)])
    assert keys.max() >= 2**31
    with redis.Redis(os.path.join(work, "redis")) as server:
        write([server], "m", table, "<u4")
        config = config_of(server.address, {"m": [table]}, long_keys=False)
        files = json.loads(Export(work, config).end(0))
    check(loaded(daemon, config, files), "m", [table])


@pytest.mark.parametrize("code, words, wrong", [
    (2, "nothing else is exported", {"redis_layout": "hpsd"}),
    (2, "has 32 bytes, expected 36 (width 9)", {"dim": 9}),
    (2, "no row of the table", {"model": "n"}),
    (2, "another num_partitions than 4", {"num_partitions": 4}),
    (2, "there is old in it", {"old": True}),
    (2, "No such file", {"out": "none/out"}),
    (4, "NOPERM", {"user_name": "poor", "password": "secret"}),
    (4, "WRONGPASS", {"user_name": "poor", "password": "wrong"}),
    (4, "Connection refused", {"refused": True}),
    (1, "File too large", {"wrapper": ["prlimit", "--fsize=20000"]}),
])
def test_export_when_something_is_wrong_then_it_is_named_and_nothing_half_is_left(work, code, words, wrong):
    table = Table.random("a", 1000, 8)
    wrong = dict(wrong)
    with redis.Redis(os.path.join(work, "redis")) as server, ports.refusing() as refusing:
        write([server], "m", table)
        server.ask("ACL", "SETUSER", "poor", "on", ">secret", *(word for word in ACL if word != "+hscan"))
        asked = Table("a", [1], np.zeros((1, wrong.pop("dim", 8))))
        model, out = wrong.pop("model", "m"), wrong.pop("out", "out")
        wrapper = wrong.pop("wrapper", ())
        old = ["old"] if wrong.pop("old", False) else []
        if old:
            os.makedirs(os.path.join(work, "out"))
            open(os.path.join(work, "out", "old"), "w", encoding="utf-8").close()
        address = refusing if wrong.pop("refused", False) else server.address
        wrong = {"address": address, "redis_connect_timeout_ms": 50, **wrong}
        export = Export(work, config_of(models={model: [asked]}, **wrong), wrapper, out)
        assert export.end(code) == ""
        assert words in export.log()
        assert export.files() == old
        assert not os.path.exists(export.out) or os.listdir(export.out) == old  # so that it can be run again


def test_export_when_it_is_ended_then_nothing_half_is_left(work):
    table = Table.random("a", 1000, 8)
    with redis.Redis(os.path.join(work, "redis")) as server:
        write([server], "m", table)
        server.pause()
        export = Export(work, config_of(server.address, {"m": [table]}))
        until(lambda: "Redis nodes unreachable" in export.log(), "the beginning")
        export.process.send_signal(signal.SIGTERM)
        server.resume()
        assert export.end(1) == ""
        assert "stopped by a signal" in export.log()
        assert export.files() == []
