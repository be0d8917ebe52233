# SPDX-License-Identifier: Apache-2.0
"""ModelInfer of KServe v2 by stubs of stock grpcio: HPS's view of a model and that of its tables, rows that are right,
and what HPS took without looking."""
import json
import threading

import grpc
import numpy as np
import pytest

from rig import (PATIENCE_S, Daemon, Table, default_config, kserve_grpc, kserve_pb as kpb, model_config, refused, until)

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NAMES, DIMS = ("items", "users", "ads"), (4, 8, 3)


class Served:
    def __init__(self, daemon, tables, clash):
        self.daemon, self.tables, self.clash = daemon, tables, clash
        self.stub = kserve_grpc.GRPCInferenceServiceStub(daemon.channel())
        self.by_name = {table.name: table for table in tables}

    def rows(self, name, keys):
        return self.by_name[name].expect(keys)


@pytest.fixture(name="served", scope="module")
def a_daemon_with_a_model(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("kserve"))
    tables = [Table.random(name, 100, dim, number=i) for i, (name, dim) in enumerate(zip(NAMES, DIMS))]
    paths = [table.save(f"{work}/m") for table in tables]
    clash = Table.random("STATUS", 20, 2)
    with Daemon(work, default_config([model_config("m", paths, list(DIMS), list(NAMES)), model_config(
            "clash", [clash.save(f"{work}/clash")], [2], ["STATUS"])])) as daemon:
        daemon.load("m", f"{work}/m", label="next")
        yield Served(daemon, tables, clash)


def tensor(name, datatype, shape):
    return kpb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)


def parameters(values):
    kinds = {str: "string_param", int: "int64_param", bool: "bool_param", float: "double_param"}
    return {name: kpb.InferParameter(**{kinds[type(value)]: value}) for name, value in values.items()}


def request(model, inputs, outputs=(), raw=True, version="", ident="", **params):
    """inputs: [(name, array)]"""
    codes = {"<i8": "INT64", "<i4": "INT32", "<f4": "FP32"}
    message = kpb.ModelInferRequest(model_name=model, model_version=version, id=ident, parameters=parameters(params))
    for name, values in inputs:
        one = message.inputs.add(name=name, datatype=codes[values.dtype.str], shape=values.shape)
        if raw:
            message.raw_input_contents.append(values.tobytes())
        else:
            field = {"<i8": one.contents.int64_contents, "<i4": one.contents.int_contents,
                     "<f4": one.contents.fp32_contents}[values.dtype.str]
            field.extend(values.ravel().tolist())
    for name in outputs:
        message.outputs.add(name=name)
    return message


def hps_inputs(groups, two_dims=False):
    keys = np.concatenate([np.asarray(keys, "<i8") for keys in groups]) if groups else np.zeros(0, "<i8")
    counts = np.array([len(keys) for keys in groups], "<i4")
    return [("KEYS", keys.reshape(1, -1) if two_dims else keys),
            ("NUMKEYS", counts.reshape(1, -1) if two_dims else counts)]


def infer(served, *args, **more):
    return served.stub.ModelInfer(request(*args, **more), timeout=PATIENCE_S)


