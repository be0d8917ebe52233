# SPDX-License-Identifier: Apache-2.0
"""Lookups over gRPC with stock grpcio, compared byte by byte with NumPy."""
import http.client
import re
import threading

import grpc
import numpy as np
import pytest

import kserve_body
from rig import (BF16, FP16, FP32, GPU, PATIENCE_S, ROOT, VALUE_BYTES, Daemon, Table, ask, default_config, encoded,
                 floats, key_bytes, model_config, pb, refused, scratch, statuses, until)

DIMS = (1, 2, 3, 7, 16, 128, 1000, 4096)
DTYPES = {"fp32": np.float32, "fp16": np.float16}
DEFAULT = 0.375
KEYS_MAX = 2 << 20
FOUND, UNKNOWN = pb.KEY_STATUS_FOUND, pb.KEY_STATUS_UNKNOWN
MESSAGE_BYTES_MAX = 1 << 20


class Served:
    """A daemon with one table of each stored type and width, in models "fp32" and "fp16"."""

    def __init__(self, work):
        self.tables, models = {}, []
        for name, dtype in DTYPES.items():
            tables = [Table.random(f"{name}_{dim}", 2000 if dim < 100 else 300, dim, dtype, number=i,
                                   default=DEFAULT) for i, dim in enumerate(DIMS)]
            paths = [table.save(f"{work}/{name}") for table in tables]
            models.append(model_config(name, paths, list(DIMS), [table.name for table in tables],
                                       [DEFAULT] * len(DIMS)))
            self.tables.update({table.name: table for table in tables})
        many = [Table.random(f"t{i}", 20, 4, number=i) for i in range(200)]
        paths = [table.save(f"{work}/many") for table in many]
        models.append(model_config("many", paths, [4] * len(many), [table.name for table in many]))
        self.tables.update({table.name: table for table in many})
        self.daemon = Daemon(work, default_config(models))
        self.stub = self.daemon.stub()


@pytest.fixture(name="served", scope="module")
def served_tables():
    with scratch() as work:
        served = Served(work)
        with served.daemon:
            yield served


def some_keys(table, n, unknown=0, seed=3):
    """n keys of the table in random order, and `unknown` keys that it does not have."""
    rng = np.random.default_rng(seed)
    keys = rng.choice(table.keys, n)
    strangers = rng.integers(2, 2**40, unknown)
    return rng.permutation(np.concatenate([keys, strangers]))


def check(result, table, keys, output_type=FP32):
    assert result.table == table.name
    assert result.dim == table.dim
    assert result.row_count == len(keys)
    assert result.data_type == (output_type or FP32)
    n_unique = len(np.unique(keys))
    assert n_unique <= result.unique_key_count <= (len(keys) if GPU else n_unique)  # a device counts duplicates
    expected = [FOUND if int(key) in table.at else UNKNOWN for key in keys]
    assert statuses(result) == expected
    assert result.unknown_key_count == expected.count(UNKNOWN)
    assert result.defaulted_key_count == 0
    assert result.rows == encoded(table.expect(keys), output_type)


# ---- rows --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("output_type", [0, FP32, FP16, BF16])
@pytest.mark.parametrize("stored", DTYPES)
def test_rows_when_of_any_type_and_width_then_every_byte_is_correct(served, stored, output_type):
    for dim in DIMS:
        table = served.tables[f"{stored}_{dim}"]
        keys = some_keys(table, 50, unknown=5)
        reply = ask(served.stub, stored, {table.name: keys}, output_type=output_type)
        assert (reply.model, reply.version, len(reply.results)) == (stored, 1, 1)
        check(reply.results[0], table, keys, output_type)


def test_rows_when_keys_are_in_key_list_then_they_are_the_same(served):
    table = served.tables["fp32_7"]
    keys = some_keys(table, 30, unknown=3)
    query = pb.TableQuery(table=table.name, key_list=[int(key) for key in keys])
    check(ask(served.stub, "fp32", [query]).results[0], table, keys)


