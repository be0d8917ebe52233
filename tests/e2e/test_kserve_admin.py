# SPDX-License-Identifier: Apache-2.0
"""KServe v2 and Triton calls except inference, over gRPC with stock stubs and over HTTP/1.1 with Python's client:
readiness, metadata and configuration of both views of a model, statistics, loads and unloads."""
import hashlib
import http.client
import itertools
import json
import os
import re
import time

import grpc
import numpy as np
import pytest
from google.protobuf import json_format

from rig import (PATIENCE_S, Daemon, Table, ask, default_config, health_grpc, health_pb2, kserve_grpc, kserve_pb,
                 model_config, refused, reflected, until)
from inference import model_config_pb2 as config_pb

DENIED, INVALID, NOT_FOUND = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT,
                              grpc.StatusCode.NOT_FOUND)
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


def tables(n=2):
    return [Table.random(name, 20 + i, 4 + i, number=i) for i, name in enumerate(("items", "users")[:n])]


def configured(work, model="m", directory=None, **more):
    made = tables()
    paths = [table.save(f"{work}/{directory or model}") for table in made]
    return model_config(model, paths, [table.dim for table in made], [table.name for table in made], **more)


class Client:
    def __init__(self, daemon, address=None, token=None):
        self.stub = kserve_grpc.GRPCInferenceServiceStub(daemon.channel(address))
        self.metadata = (("authorization", f"Bearer {token}"),) if token else None

    def __getattr__(self, method):
        def call(*args, **fields):
            request, = args or [getattr(kserve_pb, method + "Request")(**fields)]
            return getattr(self.stub, method)(request, timeout=PATIENCE_S * 4, metadata=self.metadata)
        return call

    def stats(self, **asked):
        return {(one.name, one.version): one for one in self.ModelStatistics(**asked).model_stats}

    def index(self, **asked):
        return [(one.name, one.version, one.state) for one in self.RepositoryIndex(**asked).models]


class Http:
    """A client with one persistent connection."""

    def __init__(self, daemon, token=None):
        host, _, port = daemon.kserve[0].rpartition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S * 4)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, verb, path, body=None):
        """(status, parsed JSON or None)"""
        text = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        self.connection.request(verb, "/v2" + path, text, self.headers)
        reply = self.connection.getresponse()
        data = reply.read()
        if data:
            assert reply.headers["Content-Type"] == "application/json"
        return reply.status, json.loads(data) if data else None

    def get(self, path):
        return self.ask("GET", path)

    def post(self, path, body=None):
        return self.ask("POST", path, body)


@pytest.fixture(name="served")
def one_model(work, daemon):
    return daemon(default_config([configured(work, label="nightly")],
                                 server={"model_roots": [work], "kserve_listen": ["127.0.0.1:0"]}))


@pytest.fixture(name="web")
def over_http(served):
    return Http(served)


def roles_file(work, rules):
    """Write a role file for {name: its rule}. The token of each identity is its name."""
    path = os.path.join(work, "roles.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": [f"token:{name}"], **rule} for name, rule in rules.items()],
                   "tokens": [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in rules]}, f)
    return path


# ---- the server --------------------------------------------------------------------------------------

def test_server_when_a_model_is_loaded_then_live_ready_and_lists_its_extensions(served, web):
    client = Client(served)
    assert client.ServerLive().live and client.ServerReady().ready
    about = client.ServerMetadata()
    assert about.name == "hpsd" and re.fullmatch(r"\d+\.\d+\.\d+", about.version)
    assert set(about.extensions) == {"model_repository", "model_configuration", "binary_tensor_data", "parameters",
                                     "statistics"}
    assert served.metrics()['hpsd_rpc_requests_total{method="inference.GRPCInferenceService/ServerLive",code="OK"}'] == 1
    assert web.get("/health/live") == web.get("/health/ready") == (200, None)
    assert web.get("") == (200, {"name": "hpsd", "version": about.version, "extensions": list(about.extensions)})
    for path, ready in (("m", 200), ("m/versions/1", 200), ("m/versions/nightly", 200), ("m.tables", 200),
                        ("m/versions/2", 400), ("x", 400), ("m/versions/-1", 400)):
        assert web.get(f"/models/{path}/ready")[0] == ready, path


