# SPDX-License-Identifier: Apache-2.0
"""Random lookups, checked against NumPy bit for bit (bag_rows.py). They vary the types of tables and replies, pooling,
weights, layout, unknown keys, policies, consistency, and 64-bit and 32-bit keys, in one reply or a stream, on every
combination of tiers. Half of the tables are dense, with holes and keys outside the range. Then lookups by position with
every front end, from versions with different tables and row types, without updates and with random update records.

Each test makes HPS_LOOKUPS lookups (by default a few) from the seed HPS_LOOKUP_SEED. The message of a failure has the
number of the lookup: HPS_LOOKUP_FIRST=NUMBER HPS_LOOKUPS=1 repeats it, as the first lookup of its daemon.
"""
import http.client
import itertools
import json
import os

import grpc
import numpy as np
import pytest

import dtypes
import kserve_body
import kserve_rig
from bag_rows import DEFAULTED, FOUND, POOLINGS, TIERS, UNKNOWN, Served, Stored, pooled, query, states
from rig import (BF16, FP16, FP32, PATIENCE_S, SANITIZER, Daemon, admin_pb, default_config, encoded, key_bytes, kserve_grpc,
                 model_config, pb, records, scratch)

LOOKUPS = int(os.environ.get("HPS_LOOKUPS") or {"thread": 6, "address": 15}.get(SANITIZER, 25))
FIRST = int(os.environ.get("HPS_LOOKUP_FIRST") or 0)
SEED = int(os.environ.get("HPS_LOOKUP_SEED") or 1)
RAW, CONCAT, UNIT = pb.DATA_TYPE_RAW, pb.ROW_LAYOUT_CONCAT, pb.CONSISTENCY_UNIT
ZERO, ERROR = pb.UNKNOWN_KEY_POLICY_ZERO, pb.UNKNOWN_KEY_POLICY_ERROR
IMPATIENT = (pb.MISS_POLICY_WAIT, pb.MISS_POLICY_MEMORY_ONLY)
MESSAGE_BYTES_MAX = 1 << 20
SHAPES = ((16, 4000), (33, 700))  # (dim, rows) of the tables of each type; 33 is not a multiple of 16

WIDTHS = {"params": [False, True][:1 if SANITIZER else 2], "ids": ["int64", "uint32"][:1 if SANITIZER else 2]}  # of keys


@pytest.fixture(name="tables", scope="module", **WIDTHS)
def tables_of_all_tests(request):
    return {f"{dtypes.NAMES[dtype]}_{dim}": Stored(f"{dtypes.NAMES[dtype]}_{dim}", dtype, dim, n_rows, number, 0.7,
                                                   narrow=request.param, dense=number % 4 in (0, 3))
            for number, (dtype, (dim, n_rows)) in enumerate(itertools.product(dtypes.STORED, SHAPES))}


def draw_keys(rng, table, n):
    """Keys of rows, some repeated, and unknown keys. 32-bit keys get random upper halves."""
    pool = rng.choice(table.keys, rng.integers(1, len(table.keys)))
    keys = rng.choice(pool, n)
    unknown = rng.random(n) < rng.choice([0, 0.02, 0.5, 1], p=[0.4, 0.4, 0.1, 0.1])
    keys[unknown] = rng.choice(np.concatenate([np.arange(2**50, 2**50 + 20), table.holes]), unknown.sum())
    return keys ^ rng.integers(-2**31, 2**31, n) << 32 if table.narrow else keys