def test_rows_when_keys_repeat_then_all_are_returned_and_counts_are_of_unique_and_of_sent_keys(served):
    table = served.tables["fp32_16"]
    keys = np.repeat(table.keys[:3], [1000, 1, 500])
    keys = np.random.default_rng(1).permutation(np.concatenate([keys, [5, 5, 5]]))
    reply = ask(served.stub, "fp32", {table.name: keys})
    check(reply.results[0], table, keys)
    assert reply.results[0].unique_key_count == 4
    assert reply.results[0].unknown_key_count == 3
    assert sum(tier.found_keys for tier in reply.results[0].tier_counts) == 3


def test_rows_when_keys_are_int64_limits_then_they_are_correct(served):
    table = served.tables["fp32_3"]
    keys = np.array([0, -1, 2**63 - 1, -2**63, -2**63 + 1], np.int64)
    check(ask(served.stub, "fp32", {table.name: keys}).results[0], table, keys)


def test_lookup_when_it_has_no_keys_then_the_result_is_empty(served):
    reply = ask(served.stub, "fp32", {"fp32_7": []})
    assert (reply.results[0].row_count, reply.results[0].rows, reply.results[0].dim) == (0, b"", 7)
    assert len(ask(served.stub, "fp32", []).results) == 0


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1023, 4097])
def test_rows_when_counts_are_near_block_sizes_then_they_are_correct(served, n):
    table = served.tables["fp32_128"]
    keys = some_keys(table, n, unknown=n // 7)
    check(ask(served.stub, "fp32", {table.name: keys}).results[0], table, keys)


def test_tables_when_selected_by_position_or_name_then_rows_are_correct(served):
    tables = [served.tables[f"fp32_{dim}"] for dim in DIMS]
    keys = [some_keys(table, 9, seed=i) for i, table in enumerate(tables)]
    by_position = ask(served.stub, "fp32", [pb.TableQuery(keys=key_bytes(k)) for k in keys])
    for result, table, asked in zip(by_position.results, tables, keys, strict=True):
        check(result, table, asked)
    backwards = ask(served.stub, "fp32", [pb.TableQuery(table=table.name, keys=key_bytes(asked))
                                          for table, asked in zip(tables[::-1], keys[::-1])])
    for result, table, asked in zip(backwards.results, tables[::-1], keys[::-1], strict=True):
        check(result, table, asked)


def test_tables_when_one_is_in_two_queries_then_both_results_are_correct(served):
    table = served.tables["fp16_16"]
    first, second = some_keys(table, 20, seed=1), some_keys(table, 30, seed=2)
    queries = [pb.TableQuery(table=table.name, keys=key_bytes(keys)) for keys in (first, second)]
    reply = ask(served.stub, "fp16", queries)
    check(reply.results[0], table, first)
    check(reply.results[1], table, second)


def test_tables_when_there_are_200_queries_then_each_result_is_correct(served):
    names = [f"t{i}" for i in np.random.default_rng(9).permutation(200)]
    queries = {name: some_keys(served.tables[name], 11, unknown=2, seed=len(name)) for name in names}
    reply = ask(served.stub, "many", queries)
    for result, name in zip(reply.results, names, strict=True):
        check(result, served.tables[name], queries[name])


def test_rows_when_the_request_is_compressed_then_they_are_the_same(served):
    table = served.tables["fp32_16"]
    keys = some_keys(table, 5000)
    reply = ask(served.stub, "fp32", {table.name: keys}, compression=grpc.Compression.Gzip)
    check(reply.results[0], table, keys)
    keys = some_keys(table, 40000)  # 320 KB, which a worker decompresses
    check(ask(served.stub, "fp32", {table.name: keys}, compression=grpc.Compression.Gzip).results[0], table, keys)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "128 times"):
        ask(served.stub, "fp32", {table.name: np.full(1 << 20, keys[0])}, compression=grpc.Compression.Gzip)
    check(ask(served.stub, "fp32", {table.name: keys}, compression=grpc.Compression.Deflate).results[0], table, keys)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "128 times"):
        ask(served.stub, "fp32", {table.name: np.full(1 << 20, keys[0])}, compression=grpc.Compression.Deflate)


