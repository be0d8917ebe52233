# SPDX-License-Identifier: Apache-2.0
"""The same calls to the genuine Triton and to hpsd, over gRPC, HTTP and a stream: codes, fields and shapes are alike, but
for the table "Differences from Triton" in docs/kserve.md. The first column of that table has names of the cases below.

./dev interop runs this in an environment with tests/interop/requirements.txt. The wheel nvidia-pytriton has the server.
"""
import copy
import http.client
import json
import os
import re

import grpc
import numpy as np
import pytest
from google.protobuf import json_format

import genuine
from rig import PATIENCE_S, Daemon, Table, default_config, kserve_grpc, kserve_pb as kpb, model_config, scratch

LENGTH = "Inference-Header-Content-Length"
TABLES = ("items", "users")


# ---- answers -----------------------------------------------------------------------------------------

KEPT = {"model_name", "model_version", "id", "datatype", "shape", "ready", "live", "state", "data", "bool_param", "dims",
        "data_type", "max_batch_size", "binary_data_size", "extensions"}


def outline(value, key=""):
    """Names and shapes of an answer, without the numbers and words of one server."""
    if isinstance(value, dict):
        found = {name: outline(one, name) for name, one in value.items() if name not in ("NumSample", "DeviceID", "reason")}
        return {name: one for name, one in found.items() if one or name != "parameters"}
    if isinstance(value, list):
        found = [outline(one, key) for one in value]
        return value if key in KEPT else [one for i, one in enumerate(found) if i == 0 or one != found[i - 1]]
    return value if key in KEPT else type(value).__name__


class Side:
    """A client of one server."""

    def __init__(self, rpc, web):
        self.stub = kserve_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(rpc))
        self.web = web

    def rpc(self, method, *args, **fields):
        request, = args or [getattr(kpb, method + "Request")(**fields)]
        try:
            reply = getattr(self.stub, method)(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return error.code().name, {}
        found = json_format.MessageToDict(reply, preserving_proto_field_name=True)
        if "raw_output_contents" in found:
            found["raw_output_contents"] = [len(one) for one in reply.raw_output_contents]
        return "OK", outline(found)

    def stream(self, request):
        reply, = self.stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_S)
        found = json_format.MessageToDict(reply.infer_response, preserving_proto_field_name=True)
        found.pop("raw_output_contents", None)
        return "error" if reply.error_message else "OK", outline(found)

    def ask(self, verb, path, body=None, headers=()):
        host, port = self.web.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        connection.request(verb, "/v2" + path, body, dict(headers))
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        size = reply.headers.get(LENGTH)
        head = text if size is None else text[:int(size)]
        found = json.loads(head) if head else None
        return str(reply.status), {"json": "error" if reply.status >= 400 and found else outline(found),
                                   "behind": len(text) - len(head)}


@pytest.fixture(name="sides", scope="module")
def both_servers():
    if genuine.missing_python():
        pytest.skip(genuine.missing_python())
    with scratch() as work:
        with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
            json.dump({"rules": [{"who": ["any"], "may": ["lookup", "read", "load"]}]}, f)
        tables = [Table(name, np.arange(9), np.zeros((9, 4), "<f4")) for name in TABLES]
        model = model_config("m", [table.save(f"{work}/m") for table in tables], [4, 4], list(TABLES))
        server = {"kserve_listen": ["127.0.0.1:0"], "access": f"{work}/roles.json"}
        with Daemon(work, default_config([model], server=server)) as daemon, \
                genuine.Genuine(work, f"{genuine.HERE}/models") as triton:
            daemon.wait_ready()
            yield Side(triton.rpc, triton.web), Side(daemon.grpc[0], daemon.kserve[0])


# ---- infer requests ----------------------------------------------------------------------------------

