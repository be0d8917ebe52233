# SPDX-License-Identifier: Apache-2.0
"""Where updates come from, with a real broker: filters, topics made later, where reading begins,
the bytes of HPS's own records, the time of arrival, a full disk, and what hpsctl says of all that."""
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections import Counter

import grpc
import numpy as np
import pytest

from rig import (BIN, PATIENCE_S, ROOT, Daemon, Table, admin_pb, default_config, kafka, key_bytes, model_config, pb,
                 until)
from test_restart import mount_tmpfs
from test_updates import DIM, KEYS, config_of, in_every_tier, keyed, packed, states, updates, values, wait_now


# ---- topics --------------------------------------------------------------------------------------------

def test_filters_when_set_then_other_topics_are_not_read_and_later_ones_are_found(broker, daemon, work):
    broker.create("hps_et.sieve.b", 1)
    config = config_of(work, broker, "sieve", source={"brokers": f"127.0.0.1:1;{broker.bootstrap}"},
                       volatile_db={"type": "parallel_hash_map", "update_filters": [r"hps_et\.sieve\.a"]})
    config["persistent_db"]["update_filters"] = ["none", r"hps_et\.siev"]  # each is for the whole name
    one = daemon(config)
    until(lambda: updates(one, "sieve").get("connected"), "the broker")
    broker.write("hps_et.sieve.b", [keyed(1, 101)])
    broker.create("hps_et.sieve.a", 2)
    broker.write("hps_et.sieve.a", [{**keyed(1, 101), "partition": 1}])
    until(lambda: values(one.stub(), "sieve", "a", [1]) == {1: 101}, "the topic that was made later")
    wait_now(one, "sieve")
    assert states(one, "sieve") == {("a", 0): "running", ("a", 1): "running"}
    done = subprocess.run([f"{BIN}/hps-publish", "-b", broker.bootstrap, "-m", "sieve", "-t", "b", "-", "--wait", "--addr",
                           one.admin], input="2 2 2 2 2\n", text=True, capture_output=True, timeout=PATIENCE_S * 2,
                          check=False)
    assert done.returncode == 1 and "topic hps_et.sieve.b is not read" in done.stderr, done.stderr
    assert broker.offsets("hps_et.sieve.b")[0] == (0, 1)
    assert values(one.stub(), "sieve", "b", [1]) == {1: 1}


# ---- where it begins -----------------------------------------------------------------------------------

@pytest.mark.parametrize("start", ["latest", "time"])
def test_start_when_not_the_first_record_then_as_configured_and_kept_over_restarts(broker, daemon, work, start):
    model = f"begin-{start}"
    topic = broker.create(f"hps_et.{model}.a", 1)
    at_ms = round(time.time() * 1000)
    broker.write(topic, [{**keyed(1, 101), "timestamp": at_ms - 5000}, {**keyed(2, 102), "timestamp": at_ms}])
    source = {"start": start, **({"start_time_unix_ms": at_ms} if start == "time" else {})}
    one = daemon(config_of(work, broker, model, source=source))
    wait_now(one, model)
    one.kill()
    broker.write(topic, [keyed(3, 103)])
    one.restart()
    wait_now(one, model)
    second = {"latest": 2, "time": 102}[start]
    assert values(one.stub(), model, "a", [1, 2, 3]) == {1: 1, 2: second, 3: 103}


# ---- bytes of HPS --------------------------------------------------------------------------------------

@pytest.mark.parametrize("key_format", ["q", "I"])
def test_hps_records_when_of_any_bits_then_lookups_answer_the_same_bytes(broker, daemon, work, key_format):
    """Written here by HPS's own layout: no code of hpsd, and none that the other tests share."""
    model, dim, rng = f"bytes-{key_format}", 7, np.random.default_rng(5)
    topic = broker.create(f"hps_et.{model}.t", 2)
    top = {"q": 2**63 - 1, "I": 2**32 - 1}[key_format]
    keys = [0, 1, top, *({"q": [-1, -2**63], "I": [2**31]}[key_format]), *rng.integers(0, top, 500).tolist()]
    rows = {}
    for batch in range(40):
        value = b"HCTR" + struct.pack("<I", 4 * dim)
        for key in {keys[i] for i in rng.integers(0, len(keys), 20)} if batch else keys:
            bits = rng.integers(0, 2**32, dim, dtype=np.uint64).astype("<u4")
            row = np.where(np.isfinite(bits.view("<f4")), bits, 0x80000001).astype("<u4").tobytes()  # or denormal
            value += struct.pack("<" + key_format, key) + row
            rows[key] = row
        broker.write(topic, [{"key": b"" if batch % 2 else None, "value": value, "partition": 0}])
    table = Table("t", np.arange(10), np.ones((10, dim), "<f4"), default=-1.0)
    config = default_config([model_config(model, [table.save(f"{work}/files")], [dim], ["t"], defaults=[-1.0],
                                          hit_rate_threshold=1.0)],  # a cache that is warm after a start gives no default
                            update_source={"type": "kafka", "brokers": broker.bootstrap, "start": "earliest"},
                            supportlonglong=key_format == "q")
    one = daemon(config)
    wait_now(one, model)
    asked = list(rows)
    for _ in range(2):
        reply = one.stub().Lookup(pb.LookupRequest(model=model, queries=[
            pb.TableQuery(table="t", keys=key_bytes(asked))]), timeout=PATIENCE_S)
        got = reply.results[0].rows
        assert {key: got[i * 4 * dim:(i + 1) * 4 * dim] for i, key in enumerate(asked)} == rows
        one.kill()
        one.restart()
    assert updates(one, model).get("rejected_record_count", 0) == 0


