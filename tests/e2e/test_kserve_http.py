# SPDX-License-Identifier: Apache-2.0
"""Infer requests of KServe v2 over HTTP/1.1, by Python's http.client and by curl: both views of a model, tensors behind
the JSON and in it, both at once, compressed bodies, connections that are kept, and errors as Triton's clients want
them."""
import gzip
import hashlib
import http.client
import json
import shutil
import signal
import subprocess
import zlib

import numpy as np
import pytest

import kserve_body
from kserve_body import LENGTH, compose, hps_inputs
from rig import PATIENCE_S, Daemon, Table, default_config, model_config, until

NAMES, DIMS = ("items", "users", "ads"), (4, 8, 3)
KEYS, COUNTS = np.arange(6, dtype="<i8"), np.array([1, 2, 3], "<i4")
GOOD = [("KEYS", KEYS), ("NUMKEYS", COUNTS)]


class Client:
    """One connection of http.client."""

    def __init__(self, daemon, token=None):
        host, port = daemon.kserve[0].rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S * 4)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method, path, body=None, headers=()):
        """(status, headers, body)"""
        self.connection.request(method, path, body, {**self.headers, **dict(headers)})
        reply = self.connection.getresponse()
        return reply.status, reply.headers, reply.read()

    def infer(self, model, inputs, version=None, **how):
        """The answer of a request that is right."""
        status, headers, body = self.ask("POST", path_of(model, version), *compose(inputs, **how))
        assert status == 200, body
        return kserve_body.Answer(body, headers)

    def refused(self, status, words, path, body, headers=()):
        got, about, text = self.ask("POST", path, body, headers)
        assert got == status, (got, text)
        assert about["Content-Type"] == "application/json"
        answer = json.loads(text)
        assert list(answer) == ["error"] and words in answer["error"], answer


def path_of(model, version=None):
    return f"/v2/models/{model}{f'/versions/{version}' if version is not None else ''}/infer"


class Served:
    def __init__(self, daemon, tables):
        self.daemon, self.tables = daemon, tables
        self.by_name = {table.name: table for table in tables}

    def groups(self, sizes=(5, 0, 7), seed=1):
        rng = np.random.default_rng(seed)
        return [rng.choice(self.by_name[name].keys, size) for name, size in zip(NAMES, sizes)]

    def flat(self, groups):
        return np.concatenate([self.by_name[name].expect(keys).ravel() for name, keys in zip(NAMES, groups)])


def a_model(work, name, dims=DIMS, n_rows=100):
    tables = [Table.random(table, n_rows, dim, number=i) for i, (table, dim) in enumerate(zip(NAMES, dims))]
    paths = [table.save(f"{work}/{name}") for table in tables]
    return tables, model_config(name, paths, list(dims), list(NAMES))


@pytest.fixture(name="served", scope="module")
def a_daemon_with_a_model(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("kserve"))
    tables, model = a_model(work, "m")
    with Daemon(work, default_config([model], server={"kserve_listen": ["127.0.0.1:0"]})) as daemon:
        daemon.load("m", f"{work}/m", label="next")
        yield Served(daemon, tables)


@pytest.fixture(name="client")
def a_client(served):
    one = Client(served.daemon)
    yield one
    one.connection.close()


# ---- what is right -----------------------------------------------------------------------------------

WAYS = {"behind the JSON": True, "in the JSON": False, "keys behind, counts in it": {"KEYS"},
        "counts behind, keys in it": {"NUMKEYS"}}


