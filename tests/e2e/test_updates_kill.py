# SPDX-License-Identifier: Apache-2.0
"""kill -9 during a stream of updates: whenever it comes, every tier equals a replay of the log up to the positions
that hpsd reports, and then goes on from there.

The replay is this file's: a stock consumer reads the log, records are taken apart here and applied to the rows of
the files, as far as each partition was said to be applied. The stream has all three forms of records, upserts and
deletes, bad records in between, for three tables in several partitions; two versions are resident, and some records
are for one of them. hpsd ends before a random call that changes its files, or half of it (tests/fault/killpoint.c),
or by a signal after a random number of records; in its start, too. After each kill it is started twice: with RocksDB
alone and no broker, which shows what was stored with the positions; then as before, with a host map and an embedding
cache on a simulated device, where it is stopped in mid-stream and compared, and goes on to the next kill.

HPS_KILLS sets how many kills (the default is for `./dev check`), HPS_KILL_SEED the random choices.
"""
import collections
import random
import signal
import struct
import subprocess

import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Killpoint, Table, admin_pb, ask, default_config, kill_seed, kills, model_config,
                 pb, records, until)

KILLS = kills(20)
MODEL = "proof"
DIMS = {"a": 4, "b": 16, "c": 33}
PARTITIONS = {"a": 3, "b": 2, "c": 1, None: 2}  # None: the topic of the model
VERSIONS = (1, 2)
KEYS = 120  # of each table: 0 ... KEYS-1; files have those below FILE_KEYS
FILE_KEYS = 90
DEFAULT = -1.0
EXPLAINED = 8  # keys of each version that every tier is asked for
BURST_MAX = 1500
WINDOWS = ("write hpsd/*.log", "*")  # calls of hpsd, by name and path below its directory


def topic_of(table):
    return f"hps_et.{MODEL}" + (f".{table}" if table else "")


def file_value(version, key):
    return float(key) + (version - 1) / 2


def row_of(table, value):
    """Never of another value or table."""
    return value + np.arange(DIMS[table], dtype="<f4") / 64


# ---- the stream ----------------------------------------------------------------------------------------

