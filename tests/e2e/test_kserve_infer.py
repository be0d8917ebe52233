# SPDX-License-Identifier: Apache-2.0
"""KServe v2 inference over gRPC and HTTP: both views of a model, correct rows, and rejected requests, which HPS
accepted without checks. Then features of gRPC alone: typed contents and streams."""
import json
import threading

import grpc
import numpy as np
import pytest

from kserve_body import hps_inputs
from kserve_rig import (CODES, COUNTS, DIMS, GOOD, KEYS, NAMES, WAYS, GrpcAnswer, Served, a_model, opened, request)
from rig import PATIENCE_S, Daemon, Table, default_config, kserve_grpc, model_config, refused, until

INVALID = CODES[400]


@pytest.fixture(name="served", scope="module")
def a_daemon_with_a_model(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("kserve"))
    tables, model = a_model(work, "m")
    clash = Table.random("STATUS", 20, 2)
    with Daemon(work, default_config([model, model_config("clash", [clash.save(f"{work}/clash")], [2], ["STATUS"])],
                                     server={"kserve_listen": ["127.0.0.1:0"]})) as daemon:
        daemon.load("m", f"{work}/m", label="next")
        yield Served(daemon, [*tables, clash])


@pytest.fixture(name="way", params=WAYS)
def one_way_to_ask(request, served):
    with opened(served, request.param) as way:
        yield way


short_ways = pytest.mark.parametrize("way", ["gRPC", "HTTP", "HTTP, JSON"], indirect=True)


def streamed(served, *messages, **how):
    return list(served.stub.ModelStreamInfer(iter(messages), timeout=PATIENCE_S, **how))


# ---- correct requests --------------------------------------------------------------------------------

@pytest.mark.parametrize("two_dims", [True, False])
def test_infer_when_of_a_model_then_one_flat_output_has_the_rows_of_all_tables(served, way, two_dims):
    groups = served.groups()
    inputs = [(name, values.reshape(1, -1) if two_dims else values) for name, values in hps_inputs(groups)]
    answer = way.infer("m", inputs, ident="seven")
    output, = answer.about["outputs"]
    assert {key: answer.about[key] for key in ("model_name", "model_version", "id", "parameters")} == {
        "model_name": "m", "model_version": "1", "id": "seven", "parameters": {"NumSample": 4, "DeviceID": 0}}
    expected = served.flat(groups)
    assert (output["name"], output["datatype"], output["shape"]) == ("OUTPUT0", "FP32", [expected.size])
    assert ("data" in output) == way.json_output
    np.testing.assert_array_equal(answer.values["OUTPUT0"], expected)


@pytest.mark.one_thread
@pytest.mark.parametrize("shape", [(3, 4), (12, 1), (2, 3, 2)])
def test_infer_when_keys_have_any_shape_and_counts_one_row_then_the_shape_is_ignored(served, way, shape):
    groups = served.groups()
    (_, keys), (_, counts) = hps_inputs(groups)
    for of_counts in (counts, counts.reshape(1, -1), counts.reshape(1, 1, -1)):
        answer = way.infer("m", [("KEYS", keys.reshape(shape)), ("NUMKEYS", of_counts)])
        np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


SAMPLES = [[2, 0, 3], [0, 4, 1], [5, 0, 0]]  # number of keys of each table


@pytest.mark.parametrize("dtype", ["<i8", "<i4"])
def test_infer_when_there_are_several_samples_then_rows_are_ordered_by_sample_and_table(served, way, dtype):
    samples = [served.groups(sizes, seed, dtype) for seed, sizes in enumerate(SAMPLES)]
    samples[1][1][2] = 2**30  # unknown in every table
    keys = np.stack([np.concatenate(sample) for sample in samples]).astype(dtype)
    asked = "m", [("KEYS", keys), ("NUMKEYS", np.array(SAMPLES, "<i4"))], ["STATUS", "OUTPUT0"]
    answer = way.infer(*asked)
    assert answer.about["outputs"][1]["shape"] == [sum(n * dim for counts in SAMPLES for n, dim in zip(counts, DIMS))]
    np.testing.assert_array_equal(answer.values["OUTPUT0"], np.concatenate([served.flat(sample) for sample in samples]))
    assert answer.values["STATUS"].tolist() == [1] * 5 + [1, 1, 3, 1, 1] + [1] * 5
    reply, = streamed(served, request(*asked))
    np.testing.assert_array_equal(GrpcAnswer(reply.infer_response).values["OUTPUT0"], answer.values["OUTPUT0"])


