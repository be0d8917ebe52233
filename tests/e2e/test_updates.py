# SPDX-License-Identifier: Apache-2.0
"""Updates through a real Kafka broker: all forms of records in every tier, gaps, outages, versions. Crashes are in
test_updates_kill.py.

Records are written by a stock client (confluent-kafka) and packed by tests/lib/records.py, never by our code.
"""
import json
import signal
import struct
import threading
import time

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Table, admin_pb, default_config, key_bytes, model_config, pb, records, refused, until)

DIM = 4
KEYS = 60


# ---- records -------------------------------------------------------------------------------------------

def row(value):
    return np.full(DIM, value, "<f4")


def keyed(key, value):
    """Value None: a delete."""
    return records.keyed(key, None if value is None else row(value))


def hctr(pairs, key_format="q"):
    return records.hctr([(key, row(value)) for key, value in pairs], key_format)


def packed(tables, **more):
    """tables: {name: ({key: value}, [deleted keys])}"""
    return records.packed({name: ({key: row(value) for key, value in puts.items()}, deletes)
                           for name, (puts, deletes) in tables.items()}, **more)


# ---- the daemon ----------------------------------------------------------------------------------------

def tables_of(names):
    """Key k has rows of k."""
    keys = np.arange(KEYS, dtype="<i8")
    rows = np.repeat(keys.astype("<f4")[:, None], DIM, axis=1)
    return [Table(name, keys, rows, default=-1.0) for name in names]


def config_of(work, broker, model, names=("a", "b"), source=(), durable=True, device=True, **more):
    """device=False: without an embedding cache also where others have one, for the sake of the tiers below."""
    tables = tables_of(names)
    paths = [table.save(f"{work}/files-{model}") for table in tables]
    return default_config(
        [model_config(model, paths, [DIM] * len(names), list(names), defaults=[-1.0] * len(names),
                      **({} if device else {"gpucache": False}))],
        durable=durable,
        update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap,
                       "metadata_refresh_interval_ms": 200, "start": "earliest", **dict(source)}, **more)


def values(stub, model, table, keys=range(KEYS), **fields):
    """{key: value}, -1 for a key that is not there; none is a default row that stands for the true one."""
    query = pb.TableQuery(table=table, keys=key_bytes(list(keys)))
    request = pb.LookupRequest(model=model, queries=[query], **{"miss_policy": pb.MISS_POLICY_EXACT, **fields})
    reply = stub.Lookup(request, timeout=PATIENCE_S)
    rows = np.frombuffer(reply.results[0].rows, "<f4").reshape(-1, DIM)
    assert (rows == rows[:, :1]).all(), "a torn row"
    return dict(zip(keys, rows[:, 0].tolist()))


def updates(daemon, model, version=None):
    for one in daemon.ctl("updates", "--model", model, "-o", "json")[0]["versions"]:
        if version is None or int(one["version"]) == version:
            return one
    raise AssertionError(f"no version {version}")


def states(daemon, model):
    return {(one["topic"].rsplit(".", 1)[1], int(one.get("partition", 0))): one["state"]
            for one in updates(daemon, model).get("partitions", [])}


def wait_now(daemon, model, *args, code=0):
    return daemon.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", model, *args, code=code)


def in_every_tier(daemon, model, table, key):
    """{tier: the value there, or None}; a device has what was asked of it, or not."""
    reply = daemon.admin_stub().ExplainKey(admin_pb.ExplainKeyRequest(model=model, table=table, key=key),
                                           timeout=PATIENCE_S)
    return {tier.tier: np.frombuffer(tier.row, "<f4")[0] if tier.found else None
            for tier in reply.tiers if tier.found or tier.tier != "gpu"}


# ---- records in every tier -----------------------------------------------------------------------------

def test_records_of_all_forms_when_written_then_in_every_tier(broker, daemon, work):
    broker.create("hps_et.forms.a", 2)
    broker.create("hps_et.forms.b", 1)
    broker.create("hps_et.forms", 1)
    one = daemon(config_of(work, broker, "forms"))
    stub = one.stub()
    broker.write("hps_et.forms.a", [{**keyed(1, 101), "partition": 0}, {**keyed(2, None), "partition": 1},
                                    {**keyed(1000, 7), "partition": 1}])
    broker.write("hps_et.forms.b", [hctr([(3, 103), (4, 104), (3, 113)])])
    broker.write("hps_et.forms", [packed({"a": ({5: 105}, [6]), "b": ({7: 107}, [8, 9])})])
    wait_now(one, "forms")
    a, b = values(stub, "forms", "a", [1, 2, 5, 6, 10, 1000]), values(stub, "forms", "b", range(10))
    assert a == {1: 101, 2: -1, 5: 105, 6: -1, 10: 10, 1000: 7}
    assert b == {0: 0, 1: 1, 2: 2, 3: 113, 4: 104, 5: 5, 6: 6, 7: 107, 8: -1, 9: -1}
    for table, key, value in (("a", 1, 101), ("b", 3, 113), ("a", 2, None), ("b", 9, None), ("a", 6, None)):
        assert set(in_every_tier(one, "forms", table, key).values()) == {value}, (table, key)
    assert updates(one, "forms")["record_count"] == 5
    version, = stub.GetModel(pb.GetModelRequest(model="forms"), timeout=PATIENCE_S).versions
    positions = {(of.topic.removeprefix("hps_et."), of.partition): of.next_offset for of in version.positions}
    assert positions == {("forms.a", 0): 1, ("forms.a", 1): 2, ("forms.b", 0): 1, ("forms", 0): 1}
    assert version.as_of_unix_ms > 0 and version.rejected_record_count == 0
    metrics = one.metrics()
    assert metrics['hpsd_update_freshness_seconds_count{model="forms"}'] == 5
    assert metrics['hpsd_update_rows_total{model="forms",op="delete"}'] == 4


