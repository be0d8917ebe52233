# SPDX-License-Identifier: Apache-2.0
"""A model of Triton's Python backend with the tensors of NVIDIA's HPS: it looks up the rows in hpsd.

Triton starts Python without PYTHONPATH: put the package hpsd (clients/python/hpsd) beside this file, or set PYTHONPATH,
which this file reads itself. Triton 24.10 needs numpy 1: with numpy 2 its outputs have no bytes.

The address of hpsd is $HPSD_LOOKUP_ADDR, else the parameter "addr" of config.pbtxt; several are separated by commas.
"""
import json
import os
import sys

sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

import numpy as np  # noqa: E402
import triton_python_backend_utils as triton  # noqa: E402

if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
    raise ImportError(f"Triton's Python backend needs numpy 1, found {np.__version__}: pip install 'numpy<2'")

import hpsd  # noqa: E402

CODES = {hpsd.InvalidArgument: "INVALID_ARG", hpsd.NotFound: "NOT_FOUND", hpsd.Unimplemented: "UNSUPPORTED",
         hpsd.Unavailable: "UNAVAILABLE", hpsd.DeadlineExceeded: "UNAVAILABLE", hpsd.ResourceExhausted: "UNAVAILABLE"}


def failed(error):
    code = getattr(triton.TritonError, CODES.get(type(error), "INTERNAL"))
    return triton.InferenceResponse(error=triton.TritonError(error.details, code))


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        address = os.environ.get("HPSD_LOOKUP_ADDR") or parameters["addr"]["string_value"]
        self.client = hpsd.connect(address.split(","), args["model_name"])

    def lookup(self, request):
        keys, counts = (triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("KEYS", "NUMKEYS"))
        timeout = request.timeout() / 1e6 or None
        # A row of NUMKEYS has the counts of a sample, and the same row of KEYS its keys.
        samples = [(keys, counts)]
        if counts.size > counts.shape[-1]:
            if keys.ndim < 2 or len(keys) != len(counts):
                raise hpsd.InvalidArgument(f"NUMKEYS has {len(counts)} rows, one for each sample, but KEYS has the shape {keys.shape}")
            samples = zip(keys, counts)
        return np.concatenate([self.client.lookup_flat(one.ravel(), n.ravel(), timeout=timeout) for one, n in samples])

    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                responses.append(triton.InferenceResponse([triton.Tensor("OUTPUT0", self.lookup(request))]))
            except hpsd.Error as error:
                responses.append(failed(error))
        return responses

    def finalize(self):
        self.client.close()
