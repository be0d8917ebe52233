# SPDX-License-Identifier: Apache-2.0
"""Lookups from Python: types and shapes of keys, results, and errors that say what was expected."""
import asyncio
import copy
import pickle

import grpc
import numpy as np
import pytest

import hpsd
import hpsd.aio
import made_up
from hpsd import _answer, _flat, _lookup, _messages, _model, _query, _wait, _wire
from rig import UNLIMITED, kserve_pb, pb, pb_grpc
from served import DEFAULT, DIMS, MODEL, N_ROWS, Sync, pooled, rows_of

KEYS = [3, 0, 199, 3]
FOUND, UNKNOWN = hpsd.Status.FOUND, hpsd.Status.UNKNOWN


@pytest.fixture(name="client", params=[hpsd.connect, Sync], ids=["sync", "aio"])
def of_both_kinds(request, daemon):
    client = request.param(daemon.grpc[0], model=MODEL)
    yield client
    client.close()


# ---- keys and rows -----------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4", ">i8"])
def test_lookup_when_keys_have_any_integer_type_then_rows_are_correct(client, dtype):
    keys = np.array([3, 0, 99, 3], dtype)
    rows = client.lookup("items", keys)
    assert rows.dtype == np.float32 and rows.flags.aligned and rows.flags.writeable
    np.testing.assert_array_equal(rows, rows_of("items", keys))


@pytest.mark.parametrize("keys", [7, [], [1, 2], [[1, 2], [3, 4], [5, 6]], np.zeros((2, 0, 3), np.int32),
                                  np.arange(24).reshape(2, 3, 4), np.arange(40)[::4], np.arange(12).reshape(3, 4).T, range(5)])
def test_lookup_when_keys_have_any_shape_then_rows_have_that_shape(client, keys):
    rows = client.lookup("items", keys)
    assert rows.shape == np.shape(keys) + (4,)
    np.testing.assert_array_equal(rows, rows_of("items", np.asarray(keys, np.int64)))


def test_lookup_when_keys_use_all_64_bits_then_no_bit_is_lost(client):
    keys = np.array([2**64 - 1, 2**63, 1], np.uint64)
    assert list(client.lookup("items", keys, full=True).status) == [UNKNOWN, UNKNOWN, FOUND]
    assert list(client.lookup("items", keys.view(np.int64), full=True).status) == [UNKNOWN, UNKNOWN, FOUND]


@pytest.mark.parametrize("keys", [[2**63 + 1, 5], [-1, 2**63 + 1, 5], [[2**64 - 1, 5], [-2**63, 2**53 + 1]],
                                  [np.uint64(2**63), np.int64(5)], [np.array([2**63], np.uint64), np.array([5])],
                                  np.array([-1, 2**63], object), 2**64 - 1])
def test_lookup_when_keys_are_python_integers_then_their_bits_are_kept(client, keys):
    exact = np.array(keys, object)
    bits = np.array([int(key) % 2**64 for key in exact.flat], np.uint64).reshape(exact.shape)
    np.testing.assert_array_equal(_query.query("items", keys).keys, bits.view(np.int64).reshape(-1))
    np.testing.assert_array_equal(client.lookup("items", keys, full=True).status, np.where(bits == 5, FOUND, UNKNOWN))


def test_lookup_when_of_several_tables_then_results_are_in_the_order_of_the_request(client):
    by_name = client.lookup({"users": KEYS, "items": [[5]]})
    assert list(by_name) == ["users", "items"] and by_name["items"].shape == (1, 1, 4)
    np.testing.assert_array_equal(by_name["users"], rows_of("users", KEYS))
    first, second = client.lookup([("items", [1]), ("items", [2, 3])])
    np.testing.assert_array_equal(first, rows_of("items", [1]))
    np.testing.assert_array_equal(second, rows_of("items", [2, 3]))
    assert client.lookup({}) == {} and client.lookup([]) == []