def rows_told(daemon, model, tables=("a", "b")):
    """({where: rows}, {where: is it an estimate}) of a model that is the only one."""
    (of_model,) = daemon.ctl("models", "-o", "json")[0]["models"][0]["versions"]
    of_tables = {one["table"]: one for one in daemon.ctl("tables", model, "-o", "json")[0]["tables"]}
    (of_tier,) = [one for one in daemon.ctl("status", "-o", "json")[0]["tiers"] if one["tier"] == "rocksdb"]
    told = {"model": of_model, "tier": of_tier, **{name: of_tables[name] for name in tables}}
    rows = {where: int(one["row_count"]) for where, one in told.items()}
    rows["metric"] = int(daemon.metrics()[f'hpsd_tier_rows{{model="{model}",version="1",tier="rocksdb"}}'])
    return rows, {bool(one["row_count_estimated"]) for one in told.values()}


def test_rows_when_updated_then_exact_before_and_marked_as_an_estimate_behind(broker, daemon, work):
    for name in "ab":
        broker.create(f"hps_et.counted.{name}", 1)
    one = daemon(config_of(work, broker, "counted"))
    wait_now(one, "counted")  # positions are stored, and no row has changed
    exact = {"model": 2 * KEYS, "tier": 2 * KEYS, "a": KEYS, "b": KEYS, "metric": 2 * KEYS}
    assert rows_told(one, "counted") == (exact, {False})
    one.stop()
    one.start()
    assert rows_told(one, "counted") == (exact, {False})
    broker.write("hps_et.counted.a", [keyed(key, key + 1000) for key in range(KEYS)])
    broker.write("hps_et.counted.b", [keyed(KEYS + 7, 7), keyed(KEYS + 8, 8), keyed(3, None)])
    wait_now(one, "counted")
    expected = {"model": 2 * KEYS + 1, "tier": 2 * KEYS + 1, "a": KEYS, "b": KEYS + 1, "metric": 2 * KEYS + 1}
    assert rows_told(one, "counted") == (expected, {True})
    for verb, n in (("models", 2 * KEYS + 1), ("tables", KEYS + 1), ("status", 2 * KEYS + 1)):
        assert f"~{n} " in one.ctl(verb)
    one.stop()
    one.start()
    assert rows_told(one, "counted") == (expected, {True})


def test_bad_records_when_between_good_ones_then_left_out_counted_and_kept(broker, daemon, work):
    broker.create("hps_et.bad.a", 1)
    letters = broker.create("bad.letters", 1)
    one = daemon(config_of(work, broker, "bad", source={"dead_letter_topic": letters}))
    nan = {"key": struct.pack("<q", 1), "value": np.full(DIM, np.nan, "<f4").tobytes()}
    wide = {"key": struct.pack("<q", 1), "value": bytes(DIM * 4 + 4)}
    cut = {"key": None, "value": hctr([(1, 1), (2, 2)])["value"][:-3]}
    unknown = packed({"ghost": ({1: 1}, [])})
    broker.write("hps_et.bad.a", [keyed(1, 201), nan, wide, cut, unknown, {"key": None, "value": b"junk, and long enough"},
                                  {"key": b"12345", "value": b""}, keyed(2, 202)])
    assert "hps_et.bad.a:0:6 was rejected" in wait_now(one, "bad", "--allow-refused")
    assert "hps_et.bad.a:0:6 was rejected" in wait_now(one, "bad", code=5)
    assert "(width)" in one.ctl("wait-for", "hps_et.bad.a:0:2", code=5)
    one.ctl("--timeout", PATIENCE_S, "wait-for", "hps_et.bad.a:0:7")
    got = values(one.stub(), "bad", "a", [1, 2])
    assert got == {1: 201, 2: 202}
    assert updates(one, "bad")["rejected_record_count"] == 6
    letters_read = broker.read(letters)
    assert len(letters_read) == 6
    reasons = {dict(m.headers())["hps-reason"].decode() for m in letters_read}
    assert reasons == {"not_finite", "width", "truncated", "table", "magic", "key"}
    assert one.alive()


def test_letters_when_their_topic_is_made_late_then_updates_go_on_and_copies_resume(broker, daemon, work):
    topic = broker.create("hps_et.tardy.a", 1)
    one = daemon(config_of(work, broker, "tardy", source={"dead_letter_topic": "tardy.letters"}))
    bad, n = {"key": None, "value": b"junk, and long enough"}, 0

    def more():
        nonlocal n
        n += 1
        broker.write(topic, [bad, bad, keyed(n, 200 + n)])
        wait_now(one, "tardy", "--allow-refused")
        assert values(one.stub(), "tardy", "a", [n]) == {n: 200 + n}
        assert one.metrics()['hpsd_update_records_rejected_total{model="tardy",reason="magic"}'] == 2 * n
        return "dead letters resumed" in one.log()

    def lost():
        return one.metrics()['hpsd_update_dead_letters_lost_total{model="tardy"}']

    more()
    more()
    until(lambda: lost() == 2 * n, "the letters to be lost")
    broker.create("tardy.letters", 1)
    until(more, "the letters to be taken")
    until(lambda: len(broker.read("tardy.letters")) + lost() == 2 * n, "the rest of them")
    assert one.log().count("dead letters late or lost") == 1