def test_infer_when_samples_have_no_keys_or_only_status_is_requested_then_the_reply_has_no_rows(way):
    answer = way.infer("m", [("KEYS", np.zeros((4, 0), "<i8")), ("NUMKEYS", np.zeros((4, 3), "<i4"))])
    assert answer.about["outputs"][0]["shape"] == [0]
    inputs = [("KEYS", KEYS.reshape(2, 3)), ("NUMKEYS", np.array([[0, 3], [2, 1]], "<i4"))]
    assert way.infer("m", inputs, ["STATUS"]).values["STATUS"].size == 6


@pytest.mark.one_thread
@pytest.mark.parametrize("way", ["gRPC", "HTTP"], indirect=True)
def test_infer_when_the_reply_of_several_samples_is_too_large_then_refused_before_the_lookup(served, way):
    n = (32 << 20) // (8 * 4) // 2  # keys of table "users" in each of two samples
    keys, counts = np.full((2, n), served.by_name["users"].keys[0]), np.array([[0, n], [0, n]], "<i4")
    for words in ("its 2 samples make an answer of ", "limit is 33554432"):
        way.refused(400, words, "m", [("KEYS", keys), ("NUMKEYS", counts)], binary_output=True)
    answer = way.infer("m", [("KEYS", keys[:, 1:]), ("NUMKEYS", counts - np.array([0, 1], "<i4"))])
    assert answer.about["outputs"][0]["shape"] == [16 * (n - 1)]


def test_infer_when_there_are_several_samples_then_reply_bytes_include_the_copy_of_their_rows(work, daemon):
    table = Table.random("items", 200, 4)
    one = daemon(default_config([model_config("m", [table.save(f"{work}/m")], [4], ["items"])],
                                server={"reply_bytes_max": 4096}))
    stub = kserve_grpc.GRPCInferenceServiceStub(one.channel())
    keys = table.keys[:150]  # 2,400 bytes of rows
    assert stub.ModelInfer(request("m", [("KEYS", keys), ("NUMKEYS", np.array([150], "<i4"))]), timeout=PATIENCE_S)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "reply_bytes_max"):
        stub.ModelInfer(request("m", [("KEYS", keys.reshape(2, 75)), ("NUMKEYS", np.array([[75], [75]], "<i4"))]),
                        timeout=PATIENCE_S)


def test_infer_when_keys_are_int32_then_they_are_converted_to_int64(served, way):
    keys = served.groups((9, 0, 0), dtype="<i4")[0]
    answer = way.infer("m.tables", [("items", keys.astype("<i4")), ("items.offsets", np.array([0, 4, 9]))], hps_pooling="sum")
    np.testing.assert_allclose(answer.values["items"][1], served.rows("items", keys[4:]).sum(axis=0), rtol=1e-5)
    answer = way.infer("m", [("KEYS", keys.astype("<i4")), ("NUMKEYS", np.array([9], "<i4"))])
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.rows("items", keys).ravel())


def test_infer_when_outputs_are_named_then_the_reply_has_them_in_that_order(served, way):
    groups = served.groups()
    groups[0][1] = 10**15  # unknown in every table
    answer = way.infer("m", hps_inputs(groups), ["STATUS", "OUTPUT0"])
    assert [(one["name"], one["datatype"]) for one in answer.about["outputs"]] == [("STATUS", "UINT8"), ("OUTPUT0", "FP32")]
    assert answer.values["STATUS"].tolist() == [1, 3] + [1] * 10
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))
    answer = way.infer("m.tables", [("ads", groups[2]), ("items", groups[0])], ["items", "STATUS"])
    assert [(one["name"], one["shape"]) for one in answer.about["outputs"]] == [("items", [5, 4]), ("STATUS", [12])]
    assert answer.values["STATUS"].tolist() == [1] * 7 + [1, 3, 1, 1, 1]


def test_infer_when_a_table_is_named_status_then_rows_and_statuses_are_separate_outputs(served, way):
    keys = np.append(served.by_name["STATUS"].keys[:3], 10**15)
    answer = way.infer("clash.tables", [("STATUS", keys)], ["hps.STATUS", "STATUS"])
    assert answer.values["hps.STATUS"].tolist() == [1, 1, 1, 3]
    np.testing.assert_array_equal(answer.values["STATUS"], served.rows("STATUS", keys))
    answer = way.infer("m", hps_inputs(served.groups()), ["hps.STATUS"])
    assert answer.values["hps.STATUS"].tolist() == [1] * 12


