# SPDX-License-Identifier: Apache-2.0
"""Updates of tables of every stored type, through a real Kafka broker: rows in FP32, which hpsd converts once, and
rows as the table stores them, in every tier to the byte; what is refused, and why; and kill -9 in mid-stream.

What rows must be is NumPy's conversion (tests/lib/dtypes.py). Records are written by a stock client.
"""
import os

import numpy as np
import pytest

import dtypes
import redis
from rig import (FP32, PATIENCE_S, Table, admin_pb, default_config, key_bytes, model_config, pb, records, until)
from test_updates import wait_now

DIM = 5  # odd, so that scales, and the rows behind them, lie at any address
KEYS = 50
NAMES = {dtypes.NAMES[dtype]: dtype for dtype in dtypes.STORED}


def rows_of(n, seed):
    """float32 of a magnitude that halves can hold."""
    return (np.random.default_rng(seed).normal(size=(n, DIM)) * 10).astype("<f4")


class Content:
    """What each table should have: {key: bytes of the stored row}."""

    def __init__(self):
        self.rows, self.stored = {}, {}

    def files(self, work):
        """Paths of tables of FP32 rows, which are converted at load."""
        paths = []
        for number, (name, dtype) in enumerate(NAMES.items()):
            table = Table(name, np.arange(KEYS), rows_of(KEYS, number))
            paths.append(table.save(f"{work}/files"))
            self.stored[name] = dict(enumerate(row.tobytes() for row in dtypes.stored(table.rows, dtype)))
        return paths

    def put(self, name, pairs):
        """Pairs of key and FP32 row."""
        rows = dtypes.stored(np.array([row for _, row in pairs]), NAMES[name])
        self.stored[name].update((key, row.tobytes()) for (key, _), row in zip(pairs, rows))


def config_of(work, broker, content, model, **more):
    paths = content.files(work)
    return default_config(
        [model_config(model, paths, [DIM] * len(NAMES), list(NAMES), row_dtype=list(NAMES))],
        update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap, "start": "earliest",
                       "metadata_refresh_interval_ms": 200, "dead_letter_topic": f"{model}.letters"}, **more)


def native(key, row):
    """A keyed record of a row as it is stored."""
    return {"key": key_bytes([key]), "value": row}


def packed(name, dtype, pairs, deletes=()):
    """Pairs of key and row bytes."""
    batch = records.update_pb.UpdateBatch()
    batch.tables.add(table=name, data_type=dtype, keys=key_bytes([key for key, _ in pairs]),
                     rows=b"".join(row for _, row in pairs), deletes=key_bytes(list(deletes)))
    return {"key": None, "value": b"HPS1\1\0\0\0" + batch.SerializeToString()}


def check(daemon, model, content):
    """Every key by a lookup, and a few of them in every tier."""
    stub, admin = daemon.stub(), daemon.admin_stub()
    for name, dtype in NAMES.items():
        keys = sorted(content.stored[name])
        query = pb.TableQuery(table=name, keys=key_bytes(keys))
        reply = stub.Lookup(pb.LookupRequest(model=model, queries=[query], output_type=FP32), timeout=PATIENCE_S)
        got = np.frombuffer(reply.results[0].rows, "<f4").reshape(-1, DIM)
        wanted = dtypes.values(np.frombuffer(b"".join(content.stored[name][key] for key in keys), "u1"), dtype, DIM)
        assert reply.results[0].unknown_key_count == 0
        assert [key for key, a, b in zip(keys, got, wanted) if a.tobytes() != b.tobytes()] == [], name
        for key in keys[:3] + keys[-12::4]:
            tiers = admin.ExplainKey(admin_pb.ExplainKeyRequest(model=model, table=name, key=key),
                                     timeout=PATIENCE_S).tiers
            found = {tier.tier: tier.row for tier in tiers if tier.found}
            assert "rocksdb" in found and set(found.values()) == {content.stored[name][key]}, (name, key, found)


def odd_row(name, seed):
    """A stored row that no conversion of ours gives: of an INT8 one u8, scale and bias go as they are."""
    rng = np.random.default_rng(seed)
    dtype = NAMES[name]
    if dtype in (dtypes.INT8_F32, dtypes.INT8_F16):
        return rng.bytes(DIM) + np.array([-0.75, 3.5], "<f4" if dtype == dtypes.INT8_F32 else "<f2").tobytes()
    return dtypes.stored(rows_of(1, seed), dtype).tobytes()


def write_all(broker, model, content, name, first):
    """Records of all forms from key `first` on, in FP32 and as the table has its rows."""
    dtype, rows = NAMES[name], rows_of(4, first)
    own = [odd_row(name, first + i) for i in range(3)]
    broker.write(f"hps_et.{model}.{name}",
                 [{**records.keyed(first, rows[0]), "headers": [("hps-dtype", b"fp32")]},
                  {**native(first + 4, own[0]), "headers": [("hps-dtype", name.encode())]},
                  records.hctr([(first + 1, rows[1]), (first + 2, rows[2])])])
    broker.write(f"hps_et.{model}", [packed(name, dtypes.FP32, [(first + 3, rows[3].tobytes())]),
                                     packed(name, dtype, [(first + 5, own[1]), (first + 6, own[2])])])
    content.put(name, [(first + i, row) for i, row in enumerate(rows)])
    content.stored[name].update({first + 4 + i: row for i, row in enumerate(own)})