def test_keys_of_four_bytes_when_not_supportlonglong_then_read(broker, daemon, work):
    broker.create("hps_et.narrow.a", 1)
    config = config_of(work, broker, "narrow")
    config["supportlonglong"] = False
    one = daemon(config)
    high = 7 << 32
    broker.write("hps_et.narrow.a", [hctr([(3, 303), (4, 304)], "I"), keyed(-5, 305), keyed(high + 6, None),
                                     packed({"a": ({high + 7: 307}, [high + 8])})])
    wait_now(one, "narrow")
    meant = {3: 303, 4: 304, 5: 5, 2**32 - 5: 305, 6: -1, 7: 307, 8: -1}
    assert values(one.stub(), "narrow", "a", meant) == meant
    assert values(one.stub(), "narrow", "a", [-5, high + 3, high + 5 - 2**63]) == {-5: 305, high + 3: 303,
                                                                                  high + 5 - 2**63: 5}
    told = one.admin_stub().ExplainKey(admin_pb.ExplainKeyRequest(model="narrow", table="a", key=-5), timeout=PATIENCE_S)
    assert told.state == admin_pb.KEY_STATE_FOUND


@pytest.mark.parametrize("key_bytes", (8, 4))
def test_hctr_when_written_by_another_then_every_tier_has_it_to_the_bit(broker, daemon, work, key_bytes):
    model = f"bits{key_bytes}"
    topic = broker.create(f"hps_et.{model}.a", 2)
    config = config_of(work, broker, model)
    config["supportlonglong"] = key_bytes == 8
    one = daemon(config)
    rng = np.random.default_rng(key_bytes)
    ends = [0, -1, -2**63, 2**63 - 1, 2**32, 2**32 - 1] if key_bytes == 8 else [0, 2**31, 2**32 - 1]
    keys = ends + rng.integers(100, 2**(8 * key_bytes - 1), 700 - len(ends)).tolist()
    bits = rng.integers(0, 2**32, (700, DIM), dtype=np.uint32)
    bits[bits & 0x7F800000 == 0x7F800000] ^= 0x40000000  # neither NaN nor infinite
    bits[0] = [0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF]  # -0, both ends of the subnormals, the largest
    rows = bits.view("<f4")
    pairs, form = list(zip(keys, rows)), "q" if key_bytes == 8 else "I"
    beacon = {"key": b"", "value": b"HCTR" + struct.pack("<I", 4 * DIM)}
    broker.write(topic, [{**records.hctr([(key, row(9)) for key in keys[:-1:3]], form), "partition": 0},
                         {**records.hctr(pairs[:-1], form), "key": b"", "partition": 0},
                         {**beacon, "partition": 1}, {**records.hctr(pairs[-1:], form), "partition": 1}])
    wait_now(one, model)
    query = pb.TableQuery(table="a", keys=records.key_bytes(keys))
    reply = one.stub().Lookup(pb.LookupRequest(model=model, queries=[query]), timeout=PATIENCE_S)
    got = np.frombuffer(reply.results[0].rows, "<u4").reshape(bits.shape)
    assert np.flatnonzero((got != bits).any(axis=1)).tolist() == []
    for key, wanted in pairs[:len(ends)]:
        tiers = one.admin_stub().ExplainKey(admin_pb.ExplainKeyRequest(model=model, table="a", key=key),
                                            timeout=PATIENCE_S).tiers
        assert {tier.row for tier in tiers if tier.found} == {wanted.tobytes()}, key
    assert updates(one, model).get("rejected_record_count", 0) == 0


def test_records_when_bent_in_any_way_then_survived_counted_and_kept(broker, daemon, work):
    topic, letters = broker.create("hps_et.bent.a", 1), broker.create("bent.letters", 1)
    wide = broker.create("hps_et.bent", 1)
    one = daemon(config_of(work, broker, "bent", source={"dead_letter_topic": letters}))
    rng = np.random.default_rng(11)
    good = [keyed(1, 1), keyed(2, None), hctr([(3, 3), (4, 4)]), packed({"a": ({5: 5}, [6]), "b": ({7: 7}, [])})]

    def bent():
        record = dict(good[rng.integers(len(good))])
        for field in ("key", "value"):
            data = bytearray(record[field] or b"")
            for _ in range(rng.integers(3)):
                at = int(rng.integers(len(data) + 1))
                how = rng.integers(4)
                if how == 0:
                    data[at:at + 1] = rng.bytes(1)
                elif how == 1:
                    del data[at:]
                elif how == 2:
                    data[at:at] = rng.bytes(rng.integers(1, 9))
                else:
                    data = None
                    break
            if data is None or data or record[field] is not None:
                record[field] = None if data is None else bytes(data)
        if rng.integers(4) == 0:
            name = ("hps-version", "hps-row-version")[rng.integers(2)]
            record["headers"] = [(name, rng.bytes(rng.integers(10)))]
        return record

    for name in (topic, wide):
        broker.write(name, [bent() for _ in range(600)] + [keyed(59, 59) if name == topic else
                                                           packed({"b": ({58: 158}, [])})])
    broker.write(topic, [keyed(58, 158)])
    wait_now(one, "bent", "--allow-refused")
    assert values(one.stub(), "bent", "a", [58, 59]) == {58: 158, 59: 59}
    assert values(one.stub(), "bent", "b", [58]) == {58: 158}
    kept = {(h["hps-topic"].decode(), int(h["hps-offset"])): h["hps-reason"].decode()
            for h in (dict(m.headers()) for m in broker.read(letters))}
    counted = {name: value for name, value in one.metrics().items()
               if name.startswith('hpsd_update_records_rejected_total{model="bent"')}
    assert updates(one, "bent")["rejected_record_count"] == sum(counted.values())
    for_none = counted['hpsd_update_records_rejected_total{model="bent",reason="version"}']  # right, and not kept
    assert sum(counted.values()) - for_none == len(kept) > 200
    assert {"key", "magic", "truncated", "width", "table"} <= set(kept.values()), set(kept.values())