def test_lookup_when_full_then_returns_statuses_and_version(client):
    answer = client.lookup("items", [[1, 777], [2, 3]], full=True)
    assert (answer.model, answer.version, answer.label) == (MODEL, 1, "") and answer.update_sequence >= 0
    np.testing.assert_array_equal(answer.status, [[FOUND, UNKNOWN], [FOUND, FOUND]])
    np.testing.assert_array_equal(answer.rows[0, 1], np.full(4, DEFAULT, np.float32))
    answer = client.lookup({"items": [1], "users": [777]}, full=True)
    assert {name: list(status) for name, status in answer.status.items()} == {"items": [FOUND], "users": [UNKNOWN]}


@pytest.mark.parametrize("output, dtype", [("fp32", "<f4"), ("fp16", "<f2"), (np.float16, "<f2"), ("bf16", "<u2")])
def test_lookup_when_output_type_is_set_then_rows_have_it(client, output, dtype):
    rows = client.lookup("wide", KEYS, output=output)
    assert rows.dtype == np.dtype(dtype)
    wide = (rows.astype(np.uint32) << 16).view(np.float32) if output == "bf16" else rows
    np.testing.assert_array_equal(wide.astype(np.float32), rows_of("wide", KEYS))


def test_policies_when_set_then_the_server_applies_them(client):
    np.testing.assert_array_equal(client.lookup("items", [777], unknown="zero"), np.zeros((1, 4)))
    with pytest.raises(hpsd.NotFound, match="777"):
        client.lookup("items", [777], unknown="error")
    assert client.lookup("items", [1], miss="exact", consistency="unit").shape == (1, 4)
    assert client.lookup("items", [1], miss="wait", max_wait=0.5).shape == (1, 4)
    with pytest.raises(hpsd.Unavailable, match="max_staleness_ms: got 250"):  # the model takes no updates
        client.lookup("items", [1], max_staleness=0.25, timeout=0.2)


# ---- bags --------------------------------------------------------------------------------------------

BAG_KEYS = np.array([3, 4, 5, 9, 9, 1], np.int32)
OFFSETS = [0, 2, 2, 5, 6]
WEIGHTS = np.array([0.5, 2, 1, -1, 0.25, 4])