DTYPES = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4", "BYTES": "<i8"}
FIELDS = {"INT64": "int64_contents", "INT32": "int_contents", "FP32": "fp32_contents"}
GOOD = {"KEYS": ("INT64", [1, 3], [1, 2, 3]), "NUMKEYS": ("INT32", [1, 2], [2, 1])}


class Ask:
    """An infer request in the form of each protocol."""

    def __init__(self, inputs=None, model="m", version="", outputs=(), parameters=None, document=None, message=None,
                 twice=(), headers=None):
        self.inputs = [(name, *one) for name, one in {**GOOD, **(inputs or {})}.items() if one is not None]
        self.inputs += [one for one in self.inputs if one[0] in twice]
        self.model, self.version, self.outputs, self.parameters = model, version, outputs, parameters or {}
        self.document = document or (lambda _: None)  # changes the body for HTTP
        self.message = message or (lambda _: None)    # and the message for gRPC
        self.headers = headers                        # (size of the JSON) -> its header

    def rpc(self, typed=False):
        kinds = {str: "string_param", int: "int64_param", bool: "bool_param"}
        request = kpb.ModelInferRequest(model_name=self.model, model_version=self.version, id="r-1", parameters={
            name: kpb.InferParameter(**{kinds[type(one)]: one}) for name, one in self.parameters.items()})
        for name, datatype, shape, values in self.inputs:
            one = request.inputs.add(name=name, datatype=datatype, shape=shape)
            if typed and datatype in FIELDS:
                getattr(one.contents, FIELDS[datatype]).extend(values)
            else:
                request.raw_input_contents.append(np.array(values, DTYPES[datatype]).tobytes())
        for name in self.outputs:
            request.outputs.add(name=name)
        self.message(request)
        return request

    def web(self, binary):
        document, behind = {"id": "r-1", "inputs": [], "parameters": {**self.parameters, "binary_data_output": binary}}, b""
        for name, datatype, shape, values in self.inputs:
            one = {"name": name, "datatype": datatype, "shape": shape}
            if binary:
                raw = np.array(values, DTYPES[datatype]).tobytes()
                one["parameters"], behind = {"binary_data_size": len(raw)}, behind + raw
            else:
                one["data"] = values
            document["inputs"].append(one)
        if self.outputs:
            document["outputs"] = [{"name": name} for name in self.outputs]
        self.document(document)
        head = json.dumps(document).encode()
        headers = self.headers(len(head)) if self.headers else {LENGTH: str(len(head))} if binary else {}
        path = f"/models/{self.model}" + (f"/versions/{self.version}" if self.version else "") + "/infer"
        return "POST", path, head + behind, headers

    def __call__(self, side):
        seen = {"gRPC": side.rpc("ModelInfer", self.rpc()), "stream": side.stream(self.rpc())}
        if any(datatype in FIELDS for _, datatype, _, _ in self.inputs):
            seen["gRPC, contents"] = side.rpc("ModelInfer", self.rpc(typed=True))
        for binary in (True, False):
            seen["HTTP, binary" if binary else "HTTP"] = side.ask(*self.web(binary))
        return seen


class Web(Ask):
    """An infer request that only HTTP can carry."""

    def __call__(self, side):
        return {"HTTP, binary" if binary else "HTTP": side.ask(*self.web(binary)) for binary in (True, False)}


class Rpc(Ask):
    """An infer request that only gRPC can carry."""

    def __call__(self, side):
        return {"gRPC": side.rpc("ModelInfer", self.rpc()), "stream": side.stream(self.rpc())}


def first(**fields):
    return lambda document: document["inputs"][0].update(fields)


def set_to(**fields):
    return lambda document: document.update(fields)