# ---- outages -------------------------------------------------------------------------------------------

def test_broker_when_it_comes_after_the_daemon_then_updates_begin(own_broker, daemon, work):
    own_broker.create("hps_et.early.a", 1)
    own_broker.stop()
    one = daemon(config_of(work, own_broker, "early"))
    until(lambda: not updates(one, "early").get("connected"), "the outage to be seen")
    own_broker.start()
    own_broker.write("hps_et.early.a", [keyed(1, 101)])
    until(lambda: values(one.stub(), "early", "a", [1]) == {1: 101}, "the update")


def test_broker_when_stopped_started_and_grown_then_no_lookup_fails(own_broker, daemon, work):
    broker = own_broker
    broker.create("hps_et.away.a", 1)
    one = daemon(config_of(work, broker, "away"))
    stub = one.stub()
    stop, errors, n = threading.Event(), [], [0]

    def look():
        while not stop.is_set():
            try:
                values(stub, "away", "a")
                n[0] += 1
            except Exception as error:  # told by the test
                errors.append(error)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        broker.write("hps_et.away.a", [keyed(1, 101)])
        wait_now(one, "away")
        broker.stop()
        until(lambda: not updates(one, "away").get("connected"), "the outage to be seen")
        before = n[0]
        until(lambda: n[0] > before + 20, "look-ups without a broker")
        broker.start()
        broker.write("hps_et.away.a", [keyed(2, 102)])
        until(lambda: updates(one, "away").get("connected"), "the broker to be seen")
        broker.grow("hps_et.away.a", 3)
        broker.write("hps_et.away.a", [{**keyed(3, 103), "partition": 2}])
        until(lambda: values(stub, "away", "a", [1, 2, 3]) == {1: 101, 2: 102, 3: 103}, "updates")
        assert len(states(one, "away")) == 3
        assert one.log().count("update source reachable again") == 1 and "level=error" not in one.log()
    finally:
        stop.set()
        reader.join()
    assert not errors, errors[0]


# ---- row versions --------------------------------------------------------------------------------------

def versioned(record, version, partition=0):
    return {**record, "headers": [("hps-row-version", struct.pack("<Q", version))], "partition": partition}


def test_row_versions_when_partitions_are_out_of_order_then_the_highest_counts(broker, daemon, work):
    broker.create("hps_et.rowv.a", 1)
    broker.create("hps_et.rowv", 1)
    config = config_of(work, broker, "rowv")
    config["models"][0]["row_versions"] = True
    one = daemon(config)
    broker.write("hps_et.rowv.a", [versioned(keyed(1, 105), 5), versioned(keyed(2, None), 5),
                                   versioned(keyed(3, 103), 3), keyed(4, 104)])
    wait_now(one, "rowv", "--allow-refused")
    broker.grow("hps_et.rowv.a", 2)  # while keys move between partitions
    broker.write("hps_et.rowv.a", [versioned(keyed(1, 104), 4, 1), versioned(keyed(2, 102), 4, 1),
                                   versioned(keyed(3, 113), 4, 1)])
    until(lambda: values(one.stub(), "rowv", "a", [3]) == {3: 113}, "the new partition")
    assert values(one.stub(), "rowv", "a", [1, 2, 3, 4]) == {1: 105, 2: -1, 3: 113, 4: 4}
    one.kill()
    one = daemon(config)
    broker.write("hps_et.rowv.a", [versioned(keyed(1, None), 4), versioned(keyed(2, 112), 4),
                                   versioned(keyed(3, None), 5)])
    broker.write("hps_et.rowv", [versioned(packed({"a": ({2: 122, 5: 105}, [1]), "b": ({2: 122}, [])}), 4)])
    wait_now(one, "rowv", "--allow-refused")
    stub = one.stub()
    assert values(stub, "rowv", "a", [1, 2, 3, 5]) == {1: 105, 2: -1, 3: -1, 5: 105}
    assert values(stub, "rowv", "b", [2]) == {2: 122}
    for key, value in ((1, 105), (2, None), (3, None), (5, 105)):
        tiers = in_every_tier(one, "rowv", "a", key)
        assert tiers.pop("gpu", None) in (value, None), key
        assert set(tiers.values()) == {value}, key
    metrics = one.metrics()
    assert metrics['hpsd_update_rows_total{model="rowv",op="older"}'] >= 2  # of one batch a key counts once
    broker.write("hps_et.rowv.a", [keyed(1, 106)])
    wait_now(one, "rowv", "--allow-refused")
    assert one.metrics()['hpsd_update_records_rejected_total{model="rowv",reason="header"}'] == 1