class Part:
    """A query, and the expected result."""

    def __init__(self, rng, table, n_rows, may_pool):
        self.table = table
        self.pooling = int(rng.choice(POOLINGS)) if may_pool and rng.random() < 0.6 else 0
        n_keys = n_rows
        self.weights = None
        if self.pooling:
            lengths = rng.integers(0, rng.choice([2, 5, 40]), n_rows)
            if n_rows and rng.random() < 0.1:
                lengths[rng.integers(n_rows)] = rng.integers(5000, 9000)
            self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
            n_keys = self.offsets[-1]
            if rng.random() < 0.5:
                self.weights = (rng.standard_normal(n_keys) * rng.choice([0, 1e-30, 1, 1e30], n_keys,
                                                                         p=[0.1, 0.1, 0.7, 0.1])).astype(np.float32)
        else:
            self.offsets = np.arange(n_rows + 1)
        self.keys = draw_keys(rng, table, n_keys)
        self.at = table.indices(self.keys)
        self.query = query(table, self.keys, self.offsets if self.pooling else None, self.pooling, self.weights)
        if rng.random() < 0.2:
            self.query.key_list.extend(map(int, self.keys))
            self.query.keys = b""

    @property
    def n_rows(self):
        return len(self.offsets) - 1

    def has_unknown(self):
        return (self.at < 0).any()

    def check_states(self, told, impatient):
        told = np.asarray(told, int)
        assert len(told) == len(self.keys)
        wrong = told != np.where(self.at < 0, UNKNOWN, FOUND)
        if impatient:
            wrong &= told != DEFAULTED
        assert not wrong.any(), (self.keys[wrong][0], told[wrong][0])

    def values(self, told, zero):
        """The expected float32 values [n_rows, dim] if the keys have these states."""
        rows = self.table.rows(self.keys, told, np.float32(0) if zero else None)
        with np.errstate(over="ignore", invalid="ignore"):
            return pooled(rows, self.offsets, self.pooling, self.weights) if self.pooling else rows

    def raw(self, told, zero):
        """The expected bytes of unpooled rows in the stored type."""
        told = np.asarray(told, int)
        out = self.table.bytes[self.at]
        out[told != FOUND] = self.table.default_bytes[0]
        if zero:
            out[told == UNKNOWN] = 0
        return out.tobytes()


class Drawn:
    """A request, and the expected reply."""

    def __init__(self, rng, tables):
        self.fields = {"output_type": int(rng.choice([0, FP32, FP16, BF16, RAW])),
                       "row_layout": int(rng.choice([0, pb.ROW_LAYOUT_PER_TABLE, CONCAT])),
                       "miss_policy": int(rng.choice(pb.MissPolicy.values())),
                       "max_wait_us": int(rng.choice([0, 1, 200, 10**6])),
                       "unknown_key_policy": int(rng.choice(pb.UnknownKeyPolicy.values(), p=[0.3, 0.3, 0.3, 0.1])),
                       "consistency": int(rng.choice(pb.Consistency.values(), p=[0.4, 0.4, 0.2])),
                       "explain": bool(rng.random() < 0.2)}
        if self.fields["output_type"] == RAW and self.fields["row_layout"] == CONCAT:
            self.fields["row_layout"] = 0
        n_queries = int(rng.choice([0, 1, 2, 5, 12], p=[0.05, 0.3, 0.3, 0.25, 0.1]))
        n_max = int(rng.choice([2, 50, 600, 20_000], p=[0.1, 0.4, 0.4, 0.1])) // max(n_queries, 1) + 1
        n_rows = int(rng.integers(n_max))
        may_pool = self.fields["output_type"] != RAW
        self.parts = [Part(rng, tables[rng.choice(list(tables))],
                           n_rows if self.concat else int(rng.integers(n_max)), may_pool) for _ in range(n_queries)]
        self.request = pb.LookupRequest(model="m", queries=[part.query for part in self.parts], **self.fields)

    def __str__(self):
        asked = [(part.table.name, pb.Pooling.Name(part.pooling), part.n_rows, len(part.keys), part.weights is not None)
                 for part in self.parts]
        return f"{self.fields} of {asked}"

    @property
    def concat(self):
        return self.fields["row_layout"] == CONCAT

    def may_fail(self, error):
        """Whether the error may be caused by an unknown key; with policies that do not wait, it may stay undetected."""
        return error.code() == grpc.StatusCode.NOT_FOUND and self.fields["unknown_key_policy"] == ERROR and \
            any(part.has_unknown() for part in self.parts)

    def must_fail(self):
        return self.fields["unknown_key_policy"] == ERROR and self.fields["miss_policy"] not in IMPATIENT and \
            any(part.has_unknown() for part in self.parts)

    def check(self, got, matrix):
        """got: (states, bytes of rows) of each query."""
        assert not self.must_fail()
        zero = self.fields["unknown_key_policy"] == ZERO
        columns = [np.zeros((self.parts[0].n_rows if self.parts else 0, 0), np.float32)]
        for part, (told, rows) in zip(self.parts, got, strict=True):
            part.check_states(told, self.fields["miss_policy"] in IMPATIENT)
            if self.concat:
                assert rows == b""
                columns.append(part.values(told, zero))
            elif self.fields["output_type"] == RAW:
                assert rows == part.raw(told, zero)
            else:
                assert rows == as_sent(part.values(told, zero), self.fields["output_type"])
        assert matrix == (as_sent(np.hstack(columns), self.fields["output_type"]) if self.concat else b"")

    def check_result(self, result, part, column):
        wanted = self.fields["output_type"]
        assert (result.table, result.dim, result.column) == (part.table.name, part.table.dim, column)
        assert result.data_type == (part.table.dtype if wanted == RAW else wanted or FP32)

    def columns(self):
        return itertools.accumulate((part.table.dim * self.concat for part in self.parts), initial=0)


