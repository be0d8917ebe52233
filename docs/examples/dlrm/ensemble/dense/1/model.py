# SPDX-License-Identifier: Apache-2.0
"""The dense part of the DLRM for Triton's Python backend, with numpy only. train.py wrote its weights, dense.npz."""
import os

import numpy as np
import triton_python_backend_utils as triton


def mlp(weights, part, x, last):
    """Layers with ReLU; the activation of the last layer is `last`."""
    names = [name[:-7] for name in weights if name.startswith(part) and name.endswith(".weight")]
    for name in names:
        x = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        x = last(x) if name == names[-1] else np.maximum(x, 0)
    return x


def score(weights, numbers, rows):
    """Scores of n clicks: numbers (n, 13), rows of all tables, one table after the other."""
    bottom = mlp(weights, "dense_arch", numbers, lambda x: np.maximum(x, 0))
    n, width = bottom.shape
    vectors = np.concatenate((bottom[None], rows.reshape(-1, n, width))).transpose(1, 0, 2)
    products = vectors @ vectors.transpose(0, 2, 1)
    above = np.triu_indices(vectors.shape[1], 1)
    interactions = np.concatenate((bottom, products[:, above[0], above[1]]), 1)
    return mlp(weights, "over_arch", interactions, lambda x: 1 / (1 + np.exp(-x)))[:, 0]


class TritonPythonModel:
    def initialize(self, _):
        self.weights = dict(np.load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "dense.npz")))

    def execute(self, requests):
        replies = []
        for request in requests:
            numbers, rows = (triton.get_input_tensor_by_name(request, name).as_numpy() for name in ("NUMBERS", "ROWS"))
            replies.append(triton.InferenceResponse([triton.Tensor("SCORES", score(self.weights, numbers, rows))]))
        return replies
