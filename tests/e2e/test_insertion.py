# SPDX-License-Identifier: Apache-2.0
"""Lookups that do not wait for missing rows, and the insertion of these rows, with an embedding cache on a simulated
device and with the host map instead.

The tables do not fit into the host map. So it starts empty, like the embedding cache, and fills with requested rows. A
model in the test predicts the content of memory, and from it the reply to each request.
"""
import signal
from fractions import Fraction

import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, ask, default_config, encoded, model_config, pb, scratch, statuses,
                 until)

N_ROWS, DIM = 30_000, 64
FOUND, DEFAULTED, UNKNOWN = pb.KEY_STATUS_FOUND, pb.KEY_STATUS_DEFAULTED, pb.KEY_STATUS_UNKNOWN


class Small:
    """A daemon with tables "a" and "b", together 15 MB, over an 8 MiB host map, or an embedding cache and no host map."""

    def __init__(self, work, threshold="0.75", server=(), cache="host", **model):
        self.tables = {name: Table.random(name, N_ROWS, DIM, number=i, default=2.5 + i)
                       for i, name in enumerate("ab")}
        paths = [table.save(work + "/m") for table in self.tables.values()]
        entry = model_config("m", paths, [DIM] * 2, list("ab"), [2.5, 3.5],
                             hit_rate_threshold=float(threshold), **{"gpucache": False, **model})
        self.work, self.paths = work, paths
        memory = {"type": "parallel_hash_map", "memory_bytes": "8MiB"}
        if cache == "gpu":
            entry |= {"gpucache": True, "gpucacheper": 0.95}
            memory = {"type": "disabled"}
        self.config = default_config(
            [entry], volatile_db=memory,
            server={"async_without_gpu": cache == "host", "model_roots": [work], **dict(server)})
        self.cache = cache
        device = {"HPS_DEVICE": "sim" if cache == "gpu" else "", "CUDA_VISIBLE_DEVICES": ""}
        self.daemon = Daemon(work, self.config, env=device)
        self.threshold = Fraction(threshold)
        self.counted = {}  # number of keys of the last prediction, as metrics count them
        self.memory = {name: set() for name in self.tables}  # keys in the host map
        self.absent = {name: set() for name in self.tables}  # keys that are remembered as absent
        self.totals = dict.fromkeys(("found", "defaulted", "unknown", "unique", "sync", "async", "hit",
                                     "miss", "cache_hit", "cache_miss"), 0)

    def __enter__(self):
        return self

    def __exit__(self, *what):
        return self.daemon.__exit__(*what)

    def predict(self, name, keys):
        """The expected reply of a part: statuses, and whether it waits. Updates the model of memory."""
        unique = set(map(int, keys))
        memory, absent, stored = self.memory[name], self.absent[name], self.tables[name].at
        missing = unique - memory - absent
        waits = Fraction(len(unique) - len(missing), len(unique)) < self.threshold
        expected = []
        for key in map(int, keys):
            if key in memory:
                expected.append(FOUND)
            elif key in absent:
                expected.append(UNKNOWN)
            elif not waits:
                expected.append(DEFAULTED)
            else:
                expected.append(FOUND if key in stored else UNKNOWN)
        for status, word in ((FOUND, "found"), (DEFAULTED, "defaulted"), (UNKNOWN, "unknown")):
            self.totals[word] += expected.count(status)
        come = {key for key in missing if key in stored}
        # The embedding cache counts hits before deduplication.
        hits = len([key for key in map(int, keys) if key in memory]) if self.cache == "gpu" else len(unique & memory)
        self.counted[name] = hits + len(unique - memory)
        self.totals["unique"] += self.counted[name]
        self.totals["cache_hit"] += hits
        self.totals["cache_miss"] += len(unique - memory)
        self.totals["sync" if waits and self.cache != "gpu" else "async"] += len(come)
        self.totals["hit"] += len(come)
        self.totals["miss"] += len(missing - come)
        memory |= come
        absent |= missing - come
        return expected, waits, len(missing)

    def check(self, result, keys, expected):
        table = self.tables[result.table]
        assert statuses(result) == expected
        wanted = table.expect(keys)
        wanted[np.array(expected) != FOUND] = table.default
        assert result.rows == encoded(wanted, 0)
        assert (result.defaulted_key_count, result.unknown_key_count, result.unique_key_count) == (
            expected.count(DEFAULTED), expected.count(UNKNOWN),
            self.counted.get(result.table, len(set(map(int, keys)))))

    def settle(self, applied=True):
        """Wait until all queued rows are fetched and, if `applied`, the device has inserted or refused them."""
        def settled():
            now = counts(self)
            return not applied or now["async"] == now["hit"]

        # Two steps, because values of one scrape are not from the same time.
        until(lambda: counts(self)["queued"] == 0, "an empty queue")
        if self.cache == "gpu":
            until(settled, "a device that has done all insertions")
        return counts(self)