def as_sent(values, output_type):
    with np.errstate(over="ignore", invalid="ignore"):
        return encoded(values, output_type)


def check_counts(result, told, keys, table):
    assert not result.key_status or set(told) != {FOUND}
    assert result.unknown_key_count == told.count(UNKNOWN)
    assert result.defaulted_key_count == told.count(DEFAULTED)
    assert len(np.unique(table.meant(keys))) <= result.unique_key_count <= len(keys)
    assert sum(count.found_keys for count in result.tier_counts) <= result.unique_key_count


def check_whole(drawn, reply):
    got = []
    for result, part, column in zip(reply.results, drawn.parts, drawn.columns(), strict=False):
        drawn.check_result(result, part, column)
        assert result.row_count == part.n_rows
        told = states(result, len(part.keys))
        check_counts(result, told, part.keys, part.table)
        got.append((told, result.rows))
    drawn.check(got, reply.matrix)


def check_stream(drawn, messages):
    """Join the messages of a stream. Each query has at least one message, and its rows are consecutive."""
    n = len(drawn.parts)
    at, told, rows, matrix, current = [0] * n, [[] for _ in range(n)], [b""] * n, b"", -1
    columns = list(drawn.columns())
    for message in messages:
        assert message.ByteSize() <= MESSAGE_BYTES_MAX
        assert len(message.results) == (n if drawn.concat else min(n, 1))
        if not drawn.concat and n > 0 and (current < 0 or at[current] == drawn.parts[current].n_rows):
            current += 1
        for i, result in enumerate(message.results, 0 if drawn.concat else current):
            part = drawn.parts[i]
            drawn.check_result(result, part, columns[i])
            begin, end = part.offsets[at[i]], part.offsets[at[i] + result.row_count]
            now = states(result, end - begin)
            check_counts(result, now, part.keys[begin:end], part.table)
            told[i] += now
            rows[i] += result.rows
            at[i] += result.row_count
        matrix += message.matrix
    assert at == [part.n_rows for part in drawn.parts]
    drawn.check(list(zip(told, rows, strict=True)), matrix)


def check_one(served, drawn):
    for check, call in ((check_whole, served.stub.Lookup), (check_stream, served.stub.LookupStream)):
        try:
            check(drawn, call(drawn.request, timeout=PATIENCE_S))
        except grpc.RpcError as error:
            assert drawn.may_fail(error), error


@pytest.mark.parametrize("tiers", TIERS)
def test_lookups_when_random_then_every_bit_equals_numpy(tables, tiers):
    with scratch() as work:
        served = Served(work, tables, tiers)
        with served.daemon:
            for number in range(FIRST, FIRST + LOOKUPS):
                drawn = Drawn(np.random.default_rng([SEED, number]), tables)
                try:
                    check_one(served, drawn)
                except AssertionError as error:
                    raise AssertionError(f"HPS_LOOKUP_SEED={SEED} HPS_LOOKUP_FIRST={number}: {drawn}: {error}") from error


# ---- by position, from versions with different tables --------------------------------------------------------------

class Refused(Exception):
    """(name of a status, its text)"""