@pytest.mark.parametrize("mode", ["sum", "mean", "sqrtn", "mean_by_count"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_bags_when_pooled_then_rows_equal_numpy(client, mode, weights):
    spec = (BAG_KEYS, OFFSETS) if weights is None else (BAG_KEYS, OFFSETS, weights)
    rows = client.lookup("users", spec, pooling=mode)
    np.testing.assert_allclose(rows, pooled("users", BAG_KEYS, OFFSETS, weights, mode), rtol=1e-6)


def test_bags_when_there_are_no_offsets_then_the_last_dimension_is_a_bag(client):
    keys = np.arange(24).reshape(2, 3, 4)
    rows = client.lookup("items", keys, pooling="sum")
    np.testing.assert_array_equal(rows, rows_of("items", keys).sum(2))
    assert client.lookup("items", [1, 2], pooling="mean").shape == (4,)


def test_bags_when_of_several_tables_then_each_uses_its_own_pooling(client):
    rows = client.lookup({"items": (BAG_KEYS, OFFSETS), "users": [1, 2]}, pooling={"items": "sum"})
    np.testing.assert_array_equal(rows["items"], pooled("items", BAG_KEYS, OFFSETS))
    np.testing.assert_array_equal(rows["users"], rows_of("users", [1, 2]))


def test_statuses_when_pooled_then_one_per_key(client):
    answer = client.lookup("items", (np.array([1, 777, 2]), [0, 0, 3]), pooling="sum", full=True)
    assert list(answer.status) == [FOUND, UNKNOWN, FOUND] and answer.rows.shape == (2, 4)


def test_concat_when_set_then_returns_one_matrix(client):
    answer = client.lookup({"items": (BAG_KEYS, OFFSETS), "users": [3, 2, 1, 0]}, pooling={"items": "sum"}, concat=True,
                           full=True)
    assert answer.rows.shape == (4, 12) and answer.columns == {"items": slice(0, 4), "users": slice(4, 12)}
    np.testing.assert_array_equal(answer.rows[:, :4], pooled("items", BAG_KEYS, OFFSETS))
    np.testing.assert_array_equal(answer.rows[:, 4:], rows_of("users", [3, 2, 1, 0]))
    assert client.lookup([("items", [[1, 2]]), ("items", [[3, 4]])], concat=True, output="fp16").shape == (1, 2, 8)


# ---- flat --------------------------------------------------------------------------------------------

FLAT_KEYS = [3, 0, 777, 199, 7]


def flat_rows(counts):
    """The rows of FLAT_KEYS, table by table."""
    ends = np.cumsum([0, *counts])
    rows = [rows_of(table, FLAT_KEYS[begin:end]) for table, begin, end in zip(DIMS, ends, ends[1:])]
    for of, begin, end in zip(rows, ends, ends[1:]):
        of[np.array(FLAT_KEYS[begin:end], int) >= N_ROWS] = DEFAULT
    return rows


@pytest.mark.parametrize("counts", [[2, 1, 2], [0, 5], np.array([5], np.uint8), [3, 2, 0, 0]])
@pytest.mark.parametrize("output, dtype", [(None, "<f4"), ("fp16", "<f2")])
def test_flat_when_looked_up_then_rows_are_in_the_order_of_the_tables(client, counts, output, dtype):
    for keys in (FLAT_KEYS, np.array(FLAT_KEYS, np.uint16), np.array([FLAT_KEYS], ">i8")):
        rows = client.lookup_flat(keys, counts, output=output)
        expected = flat_rows(counts)
        expected = expected[0] if len(expected) == 1 else np.concatenate([of.ravel() for of in expected])
        assert rows.dtype == dtype and rows.flags.aligned and rows.flags.writeable
        np.testing.assert_array_equal(rows, expected.astype(dtype))


def test_flat_when_full_then_returns_statuses_widths_and_version(client):
    answer = client.lookup_flat(FLAT_KEYS, [2, 1, 2], full=True, miss="wait", max_wait=0.5)
    np.testing.assert_array_equal(answer.rows, np.concatenate([of.ravel() for of in flat_rows([2, 1, 2])]))
    assert list(answer.status) == [FOUND, FOUND, UNKNOWN, FOUND, FOUND]
    assert (answer.dims, answer.version) == ((4, 8, 16), 1)
    empty = client.lookup_flat([], [0, 0, 0, 0], full=True)
    assert (empty.rows.shape, empty.status.shape, empty.dims) == ((0,), (0,), (4, 8, 16, 0))
    assert client.lookup_flat([2**63 + 1, 1], [2]).shape == (2, 4)


@pytest.mark.parametrize("keys, counts, how, words", [
    ([1.5], [1], {}, "keys: got float64, expected any integer dtype"),
    ([1], [1.0], {}, "counts: got float64"),
    ([1], 1, {}, "counts: got shape (), expected one dimension with a count for each table"),
    ([1], [], {}, "counts: got shape (0,)"),
    ([1, 2], [1, 2], {}, "counts: got [1, 2], expected numbers of 0 or more with the sum 2"),
    ([1], [2, -1], {}, "counts: got [2, -1]"),
    ([], np.array([2**63, 2**63], np.uint64), {}, "counts: got [9223372036854775808"),
    ([1], [0, 0, 0, 1], {}, "has 3 tables"),
    ([1], [1], {"output": "raw"}, "output: got 'raw', expected one of fp32, fp16, bf16"),
    ([1], [1], {"miss": "never"}, "miss: got 'never', expected one of exact, wait"),
    ([1], [1], {"timeout": 0}, "timeout: got 0, expected seconds from"),
])
def test_flat_when_the_request_is_invalid_then_the_error_says_what_was_expected(client, keys, counts, how, words):
    with pytest.raises(hpsd.InvalidArgument) as caught:
        client.lookup_flat(keys, counts, **how)
    assert words in str(caught.value), str(caught.value)


def test_flat_when_written_then_protobuf_parses_it_and_when_a_reply_is_cut_then_malformed(daemon):
    flat = _flat.Flat([1, 777], [2], "wait", 2.5, "bf16", True)
    request = kserve_pb.ModelInferRequest.FromString(flat.request("m", 2**40))
    assert (request.model_name, request.model_version) == ("m", str(2**40))
    assert {name: (one.string_param, one.int64_param) for name, one in request.parameters.items()} == {
        "hps_miss_policy": ("wait", 0), "hps_max_wait_us": ("", 2_500_000), "hps_output_type": ("BF16", 0)}
    inputs = [(one.name, one.datatype, list(one.shape)) for one in request.inputs]
    assert inputs == [("KEYS", "INT64", [2]), ("NUMKEYS", "INT32", [1])]
    assert [one.name for one in request.outputs] == ["OUTPUT0", "STATUS"]
    assert list(request.raw_input_contents) == [np.array([1, 777], "<i8").tobytes(), np.array([2], "<i4").tobytes()]
    with grpc.insecure_channel(daemon.grpc[0]) as channel:
        data = channel.unary_unary(_messages.INFER)(flat.request(MODEL, 0), timeout=30)
    for bad in (*(data[:cut] for cut in range(len(data))), data + b"\x32\x00", data.replace(b"\x12\x011", b"\x12\x01x")):
        with pytest.raises(hpsd.Error, match="the reply is malformed"):
            flat.result(flat.read(bad), _lookup.Dims((4,), 4))


# ---- large replies -----------------------------------------------------------------------------------

def test_large_reply_when_above_4_mb_then_it_is_received(client):
    keys = np.arange(100_000) % N_ROWS
    np.testing.assert_array_equal(client.lookup("wide", keys), rows_of("wide", keys))


def watched_paths(monkeypatch):
    """A list of the methods that lookups call from now on."""
    paths, path_of = [], _lookup.Lookup.path
    monkeypatch.setattr(_lookup.Lookup, "path", lambda *args, **how: paths.append(path_of(*args, **how)) or paths[-1])
    return paths


def test_large_reply_when_hedged_then_unary_else_streamed(daemon, monkeypatch):
    keys = np.arange(40_000) % N_ROWS
    for hedge_ms in (None, 60_000):
        with hpsd.connect(daemon.grpc[0], MODEL, hedge_ms=hedge_ms) as client:
            client.lookup("wide", [1])
            paths = watched_paths(monkeypatch)
            np.testing.assert_array_equal(client.lookup("wide", keys), rows_of("wide", keys))
            assert paths == ["/hps.v1.ParameterServer/" + ("LookupStream" if hedge_ms is None else "Lookup")]


@pytest.mark.parametrize("concat", [False, True])
def test_large_reply_when_streamed_then_rows_are_the_same(client, monkeypatch, concat):
    keys = np.arange(70_000) % (N_ROWS + 1)  # one key is unknown
    bags = np.concatenate((np.arange(len(keys)), [len(keys)]))
    asked = {"wide": keys, "items": (keys, bags), "users": keys[::-1]}
    if not concat:
        asked["items"], asked["users"] = (keys[:9], [0, 4, 4, 9]), []
    how = {"pooling": {"items": "sum"}, "concat": concat, "full": True}
    whole = client.lookup(asked, **how)
    monkeypatch.setattr(_lookup, "STREAM_BYTES_MIN", 1)
    monkeypatch.setattr(_lookup, "STREAM_BYTES_MIN_ELSE", 1)
    paths = watched_paths(monkeypatch)
    pieces = client.lookup(asked, **how)
    assert paths == ["/hps.v1.ParameterServer/LookupStream"]
    for name in asked:
        np.testing.assert_array_equal(pieces.status[name], whole.status[name])
        if not concat:
            np.testing.assert_array_equal(pieces.rows[name], whole.rows[name])
    if concat:
        np.testing.assert_array_equal(pieces.rows, whole.rows)
    assert (whole.status["wide"] == UNKNOWN).sum() == (keys == N_ROWS).sum()


# ---- errors ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("tables, keys, how, words", [
    ("items", [1.5], {}, "table 'items', keys: got float64, expected any integer dtype"),
    ("items", np.array([True]), {}, "got bool, expected any integer"),
    ("items", ["a"], {}, "expected any integer"),
    ("items", [1.0, 2**63], {}, "got float64, expected any integer dtype"),
    ("items", np.array([1.0, None], object), {}, "got object, expected any integer dtype"),
    ("items", [1, 2**64], {}, "got 18446744073709551616, expected integers from -2^63 to 2^64 - 1"),
    ("items", [-2**63 - 1], {}, "got -9223372036854775809, expected integers from"),
    ("items", [[1], [2, 3]], {}, "table 'items', keys: got"),
    ("items", ([[1], [2, 3]], [0, 1]), {"pooling": "sum"}, "table 'items', keys: got"),
    ("items", ([1, 2], [[0], [1, 2]]), {"pooling": "sum"}, "table 'items', offsets: got"),
    ("items", ([1, 2], [0, 2], [[1.0], [1.0, 2.0]]), {"pooling": "sum"}, "table 'items', weights: got"),
    ({5: [1]}, None, {}, "table 5: got int, expected the name of a table"),
    ("items", None, {}, "table 'items': got no keys"),
    ("items", (1, 2), {}, "expected (keys, offsets)"),
    ("items", ([1], [0, 1]), {}, "got offsets without pooling, expected pooling= one of sum, mean"),
    ("items", ([1, 2], [0, 1]), {"pooling": "sum"}, "got 2 values from 0 to 1, expected bags + 1 values that begin with 0"),
    ("items", ([1, 2], [0, 2, 1, 2]), {"pooling": "sum"}, "never decrease"),
    ("items", ([1, 2], [0, 2], [1.0]), {"pooling": "sum"}, "weights: got 1 values of float64, expected 2 real numbers"),
    ("items", [1], {"pooling": "max"}, "pooling: got 'max', expected one of none, sum, mean"),
    ("items", [1], {"output": "fp8"}, "output: got 'fp8', expected one of fp32, fp16, bf16, raw"),
    ("items", [1], {"miss": "never"}, "miss: got 'never', expected one of exact, wait"),
    ("items", ([1, 2], [0, 2], [1.0, 1e300]), {"pooling": "sum"}, "weights: got values of float64 that float32 cannot hold"),
    ({"items": [1]}, [1], {}, "keys: got keys and a mapping"),
    (["items"], None, {}, "tables: got list, expected the name of a table, a mapping"),
    ({"items": [1]}, None, {"pooling": {"user": "sum"}}, "pooling: got table 'user', expected tables of the lookup"),
    ({"items": [1], "users": [1, 2]}, None, {"concat": True}, "concat: got [1, 2] bags or keys"),
])
def test_error_when_the_request_is_invalid_then_says_what_was_expected(client, tables, keys, how, words):
    with pytest.raises(hpsd.InvalidArgument) as caught:
        client.lookup(tables, keys, **how)
    assert words in str(caught.value), str(caught.value)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT and isinstance(caught.value, ValueError)