# ---- units ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("durable", [True, False])
def test_units_when_looked_up_beside_updates_then_all_of_each_or_nothing(broker, daemon, work, durable):
    model = f"units{int(durable)}"
    broker.create(f"hps_et.{model}", 1)
    one = daemon(config_of(work, broker, model, durable=durable))
    stub, last = one.stub(), 400
    keys = [3, 4, 5]
    broker.write(f"hps_et.{model}", [packed({table: (dict.fromkeys(keys, 1000), []) for table in "ab"})])
    wait_now(one, model)
    done, wrong = threading.Event(), []

    def look():
        queries = [pb.TableQuery(table=table, keys=key_bytes(keys)) for table in "ab"]
        request = pb.LookupRequest(model=model, queries=queries, consistency=pb.CONSISTENCY_UNIT)
        while not done.is_set() and not wrong:
            try:
                reply = stub.Lookup(request, timeout=PATIENCE_S)
                seen = {value for result in reply.results for value in np.frombuffer(result.rows, "<f4").tolist()}
                if len(seen) != 1:
                    wrong.append(seen)
            except Exception as error:  # told by the test
                wrong.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for first in range(1, last + 1, 10):  # every other one a delete: rows of -1 in both
            units = [(dict.fromkeys(keys, 1000 + number), []) if number % 2 == 0 else ({}, keys)
                     for number in range(first, first + 10)]
            broker.write(f"hps_et.{model}", [packed({"a": unit, "b": unit}) for unit in units])
        wait_now(one, model)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not wrong, wrong[0]
    assert values(stub, model, "a", keys) == dict.fromkeys(keys, 1000 + last)


# ---- gaps ----------------------------------------------------------------------------------------------

def test_gap_when_retention_passed_while_down_then_told_until_accepted(broker, daemon, work):
    topic = broker.create("hps_et.gap.a", 1)
    one = daemon(config_of(work, broker, "gap"))
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "gap")
    one.stop()
    broker.write(topic, [keyed(2, 102), keyed(3, 103), keyed(4, 104)])
    broker.drop(topic, 0, 3)
    one.restart()
    until(lambda: states(one, "gap") == {("a", 0): "gap"}, "the gap")
    assert "retention" in updates(one, "gap")["partitions"][0]["reason"]
    assert one.metrics()[f'hpsd_update_gap{{topic="{topic}",partition="0"}}'] == 1
    assert values(one.stub(), "gap", "a", [1, 4]) == {1: 101, 4: 4}  # it serves on
    assert "stopped at a gap" in wait_now(one, "gap", code=5)
    one.ctl("updates", "accept-gap", "--model", "gap")
    wait_now(one, "gap")
    assert values(one.stub(), "gap", "a", [2, 4]) == {2: 2, 4: 104}
    assert one.metrics()[f'hpsd_update_gap{{topic="{topic}",partition="0"}}'] == 0


def test_gap_when_topic_is_another_that_has_grown_then_told_until_a_seek(broker, daemon, work):
    topic = broker.create("hps_et.anew.a", 1)
    one = daemon(config_of(work, broker, "anew"))
    broker.write(topic, [keyed(1, 101), keyed(2, 102)])
    wait_now(one, "anew")
    one.stop()
    broker.recreate(topic, 1)
    broker.write(topic, [keyed(3, 3003), keyed(4, 3004), keyed(5, 3005), keyed(6, 3006)])
    one.restart()
    until(lambda: states(one, "anew") == {("a", 0): "gap"}, "the gap")
    assert values(one.stub(), "anew", "a", [2, 5]) == {2: 102, 5: 5}
    one.seek("--topic", topic, "--to", "earliest")
    wait_now(one, "anew")
    assert values(one.stub(), "anew", "a", [3, 6]) == {3: 3003, 6: 3006}


# ---- the operator --------------------------------------------------------------------------------------

def test_pause_and_resume_when_asked_then_updates_stop_and_go_on(broker, daemon, work):
    topic = broker.create("hps_et.ops.a", 1)
    one = daemon(config_of(work, broker, "ops"))
    until(lambda: states(one, "ops") == {("a", 0): "running"}, "the partition")
    one.ctl("updates", "pause", "--model", "ops")
    broker.write(topic, [keyed(1, 101)])
    for what in ("now", f"{topic}:0:0"):
        said = one.ctl("--timeout", PATIENCE_S, "wait-for", what, "--model", "ops", code=5)
        assert f"partition 0 of {topic} is paused" in said and "hpsctl updates resume" in said
    assert values(one.stub(), "ops", "a", [1]) == {1: 1}
    said = one.seek("--to", "earliest", "--topic", topic)
    assert f"1 of them is paused and stays paused; to continue: hpsctl updates resume --topic {topic}" in said
    assert states(one, "ops") == {("a", 0): "paused"}
    one.kill()
    one.restart()
    until(lambda: states(one, "ops") == {("a", 0): "paused"}, "the partition")
    one.ctl("updates", "resume", "--model", "ops")
    one.ctl("--timeout", PATIENCE_S, "wait-for", f"{topic}:0:0")
    assert values(one.stub(), "ops", "a", [1]) == {1: 101}
    one.ctl("updates", "seek", "--to", "99", code=2)
    one.ctl("updates", "seek", "--to", "99", "--all", code=1)
    one.ctl("updates", "accept-gap", "--all", code=1)
    one.ctl("updates", "pause", "--model", "ghost", code=1)
    one.ctl("wait-for", "nonsense", code=2)
    one.ctl("wait-for", f"{topic}:0:{2**63 - 1}", code=2)  # there is none behind it