def test_infer_when_of_the_tables_view_then_one_output_per_table(served, way):
    groups = list(zip(NAMES, served.groups()))[::-1]
    answer = way.infer("m.tables", groups)
    assert answer.about["model_name"] == "m.tables" and not answer.about.get("parameters")
    assert [one["name"] for one in answer.about["outputs"]] == list(NAMES)[::-1]
    for name, keys in groups:
        assert answer.values[name].shape == (len(keys), served.by_name[name].dim)
        np.testing.assert_array_equal(answer.values[name], served.rows(name, keys))
    assert len(way.infer("m.tables", groups[1:2]).about["outputs"]) == 1


@pytest.mark.one_thread
@pytest.mark.parametrize("offset_type", ["<i8", "<i4"])
@pytest.mark.parametrize("pooling", ["sum", "mean", "mean_by_count", "sqrtn"])
def test_infer_when_offsets_are_given_then_rows_are_pooled(served, way, pooling, offset_type):
    keys = served.groups((9, 0, 4))
    offsets, weights = np.array([0, 2, 2, 9], offset_type), np.linspace(0.5, 2, 9).astype("<f4")
    answer = way.infer("m.tables", [("items.offsets", offsets), ("items", keys[0]), ("items.weights", weights),
                                    ("ads", keys[2])], hps_pooling=pooling)
    rows = served.rows("items", keys[0]).astype(np.float64)
    expected = []
    for begin, end in zip(offsets[:-1], offsets[1:]):
        weight = weights[begin:end].astype(np.float64)
        total = (rows[begin:end] * weight[:, None]).sum(axis=0)
        by = {"sum": 1, "mean": weight.sum(), "mean_by_count": end - begin, "sqrtn": np.sqrt((weight**2).sum())}[pooling]
        expected.append(total / by if end > begin else total)
    assert [output["name"] for output in answer.about["outputs"]] == ["items", "ads"]
    np.testing.assert_allclose(answer.values["items"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(answer.values["ads"], served.rows("ads", keys[2]))


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_infer_when_an_output_type_is_set_then_values_are_converted_or_refused_as_json(served, way, name):
    groups = served.groups()
    if way.json_output:
        way.refused(400, f"values of {name} cannot be sent as JSON", "m", hps_inputs(groups), hps_output_type=name)
        return
    answer = way.infer("m", hps_inputs(groups), hps_output_type=name)
    assert answer.about["outputs"][0]["datatype"] == name
    values = answer.values["OUTPUT0"]
    if name == "FP16":
        np.testing.assert_array_equal(values, served.flat(groups).astype("<f2"))
    else:
        np.testing.assert_allclose((values.astype("<u4") << 16).view("<f4"), served.flat(groups), rtol=2**-8)


@short_ways
@pytest.mark.parametrize("version, answered", [("", "1"), ("2", "2"), ("next", "2"), ("1", "1")])
def test_infer_when_number_or_label_selects_a_version_then_it_is_used(served, way, version, answered):
    assert way.infer("m", hps_inputs(served.groups()), version=version).about["model_version"] == answered


def test_infer_when_there_are_no_keys_then_the_reply_is_empty(way):
    assert way.infer("m", hps_inputs([[], [], []])).values["OUTPUT0"].shape == (0,)
    assert way.infer("m.tables", []).about["outputs"] == []


# ---- wrong requests ----------------------------------------------------------------------------------

WRONG = [  # id, model, inputs, further arguments, words of the error
    ("sum", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)], {}, "9 keys, but input 'KEYS' has 6"),
    ("negative", "m", [("KEYS", KEYS), ("NUMKEYS", np.array([7, -1, 0], "<i4"))], {}, "'NUMKEYS': [1] is -1"),
    ("tables", "m", [("KEYS", KEYS), ("NUMKEYS", np.array([3, 0, 0, 3], "<i4"))], {},
     "NUMKEYS[3]: by position, but model 'm' has 3"),
    ("rows", "m", [("KEYS", KEYS), ("NUMKEYS", np.ones((2, 3), "<i4"))], {},
     "'NUMKEYS' has 2 rows, one for each sample, but input 'KEYS' has 1 rows"),
    ("rows of another number", "m", [("KEYS", KEYS.reshape(3, 2)), ("NUMKEYS", np.ones((2, 3), "<i4"))], {},
     "'KEYS' has 3 rows"),
    ("sum of a row", "m", [("KEYS", KEYS.reshape(2, 3)), ("NUMKEYS", np.array([[1, 1, 1], [0, 2, 2]], "<i4"))], {},
     "the sum of row 1 is 4 keys, but a row of 'KEYS' has 3"),
    ("type of keys", "m", [("KEYS", KEYS.astype("<f4")), ("NUMKEYS", COUNTS)], {}, "is FP32, expected INT64 or INT32"),
    ("type of keys by table", "m.tables", [("items", KEYS.astype("<f4"))], {}, "is FP32, expected INT64 or INT32"),
    ("type of counts", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS.astype("<i8"))], {}, "is INT64, expected INT32"),
    ("missing", "m", [("KEYS", KEYS)], {}, "input 'NUMKEYS' of model 'm' is missing"),
    ("unknown input", "m", [*GOOD, ("X", KEYS)], {}, "unexpected input 'X'"),
    ("twice", "m", [*GOOD, ("KEYS", KEYS)], {}, "input 'KEYS' twice"),
    ("unknown output", "m", GOOD, {"outputs": ["items"]}, "unexpected output 'items'"),
    ("output twice", "m", GOOD, {"outputs": ["OUTPUT0"] * 2}, "twice"),
    ("pooling by position", "m", GOOD, {"hps_pooling": "sum"}, "'m.tables'"),
    ("policy", "m", GOOD, {"hps_miss_policy": "x"}, "'x' is not exact, wait"),
    ("raw rows", "m", GOOD, {"hps_output_type": "RAW"}, "'RAW' is not FP32, FP16"),
    ("wait", "m", GOOD, {"hps_max_wait_us": 2**33}, "limit is 4294967295"),
    ("reserved", "m", GOOD, {"triton_x": 1}, "reserved"),
    ("misspelt", "m", GOOD, {"hps_pool": "sum"}, "hps_pooling"),
    ("version", "m", GOOD, {"version": "-1"}, "below 0"),
    ("table", "m.tables", [("itmes", KEYS)], {}, "no table 'itmes'; its tables: items, users, ads"),
    ("offsets alone", "m.tables", [("items", KEYS), ("items.offsets", COUNTS)], {}, "needs the parameter 'hps_pooling'"),
    ("pooling alone", "m.tables", [("items", KEYS)], {"hps_pooling": "sum"}, "no table has an input"),
    ("weights alone", "m.tables", [("items", KEYS), ("items.weights", np.ones(6, "<f4"))], {"hps_pooling": "sum"},
     "needs the input 'items.offsets'"),
    ("beside what is beside", "m.tables", [("items", KEYS), ("items.offsets", np.array([0, 6])),
                                           ("items.offsets.weights", np.ones(2, "<f4"))], {"hps_pooling": "sum"},
     "input 'items.offsets.weights'"),
    ("first offset", "m.tables", [("items", KEYS), ("items.offsets", np.array([1, 6]))], {"hps_pooling": "sum"},
     "[0] is 1"),
    ("falling", "m.tables", [("items", KEYS), ("items.offsets", np.array([0, 3, 2, 6]))], {"hps_pooling": "sum"},
     "[2] is 2"),
    ("beyond", "m.tables", [("items", KEYS), ("items.offsets", np.array([0, 2**32, 6]))], {"hps_pooling": "sum"},
     "[1] is 4294967296"),
    ("last", "m.tables", [("items", KEYS), ("items.offsets", np.array([0, 3]))], {"hps_pooling": "sum"}, "[1] is 3"),
    ("no offset", "m.tables", [("items", KEYS), ("items.offsets", np.zeros(0, "<i8"))], {"hps_pooling": "sum"}, "bags + 1"),
    ("weights", "m.tables", [("items", KEYS), ("items.offsets", np.array([0, 6])), ("items.weights", np.ones(5, "<f4"))],
     {"hps_pooling": "sum"}, "5 weights, but there are 6 keys"),
    ("pooling none", "m.tables", [("items", KEYS), ("items.offsets", np.array([0, 6]))], {"hps_pooling": "none"},
     "'none' is not sum"),
    ("output of no input", "m.tables", [("items", KEYS)], {"outputs": ["users"]}, "unexpected output 'users'"),
    ("three dimensions", "m.tables", [("items", KEYS.reshape(1, 2, 3))], {}, "has 3 dimensions"),
]