NUMBERS = {"timeout": [0, -1, float("inf"), 1e10, "5"], "max_wait": [-1, 4294.97, float("inf"), 1e10],
           "max_staleness": [-1, 4294968, float("inf"), "1"]}


@pytest.mark.parametrize("name, value", [(name, value) for name in NUMBERS for value in (*NUMBERS[name], float("nan"))])
def test_numbers_when_out_of_range_in_a_lookup_then_refused(client, name, value):
    with pytest.raises(hpsd.InvalidArgument, match=f"{name}: got .*, expected seconds from"):
        client.lookup("items", [1], **{name: value})


@pytest.mark.parametrize("connect", [hpsd.connect, hpsd.aio.connect])
def test_numbers_when_out_of_range_in_connect_then_refused(daemon, connect):
    for value in (*NUMBERS["timeout"], float("nan")):
        with pytest.raises(hpsd.InvalidArgument, match="timeout: got .*, expected seconds from 1e-06 to 1000000000"):
            connect(daemon.grpc[0], timeout=value)
        with pytest.raises(hpsd.InvalidArgument, match="hedge_ms: got .*, expected milliseconds from 0.001 to"):
            connect(daemon.grpc[0], hedge_ms=1e13 if value == 1e10 else value)
    for model in (None, 5, b"m"):
        with pytest.raises(hpsd.InvalidArgument, match="model: got .*, expected its name"):
            connect(daemon.grpc[0], model)
    for version in (-1, 2**63, 1.5, "1", float("nan"), None):
        with pytest.raises(hpsd.InvalidArgument, match="version: got .*, expected a whole number from 0 to 9223372036854775807"):
            connect(daemon.grpc[0]).version(version)