def groups_of(served, sizes=(5, 0, 7), seed=1, dtype="<i8"):
    rng, most = np.random.default_rng(seed), np.iinfo(dtype).max
    keys = {name: served.by_name[name].keys for name in NAMES}
    return [rng.choice(keys[name][abs(keys[name] // 2) <= most // 2], size) for name, size in zip(NAMES, sizes)]


def values(reply, number, dtype="<f4"):
    return np.frombuffer(reply.raw_output_contents[number], dtype).reshape(tuple(reply.outputs[number].shape))


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("two_dims", [True, False])
def test_infer_when_by_position_then_one_flat_output_of_all_tables(served, raw, two_dims):
    groups = groups_of(served)
    reply = infer(served, "m", hps_inputs(groups, two_dims), raw=raw, ident="seven")
    assert (reply.model_name, reply.model_version, reply.id) == ("m", "1", "seven")
    assert reply.parameters["NumSample"].int64_param == 4 and reply.parameters["DeviceID"].int64_param == 0
    output, = reply.outputs
    assert (output.name, output.datatype) == ("OUTPUT0", "FP32")
    expected = np.concatenate([served.rows(name, keys).ravel() for name, keys in zip(NAMES, groups)])
    assert list(output.shape) == [expected.size]
    np.testing.assert_array_equal(values(reply, 0), expected)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("shape", [(3, 4), (12, 1), (2, 3, 2)])
def test_infer_when_keys_have_any_shape_and_there_is_one_row_of_counts_then_they_are_read_flat(served, shape, raw):
    groups = groups_of(served)
    (_, keys), (_, counts) = hps_inputs(groups)
    expected = values(infer(served, "m", hps_inputs(groups)), 0)
    for of_counts in (counts, counts.reshape(1, -1), counts.reshape(1, 1, -1)):
        reply = infer(served, "m", [("KEYS", keys.reshape(shape)), ("NUMKEYS", of_counts)], raw=raw)
        np.testing.assert_array_equal(values(reply, 0), expected)


SAMPLES = [[2, 0, 3], [0, 4, 1], [5, 0, 0]]  # keys of each table


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", ["<i8", "<i4"])
def test_infer_when_there_are_several_samples_then_one_follows_the_other_table_after_table(served, dtype, raw):
    samples = [groups_of(served, sizes, seed, dtype) for seed, sizes in enumerate(SAMPLES)]
    samples[1][1][2] = 2**30  # which no table has
    keys = np.stack([np.concatenate(sample) for sample in samples]).astype(dtype)
    message = request("m", [("KEYS", keys), ("NUMKEYS", np.array(SAMPLES, "<i4"))], ["STATUS", "OUTPUT0"], raw=raw)
    reply = served.stub.ModelInfer(message, timeout=PATIENCE_S)
    assert list(reply.outputs[1].shape) == [sum(n * dim for counts in SAMPLES for n, dim in zip(counts, DIMS))]
    np.testing.assert_array_equal(values(reply, 1), np.concatenate(
        [served.rows(name, of_table).ravel() for sample in samples for name, of_table in zip(NAMES, sample)]))
    assert values(reply, 0, np.uint8).tolist() == [1] * 5 + [1, 1, 3, 1, 1] + [1] * 5
    streamed, = served.stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S)
    assert list(streamed.infer_response.raw_output_contents) == list(reply.raw_output_contents)


def test_infer_when_samples_have_no_keys_or_no_rows_are_wanted_then_so_is_the_answer(served):
    reply = infer(served, "m", [("KEYS", np.zeros((4, 0), "<i8")), ("NUMKEYS", np.zeros((4, 3), "<i4"))])
    assert list(reply.outputs[0].shape) == [0]
    inputs = [("KEYS", KEYS.reshape(2, 3)), ("NUMKEYS", np.array([[0, 3], [2, 1]], "<i4"))]
    assert values(infer(served, "m", inputs, ["STATUS"]), 0, np.uint8).size == 6


def test_infer_when_samples_make_too_large_an_answer_then_refused_before_any_is_looked_up(served):
    n = (32 << 20) // (8 * 4) // 2  # keys of users in each of two samples
    keys = np.full((2, n), served.by_name["users"].keys[0])
    counts = np.array([[0, n], [0, n]], "<i4")
    with refused(INVALID, "its 2 samples make an answer of ", "limit is 33554432"):
        infer(served, "m", [("KEYS", keys), ("NUMKEYS", counts)])
    reply = infer(served, "m", [("KEYS", keys[:, 1:]), ("NUMKEYS", counts - np.array([0, 1], "<i4"))])
    assert list(reply.outputs[0].shape) == [16 * (n - 1)]


def test_infer_when_there_are_several_samples_then_the_copy_of_their_rows_counts_as_bytes_of_the_reply(work, daemon):
    table = Table.random("items", 200, 4)
    one = daemon(default_config([model_config("m", [table.save(f"{work}/m")], [4], ["items"])],
                                server={"reply_bytes_max": 4096}))
    stub = kserve_grpc.GRPCInferenceServiceStub(one.channel())
    keys = table.keys[:150]  # 2,400 bytes of rows
    assert stub.ModelInfer(request("m", [("KEYS", keys), ("NUMKEYS", np.array([150], "<i4"))]), timeout=PATIENCE_S)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "reply_bytes_max"):
        stub.ModelInfer(request("m", [("KEYS", keys.reshape(2, 75)), ("NUMKEYS", np.array([[75], [75]], "<i4"))]),
                        timeout=PATIENCE_S)


def test_infer_when_keys_are_int32_then_they_are_widened(served):
    keys = groups_of(served, (9, 0, 0), dtype="<i4")[0]
    for raw in (True, False):
        reply = infer(served, "m.tables", [("items", keys.astype("<i4")), ("items.offsets", np.array([0, 4, 9]))],
                      hps_pooling="sum", raw=raw)
        np.testing.assert_allclose(values(reply, 0)[1], served.rows("items", keys[4:]).sum(axis=0), rtol=1e-5)
        reply = infer(served, "m", [("KEYS", keys.astype("<i4")), ("NUMKEYS", np.array([9], "<i4"))], raw=raw)
        np.testing.assert_array_equal(values(reply, 0), served.rows("items", keys).ravel())


def test_infer_when_outputs_are_named_then_those_in_that_order(served):
    groups = groups_of(served)
    groups[0][1] = 10**15  # which no table has
    reply = infer(served, "m", hps_inputs(groups), ["STATUS", "OUTPUT0"])
    assert [output.name for output in reply.outputs] == ["STATUS", "OUTPUT0"]
    status = values(reply, 0, np.uint8)
    assert reply.outputs[0].datatype == "UINT8" and status.tolist() == [1, 3] + [1] * 10
    tables = infer(served, "m.tables", [("ads", groups[2]), ("items", groups[0])], ["items", "STATUS"])
    assert [output.name for output in tables.outputs] == ["items", "STATUS"]
    assert tables.outputs[0].shape == [5, 4]
    assert values(tables, 1, np.uint8).tolist() == [1] * 7 + [1, 3, 1, 1, 1]


def test_infer_when_a_table_is_called_status_then_its_rows_and_the_statuses_can_both_be_had(served):
    keys = np.append(served.clash.keys[:3], 10**15)
    reply = infer(served, "clash.tables", [("STATUS", keys)], ["hps.STATUS", "STATUS"])
    assert values(reply, 0, np.uint8).tolist() == [1, 1, 1, 3]
    np.testing.assert_array_equal(values(reply, 1), served.clash.expect(keys))
    assert values(infer(served, "m", hps_inputs(groups_of(served)), ["hps.STATUS"]), 0, np.uint8).tolist() == [1] * 12


def test_infer_when_by_table_then_an_output_for_each(served):
    groups = groups_of(served)
    reply = infer(served, "m.tables", [(name, keys) for name, keys in zip(NAMES, groups)][::-1])
    assert reply.model_name == "m.tables" and not reply.parameters
    assert [output.name for output in reply.outputs] == list(NAMES)[::-1]
    for number, (name, keys) in enumerate(list(zip(NAMES, groups))[::-1]):
        assert list(reply.outputs[number].shape) == [len(keys), served.by_name[name].dim]
        np.testing.assert_array_equal(values(reply, number), served.rows(name, keys))
    one = infer(served, "m.tables", [("users", groups[2] * 0 + served.by_name["users"].keys[0])])
    assert len(one.outputs) == 1


@pytest.mark.parametrize("offset_type", ["<i8", "<i4"])
@pytest.mark.parametrize("pooling", ["sum", "mean", "mean_by_count", "sqrtn"])
def test_infer_when_there_are_offsets_then_rows_are_pooled(served, pooling, offset_type):
    keys = groups_of(served, (9, 0, 4))
    offsets, weights = np.array([0, 2, 2, 9], offset_type), np.linspace(0.5, 2, 9).astype("<f4")
    reply = infer(served, "m.tables", [("items.offsets", offsets), ("items", keys[0]), ("items.weights", weights),
                                       ("ads", keys[2])], hps_pooling=pooling)
    rows = served.rows("items", keys[0]).astype(np.float64)
    expected = []
    for begin, end in zip(offsets[:-1], offsets[1:]):
        weight = weights[begin:end].astype(np.float64)
        total = (rows[begin:end] * weight[:, None]).sum(axis=0)
        by = {"sum": 1, "mean": weight.sum(), "mean_by_count": end - begin, "sqrtn": np.sqrt((weight**2).sum())}[pooling]
        expected.append(total / by if end > begin else total)
    assert [output.name for output in reply.outputs] == ["items", "ads"]
    np.testing.assert_allclose(values(reply, 0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(values(reply, 1), served.rows("ads", keys[2]))


@pytest.mark.parametrize("name, bits", [("FP16", "<f2"), ("BF16", "<u2")])
def test_infer_when_an_output_type_is_asked_for_then_values_are_of_it(served, name, bits):
    groups = groups_of(served)
    reply = infer(served, "m", hps_inputs(groups), hps_output_type=name)
    expected = np.concatenate([served.rows(table, keys).ravel() for table, keys in zip(NAMES, groups)])
    assert reply.outputs[0].datatype == name
    if name == "FP16":
        np.testing.assert_array_equal(values(reply, 0, bits), expected.astype("<f2"))
    else:
        as_floats = (values(reply, 0, bits).astype("<u4") << 16).view("<f4")
        np.testing.assert_allclose(as_floats, expected, rtol=2**-8)


@pytest.mark.parametrize("version, answered", [("", "1"), ("2", "2"), ("next", "2"), ("1", "1")])
def test_infer_when_a_version_is_named_by_number_or_label_then_that_one(served, version, answered):
    assert infer(served, "m", hps_inputs(groups_of(served)), version=version).model_version == answered


KEYS, COUNTS = np.arange(6, dtype="<i8"), np.array([1, 2, 3], "<i4")
WRONG = [  # what, the model, its inputs, more, words of the error
    ("sum", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)], {}, "9 keys, but input 'KEYS' has 6"),
    ("negative", "m", [("KEYS", KEYS), ("NUMKEYS", np.array([7, -1, 0], "<i4"))], {}, "'NUMKEYS': [1] is -1"),
    ("tables", "m", [("KEYS", KEYS), ("NUMKEYS", np.array([3, 0, 0, 3], "<i4"))], {},
     "NUMKEYS[3]: by position, but model 'm' has 3"),
    ("rows", "m", [("KEYS", KEYS), ("NUMKEYS", np.ones((2, 3), "<i4"))], {},
     "'NUMKEYS' has 2 rows, which are as many samples, but input 'KEYS' has 1 rows"),
    ("rows of another number", "m", [("KEYS", KEYS.reshape(3, 2)), ("NUMKEYS", np.ones((2, 3), "<i4"))], {},
     "'KEYS' has 3 rows"),
    ("sum of a row", "m", [("KEYS", KEYS.reshape(2, 3)), ("NUMKEYS", np.array([[1, 1, 1], [0, 2, 2]], "<i4"))], {},
     "row 1 makes 4 keys, but a row of 'KEYS' has 3"),
    ("type of keys", "m", [("KEYS", KEYS.astype("<f4")), ("NUMKEYS", COUNTS)], {}, "is FP32, expected INT64 or INT32"),
    ("type of keys by table", "m.tables", [("items", KEYS.astype("<f4"))], {}, "is FP32, expected INT64 or INT32"),
    ("type of counts", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS.astype("<i8"))], {}, "is INT64, expected INT32"),
    ("missing", "m", [("KEYS", KEYS)], {}, "input 'NUMKEYS' of model 'm' is missing"),
    ("unknown input", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS), ("X", KEYS)], {}, "unexpected input 'X'"),
    ("twice", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS), ("KEYS", KEYS)], {}, "input 'KEYS' is there twice"),
    ("unknown output", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"outputs": ["items"]}, "unexpected output 'items'"),
    ("output twice", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"outputs": ["OUTPUT0"] * 2}, "is there twice"),
    ("pooling by position", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"hps_pooling": "sum"}, "'m.tables'"),
    ("policy", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"hps_miss_policy": "x"}, "'x' is not exact, wait"),
    ("raw rows", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"hps_output_type": "RAW"}, "'RAW' is not FP32, FP16"),
    ("wait", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"hps_max_wait_us": 2**33}, "limit is 4294967295"),
    ("reserved", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"triton_x": 1}, "reserved"),
    ("misspelt", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"hps_pool": "sum"}, "hps_pooling"),
    ("version", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], {"version": "-1"}, "below 0"),
    ("table", "m.tables", [("itmes", KEYS)], {}, "no table 'itmes'; its tables: items, users, ads"),
    ("offsets alone", "m.tables", [("items", KEYS), ("items.offsets", COUNTS)], {}, "without the parameter 'hps_pooling'"),
    ("pooling alone", "m.tables", [("items", KEYS)], {"hps_pooling": "sum"}, "no table has an input"),
    ("weights alone", "m.tables", [("items", KEYS), ("items.weights", np.ones(6, "<f4"))], {"hps_pooling": "sum"},
     "without 'items.offsets'"),
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