INFER = {
    "an infer request": Ask(),
    "the output by name": Ask(outputs=["OUTPUT0"]),
    "an unknown output": Ask(outputs=["OUTPUT9"]),
    "an output twice": Ask(outputs=["OUTPUT0", "OUTPUT0"]),
    "no keys": Ask({"KEYS": ("INT64", [1, 0], []), "NUMKEYS": ("INT32", [1, 2], [0, 0])}),
    "two samples": Ask({"KEYS": ("INT64", [2, 2], [1, 2, 3, 4]), "NUMKEYS": ("INT32", [2, 2], [1, 1, 2, 0])}),
    "KEYS and NUMKEYS of one dimension": Ask({"KEYS": ("INT64", [3], [1, 2, 3]), "NUMKEYS": ("INT32", [2], [2, 1])}),
    "KEYS of several rows, NUMKEYS of one": Ask({"KEYS": ("INT64", [3, 1], [1, 2, 3])}),
    "INT32 keys": Ask({"KEYS": ("INT32", [1, 3], [1, 2, 3])}),
    "FP32 keys": Ask({"KEYS": ("FP32", [1, 3], [1, 2, 3])}),
    "INT64 counts": Ask({"NUMKEYS": ("INT64", [1, 2], [2, 1])}),
    "counts that do not add up": Ask({"NUMKEYS": ("INT32", [1, 2], [2, 2])}),
    "an unknown datatype": Ask({"KEYS": ("BYTES", [1, 3], [1, 2, 3])}),
    "a missing input": Ask({"NUMKEYS": None}),
    "no input at all": Ask({"NUMKEYS": None, "KEYS": None}),
    "an unknown input": Ask({"MORE": ("INT64", [1, 1], [1])}),
    "an input twice": Ask(twice=("KEYS",)),
    "a shape of more values": Ask({"KEYS": ("INT64", [1, 4], [1, 2, 3])}),
    "a shape of fewer values": Ask({"KEYS": ("INT64", [1, 2], [1, 2, 3])}),
    "a negative dimension": Ask({"KEYS": ("INT64", [1, -3], [1, 2, 3])}),
    "an unknown model": Ask(model="nope"),
    "an unknown model and a wrong input": Ask({"NUMKEYS": None}, model="nope"),
    "an unknown version": Ask(version="9"),
    "version 0": Ask(version="0"),
    "a version below 0": Ask(version="-1"),
    "a version that is a word": Ask(version="word"),
    "a timeout": Ask(parameters={"timeout": 10_000_000}),
    "a priority": Ask(parameters={"priority": 1}),
    "a parameter of the client": Ask(parameters={"mine": "x"}),
    "a reserved parameter": Ask(parameters={"triton_x": 1}),
    "triton_enable_empty_final_response": Ask(parameters={"triton_enable_empty_final_response": True}),
    "shared memory that is not registered": Ask(
        message=lambda message: (message.inputs[0].parameters["shared_memory_region"].__setattr__("string_param", "r"),
                                 message.inputs[0].parameters["shared_memory_byte_size"].__setattr__("int64_param", 24),
                                 message.raw_input_contents.__delitem__(0)) if message.raw_input_contents else None,
        document=lambda document: (document["inputs"][0].pop("data", None), first(
            parameters={"shared_memory_region": "r", "shared_memory_byte_size": 24})(document))),
    "classes of an output": Ask(
        outputs=["OUTPUT0"], document=lambda document: document["outputs"][0].update(parameters={"classification": 1}),
        message=lambda message: message.outputs[0].parameters["classification"].__setattr__("int64_param", 1)),
    "contents beside raw_input_contents": Rpc(message=lambda message: message.inputs[0].contents.int64_contents.append(1)),
    "a buffer too few": Rpc(message=lambda message: message.raw_input_contents.pop()),
    "contents of another field": Rpc(message=lambda message: (
        message.ClearField("raw_input_contents"), message.inputs[0].contents.int_contents.extend([1, 2, 3]),
        message.inputs[1].contents.int_contents.extend([2, 1]))),
    "a long id": Ask(document=set_to(id="x" * 200), message=lambda message: setattr(message, "id", "x" * 200)),
    "id: null": Web(document=set_to(id=None)),
    "parameters: null": Web(document=set_to(parameters=None)),
    "parameters of an input: null": Web(document=lambda document: document["inputs"][0].setdefault("parameters", None)),
    "outputs: null": Web(document=set_to(outputs=None)),
    "outputs: []": Web(document=set_to(outputs=[])),
    "inputs: null": Web(document=set_to(inputs=None)),
    "data: null": Web(document=first(data=None)),
    "shape: null": Web(document=first(shape=None)),
    "a parameter that is null": Web(document=lambda document: document["parameters"].update(mine=None)),
    "parameters of an output: null": Web(document=set_to(outputs=[{"name": "OUTPUT0", "parameters": None}])),
    "inputs of another type": Web(document=set_to(inputs={})),
    "an input without a name": Web(document=lambda document: document["inputs"][0].pop("name")),
    "data and binary_data_size": Web(document=first(data=[1, 2, 3], parameters={"binary_data_size": 24})),
    "a member that is unknown": Web(document=set_to(more={"x": [1]})),
    "nested data": Web(document=lambda document: first(data=[document["inputs"][0]["data"]])(document)
                       if "data" in document["inputs"][0] else None),
    "no Inference-Header-Content-Length": Web(headers=lambda size: {}),
    "Inference-Header-Content-Length beyond the body": Web(headers=lambda size: {LENGTH: str(size + 10**6)}),
    "Inference-Header-Content-Length within the JSON": Web(headers=lambda size: {LENGTH: str(size - 1)}),
    "Inference-Header-Content-Length: 0": Web(headers=lambda size: {LENGTH: "0"}),
    "Inference-Header-Content-Length that is no number": Web(headers=lambda size: {LENGTH: "x"}),
}