# ---- unknown keys ------------------------------------------------------------------------------------

def test_unknown_keys_when_policy_is_zero_then_rows_are_zero_with_status_unknown(served):
    table = served.tables["fp32_16"]
    keys = np.array([table.keys[0], 77, table.keys[1]])
    result = ask(served.stub, "fp32", {table.name: keys}, unknown_key_policy=pb.UNKNOWN_KEY_POLICY_ZERO)
    rows = floats(result.results[0])
    assert statuses(result.results[0]) == [FOUND, UNKNOWN, FOUND]
    assert not rows[1].any()
    np.testing.assert_array_equal(rows[::2], table.expect(keys[::2]))


@pytest.mark.parametrize("policy", [0, pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW])
@pytest.mark.parametrize("output_type", [FP32, FP16, BF16])
def test_unknown_keys_when_policy_is_default_row_then_it_is_in_the_output_type(served, policy,
                                                                                output_type):
    table = served.tables["fp16_7"]
    reply = ask(served.stub, "fp16", {table.name: [3, 4]}, unknown_key_policy=policy,
                output_type=output_type)
    check(reply.results[0], table, [3, 4], output_type)


def test_unknown_keys_when_an_error_is_asked_then_it_names_table_and_key(served):
    with refused(grpc.StatusCode.NOT_FOUND, "fp32_16", "4711"):
        ask(served.stub, "fp32", {"fp32_16": [served.tables["fp32_16"].keys[0], 4711]},
            unknown_key_policy=pb.UNKNOWN_KEY_POLICY_ERROR)
    table = served.tables["fp32_16"]
    reply = ask(served.stub, "fp32", {table.name: table.keys[:9]},
                unknown_key_policy=pb.UNKNOWN_KEY_POLICY_ERROR)
    check(reply.results[0], table, table.keys[:9])


@pytest.mark.parametrize("policy", pb.MissPolicy.values())
def test_miss_policies_when_all_rows_are_in_memory_then_replies_are_exact(served, policy):
    table = served.tables["fp32_16"]
    keys = some_keys(table, 40, unknown=4)
    reply = ask(served.stub, "fp32", {table.name: keys}, miss_policy=policy, max_wait_us=1)
    check(reply.results[0], table, keys)


# ---- limits ------------------------------------------------------------------------------------------

def test_keys_when_as_many_as_the_limit_then_accepted_and_one_more_is_refused(served):
    table = served.tables["fp32_1"]
    keys = np.resize(some_keys(table, 10007, unknown=100), KEYS_MAX)
    result = ask(served.stub, "fp32", {table.name: keys}).results[0]
    assert result.row_count == KEYS_MAX
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(floats(result), table.expect(keys[first])[inverse])
    with refused(grpc.StatusCode.INVALID_ARGUMENT, f"queries: {KEYS_MAX + 1} keys", str(KEYS_MAX)):
        ask(served.stub, "fp32", {table.name: np.resize(keys, KEYS_MAX + 1)})
    with refused(grpc.StatusCode.INVALID_ARGUMENT, f"queries: {KEYS_MAX + 1} keys", str(KEYS_MAX)):
        ask(served.stub, "fp32", {table.name: keys, "fp32_2": [1]})


