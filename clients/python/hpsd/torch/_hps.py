# SPDX-License-Identifier: Apache-2.0
"""LookupLayer of HPS for PyTorch, which looks up rows in hpsd."""
from __future__ import annotations

from typing import Any, Optional

import torch

from .._address import Addresses
from .._hps import table_of
from ._layers import Embedding


class LookupLayer(Embedding):
    """Replaces hps_torch.LookupLayer: from keys of any shape to float32 rows of shape keys.shape + (emb_vec_size,).

    ps_config_file: the ps.json of hpsd. The layer reads the name of the table from it, and the address of hpsd unless
    `address` is given.
    """

    def __init__(self, ps_config_file: str, model_name: str, table_id: int, emb_vec_size: int,
                 emb_vec_dtype: Any = None, *, address: Optional[Addresses] = None, **options: Any) -> None:
        client, table = table_of(ps_config_file, model_name, table_id, address)
        super().__init__(client, table, emb_vec_size, **options)
        if isinstance(emb_vec_dtype, torch.dtype):
            self.to(emb_vec_dtype)
