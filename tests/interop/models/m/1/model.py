# SPDX-License-Identifier: Apache-2.0
"""A model for the genuine Triton: answers have HPS's shape, and rows of four zeros."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        sizes = [pb_utils.get_input_tensor_by_name(request, "KEYS").as_numpy().size for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(4 * size, "f4"))]) for size in sizes]