@pytest.mark.parametrize("binary_output", [True, False, None])
@pytest.mark.parametrize("binary", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("two_dims", [False, True])
def test_infer_when_by_position_then_one_flat_output_of_all_tables(served, client, binary, binary_output, two_dims):
    groups = served.groups()
    inputs = [(name, values.reshape(1, -1) if two_dims else values) for name, values in hps_inputs(groups)]
    answer = client.infer("m", inputs, binary=binary, binary_output=binary_output, ident="seven")
    output, = answer.about["outputs"]
    assert {key: answer.about[key] for key in ("model_name", "model_version", "id", "parameters")} == {
        "model_name": "m", "model_version": "1", "id": "seven", "parameters": {"NumSample": 4, "DeviceID": 0}}
    expected = served.flat(groups)
    assert (output["name"], output["datatype"], output["shape"]) == ("OUTPUT0", "FP32", [expected.size])
    assert ("data" in output) == (not binary_output)
    np.testing.assert_array_equal(answer.values["OUTPUT0"], expected)


@pytest.mark.parametrize("dtype", ["<i8", "<i4"])
@pytest.mark.parametrize("binary", [True, False, {"KEYS"}])
def test_infer_when_there_are_several_samples_then_one_follows_the_other_table_after_table(served, client, binary, dtype):
    keys = np.array([[0, -1, -1, 7], [-1, 0, 0, -1]], dtype)  # of 7 there is no row
    counts = np.array([[1, 0, 3], [2, 2, 0]], "<i4")
    answer = client.infer("m", [("KEYS", keys), ("NUMKEYS", counts)], outputs=["OUTPUT0", "STATUS"], binary=binary,
                          binary_output=bool(binary))
    items, users, ads = (served.by_name[name].expect for name in NAMES)
    expected = [items([0]), ads([-1, -1, 7]), items([-1, 0]), users([0, -1])]
    np.testing.assert_array_equal(answer.values["OUTPUT0"], np.concatenate([rows.ravel() for rows in expected]))
    assert answer.values["STATUS"].tolist() == [1, 1, 1, 3, 1, 1, 1, 1]
    flat = client.infer("m", [("KEYS", keys[:, :, None]), ("NUMKEYS", np.array([3, 5], "<i4"))], binary=binary)
    np.testing.assert_array_equal(flat.values["OUTPUT0"], np.concatenate(
        [items(keys.ravel()[:3]).ravel(), users(keys.ravel()[3:]).ravel()]))


def test_infer_when_outputs_are_named_then_each_as_it_is_asked_for(served, client):
    groups = served.groups()
    groups[0][1] = 10**15  # which no table has
    answer = client.infer("m", hps_inputs(groups), outputs=[("STATUS", False), ("OUTPUT0", True)])
    status, rows = answer.about["outputs"]
    assert (status["name"], rows["name"]) == ("STATUS", "OUTPUT0")
    assert "data" in status and rows["parameters"] == {"binary_data_size": served.flat(groups).nbytes}
    assert answer.values["STATUS"].tolist() == [1, 3] + [1] * 10
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))
    answer = client.infer("m", hps_inputs(groups), outputs=["STATUS", ("OUTPUT0", False)], binary_output=True)
    assert ["data" in one for one in answer.about["outputs"]] == [False, True]
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


@pytest.mark.parametrize("binary", [True, False, {"users"}])
def test_infer_when_by_table_then_an_output_for_each(served, client, binary):
    groups = dict(zip(NAMES, served.groups()))
    answer = client.infer("m.tables", list(groups.items()), binary=binary, binary_output=bool(binary))
    assert answer.about["model_name"] == "m.tables" and "parameters" not in answer.about
    assert [one["name"] for one in answer.about["outputs"]] == list(NAMES)
    for name, keys in groups.items():
        assert answer.values[name].shape == (len(keys), served.by_name[name].dim)
        np.testing.assert_array_equal(answer.values[name], served.by_name[name].expect(keys))