def test_numbers_when_at_the_upper_limit_then_the_lookup_succeeds(client):
    most = {"timeout": 1e9, "miss": "wait", "max_wait": (2**32 - 1) / 1e6}
    np.testing.assert_array_equal(client.lookup("items", [1], **most), rows_of("items", [1]))
    with pytest.raises(hpsd.InvalidArgument, match="timeout: got nan"):
        client.model(timeout=float("nan"))


def test_error_when_the_table_is_unknown_then_lists_the_tables(client):
    with pytest.raises(hpsd.NotFound, match="no table 'itmes'; its tables: items, users, wide") as caught:
        client.lookup("itmes", [1])
    assert caught.value.code is grpc.StatusCode.NOT_FOUND and isinstance(caught.value, LookupError)
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.code) == (str(caught.value), caught.value.code)


def test_error_when_the_model_is_unknown_then_lists_the_models(daemon):
    with hpsd.connect(daemon.grpc[0], model="shpo") as client:
        for call in (lambda: client.lookup("items", [1]), client.model):
            with pytest.raises(hpsd.NotFound, match=f'"shpo" is not loaded; models here: {MODEL}'):
                call()


# ---- models and versions -----------------------------------------------------------------------------

def test_model_when_read_then_has_tables_in_order_and_versions(client):
    model = client.model()
    assert (model.name, model.active_version, list(model.versions)) == (MODEL, 1, [1])
    assert {name: table.dim for name, table in model.tables.items()} == DIMS
    assert list(model.tables) == list(DIMS) and model.tables["users"].place == 1
    assert (model.tables["items"].data_type, model.tables["items"].row_count) == ("fp32", N_ROWS)
    assert model.active.positions == () and model.active.rejected_record_count == 0