class Versions:
    """A daemon with versions 1 and 2 (active), and a version 3 that was unloaded and never active. tables: {name: Stored}
    of each version. `order`: the tables of the model's positions."""

    def __init__(self, work, tables, model="m", **more):
        self.model, self.tables, self.order = model, tables, list(dict.fromkeys(itertools.chain(*tables)))
        self.of_version = {1: tables[0], 2: tables[1], 0: tables[1]}
        paths = [{} for _ in tables]
        for number, (path, of) in enumerate(zip(paths, tables), 1):
            os.makedirs(f"{work}/{number}")
            path.update((name, table.save(f"{work}/{number}")) for name, table in of.items())
        first = list(tables[0].values())
        entry = model_config(model, list(paths[0].values()), [table.dim for table in first], list(tables[0]),
                             row_dtype=[dtypes.NAMES[table.dtype] for table in first], unknown_key_policy="zero")
        self.daemon = Daemon(work, default_config([entry], supportlonglong=not first[0].narrow, server={
            "model_roots": [work], "keep_versions": 9, "kserve_listen": ["127.0.0.1:0"]}, **more))
        for number in (2, 3):
            self.daemon.load(model, "", version=number, activate=number == 2, force=True, tables=[
                admin_pb.TableSource(table=name, path=paths[number - 1][name], row_dtype=dtypes.NAMES[table.dtype])
                for name, table in tables[number - 1].items()])
        self.daemon.ctl("unload", model, 3)

    def lacks(self, version, place):
        return place >= len(self.order) or self.order[place] not in self.of_version[version]

    def table(self, version, place):
        """The table at this place; if the version lacks it, that of another version."""
        name = self.order[place % len(self.order)]
        return next(of[name] for of in (self.of_version[version], *self.tables) if name in of)


def ask_hps(versions, version, groups, output_type, stream):
    request = pb.LookupRequest(model=versions.model, version=version, output_type=output_type,
                               queries=[pb.TableQuery(keys=key_bytes(keys)) for keys in groups])
    stub = versions.daemon.stub()
    replies = stub.LookupStream(request, timeout=PATIENCE_S) if stream else [stub.Lookup(request, timeout=PATIENCE_S)]
    results = [result for reply in replies for result in reply.results]
    return [state for result in results for state in states(result, result.row_count)], b"".join(r.rows for r in results)


def ask_kserve_grpc(versions, version, groups, output_type):
    request = kserve_rig.request(versions.model, kserve_body.hps_inputs(groups), ["STATUS", "OUTPUT0"],
                                 version=str(version or ""),
                                 hps_output_type=pb.DataType.Name(output_type)[len("DATA_TYPE_"):])
    reply = kserve_grpc.GRPCInferenceServiceStub(versions.daemon.channel()).ModelInfer(request, timeout=PATIENCE_S)
    return list(reply.raw_output_contents[0]), reply.raw_output_contents[1]


def ask_kserve_http(versions, version, groups, output_type):
    body, headers = kserve_body.compose(kserve_body.hps_inputs(groups), ["STATUS", "OUTPUT0"], binary_output=True,
                                        hps_output_type=pb.DataType.Name(output_type)[len("DATA_TYPE_"):])
    connection = http.client.HTTPConnection(versions.daemon.kserve[0], timeout=PATIENCE_S)
    connection.request("POST", f"/v2/models/{versions.model}{f'/versions/{version}' if version else ''}/infer", body, headers)
    reply = connection.getresponse()
    text = reply.read()
    connection.close()
    if reply.status != 200:
        raise Refused({404: "NOT_FOUND", 400: "INVALID_ARGUMENT"}.get(reply.status), json.loads(text)["error"])
    answer = kserve_body.Answer(text, reply.headers)
    return answer.values["STATUS"].tolist(), answer.values["OUTPUT0"].tobytes()


FRONTS = {"hps.v1": lambda *args: ask_hps(*args, stream=False), "stream": lambda *args: ask_hps(*args, stream=True),
          "KServe over gRPC": ask_kserve_grpc, "KServe over HTTP": ask_kserve_http}


def draw_groups(rng, versions, version):
    """Keys for each position. The lists are often fewer than the positions, sometimes more; the additional lists are
    mostly empty."""
    n = int(rng.choice([len(versions.order), rng.integers(len(versions.order)), len(versions.order) + 2]))
    spare = rng.random() < 0.7  # no keys for tables that the version lacks
    groups = []
    for place in range(n):
        n_keys = int(rng.integers(40)) if rng.random() < 0.6 else 0
        groups.append(draw_keys(rng, versions.table(version, place),
                                0 if spare and versions.lacks(version, place) else n_keys))
    return groups