def counts(small):
    metrics = small.daemon.metrics()

    def sample(name, *words):
        return sum(value for full, value in metrics.items()
                   if full.split("{")[0] == f"hpsd_{name}" and all(word in full for word in words))

    values = {word: sample("lookup_keys_total", f'status="{word}"')
              for word in ("found", "defaulted", "unknown")}
    values.update({word: sample("insertion_rows_total", f'mode="{word}"') for word in ("sync", "async")})
    values["async"] += sample("tier_refusals_total", 'tier="gpu"')  # a device gets all these rows
    values.update({f"by {word}": sample("lookup_defaulted_keys_total", f'reason="{word}"')
                   for word in ("async", "deadline", "memory_only")})
    values.update({word: sample("tier_keys_total", 'tier="rocksdb"', f'result="{word}"')
                   for word in ("hit", "miss")})
    values.update({f"cache_{word}": sample("tier_keys_total", f'tier="{small.cache}"', f'result="{word}"')
                   for word in ("hit", "miss")})
    values.update({word: sample("insertion_dropped_total", f'reason="{word}"')
                   for word in ("queue_full", "not_fetched", "stopped", "no_space", "stale", "failed")})
    return {**values, "unique": sample("lookup_unique_keys_total"), "queued": sample("insertion_queue_rows")}


@pytest.mark.parametrize("cache", ["host", "gpu"])
def test_threshold_when_memory_fills_then_lookups_wait_then_default_then_find_all(work, cache):
    rng = np.random.default_rng(7)
    sides = []
    with Small(work, cache=cache) as small:
        stub = small.daemon.stub()
        for step in range(40):
            queries, expected = {}, {}
            for i, (name, table) in enumerate(small.tables.items()):
                # At first few of many keys, so that most are new; with duplicates and unknown keys.
                at = (rng.power(0.3, 400) * (500 if i == 0 else 2500)).astype(int)
                queries[name] = np.append(table.keys[at], rng.integers(2**60, 2**60 + 40, 20))
                expected[name], waits, missing = small.predict(name, queries[name])
                sides.append((name, waits, missing))
            reply = ask(stub, "m", queries)
            for result in reply.results:
                small.check(result, queries[result.table], expected[result.table])
            now = small.settle()
            assert {word: now[word] for word in small.totals} == small.totals, step
            assert now["by async"] == now["defaulted"]
        for result in ask(stub, "m", queries).results:  # missing rows have been inserted or are remembered as absent
            known = [FOUND if int(key) in small.tables[result.table].at else UNKNOWN
                     for key in queries[result.table]]
            assert small.predict(result.table, queries[result.table])[0] == known
            small.check(result, queries[result.table], known)
    assert sides[0][1] and sides[1][1] and sides[0][2] > 100  # lookups waited, because memory was empty
    assert {("a", True), ("a", False), ("b", True), ("b", False)} == {side[:2] for side in sides}
    assert any(sides[i][1] != sides[i + 1][1] for i in range(0, len(sides), 2))  # both in one request
    assert small.totals["async"] > 100 and small.totals["defaulted"] > 100
    for word in ("queue_full", "not_fetched", "stopped", "no_space", "stale", "failed"):
        assert now[word] == 0


@pytest.mark.parametrize("cache", ["host", "gpu"])
def test_threshold_when_the_hit_rate_is_just_below_or_above_it_then_lookups_wait_or_default(work, cache):
    with Small(work, threshold="0.9", cache=cache) as small:
        table, stub = small.tables["a"], small.daemon.stub()
        for keys in (table.keys[:90], table.keys[:101], table.keys[10:110], table.keys[:110]):
            expected = small.predict("a", keys)[0]
            small.check(ask(stub, "m", {"a": keys}).results[0], keys, expected)
            small.settle()
        # A hit rate of 90 of 101 is too low, 91 of 100 is enough; then all keys are found.
        assert small.totals["defaulted"] == 9 and small.totals["sync"] == (0 if cache == "gpu" else 101)
        assert counts(small)["by async"] == 9