def wait_for_updates(how, addresses, *args, **more):
    if how == "threads":
        with hpsd.connect(addresses, model=MODEL) as client:
            return client.wait_for_updates(*args, **more)

    async def wait():
        async with hpsd.aio.connect(addresses, model=MODEL) as client:
            return await client.wait_for_updates(*args, **more)
    return asyncio.run(wait())


@pytest.mark.parametrize("how", ("threads", "asyncio"))
def test_wait_for_updates_when_called_then_queries_every_address_and_reports_its_reply(how):
    said = {"a": ("VISIBLE", ""), "b": ("VISIBLE", "")}
    with made_up.Admin(waits=lambda _: said["a"]) as one, made_up.Admin(waits=lambda _: said["b"]) as other:
        both = [one.address, other.address]
        records = [("hps_et.shop.items", 3, offset) for offset in (7, 5, 6, 9, 7)] + [("hps_et.shop.items", 0, 1)]
        wait_for_updates(how, both)
        wait_for_updates(how, both, records, timeout=10)
        for server in (one, other):
            now, those = server.waited
            assert (now.model, now.goal, len(now.records)) == (MODEL, pb.WAIT_GOAL_NOW, 0)
            assert those.goal == pb.WAIT_GOAL_RECORDS and 8000 < those.max_wait_ms <= 9000
            assert [(of.topic, of.partition, [*of.first], [*of.last]) for of in those.records] == [
                ("hps_et.shop.items", 3, [5, 9], [7, 9]), ("hps_et.shop.items", 0, [1], [1])]
        said["b"] = ("PAUSED", "partition 0 is paused")
        with pytest.raises(hpsd.NotVisible, match=f"{other.address}.*is paused") as caught:
            wait_for_updates(how, both)
        assert caught.value.outcome == "paused" and pickle.loads(pickle.dumps(caught.value)).outcome == "paused"
        said["a"] = ("NOT_YET", "it waits for partition 3")
        with pytest.raises(hpsd.DeadlineExceeded, match="partition 3"):
            wait_for_updates(how, both)
        said["a"] = grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(hpsd.ResourceExhausted, match=one.address):
            wait_for_updates(how, both)
        with pytest.raises(hpsd.InvalidArgument, match="records"):
            wait_for_updates(how, both, [])
        for what, record in (("partition", ("t", 2**31, 0)), ("partition", ("t", -1, 0)), ("offset", ("t", 0, 2**63)),
                             ("offset", ("t", 0, -1)), ("offset", ("t", 0, 1.5))):
            with pytest.raises(hpsd.InvalidArgument, match=f"records: {what}: got .*, expected a whole number from 0 to"):
                wait_for_updates(how, both, [record])