def test_server_when_a_model_cannot_be_loaded_then_live_but_not_ready(work, daemon):
    config = configured(work)
    config["sparse_files"][0] += ".gone"
    one = daemon(default_config([config], server={"kserve_listen": ["127.0.0.1:0"]}), ready=False)
    client, web = Client(one), Http(one)
    until(lambda: one.get("/readyz")[0] == 503 and "failed" in one.get("/readyz")[1], "the failure")
    assert client.ServerLive().live and not client.ServerReady().ready
    assert not client.ModelReady(name="m").ready
    listed, = client.RepositoryIndex().models
    assert (listed.name, listed.version, listed.state) == ("m", "", "UNAVAILABLE") and "failed to load" in listed.reason
    assert client.index(ready=True) == []
    with refused(grpc.StatusCode.UNAVAILABLE, "failed to load"):
        client.ModelMetadata(name="m")
    assert web.get("/health/live") == (200, None) and web.get("/health/ready") == (400, None)
    assert web.post("/repository/index") == (200, [{"name": "m", "version": "", "state": "UNAVAILABLE", "reason": listed.reason}])
    status, error = web.get("/models/m")
    assert status == 503 and "failed to load" in error["error"]


def test_server_when_queried_by_reflection_and_health_then_knows_the_kserve_service(served):
    service = reflected.Service(served.channel(), "inference.GRPCInferenceService")
    assert service.method("ServerLive")(service.message("ServerLiveRequest")()).live
    health = health_grpc.HealthStub(served.channel())
    reply = health.Check(health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService"), timeout=PATIENCE_S)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("kind", ["System", "Cuda"])
def test_shared_memory_when_no_region_is_registered_then_status_is_empty(served, web, kind):
    client, path = Client(served), f"/{kind.lower()}sharedmemory"
    assert not getattr(client, f"{kind}SharedMemoryStatus")().regions and web.get(f"{path}/status") == (200, [])
    with refused(NOT_FOUND, f"Unable to find {kind.lower()} shared memory region: 'r'"):
        getattr(client, f"{kind}SharedMemoryStatus")(name="r")
    assert web.get(f"{path}/region/r/status")[0] == 404
    for name, region in (("", ""), ("r", "/region/r")):
        getattr(client, f"{kind}SharedMemoryUnregister")(name=name)
        assert web.post(f"{path}{region}/unregister") == (200, None)


@pytest.mark.parametrize("method, verbs, paths", [
    ("SystemSharedMemoryRegister", ("POST",), ("/systemsharedmemory/region/{}/register",)),
    ("CudaSharedMemoryRegister", ("POST",), ("/cudasharedmemory/region/{}/register",)),
    ("TraceSetting", ("GET", "POST"), ("/trace/setting", "/models/{}/trace/setting")),
    ("LogSettings", ("GET", "POST"), ("/logging",))])
def test_server_when_a_method_is_not_implemented_then_the_error_names_it(served, web, method, verbs, paths):
    with refused(UNIMPLEMENTED, f"{method} is not built: "):
        getattr(Client(served), method)()
    for verb, path in itertools.product(verbs, paths):
        status, error = web.ask(verb, path.replace("{}", "m"), b"{}" if verb == "POST" else None)
        assert status == 501 and f"{method} is not built: " in error["error"], (verb, path)
        counter = f'hpsd_rpc_requests_total{{method="v2{path}",code="UNIMPLEMENTED"}}'
        until(lambda name=counter: served.metrics().get(name, 0) > 0, counter)  # counted when the call closes


# ---- models ------------------------------------------------------------------------------------------

def shapes(tensors):
    return [(t.name, t.datatype, list(t.shape)) for t in tensors]


def test_metadata_when_of_a_model_then_it_equals_that_of_hps(served):
    about = Client(served).ModelMetadata(name="m")
    assert (about.name, list(about.versions), about.platform) == ("m", ["1"], "hps")
    assert shapes(about.inputs) == [("KEYS", "INT64", [-1, -1]), ("NUMKEYS", "INT32", [-1, -1])]
    assert shapes(about.outputs) == [("OUTPUT0", "FP32", [-1]), ("STATUS", "UINT8", [-1])]
    assert about.properties["label"] == "nightly"


def test_metadata_when_of_the_tables_view_then_one_output_per_table(served):
    about = Client(served).ModelMetadata(name="m.tables")
    assert (about.name, list(about.versions), about.platform) == ("m.tables", ["1"], "hps")
    assert shapes(about.inputs) == [(f"{table}{more}", kind, [-1]) for table in ("items", "users")
                                    for more, kind in (("", "INT64"), (".offsets", "INT64"), (".weights", "FP32"))]
    assert shapes(about.outputs) == [("items", "FP32", [-1, 4]), ("users", "FP32", [-1, 5])]


def dims(tensors):
    return [(t.name, config_pb.DataType.Name(t.data_type), list(t.dims)) for t in tensors]


def test_config_when_of_a_model_then_max_batch_size_is_from_ps_json(served):
    config = Client(served).ModelConfig(name="m").config
    assert (config.name, config.backend, config.max_batch_size) == ("m", "hps", 1024)
    assert dims(config.input) == [("KEYS", "TYPE_INT64", [-1]), ("NUMKEYS", "TYPE_INT32", [-1])]
    assert dims(config.output) == [("OUTPUT0", "TYPE_FP32", [-1]), ("STATUS", "TYPE_UINT8", [-1])]
    assert not any(tensor.optional for tensor in config.input)
    assert list(config.version_policy.specific.versions) == [1]
    assert config.HasField("model_transaction_policy") and not config.model_transaction_policy.decoupled


def test_config_when_of_the_tables_view_then_inputs_are_optional_and_not_batched(served):
    config = Client(served).ModelConfig(name="m.tables").config
    assert (config.name, config.backend, config.max_batch_size) == ("m.tables", "hps", 0)
    assert [tensor.optional for tensor in config.input] == [True] * 6
    assert dims(config.output) == [("items", "TYPE_FP32", [-1, 4]), ("users", "TYPE_FP32", [-1, 5])]


def test_config_when_ps_json_lacks_the_model_then_not_batched(served, work):
    tables(1)[0].save(f"{work}/other")
    served.load("other", f"{work}/other")
    config = Client(served).ModelConfig(name="other").config
    assert config.max_batch_size == 0
    assert dims(config.input) == [("KEYS", "TYPE_INT64", [-1, -1]), ("NUMKEYS", "TYPE_INT32", [-1, -1])]


def test_versions_when_there_are_two_then_number_or_label_selects_one_and_the_active_is_default(served, work):
    client = Client(served)
    tables(1)[0].save(f"{work}/next")
    served.load("m", f"{work}/next", label="canary")

    def outputs(version):
        return [t.name for t in client.ModelMetadata(name="m.tables", version=version).outputs]
    assert outputs("") == outputs("1") == outputs("nightly") == ["items", "users"]
    assert outputs("2") == outputs("canary") == ["items"]
    assert list(client.ModelMetadata(name="m").versions) == ["1", "2"]
    assert list(client.ModelMetadata(name="m", version="canary").versions) == ["2"]
    assert list(client.ModelConfig(name="m").config.version_policy.specific.versions) == [1, 2]
    assert [client.ModelReady(name="m", version=version).ready for version in ("", "1", "2", "canary", "3", "x")] == \
        [True, True, True, True, False, False]
    served.ctl("activate", "m", 2, "--force")
    assert outputs("") == ["items"]


def test_names_when_unknown_then_the_error_is_tritons(served, web):
    client = Client(served)
    for ask_for in (client.ModelMetadata, client.ModelConfig, client.ModelStatistics):
        with refused(NOT_FOUND, "Request for unknown model: 'x' is not found; models here: m"):
            ask_for(name="x")
        with refused(NOT_FOUND, "Request for unknown model: 'x' is not found"):
            ask_for(name="x", version="3")
        with refused(NOT_FOUND, "Request for unknown model: 'm' version '9' is not found"):
            ask_for(name="m", version="9")
        with refused(NOT_FOUND, "Request for unknown model: 'm.tables' version 'blue' is not found"):
            ask_for(name="m.tables", version="blue")
        with refused(INVALID, "model_version: '-1' is below 0"):
            ask_for(name="m", version="-1")
        with refused(NOT_FOUND, "unknown model: 'm.tables.tables'"):
            ask_for(name="m.tables.tables")
    assert not client.ModelReady(name="x").ready
    for ask_for in (client.ModelMetadata, client.ModelConfig):
        with refused(NOT_FOUND, "Request for unknown model: '' is not found"):
            ask_for()
        with refused(NOT_FOUND, "Request for unknown model: 'm' version '0' is not found"):
            ask_for(name="m", version="0")
    assert not client.ModelReady().ready and not client.ModelReady(name="m", version="0").ready
    for path in ("/models/x", "/models/x/config", "/models/x/stats"):
        status, error = web.get(path)
        assert status == 404 and error["error"].startswith("Request for unknown model: 'x' is not found"), path
    status, error = web.get("/models/m/versions/9")
    assert status == 404 and error["error"] == "Request for unknown model: 'm' version '9' is not found"
    assert web.get("/models/m/versions/0/config")[0] == 404 and web.get("/models/m/versions/0/ready")[0] == 400
    assert web.get("/models/m/nothing")[0] == 404
    assert web.post("/models/m/config")[0] == 405
    for path in ("/models/..%2Fm", "/models/%2e%2e/config", "/models/m%00/config"):
        assert web.get(path)[0] in (400, 404), path


# ---- statistics --------------------------------------------------------------------------------------

def numbers(one):
    """All values that may only increase."""
    durations = [getattr(one.inference_stats, name) for name in ("success", "fail", *PARTS)]
    return [one.last_inference, one.inference_count, one.execution_count,
            *(number for duration in durations for number in (duration.count, duration.ns))]


def counted(client, wanted, **asked):
    """The statistics of "m" after `wanted` lookups have ended. A lookup ends when its reply has been read."""
    def found():
        one = client.stats(**asked)["m", "1"]
        return one if one.inference_stats.success.count == wanted else None
    return until(found, f"{wanted} look-ups")


def test_statistics_when_lookups_end_then_they_are_counted_with_their_times(served, web):
    client, stub = Client(served), served.stub()
    before = client.stats()["m", "1"]
    assert numbers(before) == [0] * len(numbers(before)) and not before.batch_stats
    began_ms = time.time() * 1000
    for _ in range(7):
        ask(stub, "m", {"items": np.arange(10), "users": [1, 2]})
    with refused(NOT_FOUND):
        ask(stub, "m", {"nope": [1]})
    one = counted(client, 7)
    stats = one.inference_stats
    assert (one.inference_count, one.execution_count) == (7, 7)
    assert (stats.success.count, stats.fail.count) == (7, 1)
    assert [getattr(stats, part).count for part in PARTS] == [7] * 4
    assert 0 < sum(getattr(stats, part).ns for part in PARTS) <= stats.success.ns
    assert began_ms - 1000 < one.last_inference < time.time() * 1000 + 1000
    batch, = one.batch_stats
    assert (batch.batch_size, batch.compute_infer.count) == (1, 7)
    assert batch.compute_infer.ns == stats.compute_infer.ns
    assert (stats.cache_hit.count, stats.cache_miss.count) == (0, 0)
    status, found = web.get("/models/stats")
    found, = found["model_stats"]
    assert status == 200 and (found["name"], found["version"], found["inference_count"]) == ("m", "1", 7)
    assert found["last_inference"] > 1e12 and found["inference_stats"]["success"]["count"] == 7
    assert found["inference_stats"]["success"]["ns"] > 0 and found["inference_stats"]["fail"]["count"] == 1
    assert found["batch_stats"][0]["batch_size"] == 1


def test_statistics_when_a_version_is_unloaded_and_loaded_then_numbers_only_increase(served, work):
    client, stub = Client(served, served.admin), served.stub()
    for _ in range(3):
        ask(stub, "m", {"items": [1]})
    before = numbers(counted(client, 3))
    client.RepositoryModelUnload(model_name="m")
    assert client.stats() == {}
    client.RepositoryModelLoad(model_name="m")
    again = numbers(client.stats()["m", "1"])  # times of the last lookup may be added after its count
    assert again[1] == 3 and all(new >= old for old, new in zip(before, again))
    ask(stub, "m", {"items": [1]})
    after = numbers(counted(client, 4))
    assert all(new >= old for old, new in zip(again, after)) and after[1] == 4


def test_statistics_when_a_model_version_or_view_is_requested_then_the_reply_has_its_name(served, work):
    client, stub = Client(served), served.stub()
    tables(1)[0].save(f"{work}/other")
    served.load("other", f"{work}/other")
    served.load("m", f"{work}/other", label="canary")
    for _ in range(2):
        ask(stub, "m", {"items": [1]}, version=2)
    until(lambda: client.stats()["m", "2"].inference_count == 2, "two look-ups")
    assert client.stats().keys() == {("m", "1"), ("m", "2"), ("other", "1")}
    assert client.stats(name="m").keys() == {("m", "1"), ("m", "2")}
    assert client.stats(name="m", version="canary").keys() == {("m", "2")}
    view = client.stats(name="m.tables", version="2")
    assert view.keys() == {("m.tables", "2")} and view["m.tables", "2"].inference_count == 2


# ---- the repository ----------------------------------------------------------------------------------

def test_repository_when_a_model_is_unloaded_and_loaded_then_it_is_unavailable_and_ready_again(served, work):
    client, stub = Client(served, served.admin), served.stub()
    tables(1)[0].save(f"{work}/next")
    served.load("m", f"{work}/next")
    assert client.index() == [("m", "1", "READY"), ("m", "2", "READY")]
    client.RepositoryModelUnload(model_name="m")
    assert not client.ModelReady(name="m").ready
    with refused(NOT_FOUND, "is not loaded"):
        ask(stub, "m", {"items": [1]})
    listed = until(lambda: [one for one in client.RepositoryIndex().models if one.state == "UNAVAILABLE"],
                   "the model without versions")
    assert [(one.name, one.version) for one in listed] == [("m", "")] and "no active version" in listed[0].reason
    until(lambda: not client.ServerReady().ready, "a tick, by which models[] lacks a version")
    client.RepositoryModelLoad(model_name="m")
    assert ask(stub, "m", {"items": [1]}).version == 1
    assert client.index(ready=True) == [("m", "1", "READY")]
    lines = [line for line in served.log().splitlines() if "component=audit" in line]
    for method in ("RepositoryModelUnload", "RepositoryModelLoad"):
        assert any(f"method={method} model=m version=" in line and "code=0" in line for line in lines), lines


def test_repository_load_when_the_files_are_unchanged_then_no_new_version(served, work):
    client = Client(served, served.admin)
    client.RepositoryModelLoad(model_name="m")
    assert client.index() == [("m", "1", "READY")]
    for number, table in enumerate(tables()):
        Table.random(table.name, 20 + number, table.dim, seed=2, number=number).save(f"{work}/next")
    served.load("m", f"{work}/next", activate=True)
    client.RepositoryModelLoad(model_name="m")
    assert served.versions("m") == {1: "active", 2: "resident"}
    rows = np.load(f"{work}/m/items.rows.npy")
    np.save(f"{work}/m/items.rows.npy", rows + 1)
    client.RepositoryModelLoad(model_name="m")
    assert served.versions("m")[3] == "active"
    np.testing.assert_allclose(np.frombuffer(ask(served.stub(), "m", {"items": [0]}).results[0].rows, "<f4"),
                               tables()[0].expect([0])[0] + 1)


def test_repository_when_a_parameter_is_not_supported_then_the_error_names_it(served):
    client = Client(served, served.admin)

    def parameter(**value):
        return kserve_pb.ModelRepositoryParameter(**value)
    for name, value in (("config", parameter(string_param="{}")), ("file:1/model", parameter(bytes_param=b"x"))):
        with refused(INVALID, f"parameter '{name}'", "models[]"):
            client.RepositoryModelLoad(model_name="m", parameters={name: value})
    with refused(INVALID, "parameter 'force'", "unload_dependents"):
        client.RepositoryModelUnload(model_name="m", parameters={"force": parameter(bool_param=True)})
    with refused(INVALID, "parameter 'unload_dependents'"):
        client.RepositoryModelUnload(model_name="m", parameters={"unload_dependents": parameter(string_param="yes")})
    one = {"model_name": "m"}
    for call, more in ((client.RepositoryModelLoad, one), (client.RepositoryModelUnload, one),
                       (client.RepositoryIndex, {})):
        with refused(UNIMPLEMENTED, "repository_name: got 'two'"):
            call(repository_name="two", **more)
    assert client.index() == [("m", "1", "READY")]
    client.RepositoryModelUnload(model_name="m", parameters={"unload_dependents": parameter(bool_param=True)})
    assert client.index(ready=True) == []


def test_repository_when_a_model_is_not_in_models_then_load_is_refused_and_unload_succeeds(served, work):
    client = Client(served, served.admin)
    tables(1)[0].save(f"{work}/other")
    served.load("other", f"{work}/other")
    for name in ("x", "other"):
        with refused(NOT_FOUND, f'"{name}" is not in models[]', "hpsctl load"):
            client.RepositoryModelLoad(model_name=name)
    for name in ("x", "", "other", "other"):  # unloaded, or never loaded
        client.RepositoryModelUnload(model_name=name)
    assert client.index() == [("m", "1", "READY")]
    with refused(NOT_FOUND, '"m.tables" is not in models[]'):
        client.RepositoryModelLoad(model_name="m.tables")
    with refused(NOT_FOUND, '"" is not in models[]'):
        client.RepositoryModelLoad()
    client.RepositoryModelUnload(model_name="other")
    until(lambda: served.versions("other") == {}, "the unload")


# ---- permissions -------------------------------------------------------------------------------------

def test_roles_when_there_is_no_role_file_then_network_clients_can_read_but_not_load(served):
    client = Client(served)
    assert client.ModelReady(name="m").ready and client.stats().keys() == {("m", "1")}
    for call in (client.RepositoryModelLoad, client.RepositoryModelUnload):
        with refused(DENIED, "role: load on this listener; use the admin socket"):
            call(model_name="m")
    assert client.index() == [("m", "1", "READY")]


def test_roles_when_there_is_a_role_file_then_each_identity_has_only_its_permissions(work):
    path = roles_file(work, {"app": {"may": ["lookup"], "models": ["m"]}, "watch": {"may": ["read"], "models": ["m"]},
                             "ops": {"may": ["read", "load"], "models": ["m"]}, "other": {"may": ["load"], "models": ["secret"]}})
    models = [configured(work), configured(work, "secret")]
    with Daemon(work, default_config(models, server={"access": path}),
                flags=["--admin-listen", "127.0.0.1:0"]) as daemon:
        app, watch, ops, other = (Client(daemon, token=name) for name in ("app", "watch", "ops", "other"))
        assert Client(daemon).ServerLive().live and Client(daemon).ServerReady().ready
        with refused(grpc.StatusCode.UNAUTHENTICATED):
            Client(daemon).ServerMetadata()
        assert app.ModelReady(name="m").ready and app.ServerMetadata().name == "hpsd"
        for call in (app.ModelMetadata, app.ModelConfig, app.ModelStatistics):
            with refused(DENIED, "token:app"):
                call(name="m")
        for name in ("secret", "nobody"):  # the error does not show which one exists
            with refused(DENIED, "token:app"):
                app.ModelReady(name=name)
            for call in (watch.ModelMetadata, watch.ModelConfig, watch.ModelStatistics):
                with refused(DENIED, "token:watch", f"'{name}'"):
                    call(name=name)
        assert watch.stats().keys() == {("m", "1")} and watch.index() == [("m", "1", "READY")]
        assert watch.ModelMetadata(name="m.tables").platform == "hps"
        with refused(NOT_FOUND, "version '9' is not found"):
            watch.ModelMetadata(name="m", version="9")
        for client in (app, watch, other):
            for call in (client.RepositoryModelLoad, client.RepositoryModelUnload):
                with refused(DENIED):
                    call(model_name="m")
        ops.RepositoryModelUnload(model_name="m")
        ops.RepositoryModelLoad(model_name="m")
        assert ops.index() == [("m", "1", "READY")]
        with refused(DENIED, "token:ops", "'secret'"):
            ops.RepositoryModelUnload(model_name="secret")
        assert 'method=RepositoryModelUnload' in daemon.log() and "who=token:app" in daemon.log()


# ---- over HTTP ---------------------------------------------------------------------------------------

def plain(value, whole=True):
    """Convert strings of digits, which JSON of gRPC uses for versions and 64-bit integers, to numbers. whole: keep
    empty maps."""
    if isinstance(value, dict):
        return {name: plain(one, whole) for name, one in value.items() if whole or one != {} or name.startswith("c")}
    if isinstance(value, list):
        return [plain(one, whole) for one in value]
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else value


def as_json(message):
    """A gRPC message in the form of HTTP replies, without empty maps."""
    defaults = ("including_default_value_fields" if "including_default_value_fields" in
                json_format.MessageToDict.__code__.co_varnames else "always_print_fields_with_no_presence")
    return plain(json_format.MessageToDict(message, preserving_proto_field_name=True, **{defaults: True}), whole=False)


@pytest.mark.parametrize("name", ["m", "m.tables"])
def test_http_when_metadata_config_and_stats_are_read_then_equal_to_grpc(served, web, name):
    client = Client(served)
    for place, version in ((f"/models/{name}", ""), (f"/models/{name}/versions/1", "1")):
        for path, wanted in (("", client.ModelMetadata(name=name, version=version)),
                             ("/config", client.ModelConfig(name=name, version=version).config),
                             ("/stats", client.ModelStatistics(name=name, version=version))):
            status, found = web.get(place + path)
            assert status == 200 and plain(found) == as_json(wanted), place + path
    status, found = web.get(f"/models/{name}")
    assert found["versions"] == ["1"] and found["inputs"][0]["shape"] == ([-1, -1] if name == "m" else [-1])


def test_http_when_there_is_no_role_file_then_the_repository_can_be_listed_but_not_changed(served, web):
    client = Client(served)
    entry = {"name": "m", "version": "1", "state": "READY", "reason": ""}
    for body in (None, {}, {"ready": True}, {"ready": False, "more": [1] * 9000}, {"ready": None}):
        assert web.post("/repository/index", body) == (200, [entry])
    for body, words in ((b"[]", "object"), (b"{", "body: not JSON: line 1, column 1: "), ({"ready": "yes"}, "ready")):
        status, error = web.post("/repository/index", body)
        assert status == 400 and words in error["error"]
    for verb in ("load", "unload"):
        status, error = web.post(f"/repository/models/m/{verb}")
        assert status == 403 and "use the admin socket" in error["error"]
    assert client.index() == [("m", "1", "READY")]


def test_http_when_the_identity_has_the_role_load_then_it_can_load_and_unload(work):
    path = roles_file(work, {"ops": {"may": ["read", "load"], "models": ["m"]}, "watch": {"may": ["read"], "models": ["m"]}})
    models = [configured(work), configured(work, "secret")]
    server = {"access": path, "kserve_listen": ["127.0.0.1:0"]}
    with Daemon(work, default_config(models, server=server), flags=["--admin-listen", "127.0.0.1:0"]) as daemon:
        ops, watch, anybody = Http(daemon, "ops"), Http(daemon, "watch"), Http(daemon)
        assert anybody.get("/health/ready") == (200, None)
        assert anybody.get("")[0] == 401 and anybody.get("/models/m")[0] == 401
        assert watch.get("/models/secret")[0] == watch.get("/models/nobody")[0] == 403
        assert watch.post("/repository/models/m/unload")[0] == 403
        status, error = ops.post("/repository/models/m/load", {"parameters": {"config": "{}"}})
        assert status == 400 and "parameter 'config'" in error["error"]
        for body, words in (({"parameters": {"unload_dependents": "yes"}}, "unload_dependents"),
                            ({"parameters": {"other": 1}}, "'other'"), ({"parameters": []}, "not an object")):
            status, error = ops.post("/repository/models/m/unload", body)
            assert status == 400 and words in error["error"]
        assert ops.post("/repository/models/m/unload", {"parameters": {"unload_dependents": True}}) == (200, None)
        assert ops.get("/models/m/ready") == (400, {"error": "Model version not ready"})
        assert ops.post("/repository/models/m/unload", {"parameters": None}) == (200, None)
        assert ops.post("/repository/models/m/load") == (200, None)
        assert ops.get("/models/m/ready") == (200, None)
        assert ops.post("/repository/models/secret/unload")[0] == 403
        assert "method=RepositoryModelUnload model=m" in daemon.log()
        assert "method=/v2/repository/models/{}/unload" in daemon.log()  # the refused call


# ---- malformed messages ----------------------------------------------------------------------------------

def test_messages_when_malformed_or_too_long_then_refused_and_later_calls_succeed(served):
    channel = served.channel()
    for method in ("ModelMetadata", "ModelStatistics", "RepositoryIndex"):
        raw = channel.unary_unary(f"/inference.GRPCInferenceService/{method}", None, None)
        for size in (40, 40000):  # 40 bytes are unpacked on the loop, 40,000 on a worker
            with refused(INVALID, "malformed"):
                raw(b"\xff" * size, timeout=PATIENCE_S)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
            raw(b"\x0a\x80\x80\x08" + b"x" * (128 * 1024), timeout=PATIENCE_S)
    client = Client(served)
    for name in ("../m", "m/../m", "é" * 60, "x" * 60000):
        assert not client.ModelReady(name=name).ready
    assert client.ModelReady(name="m").ready