def test_wait_for_now_when_transactions_end_the_log_then_they_are_not_waited_for(broker, daemon, work):
    topic = broker.create("hps_et.txn.a", 1)
    one = daemon(config_of(work, broker, "txn"))
    producer = broker.kafka().Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "txn"})
    producer.init_transactions(PATIENCE_S)
    for value, commit in ((101, True), (102, False)):
        producer.begin_transaction()
        producer.produce(topic, **keyed(1, value))
        assert producer.flush(PATIENCE_S) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
    wait_now(one, "txn")
    assert values(one.stub(), "txn", "a", [1]) == {1: 101}
    partition = updates(one, "txn")["partitions"][0]
    assert int(partition["offset"]) == int(partition["end_offset"]) == 4  # two records, two markers


def test_wait_for_now_when_a_transaction_is_open_then_it_is_waited_for(broker, daemon, work):
    """What it has is in the log, and nobody knows whether it is to be seen."""
    topic = broker.create("hps_et.open.a", 1)
    one = daemon(config_of(work, broker, "open"))
    producer = broker.kafka().Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "open"})
    producer.init_transactions(PATIENCE_S)
    wait_now(one, "open")
    producer.begin_transaction()
    producer.produce(topic, **keyed(1, 101))
    assert producer.flush(PATIENCE_S) == 0
    said = one.ctl("--timeout", 0.5, "wait-for", "now", "--model", "open", code=4)
    assert f"partition 0 of {topic}" in said, said
    producer.commit_transaction(PATIENCE_S)
    wait_now(one, "open")
    assert values(one.stub(), "open", "a", [1]) == {1: 101}


def test_wait_for_now_when_the_model_has_no_topic_then_said_at_once(broker, daemon, work):
    one = daemon(config_of(work, broker, "bare"))
    until(lambda: updates(one, "bare").get("connected"), "the broker")
    said = one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "bare", code=5)
    assert 'model "bare" has no topic hps_et.bare or hps_et.bare.<table>' in said
    assert "no topic hps_et.bare or" in one.ctl("updates", "--model", "bare")
    said = one.ctl("--timeout", 0.5, "wait-for", "hps_et.bare.a:0:0", code=4)
    assert "topic hps_et.bare.a is not read" in said
    topic = broker.create("hps_et.bare.a", 1)  # it is found as it is asked for
    wait_now(one, "bare")
    assert states(one, "bare") == {("a", 0): "running"}
    broker.write(topic, [keyed(1, 101)])
    one.ctl("--timeout", PATIENCE_S, "wait-for", f"{topic}:0:0")
    assert values(one.stub(), "bare", "a", [1]) == {1: 101}


def test_rate_when_limited_then_a_backlog_waits_until_a_reload_lets_it_go(broker, daemon, work):
    topic = broker.create("hps_et.slow.a", 1)
    broker.write(topic, [keyed(i % KEYS, i) for i in range(20000)])
    config = config_of(work, broker, "slow", source={"max_rows_per_s": 10})  # that would take half an hour
    one = daemon(config)
    until(lambda: one.metrics().get('hpsd_update_throttled_batches_total{model="slow"}', 0) > 0, "the limit")
    config["update_source"]["max_rows_per_s"] = 0
    one.write_config(config)
    one.send(signal.SIGHUP)
    wait_now(one, "slow")
    assert values(one.stub(), "slow", "a", [19999 % KEYS]) == {19999 % KEYS: 19999}


def test_reply_when_updated_then_says_how_fresh_it_is(broker, daemon, work):
    topic = broker.create("hps_et.fresh.a", 1)
    one = daemon(config_of(work, broker, "fresh"))
    broker.write(topic, [packed({"a": ({1: 101}, [])}, event_time_unix_ms=1700000000123)])
    wait_now(one, "fresh")
    query = pb.TableQuery(table="a", keys=key_bytes([1]))
    reply = one.stub().Lookup(pb.LookupRequest(model="fresh", queries=[query], max_staleness_ms=60000),
                              timeout=PATIENCE_S)
    assert reply.event_time_unix_ms == 1700000000123
    assert reply.update_sequence > 0
    one.ctl("updates", "pause", "--model", "fresh")

    def is_refused():
        try:
            values(one.stub(), "fresh", "a", [1], max_staleness_ms=1)
        except grpc.RpcError as error:
            return error.code() == grpc.StatusCode.UNAVAILABLE
        return False

    until(is_refused, "rows to be too old")
    with refused(grpc.StatusCode.UNAVAILABLE, "max_staleness_ms"):
        values(one.stub(), "fresh", "a", [1], max_staleness_ms=1)


def test_commits_when_applied_then_the_tools_of_kafka_see_the_lag(broker, daemon, work):
    topic = broker.create("hps_et.lag.a", 1)
    one = daemon(config_of(work, broker, "lag", source={"group": "lag.tools"}))
    broker.write(topic, [keyed(1, 101), keyed(2, 102)])
    wait_now(one, "lag")
    consumer = broker.consumer(**{"group.id": "lag.tools"})
    place = broker.kafka().TopicPartition(topic, 0)

    def committed():
        try:
            return consumer.committed([place], timeout=PATIENCE_S)[0].offset
        except broker.kafka().KafkaException:  # the group's coordinator is still being found
            return None

    try:
        until(lambda: committed() == 2, "the commit")
    finally:
        consumer.close()


def freshness(daemon, model):
    """(number, sum in seconds) on /metrics"""
    metrics = daemon.metrics()
    return tuple(metrics.get(f'hpsd_update_freshness_seconds_{what}{{model="{model}"}}', 0) for what in ("count", "sum"))