def check_groups(versions, version, groups, output_type, ask_front):
    bad = [place for place, keys in enumerate(groups) if len(keys) and versions.lacks(version, place)]
    try:
        told, rows = ask_front(versions, version, groups, output_type)
    except grpc.RpcError as error:
        got = error.code().name, error.details()
    except Refused as error:
        got = error.args
    else:
        assert not bad
        wanted = [(versions.table(version, place), keys) for place, keys in enumerate(groups) if len(keys)]
        right = [np.where(table.indices(keys) < 0, UNKNOWN, FOUND).tolist() for table, keys in wanted]
        assert told == list(itertools.chain(*right))
        assert rows == b"".join(as_sent(table.rows(keys, of_keys, np.float32(0)), output_type)
                                for (table, keys), of_keys in zip(wanted, right))
        return
    assert bad, got
    known = bad[0] < len(versions.order)
    assert got[0] == ("NOT_FOUND" if known else "INVALID_ARGUMENT") and f"[{bad[0]}]" in got[1], got
    assert (f"'{versions.order[bad[0]]}'" if known else f"{len(versions.order)} tables") in got[1], got


def check_positions(rng, number, versions):
    """One random lookup with every front end."""
    version, output_type = int(rng.choice([0, 1, 2])), int(rng.choice([FP32, FP16, BF16]))
    groups = draw_groups(rng, versions, version)
    for name, ask_front in FRONTS.items():
        try:
            check_groups(versions, version, groups, output_type, ask_front)
        except AssertionError as error:
            raise AssertionError(f"HPS_LOOKUP_SEED={SEED} HPS_LOOKUP_FIRST={number}: version {version} by {name}: "
                                 f"{[len(keys) for keys in groups]} of {versions.order}: {error}") from error


def draw_tables(rng, narrow):
    """Some tables for each of three versions. A table has the same width in all versions, but not the same row type."""
    types, widths = {f"t{i}": list(rng.choice(dtypes.STORED, 3)) for i in range(8)}, (4, 8, 16, 33)
    return [{name: Stored(name, int(types[name][version]), widths[int(name[1:]) % 4], 60, version, 0.7, narrow)
             for name in rng.permutation(list(types))[:rng.integers(2, 8)]} for version in range(3)]


@pytest.fixture(name="narrow", **WIDTHS)
def keys_of_32_bits(request):
    return request.param


def test_positions_when_versions_have_different_tables_then_they_follow_the_models_order(narrow):
    with scratch() as work:
        versions = Versions(work, draw_tables(np.random.default_rng(SEED), narrow))
        with versions.daemon:
            for number in range(FIRST, FIRST + LOOKUPS):
                rng = np.random.default_rng([SEED, 1, number])
                if rng.random() < 0.05:
                    versions.daemon.stop()
                    versions.daemon.restart()
                check_positions(rng, number, versions)


def test_positions_when_a_larger_version_was_unloaded_unused_then_a_restart_does_not_change_them(tables):
    names = list(tables)[:3]
    with scratch() as work:
        versions = Versions(work, [{name: tables[name] for name in names[:n]} for n in (2, 2, 3)])
        with versions.daemon:
            for _ in range(2):
                for counts in ([1, 1], [1, 1, 0], [1], [], [0, 2, 0, 0], [1, 1, 1], [0, 0, 0, 1]):
                    groups = [tables[name].keys[:n] for name, n in zip([*names, names[0]], counts)]
                    for ask_front in FRONTS.values():
                        check_groups(versions, 0, groups, FP32, ask_front)
                versions.daemon.stop()
                versions.daemon.restart()


# ---- updates -------------------------------------------------------------------------------------------------------

class Change:
    """Rows and deletes of one table in an update record. dtype: the type of the rows."""

    def __init__(self, rng, versions, place, dtype, n_max):
        table = versions.table(0, place)
        self.name, self.dtype = table.name, dtype
        keys = rng.permutation(draw_keys(rng, table, rng.integers(1, n_max + 1)))
        keys = keys[np.unique(table.meant(keys), return_index=True)[1]]
        self.keys, self.deletes = np.split(keys, [rng.integers(len(keys) + 1)])
        values = rng.normal(size=(len(self.keys), table.dim)) * 10
        self.rows = dtypes.stored(values.astype("<f4"), dtype) if len(values) else np.empty((0, 0), "u1")

    def fits(self, table):
        return self.dtype in (FP32, table.dtype)

    def apply(self, table):
        rows = self.rows
        if self.dtype != table.dtype and len(rows):
            rows = dtypes.stored(rows.view("<f4"), table.dtype)
        table.put(self.keys, rows)
        table.delete(self.deletes)