# ---- the other calls ---------------------------------------------------------------------------------

def both(method, fields, verb, path, body=None):
    return lambda side: {"gRPC": side.rpc(method, **fields), "HTTP": side.ask(verb, path, body)}


def of_model(method, what):
    """Of known and unknown models and versions."""
    path = {"ModelMetadata": "", "ModelReady": "/ready", "ModelConfig": "/config", "ModelStatistics": "/stats"}[method]
    asked = {"": ("m", ""), ", by version": ("m", "1"), " of an unknown model": ("nope", ""),
             " of an unknown version": ("m", "9"), " of version 0": ("m", "0"), " of a version below 0": ("m", "-1"),
             " of a version that is a word": ("m", "word")}
    return {what + more: both(method, {"name": model, "version": version}, "GET",
                              f"/models/{model}" + (f"/versions/{version}" if version else "") + path)
            for more, (model, version) in asked.items()}


def web(verb, path, body=None):
    return lambda side: {"HTTP": side.ask(verb, path, body)}


def rpc(method, **fields):
    return lambda side: {"gRPC": side.rpc(method, **fields)}


def unload_and_load(side):
    return {name: side.rpc(method, **{key: "m"}) for name, method, key in (
        ("unload", "RepositoryModelUnload", "model_name"), ("ready", "ModelReady", "name"),
        ("again", "RepositoryModelUnload", "model_name"), ("load", "RepositoryModelLoad", "model_name"),
        ("loaded", "ModelReady", "name"))}


def memory(kind, verb, path, method, **fields):
    return both(f"{kind.capitalize()}SharedMemory{method}", fields, verb, f"/{kind}sharedmemory{path}")