def test_model_when_it_takes_updates_then_versions_have_positions():
    position = pb.UpdatePosition(topic="hps_et.shop.items", partition=3, next_offset=2**40)
    reply = pb.GetModelResponse(model=MODEL, active_version=2, versions=[
        pb.ModelVersion(version=1, label="a", lineage="x", tables=[pb.ModelTable(table="items", dim=4, data_type=pb.DATA_TYPE_BF16)]),
        pb.ModelVersion(version=2, positions=[position], rejected_record_count=7, update_sequence=5)])
    model = _model.read(reply.SerializeToString(), 0)
    assert model.active.positions == (hpsd.Position("hps_et.shop.items", 3, 2**40),)
    assert (model.active.rejected_record_count, model.active.update_sequence) == (7, 5)
    assert (model.versions[1].label, model.versions[1].lineage, model.versions[1].tables["items"].data_type) == ("a", "x", "bf16")
    with pytest.raises(hpsd.NotFound, match="no active version"):
        _model.read(pb.GetModelResponse(model=MODEL).SerializeToString(), 0).active  # pylint: disable=expression-not-assigned


def test_copies_when_of_a_client_then_they_make_their_own_connections(daemon):
    with hpsd.connect(daemon.grpc[0], MODEL, timeout=7) as client:
        for other in (copy.deepcopy(client), pickle.loads(pickle.dumps(client)), copy.copy(client.version(1))):
            client.lookup("items", [1])
            with other:
                assert other.lookup("items", [1]).shape == (1, 4)
            assert other.timeout == 7


def a_token():
    return "secret"


@pytest.mark.parametrize("secret", [{"token": "secret"}, {"tls": hpsd.TLS(ca="ca.pem", cert="a.pem", key=b"secret")}])
def test_pickle_when_it_would_contain_a_secret_then_refused_but_copies_keep_it(secret):
    client = hpsd.connect("127.0.0.1:1", MODEL, **secret)
    with pytest.raises(hpsd.InvalidArgument, match="cannot be pickled"):
        pickle.dumps(client)
    assert copy.copy(client)._how == copy.deepcopy(client.version(1))._how == client._how
    assert "secret" not in repr(secret.get("tls"))


def test_pickle_when_the_token_is_a_function_then_the_copy_calls_it():
    data = pickle.dumps(hpsd.connect("127.0.0.1:1", MODEL, token=a_token))
    assert b"secret" not in data and pickle.loads(data)._transport._token is a_token


# ---- the wire ----------------------------------------------------------------------------------------

def lookup_of(keys):
    return _lookup.Lookup("items", keys, None, False).begin()


def flat_of_one():
    return _flat.Flat([1], [1], None, None, None, False)


@pytest.mark.parametrize("read, words", [
    (lambda: _model.read(b"\xff", 0), ""), (lambda: _wait.read("a:1", b"\xff"), ""),
    (lambda: lookup_of([1]).add(pb.LookupResponse(results=[pb.TableResult(dim=65537)]).SerializeToString()), "65537 values"),
    (lambda: lookup_of([1]).add(b"\x22\x00" * 2), "more than 1 values"),
    (lambda: flat_of_one().read(b"\x32\x00" * 3), "more than 2 outputs"),
    (lambda: flat_of_one().read(b"\x12\x151" + b"0" * 20), "version that is too long")])
def test_reply_when_malformed_then_hpsd_error_before_memory_is_allocated(read, words):
    with pytest.raises(hpsd.Error, match=f"the reply is malformed.*{words}"):
        read()


