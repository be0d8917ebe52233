# SPDX-License-Identifier: Apache-2.0
"""Looks up random keys of every table of a model by KServe v2, in the way Triton clients query HPS's model. It uses gRPC
(stock grpcio) and HTTP (urllib), and compares each row with the files of hps-gen.

usage: kserve.py GRPC_ADDRESS HTTP_ADDRESS MODEL DIR [SEED], where DIR is the directory that hps-gen wrote (its
manifest.json is read) with --seed SEED (1).
"""
import json
import os
import random
import sys
import urllib.request

import grpc
import numpy as np
from inference import grpc_service_pb2 as kserve

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "lib"))
import hpsgen  # noqa: E402  the generator's formula, written again in NumPy

KEYS = 256
LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"<i8": "INT64", "<i4": "INT32"}


def by_grpc(address, model, inputs):
    """OUTPUT0 of a ModelInfer."""
    request = kserve.ModelInferRequest(model_name=model, raw_input_contents=[values.tobytes() for values in inputs.values()])
    for name, values in inputs.items():
        request.inputs.add(name=name, datatype=DATATYPES[values.dtype.str], shape=values.shape)
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                    kserve.ModelInferRequest.SerializeToString, kserve.ModelInferResponse.FromString)
        reply = infer(request, timeout=30)
    return np.frombuffer(reply.raw_output_contents[0], "<f4")


def by_http(address, model, inputs):
    """The same with tensors behind the JSON."""
    listed = [{"name": name, "datatype": DATATYPES[values.dtype.str], "shape": values.shape,
               "parameters": {"binary_data_size": values.nbytes}} for name, values in inputs.items()]
    head = json.dumps({"inputs": listed, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([head, *(values.tobytes() for values in inputs.values())])
    request = urllib.request.Request(f"http://{address}/v2/models/{model}/infer", body, {LENGTH: str(len(head))})
    with urllib.request.urlopen(request, timeout=30) as reply:
        reply.read(int(reply.headers[LENGTH]))
        return np.frombuffer(reply.read(), "<f4")


def main():
    grpc_address, http_address, model, directory = sys.argv[1:5]
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as f:
        tables = json.load(f)["tables"]
    random.seed(2)
    keys = [np.array(random.choices(range(table["rows"]), k=KEYS), dtype="<i8") for table in tables]
    expected = np.concatenate([hpsgen.served(hpsgen.rows(seed, number, wanted, table["dim"]), table["dtype"]).ravel()
                               for number, (table, wanted) in enumerate(zip(tables, keys))])
    inputs = {"KEYS": np.concatenate(keys), "NUMKEYS": np.full(len(tables), KEYS, "<i4")}
    for way, output in (("gRPC", by_grpc(grpc_address, model, inputs)), ("HTTP", by_http(http_address, model, inputs))):
        if not np.array_equal(output, expected):
            sys.exit(f"KServe over {way}: a row is wrong")
    print(f"{len(tables)} tables x {KEYS} random keys by KServe v2, over gRPC and over HTTP: every row is bit-exact")


if __name__ == "__main__":
    main()