@pytest.mark.parametrize("cache", ["host", "gpu"])
def test_policies_when_a_request_sets_one_then_it_overrides_the_threshold(work, cache):
    with Small(work, cache=cache) as small:
        table, stub = small.tables["a"], small.daemon.stub()
        ask(stub, "m", {"a": table.keys[:90]})
        keys = table.keys[:100]
        part = [FOUND] * 90 + [DEFAULTED] * 10
        result = ask(stub, "m", {"a": keys}, miss_policy=pb.MISS_POLICY_MEMORY_ONLY,
                     max_wait_us=int(PATIENCE_S * 1e6)).results[0]
        small.check(result, keys, part)
        before = small.settle()
        assert (before["by memory_only"], before["async"], before["hit"]) == (10, 90 if cache == "gpu" else 0, 90)
        reply = ask(stub, "m", {"a": keys}, miss_policy=pb.MISS_POLICY_WAIT, explain=True)
        small.check(reply.results[0], keys, part)  # it waits for 0 us, and missing rows are inserted later
        assert "table 'a': defaulted (deadline) 10 of 100" in list(reply.explain.notes)
        now = small.settle()
        assert (now["by deadline"], now["async"], now["sync"]) == ((10, 100, 0) if cache == "gpu" else (10, 10, 90))
        small.check(ask(stub, "m", {"a": keys}).results[0], keys, [FOUND] * 100)
        keys = table.keys[:105]
        small.check(ask(stub, "m", {"a": keys}, miss_policy=pb.MISS_POLICY_EXACT).results[0], keys,
                    [FOUND] * 105)
        keys = table.keys[:110]
        small.check(ask(stub, "m", {"a": keys}, miss_policy=pb.MISS_POLICY_WAIT,
                        max_wait_us=int(PATIENCE_S * 1e6)).results[0], keys, [FOUND] * 110)
        keys = table.keys[:120]
        reply = ask(stub, "m", {"a": keys}, explain=True)
        small.check(reply.results[0], keys, [FOUND] * 110 + [DEFAULTED] * 10)
        assert "table 'a': defaulted (async) 10 of 120" in list(reply.explain.notes)
        assert small.settle()["async"] == (120 if cache == "gpu" else 20)


@pytest.mark.parametrize("which", ["as it comes", "threshold 1", "loaded at run time"])
def test_lookups_when_the_threshold_does_not_apply_or_is_1_then_replies_are_exact(work, which):
    server = {"async_without_gpu": False} if which == "as it comes" else {}
    with Small(work, threshold="1" if which == "threshold 1" else "0.9", server=server, gpucache=True) as small:
        says = "embedding caches off: no usable GPU, see reason; " + (
            "every answer is exact" if which == "as it comes" else "hit_rate_threshold applies")
        assert says in small.daemon.log()
        model = "m"
        if which == "loaded at run time":
            model = "other"
            small.daemon.load("other", work + "/m")
        table, stub = small.tables["a"], small.daemon.stub()
        for n in (1000, 1001, 1010, 1500):
            result = ask(stub, model, {"a": table.keys[:n]}).results[0]
            small.check(result, table.keys[:n], [FOUND] * n)
        assert (counts(small)["async"], counts(small)["sync"]) == (0, 1500)


def test_reload_when_threshold_or_async_without_gpu_changes_then_the_next_request_uses_it(work):
    with Small(work, threshold="1") as small:
        table, stub = small.tables["a"], small.daemon.stub()

        def reload(threshold, mode):
            small.config["models"][0]["hit_rate_threshold"] = threshold
            small.config["server"]["async_without_gpu"] = mode
            small.daemon.write_config(small.config)
            n = small.daemon.log().count("msg=reloaded")
            small.daemon.send(signal.SIGHUP)
            until(lambda: small.daemon.log().count("msg=reloaded") > n, "a reload")

        def defaulted(n):
            small.settle()
            return ask(stub, "m", {"a": table.keys[:n]}).results[0].defaulted_key_count

        assert defaulted(100) == 0 and defaulted(101) == 0
        reload(0.9, True)
        assert defaulted(102) == 1
        reload(0.9, False)
        assert defaulted(103) == 0
        reload(0.0, True)
        assert defaulted(1000) == 897


def test_insertion_queue_when_full_then_more_keys_are_dropped_and_counted(work):
    with Small(work, threshold="0", server={"insertion_queue_rows": 10}) as small:
        table, stub = small.tables["a"], small.daemon.stub()
        keys = table.keys[:100]
        small.check(ask(stub, "m", {"a": keys}).results[0], keys, [DEFAULTED] * 100)
        now = small.settle()
        assert (now["queue_full"], now["async"], now["by async"]) == (90, 10, 100)
        for _ in range(9):
            ask(stub, "m", {"a": keys})
            now = small.settle()
        assert (now["async"], now["queue_full"]) == (100, sum(range(0, 100, 10)))
        small.check(ask(stub, "m", {"a": keys}).results[0], keys, [FOUND] * 100)


@pytest.mark.parametrize("cache", ["host", "gpu"])
def test_stop_and_unload_when_insertions_are_queued_then_they_are_stopped_and_counted(work, cache):
    with Small(work, threshold="0", cache=cache) as small:
        table, stub = small.tables["a"], small.daemon.stub()
        small.daemon.load("m", work + "/m", version=2, activate=True)
        assert ask(stub, "m", {"a": table.keys}, version=1).results[0].defaulted_key_count == N_ROWS
        small.daemon.ctl("unload", "m", "1")
        assert 1 not in small.daemon.versions("m")
        now = small.settle(applied=False)  # the version's rows that the device had not inserted are dropped
        given = now["hit"] if cache == "gpu" else now["async"] + now["no_space"]
        assert given + now["stopped"] == N_ROWS
        assert cache != "gpu" or now["async"] <= given
        assert ask(stub, "m", {"a": table.keys}).results[0].defaulted_key_count == N_ROWS
        small.daemon.stop()