# ---- freshness -----------------------------------------------------------------------------------------

def fresh_row(stub, model, table, key, staleness_ms):
    """The value of a row, or None: the server does not claim to be so fresh."""
    try:
        return values(stub, model, table, [key], max_staleness_ms=staleness_ms)[key]
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE and "max_staleness_ms" in error.details(), error
        return None


@pytest.mark.parametrize("change, topic, partition", (
    ("grow", "hps_et.widened.a", 1), ("create", "hps_et.second.b", 0), ("create", "hps_et.general", 0),
    ("recreate", "hps_et.replaced.a", 0)))
def test_lookup_when_a_partition_is_new_then_fresh_only_with_its_row(broker, daemon, work, change, topic, partition):
    """hpsd is stopped during the change. The recreated topic gets as many records as the old one had. So hpsd sees
    neither that the topic is missing nor that it is shorter or longer."""
    _, model, *table = topic.split(".")
    first, [table] = f"hps_et.{model}.a", table or ["b"]
    broker.create(first, 1)
    one = daemon(config_of(work, broker, model, source={"metadata_refresh_interval_ms": 30000}))
    broker.write(first, [keyed(1, 101)])
    wait_now(one, model)
    stub = one.stub()
    until(lambda: fresh_row(stub, model, table, 2, 1500) == 2, "a fresh answer")
    record = keyed(2, 102) if topic.endswith(f".{table}") else packed({table: ({2: 102}, [])})
    one.send(signal.SIGSTOP)
    try:
        getattr(broker, change)(topic, partition + 1)
        broker.write(topic, [{**record, "partition": partition}])
        acknowledged = time.monotonic()
    finally:
        one.send(signal.SIGCONT)

    def is_settled():
        age = time.monotonic() - acknowledged
        value = fresh_row(stub, model, table, 2, 1500)
        assert value in (None, 102) or age <= 1.501, f"OK without a row that was acknowledged {age:.3f} s before"
        return value == 102 or (change == "recreate" and "gap" in states(one, model).values())

    until(is_settled, "the row, or a gap")


def test_refreshes_when_kafka_is_silent_then_other_admin_calls_are_served(own_broker, daemon, work):
    """A thread that waited for each refresh would take 2 s for each eight of them."""
    own_broker.create("hps_et.mute.a", 1)
    one = daemon(config_of(work, own_broker, "mute"))
    wait_now(one, "mute")
    admin = one.admin_stub()
    own_broker.process.send_signal(signal.SIGSTOP)

    def refresh(n):
        request = admin_pb.GetUpdatesRequest(refresh=True)
        return [admin.GetUpdates.future(request, timeout=PATIENCE_S * 4) for _ in range(n)]

    for call in refresh(100):
        call.cancel()
    calls = refresh(200)
    admin.Ping(admin_pb.PingRequest(), timeout=PATIENCE_S)
    admin.GetStatus(admin_pb.GetStatusRequest(), timeout=PATIENCE_S)
    admin.Drain(admin_pb.DrainRequest(), timeout=PATIENCE_S)
    codes = Counter(call.code() for call in calls)
    assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    until(lambda: not one.alive(), "the end of the drain")


def test_freshness_when_a_topic_has_many_partitions_then_claimed_all_the_time(own_broker, daemon, work):
    topic, n_partitions = "hps_et.many.a", 300
    own_broker.create(topic, n_partitions)
    own_broker.write(topic, [{**keyed(i % KEYS, 101), "partition": i} for i in range(n_partitions)])
    one = daemon(config_of(work, own_broker, "many"))
    stub = one.stub()
    until(lambda: set(values(stub, "many", "a").values()) == {101}, "all rows")
    one.stop()
    one.restart()
    stub, in_a_row = one.stub(), [0]

    def is_steady():
        in_a_row[0] = in_a_row[0] + 1 if fresh_row(stub, "many", "a", 1, 2000) == 101 else 0
        return in_a_row[0] == 20

    until(is_steady, "20 fresh answers in a row", step_s=0.25)
    wait_now(one, "many")