def write_bad(broker, model, name, key):
    """Records that the table refuses; the reasons."""
    dtype, reasons = NAMES[name], []
    own = dtypes.stored(rows_of(1, key), dtype).tobytes()
    bad, wide = [native(key, own + b"\0"), native(key, own[:-1])], []
    reasons += ["width"] * 2
    if dtype != FP32:
        bad.append({"key": None, "value": b"HCTR" + len(own).to_bytes(4, "little") + key_bytes([key]) + own})
        bad.append(records.keyed(key, np.full(DIM, np.inf, "<f4")))
        reasons += ["width", "not_finite"]
    if dtype in (dtypes.FP16, dtypes.INT8_F16):
        bad.append(records.keyed(key, np.full(DIM, 1e6, "<f4")))
        reasons.append("not_finite")
    if dtype in (dtypes.INT8_F32, dtypes.INT8_F16):
        bad.append(native(key, own[:-1] + b"\x7f" if dtype == dtypes.INT8_F16 else own[:-2] + b"\x80\x7f"))
        reasons.append("not_finite")
    for header in ("fp16" if name == "bf16" else "bf16", name + " ", ""):
        bad.append({**native(key, own), "headers": [("hps-dtype", header.encode())]})
        reasons.append("dtype")
    for other in dtypes.STORED:
        if other not in (FP32, dtype):
            wide.append(packed(name, other, [(key, dtypes.stored(rows_of(1, key), other).tobytes())]))
            reasons.append("dtype")
    broker.write(f"hps_et.{model}.{name}", bad)
    broker.write(f"hps_et.{model}", wide)
    return reasons


def test_records_when_tables_have_any_type_then_converted_once_or_as_they_are(broker, daemon, work):
    model, content = "types", Content()
    for name in NAMES:
        broker.create(f"hps_et.{model}.{name}", 1)
    broker.create(f"hps_et.{model}", 1)
    letters = broker.create(f"{model}.letters", 1)
    one = daemon(config_of(work, broker, content, model))
    check(one, model, content)
    reasons = []
    for name in NAMES:
        write_all(broker, model, content, name, 10)
        reasons += write_bad(broker, model, name, 20)
        write_all(broker, model, content, name, 1000)
    assert "no row has it" in wait_now(one, model, "--allow-refused")
    assert "no row has it" in wait_now(one, model, code=5)
    check(one, model, content)
    told = [dict(message.headers())["hps-reason"].decode() for message in broker.read(letters)]
    assert sorted(told) == sorted(reasons)
    rejected = {key: value for key, value in one.metrics().items() if "update_records_rejected_total" in key}
    assert rejected == {f'hpsd_update_records_rejected_total{{model="{model}",reason="{reason}"}}': reasons.count(reason)
                        for reason in set(reasons)}
    for first in range(2000, 2400, 20):
        for name in NAMES:
            write_all(broker, model, content, name, first)
        if first == 2200:
            one.kill()
            one.start()
    wait_now(one, model, "--allow-refused")
    check(one, model, content)
    stored = content.stored["int8_rowwise_f16"][1004]
    first = dtypes.values(np.frombuffer(stored, "u1"), dtypes.INT8_F16, DIM)[0, 0]
    assert f"{first:g}" in one.ctl("explain", model, "int8_rowwise_f16", "1004")  # values, not u8


@pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")
def test_redis_when_daemons_have_other_types_then_they_share_nothing_and_lost_rows_come_back(broker, daemon, work):
    model, content = "shared-types", Content()
    for name in NAMES:
        broker.create(f"hps_et.{model}.{name}", 1)
    broker.create(f"hps_et.{model}", 1)
    broker.create(f"{model}.letters", 1)
    with redis.Redis(os.path.join(work, "redis")) as server:
        volatile = {"type": "redis_cluster", "address": server.address, "num_partitions": 4,
                    "cache_missed_embeddings": True}
        config = config_of(work, broker, content, model, volatile_db=volatile)
        one = daemon(config, state="one")
        wide = {**config, "models": [{**config["models"][0], "row_dtype": "fp32"}]}
        two = daemon(wide, state="two")
        for name in NAMES:
            broker.write(f"hps_et.{model}.{name}", [records.keyed(key, row) for key, row in enumerate(rows_of(KEYS, 99))])
            content.put(name, list(enumerate(rows_of(KEYS, 99))))
        for each in (one, two):
            wait_now(each, model)
        check(one, model, content)
        loads = {name.split("{")[1].split("}")[0].split("/")[2] for name in server.ask("KEYS", "hpsd:*")}
        assert len(loads) == 2, loads  # and so no shard of one is the other's
        reply = two.stub().Lookup(pb.LookupRequest(model=model, queries=[pb.TableQuery(
            table=name, keys=key_bytes(range(KEYS))) for name in NAMES]), timeout=PATIENCE_S)
        assert all(result.rows == rows_of(KEYS, 99).tobytes() for result in reply.results)
        server.ask("FLUSHALL")
        for name in NAMES:
            broker.write(f"hps_et.{model}.{name}", [records.keyed(7, np.full(DIM, 7, "<f4"))])
            content.put(name, [(7, np.full(DIM, 7, "<f4"))])
        wait_now(one, model)
        check(one, model, content)
        until(lambda: (check(one, model, content), server.ask("KEYS", "hpsd:*"))[1], "rows to be in Redis again")
