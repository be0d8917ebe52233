# SPDX-License-Identifier: Apache-2.0
"""Bodies of KServe v2 inference requests over HTTP, written and parsed with only numpy and json. So hpsd's code cannot
share mistakes with them."""
import json

import numpy as np

LENGTH = "Inference-Header-Content-Length"
WIRE = {"<i8": "INT64", "<i4": "INT32", "<f4": "FP32"}
NUMPY = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4", "UINT8": "u1", "FP16": "<f2", "BF16": "<u2"}


def hps_inputs(groups):
    """The inputs KEYS and NUMKEYS for the keys of each table."""
    keys = np.concatenate([np.zeros(0, "<i8"), *(np.asarray(keys, "<i8") for keys in groups)])
    return [("KEYS", keys), ("NUMKEYS", np.array([len(keys) for keys in groups], "<i4"))]


def compose(inputs, outputs=(), binary=True, binary_output=None, ident=None, **parameters):
    """(body, headers). inputs: [(name, array)]. outputs: names, or (name, whether binary). binary: whether inputs are
    sent as binary data after the JSON, or the names of the inputs for which this is done."""
    behind, listed = [], []
    for name, values in inputs:
        one = {"name": name, "shape": list(values.shape), "datatype": WIRE[values.dtype.str]}
        if binary is True or (binary and name in binary):
            one["parameters"] = {"binary_data_size": values.nbytes}
            behind.append(values.tobytes())
        else:
            one["data"] = values.tolist()
        listed.append(one)
    document = {"inputs": listed}
    if ident is not None:
        document["id"] = ident
    if outputs:
        document["outputs"] = [{"name": one} if isinstance(one, str) else
                               {"name": one[0], "parameters": {"binary_data": one[1]}} for one in outputs]
    if binary_output is not None:
        parameters["binary_data_output"] = binary_output
    if parameters:
        document["parameters"] = parameters
    head = json.dumps(document).encode()
    return b"".join([head, *behind]), {LENGTH: str(len(head))} if binary else {}


class Answer:
    """A parsed reply: `about` is its JSON, `values` has the array of each output."""

    def __init__(self, body, headers):
        length = headers.get(LENGTH)
        head = len(body) if length is None else int(length)
        self.about = json.loads(body[:head])
        self.values, at = {}, head
        for output in self.about["outputs"]:
            dtype, size = NUMPY[output["datatype"]], output.get("parameters", {}).get("binary_data_size")
            if size is None:
                values = np.array(output["data"], dtype)
            else:
                values = np.frombuffer(body[at:at + size], dtype)
                at += size
            self.values[output["name"]] = values.reshape(output["shape"])
        assert at == len(body), f"{len(body) - at} bytes are of no output"
