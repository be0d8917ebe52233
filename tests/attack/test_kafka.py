# SPDX-License-Identifier: Apache-2.0
"""Records in the log of updates that no trainer writes. They are counted and left out, none of them in part; lookups go
on, and a good record behind them is applied.
"""
import random
import struct

import pytest
import wire
from rig import kafka, records, until
from target import DIM, Target, many, scratch

pytestmark = pytest.mark.skipif(kafka.missing() is not None, reason=kafka.missing() or "")

ROW = b"\0" * 4 * DIM
KEY = struct.pack("<q", 1)
MIB = 1 << 20


def hctr(size, body):
    return {"key": None, "value": b"HCTR" + struct.pack("<I", size) + body}


def packed(message, version=1):
    return {"key": None, "value": b"HPS1" + struct.pack("<I", version) + message}


def table(name, keys, rows):
    """A table of an UpdateBatch."""
    return wire.text(3, wire.text(1, name) + wire.text(2, keys) + wire.text(15, rows))


BAD = {
    "a key of 7 bytes": {"key": b"1234567", "value": ROW},
    "half of a row": {"key": KEY, "value": ROW[:-4]},
    "more than a row": {"key": KEY, "value": ROW + b"more"},
    "rows that are no numbers": {"key": KEY, "value": struct.pack("<f", float("nan")) * DIM},
    "neither key nor value": {"key": None, "value": None},
    "nothing": {"key": None, "value": b""},
    "magic alone": {"key": None, "value": b"HCTR"},
    "rows of 2^32 bytes": hctr(2**32 - 1, KEY + ROW),
    "rows of no bytes": hctr(0, KEY),
    "rows that are cut": hctr(4 * DIM, KEY + ROW[:-1]),
    "a format of the future": packed(b"", version=2**31),
    "a length beyond the end": packed(b"\x0a\xff\xff\xff\xff\x0f"),
    "fields in fields": packed(b"\x0a\x7f" * 1000),
    "a table that is not there": packed(table("none", KEY, ROW)),
    "more keys than rows": packed(table("a", KEY * 1000, ROW)),
    "noise": {"key": None, "value": random.Random(1).randbytes(5000)},
    "a name that turns text around": packed(table("\u202e\x1b[2J", KEY, ROW)),
    "a header that is none": {"key": KEY, "value": ROW, "headers": [("hps-version", b"1")]},
    "large noise": {"key": None, "value": b"HPS1\x01\0\0\0" + random.Random(2).randbytes(MIB // 2)},
}


@pytest.fixture(name="broker", scope="module")
def broker_of_the_module():
    with scratch() as path, kafka.Broker(path) as broker:
        yield broker


@pytest.fixture(name="shared", scope="module")
def target_with_updates(broker):
    broker.create("hps_et.m.a", 1)
    broker.create("hps_et.m", 1)
    with scratch() as work:
        target = Target(work, update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap,
                                             "metadata_refresh_interval_ms": 200, "start": "earliest"})
        yield target
        target.close()


def read(target):
    return target.metric("update_records_total")


@pytest.mark.parametrize("topic", ["hps_et.m.a", "hps_et.m"])
def test_records_when_bad_then_each_is_left_out_and_lookups_go_on(target, broker, topic):
    before, already = target.metric("update_records_rejected_total"), read(target)
    bad = list(BAD.values()) * many(1, 50)
    broker.write(topic, bad)
    until(lambda: read(target) >= already + len(bad), "all records to be read")
    rejected = target.metric("update_records_rejected_total") - before
    assert 0 < rejected <= len(bad)
    applied = sum(value for name, value in target.daemon.metrics().items() if name.startswith("hpsd_update_rows_total"))
    assert applied == 0, f"{len(bad) - rejected} records were taken"
    log = target.daemon.log()
    assert "\u202e" not in log and "\x1b" not in log


def test_record_when_good_and_behind_bad_ones_then_applied(target, broker):
    already = read(target)
    absent = next(key for key in range(10**9) if key not in target.table.at)
    broker.write("hps_et.m.a", [BAD["noise"], records.keyed(absent, target.table.rows[0])])
    until(lambda: read(target) == already + 2, "both records to be read")
    until(lambda: target.metric("update_rows_total") == 1, "the row")
