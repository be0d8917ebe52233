# SPDX-License-Identifier: Apache-2.0
"""The DLRM of the tutorial: its sizes, and its parts in a training run's directory.

RUN/checkpoint   a distributed checkpoint of PyTorch, with all weights
RUN/sizes.json   the sizes of the model
RUN/dense.npz    the weights without the embeddings, for Triton
"""
import json
import warnings

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

from clicks import N_CATEGORIES, N_NUMBERS

warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")  # this job has one process
TABLES = [f"cat_{i}" for i in range(N_CATEGORIES)]


def new(sizes, embeddings="cpu"):
    """A model with random weights. embeddings="meta": it has no embeddings, so it needs little memory."""
    tables = [EmbeddingBagConfig(name=name, embedding_dim=sizes["width"], num_embeddings=sizes["rows"], feature_names=[name])
              for name in TABLES]
    return DLRM(EmbeddingBagCollection(tables=tables, device=torch.device(embeddings)), N_NUMBERS,
                [*sizes["bottom"], sizes["width"]], [*sizes["top"], 1])


def bags(model):
    """{table: its torch.nn.EmbeddingBag}"""
    return model.sparse_arch.embedding_bag_collection.embedding_bags


def save(model, sizes, run):
    dcp.save(model.state_dict(), checkpoint_id=f"{run}/checkpoint")
    np.savez(f"{run}/dense.npz", **{name: value.numpy() for name, value in model.state_dict().items() if "_bags" not in name})
    with open(f"{run}/sizes.json", "w", encoding="utf-8") as file:
        json.dump(sizes, file)


def sizes_of(run):
    with open(f"{run}/sizes.json", encoding="utf-8") as file:
        return json.load(file)


def load(run, embeddings="cpu"):
    """The model of a run. embeddings="meta": without its embeddings."""
    model = new(sizes_of(run), embeddings)
    weights = {name: value for name, value in model.state_dict().items() if str(value.device) != "meta"}
    dcp.load(weights, checkpoint_id=f"{run}/checkpoint")
    return model


def score(model, numbers, keys):
    """The scores of clicks: arrays (n, 13) and (n, 26)."""
    n = len(keys)
    features = KeyedJaggedTensor(TABLES, torch.from_numpy(np.ascontiguousarray(keys.T).reshape(-1)),
                                 lengths=torch.ones(n * N_CATEGORIES, dtype=torch.int32))
    return model(torch.from_numpy(numbers), features).squeeze(1)