def test_freshness_when_records_have_the_time_of_arrival_then_measured_from_it(broker, daemon, work):
    topic = broker.create("hps_et.arrived.a", 1, message_timestamp_type="LogAppendTime")
    one = daemon(config_of(work, broker, "arrived"))
    begun = time.time()
    broker.write(topic, [{**keyed(1, 101), "timestamp": 1000}])
    wait_now(one, "arrived")
    passed = time.time() - begun
    metrics = one.metrics()
    assert metrics['hpsd_update_freshness_seconds_count{model="arrived"}'] == 1
    assert 0 <= metrics['hpsd_update_freshness_seconds_sum{model="arrived"}'] <= passed + 0.002


def test_example_when_run_then_it_measures_how_fresh_lookups_are(broker, daemon, work):
    topic = broker.create("hps_et.example.a", 1)
    one = daemon(config_of(work, broker, "example"))
    wait_now(one, "example")
    path = os.pathsep.join(p for p in sys.path if os.path.exists(os.path.join(p, "hps", "v1", "lookup_pb2.py")))
    done = subprocess.run([sys.executable, f"{ROOT}/docs/examples/freshness.py", broker.bootstrap, one.grpc[0],
                           "example", "a", str(DIM), "1"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path}, timeout=PATIENCE_S * 4)
    assert done.returncode == 0, done.stderr
    n = int(re.search(r"p99 \d+ ms, longest \d+ ms, of (\d+) rows", done.stdout)[1])
    assert broker.offsets(topic)[0] == (0, n + 1)  # and the delete
    wait_now(one, "example")
    assert values(one.stub(), "example", "a", [2**62]) == {2**62: -1}


def test_threads_when_nobody_waits_for_them_then_they_give_way(broker, daemon, work):
    broker.create("hps_et.niced.a", 1)
    one = daemon(config_of(work, broker, "niced"))
    wait_now(one, "niced")
    nice = {}
    for task in os.listdir(f"/proc/{one.process.pid}/task"):
        try:
            with open(f"/proc/{one.process.pid}/task/{task}/comm", encoding="utf-8") as f:
                nice.setdefault(f.read().strip(), set()).add(os.getpriority(os.PRIO_PROCESS, int(task)))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended meanwhile
    [mine] = nice["hpsd"]
    behind = {name for name, values in nice.items() if min(values) > mine}
    assert {"update", "rdk:main", "rocksdb:low", "rocksdb:high", "loader-0", "warmup-0"} <= behind
    assert {name for name in nice if name.startswith(("loop", "worker", "io", "rocksdb-read"))}.isdisjoint(behind)


# ---- versions ------------------------------------------------------------------------------------------

def test_rollback_when_of_one_lineage_then_as_fresh_as_the_other(broker, daemon, work):
    topic = broker.create("hps_et.back.a", 1)
    one = daemon(config_of(work, broker, "back"))
    one.load("back", f"{work}/files-back", version=2, activate=True)
    broker.write(topic, [keyed(1, 101), keyed(2, None)])
    for version in (1, 2):
        one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "back", "--version", version)
    one.ctl("rollback", "back")
    assert updates(one, "back", 1)["active"] and not updates(one, "back", 1).get("frozen")
    assert values(one.stub(), "back", "a", [1, 2]) == {1: 101, 2: -1}


# ---- hpsctl and the log --------------------------------------------------------------------------------

def test_hpsctl_when_asked_of_updates_then_tables_and_exit_codes_tell(broker, daemon, work):
    topic = broker.create("hps_et.table.a", 1)
    one = daemon(config_of(work, broker, "table"))
    broker.write(topic, [keyed(1, 101), {"key": b"odd", "value": b""}])
    assert wait_now(one, "table", "--allow-refused").split("\n")[0] == "visible"
    text = one.ctl("updates")
    assert re.search(rf"^  newest rejected record: {topic}:0:1, [\d.]+ s ago: .*\(key\)$", text, re.M), text
    assert re.search(r"^table 1 \(active\): connected, lineage \S+, 2 records, 1 keys, 1 bad, as of", text, re.M), text
    assert re.search(rf"^table +1 +{topic} +0 +running +2 +2 +0 ", text, re.M), text
    [line] = [line for line in one.log().splitlines() if "record rejected:" in line]
    assert all(f"{name}={value}" in line for name, value in
               {"topic": topic, "partition": 0, "offset": 1, "reason": "key"}.items())
    one.ctl("updates", "pause", "--topic", topic, "--partition", "0")
    [line] = [line for line in one.log().splitlines() if "component=audit" in line]
    assert "method=ControlUpdates" in line and "code=0" in line
    one.ctl("updates", "seek", "--all", code=2)
    one.ctl("updates", "seek", "--to", "latest", code=2)
    one.ctl("updates", "seek", "--to", "sometime", "--all", code=2)
    one.ctl("updates", "halt", code=2)
    one.ctl("updates", "pause", "--topic", "hps_et.table.none", code=1)
    one.ctl("updates", "--model", "ghost", code=1)
    one.ctl_out_of_time("wait-for", f"{topic}:7:0")
    away = subprocess.run([f"{BIN}/hpsctl", "--addr", f"unix:{work}/none.sock", "--timeout", "0.2", "wait-for", "now"],
                          capture_output=True, timeout=PATIENCE_S, check=False)
    assert away.returncode == 3