@short_ways
@pytest.mark.one_thread
@pytest.mark.parametrize("model, inputs, more, words", [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_infer_when_the_request_is_invalid_then_the_error_names_the_mistake(way, model, inputs, more, words):
    way.refused(400, words, model, inputs, **more)


@short_ways
def test_infer_when_the_model_is_unknown_then_the_error_is_tritons(way):
    for version in ("", "9"):
        way.refused(404, "Request for unknown model: 'nope' is not found", "nope", GOOD, version=version)
    for version in ("9", "x", "0"):
        way.refused(404, f"Request for unknown model: 'm' version '{version}' is not found", "m", GOOD, version=version)


@pytest.mark.one_thread
@pytest.mark.parametrize("change, words", [
    (lambda message: message.raw_input_contents.pop(), "1 buffers, but there are 2 inputs"),
    (lambda message: message.raw_input_contents.append(b""), "3 buffers, but there are 2 inputs"),
    (lambda message: message.inputs[0].contents.int64_contents.append(1), "got contents of 1 inputs"),
    (lambda message: message.inputs[0].shape.__setitem__(0, 7), "48 bytes, but 7 values of INT64 have 56"),
    (lambda message: message.inputs[0].shape.__setitem__(0, -1), "shape[0] is -1"),
    (lambda message: message.inputs[0].shape.extend([2**40]), "shape[1] is 1099511627776"),
    (lambda message: message.inputs[0].shape.extend([2**30, 2**30]), "limit is 2147483647"),
    (lambda message: message.inputs[0].shape.extend([1] * 9), "more than 8 dimensions"),
    (lambda message: setattr(message.inputs[0], "datatype", "BYTES"), "got no datatype or an unsupported one"),
    (lambda message: setattr(message.inputs[0], "name", ""), "without a name"),
    (lambda message: setattr(message, "id", "x" * 129), "limit is 128"),
])
def test_infer_when_sizes_are_inconsistent_then_the_error_has_both(served, change, words):
    message = request("m", GOOD)
    change(message)
    with refused(INVALID, words):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


@pytest.mark.one_thread
@pytest.mark.parametrize("change, words", [
    (lambda one: one.contents.uint64_contents.append(1), "got uint64_contents, but values of INT64 belong in int64_contents"),
    (lambda one: one.contents.int_contents.extend([1] * 9), "got int_contents"),
    (lambda one: setattr(one, "datatype", "FP16"), "got int64_contents, but values of FP16 belong in raw_input_contents"),
    (lambda one: one.contents.int64_contents.append(1), "expected int64_contents to have 6 values"),
    (lambda one: one.contents.Clear(), "expected int64_contents to have 6 values"),
])
def test_infer_when_contents_are_invalid_then_the_error_names_the_field(served, change, words):
    message = request("m", GOOD, raw=False)
    change(message.inputs[0])
    with refused(INVALID, f"input 'KEYS': contents: {words}"):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


WRONG_INPUTS = [[("KEYS", KEYS)], [("X", KEYS)], [("KEYS", KEYS.astype("<f4")), ("NUMKEYS", COUNTS)],
                [("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)]]


@pytest.mark.one_thread
@pytest.mark.parametrize("inputs", WRONG_INPUTS)
@pytest.mark.parametrize("model", ["nope", "nope.tables", ""])
def test_infer_when_model_and_inputs_are_wrong_then_the_model_is_not_found(served, model, inputs):
    words = f"Request for unknown model: '{model.split('.', maxsplit=1)[0]}' is not found"
    with refused(grpc.StatusCode.NOT_FOUND, words):
        served.stub.ModelInfer(request(model, inputs), timeout=PATIENCE_S)
    reply, = served.stub.ModelStreamInfer(iter([request(model, inputs, ident="s")]), timeout=PATIENCE_S)
    assert words in reply.error_message and reply.infer_response.id == "s"
    message = request(model, inputs)
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with refused(grpc.StatusCode.NOT_FOUND, words):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


@pytest.mark.one_thread
@pytest.mark.parametrize("side", ["inputs", "outputs"])
@short_ways
def test_infer_when_shared_memory_is_requested_then_unimplemented(way, side):
    way.refused(501, "shared memory is not supported", "m", GOOD, ["OUTPUT0"], change=(side, "shared_memory_region"))


@pytest.mark.one_thread
@pytest.mark.parametrize("way", ["gRPC", "HTTP"], indirect=True)
def test_infer_when_a_million_outputs_are_requested_then_refused(way):
    way.refused(400, "more than ", "m", GOOD, ["OUTPUT0"] * 10**6)


# ---- streams -----------------------------------------------------------------------------------------------------

def test_stream_when_some_requests_are_invalid_then_all_get_replies_in_order(served):
    groups = served.groups()

    def requests():
        for number in range(200):
            yield (request("m", hps_inputs(groups), ident=str(number)) if number % 3 else
                   request("m", [("KEYS", KEYS)], ident=str(number)))

    expected = served.flat(groups)
    count = 0
    for number, reply in enumerate(served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S)):
        count += 1
        if number % 3:
            assert reply.infer_response.id == str(number) and not reply.error_message
            assert reply.infer_response.parameters["triton_final_response"].bool_param
            np.testing.assert_array_equal(GrpcAnswer(reply.infer_response).values["OUTPUT0"], expected)
        else:
            assert "'NUMKEYS' of model 'm' is missing" in reply.error_message
            assert reply.infer_response.id == str(number)
    assert count == 200


@pytest.mark.one_thread
@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
@pytest.mark.parametrize("model, inputs, more, words", [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_stream_when_a_request_is_invalid_then_its_error_has_its_id(served, model, inputs, more, words, compression):
    message = request(model, inputs, ident="r-1", **more)
    reply, = served.stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S, compression=compression)
    assert words in reply.error_message and reply.infer_response.id == "r-1"


def test_stream_when_an_id_is_too_long_then_the_error_has_the_id_truncated(served):
    message = request("m", hps_inputs([KEYS]), ident="a" + 300 * "\u00e9")
    reply, = served.stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S)
    assert (reply.error_message, reply.infer_response.id) == ("id: 601 bytes, limit is 128", "a" + 255 * "\u00e9")


def test_stream_when_the_quota_is_exceeded_then_the_error_has_the_id(work, daemon):
    with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": ["any"], "may": ["lookup"], "requests_per_s": 1}]}, f)
    table = Table.random("items", 10, 4)
    one = daemon(default_config([model_config("m", [table.save(f"{work}/m")], [4], ["items"])],
                                server={"access": f"{work}/roles.json"}))
    stub = kserve_grpc.GRPCInferenceServiceStub(one.channel())
    inputs = [("KEYS", KEYS), ("NUMKEYS", np.array([6], "<i4"))]
    replies = list(stub.ModelStreamInfer((request("m", inputs, ident=str(n)) for n in range(9)), timeout=PATIENCE_S))
    assert [reply.infer_response.id for reply in replies] == [str(n) for n in range(9)]
    assert "requests_per_s" in replies[-1].error_message


def test_stream_when_requests_are_large_then_all_get_replies(served):
    keys = np.random.default_rng(1).choice(served.by_name["users"].keys, 300000)

    def requests():
        for number in range(6):
            yield request("m.tables", [("users", keys)], ident=str(number))

    for number, reply in enumerate(served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S,
                                                                compression=grpc.Compression.Gzip)):
        assert reply.infer_response.id == str(number), reply.error_message
        assert reply.infer_response.outputs[0].shape == [300000, 8]
    assert number == 5


def test_stream_when_the_client_waits_for_each_reply_then_each_is_sent_at_once(served):
    ready, answered = threading.Semaphore(1), []

    def requests():
        for number in range(5):
            assert ready.acquire(timeout=PATIENCE_S)
            yield request("m", hps_inputs(served.groups()), ident=str(number))

    for reply in served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S):
        answered.append(reply.infer_response.id)
        ready.release()
    assert answered == [str(number) for number in range(5)]


def test_stream_when_it_is_empty_or_cancelled_then_it_ends(served):
    assert not list(served.stub.ModelStreamInfer(iter(()), timeout=PATIENCE_S))
    forever = threading.Event()

    def requests():
        yield request("m", hps_inputs(served.groups()))
        forever.wait(PATIENCE_S)

    call = served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S)
    next(call)
    call.cancel()
    forever.set()
    until(lambda: served.daemon.metrics()["hpsd_requests_in_flight"] == 0, "its request is over")
