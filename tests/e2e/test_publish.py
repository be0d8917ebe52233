# SPDX-License-Identifier: Apache-2.0
"""hps-publish with a real broker. Records are read with confluent-kafka and parsed here."""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest

import dtypes
import ports
from made_up import Admin
from rig import BIN, PATIENCE_S, ROOT, Table, default_config, generate, kafka, key_bytes, model_config, pb, records

pytestmark = pytest.mark.one_thread
PUBLISH = os.path.join(BIN, "hps-publish")


def publish(broker, *args, code=0, lines=None):
    """Run hps-publish; (stdout, stderr)."""
    address = ["--bootstrap-server", broker if isinstance(broker, str) else broker.bootstrap] if broker else []
    done = subprocess.run([PUBLISH, *address, "--model", "m", *map(str, args)], input=lines or "", text=True,
                          capture_output=True, timeout=PATIENCE_S * 4)
    assert done.returncode == code, f"exit {done.returncode}, expected {code}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def murmur2_partition(key, partitions):
    """Kafka's default partitioner, as Kafka's documentation describes it."""
    data, m, mask = key_of(key), 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    for k in struct.unpack("<2I", data):
        k = k * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    h = (h ^ h >> 13) * m & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


def key_of(key):
    return struct.pack("<q", int(key))


def replay(messages, table=None):
    """{key: row bytes} after all records of keyed or packed format, applied in order per partition."""
    rows = {}
    for message in messages:
        if message.key() is not None:
            key = struct.unpack("<q", message.key())[0]
            rows.pop(key, None)
            if message.value() is not None:
                rows[key] = message.value()
            continue
        for update in records.unpacked(message.value()).tables:
            if table in (None, update.table):
                for key, row in records.unpacked_rows(update):
                    rows.pop(key, None)
                    if row is not None:
                        rows[key] = row
    return rows


def content(table):
    """{key: row bytes as float32}"""
    return {int(key): row.astype("<f4").tobytes() for key, row in zip(table.keys, table.rows)}


def changed(table, seed=5):
    """The table with some rows changed, some removed and some added."""
    rng = np.random.default_rng(seed)
    rows = table.rows.copy()
    rows[::3] += np.float32(1)
    keep = np.arange(len(table.keys)) % 7 != 0
    keys = np.concatenate([table.keys[keep], [123456789, -987654321]])
    rows = np.concatenate([rows[keep], np.float32([[7] * table.dim, [8] * table.dim])])
    order = rng.permutation(len(keys))
    return Table(table.name, keys[order], rows[order])


# ---- forms ------------------------------------------------------------------------------------------

def test_keyed_when_from_npy_then_rows_are_in_the_partitions_of_the_default_partitioner(broker, work):
    topic = broker.create("hps_et.m.plain", 3)
    rows = np.arange(300 * 4, dtype="<f4").reshape(300, 4)
    np.save(os.path.join(work, "plain.npy"), rows)
    out, _ = publish(broker, "--from", os.path.join(work, "plain.npy"), "-o", "json")
    found = broker.read(topic)
    assert {m.key(): m.value() for m in found} == {key_of(i): rows[i].tobytes() for i in range(300)}
    assert len(found) == 300
    for message in found:
        key = struct.unpack("<q", message.key())[0]
        assert message.partition() == murmur2_partition(key, 3)
        assert message.headers() is None
    report = json.loads(out)
    assert (report["rows"], report["deletes"], report["records"], report["bytes"]) == (300, 0, 300, 300 * 24)
    assert {(p["topic"], p["partition"]): p["offset"] for p in report["positions"]} == {
        (topic, i): high - 1 for i, (_, high) in broker.offsets(topic).items()}


def test_keyed_when_published_then_partitions_equal_librdkafkas_murmur2(broker):
    ours, theirs = broker.create("hps_et.m.ours", 5), broker.create("theirs", 5)
    keys = [0, 1, -1, 2**63 - 1, -2**63, 10**12, 77]
    publish(broker, "--table", "ours", "-", lines="".join(f"{key} 1\n" for key in keys))
    broker.write(theirs, [(key_of(key), struct.pack("<f", 1)) for key in keys], partitioner="murmur2_random")
    where = [{m.key(): m.partition() for m in broker.read(topic)} for topic in (ours, theirs)]
    assert where[0] == where[1]
    assert len(where[0]) == len(keys)


@pytest.mark.parametrize("key_bytes", (8, 4))
def test_hctr_when_from_a_model_directory_then_batches_are_as_hps_reads_them(broker, work, key_bytes):
    model = os.path.join(work, "model")
    tables = []
    for number in range(2):
        keys = np.random.default_rng(number).permutation(1000).astype("<i8") * 4000000
        rows = np.random.default_rng(9).normal(size=(1000, 8)).astype("<f4")
        tables.append(Table(f"hctr{number}-{key_bytes}", keys, rows))
        tables[-1].save_hugectr(model)
        broker.create(f"hps_et.m.{tables[-1].name}", 2)
    publish(broker, "--from", model, "--format", "hctr", "--key-bytes", key_bytes, "--batch-bytes", "4KiB")
    for table in tables:
        found, messages = {}, broker.read(f"hps_et.m.{table.name}")
        for message in messages:
            assert message.key() is None
            assert len(message.value()) <= 4096
            for key, row in records.hctr_pairs(message.value(), "q" if key_bytes == 8 else "I"):
                assert message.partition() == murmur2_partition(key, 2)
                found[key] = row
        assert found == content(table)
        assert len(messages) < 30