def aimed_keys(n):
    """Keys for which SplitMix64's finaliser, which can be inverted, returns multiples of 2^23. Without a secret in the
    hash, all of them would be in the same bucket of a table."""
    hashes = np.arange(n, dtype=np.uint64) << np.uint64(23)
    with np.errstate(over="ignore"):
        for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
            mixed = hashes
            for _ in range(64 // shift):
                hashes = mixed ^ (hashes >> np.uint64(shift))
            hashes = hashes * np.uint64(pow(factor, -1, 1 << 64))
    return hashes.view(np.int64)


def test_keys_when_chosen_to_collide_without_a_hash_secret_then_the_lookup_succeeds(served):
    table = served.tables["fp32_1"]
    result = ask(served.stub, "fp32", {table.name: aimed_keys(1 << 20)}).results[0]
    assert result.unique_key_count == 1 << 20


def test_keys_when_in_merged_messages_and_streamed_then_the_limit_is_the_same(served):
    """This form of a request needs the most memory in addition to the reply."""
    table = served.tables["fp32_1"]
    keys = np.arange(KEYS_MAX, dtype=np.int64) // 2  # each key twice, nearly all unknown
    pieces = [pb.TableQuery(table=table.name, key_list=half.tolist()) for half in np.split(keys, 2)]
    merged = b"".join(piece.SerializeToString() for piece in pieces)  # protobuf merges them into one message
    length = bytes((len(merged) >> shift & 0x7F) | 0x80 for shift in (0, 7, 14)) + bytes([len(merged) >> 21])
    request = pb.LookupRequest(model="fp32").SerializeToString() + b"\x1a" + length + merged
    call = served.daemon.channel().unary_stream("/hps.v1.ParameterServer/LookupStream",
                                                response_deserializer=pb.LookupResponse.FromString)
    at = 0
    for message in call(request, timeout=PATIENCE_S):
        result, = message.results
        values = floats(result)[:, 0]
        np.testing.assert_array_equal(values, table.expect(keys[at:at + result.row_count])[:, 0])
        at += result.row_count
    assert at == KEYS_MAX


def test_tables_when_more_than_the_limit_then_the_error_names_it(served):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "queries", "1024"):
        ask(served.stub, "many", [pb.TableQuery(table="t1", keys=key_bytes([1]))] * 1025)
    assert len(ask(served.stub, "many", [pb.TableQuery(table="t1")] * 1024).results) == 1024


def test_message_when_longer_than_the_limit_then_refused_and_the_connection_stays_open(served):
    stub = served.daemon.stub()
    table = served.tables["fp32_7"]
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        stub.Lookup(pb.LookupRequest(model="x" * (33 << 20)), timeout=PATIENCE_S)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):  # small after compression
        stub.Lookup(pb.LookupRequest(model="x" * (64 << 20)), timeout=PATIENCE_S,
                    compression=grpc.Compression.Gzip)
    check(ask(stub, "fp32", {table.name: table.keys[:5]}).results[0], table, table.keys[:5])


def test_reply_when_longer_than_the_limit_then_the_error_names_size_and_limit(daemon, work):
    table = Table.random("a", 100, 16)
    config = default_config([model_config("m", [table.save(work + "/m")], [16], ["a"])],
                            server={"reply_bytes_max": "64KiB"})
    one = daemon(config)
    keys = np.resize(table.keys, 1100)
    for call in (one.stub().Lookup, lambda *a, **k: list(one.stub().LookupStream(*a, **k))):
        with pytest.raises(grpc.RpcError) as caught:
            call(pb.LookupRequest(model="m", queries=[pb.TableQuery(keys=key_bytes(keys))]),
                 timeout=PATIENCE_S)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for word in ("reply_bytes_max", "65536", "fewer keys"):
            assert word in caught.value.details()
    check(ask(one.stub(), "m", {"a": keys[:1000]}).results[0], table, keys[:1000])