@pytest.mark.parametrize("model, inputs, more, words", [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_infer_when_it_is_wrong_then_refused_by_name(served, model, inputs, more, words):
    with refused(INVALID, words):
        infer(served, model, inputs, **more)


def test_infer_when_the_model_is_unknown_then_in_words_that_clients_know(served):
    with refused(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'nope' is not found"):
        infer(served, "nope", [("KEYS", KEYS), ("NUMKEYS", COUNTS)])
    with refused(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'nope' is not found"):
        infer(served, "nope", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], version="9")
    for version in ("9", "x", "0"):
        with refused(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: 'm' version '{version}' is not found"):
            infer(served, "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], version=version)


@pytest.mark.parametrize("change, words", [
    (lambda message: message.raw_input_contents.pop(), "1 buffers, but there are 2 inputs"),
    (lambda message: message.raw_input_contents.append(b""), "3 buffers, but there are 2 inputs"),
    (lambda message: message.inputs[0].contents.int64_contents.append(1), "stand beside"),
    (lambda message: message.inputs[0].shape.__setitem__(0, 7), "48 bytes, its shape of 7 values of INT64 has 56"),
    (lambda message: message.inputs[0].shape.__setitem__(0, -1), "shape[0] is -1"),
    (lambda message: message.inputs[0].shape.extend([2**40]), "shape[1] is 1099511627776"),
    (lambda message: message.inputs[0].shape.extend([2**30, 2**30]), "limit is 2147483647"),
    (lambda message: message.inputs[0].shape.extend([1] * 9), "more than 8 dimensions"),
    (lambda message: setattr(message.inputs[0], "datatype", "BYTES"), "hpsd has no tensor of"),
    (lambda message: setattr(message.inputs[0], "name", ""), "without a name"),
    (lambda message: setattr(message, "id", "x" * 129), "limit is 128"),
])
def test_infer_when_sizes_lie_then_refused_with_both(served, change, words):
    message = request("m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)])
    change(message)
    with refused(INVALID, words):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


@pytest.mark.parametrize("change, words", [
    (lambda one: one.contents.uint64_contents.append(1), "uint64_contents has values, but those of INT64 go into int64_contents"),
    (lambda one: one.contents.int_contents.extend([1] * 9), "int_contents has values"),
    (lambda one: setattr(one, "datatype", "FP16"), "int64_contents has values, but those of FP16 go into raw_input_contents"),
    (lambda one: one.contents.int64_contents.append(1), "int64_contents has not the 6 values of its shape"),
    (lambda one: one.contents.Clear(), "int64_contents has not the 6 values of its shape"),
])
def test_infer_when_contents_are_wrong_then_their_field_is_named(served, change, words):
    message = request("m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], raw=False)
    change(message.inputs[0])
    with refused(INVALID, f"input 'KEYS': contents: {words}"):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


WRONG_INPUTS = [[("KEYS", KEYS)], [("X", KEYS)], [("KEYS", KEYS.astype("<f4")), ("NUMKEYS", COUNTS)],
                [("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)]]


@pytest.mark.parametrize("inputs", WRONG_INPUTS)
@pytest.mark.parametrize("model", ["nope", "nope.tables", ""])
def test_infer_when_model_and_inputs_are_wrong_then_the_model_is_not_found(served, model, inputs):
    words = f"Request for unknown model: '{model.split('.', maxsplit=1)[0]}' is not found"
    with refused(grpc.StatusCode.NOT_FOUND, words):
        infer(served, model, inputs)
    reply, = served.stub.ModelStreamInfer(iter([request(model, inputs, ident="s")]), timeout=PATIENCE_S)
    assert words in reply.error_message and reply.infer_response.id == "s"
    message = request(model, inputs)
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with refused(grpc.StatusCode.NOT_FOUND, words):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


def test_infer_when_shared_memory_is_named_then_unimplemented(served):
    message = request("m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)])
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with refused(grpc.StatusCode.UNIMPLEMENTED, "shared memory is not offered"):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


def test_infer_when_a_million_outputs_are_asked_for_then_refused_before_memory_is_taken(served):
    message = request("m", [("KEYS", KEYS), ("NUMKEYS", COUNTS)], ["OUTPUT0"] * 10**6)
    with refused(INVALID, "which is the limit"):
        served.stub.ModelInfer(message, timeout=PATIENCE_S)


def test_infer_when_nothing_is_asked_for_then_empty_answers(served):
    reply = infer(served, "m", hps_inputs([[], [], []]))
    assert list(reply.outputs[0].shape) == [0] and list(reply.raw_output_contents) == [b""]
    reply = infer(served, "m.tables", [])
    assert not reply.outputs and not reply.raw_output_contents


# ---- streams -----------------------------------------------------------------------------------------------------

def test_stream_when_some_requests_are_wrong_then_the_others_are_answered_in_order(served):
    groups = groups_of(served)

    def requests():
        for number in range(200):
            yield (request("m", hps_inputs(groups), ident=str(number)) if number % 3 else
                   request("m", [("KEYS", KEYS)], ident=str(number)))

    expected = np.concatenate([served.rows(name, keys).ravel() for name, keys in zip(NAMES, groups)])
    count = 0
    for number, reply in enumerate(served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S)):
        count += 1
        if number % 3:
            assert reply.infer_response.id == str(number) and not reply.error_message
            assert reply.infer_response.parameters["triton_final_response"].bool_param
            np.testing.assert_array_equal(values(reply.infer_response, 0), expected)
        else:
            assert "'NUMKEYS' of model 'm' is missing" in reply.error_message
            assert reply.infer_response.id == str(number)
    assert count == 200


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
@pytest.mark.parametrize("model, inputs, more, words", [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_stream_when_a_request_is_wrong_then_its_error_has_its_id(served, model, inputs, more, words, compression):
    message = request(model, inputs, ident="r-1", **more)
    reply, = served.stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S, compression=compression)
    assert words in reply.error_message and reply.infer_response.id == "r-1"


def test_stream_when_an_id_is_too_long_then_its_error_has_the_characters_that_fit(served):
    message = request("m", hps_inputs([KEYS]), ident="a" + 300 * "\u00e9")
    reply, = served.stub.ModelStreamInfer(iter([message]), timeout=PATIENCE_S)
    assert (reply.error_message, reply.infer_response.id) == ("id: 601 bytes, limit is 128", "a" + 255 * "\u00e9")


def test_stream_when_the_quota_is_used_up_then_that_error_has_its_id_too(work, daemon):
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


def test_stream_when_requests_are_large_then_all_are_answered(served):
    keys = np.random.default_rng(1).choice(served.by_name["users"].keys, 300000)

    def requests():
        for number in range(6):
            yield request("m.tables", [("users", keys)], ident=str(number))

    for number, reply in enumerate(served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S,
                                                                compression=grpc.Compression.Gzip)):
        assert reply.infer_response.id == str(number), reply.error_message
        assert reply.infer_response.outputs[0].shape == [300000, 8]
    assert number == 5


def test_stream_when_the_client_waits_for_each_answer_then_it_comes(served):
    ready, answered = threading.Semaphore(1), []

    def requests():
        for number in range(5):
            assert ready.acquire(timeout=PATIENCE_S)
            yield request("m", hps_inputs(groups_of(served)), ident=str(number))

    for reply in served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S):
        answered.append(reply.infer_response.id)
        ready.release()
    assert answered == [str(number) for number in range(5)]


def test_stream_when_it_is_empty_or_cancelled_then_it_ends(served):
    assert not list(served.stub.ModelStreamInfer(iter(()), timeout=PATIENCE_S))
    forever = threading.Event()

    def requests():
        yield request("m", hps_inputs(groups_of(served)))
        forever.wait(PATIENCE_S)

    call = served.stub.ModelStreamInfer(requests(), timeout=PATIENCE_S)
    next(call)
    call.cancel()
    forever.set()
    until(lambda: served.daemon.metrics()["hpsd_requests_in_flight"] == 0, "its request is over")