def test_packed_when_from_float16_files_then_rows_are_unchanged(broker, work):
    topic = broker.create("hps_et.packed16", 2)
    table = Table.random("half", 500, 6, np.float16)
    publish(broker, "--model", "packed16", "--from", table.save(work), "--format", "packed", "--for-version", 9,
            "--batch-bytes", "2KiB", "--row-dtype", "fp16")
    found = broker.read(topic)
    assert len(found) > 2
    for message in found:
        batch = records.unpacked(message.value())
        assert message.key() is None and batch.version == 9 and batch.event_time_unix_ms == 0
        assert [(t.table, t.data_type, t.dim) for t in batch.tables] == [("half", 2, 6)]
    assert replay(found) == {int(k): r.astype("<f2").tobytes() for k, r in zip(table.keys, table.rows)}


def test_from_when_a_table_of_a_directory_is_named_then_only_it_is_published(broker, work):
    topic = broker.create("hps_et.m.feature_1", 1)
    generate(os.path.join(work, "g"), "--tables", 3, "--rows", 50, "--dim", 4, "--format", "npy")
    publish(broker, "--table", "feature_1", "--from", os.path.join(work, "g"))
    assert len(broker.read(topic)) == 50


# ---- difference, lines, deletes --------------------------------------------------------------------------

@pytest.mark.parametrize("form", ("keyed", "packed"))
def test_diff_when_applied_to_the_old_rows_then_they_equal_the_new_rows(broker, work, form):
    model = f"diff-{form}"
    old = [Table.random(name, 2000, 4, number=i) for i, name in enumerate(("a", "b"))]
    new = [changed(old[0]), old[1]]
    for table in old:
        table.save(os.path.join(work, "old"))
    new[0].save(os.path.join(work, "new"))
    new[1].save_hugectr(os.path.join(work, "new"))  # another file format is not a difference
    topics = {name: broker.create(f"hps_et.{model}.{name}", 2) for name in "ab"}
    topics[None] = broker.create(f"hps_et.{model}", 2)
    out, _ = publish(broker, "--model", model, "--diff", os.path.join(work, "old"), os.path.join(work, "new"),
                     "--format", form, "-o", "json")
    was, wanted = content(old[0]), content(new[0])
    n_changed = sum(was.get(key) != row for key, row in wanted.items())
    report = json.loads(out)
    assert report["rows"] == n_changed
    assert report["deletes"] == len(was.keys() - wanted.keys())
    messages = broker.read(topics["a" if form == "keyed" else None])
    state = dict(was)
    written = replay(messages, "a")
    gone = set(was) - set(wanted)
    assert not gone & set(written)
    state = {key: row for key, row in {**was, **written}.items() if key not in gone}
    assert state == wanted
    assert set(written) == {key for key, row in wanted.items() if was.get(key) != row}
    if form == "keyed":
        assert {struct.unpack("<q", m.key())[0] for m in messages if m.value() is None} == gone
        assert broker.read(topics["b"]) == []


def test_diff_when_tables_differ_then_refused_before_anything_is_sent(broker, work):
    Table.random("a", 10, 4).save(os.path.join(work, "old"))
    Table.random("c", 10, 4).save(os.path.join(work, "new"))
    _, error = publish(broker, "--diff", os.path.join(work, "old"), os.path.join(work, "new"), code=2)
    assert "table a" in error and "new version" in error
    Table.random("a", 10, 8).save(os.path.join(work, "wide"))
    broker.create("hps_et.m.a", 1)
    _, error = publish(broker, "--diff", os.path.join(work, "old"), os.path.join(work, "wide"), code=2)
    assert "4 values as fp32" in error and "8 as fp32" in error
    Table.random("a", 10, 4, np.float16).save(os.path.join(work, "half"))
    _, error = publish(broker, "--diff", os.path.join(work, "old"), os.path.join(work, "half"), code=2)
    assert "4 values as fp32" in error and "4 as fp16" in error and "load a new one" in error
    assert broker.read("hps_et.m.a") == []


def test_lines_when_piped_then_rows_and_deletes_are_published_in_order(broker):
    topics = [broker.create(f"hps_et.m.{name}", 1) for name in ("l1", "l2")]
    publish(broker, "-", "--for-version", 3, "--row-version", 2**64 - 1, lines=(
        "# a comment\n\nl1 5 1.5 -2\nl2 18446744073709551615 0.25\nl1\t5\tnull\nl1,6,1e-3,inf\n".replace("inf", "4")
        + "l2 -9223372036854775808 7"))
    found = [[(m.key(), m.value()) for m in broker.read(topic)] for topic in topics]
    assert found[0] == [(key_of(5), struct.pack("<2f", 1.5, -2)), (key_of(5), None),
                        (key_of(6), struct.pack("<2f", 1e-3, 4))]
    assert found[1] == [(key_of(-1), struct.pack("<f", 0.25)), (key_of(-2**63), struct.pack("<f", 7))]
    assert broker.read(topics[0])[0].headers() == [("hps-version", struct.pack("<q", 3)),
                                                   ("hps-row-version", struct.pack("<Q", 2**64 - 1))]