def test_limits_when_exceeded_then_codes_are_as_documented(daemon, work):
    with open(f"{ROOT}/docs/lookups.md", encoding="utf-8") as f:
        rows = re.findall(r"^\| (\w+)[^|]* \| `(\w+)` \| `(\w+)` \| (\d+) \|$", f.read(), re.M)
    table = Table.random("a", 100, 250)
    one = daemon(default_config([model_config("m", [table.save(work + "/m")], [250], ["a"])],
                                server={"keys_max": 4, "tables_max": 2, "request_bytes_max": 4096, "reply_bytes_max": 2048,
                                        "kserve_listen": ["127.0.0.1:0"]}))
    keys, bags, pooled = table.keys, np.zeros(6, "<i4"), {"hps_pooling": "sum"}
    beyond = {  # queries of hps.v1, model and inputs of KServe
        "keys": ([pb.TableQuery(keys=key_bytes(keys[:5]))], "m", kserve_body.hps_inputs([keys[:5]])),
        "bags": ([pb.TableQuery(offsets=bags.tobytes(), pooling=pb.POOLING_SUM)], "m.tables",
                 [("a", keys[:0]), ("a.offsets", bags)]),
        "tables": ([pb.TableQuery()] * 3, "m", kserve_body.hps_inputs([keys[:0]] * 3)),
        "request_bytes_max": ([pb.TableQuery(keys=bytes(5000))], "m", kserve_body.hps_inputs([np.zeros(700, "<i8")])),
        "reply_bytes_max": ([pb.TableQuery(keys=key_bytes(keys[:4]))], "m", kserve_body.hps_inputs([keys[:4]]))}
    for what, limit, code, status in rows:
        queries, model, inputs = beyond[limit if what == "bytes" else what]
        with refused(grpc.StatusCode[code]):
            ask(one.stub(), "m", queries)
        body, headers = kserve_body.compose(inputs, binary_output=True, **(pooled if what == "bags" else {}))
        connection = http.client.HTTPConnection(one.kserve[0], timeout=PATIENCE_S)
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        assert connection.getresponse().status == int(status), (what, limit)
        connection.close()
    assert len(rows) == len(beyond)
    # Requests that net/ refuses before it reads the message are counted, too.
    counted = 'hpsd_lookup_requests_total{code="%s"}'
    for code in {row[2] for row in rows}:
        n = 2 * sum(row[2] == code for row in rows)
        until(lambda c=code, n=n: one.metrics()[counted % c] == n, f"{n} lookups that end with {code}")


# ---- bad requests ------------------------------------------------------------------------------------

def raw(served, data):
    call = served.daemon.channel().unary_unary("/hps.v1.ParameterServer/Lookup")
    return call(data, timeout=PATIENCE_S)


@pytest.mark.parametrize("query, words", [
    (dict(keys=b"1234567"), ("queries[0].keys", "7 bytes")),
    (dict(keys=bytes(12)), ("queries[0].keys", "12 bytes", "8")),
    (dict(keys=bytes(8), key_list=[1]), ("queries[0]", "keys", "key_list")),
])
def test_query_when_malformed_then_the_error_names_the_field(served, query, words):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, *words):
        ask(served.stub, "fp32", [pb.TableQuery(table="fp32_7", **query)])


@pytest.mark.parametrize("model, table", [("fp32\0", "fp32_7"), ("fp32", "fp32_7\0"), ("many", "t7\0")])
def test_name_when_it_has_a_nul_byte_then_not_found(served, model, table):
    tail = "x" * 2000000  # must not be read beyond the end of the stored name
    with refused(grpc.StatusCode.NOT_FOUND):
        ask(served.stub, model + tail * ("\0" in model),
            [pb.TableQuery(table=table + tail * ("\0" in table), keys=bytes(8))])
    assert served.daemon.alive()


def test_label_when_no_version_has_it_then_the_error_names_it(served):
    with refused(grpc.StatusCode.NOT_FOUND, 'has the label "nightly"'):
        ask(served.stub, "fp32", {"fp32_7": [1]}, label="nightly")