def test_freshness_when_measured_from_outside_then_metrics_agree(broker, daemon, work):
    topic = broker.create("hps_et.measured.a", 1)
    one = daemon(config_of(work, broker, "measured"))
    stub = one.stub()
    until(lambda: states(one, "measured") == {("a", 0): "running"}, "the partition")
    for n in range(1, 6):
        # All by one clock: told is what lies between the last lookup without the row and the metric that has it.
        before_n, before_s = freshness(one, "measured")
        event_s = int(time.time() * 1000) / 1000 - 100 * n
        unseen_s = time.time()
        broker.write(topic, [{**keyed(n, 100 + n), "timestamp": round(event_s * 1000)}])

        def is_seen():
            nonlocal unseen_s
            asked_s = time.time()
            if values(stub, "measured", "a", [n])[n] == 100 + n:
                return True
            unseen_s = asked_s
            return False

        until(is_seen, "the row")
        until(lambda: freshness(one, "measured")[0] > before_n, "the metric")
        told_s = time.time()
        after_n, after_s = freshness(one, "measured")
        assert after_n == before_n + 1
        assert unseen_s - event_s - 0.002 <= after_s - before_s <= told_s - event_s + 0.002
    ahead = round(time.time() * 1000) + 3600 * 1000
    broker.write(topic, [{**keyed(6, 106), "timestamp": ahead}])
    wait_now(one, "measured")
    assert freshness(one, "measured") == (6, pytest.approx(after_s))


def test_lag_when_measured_from_outside_then_metrics_agree(broker, daemon, work):
    topic = broker.create("hps_et.behind-by.a", 2)
    one = daemon(config_of(work, broker, "behind-by"))
    written_s = time.time()
    broker.write(topic, [{**keyed(key, 100 + key), "partition": key % 2} for key in range(5)])
    wait_now(one, "behind-by")
    one.ctl("updates", "pause", "--model", "behind-by")
    paused_s = time.time()
    broker.write(topic, [{**keyed(key, 200 + key), "partition": key % 3 % 2} for key in range(20)])

    def lags():
        """{partition: (told, what the broker has behind what was applied)}"""
        metrics, offsets = one.metrics(), {int(p.get("partition", 0)): int(p["offset"])
                                           for p in updates(one, "behind-by")["partitions"]}
        return {i: (metrics[f'hpsd_update_lag_records{{topic="{topic}",partition="{i}"}}'], high - offsets[i])
                for i, (_, high) in broker.offsets(topic).items()}

    def agree():
        found = lags()
        return all(told == outside for told, outside in found.values()) and found

    assert sorted(outside for _, outside in until(agree, "the lag to be told").values()) == [7, 13]
    asked_s = time.time()
    metrics = one.metrics()
    old_s = [metrics['hpsd_update_staleness_seconds{model="behind-by"}'],
             *(metrics[f'hpsd_update_lag_seconds{{topic="{topic}",partition="{i}"}}'] for i in range(2))]
    assert all(asked_s - paused_s - 0.002 <= one_s <= time.time() - written_s + 0.002 for one_s in old_s), old_s
    one.ctl("updates", "resume", "--model", "behind-by")
    wait_now(one, "behind-by")
    assert set(lags().values()) == {(0, 0)}


def test_transactions_when_their_markers_are_the_last_then_nothing_lags(broker, daemon, work):
    kafka = broker.kafka()
    topic = broker.create("hps_et.marked.a", 1)
    one = daemon(config_of(work, broker, "marked"))
    producer = kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "marked"})
    producer.init_transactions(PATIENCE_S)
    for key, commit in ((1, True), (2, False)):
        producer.begin_transaction()
        record = keyed(key, 100 + key)
        producer.produce(topic, key=record["key"], value=record["value"])
        assert producer.flush(PATIENCE_S) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
    until(lambda: broker.offsets(topic)[0] == (0, 4), "the marker, which is written behind the answer")
    wait_now(one, "marked")
    assert values(one.stub(), "marked", "a", [1, 2]) == {1: 101, 2: 2}
    assert one.metrics()[f'hpsd_update_lag_records{{topic="{topic}",partition="0"}}'] == 0
    one.kill()
    one.restart()
    broker.write(topic, [{**keyed(3, 103), "partition": 0}])
    wait_now(one, "marked")
    assert states(one, "marked")[("a", 0)] == "running"
    assert values(one.stub(), "marked", "a", [1, 2, 3]) == {1: 101, 2: 2, 3: 103}


# ---- versions ------------------------------------------------------------------------------------------

def test_versions_when_of_one_lineage_then_both_follow_and_names_are_obeyed(broker, daemon, work):
    topic = broker.create("hps_et.two.a", 1)
    config = config_of(work, broker, "two")
    one = daemon(config)
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "two")
    one.load("two", f"{work}/files-two", version=2)
    broker.write(topic, [keyed(2, 102), records.for_version(keyed(3, 103), 2)])
    for version in (1, 2):
        one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--version", version)
    stub = one.stub()
    assert values(stub, "two", "a", [1, 2, 3], version=1) == {1: 101, 2: 102, 3: 3}
    assert values(stub, "two", "a", [1, 2, 3], version=2) == {1: 101, 2: 102, 3: 103}
    one.ctl("activate", "two", "2")
    one.ctl("unload", "two", "1")
    broker.write(topic, [keyed(4, 104)])
    wait_now(one, "two")
    assert values(stub, "two", "a", [4]) == {4: 104}


