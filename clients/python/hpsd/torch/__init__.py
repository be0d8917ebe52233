# SPDX-License-Identifier: Apache-2.0
"""PyTorch layers that look up their rows in hpsd. For inference, they replace torch.nn.Embedding and EmbeddingBag, the
collections of TorchRec, and LookupLayer of HPS.

    client = hpsd.connect("127.0.0.1:8601", model="dlrm")
    hpsd.torch.replace(model, client)                                    # each layer with a table in hpsd
    model.items = hpsd.torch.EmbeddingBag(client, "items", mode="mean")  # one layer

The layers have no weights and no entries in a state_dict. Results have the device and the dtype that the module was moved
to with .to().
"""
from .._program import set_token
from ._collections import (EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig)
from ._hps import LookupLayer
from ._jagged import JaggedTensor, KeyedTensor
from ._layers import Embedding, EmbeddingBag
from ._replace import replace

__all__ = ["Embedding", "EmbeddingBag", "EmbeddingBagCollection", "EmbeddingBagConfig", "EmbeddingCollection",
           "EmbeddingConfig", "JaggedTensor", "KeyedTensor", "LookupLayer", "replace", "set_token"]
