# SPDX-License-Identifier: Apache-2.0
"""Pooled lookups, rows in the stored type, and one matrix of all tables, over gRPC with stock grpcio. Compared with
NumPy bit for bit (bag_rows.py)."""
import grpc
import numpy as np
import pytest

import dtypes
from bag_rows import (BY_COUNT, DEFAULT, DEFAULTED, FOUND, MEAN, POOLINGS, SQRTN, SUM, TIERS, UNKNOWN, Served, Stored,
                      pooled, query, states, weights_of)
from rig import (BF16, FP16, FP32, PATIENCE_S, SANITIZER, Daemon, ask, default_config, encoded, model_config, pb, refused,
                 scratch, until)

MESSAGE_BYTES_MAX = 1 << 20
SHAPES = {"fp32": (dtypes.FP32, 16, 3000), "fp16": (dtypes.FP16, 7, 500), "int8": (dtypes.INT8_F32, 33, 500),
          "wide": (dtypes.FP32, 64, 30_000)}


@pytest.fixture(name="tables", scope="module")
def tables_of_all_tests():
    return {name: Stored(name, *shape, i) for i, (name, shape) in enumerate(SHAPES.items())}


# ThreadSanitizer checks which threads add up rows; a few combinations of tiers are enough for this.
SERVED = list(TIERS)[1::2] if SANITIZER == "thread" else TIERS


@pytest.fixture(name="served", scope="module", params=SERVED)
def daemon_of_all_tests(request, tables):
    with scratch() as work:
        served = Served(work, tables, request.param)
        with served.daemon:
            yield served