@pytest.mark.parametrize("binary", [True, False])
def test_infer_when_there_are_offsets_then_rows_are_pooled(served, client, binary):
    keys, = served.groups((9,))
    offsets, weights = np.array([0, 2, 2, 9], "<i8"), np.linspace(0.5, 2, 9).astype("<f4")
    answer = client.infer("m.tables", [("items", keys), ("items.offsets", offsets), ("items.weights", weights)],
                          binary=binary, binary_output=True, hps_pooling="sum")
    rows = served.by_name["items"].expect(keys).astype(np.float64) * weights[:, None]
    expected = [rows[begin:end].sum(axis=0) for begin, end in zip(offsets[:-1], offsets[1:])]
    np.testing.assert_allclose(answer.values["items"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_infer_when_an_output_type_is_asked_for_then_values_are_of_it_behind_the_json(served, client, name):
    groups = served.groups()
    answer = client.infer("m", hps_inputs(groups), binary_output=True, hps_output_type=name)
    assert answer.about["outputs"][0]["datatype"] == name
    values = answer.values["OUTPUT0"]
    wide = values.astype("<f4") if name == "FP16" else (values.astype("<u4") << 16).view("<f4")
    np.testing.assert_allclose(wide, served.flat(groups), rtol=2**-8, atol=1e-6)
    client.refused(400, name, path_of("m"), *compose(hps_inputs(groups), hps_output_type=name))


@pytest.mark.parametrize("version, answered", [(None, "1"), ("2", "2"), ("next", "2"), ("1", "1"), ("%6eext", "2")])
def test_infer_when_a_version_is_named_by_number_or_label_then_that_one(served, client, version, answered):
    assert client.infer("m", hps_inputs(served.groups()), version).about["model_version"] == answered


def test_infer_when_nothing_is_asked_for_then_empty_answers(client):
    answer = client.infer("m", hps_inputs([[], [], []]), binary_output=True)
    assert answer.values["OUTPUT0"].shape == (0,)
    assert client.infer("m.tables", [], binary=False).about["outputs"] == []


@pytest.mark.parametrize("name, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_when_the_body_is_compressed_then_its_sizes_are_those_of_what_comes_out(served, client, name, pack, binary):
    groups = served.groups((2000, 100, 3))
    body, headers = compose(hps_inputs(groups), binary=binary, binary_output=True)
    status, about, reply = client.ask("POST", path_of("m"), pack(body), {**headers, "Content-Encoding": name})
    assert status == 200, reply
    np.testing.assert_array_equal(kserve_body.Answer(reply, about).values["OUTPUT0"], served.flat(groups))


def test_infer_when_the_connection_is_kept_then_one_serves_all_and_errors_do_not_end_it(served, client):
    groups = served.groups()
    client.infer("m", hps_inputs(groups))
    sock = client.connection.sock
    for number in range(50):
        if number % 3:
            client.refused(400, "'NUMKEYS'", path_of("m"), *compose([("KEYS", KEYS)]))
        answer = client.infer("m", hps_inputs(groups), ident=str(number), binary_output=number % 2 == 0)
        assert answer.about["id"] == str(number)
        np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))
        assert client.connection.sock is sock


def test_infer_when_the_body_comes_in_chunks_then_it_is_one_body(served, client):
    groups = served.groups((2000, 3, 3))
    body, headers = compose(hps_inputs(groups), binary_output=True)
    pieces = (body[at:at + 777] for at in range(0, len(body), 777))
    status, about, reply = client.ask("POST", path_of("m"), pieces, headers)
    assert status == 200, reply
    np.testing.assert_array_equal(kserve_body.Answer(reply, about).values["OUTPUT0"], served.flat(groups))


def test_infer_when_the_answer_has_14_megabytes_then_every_row_is_there(served, client):
    groups = served.groups((10, 440000, 0))
    for binary in (True, {"NUMKEYS"}):
        answer = client.infer("m", hps_inputs(groups), binary=binary, binary_output=True)
        assert answer.values["OUTPUT0"].nbytes > 14e6
        np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


def counted(served):
    """(keys that were looked up, requests that are under way)"""
    keys = sum(value for name, value in served.daemon.metrics().items() if name.startswith("hpsd_lookup_keys_total"))
    return keys, served.daemon.metrics()["hpsd_requests_in_flight"]


def test_infer_when_over_http_then_it_is_counted_as_other_look_ups_are(served, client):
    before, _ = counted(served)
    client.infer("m", hps_inputs(served.groups((40, 1, 1))))
    until(lambda: counted(served) == (before + 42, 0), "42 keys more")


def test_infer_when_the_answer_has_too_many_values_for_json_then_refused_before_any_is_looked_up(served, client):
    until(lambda: counted(served)[1] == 0, "nothing is under way")
    before, _ = counted(served)
    groups = served.groups((65536 // 4 + 1, 0, 0))
    client.refused(400, "65540 values as JSON, limit is 65536; ask for binary_data", path_of("m"), *compose(hps_inputs(groups)))
    client.infer("m", hps_inputs([groups[0][1:], [], []]))
    until(lambda: counted(served) == (before + 65536 // 4, 0), "keys of the second alone")


def test_connections_when_open_then_counted_by_their_listener(tmp_path):
    _, model = a_model(str(tmp_path), "m")
    with Daemon(str(tmp_path), default_config([model], server={"kserve_listen": ["127.0.0.1:0"]})) as daemon:
        daemon.wait_ready()
        before = daemon.metrics().get('hpsd_connections{listener="grpc"}', 0)
        clients = [Client(daemon) for _ in range(3)]
        for client in clients:
            assert client.ask("GET", "/v2/health/live")[0] == 200
        assert daemon.metrics()['hpsd_connections{listener="kserve"}'] == 3
        assert daemon.metrics().get('hpsd_connections{listener="grpc"}', 0) == before
        for client in clients:
            client.connection.close()
        until(lambda: daemon.metrics()['hpsd_connections{listener="kserve"}'] == 0, "all of them closed")


def test_connection_when_kept_over_age_and_drain_then_every_end_is_announced(tmp_path):
    """http.client connects anew only where the answer before said so; any other end fails its next request."""
    _, model = a_model(str(tmp_path), "m")
    server = {"kserve_listen": ["127.0.0.1:0"], "connection_age_s": 1}
    with Daemon(str(tmp_path), default_config([model], server=server)) as daemon:
        daemon.wait_ready()
        client, request = Client(daemon), ("POST", path_of("m"), *compose(hps_inputs([KEYS[:2]] * 3)))

        def until_closed():
            closed = False
            while not closed:
                status, headers, _ = client.ask(*request)
                closed = headers["Connection"] == "close"
                assert status == 200
        for _ in range(2):
            until_closed()
        assert client.ask(*request)[1]["Connection"] is None
        daemon.send(signal.SIGTERM)
        until_closed()
        daemon.stop()


# ---- curl --------------------------------------------------------------------------------------------

@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
@pytest.mark.parametrize("packed", [False, True])
def test_infer_when_by_curl_then_the_same(served, tmp_path, packed):
    groups = served.groups((30, 1, 4))
    url = f"http://{served.daemon.kserve[0]}"
    for binary in (True, False):
        body, headers = compose(hps_inputs(groups), binary=binary, binary_output=binary)
        (tmp_path / "body").write_bytes(gzip.compress(body) if packed else body)
        options = [option for name, value in headers.items() for option in ("-H", f"{name}: {value}")]
        options += ["-H", "Content-Encoding: gzip"] if packed else []
        done = subprocess.run(["curl", "-sS", "--fail-with-body", "--max-time", str(PATIENCE_S), *options, "-D",
                               tmp_path / "head", "-o", tmp_path / "reply", "--data-binary", f"@{tmp_path / 'body'}",
                               url + path_of("m")], capture_output=True, check=False)
        assert done.returncode == 0, (done.stderr, (tmp_path / "reply").read_bytes())
        about = dict(line.split(": ", 1) for line in (tmp_path / "head").read_text().splitlines() if ": " in line)
        names = {name.lower(): value for name, value in about.items()}
        assert names["content-type"] == ("application/octet-stream" if binary else "application/json")
        length = {LENGTH: names[LENGTH.lower()]} if binary else {}
        assert (LENGTH.lower() in names) == binary
        answer = kserve_body.Answer((tmp_path / "reply").read_bytes(), length)
        np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl")
def test_infer_when_curl_uploads_much_then_it_waits_for_the_word_and_both_requests_take_one_connection(served, tmp_path):
    """curl asks with Expect: 100-continue before it sends more than a megabyte."""
    groups = served.groups((10, 200000, 5))
    body, headers = compose(hps_inputs(groups), binary_output=True)
    (tmp_path / "body").write_bytes(body)
    url = f"http://{served.daemon.kserve[0]}{path_of('m')}"
    done = subprocess.run(["curl", "-sS", "--fail-with-body", "--max-time", str(PATIENCE_S), "-w",
                           "%{num_connects} %{http_code}\n", "-D", tmp_path / "head", "-H", "Expect: 100-continue",
                           "-H", f"{LENGTH}: {headers[LENGTH]}", "--data-binary", f"@{tmp_path / 'body'}",
                           "-o", tmp_path / "0", url, "-o", tmp_path / "1", url],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 200", "0 200"]
    assert "100 Continue" in (tmp_path / "head").read_text()
    for number in "01":
        reply = (tmp_path / number).read_bytes()
        assert reply.endswith(served.flat(groups).tobytes())


# ---- what is wrong -----------------------------------------------------------------------------------

WRONG = [  # what, model, inputs, more, words of the error
    ("sum", "m", [("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)], {}, "9 keys, but input 'KEYS' has 6"),
    ("negative", "m", [("KEYS", KEYS), ("NUMKEYS", np.array([7, -1, 0], "<i4"))], {}, "'NUMKEYS': [1] is -1"),
    ("tables", "m", [("KEYS", KEYS), ("NUMKEYS", np.array([3, 0, 0, 3], "<i4"))], {},
     "NUMKEYS[3]: by position, but model 'm' has 3"),
    ("rows", "m", [("KEYS", KEYS), ("NUMKEYS", np.ones((2, 3), "<i4"))], {}, "'NUMKEYS' has 2 rows"),
    ("type", "m", [("KEYS", KEYS.astype("<f4")), ("NUMKEYS", COUNTS)], {}, "is FP32, expected INT64 or INT32"),
    ("missing", "m", [("KEYS", KEYS)], {}, "input 'NUMKEYS' of model 'm' is missing"),
    ("unknown input", "m", [*GOOD, ("X", KEYS)], {}, "unexpected input 'X'"),
    ("twice", "m", [*GOOD, ("KEYS", KEYS)], {}, "input 'KEYS' is there twice"),
    ("unknown output", "m", GOOD, {"outputs": ["items"]}, "unexpected output 'items'"),
    ("output twice", "m", GOOD, {"outputs": ["OUTPUT0"] * 2}, "is there twice"),
    ("policy", "m", GOOD, {"hps_miss_policy": "x"}, "'x' is not exact, wait"),
    ("reserved", "m", GOOD, {"triton_x": 1}, "reserved"),
    ("misspelt", "m", GOOD, {"hps_pool": "sum"}, "hps_pooling"),
    ("table", "m.tables", [("itmes", KEYS)], {}, "no table 'itmes'; its tables: items, users, ads"),
    ("offsets alone", "m.tables", [("items", KEYS), ("items.offsets", COUNTS)], {}, "without the parameter 'hps_pooling'"),
]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("model, inputs, more, words", [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_infer_when_it_is_wrong_then_400_by_name(client, model, inputs, more, words, binary):
    client.refused(400, words, path_of(model), *compose(inputs, binary=binary, **more))


def good(change=None, header=None, **how):
    """A body that is right but for `change`, of its JSON, and `header`, of what is said of its size."""
    body, headers = compose(GOOD, **how)
    head = int(headers.get(LENGTH, len(body)))
    document = json.loads(body[:head])
    if change is not None:
        change(document)
    text = json.dumps(document).encode()
    headers = {LENGTH: str(len(text))} if headers else {}
    return text + body[head:], headers if header is None else {LENGTH: header(len(text), len(text) + len(body) - head)}


def set_input(**fields):
    return lambda document: document["inputs"][0].update(fields)


BAD_BODIES = {
    "no JSON": ((b"{]", {}), "JSON"),
    "nothing": ((b"", {}), "the body is empty"),
    "an array": ((b"[]", {}), "expected an object"),
    "no inputs": ((b"{}", {}), "inputs"),
    "a header beyond the body": (good(header=lambda head, size: str(size + 1)), "but the body has"),
    "a header of 0": (good(header=lambda head, size: "0"), "models of one input"),
    "a header that is no number": (good(header=lambda head, size: "0x10"), LENGTH),
    "a negative header": (good(header=lambda head, size: "-1"), LENGTH),
    "a header of 20 digits": (good(header=lambda head, size: str(2**64 + 10)), LENGTH),
    "a header within the JSON": (good(header=lambda head, size: str(head - 1)), LENGTH),
    "a header behind the JSON": (good(header=lambda head, size: str(head + 4)), LENGTH),
    "no header and no JSON": ((bytes([3, 0, 0, 0, 0, 0, 0, 0]), {}), "the header Inference-Header-Content-Length is"),
    "no header": ((compose(GOOD)[0], {}), "the header Inference-Header-Content-Length is"),
    "less than it says": (good(set_input(parameters={"binary_data_size": 40})), "8 of the 60 bytes"),
    "more than there is": (good(set_input(parameters={"binary_data_size": 2**40})), "1099511627776"),
    "less than none": (good(set_input(parameters={"binary_data_size": -8})), "0 or more"),
    "a negative dimension": (good(set_input(shape=[-6])), "shape[0] is -6"),
    "an overflow": (good(set_input(shape=[2**32, 2**32])), "4294967296"),
    "an overflow to what is there": (good(set_input(shape=[6, 2**61])), "shape"),
    "9 dimensions": (good(set_input(shape=[1] * 8 + [6])), "9 dimensions"),
    "a shape of text": (good(set_input(shape=["6"])), "expected an integer"),
    "another shape": (good(set_input(shape=[7])), "48 bytes"),
    "another shape in JSON": (good(set_input(shape=[7]), binary=False), "'KEYS'"),
    "both": (good(set_input(data=[1] * 6)), "both data and"),
    "neither": (good(set_input(parameters={})), "neither data nor"),
    "a key of text": (good(set_input(data=["1"] * 6), binary=False), "'KEYS'"),
    "a key with a fraction": (good(set_input(data=[1.5] * 6), binary=False), "'KEYS'"),
    "a key of 65 bits": (good(set_input(data=[2**64] * 6), binary=False), "'KEYS'"),
    "a type that is none": (good(set_input(datatype="BYTES")), "'BYTES'"),
    "a name that is a number": (good(set_input(name=7)), "expected a string"),
    "an id that is too long": (good(lambda document: document.update(id="x" * 129)), "limit is 128"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_infer_when_the_body_lies_then_400(client, name):
    (body, headers), words = BAD_BODIES[name]
    client.refused(400, words, path_of("m"), body, headers)


def test_infer_when_a_million_outputs_are_asked_for_then_400_before_memory_is_taken(client):
    client.refused(400, "more than ", path_of("m"), *compose(GOOD, outputs=["OUTPUT0"] * 10**6))


def test_infer_when_the_model_is_unknown_then_404_in_words_that_clients_know(client):
    body = compose(GOOD)
    client.refused(404, "Request for unknown model: 'nope' is not found", path_of("nope"), *body)
    client.refused(404, "Request for unknown model: 'nope' is not found", path_of("nope", 9), *body)
    for version in ("9", "x", "0"):
        client.refused(404, f"Request for unknown model: 'm' version '{version}' is not found", path_of("m", version), *body)
    for wrong in (compose(GOOD[:1]), compose(GOOD[:1], binary=False), (compose(GOOD)[0], {}), (b"{]", {}), (b"", {}),
                  (body[0], {LENGTH: "x"}), compose([("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)])):
        client.refused(404, "Request for unknown model: 'nope' is not found", path_of("nope"), *wrong)
    client.refused(400, "below 0", path_of("m", "-1"), *body)
    client.refused(404, "unknown path", "/v2/models/m/infers", *body)


@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_infer_when_shared_memory_is_named_then_501(client, where):
    def change(document):
        document[where][0]["parameters"] = {"shared_memory_region": "r", "shared_memory_byte_size": 48}
    client.refused(501, "shared memory is not offered", path_of("m"), *good(change, binary=False, outputs=["OUTPUT0"]))


def test_infer_when_the_method_is_another_then_405_and_which_are_taken(client):
    status, headers, body = client.ask("GET", path_of("m"))
    assert status == 405 and headers["Allow"] == "POST" and "error" in json.loads(body)


def test_request_when_its_line_is_malformed_then_the_error_is_json(client):
    client.refused(400, "request line", "host:80", b"")


def test_infer_when_the_encoding_is_unknown_then_415_and_when_the_bytes_are_not_of_it_then_400(client):
    body, headers = compose(GOOD)
    client.refused(415, "gzip", path_of("m"), body, {**headers, "Content-Encoding": "br"})
    for encoding in ("gzip", "deflate"):
        client.refused(400, "damaged", path_of("m"), body, {**headers, "Content-Encoding": encoding})


def test_infer_when_the_body_is_larger_than_the_limit_then_413_before_it_is_sent(served):
    client = Client(served.daemon)
    client.connection.putrequest("POST", path_of("m"))
    client.connection.putheader("Content-Length", str(1 << 40))
    client.connection.endheaders()
    reply = client.connection.getresponse()
    assert reply.status == 413 and "the limit is" in json.loads(reply.read())["error"]
    client.connection.close()


@pytest.mark.parametrize("mebibytes", [30, 200])
@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_infer_when_the_body_inflates_to_more_than_the_limit_then_413_of_a_worker_too(client, encoding, pack, mebibytes):
    body, headers = compose(GOOD, binary=False)
    client.refused(413, "", path_of("m"), pack(b" " * (mebibytes << 20) + body), {**headers, "Content-Encoding": encoding})


def test_infer_when_its_time_is_over_then_504(served, client):
    groups = served.groups((10, 400000, 0))
    client.refused(504, "", path_of("m"), *compose(hps_inputs(groups), binary_output=True, timeout=1))


# ---- who may -----------------------------------------------------------------------------------------

def test_roles_when_there_is_a_role_file_then_tokens_decide(work, daemon):
    models = []
    for name in ("m", "other"):
        tables, model = a_model(work, name)
        models.append(model)
    with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": ["token:app"], "may": ["lookup"], "models": ["m"]},
                             {"who": ["token:ops"], "may": ["admin"]}],
                   "tokens": [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()}
                              for name in ("app", "ops")]}, f)
    one = daemon(default_config(models, server={"access": f"{work}/roles.json", "kserve_listen": ["127.0.0.1:0"]}))
    served = Served(one, tables)
    groups = served.groups()
    body = compose(hps_inputs(groups))
    np.testing.assert_allclose(Client(one, "app").infer("m", hps_inputs(groups)).values["OUTPUT0"], served.flat(groups))
    Client(one).refused(401, "", path_of("m"), *body)
    Client(one, "nobody").refused(401, "", path_of("m"), *body)
    Client(one, "ops").refused(403, "token:ops", path_of("m"), *body)
    Client(one, "app").refused(403, "'other'", path_of("other"), *body)
    Client(one, "app").refused(403, "'other'", path_of("other.tables"), *compose([("items", groups[0])]))
    Client(one, "app").refused(403, "'absent'", path_of("absent"), *body)  # does not tell that there is none