def test_versions_when_another_lineage_is_active_then_the_old_one_is_frozen(broker, daemon, work):
    topic = broker.create("hps_et.lines.a", 1)
    one = daemon(config_of(work, broker, "lines"))
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "lines")
    one.load("lines", f"{work}/files-lines", version=2, lineage="other", activate=True)
    one.kill()  # what the switch froze may not be stored yet
    one.restart()
    until(lambda: updates(one, "lines", 1).get("frozen"), "the old version to be frozen")
    assert 'version 1 of model "lines" is frozen' in one.ctl("wait-for", "now", "--version", "1", code=5)
    broker.write(topic, [keyed(2, 102)])
    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--version", "2")
    until(lambda: updates(one, "lines", 1)["partitions"][0]["offset"] == 2, "the record to be passed over")
    stub = one.stub()
    assert values(stub, "lines", "a", [1, 2], version=1) == {1: 101, 2: 2}
    assert values(stub, "lines", "a", [1, 2], version=2) == {1: 101, 2: 102}
    one.ctl("--timeout", PATIENCE_S, "wait-for", f"{topic}:0:0", "--version", "1")
    assert "skipped" in one.ctl("wait-for", f"{topic}:0:1", "--version", "1", code=5)
    said = one.ctl("rollback", "lines")  # now both of them are
    assert 'warning: version 1 of model "lines" is frozen' in said
    assert "hpsctl updates seek --model lines --version 1" in said
    assert 'version 1 of model "lines" is frozen' in one.ctl("wait-for", "now", code=5)
    until(lambda: [version["partitions"][0]["state"] for version in
                   one.ctl("updates", "--model", "lines", "-o", "json")[0]["versions"]] == ["frozen", "frozen"], "both")
    one.kill()
    one.restart()
    assert updates(one, "lines", 1).get("frozen")
    one.seek("--model", "lines", "--version", "1", "--to", "earliest")
    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--version", "1")
    assert values(one.stub(), "lines", "a", [1, 2], version=1) == {1: 101, 2: 102}


def test_activate_when_wait_for_calls_the_version_visible_then_it_is_let_in_and_only_then(broker, daemon, work):
    topic = broker.create("hps_et.behind.a", 1)
    one = daemon(config_of(work, broker, "behind", server={"activate_lag_max_s": 1}))
    broker.write(topic, [keyed(2, 102)])
    one.load("behind", f"{work}/files-behind", version=2)

    def wait_for(code=0):
        return one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "behind", "--version", "2", code=code)

    def is_behind():
        versions = {n: int(updates(one, "behind", n)["as_of_unix_ms"]) for n in (1, 2)}
        return versions[1] - versions[2] > 1500

    wait_for()
    one.ctl("updates", "pause", "--model", "behind", "--version", "2")
    until(is_behind, "version 2 to be behind")  # though it has read all there is
    assert "is paused" in wait_for(code=5)
    assert "activate_lag_max_s" in one.ctl("activate", "behind", "2", code=1)
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "behind")
    assert "activate_lag_max_s" in one.ctl("activate", "behind", "2", code=1)
    one.ctl("updates", "resume", "--model", "behind", "--version", "2")
    wait_for()
    assert "warning" not in one.ctl("activate", "behind", "2")
    assert values(one.stub(), "behind", "a", [1, 2]) == {1: 101, 2: 102}
    last = one.load("behind", f"{work}/files-behind", version=3, activate=True)
    assert last.activated
    assert values(one.stub(), "behind", "a", [1]) == {1: 101}  # it had the update when it took over


def test_load_when_it_waits_for_its_updates_then_others_do_not_wait_for_it(broker, daemon, work):
    topic = broker.create("hps_et.queue.a", 1)
    one = daemon(config_of(work, broker, "queue"))
    broker.write(topic, [keyed(1, 101)])
    wait_now(one, "queue")
    second, third = f"{work}/files-queue/2", f"{work}/files-queue/3"
    for table in tables_of("ab"):
        table.save(second)
        table.save(third)
    with open(f"{second}/manifest.json", "w", encoding="utf-8") as f:
        json.dump({"tables": [{"name": "a"}, {"name": "b"}], "start_positions": [
            {"cluster": "another", "topic": topic, "partition": 0, "offset": 0}]}, f)
    done = []
    waiting = threading.Thread(target=lambda: done.append(one.load("queue", second, version=2, activate=True)))
    waiting.start()
    try:
        until(lambda: one.versions("queue").get(2) == "resident", "version 2")
        assert one.load("other", third).activated
        assert not done
        until(lambda: updates(one, "queue", 2)["partitions"][0]["state"] == "gap", "the gap of version 2")
        one.ctl("updates", "accept-gap", "--model", "queue", "--version", "2")
    finally:
        waiting.join()
    assert done[0].activated
    assert values(one.stub(), "queue", "a", [1]) == {1: 101}


# ---- without a persistent store ------------------------------------------------------------------------

def test_memory_when_restarted_then_the_log_is_read_anew(broker, daemon, work):
    topic = broker.create("hps_et.memory.a", 1)
    one = daemon(config_of(work, broker, "memory", durable=False))
    broker.write(topic, [keyed(1, 101), keyed(2, None)])
    wait_now(one, "memory")
    assert values(one.stub(), "memory", "a", [1, 2]) == {1: 101, 2: -1}
    one.stop()
    one.restart()
    wait_now(one, "memory")
    assert values(one.stub(), "memory", "a", [1, 2]) == {1: 101, 2: -1}