def draw_keyed(rng, versions, place, narrow):
    """A record of a table's topic, and its changes."""
    if rng.random() < 0.2:
        change = Change(rng, versions, place, FP32, 6)
        change.deletes = change.deletes[:0]
        pairs = [(int(key) & 2**32 - 1 if narrow else int(key), row.view("<f4")) for key, row in zip(change.keys, change.rows)]
        return (records.hctr(pairs, "I" if narrow else "q") if pairs else None), [change]
    types = [of[versions.order[place]] for of in versions.tables if versions.order[place] in of]
    own, dim = types[0].dtype, types[0].dim
    wide = [of for of in dtypes.STORED if of != own and dtypes.row_bytes(of, dim) == dtypes.row_bytes(own, dim)]
    dtype = int(rng.choice([FP32, own, rng.choice(wide or dtypes.STORED)]))
    change = Change(rng, versions, place, dtype, 1)
    record = {"key": key_bytes([*change.keys, *change.deletes]), "value": change.rows.tobytes() if len(change.keys) else None}
    alike = [of for of in types if of.dtype != dtype and dtypes.row_bytes(of.dtype, dim) == dtypes.row_bytes(dtype, dim)]
    if alike or rng.random() < 0.5:  # only the header distinguishes types of one width
        record["headers"] = [("hps-dtype", dtypes.NAMES[dtype].encode())]
    return record, [change]


def draw_packed(rng, versions, version):
    places = rng.permutation(len(versions.order))[:rng.integers(1, 4)]
    changes = [Change(rng, versions, place, int(rng.choice([FP32, versions.table(0, place).dtype])), 8) for place in places]
    batch = records.update_pb.UpdateBatch(version=version)
    for change in changes:
        batch.tables.add(table=change.name, data_type=change.dtype, keys=key_bytes(change.keys), rows=change.rows.tobytes(),
                         deletes=key_bytes(change.deletes))
    return {"key": None, "value": b"HPS1\1\0\0\0" + batch.SerializeToString()}, changes


def write_round(rng, broker, versions, narrow, n_rejected):
    """Write records, all packed or none: order is only defined within a topic. Apply what each version accepts."""
    packed = rng.random() < 0.4
    topics = {}  # the records of each
    for _ in range(20):
        named, place = int(rng.choice([0, 0, 0, 0, 1, 2])), int(rng.integers(len(versions.order)))
        record, changes = draw_packed(rng, versions, named) if packed else draw_keyed(rng, versions, place, narrow)
        if record is None:
            continue
        if named and not packed:
            record["headers"] = record.get("headers", []) + records.for_version({}, named)["headers"]
        topics.setdefault(f"hps_et.{versions.model}" + ("" if packed else f".{changes[0].name}"), []).append(record)
        for version in (named,) if named else (1, 2):
            of = versions.of_version[version]
            if not packed and changes[0].name not in of:
                continue  # the version does not read the topic
            if all(change.name in of and (change.fits(of[change.name]) or not len(change.keys) and not packed)
                   for change in changes):
                for change in changes:
                    change.apply(of[change.name])
            else:
                n_rejected[version] += 1
    for topic, written in topics.items():
        broker.write(topic, written)


def test_updates_when_random_then_each_version_has_the_rows_that_its_types_accept(broker, narrow):
    with scratch() as work:
        rng = np.random.default_rng([SEED, 2])
        model = f"random-{'uint32' if narrow else 'int64'}-{SEED}"
        tables = draw_tables(rng, narrow)
        for topic in ("", *(f".{name}" for name in dict.fromkeys(itertools.chain(*tables)))):
            broker.create(f"hps_et.{model}{topic}", 1)
        versions = Versions(work, tables, model, update_source={
            "type": "kafka_message_queue", "brokers": broker.bootstrap, "start": "earliest", "metadata_refresh_interval_ms": 200})
        n_rejected = {1: 0, 2: 0}
        with versions.daemon as one:
            for number in range(FIRST, FIRST + max(LOOKUPS // 4, 1)):
                rng = np.random.default_rng([SEED, 3, number])
                write_round(rng, broker, versions, narrow, n_rejected)
                for version in (1, 2):
                    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", model, "--version", version, "--allow-refused")
                for _ in range(4):
                    check_positions(rng, number, versions)
            told = {int(of["version"]): int(of.get("rejected_record_count", 0))
                    for of in one.ctl("updates", "--model", model, "-o", "json")[0]["versions"]}
            assert told == n_rejected