@pytest.mark.parametrize("form", ("keyed", "packed"))
def test_lines_when_row_dtype_is_set_then_rows_are_converted_as_by_numpy(broker, form):
    rows = np.random.default_rng(3).normal(size=(40, 3)).astype("<f4") * 100
    lines = "".join(f"{key} {' '.join(map(repr, row.tolist()))}\n" for key, row in enumerate(rows))
    for dtype, name in dtypes.NAMES.items():
        model = f"as-{form}-{name}"
        topic = broker.create(f"hps_et.{model}.t" if form == "keyed" else f"hps_et.{model}", 1)
        publish(broker, "--model", model, "-t", "t", "--format", form, "--row-dtype", name, "-", lines=lines)
        found = broker.read(topic)
        assert replay(found) == {key: row.tobytes() for key, row in enumerate(dtypes.stored(rows, dtype))}, name
        if form == "keyed":
            header = [("hps-dtype", name.encode())] if name != "fp32" else []
            assert all((m.headers() or []) == header for m in found), name
        else:
            assert [t.data_type for m in found for t in records.unpacked(m.value()).tables] == [dtype]
    _, error = publish(None, "--dry-run", "-t", "t", "--format", form, "--row-dtype", "fp16", "-", code=2,
                       lines="1 1 2 3\n2 1 70000 3\n")
    assert "line 2" in error and "fp16 cannot hold value 1" in error


def test_uint16_files_when_manifest_or_option_declares_bf16_then_published_else_refused(broker, work):
    """Publish the rows unchanged, converted as by numpy, and the difference of two directories."""
    rows = np.random.default_rng(4).normal(size=(50, 6)).astype("<f4")
    halves = dtypes.stored(rows, dtypes.BF16).view("<u2")
    for name, data in (("told", halves), ("bare", halves), ("next", np.where(np.arange(50)[:, None] == 7, 0, halves))):
        os.mkdir(f"{work}/{name}")
        np.save(f"{work}/{name}/t.npy", data.astype("<u2"))
        if name != "bare":
            with open(f"{work}/{name}/manifest.json", "w", encoding="utf-8") as f:
                json.dump({"tables": [{"name": "t", "dtype": "bf16"}]}, f)
    wide = dtypes.values(halves.view("u1"), dtypes.BF16, 6)
    for number, (args, sent) in enumerate((
            (("--from", f"{work}/told"), wide), (("--from", f"{work}/told", "--row-dtype", "bf16"), halves),
            (("--from", f"{work}/bare", "--row-dtype", "bf16"), halves),
            (("--from", f"{work}/bare/t.npy", "--row-dtype", "bf16"), halves))):
        topic = broker.create(f"hps_et.u2-{number}.t", 1)
        publish(broker, "--model", f"u2-{number}", *args)
        assert replay(broker.read(topic)) == {key: row.tobytes() for key, row in enumerate(sent)}, args
    topic = broker.create("hps_et.u2-diff.t", 1)
    publish(broker, "--model", "u2-diff", "--diff", f"{work}/told", f"{work}/next")
    assert replay(broker.read(topic)) == {7: bytes(24)}
    for args in (("--from", f"{work}/bare"), ("--from", f"{work}/bare", "--row-dtype", "fp16"),
                 ("--diff", f"{work}/told", f"{work}/bare")):
        _, error = publish(None, "--dry-run", *args, code=2)
        assert "t.npy: rows of uint16" in error and "manifest.json" in error and "row_dtype is bf16" in error, error