def test_hpsctl_when_there_is_no_source_then_said(daemon):
    one = daemon()
    for args, code in ((["updates"], 1), (["updates", "pause", "--all"], 1), (["wait-for", "now", "--model", "m"], 5)):
        assert re.search("update.source", one.ctl(*args, code=code)), args
    assert one.alive()


# ---- deletes -------------------------------------------------------------------------------------------

def test_deletes_when_every_tier_has_the_keys_then_none_has_them(broker, daemon, work):
    broker.create("hps_et.gone.a", 1)
    broker.create("hps_et.gone", 1)
    config = config_of(work, broker, "gone", server={"lookup_path": "gpu"})
    config["models"][0].update(gpucache=True, gpucacheper=1.0, hit_rate_threshold=1.0)
    one = daemon(config, env={"HPS_DEVICE": "sim"})
    keys = [1, 2, 1000]  # the last one is not in the files
    broker.write("hps_et.gone.a", [keyed(1000, 1000)])
    wait_now(one, "gone")

    def where(key):
        """Tiers that have it, those that have not."""
        tiers = in_every_tier(one, "gone", "a", key)
        assert all(value in (None, key) for value in tiers.values())
        return tuple({tier for tier, value in tiers.items() if (value is None) == none} for none in (False, True))

    def are_everywhere():
        values(one.stub(), "gone", "a", keys)
        return all(where(key) == ({"gpu", "host", "rocksdb"}, set()) for key in keys)

    until(are_everywhere, "the keys in every tier")
    broker.write("hps_et.gone.a", [keyed(1, None), keyed(1000, None)])
    broker.write("hps_et.gone", [packed({"a": ({}, [2])})])
    wait_now(one, "gone")
    for _ in range(2):
        for _ in range(3):  # lookups bring nothing back
            assert values(one.stub(), "gone", "a", [*keys, 3]) == {1: -1, 2: -1, 1000: -1, 3: 3}
        assert [where(key)[0] for key in keys] == [set()] * 3
        one.kill()
        one.restart()


# ---- a full disk ---------------------------------------------------------------------------------------

def test_updates_when_the_disk_is_full_then_they_wait_and_lookups_do_not(broker, work):
    topic = broker.create("hps_et.full.a", 1)
    state = os.path.join(work, "state")
    os.mkdir(state)
    mount_tmpfs(state, "size=96m")
    try:
        with Daemon(work, config_of(work, broker, "full", server={"disk_free_min_bytes": "16MiB"})) as one:
            broker.write(topic, [keyed(1, 101)])
            wait_now(one, "full")
            room = os.statvfs(state)
            with open(f"{state}/ballast", "wb") as f:
                os.posix_fallocate(f.fileno(), 0, room.f_bavail * room.f_frsize)
            broker.write(topic, [keyed(2, 102), keyed(3, None)])
            until(lambda: one.metrics()['hpsd_update_held{model="full"}'] == 1, "the batch to wait")
            assert "disk" in updates(one, "full")["held"] and "a batch cannot be applied:" in one.ctl("updates")
            assert values(one.stub(), "full", "a", [1, 2, 3]) == {1: 101, 2: 2, 3: 3}
            assert one.get("/readyz")[0] == 200
            assert states(one, "full") == {("a", 0): "held"}
            told = one.ctl_out_of_time("wait-for", "now", "--model", "full")
            assert "held" in told and "disk" in told, told
            os.unlink(f"{state}/ballast")
            wait_now(one, "full")
            assert values(one.stub(), "full", "a", [1, 2, 3]) == {1: 101, 2: 102, 3: -1}
            assert one.metrics()['hpsd_update_held{model="full"}'] == 0
    finally:
        subprocess.run(["umount", "-l", state], check=True)
