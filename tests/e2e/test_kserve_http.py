# SPDX-License-Identifier: Apache-2.0
"""KServe v2 inference over HTTP/1.1, with http.client and curl: binary tensors after the JSON and values in it,
compressed bodies, persistent connections, and the errors that Triton's clients expect. test_kserve_infer.py tests what
HTTP and gRPC have in common."""
import gzip
import hashlib
import json
import shutil
import signal
import subprocess
import zlib

import numpy as np
import pytest

import kserve_body
from kserve_body import LENGTH, compose, hps_inputs
from kserve_rig import COUNTS, GOOD, KEYS, Http, Served, a_model, path_of
from rig import PATIENCE_S, Daemon, default_config, until


@pytest.fixture(name="served", scope="module")
def a_daemon_with_a_model(tmp_path_factory):
    work = str(tmp_path_factory.mktemp("kserve"))
    tables, model = a_model(work, "m")
    with Daemon(work, default_config([model], server={"kserve_listen": ["127.0.0.1:0"]})) as daemon:
        daemon.load("m", f"{work}/m", label="next")
        yield Served(daemon, tables)


@pytest.fixture(name="client")
def a_client(served):
    one = Http(served.daemon, binary_output=None)
    yield one
    one.close()


# ---- correct requests --------------------------------------------------------------------------------

@pytest.mark.parametrize("binary_output", [True, False, None])
@pytest.mark.parametrize("binary", [True, False, {"KEYS"}, {"NUMKEYS"}])
def test_infer_when_tensors_are_binary_or_json_then_the_rows_are_equal(served, client, binary, binary_output):
    groups = served.groups()
    answer = client.infer("m", hps_inputs(groups), binary=binary, binary_output=binary_output)
    output, = answer.about["outputs"]
    assert ("data" in output) == (not binary_output)
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


def test_infer_when_outputs_are_requested_as_binary_or_json_then_each_has_that_form(served, client):
    groups = served.groups()
    answer = client.infer("m", hps_inputs(groups), outputs=[("STATUS", False), ("OUTPUT0", True)])
    status, rows = answer.about["outputs"]
    assert "data" in status and rows["parameters"] == {"binary_data_size": served.flat(groups).nbytes}
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))
    answer = client.infer("m", hps_inputs(groups), outputs=["STATUS", ("OUTPUT0", False)], binary_output=True)
    assert ["data" in one for one in answer.about["outputs"]] == [False, True]
    np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


def test_infer_when_a_label_is_escaped_in_the_path_then_its_version_is_used(served, client):
    assert client.infer("m", hps_inputs(served.groups()), version="%6eext").about["model_version"] == "2"


@pytest.mark.parametrize("name, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_when_the_body_is_compressed_then_declared_sizes_are_uncompressed(served, client, name, pack, binary):
    groups = served.groups((2000, 100, 3))
    body, headers = compose(hps_inputs(groups), binary=binary, binary_output=True)
    status, about, reply = client.ask("POST", path_of("m"), pack(body), {**headers, "Content-Encoding": name})
    assert status == 200, reply
    np.testing.assert_array_equal(kserve_body.Answer(reply, about).values["OUTPUT0"], served.flat(groups))


def test_infer_when_the_connection_is_kept_then_errors_do_not_close_it(served, client):
    groups = served.groups()
    client.infer("m", hps_inputs(groups))
    sock = client.connection.sock
    for number in range(50):
        if number % 3:
            client.refuses(400, "'NUMKEYS'", path_of("m"), *compose([("KEYS", KEYS)]))
        answer = client.infer("m", hps_inputs(groups), ident=str(number), binary_output=number % 2 == 0)
        assert answer.about["id"] == str(number)
        np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))
        assert client.connection.sock is sock


def test_infer_when_the_body_is_chunked_then_the_reply_is_correct(served, client):
    groups = served.groups((2000, 3, 3))
    body, headers = compose(hps_inputs(groups), binary_output=True)
    pieces = (body[at:at + 777] for at in range(0, len(body), 777))
    status, about, reply = client.ask("POST", path_of("m"), pieces, headers)
    assert status == 200, reply
    np.testing.assert_array_equal(kserve_body.Answer(reply, about).values["OUTPUT0"], served.flat(groups))