class Stream:
    """Writes records. Even keys are written through the topic of their table, odd ones through that of the model:
    a key has one partition, within which its order holds."""

    def __init__(self, broker, rng):
        self.rng, self.n = rng, 0
        self.producer = broker.kafka().Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 2})
        self.failed, self.high = [], {}  # high: {(topic, partition): one past the last record}

    def row(self, table):
        self.n += 1
        return row_of(table, float(1000 + self.n % 1000000))

    def keys_of(self, table, partition, odd=False):
        n = PARTITIONS[None if odd else table]
        return [key for key in range(int(odd), KEYS, 2) if key // 2 % n == partition]

    def some(self, keys, most):
        return self.rng.sample(keys, self.rng.randint(1, min(most, len(keys))))

    def changes(self, table, keys):
        """Rows of some keys, deletes of others."""
        return {key: self.row(table) for key in keys[1:]}, keys[:1]

    def version(self):
        return self.rng.choice((0, 0, 0, 0, 0, 0, 1, 2))

    def bad(self, key):
        good = records.keyed(key, np.full(7, 1, "<f4"))
        return self.rng.choice([good, {"key": None, "value": b"HCTR"}, {"key": None, "value": b"neither this nor that"},
                                {"key": None, "value": b"HPS1\x01\0\0\0\xff\xff"},
                                {"key": b"123", "value": good["value"]}])

    def of_table(self, table, keys):
        rng, chance, version = self.rng, self.rng.random(), self.version()
        if chance < 0.05:
            return self.bad(rng.choice(keys))
        if chance < 0.2:
            return records.packed({table: self.changes(table, self.some(keys, 8))}, version=version)
        if chance < 0.5:
            one = records.hctr([(key, self.row(table)) for key in rng.choices(keys, k=rng.randint(1, 30))])
        else:
            one = records.keyed(rng.choice(keys), None if rng.random() < 0.25 else self.row(table))
        return records.for_version(one, version) if version else one

    def of_model(self, partition):
        tables = self.some(sorted(DIMS), len(DIMS))
        return records.packed({table: self.changes(table, self.some(self.keys_of(table, partition, odd=True), 8))
                               for table in tables}, version=self.version())

    def write(self, n):
        """Hand them to the client, whose threads send them."""
        for _ in range(n):
            table = self.rng.choice([*DIMS, None])
            partition = self.rng.randrange(PARTITIONS[table])
            record = (self.of_table(table, self.keys_of(table, partition)) if table else self.of_model(partition))
            self.producer.produce(topic_of(table), partition=partition, on_delivery=self.delivered, **record)
            self.producer.poll(0)

    def delivered(self, error, message):
        if error is not None:
            self.failed.append(error)
        else:
            self.high[message.topic(), message.partition()] = message.offset() + 1

    def flush(self):
        assert self.producer.flush(PATIENCE_S) == 0
        assert not self.failed, self.failed[0]


# ---- the replay ----------------------------------------------------------------------------------------

def decoded(topic_table, message):
    """(version that it is for, [(table, key, row bytes; None: deleted)]); nothing of a bad record."""
    key, value = message.key(), message.value()
    version = struct.unpack("<q", dict(message.headers() or {}).get("hps-version", bytes(8)))[0]
    if key is not None:
        if len(key) != 8 or value is not None and len(value) != DIMS[topic_table] * 4:
            return 0, []
        return version, [(topic_table, struct.unpack("<q", key)[0], value)]
    if value[:4] == b"HCTR" and len(value) > 8:
        return version, [(topic_table, key, row) for key, row in records.hctr_pairs(value)]
    if value[:4] != b"HPS1" or value[8:] == b"\xff\xff":
        return 0, []
    batch = records.unpacked(value)
    return batch.version, [(update.table, key, row) for update in batch.tables
                           for key, row in records.unpacked_rows(update)]


class Replay:
    """Of each version, the rows up to the positions that it was last compared at."""

    def __init__(self, broker):
        kafka = broker.kafka()
        self.places = {(topic_of(table), i): table for table, n in PARTITIONS.items() for i in range(n)}
        self.log = {place: [] for place in self.places}
        self.consumer = broker.consumer(**{"enable.partition.eof": False, "fetch.wait.max.ms": 10})
        self.consumer.assign([kafka.TopicPartition(topic, i, 0) for topic, i in self.places])
        self.at = {version: dict.fromkeys(self.places, 0) for version in VERSIONS}
        self.rows = {version: {table: {key: row_of(table, file_value(version, key)).tobytes()
                                       for key in range(FILE_KEYS)} for table in DIMS} for version in VERSIONS}

    def read(self, positions):
        """Read on until every record below the positions is there."""
        while any(len(self.log[place]) < next_offset for place, next_offset in positions.items()):
            first = self.consumer.poll(PATIENCE_S)
            assert first is not None, f"no answer, wanted {positions}"
            for message in [first, *self.consumer.consume(1000, 0)]:
                assert message.error() is None, message.error()
                place = message.topic(), message.partition()
                assert message.offset() == len(self.log[place])
                self.log[place].append(decoded(self.places[place], message))

    def advance(self, version, positions):
        self.read(positions)
        rows = self.rows[version]
        for place, next_offset in positions.items():
            before = self.at[version][place]
            assert next_offset >= before, f"version {version}, {place}: from {before} back to {next_offset}"
            for meant, changes in self.log[place][before:next_offset]:
                for table, key, row in changes if meant in (0, version) else ():
                    rows[table].pop(key, None)
                    if row is not None:
                        rows[table][key] = row
            self.at[version][place] = next_offset

    def close(self):
        self.consumer.close()


# ---- the story -----------------------------------------------------------------------------------------

class Story:
    """An hpsd that is killed again and again, and what it must hold."""

    def __init__(self, work, broker, rng):
        self.work, self.rng, self.steps = work, rng, []
        self.killed, self.compared = collections.Counter(), collections.Counter()
        for table, n in PARTITIONS.items():
            broker.create(topic_of(table), n)
        self.stream, self.replay = Stream(broker, rng), Replay(broker)
        self.whole = self.config(broker.bootstrap, True)
        self.alone = self.config("127.0.0.1:1", False)  # nothing is read from there
        self.point = Killpoint(f"{work}/control", f"{work}/state")
        self.daemon = Daemon(work, self.whole, wrapper=self.point.wrapper, env={"HPS_DEVICE": "sim"})
        self.daemon.load(MODEL, f"{work}/v2", version=2)
        self.n_calls = 50  # of a burst that changed files, as last seen

    def config(self, brokers, whole):
        paths = {}
        for version in VERSIONS:
            keys = np.arange(FILE_KEYS, dtype="<i8")
            paths[version] = [Table(table, keys, np.array([row_of(table, file_value(version, key)) for key in keys]))
                              .save(f"{self.work}/v{version}") for table in DIMS]
        model = model_config(MODEL, paths[1], list(DIMS.values()), list(DIMS), defaults=[DEFAULT] * len(DIMS),
                             **{"gpucache": whole, "gpucacheper": 0.3, "hit_rate_threshold": 1.0})
        source = {"type": "kafka_message_queue", "brokers": brokers, "metadata_refresh_interval_ms": 200,
                  "start": "earliest", "max_batch_size": 100}
        return default_config([model], update_source=source,
                              volatile_db={"type": "parallel_hash_map" if whole else "disabled"},
                              server={"model_roots": [self.work], "hot_keys_save_s": 0})

    # ---- what it says ----

    def versions(self):
        """{version: (records applied, {(topic, partition): next offset})}"""
        found = {}
        for one in self.daemon.ctl("updates", "--model", MODEL, "-o", "json")[0]["versions"]:
            positions = dict.fromkeys(self.replay.places, 0)
            for partition in one.get("partitions", []):
                assert partition["state"] not in ("gap", "failed"), partition
                place = partition["topic"], int(partition.get("partition", 0))
                positions[place] = max(0, int(partition.get("offset", 0)))
            found[int(one["version"])] = int(one.get("record_count", 0)), positions
        assert set(found) == set(VERSIONS)
        return found

    def compare(self, where):
        """Every row of both versions with the replay up to where hpsd says it is; it stands still."""
        stub = self.daemon.stub()
        said = self.versions()
        for version in VERSIONS:
            self.replay.advance(version, said[version][1])
            reply = ask(stub, MODEL, {table: range(KEYS) for table in DIMS}, version=version)
            for table, result in zip(DIMS, reply.results):
                self.compare_table(version, table, result)
            for _ in range(EXPLAINED):
                self.compare_tiers(version, self.rng.choice(sorted(DIMS)), self.rng.randrange(KEYS))
        assert {version: positions for version, (_, positions) in self.versions().items()} == {
            version: positions for version, (_, positions) in said.items()}, "it did not stand still"
        self.compared[where] += 1

    def compare_table(self, version, table, result):
        rows = self.replay.rows[version][table]
        got = np.frombuffer(result.rows, "<f4").reshape(KEYS, DIMS[table])
        statuses = list(result.key_status) or [pb.KEY_STATUS_FOUND] * KEYS
        default = np.full(DIMS[table], DEFAULT, "<f4").tobytes()
        for key in range(KEYS):
            expected = rows.get(key)
            status = pb.KEY_STATUS_UNKNOWN if expected is None else pb.KEY_STATUS_FOUND
            assert statuses[key] == status, (version, table, key)
            assert got[key].tobytes() == (expected or default), (
                f"version {version}, table {table}, key {key}: got {got[key][:3]}..., "
                f"expected {np.frombuffer(expected or default, '<f4')[:3]}...")

    def compare_tiers(self, version, table, key):
        request = admin_pb.ExplainKeyRequest(model=MODEL, table=table, key=key, version=version)
        tiers = self.daemon.admin_stub().ExplainKey(request, timeout=PATIENCE_S).tiers
        expected = self.replay.rows[version][table].get(key)
        for tier in tiers:
            what = (version, table, key, tier.tier)
            assert not tier.found or tier.row == expected, what
        assert tiers[-1].found == (expected is not None), (version, table, key, tiers[-1].tier)

    # ---- what is done to it ----

    def is_applied(self):
        """All that was written; also if it has died."""
        try:
            said = self.versions() if self.daemon.alive() else {}
        except AssertionError as error:
            try:
                self.daemon.process.wait(PATIENCE_S)  # it is about to be dead
            except subprocess.TimeoutExpired:
                raise error from None
            return True
        return all(positions == self.high for _, positions in said.values())

    def write(self, n):
        self.stream.write(n)

    def finish(self):
        """Wait until the burst is applied."""
        self.stream.flush()
        self.high = {**dict.fromkeys(self.replay.places, 0), **self.stream.high}
        until(self.is_applied, "the stream to be applied")

    def kill_by_call(self):
        window, torn = self.rng.choice(WINDOWS), self.rng.randint(0, 1)
        number = self.rng.randint(1, self.n_calls)
        self.steps.append(f"killed at {number} of {self.n_calls} x '{window}'" + ", torn" * torn)
        self.point.arm(window, number, torn)
        self.write(self.rng.randint(1, BURST_MAX))
        self.finish()
        if self.daemon.alive():
            self.point.disarm()
            self.n_calls = max(1, len(self.point.take_trace()))
            self.end("signal, all applied")
        else:
            self.end(f"call: {self.point.take_trace()[-1].split('/')[0]}")

    def kill_by_signal(self):
        n = self.rng.randint(1, BURST_MAX)
        base = sum(count for count, _ in self.versions().values())
        wanted = self.rng.randint(0, n)
        self.steps.append(f"killed at {wanted} of {n} records")
        self.write(n)
        until(lambda: sum(count for count, _ in self.versions().values()) - base >= wanted, "records")
        self.end("signal, in the stream")

    def kill_in_start(self):
        torn, number = self.rng.randint(0, 1), self.rng.randint(1, 60)
        self.end("signal, before a start")
        self.steps.append(f"killed at {number} x '*' of a start" + ", torn" * torn)
        self.write(self.rng.randint(1, BURST_MAX))  # is there when it starts
        self.point.arm("*", number, torn)
        try:
            self.daemon.start()
        except AssertionError:
            assert self.daemon.process.wait(PATIENCE_S) == -signal.SIGKILL, self.daemon.log()
        self.finish()
        self.end("signal, behind a start" if self.daemon.alive() else "call, in a start")

    def end(self, how):
        code = self.daemon.process.poll()
        assert code in (None, -signal.SIGKILL), f"hpsd ended with {code}\n{self.daemon.log()}"
        self.daemon.kill()
        self.point.disarm()
        self.point.take_trace()
        self.killed[how] += 1

    def start(self, config):
        self.daemon.write_config(config)
        self.daemon.start()
        self.point.take_trace()

    def stop_in_stream(self):
        """Compare in the middle of it: paused, lookups and all."""
        self.write(self.rng.randint(1, BURST_MAX))
        n = self.rng.randint(1, 3)
        for _ in range(n):  # rows come into the upper tiers beside updates
            ask(self.daemon.stub(), MODEL, {table: range(KEYS) for table in DIMS},
                version=self.rng.choice(VERSIONS))
        self.daemon.ctl("updates", "pause", "--model", MODEL)
        self.compare("in mid-stream, all tiers")
        self.daemon.ctl("updates", "resume", "--model", MODEL)

    def turn(self):
        kill = self.rng.choice((self.kill_by_call, self.kill_by_call, self.kill_by_signal, self.kill_in_start))
        kill()
        self.start(self.alone)
        self.compare("after a kill, RocksDB alone")
        self.daemon.kill()
        self.start(self.whole)
        self.stop_in_stream()

    def close(self):
        self.daemon.kill()
        self.replay.close()


def test_kill_when_in_a_stream_of_updates_then_every_tier_equals_a_replay(broker, work):
    seed = kill_seed()
    story = Story(work, broker, random.Random(seed))
    try:
        while story.killed.total() < KILLS:
            story.turn()
        story.finish()
        story.compare("at the end, all tiers")
        assert story.replay.at == {version: story.high for version in VERSIONS}
    except BaseException:
        print(f"HPS_KILL_SEED={seed} HPS_KILLS={KILLS}; the last steps:", *story.steps[-12:], sep="\n  ")
        print(story.daemon.log()[-4000:])
        raise
    finally:
        story.close()
    print(f"seed {seed}: {story.killed.total()} kills, {story.stream.n:,} rows written")
    for what, n in sorted((story.killed + story.compared).items()):
        print(f"  {what:32} {n:5}")


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__]))
