# SPDX-License-Identifier: Apache-2.0
"""What Triton's perf_analyzer asks, in its order, over gRPC and over HTTP: ModelMetadata, ModelConfig, ServerMetadata,
ModelStatistics, ModelInfer again and again, ModelStatistics. What it makes of the answers is done here, too: shapes of
its requests by metadata and configuration, and the differences of counters that it prints."""
import http.client
import json

import numpy as np
import pytest
from google.protobuf import json_format

from kserve_body import compose, hps_inputs
from rig import PATIENCE_S, Table, default_config, kserve_grpc, kserve_pb as kpb, model_config, until

NAMES, DIMS = ("items", "users"), (4, 8)
BATCH, N_INFER = 16, 25
COUNTED = ("success", "queue", "compute_input", "compute_infer", "compute_output")


class Grpc:
    def __init__(self, daemon):
        self.stub = kserve_grpc.GRPCInferenceServiceStub(daemon.channel())

    def ask(self, method, **fields):
        reply = getattr(self.stub, method)(getattr(kpb, method + "Request")(**fields), timeout=PATIENCE_S)
        return json_format.MessageToDict(reply, preserving_proto_field_name=True)

    def metadata(self):
        return self.ask("ModelMetadata", name="m")

    def config(self):
        return self.ask("ModelConfig", name="m")["config"]

    def server(self):
        return self.ask("ServerMetadata")

    def statistics(self):
        return self.ask("ModelStatistics", name="m", version="1")["model_stats"]

    def infer(self, inputs):
        kinds = {"<i8": "INT64", "<i4": "INT32"}
        request = kpb.ModelInferRequest(model_name="m", raw_input_contents=[values.tobytes() for _, values in inputs])
        for name, values in inputs:
            request.inputs.add(name=name, datatype=kinds[values.dtype.str], shape=values.shape)
        request.outputs.add(name="OUTPUT0")
        return self.stub.ModelInfer(request, timeout=PATIENCE_S).raw_output_contents[0]


class Http:
    def __init__(self, daemon):
        self.connection = http.client.HTTPConnection(daemon.kserve[0], timeout=PATIENCE_S)

    def ask(self, method, path, body=None, headers=()):
        self.connection.request(method, path, body, dict(headers))
        reply = self.connection.getresponse()
        data = reply.read()
        assert reply.status == 200, data
        length = reply.headers["Inference-Header-Content-Length"]
        return data[int(length):] if length else json.loads(data)

    def metadata(self):
        return self.ask("GET", "/v2/models/m")

    def config(self):
        return self.ask("GET", "/v2/models/m/config")

    def server(self):
        return self.ask("GET", "/v2")

    def statistics(self):
        return self.ask("GET", "/v2/models/m/versions/1/stats")["model_stats"]

    def infer(self, inputs):
        return self.ask("POST", "/v2/models/m/infer", *compose(inputs, outputs=[("OUTPUT0", True)]))


def counters(statistics):
    one, = statistics
    stats = one["inference_stats"]
    numbers = {name: int(one.get(name, 0)) for name in ("inference_count", "execution_count")}
    for name in COUNTED:
        numbers[name] = int(stats[name].get("count", 0))
        numbers[name + "_ns"] = int(stats[name].get("ns", 0))
    return numbers


@pytest.mark.parametrize("protocol", [Grpc, Http])
def test_calls_when_in_the_order_of_perf_analyzer_then_counters_grow_by_what_was_asked(work, daemon, protocol):
    tables = [Table.random(name, 100, dim, number=i) for i, (name, dim) in enumerate(zip(NAMES, DIMS))]
    paths = [table.save(f"{work}/m") for table in tables]
    client = protocol(daemon(default_config([model_config("m", paths, list(DIMS), list(NAMES))],
                                            server={"kserve_listen": ["127.0.0.1:0"]})))
    metadata, config = client.metadata(), client.config()
    assert config["max_batch_size"] >= BATCH  # or -b is refused
    assert not config.get("model_transaction_policy", {}).get("decoupled")
    assert not {"sequence_batching", "ensemble_scheduling", "dynamic_batching", "response_cache"} & set(config)
    assert not any(one.get("optional") or one.get("is_shape_tensor") for one in config["input"])
    assert [one["name"] for one in metadata["inputs"]] == ["KEYS", "NUMKEYS"] == [one["name"] for one in config["input"]]
    # A configuration with batches: the first dimension is the batch, and the rest come by --shape.
    shapes = {one["name"]: [int(dim) for dim in one["shape"]][1:] for one in metadata["inputs"]}
    assert shapes == {"KEYS": [-1], "NUMKEYS": [-1]}
    assert "statistics" in client.server()["extensions"]  # or it asks for none
    rng = np.random.default_rng(1)
    groups = [rng.choice(table.keys, BATCH) for table in tables]
    inputs = [(name, values.reshape(1, -1)) for name, values in hps_inputs(groups)]
    expected = b"".join(table.expect(keys).tobytes() for table, keys in zip(tables, groups))
    for _ in range(3):  # windows
        before = counters(client.statistics())
        for _ in range(N_INFER):
            assert client.infer(inputs) == expected

        def grown():
            after = counters(client.statistics())
            return after if after["execution_count"] == before["execution_count"] + N_INFER else None
        after = until(grown, "the last call is counted")  # a call is over when its answer was taken
        growth = {name: after[name] - before[name] for name in after}
        assert all(growth[name] == N_INFER for name in COUNTED), growth
        assert growth["inference_count"] >= N_INFER and growth["success_ns"] > 0, growth
        assert growth["success_ns"] >= sum(growth[name + "_ns"] for name in COUNTED[1:]), growth