def test_infer_when_the_reply_has_14_megabytes_then_all_rows_are_correct(served, client):
    groups = served.groups((10, 440000, 0))
    for binary in (True, {"NUMKEYS"}):
        answer = client.infer("m", hps_inputs(groups), binary=binary, binary_output=True)
        assert answer.values["OUTPUT0"].nbytes > 14e6
        np.testing.assert_array_equal(answer.values["OUTPUT0"], served.flat(groups))


def counted(served):
    """(number of keys looked up, requests in flight)"""
    keys = sum(value for name, value in served.daemon.metrics().items() if name.startswith("hpsd_lookup_keys_total"))
    return keys, served.daemon.metrics()["hpsd_requests_in_flight"]


def test_infer_when_over_http_then_its_keys_are_counted(served, client):
    before, _ = counted(served)
    client.infer("m", hps_inputs(served.groups((40, 1, 1))))
    until(lambda: counted(served) == (before + 42, 0), "42 keys more")


def test_infer_when_the_reply_has_too_many_values_for_json_then_refused_before_the_lookup(served, client):
    until(lambda: counted(served)[1] == 0, "nothing is under way")
    before, _ = counted(served)
    groups = served.groups((65536 // 4 + 1, 0, 0))
    client.refuses(400, "65540 values as JSON, limit is 65536; ask for binary_data", path_of("m"), *compose(hps_inputs(groups)))
    client.infer("m", hps_inputs([groups[0][1:], [], []]))
    until(lambda: counted(served) == (before + 65536 // 4, 0), "keys of the second alone")


def test_connections_when_open_then_counted_by_listener(tmp_path):
    _, model = a_model(str(tmp_path), "m")
    with Daemon(str(tmp_path), default_config([model], server={"kserve_listen": ["127.0.0.1:0"]})) as daemon:
        daemon.wait_ready()
        before = daemon.metrics().get('hpsd_connections{listener="grpc"}', 0)
        clients = [Http(daemon) for _ in range(3)]
        for client in clients:
            assert client.ask("GET", "/v2/health/live")[0] == 200
        assert daemon.metrics()['hpsd_connections{listener="kserve"}'] == 3
        assert daemon.metrics().get('hpsd_connections{listener="grpc"}', 0) == before
        for client in clients:
            client.connection.close()
        until(lambda: daemon.metrics()['hpsd_connections{listener="kserve"}'] == 0, "all of them closed")


def test_connection_when_it_reaches_its_age_or_hpsd_drains_then_a_reply_announces_its_end(tmp_path):
    """http.client reconnects only if the last reply announced the end of the connection. Any other end fails its next
    request."""
    _, model = a_model(str(tmp_path), "m")
    server = {"kserve_listen": ["127.0.0.1:0"], "connection_age_s": 1}
    with Daemon(str(tmp_path), default_config([model], server=server)) as daemon:
        daemon.wait_ready()
        client, request = Http(daemon), ("POST", path_of("m"), *compose(hps_inputs([KEYS[:2]] * 3)))

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
def test_infer_when_sent_by_curl_then_the_reply_is_correct(served, tmp_path, packed):
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
def test_infer_when_curl_expects_100_continue_then_both_requests_use_one_connection(served, tmp_path):
    """curl sends Expect: 100-continue before a body of more than a megabyte."""
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


# ---- wrong requests ----------------------------------------------------------------------------------

def good(header=None, size=None):
    """A correct body and its headers, except that `header` changes the declared length of the JSON, and `size` that of
    the first tensor."""
    body, headers = compose(GOOD)
    head = int(headers[LENGTH])
    text = body[:head] if size is None else body[:head].replace(b'"binary_data_size": 48', b'"binary_data_size": %d' % size)
    told = str(len(text)) if header is None else header(len(text), len(text) + len(body) - head)
    return text + body[head:], {LENGTH: told}


BAD_BODIES = {  # tests/unit/server/kserve tests wrong JSON
    "no JSON": ((b"{]", {}), "JSON"),
    "nothing": ((b"", {}), "the body is empty"),
    "an array": ((b"[]", {}), "expected an object"),
    "no inputs": ((b"{}", {}), "inputs"),
    "a header beyond the body": (good(header=lambda head, size: str(size + 1)), "but the body has"),
    "a header of 0": (good(header=lambda head, size: "0"), "models with one input"),
    "a header that is no number": (good(header=lambda head, size: "0x10"), LENGTH),
    "a negative header": (good(header=lambda head, size: "-1"), LENGTH),
    "a header of 20 digits": (good(header=lambda head, size: str(2**64 + 10)), LENGTH),
    "a header within the JSON": (good(header=lambda head, size: str(head - 1)), LENGTH),
    "a header behind the JSON": (good(header=lambda head, size: str(head + 4)), LENGTH),
    "no header and no JSON": ((bytes([3, 0, 0, 0, 0, 0, 0, 0]), {}), "the header Inference-Header-Content-Length is"),
    "no header": ((compose(GOOD)[0], {}), "the header Inference-Header-Content-Length is"),
    "a tensor of less than it has": (good(size=40), "8 of the 60 bytes"),
    "a tensor of more than there is": (good(size=2**40), "1099511627776"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_infer_when_the_body_is_malformed_then_400(client, name):
    (body, headers), words = BAD_BODIES[name]
    client.refuses(400, words, path_of("m"), body, headers)


def test_infer_when_the_model_is_unknown_then_404_before_other_errors(client):
    body = compose(GOOD)
    for wrong in (compose(GOOD[:1]), compose(GOOD[:1], binary=False), (body[0], {}), (b"{]", {}), (b"", {}),
                  (body[0], {LENGTH: "x"}), compose([("KEYS", KEYS), ("NUMKEYS", COUNTS + 1)])):
        client.refuses(404, "Request for unknown model: 'nope' is not found", path_of("nope"), *wrong)
    client.refuses(404, "unknown path", "/v2/models/m/infers", *body)


def test_infer_when_the_method_is_not_post_then_405_with_the_allowed_method(client):
    status, headers, body = client.ask("GET", path_of("m"))
    assert status == 405 and headers["Allow"] == "POST" and "error" in json.loads(body)


def test_request_when_its_line_is_malformed_then_the_error_is_json(client):
    client.refuses(400, "request line", "host:80", b"")


def test_infer_when_the_encoding_is_unknown_or_the_data_is_damaged_then_415_or_400(client):
    body, headers = compose(GOOD)
    client.refuses(415, "gzip", path_of("m"), body, {**headers, "Content-Encoding": "br"})
    for encoding in ("gzip", "deflate"):
        client.refuses(400, "damaged", path_of("m"), body, {**headers, "Content-Encoding": encoding})


def test_infer_when_the_body_is_larger_than_the_limit_then_413_before_it_is_sent(served):
    client = Http(served.daemon)
    client.connection.putrequest("POST", path_of("m"))
    client.connection.putheader("Content-Length", str(1 << 40))
    client.connection.endheaders()
    reply = client.connection.getresponse()
    assert reply.status == 413 and "the limit is" in json.loads(reply.read())["error"]
    client.connection.close()


@pytest.mark.parametrize("mebibytes", [30, 200])
@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_infer_when_the_body_inflates_beyond_the_limit_then_413_also_on_a_worker(client, encoding, pack, mebibytes):
    body, headers = compose(GOOD, binary=False)
    client.refuses(413, "", path_of("m"), pack(b" " * (mebibytes << 20) + body), {**headers, "Content-Encoding": encoding})


def test_infer_when_its_timeout_expires_then_504(served, client):
    groups = served.groups((10, 400000, 0))
    client.refuses(504, "", path_of("m"), *compose(hps_inputs(groups), binary_output=True, timeout=1))


# ---- permissions -------------------------------------------------------------------------------------

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
    np.testing.assert_allclose(Http(one, "app").infer("m", hps_inputs(groups)).values["OUTPUT0"], served.flat(groups))
    Http(one).refuses(401, "", path_of("m"), *body)
    Http(one, "nobody").refuses(401, "", path_of("m"), *body)
    Http(one, "ops").refuses(403, "token:ops", path_of("m"), *body)
    Http(one, "app").refuses(403, "'other'", path_of("other"), *body)
    Http(one, "app").refuses(403, "'other'", path_of("other.tables"), *compose([("items", groups[0])]))
    Http(one, "app").refuses(403, "'absent'", path_of("absent"), *body)  # same error as for an existing model