def test_max_staleness_when_the_version_takes_no_updates_then_unavailable(served):
    with refused(grpc.StatusCode.UNAVAILABLE, "max_staleness_ms: got 1", "takes no updates"):
        ask(served.stub, "fp32", {"fp32_7": [1]}, max_staleness_ms=1)


@pytest.mark.parametrize("fields", [dict(consistency=pb.CONSISTENCY_ROW), dict(consistency=pb.CONSISTENCY_UNIT),
                                    dict(max_staleness_ms=0)])
def test_consistency_when_the_version_takes_no_updates_then_rows_are_correct(served, fields):
    table = served.tables["fp32_7"]
    check(ask(served.stub, "fp32", {table.name: table.keys[:2]}, **fields).results[0], table,
          table.keys[:2])


@pytest.mark.parametrize("field", ["miss_policy", "unknown_key_policy", "output_type", "consistency", "row_layout"])
def test_enum_when_its_value_is_unknown_then_the_error_names_the_field(served, field):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, field, "99"):
        ask(served.stub, "fp32", {"fp32_7": [1]}, **{field: 99})


def test_names_when_unknown_then_the_error_names_them(served):
    with refused(grpc.StatusCode.NOT_FOUND, "nothing"):
        ask(served.stub, "nothing", {"fp32_7": [1]})
    with refused(grpc.StatusCode.NOT_FOUND, "fp32", "99"):
        ask(served.stub, "fp32", {"fp32_7": [1]}, version=99)
    with refused(grpc.StatusCode.NOT_FOUND, "queries[0].table", "fp32_8"):
        ask(served.stub, "fp32", {"fp32_8": [1]})
    with refused(grpc.StatusCode.NOT_FOUND, "t1000"):
        ask(served.stub, "many", {"t1": [1], "t1000": [1]})
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "model"):
        ask(served.stub, "", {"fp32_7": [1]})
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "version", "-1"):
        ask(served.stub, "fp32", {"fp32_7": [1]}, version=-1)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, f"queries[{len(DIMS)}]: by position", f"has {len(DIMS)} tables"):
        ask(served.stub, "fp32", [pb.TableQuery()] * len(DIMS) + [pb.TableQuery(keys=key_bytes([1]))])


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x1a\xff\xff\xff\xff\x0f", b"\x08\x01",
                                  b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"])
def test_message_when_malformed_then_invalid_argument(served, data):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "malformed"):
        raw(served, data)


def test_unknown_fields_when_sent_then_they_are_ignored(served):
    table = served.tables["fp32_7"]
    request = pb.LookupRequest(model="fp32", queries=[
        pb.TableQuery(table=table.name, keys=key_bytes(table.keys[:2]))]).SerializeToString()
    reply = pb.LookupResponse.FromString(raw(served, request + b"\xa2\x06\x03abc"))
    check(reply.results[0], table, table.keys[:2])


# ---- other fields of a reply -------------------------------------------------------------------------

def test_explain_when_set_then_the_reply_has_stages_and_tiers(served):
    table = served.tables["fp32_7"]
    plain = ask(served.stub, "fp32", {table.name: table.keys[:4]})
    assert not plain.HasField("explain")
    told = ask(served.stub, "fp32", {table.name: [*table.keys[:4], 99]}, explain=True)
    assert {"decode", "queue", "host", "encode"} & {stage.name for stage in told.explain.stages}
    assert any("host" in note and table.name in note for note in told.explain.notes)
    assert [(t.tier, t.found_keys) for t in told.results[0].tier_counts if t.found_keys] == [("host", 4)]