def test_lines_when_the_pipe_stays_open_then_complete_lines_are_published(broker):
    topic = broker.create("hps_et.m.live", 1)
    with subprocess.Popen([PUBLISH, "-b", broker.bootstrap, "-m", "m", "-t", "live", "-f", "hctr", "-"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for key in range(3):
            process.stdin.write(f"{key} 1 2\n")
            process.stdin.flush()
            kafka.until(lambda n=key: broker.offsets(topic)[0][1] == n + 1, "the line to be published")
        process.stdin.close()
        assert "published 3 rows and 0 deletes" in process.stdout.read()
        assert process.wait(PATIENCE_S) == 0


def test_lines_when_units_then_one_record_has_all_lines_up_to_commit(broker):
    topic = broker.create("hps_et.units", 1)
    publish(broker, "--model", "units", "--format", "packed", "--units", "-",
            lines="a 1 1 2\nb 7 3\na 2 null\ncommit\nb 7 4\ncommit\ncommit\n")
    batches = [records.unpacked(m.value()) for m in broker.read(topic)]
    assert [[(t.table, t.keys, t.deletes, t.rows) for t in b.tables] for b in batches] == [
        [("a", key_of(1), b"", struct.pack("<2f", 1, 2)), ("b", key_of(7), b"", struct.pack("<f", 3)),
         ("a", b"", key_of(2), b"")],
        [("b", key_of(7), b"", struct.pack("<f", 4))]]
    _, error = publish(broker, "--model", "units", "--format", "packed", "--units", "-", code=2,
                       lines="a 1 1 2\ncommit\na 2 1 2\na 3 x\ncommit\n")
    assert "line 4" in error
    assert len(broker.read(topic)) == 3  # the incomplete unit was not sent
    out, error = publish(broker, "--model", "units", "--format", "packed", "--units", "-", code=2,
                         lines="a 1 1 2\ncommit\n\na 2 1 2\nb 7 5\n")
    assert "published 1 rows" in out and 'line 4: the input ended before the "commit"' in error
    assert len(broker.read(topic)) == 4


def test_deletes_when_from_npy_or_text_then_tombstones_follow_the_rows(broker, work):
    topic = broker.create("hps_et.m.gone", 1)
    np.save(os.path.join(work, "keys.npy"), np.array([3, -1], "<i8"))
    with open(os.path.join(work, "keys.txt"), "w", encoding="utf-8") as f:
        f.write("4\n# no key\n5\n")
    np.save(os.path.join(work, "narrow.npy"), np.array([6, -2], "<i4"))
    publish(broker, "-t", "gone", "--deletes", os.path.join(work, "keys.npy"), "-", lines="3 1\n")
    publish(broker, "-t", "gone", "--deletes", os.path.join(work, "keys.txt"))
    publish(broker, "-t", "gone", "--deletes", os.path.join(work, "narrow.npy"))
    assert [(m.key(), m.value()) for m in broker.read(topic)] == [
        (key_of(3), struct.pack("<f", 1)), *((key_of(key), None) for key in (3, -1, 4, 5, 6, -2))]


def test_rate_and_properties_when_set_then_all_rows_are_published(broker, work):
    topic = broker.create("hps_et.m.paced", 2)
    table = Table.random("paced", 400, 4)
    _, error = publish(broker, "--from", table.save(work), "--rate", 2000, "-X", "compression.type=gzip",
                       "-X", "linger.ms=0", "--progress")
    assert replay(broker.read(topic)) == content(table)
    assert "400 rows" in error and "100 %" in error


def test_example_when_run_then_its_records_equal_those_of_hps_publish(broker):
    topic, ours = broker.create("hps_et.stock.items", 3), broker.create("hps_et.m.items", 3)
    example = os.path.join(ROOT, "docs", "examples", "publish.py")
    done = subprocess.run([sys.executable, example, broker.bootstrap, "stock", "items"], capture_output=True,
                          text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = "".join(f"{key} {key} 0.5\n" for key in range(100)) + "7 null\n"
    publish(broker, "--table", "items", "-", lines=lines)
    found = [[(m.partition(), m.key(), m.value()) for m in broker.read(name)] for name in (topic, ours)]
    assert found[0] == found[1]


# ---- waiting until updates are visible -------------------------------------------------------------------

def test_wait_when_another_producer_writes_then_servers_are_queried_only_for_our_records(broker):
    topic = broker.create("hps_et.m.asked", 1)
    with Admin(tables=[("asked", 1, "FP32")]) as one, Admin(tables=[("asked", 1, "FP32")]) as other, subprocess.Popen(
            [PUBLISH, "-b", broker.bootstrap, "-m", "m", "-t", "asked", "--wait", "--wait-timeout", "9", "--addr", one.address,
             "--addr", other.address, "--for-version", "7", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True) as process:
        process.stdin.write("1 1\n")
        process.stdin.flush()
        kafka.until(lambda: broker.offsets(topic)[0][1] == 1, "the first row")
        broker.write(topic, [(key_of(9), b"")])  # a record of another producer, between ours
        _, error = process.communicate("2 2\n", timeout=PATIENCE_S)
        assert process.returncode == 0, error
    ready = {"model": "m", "version": 7, "goal": pb.WAIT_GOAL_READY, "names_version": True}
    for server in (one, other):
        assert 8000 < server.waited[-1].max_wait_ms <= 9000
        for request in server.waited:
            request.max_wait_ms = 0
        assert server.waited == [
            pb.WaitForUpdatesRequest(**ready), pb.WaitForUpdatesRequest(**ready, topic=topic),
            pb.WaitForUpdatesRequest(model="m", version=7, goal=pb.WAIT_GOAL_RECORDS, names_version=True,
                                     records=[pb.UpdateRecords(topic=topic, first=[0, 2], last=[0, 2])],
                                     mark=pb.UpdateMark(instance=77, rejected=5))]


def test_wait_when_there_are_many_ranges_then_requests_have_at_most_64_kib(broker):
    tables = [f"pieces{i}_{'x' * 112}" for i in range(2)]  # long names, so that few partitions suffice
    topics = [broker.create(f"hps_et.m.{table}", 300) for table in tables]
    with Admin(tables=[(table, 1, "FP32") for table in tables]) as server:
        publish(broker, "-", "--wait", "--addr", server.address,
                lines="".join(f"{table} {key} 1\n" for key in range(3000) for table in tables))
    assert all(request.ByteSize() <= 64 * 1024 for request in server.waited)
    waits = [request.records for request in server.waited if request.goal == pb.WAIT_GOAL_RECORDS]
    assert len(waits) > 1
    asked = {(of.topic, of.partition): of.last[-1] + 1 for records in waits for of in records}
    assert asked == {(topic, partition): end for topic in topics
                     for partition, (_, end) in enumerate(broker.offsets(topic).values()) if end > 0}


@pytest.mark.parametrize("what, says, words", (
    ("frozen", dict(begin=("FROZEN", "version 1 is frozen")), ("version 1 is frozen",)),
    ("inactive", dict(begin=grpc.StatusCode.NOT_FOUND), ("made up",)),
    ("paused", dict(topic=("PAUSED", "partition 0 is paused")), ("partition 0 is paused",)),
    ("hidden", dict(topic=("NOT_YET", "it is not read")), ("it is not read",)),
    ("table", dict(tables=[]), ("no table 'refused-table'; its tables: t",)),
    ("width", dict(tables=[("refused-width", 2, "FP32")]), ("rows of 2 values", "got rows of 1")),
    ("keys", dict(), ("--key-bytes 8",)),
    ("type", dict(tables=[("refused-type", 1, "FP16")]), ("rows of fp16", "got rows of bf16", "--row-dtype fp32")),
))
def test_wait_when_a_server_would_reject_the_records_then_exit_1_and_none_is_sent(broker, what, says, words):
    table = f"refused-{what}"
    topic = broker.create(f"hps_et.m.{table}", 1)
    how = {"keys": ("-f", "hctr", "--key-bytes", 4), "type": ("--row-dtype", "bf16")}.get(what, ())
    with Admin(waits=lambda request: says.get("topic" if request.topic else "begin", ("VISIBLE", "")),
               tables=says.get("tables", [(table, 1, "FP32")])) as server:
        _, error = publish(broker, "-t", table, "-", *how, "--wait", "--addr", server.address, code=1, lines="1 1\n")
    assert server.address in error and all(word in error for word in words), error
    assert broker.read(topic) == []


def test_wait_when_one_of_many_tables_is_invalid_then_no_record_is_sent(broker, work):
    topics = [broker.create(f"hps_et.m.many-{name}", 1) for name in "ab"]
    for name in "ab":
        Table.random(f"many-{name}", 10, 4).save(f"{work}/old")
        Table.random(f"many-{name}", 10, 4, number=1).save(f"{work}/new")
    with Admin(tables=[("many-a", 4, "FP32"), ("many-b", 8, "FP32")]) as server:
        for how in (("--from", f"{work}/new"), ("--diff", f"{work}/old", f"{work}/new")):
            _, error = publish(broker, *how, "--wait", "--addr", server.address, code=1)
            assert "many-b" in error and "rows of 8 values" in error
        assert [broker.read(topic) for topic in topics] == [[], []]
        # A line names a table only when it is read. Rows before it have been sent, and the summary reports them.
        out, error = publish(broker, "-", "--wait", "--addr", server.address, code=1,
                             lines="many-a 1 1 2 3 4\nmany-b 1 1 2 3 4\nmany-a 2 1 2 3 4\n")
    assert "published 1 rows" in out and "line 2" in error and "many-b" in error
    assert len(broker.read(topics[0])) == 1


@pytest.mark.parametrize("said, code", (
    (("NOT_YET", "no route to host"), 4), (("REJECTED", "was refused"), 5), (("GAP", "at a gap"), 5),
    (("UNKNOWN", "restarted"), 5), (grpc.StatusCode.NOT_FOUND, 5), (grpc.StatusCode.RESOURCE_EXHAUSTED, 1),
))
def test_wait_when_records_do_not_become_visible_then_exit_code_and_reason(broker, said, code):
    table = f"unseen-{said[0] if isinstance(said, tuple) else said.name}"
    broker.create(f"hps_et.m.{table}", 1)
    with Admin(waits=lambda request: said if request.records else ("VISIBLE", ""),
               tables=[(table, 1, "FP32")]) as server:
        out, error = publish(broker, "-t", table, "-", "--wait", "--addr", server.address, code=code, lines="1 1\n")
    assert "published 1 rows" in out and server.address in error
    assert (said[1] if isinstance(said, tuple) else "made up") in error


def test_wait_when_the_server_restarts_during_the_wait_then_exit_5(broker, daemon, work):
    topic = broker.create("hps_et.anew.items", 1)
    one = daemon(default_config([model_config("anew", [Table.random("items", 5, 4).save(work)], [4], ["items"])],
                                update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap,
                                               "start": "earliest"}))
    with subprocess.Popen([PUBLISH, "-b", broker.bootstrap, "-m", "anew", "-t", "items", "--wait", "--addr", one.admin, "-"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdin.write("1 1 2 3 4\n")
        process.stdin.flush()
        kafka.until(lambda: broker.offsets(topic)[0][1] == 1, "the row")
        one.kill()
        one.restart()
        _, error = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 5 and "restarted" in error and "publish again" in error, error


@pytest.mark.parametrize("goal", (pb.WAIT_GOAL_READY, pb.WAIT_GOAL_RECORDS))
def test_wait_when_interrupted_then_exit_130(broker, goal):
    table = f"patient{goal}"
    broker.create(f"hps_et.m.{table}", 1)
    asked, gate = threading.Event(), threading.Event()

    def waits(request):
        if request.goal == goal:
            asked.set()
            gate.wait(PATIENCE_S)
        return "VISIBLE", ""

    with Admin(waits=waits, tables=[(table, 1, "FP32")]) as server, subprocess.Popen(
            [PUBLISH, "-b", broker.bootstrap, "-m", "m", "-t", table, "--wait", "--addr", server.address, "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
        process.stdin.write("1 1\n")
        process.stdin.close()
        assert asked.wait(PATIENCE_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        gate.set()


def test_wait_when_it_succeeds_then_lookups_return_the_new_rows(broker, daemon, work):
    old = Table.random("items", 500, 4)
    new = changed(old)
    paths = [table.save(os.path.join(work, name)) for name, table in (("old", old), ("new", new))]
    one = daemon(default_config([model_config("whole", paths[:1], [4], ["items"])], update_source={
        "type": "kafka_message_queue", "brokers": broker.bootstrap, "start": "earliest"}))
    for topic in ("hps_et.whole.items", "hps_et.whole"):  # topics that the server does not know yet
        broker.create(topic, 3)
    keys = np.union1d(old.keys, new.keys)
    stub = one.stub()

    def check(rows):
        query = pb.TableQuery(table="items", keys=key_bytes(keys))
        found = stub.Lookup(pb.LookupRequest(model="whole", queries=[query]), timeout=PATIENCE_S).results[0].rows
        wrong = [key for i, key in enumerate(keys) if found[16 * i:16 * i + 16] != rows.get(int(key), bytes(16))]
        assert not wrong, f"{len(wrong)} rows, {wrong[:3]}"

    wait = ("--model", "whole", "--wait", "--addr", one.grpc[0], "--wait-timeout", PATIENCE_S)
    check(content(old))
    publish(broker, "--table", "items", "--diff", *paths, "--format", "keyed", *wait)
    check(content(new))
    publish(broker, "--table", "items", "--diff", *paths[::-1], "--format", "packed", *wait)
    check(content(old))
    publish(broker, "--table", "items", "--from", paths[1], "--format", "hctr", *wait)
    check({**content(old), **content(new)})


def test_wait_when_hpsd_rejects_a_record_then_exit_5_or_exit_1_if_known_before_sending(broker, daemon, work):
    table = Table.random("items", 50, 4)
    topic = broker.create("hps_et.picky.items", 1)
    config = default_config([model_config("picky", [table.save(work)], [4], ["items"])], supportlonglong=False,
                            update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap,
                                           "start": "earliest"})
    one = daemon(config)
    wait = ("--model", "picky", "-t", "items", "-", "--wait", "--addr", one.admin, "--wait-timeout", PATIENCE_S)
    _, error = publish(broker, *wait, code=1, lines="1 1 2 3\n")
    assert "rows of 4 values" in error and "got rows of 3" in error
    _, error = publish(broker, *wait, "--format", "hctr", code=1, lines="1 1 2 3 4\n")
    assert "--key-bytes 4" in error
    _, error = publish(broker, *wait, "-t", "gadgets", code=1, lines="1 1 2 3 4\n")
    assert "no table 'gadgets'; its tables: items" in error or "hps_et.picky.gadgets" in error
    assert broker.read(topic) == []
    publish(broker, *wait, "--format", "hctr", "--key-bytes", 4, lines="1 1 2 3 4\n")
    _, error = publish(broker, *wait, "--allow-nan", code=5, lines="2 1 2 3 4\n3 1 2 3 nan\n4 1 2 3 4\n")
    assert f"{topic}:0:2 was rejected" in error and "(not_finite)" in error
    one.ctl("updates", "pause", "--model", "picky")
    _, error = publish(broker, *wait, code=1, lines="5 1 2 3 4\n")
    assert f"partition 0 of {topic} is paused" in error and "hpsctl updates resume" in error
    assert broker.offsets(topic)[0] == (0, 4)


def test_wait_when_the_version_is_frozen_then_refused_unless_records_name_it(broker, daemon, work):
    table = Table.random("items", 50, 4)
    topic = broker.create("hps_et.ice.items", 1)
    one = daemon(default_config([model_config("ice", [table.save(f"{work}/ice")], [4], ["items"])],
                                update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap,
                                               "start": "earliest"}))
    one.load("ice", f"{work}/ice", version=2, lineage="other", activate=True)
    one.ctl("rollback", "ice")
    wait = ("--model", "ice", "-t", "items", "-", "--wait", "--addr", one.admin, "--wait-timeout", PATIENCE_S)
    _, error = publish(broker, *wait, code=1, lines="1 1 2 3 4\n")
    assert "version 1 of model \"ice\" is frozen" in error and "hpsctl updates seek" in error
    assert broker.read(topic) == []
    publish(broker, *wait, "--for-version", 1, lines="1 1 2 3 4\n")
    query = pb.TableQuery(table="items", keys=key_bytes([1]))
    rows = one.stub().Lookup(pb.LookupRequest(model="ice", queries=[query]), timeout=PATIENCE_S).results[0].rows
    assert np.frombuffer(rows, "<f4").tolist() == [1, 2, 3, 4]
    broker.write(topic, [(key_of(2), struct.pack("<4f", 9, 9, 9, 9))])
    one.seek("--model", "ice", "--version", 1, "--to", "latest")
    publish(broker, *wait, lines="1 5 6 7 8\n")  # the skipped records are before this one
    assert "was skipped" in one.ctl("wait-for", f"{topic}:0:1", "--version", 1, code=5)
    one.ctl("wait-for", f"{topic}:0:2", "--version", 1)


def test_wait_when_the_version_is_not_loaded_then_reported_and_its_records_are_counted(broker, daemon, work):
    topic = broker.create("hps_et.absent.items", 1)
    one = daemon(default_config([model_config("absent", [Table.random("items", 5, 4).save(f"{work}/absent")], [4], ["items"])],
                                update_source={"type": "kafka_message_queue", "brokers": broker.bootstrap,
                                               "start": "earliest"}))
    one.load("absent", f"{work}/absent", version=7)
    to = ("--model", "absent", "-t", "items", "-", "--for-version", 7)
    wait = ("--wait", "--addr", one.admin, "--wait-timeout", PATIENCE_S)
    publish(broker, *to, *wait, lines="1 1 2 3 4\n")
    with subprocess.Popen([PUBLISH, "-b", broker.bootstrap, *map(str, to + wait)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdin.write("2 1 2 3 4\n")
        process.stdin.flush()
        kafka.until(lambda: broker.offsets(topic)[0][1] == 2, "the row")
        one.ctl("wait-for", f"{topic}:0:1", "--version", 7)
        one.ctl("unload", "absent", "7")
        _, error = process.communicate("3 1 2 3 4\n", timeout=PATIENCE_S)
        assert process.returncode == 5 and 'version 7 of model "absent" is not loaded' in error, error
    _, error = publish(broker, *to, *wait, code=1, lines="4 1 2 3 4\n")
    assert 'version 7 of model "absent" is not loaded' in error, error
    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "absent")
    assert one.metrics()['hpsd_update_records_rejected_total{model="absent",reason="version"}'] == 1


def test_row_version_when_the_model_has_row_versions_then_older_rows_are_ignored(broker, daemon, work):
    table = Table.random("items", 10, 4)
    broker.create("hps_et.rowp.items", 1)
    one = daemon(default_config([model_config("rowp", [table.save(work)], [4], ["items"], row_versions=True)],
                                durable=True, update_source={"type": "kafka_message_queue",
                                                             "brokers": broker.bootstrap, "start": "earliest"}))
    stub = one.stub()
    for number, value, seen in ((7, 107, 107), (6, 106, 107), (8, 108, 108)):
        publish(broker, "--model", "rowp", "-t", "items", "-", "--row-version", number, "--wait", "--addr", one.admin,
                "--wait-timeout", PATIENCE_S, lines=f"1 {value} {value} {value} {value}\n")
        query = pb.TableQuery(table="items", keys=key_bytes([1]))
        rows = stub.Lookup(pb.LookupRequest(model="rowp", queries=[query]), timeout=PATIENCE_S).results[0].rows
        assert np.frombuffer(rows, "<f4").tolist() == [seen] * 4


def test_wait_when_the_server_is_unreachable_then_exit_3_and_no_record_is_sent(broker):
    topic = broker.create("hps_et.m.alone", 1)
    with ports.refusing() as address:
        _, error = publish(broker, "-t", "alone", "-", "--wait", "--addr", address, code=3, lines="1 1\n")
    assert "--wait" in error
    assert broker.read(topic) == []
    publish(broker, "-t", "alone", "-", "--addr", "127.0.0.1:1", code=2, lines="1 1\n")


# ---- errors --------------------------------------------------------------------------------------------

def test_dry_run_when_there_is_no_broker_then_counts_and_checks_rows(work):
    table = Table.random("dry", 100, 4)
    out, _ = publish("127.0.0.1:1", "--from", table.save(work), "--dry-run", "--format", "hctr")
    assert "would publish" in out and f"{len(table.keys)} rows" in out
    out, _ = publish(None, "-", "--dry-run", "-o", "json", lines="a 1 2\na 1 null\n")
    assert json.loads(out) | {"seconds": 0} == {
        "model": "m", "rows": 1, "deletes": 1, "records": 2, "bytes": 20, "seconds": 0, "dry_run": True,
        "positions": []}
    table.rows[7, 1] = np.nan
    _, error = publish(None, "--from", table.save(os.path.join(work, "nan")), "--dry-run", code=2)
    assert "NaN" in error or "nan" in error
    publish(None, "--from", os.path.join(work, "nan", "dry.rows.npy"), "--dry-run", "--allow-nan")
    np.save(os.path.join(work, "int8.npy"), np.zeros((2, 4), "u1"))
    np.save(os.path.join(work, "int8.scale_bias.npy"), np.array([[1, 0], [np.nan, 0]], "<f4"))
    _, error = publish(None, "--from", os.path.join(work, "int8.npy"), "--dry-run", "--allow-nan", code=2)
    assert "NaN" in error and "scale" in error


@pytest.mark.parametrize("lines, words", (
    ("a 1 2\na x 2\n", ("line 2", '"x"')),
    ("a 1 2 3\na 2 2\n", ("line 2", "table a", "2")),
    ("a 1\n", ("line 1", "null")),
    ("a 1 2z\n", ("line 1", '"2z"')),
    ("a 1 nan\n", ("line 1", "nan")),
    ("a 18446744073709551616 1\n", ("line 1", "18446744073709551616")),
    ("a.b 1 1\n", ("line 1", "a.b")),
    ("commit\n", ("line 1",)),
))
def test_lines_when_invalid_then_the_error_names_line_and_text(lines, words):
    _, error = publish(None, "-", "--dry-run", code=2, lines=lines)
    for word in words:
        assert word in error, error


@pytest.mark.parametrize("args, word", (
    ((), "nothing to publish"),
    (("--from", "x", "-"), "expected one of --from, --diff and -"),
    (("--diff", "x"), "OLD NEW"),
    (("--from", "/nonexistent/t.npy"), "/nonexistent/t.npy"),
    (("--deletes", "k.npy"), "--table"),
    (("-", "--format", "htcr"), "keyed|hctr|packed"),
    (("--format", "hctr", "--deletes", "k.txt"), "expected keyed or packed; hctr records cannot delete keys"),
    (("-", "--units"), "packed"),
    (("-", "--bogus"), "--bogus"),
    (("-", "--table", "a b"), "--table"),
    (("-", "--row-version", "x"), "--row-version"),
    (("-", "--row-dtype", "int4"), "int8_rowwise_f16"),
    (("-", "--format", "hctr", "--row-dtype", "fp16"), "hctr records have only fp32"),
    (("-", "extra"), "extra"),
))
def test_options_when_invalid_then_exit_2_and_the_error_names_them(args, word):
    _, error = publish(None, "--dry-run", *args, code=2)
    assert word in error, error


def test_broker_when_unreachable_then_exit_3_with_the_reason():
    with ports.refusing() as address:
        _, error = publish(address, "-t", "a", "-", "--timeout", "3", code=3, lines="1 1\n")
    assert address in error and "refused" in error, error


def test_broker_when_it_refuses_then_exit_1_with_the_reason(broker):
    _, error = publish(broker, "-t", "absent", "-", code=1, lines="1 1\n")
    assert "hps_et.m.absent" in error and "does not exist" in error
    broker.create("hps_et.m.compacted", 1, cleanup_policy="compact")
    _, error = publish(broker, "-t", "compacted", "-f", "hctr", "-", code=1, lines="1 1\n")
    assert "hps_et.m.compacted" in error and "only keyed records" in error
    publish(broker, "-t", "compacted", "-", lines="1 1\n1 null\n")
    _, error = publish(broker, "-t", "compacted", "-f", "hctr", "-", "-X", "enable.idempotence=false", "-X", "acks=0",
                       code=2, lines="1 1\n")
    assert 'property "acks": got 0, expected all' in error
    broker.create("hps_et.m.small", 1, max_message_bytes=1000)
    wide = " ".join(["1"] * 1000)
    _, error = publish(broker, "-t", "small", "-", code=1, lines=f"1 {wide}\n")
    assert "max.message.bytes" in error or "too large" in error.lower(), error
    _, error = publish(broker, "-t", "small", "-", "-X", "nonsense=1", code=2, lines="1 1\n")
    assert "nonsense" in error
    _, error = publish(broker, "--model", "small", "-f", "packed", "--units", "-", code=1, lines="a 1 1\n")
    assert "hps_et.small" in error


def test_broker_when_killed_and_restarted_then_every_row_is_written_once_in_order(own_broker):
    topic = own_broker.create("hps_et.m.steady", 2)
    n = 4000
    with subprocess.Popen([PUBLISH, "-b", own_broker.bootstrap, "-m", "m", "-t", "steady", "--timeout", "120", "-"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        for i in range(n):
            process.stdin.write(f"{i % 10} {i}\n")
            if i == n // 2:
                process.stdin.flush()
                own_broker.kill()
                own_broker.start()
        out, error = process.communicate(timeout=PATIENCE_S * 4)
        assert process.returncode == 0, error
    assert f"published {n} rows" in out
    seen = {}
    for message in own_broker.read(topic):
        seen.setdefault(message.key(), []).append(struct.unpack("<f", message.value())[0])
    assert seen == {key_of(key): list(range(key, n, 10)) for key in range(10)}


def test_broker_when_killed_then_exit_4_with_the_number_of_acknowledged_records(own_broker):
    own_broker.create("hps_et.m.lost", 1)
    with subprocess.Popen([PUBLISH, "-b", own_broker.bootstrap, "-m", "m", "-t", "lost", "--timeout", "10", "-"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        process.stdin.write("1 1\n")
        process.stdin.flush()
        kafka.until(lambda: own_broker.offsets("hps_et.m.lost")[0][1] == 1, "the first row")
        own_broker.kill()
        _, error = process.communicate("2 2\n", timeout=PATIENCE_S * 4)
        assert process.returncode == 4, error
    assert "hps_et.m.lost" in error and re.search("[01] of 2 records were acknowledged", error)