def bags_of(n_keys, seed=1):
    """Offsets of bags with n_keys keys in total. Some bags are empty."""
    rng = np.random.default_rng(seed)
    return np.concatenate([[0], np.sort(rng.integers(0, n_keys + 1, n_keys // 5)), [n_keys]]).astype("<u4")


def check(result, table, keys, offsets, pooling, weights=None, output_type=FP32, unknown=None):
    assert (result.table, result.dim, result.data_type) == (table.name, table.dim, output_type)
    assert result.row_count == len(offsets) - 1
    told = states(result, len(keys))
    assert told == [FOUND if int(key) in table.at else UNKNOWN for key in keys]
    assert result.unknown_key_count == told.count(UNKNOWN) and result.defaulted_key_count == 0
    assert len(np.unique(keys)) <= result.unique_key_count <= len(keys)
    assert sum(t.found_keys for t in result.tier_counts) <= result.unique_key_count
    expected = pooled(table.rows(keys, told, unknown), offsets, pooling, weights)
    assert result.rows == encoded(expected, output_type)


# ---- bags --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_bags_when_of_every_table_then_every_bit_is_correct(served, pooling, weighted):
    asked = []
    for i, table in enumerate(served.tables.values()):
        keys = table.some_keys(300, n_unknown=20, seed=i)
        keys[50:90] = keys[:40]  # repeated keys
        asked.append((table, keys, bags_of(300, i), weights_of(300, i) if weighted else None))
    reply = served.ask([query(table, keys, offsets, pooling, weights) for table, keys, offsets, weights in asked])
    for result, (table, keys, offsets, weights) in zip(reply.results, asked, strict=True):
        check(result, table, keys, offsets, pooling, weights)


@pytest.mark.parametrize("output_type", [FP16, BF16])
def test_bags_when_output_is_16_bit_then_the_sum_is_rounded_once(served, output_type):
    table = served.tables["int8"]
    keys, offsets, weights = table.some_keys(100, 9), bags_of(100), weights_of(100)
    reply = served.ask([query(table, keys, offsets, SQRTN, weights)], output_type=output_type)
    check(reply.results[0], table, keys, offsets, SQRTN, weights, output_type)


def test_bags_when_weights_cancel_out_then_a_mean_is_zero(served):
    table = served.tables["fp32"]
    keys, offsets = table.some_keys(4), np.array([0, 2, 4])
    weights = np.array([1, -1, 0, 0], np.float32)
    for pooling in POOLINGS:
        result = served.ask([query(table, keys, offsets, pooling, weights)]).results[0]
        check(result, table, keys, offsets, pooling, weights)


def test_bags_when_empty_then_rows_are_zero_and_when_missing_then_there_are_no_rows(served):
    table = served.tables["fp16"]
    for offsets in (np.zeros(6, int), np.zeros(1, int)):
        result = served.ask([query(table, [], offsets, MEAN)]).results[0]
        check(result, table, [], offsets, MEAN)


def test_bag_when_it_has_100000_keys_then_rows_are_added_in_key_order(served):
    table = served.tables["fp32"]
    keys = table.some_keys(100_000, 100)
    offsets = np.array([0, 0, len(keys) - 1, len(keys)])
    check(served.ask([query(table, keys, offsets, SUM)]).results[0], table, keys, offsets, SUM)


@pytest.mark.parametrize("policy, unknown", [(pb.UNKNOWN_KEY_POLICY_ZERO, 0.0),
                                             (pb.UNKNOWN_KEY_POLICY_DEFAULT_ROW, DEFAULT)])
def test_unknown_keys_when_in_a_bag_then_the_policy_chooses_their_rows(served, policy, unknown):
    table = served.tables["fp32"]
    keys, offsets = np.concatenate([table.keys[:3], [5, 6, 7]]), np.array([0, 2, 4, 6])
    result = served.ask([query(table, keys, offsets, MEAN)], unknown_key_policy=policy).results[0]
    check(result, table, keys, offsets, MEAN, unknown=unknown)


def test_unknown_keys_when_an_error_is_asked_then_it_names_table_and_key(served):
    table = served.tables["fp32"]
    with refused(grpc.StatusCode.NOT_FOUND, table.name, "4711"):
        served.ask([query(table, [table.keys[0], 4711], np.array([0, 2]), SUM)],
                   unknown_key_policy=pb.UNKNOWN_KEY_POLICY_ERROR)


@pytest.mark.parametrize("policy", pb.MissPolicy.values())
def test_miss_policies_when_pooled_then_each_key_adds_the_row_of_its_status(served, policy):
    table = served.tables["wide"]
    keys, offsets = table.some_keys(400, 40, seed=policy), bags_of(400)
    result = served.ask([query(table, keys, offsets, SUM)], miss_policy=policy, max_wait_us=1).results[0]
    told = states(result, 400)
    assert result.rows == encoded(pooled(table.rows(keys, told), offsets, SUM), FP32)
    assert (result.defaulted_key_count, result.unknown_key_count) == (told.count(DEFAULTED), told.count(UNKNOWN))


def test_consistency_unit_when_pooled_then_rows_are_correct(served):
    table = served.tables["int8"]
    keys, offsets = table.some_keys(200, 10), bags_of(200)
    reply = served.ask([query(table, keys, offsets, MEAN)], consistency=pb.CONSISTENCY_UNIT)
    check(reply.results[0], table, keys, offsets, MEAN)


def test_explain_when_pooled_then_reports_how_many_bags_were_pooled_in_place(served):
    table = served.tables["fp16"]
    keys = table.some_keys(20)
    told = served.ask([query(table, keys, np.array([0, 20]), SUM)], explain=True)
    [note] = [note for note in told.explain.notes if "bags pooled in place" in note]
    assert note.startswith(f"table '{table.name}': ") and note.endswith(" of 1"), note


# ---- rows in the stored type, and one matrix ---------------------------------------------------------

def test_raw_when_set_then_rows_have_the_stored_bytes_and_type(served):
    tables = list(served.tables.values())
    keys = [table.some_keys(50, seed=3) for table in tables]
    reply = served.ask([query(table, asked) for table, asked in zip(tables, keys, strict=True)], output_type=pb.DATA_TYPE_RAW)
    for result, table, asked in zip(reply.results, tables, keys, strict=True):
        assert (result.data_type, result.dim, result.row_count) == (table.dtype, table.dim, 50)
        assert result.rows == table.bytes[[table.at[int(key)] for key in asked]].tobytes()


def test_raw_when_a_key_is_unknown_then_the_default_row_has_the_stored_type(served):
    for table in served.tables.values():
        result = served.ask([query(table, [5])], output_type=pb.DATA_TYPE_RAW).results[0]
        assert result.rows == dtypes.stored(np.full((1, table.dim), DEFAULT, np.float32), table.dtype).tobytes()


def side_by_side(served, n, seed=1):
    """Queries of n rows each, some pooled, and the expected matrix."""
    queries, columns = [], []
    for i, table in enumerate(served.tables.values()):
        if i % 2:
            keys = table.some_keys(n, n // 9, seed=seed)
            queries.append(query(table, keys))
            offsets, pooling, weights = np.arange(n + 1), SUM, None
        else:
            keys, offsets, pooling = table.some_keys(3 * n, n // 9, seed=seed), np.arange(0, 3 * n + 1, 3), BY_COUNT
            weights = weights_of(3 * n, i)
            queries.append(query(table, keys, offsets, pooling, weights))
        told = [FOUND if int(key) in table.at else UNKNOWN for key in keys]
        columns.append(pooled(table.rows(keys, told), offsets, pooling, weights))
    return queries, np.hstack(columns)


def check_columns(reply, tables, n):
    column = 0
    for result, table in zip(reply.results, tables, strict=True):
        assert (result.table, result.dim, result.column) == (table.name, table.dim, column)
        assert (result.row_count, result.rows) == (n, b"")
        column += table.dim


@pytest.mark.parametrize("output_type", [FP32, FP16, BF16])
def test_matrix_when_layout_is_concat_then_each_row_joins_the_rows_of_all_tables(served, output_type):
    queries, expected = side_by_side(served, 40)
    reply = served.ask(queries, row_layout=pb.ROW_LAYOUT_CONCAT, output_type=output_type)
    check_columns(reply, served.tables.values(), 40)
    assert reply.matrix == encoded(expected, output_type)


def test_matrix_when_a_table_is_in_two_queries_then_its_columns_are_repeated(served):
    table = served.tables["fp16"]
    keys = table.some_keys(30)
    reply = served.ask([query(table, keys), query(table, keys[::-1])], row_layout=pb.ROW_LAYOUT_CONCAT)
    rows = table.rows(keys, [FOUND] * 30)
    assert reply.matrix == encoded(np.hstack([rows, rows[::-1]]), FP32)


def test_matrix_when_there_are_no_rows_or_queries_then_it_is_empty(served):
    table = served.tables["fp16"]
    reply = served.ask([query(table, []), query(table, [], np.zeros(1, int), SUM)], row_layout=pb.ROW_LAYOUT_CONCAT)
    assert (reply.matrix, [result.row_count for result in reply.results]) == (b"", [0, 0])
    assert served.ask([], row_layout=pb.ROW_LAYOUT_CONCAT).matrix == b""


# ---- streams -----------------------------------------------------------------------------------------

def stream(served, queries, **fields):
    request = pb.LookupRequest(model="m", queries=queries, **fields)
    for message in served.stub.LookupStream(request, timeout=PATIENCE_S):
        assert message.ByteSize() <= MESSAGE_BYTES_MAX
        yield message


def test_stream_when_pooled_then_messages_have_complete_bags_and_their_key_statuses(served):
    table = served.tables["wide"]
    n = 30_000
    keys, offsets = table.some_keys(n, 300), np.arange(0, n + 1, 2)
    rows, at, told = b"", 0, []
    for message in stream(served, [query(table, keys, offsets, SUM)]):
        [result] = message.results
        begin, end = offsets[at], offsets[at + result.row_count]
        told += states(result, end - begin)
        assert result.unknown_key_count == told[begin:].count(UNKNOWN)
        assert len(np.unique(keys[begin:end])) <= result.unique_key_count <= end - begin
        rows += result.rows
        at += result.row_count
    assert at == len(offsets) - 1
    whole = served.ask([query(table, keys, offsets, SUM)]).results[0]
    assert rows == whole.rows and told == states(whole, n)


def test_stream_when_layout_is_concat_then_messages_have_complete_rows(served):
    n = 4000
    queries, _ = side_by_side(served, n)
    matrix, at = b"", 0
    for message in stream(served, queries, row_layout=pb.ROW_LAYOUT_CONCAT):
        n_rows = message.results[0].row_count
        check_columns(message, served.tables.values(), n_rows)
        assert len(message.matrix) == n_rows * 4 * sum(table.dim for table in served.tables.values())
        matrix += message.matrix
        at += n_rows
    assert at == n and matrix == served.ask(queries, row_layout=pb.ROW_LAYOUT_CONCAT).matrix


def test_stream_when_rows_are_raw_then_they_equal_the_stored_rows(served):
    table = served.tables["int8"]
    keys = table.some_keys(40_000)
    messages = list(stream(served, [query(table, keys)], output_type=pb.DATA_TYPE_RAW))
    assert len(messages) > 1
    assert {message.results[0].dim for message in messages} == {table.dim}
    assert b"".join(message.results[0].rows for message in messages) == \
        table.bytes[[table.at[int(key)] for key in keys]].tobytes()


# ---- refused requests --------------------------------------------------------------------------------

REFUSED = {
    "queries[1].offsets[0]": dict(keys=bytes(8), offsets=np.array([1, 1]), pooling=SUM),
    "queries[1].offsets[2]": dict(keys=bytes(8), offsets=np.array([0, 1, 0, 1]), pooling=SUM),
    "queries[1].offsets[1]": dict(keys=bytes(8), offsets=np.array([0, 2**32 - 1]), pooling=SUM),
    "queries[1].offsets: got none": dict(keys=bytes(8), pooling=SUM),
    "queries[1].offsets: needs": dict(keys=bytes(8), offsets=np.array([0, 1])),
    "queries[1].weights: needs": dict(keys=bytes(8), weights=bytes(4)),
    "queries[1].weights: got 8 bytes": dict(keys=bytes(8), offsets=np.array([0, 1]), pooling=SUM, weights=bytes(8)),
    "queries[1].pooling: 6": dict(keys=bytes(8), offsets=np.array([0, 1]), pooling=6),
}


@pytest.mark.parametrize("words", REFUSED)
def test_bags_when_malformed_then_the_error_names_field_and_index(served, words):
    fields = dict(REFUSED[words])
    if "offsets" in fields:
        fields["offsets"] = fields["offsets"].astype("<u4").tobytes()
    with refused(grpc.StatusCode.INVALID_ARGUMENT, words):
        served.ask([pb.TableQuery(table="fp32"), pb.TableQuery(table="fp32", **fields)])


def test_fields_when_incompatible_then_the_error_names_both(served):
    table = served.tables["fp32"]
    bag = query(table, [1], np.array([0, 1]), SUM)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "queries[0].pooling", "RAW"):
        served.ask([bag], output_type=pb.DATA_TYPE_RAW)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "row_layout", "RAW"):
        served.ask([query(table, [1])], output_type=pb.DATA_TYPE_RAW, row_layout=pb.ROW_LAYOUT_CONCAT)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "queries[1]: 2 keys, but queries[0] has 1 bags", "CONCAT"):
        served.ask([bag, query(table, [1, 2])], row_layout=pb.ROW_LAYOUT_CONCAT)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "output_type: 4", "RAW"):
        served.ask([query(table, [1])], output_type=pb.DATA_TYPE_INT8_ROWWISE_F32)


def test_bags_when_gathered_rows_exceed_the_limit_then_the_error_names_it(tables):
    """The reply has only one row, but the rows that it is added from need memory, too."""
    table = tables["fp32"]
    keys = table.some_keys(50_000)
    with scratch() as work:
        config = default_config([model_config("m", [table.save(work)], [table.dim], [table.name])],
                                volatile_db={"type": "disabled"}, server={"reply_bytes_max": "1MiB"})
        with Daemon(work, config) as one:
            with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "reply_bytes_max"):
                ask(one.stub(), "m", [query(table, keys, np.array([0, len(keys)]), SUM)])
            keys = keys[:10_000]
            offsets = np.array([0, len(keys)])
            result = ask(one.stub(), "m", [query(table, keys, offsets, SUM)]).results[0]
            check(result, table, keys, offsets, SUM)


def test_call_when_cancelled_then_its_reply_memory_is_released(served):
    table = served.tables["wide"]
    keys, offsets = table.some_keys(60_000), np.arange(0, 60_001, 4)
    request = pb.LookupRequest(model="m", queries=[query(table, keys, offsets, SUM)] * 8)
    calls = [served.stub.Lookup.future(request, timeout=PATIENCE_S) for _ in range(6)]
    for call in calls:
        call.cancel()
    until(lambda: served.daemon.metrics()["hpsd_requests_in_flight"] == 0, "calls that were cancelled are over")
    until(lambda: served.daemon.metrics()["hpsd_reply_bytes_in_flight"] == 0, "their room is free")
    keys, offsets = keys[:100], np.array([0, 100])
    check(served.ask([query(table, keys, offsets, SUM)]).results[0], table, keys, offsets, SUM)


# ---- metrics -----------------------------------------------------------------------------------------

def test_metrics_and_slow_log_when_pooled_then_they_count_keys(tables):
    table = tables["fp16"]
    with scratch() as work:
        config = default_config([model_config("m", [table.save(work)], [table.dim], [table.name])],
                                server={"slow_request_ms": 0})
        with Daemon(work, config) as one:
            keys = table.some_keys(100, 10)
            ask(one.stub(), "m", [query(table, keys, np.arange(0, 101, 20), SUM)])
            metrics = one.metrics()
            counted = {state: sum(v for k, v in metrics.items() if k.startswith("hpsd_lookup_keys_total")
                                  and f'status="{state}"' in k) for state in ("found", "unknown")}
            assert counted == {"found": 90, "unknown": 10}
            [listed] = one.ctl("-o", "json", "slowlog", "get")
            assert listed["requests"][0]["key_count"] == 100