def test_request_id_when_set_then_the_slow_log_has_it(daemon, work):
    table = Table.random("a", 1000, 64)
    one = daemon(default_config([model_config("m", [table.save(work + "/m")], [64], ["a"])],
                                server={"slow_request_ms": 0}))
    ask(one.stub(), "m", {"a": table.keys}, request_id="from-the-field")
    ask(one.stub(), "m", {"a": table.keys}, metadata=[("x-request-id", "from-the-metadata")])
    listed, = one.ctl("-o", "json", "slowlog", "get")
    assert [r["request_id"] for r in listed["requests"]][:2] == ["from-the-metadata", "from-the-field"]
    assert all(r["model"] == "m" and r["key_count"] == 1000 for r in listed["requests"])
    assert not any(r.get("trace_id") for r in listed["requests"])
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    ask(one.stub(), "m", {"a": table.keys}, request_id="traced",
        metadata=[("traceparent", f"00-{trace}-00f067aa0ba902b7-01")])
    newest = one.ctl("-o", "json", "slowlog", "get")[0]["requests"][0]
    assert (newest["request_id"], newest["trace_id"]) == ("traced", trace)
    assert f"trace_id={trace}" in one.log()
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "request_id"):
        ask(one.stub(), "m", {"a": [1]}, request_id="x" * 5000)
    one.ctl("slowlog", "reset")
    assert not one.ctl("-o", "json", "slowlog", "get")[0].get("requests")


STAGES = ("receive", "decode", "admission", "queue", "gpu", "host", "redis", "rocksdb", "wait", "unit", "work", "loop",
          "encode", "send")


def test_slow_log_when_lookups_are_concurrent_then_stage_times_add_up_to_the_duration(daemon, work):
    table = Table.random("a", 20000, 64)
    one = daemon(default_config([model_config("m", [table.save(work + "/m")], [64], ["a"], gpucache=False)],
                                volatile_db={"type": "disabled"},
                                server={"slow_request_ms": 0, "loop_threads": 1, "worker_threads": 1, "io_threads": 2}))
    stub = one.stub()
    calls = [stub.Lookup.future(pb.LookupRequest(model="m", queries=[pb.TableQuery(table="a", keys=key_bytes(keys))],
                                                 consistency=i % 3))
             for i, keys in enumerate([table.keys, table.keys[:10], table.keys[::-1]] * 8)]
    assert all(call.result(timeout=PATIENCE_S).version == 1 for call in calls)
    requests = until(lambda: (lambda seen: seen if len(seen) == len(calls) else None)(
        one.ctl("-o", "json", "slowlog", "get")[0].get("requests", [])), "all of them")
    for request in requests:
        named = {stage: int(request.get(f"{stage}_us", 0)) for stage in STAGES}
        assert sum(named.values()) == int(request["duration_us"]), (named, request)
    assert sum(int(request.get("rocksdb_us", 0)) for request in requests) > 0
    told = one.ctl("slowlog", "get").splitlines()[0].split()
    assert {stage.upper() for stage in STAGES} <= set(told)
    assert all(f"{stage}_us=" in one.log() for stage in STAGES)


# ---- LookupStream ------------------------------------------------------------------------------------

def stream(stub, model, queries, **fields):
    queries = [pb.TableQuery(table=name, keys=key_bytes(keys)) for name, keys in queries.items()]
    return list(stub.LookupStream(pb.LookupRequest(model=model, queries=queries, **fields),
                                  timeout=PATIENCE_S))