def test_repeated_reply_when_of_two_messages_or_with_more_behind_its_rows_then_parsed_whole():
    last, head = {}, pb.LookupResponse(results=[pb.TableResult(dim=4, data_type=1, row_count=2)], matrix=bytes(32)).SerializeToString()
    asked = _lookup.Lookup([("items", np.zeros(4, np.int64))], None, None, True).asked
    for _ in range(2):
        reading = _answer.Again(asked, last)
        reading.add(head)
        reading.add(head)
        assert reading.end() and reading.blocks[0].rows.shape == (4, 4)
    for sequence in (5, 9):
        reading = _answer.Again(_lookup.Lookup([("items", np.zeros(2, np.int64))], None, None, True).asked, last)
        reading.add(head + pb.LookupResponse(update_sequence=sequence).SerializeToString())
        assert reading.end().update_sequence == sequence



def test_wire_when_a_reply_is_parsed_then_it_equals_protobufs(daemon):
    stub = pb_grpc.ParameterServerStub(grpc.insecure_channel(daemon.grpc[0], options=UNLIMITED))
    queries = [pb.TableQuery(table=name, keys=np.array([1, 777, 2], "<i8").tobytes()) for name in DIMS]
    reply = stub.Lookup(pb.LookupRequest(model=MODEL, queries=queries, explain=True), timeout=30)
    reply.update_sequence, reply.event_time_unix_ms, reply.label = 2**63 + 5, -7, "ü"
    data = reply.SerializeToString()
    read = _wire.read(data, 3)
    assert (read.model, read.version, read.label) == (reply.model, reply.version, reply.label)
    assert (read.update_sequence, read.event_time_unix_ms) == (2**63 + 5, -7)
    for ours, theirs in zip(read.results, reply.results):
        assert (ours.table, ours.dim, ours.data_type, ours.row_count) == (
            theirs.table, theirs.dim, theirs.data_type, theirs.row_count)
        assert data[slice(*ours.rows)] == theirs.rows and data[slice(*ours.status)] == theirs.key_status
    for cut in range(1, len(data), 7):
        try:
            _wire.read(data[:cut], 3)  # the prefix may be a valid message
        except _wire.Malformed:
            pass
    for bad in (b"\x0b", b"\x22\x05\x78", b"\x22\x02\x12\x80", b"\xff" * 11, b"\x08\x01", b"\x12\x01a"):
        with pytest.raises(_wire.Malformed):
            _wire.read(bad, 3)


def test_wire_when_a_request_is_written_then_protobuf_parses_the_same_fields():
    keys = [np.arange(300), np.array([2**64 - 1], np.uint64), []]
    asked = [_query.query("items", keys[0]), _query.query("t" * 200, (keys[1], [0, 1], [2.5]), "sqrtn"),
             _query.query("ü", keys[2], "none")]
    options = _query.Options(miss="wait", max_wait=2.5, unknown="zero", output="raw", max_staleness=1e6, consistency="unit")
    for version, concat in ((0, False), (2**40, True), (-1, False)):
        request = pb.LookupRequest.FromString(_query.request("m", version, asked, options, concat))
        assert (request.model, request.version) == ("m", version) and request.max_wait_us == 2_500_000
        assert (request.miss_policy, request.unknown_key_policy) == (pb.MISS_POLICY_WAIT, pb.UNKNOWN_KEY_POLICY_ZERO)
        assert (request.output_type, request.max_staleness_ms) == (pb.DATA_TYPE_RAW, 1_000_000_000)
        assert request.consistency == pb.CONSISTENCY_UNIT
        assert request.row_layout == (pb.ROW_LAYOUT_CONCAT if concat else pb.ROW_LAYOUT_UNSPECIFIED)
        first, second, third = request.queries
        assert (first.table, first.pooling, first.offsets) == ("items", 0, b"") and len(first.keys) == 2400
        assert (second.table, second.pooling, second.keys) == ("t" * 200, pb.POOLING_SQRTN, b"\xff" * 8)
        assert (second.offsets, second.weights) == (np.array([0, 1], "<u4").tobytes(), np.array([2.5], "<f4").tobytes())
        assert third == pb.TableQuery(table="ü")
    assert not pb.LookupRequest.FromString(_query.request("m", 0, [], _query.Options(), False)).queries
