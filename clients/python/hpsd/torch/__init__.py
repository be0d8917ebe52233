# SPDX-License-Identifier: Apache-2.0
"""Layers for PyTorch whose rows are in hpsd: for inference, in the places of torch.nn.Embedding and EmbeddingBag, of
TorchRec's collections and of HPS's LookupLayer.

    client = hpsd.connect("127.0.0.1:8601", model="dlrm")
    model.items = hpsd.torch.EmbeddingBag(client, "items", mode="mean")

They have no weights, so nothing of them is in a state_dict; what they return is on the device, and of the dtype, that the
module was moved to with .to().
"""
from ._collections import (EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig)
from ._hps import LookupLayer
from ._jagged import JaggedTensor, KeyedTensor
from ._layers import Embedding, EmbeddingBag
from ._program import set_token

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingBagCollection", "EmbeddingBagConfig", "EmbeddingCollection",
           "EmbeddingConfig", "JaggedTensor", "KeyedTensor", "LookupLayer", "set_token"]