@pytest.mark.parametrize("output_type", [FP32, FP16, BF16])
def test_stream_when_read_with_default_limits_then_it_equals_the_unary_reply(served, output_type):
    stub = served.daemon.stub(options=[])
    names = ["fp32_1", "fp32_7", "fp32_1000", "fp32_4096"]
    queries = {name: some_keys(served.tables[name], 2000, unknown=60, seed=i)
               for i, name in enumerate(names)}
    whole = ask(served.stub, "fp32", queries, output_type=output_type)
    messages = stream(stub, "fp32", queries, output_type=output_type)
    assert len(messages) > 30 / (4 // VALUE_BYTES[output_type])
    gathered = {name: [b"", [], 0, 0] for name in names}
    order = []
    for message in messages:
        assert message.ByteSize() <= MESSAGE_BYTES_MAX
        assert (message.model, message.version, len(message.results)) == ("fp32", 1, 1)
        piece = message.results[0]
        assert len(piece.rows) == piece.row_count * piece.dim * VALUE_BYTES[output_type]
        assert piece.unknown_key_count == statuses(piece).count(UNKNOWN)
        if piece.table not in order:
            order.append(piece.table)
        assert order[-1] == piece.table
        sofar = gathered[piece.table]
        sofar[0] += piece.rows
        sofar[1] += statuses(piece)
        sofar[2] += piece.row_count
        sofar[3] += piece.unknown_key_count
    assert order == names
    for result in whole.results:
        rows, status, n_rows, n_unknown = gathered[result.table]
        assert rows == result.rows
        assert status == statuses(result)
        assert (n_rows, n_unknown) == (result.row_count, result.unknown_key_count)


def test_stream_when_it_has_no_keys_then_it_ends_with_ok(served):
    assert sum(len(result.rows) for message in stream(served.stub, "fp32", {"fp32_7": []})
               for result in message.results) == 0
    with refused(grpc.StatusCode.NOT_FOUND, "nothing"):
        stream(served.stub, "nothing", {"fp32_7": [1]})


def test_unary_reply_when_longer_than_the_clients_limit_then_the_client_reports_it(served):
    stub = served.daemon.stub(options=[])
    table = served.tables["fp32_4096"]
    keys = some_keys(table, 400)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "4194304"):
        ask(stub, "fp32", {table.name: keys})
    check(ask(stub, "fp32", {table.name: keys[:9]}).results[0], table, keys[:9])


# ---- concurrency and metrics -------------------------------------------------------------------------

def test_rows_when_many_threads_look_up_then_each_gets_its_own_rows(served):
    failures = []

    def caller(number):
        table = served.tables[f"fp32_{DIMS[number % 6]}"]
        try:
            for turn in range(20):
                keys = some_keys(table, 64, unknown=2, seed=100 * number + turn)
                check(ask(served.stub, "fp32", {table.name: keys}).results[0], table, keys)
        except (AssertionError, grpc.RpcError) as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=caller, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_metrics_when_requests_have_ended_then_counters_grew_by_their_keys(daemon, work):
    table = Table.random("a", 1000, 8)
    one = daemon(default_config([model_config("m", [table.save(work + "/m")], [8], ["a"])]))
    stub = one.stub()

    def sample(metrics, name, **labels):
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(value for full, value in metrics.items()
                   if full.split("{")[0] == f"hpsd_{name}" and all(word in full for word in wanted))

    def counts():
        now = one.metrics()
        return np.array([
            sample(now, "lookup_keys_total", model="m", table="a", status="found"),
            sample(now, "lookup_keys_total", model="m", table="a", status="unknown"),
            sample(now, "lookup_unique_keys_total", model="m", table="a"),
            sample(now, "tier_keys_total", model="m", table="a", tier="host", result="hit"),
            sample(now, "rpc_requests_total", code="OK"),
            sample(now, "rpc_requests_total", code="NOT_FOUND")])

    before = counts()
    total = np.zeros(4)
    for turn in range(5):
        keys = some_keys(table, 100, unknown=7, seed=turn)
        result = ask(stub, "m", {"a": keys}).results[0]
        total += (result.row_count - result.unknown_key_count, result.unknown_key_count,
                  result.unique_key_count, sum(t.found_keys for t in result.tier_counts))
    with refused(grpc.StatusCode.NOT_FOUND):
        ask(stub, "m", {"b": [1]})
    grown = counts() - before
    assert list(grown[:4]) == list(total)
    assert list(grown[4:]) == [5, 1]
    assert sample(one.metrics(), "requests_in_flight") == 0
    stats, = one.ctl("-o", "json", "stats", "m")
    assert int(stats["tables"][0]["found_key_count"]) == total[0]
    assert int(stats["tables"][0]["unknown_key_count"]) == total[1]