OTHERS = {
    "live": both("ServerLive", {}, "GET", "/health/live"),
    "ready": both("ServerReady", {}, "GET", "/health/ready"),
    "the server's metadata": both("ServerMetadata", {}, "GET", ""),
    **of_model("ModelReady", "ModelReady"), **of_model("ModelMetadata", "ModelMetadata"),
    **of_model("ModelConfig", "ModelConfig"), **of_model("ModelStatistics", "ModelStatistics"),
    "ModelReady without a name": rpc("ModelReady"), "ModelMetadata without a name": rpc("ModelMetadata"),
    "ModelConfig without a name": rpc("ModelConfig"), "all statistics": both("ModelStatistics", {}, "GET", "/models/stats"),
    "the index": both("RepositoryIndex", {}, "POST", "/repository/index"),
    "the index of what is ready": both("RepositoryIndex", {"ready": True}, "POST", "/repository/index", b'{"ready":true}'),
    "the index of a named repository": rpc("RepositoryIndex", repository_name="x"),
    "the index, ready: null": web("POST", "/repository/index", b'{"ready":null}'),
    "the index, with a body that is no JSON": web("POST", "/repository/index", b"{]"),
    "the index, with a body that is an array": web("POST", "/repository/index", b"[]"),
    "load of an unknown model": both("RepositoryModelLoad", {"model_name": "nope"}, "POST", "/repository/models/nope/load"),
    "load without a name": rpc("RepositoryModelLoad"),
    "load from a named repository": rpc("RepositoryModelLoad", model_name="m", repository_name="x"),
    "unload of an unknown model": both("RepositoryModelUnload", {"model_name": "nope"}, "POST",
                                       "/repository/models/nope/unload"),
    "unload without a name": rpc("RepositoryModelUnload"),
    "unload with another parameter": web("POST", "/repository/models/nope/unload", b'{"parameters":{"x":1}}'),
    "unload with a body that is no JSON": web("POST", "/repository/models/nope/unload", b"{]"),
    "unload, parameters: null": web("POST", "/repository/models/nope/unload", b'{"parameters":null}'),
    "unload, unload again and load": unload_and_load,
    "TraceSetting": both("TraceSetting", {}, "GET", "/trace/setting"),
    "LogSettings": both("LogSettings", {}, "GET", "/logging"),
    "an unknown path": web("GET", "/models/m/nothing"),
    "a wrong method": web("GET", "/models/m/infer"),
    "an empty body": web("POST", "/models/m/infer", b""),
    "a body that is no JSON": web("POST", "/models/m/infer", b"{]"),
    "a body that is an array": web("POST", "/models/m/infer", b"[]"),
    **{f"{kind} shared memory: {what}": memory(kind, *how, **fields) for kind in ("system", "cuda") for what, how, fields in (
        ("status", ("GET", "/status", "Status"), {}),
        ("status of an unknown region", ("GET", "/region/r/status", "Status"), {"name": "r"}),
        ("unregister", ("POST", "/unregister", "Unregister"), {}),
        ("unregister of an unknown region", ("POST", "/region/r/unregister", "Unregister"), {"name": "r"}),
        ("register", ("POST", "/region/r/register", "Register"), {"name": "r"}))},
}

CASES = {**INFER, **OTHERS}


# ---- the differences that stay -----------------------------------------------------------------------

def listed():
    """{case: (Triton, hpsd)} of docs/kserve.md."""
    with open(os.path.join(genuine.HERE, "..", "..", "docs", "kserve.md"), encoding="utf-8") as f:
        text = f.read().split("## Differences from Triton", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {name.strip(): (triton, hpsd) for names, triton, hpsd, _ in rows[2:] for name in names.split("<br>")}


LISTED = listed()


def test_documents_when_differences_are_listed_then_of_cases_that_are_compared():
    assert not set(LISTED) - set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_triton_when_asked_alike_then_hpsd_answers_alike_but_for_what_is_listed(sides, name):
    triton, hpsd = (CASES[name](copy.copy(side)) for side in sides)
    differs = {way: (triton[way], hpsd[way]) for way in triton if triton[way] != hpsd[way]}
    if name not in LISTED:
        assert not differs
        return
    assert differs, "docs/kserve.md lists a difference, but there is none"
    for way, pair in differs.items():
        for (code, _), cell in zip(pair, LISTED[name]):
            assert way == "stream" or code in re.findall(r"\w+", cell), (way, pair)  # a stream's errors have no code
