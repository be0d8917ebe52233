# SPDX-License-Identifier: Apache-2.0
"""Infer requests of KServe v2 by stubs of stock grpcio and by Python's http.client, behind the same two calls."""
import contextlib
import http.client
import json

import grpc
import numpy as np

import kserve_body
from kserve_body import compose
from rig import PATIENCE_S, Table, kserve_grpc, kserve_pb as kpb, model_config, refused

NAMES, DIMS = ("items", "users", "ads"), (4, 8, 3)
KEYS, COUNTS = np.arange(6, dtype="<i8"), np.array([1, 2, 3], "<i4")
GOOD = [("KEYS", KEYS), ("NUMKEYS", COUNTS)]
CODES = {400: grpc.StatusCode.INVALID_ARGUMENT, 404: grpc.StatusCode.NOT_FOUND, 501: grpc.StatusCode.UNIMPLEMENTED}


def a_model(work, name):
    tables = [Table.random(table, 100, dim, number=i) for i, (table, dim) in enumerate(zip(NAMES, DIMS))]
    return tables, model_config(name, [table.save(f"{work}/{name}") for table in tables], list(DIMS), list(NAMES))


class Served:
    """A daemon with the tables of a_model."""

    def __init__(self, daemon, tables):
        self.daemon, self.by_name = daemon, {table.name: table for table in tables}
        self.stub = kserve_grpc.GRPCInferenceServiceStub(daemon.channel())

    def rows(self, name, keys):
        return self.by_name[name].expect(keys)

    def groups(self, sizes=(5, 0, 7), seed=1, dtype="<i8"):
        """Keys of each table, which the type can hold."""
        rng, most = np.random.default_rng(seed), np.iinfo(dtype).max
        keys = {name: self.by_name[name].keys for name in NAMES}
        return [rng.choice(keys[name][abs(keys[name] // 2) <= most // 2], size) for name, size in zip(NAMES, sizes)]

    def flat(self, groups):
        return np.concatenate([self.rows(name, keys).ravel() for name, keys in zip(NAMES, groups)])


# ---- gRPC --------------------------------------------------------------------------------------------

def parameters(values):
    kinds = {str: "string_param", int: "int64_param", bool: "bool_param", float: "double_param"}
    return {name: kpb.InferParameter(**{kinds[type(value)]: value}) for name, value in values.items()}


def request(model, inputs, outputs=(), raw=True, version="", ident="", **params):
    """inputs: [(name, array)]"""
    message = kpb.ModelInferRequest(model_name=model, model_version=version, id=ident, parameters=parameters(params))
    fields = {"<i8": "int64_contents", "<i4": "int_contents", "<f4": "fp32_contents"}
    for name, values in inputs:
        one = message.inputs.add(name=name, datatype=kserve_body.WIRE[values.dtype.str], shape=values.shape)
        if raw:
            message.raw_input_contents.append(values.tobytes())
        else:
            getattr(one.contents, fields[values.dtype.str]).extend(values.ravel().tolist())
    for name in outputs:
        message.outputs.add(name=name)
    return message


class GrpcAnswer:
    """As kserve_body.Answer."""

    def __init__(self, reply):
        self.about = {"model_name": reply.model_name, "model_version": reply.model_version, "id": reply.id,
                      "parameters": {name: one.int64_param for name, one in reply.parameters.items()},
                      "outputs": [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
                                  for one in reply.outputs]}
        self.values = {one.name: np.frombuffer(raw, kserve_body.NUMPY[one.datatype]).reshape(tuple(one.shape))
                       for one, raw in zip(reply.outputs, reply.raw_output_contents)}


class Grpc:
    json_output = False

    def __init__(self, served, raw):
        self.stub, self.raw = served.stub, raw

    def infer(self, *args, **more):
        return GrpcAnswer(self.stub.ModelInfer(request(*args, raw=self.raw, **more), timeout=PATIENCE_S))

    def refused(self, status, words, *args, change=None, **more):
        message = request(*args, raw=self.raw, **more)
        if change is not None:
            getattr(message, change[0])[0].parameters[change[1]].string_param = "r"
        with refused(CODES[status], words):
            self.stub.ModelInfer(message, timeout=PATIENCE_S)

    def close(self):
        pass


# ---- HTTP --------------------------------------------------------------------------------------------

def path_of(model, version=""):
    return f"/v2/models/{model}{f'/versions/{version}' if version != '' else ''}/infer"


class Http:
    """One connection. `binary`: how inputs go, or the names of those that go behind the JSON."""

    def __init__(self, daemon, token=None, binary=True, binary_output=True):
        host, port = daemon.kserve[0].rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S * 4)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.binary, self.binary_output, self.json_output = binary, binary_output, not binary_output

    def ask(self, method, path, body=None, headers=()):
        """(status, headers, body)"""
        self.connection.request(method, path, body, {**self.headers, **dict(headers)})
        reply = self.connection.getresponse()
        return reply.status, reply.headers, reply.read()

    def infer(self, model, inputs, outputs=(), version="", **more):
        how = {"binary": self.binary, "binary_output": self.binary_output, **more}
        status, headers, body = self.ask("POST", path_of(model, version), *compose(inputs, outputs, **how))
        assert status == 200, body
        return kserve_body.Answer(body, headers)

    def refused(self, status, words, model, inputs, outputs=(), version="", change=None, **more):
        body, headers = compose(inputs, outputs, **{"binary": self.binary and change is None, **more})
        if change is not None:
            document = json.loads(body)
            document[change[0]][0]["parameters"] = {change[1]: "r"}
            body = json.dumps(document).encode()
        self.refuses(status, words, path_of(model, version), body, headers)

    def refuses(self, status, words, path, body, headers=()):
        """A request of any bytes."""
        got, about, text = self.ask("POST", path, body, headers)
        assert got == status, (got, text)
        assert about["Content-Type"] == "application/json"
        answer = json.loads(text)
        assert list(answer) == ["error"] and words in answer["error"], answer

    def close(self):
        self.connection.close()


WAYS = {"gRPC": lambda served: Grpc(served, True), "gRPC, contents": lambda served: Grpc(served, False),
        "HTTP": lambda served: Http(served.daemon),
        "HTTP, JSON": lambda served: Http(served.daemon, binary=False, binary_output=False),
        "HTTP, KEYS behind the JSON": lambda served: Http(served.daemon, binary={"KEYS"}, binary_output=None),
        "HTTP, NUMKEYS behind the JSON": lambda served: Http(served.daemon, binary={"NUMKEYS"})}


def opened(served, name):
    return contextlib.closing(WAYS[name](served))
