# SPDX-License-Identifier: Apache-2.0
"""Dumps of NVIDIA's DynamicEmb: keys and values of each rank, without headers."""
import os
import re
from typing import Dict, List, Optional, Tuple

import numpy as np

from ._source import DTYPES, Array, ConvertError, Part, Request, Tensor, read_into

KEYS = re.compile(r"(.+)_emb_keys\.rank_(\d+)\.world_size_(\d+)$")


class _Dump(Tensor):
    """Keys and values of all ranks, one rank after the other."""

    def __init__(self, name: str, dtype: str, shape: Tuple[int, int], parts: List[Part], keys: List[Part]) -> None:
        super().__init__(name, dtype, shape, parts)
        self.is_embedding = True
        self._keys = keys

    def keys(self, begin: int, end: int) -> Optional[Array]:
        out = np.empty(end - begin, "<i8")
        for part in self._keys:
            first, last = max(begin, part.row), min(end, part.row + part.rows)
            if first < last:
                read_into(part.path, 8 * (first - part.row), out[first - begin:last - begin])
        return out


def _table(name: str, ranks: Dict[Tuple[int, int], str], request: Request) -> Tensor:
    dtype = request.dtype or "fp32"
    worlds = {world for _, world in ranks}
    if len(worlds) != 1 or sorted(rank for rank, _ in ranks) != list(range(len(ranks))) or len(ranks) not in worlds:
        raise ConvertError(f"'{name}': has the ranks {sorted(rank for rank, _ in ranks)} of world sizes "
                           f"{sorted(worlds)}, expected all ranks of one world size")
    keys: List[Part] = []
    parts: List[Part] = []
    dim, row = request.dim(name) or 0, 0
    for (_, _), path in sorted(ranks.items()):
        values = "_emb_values.".join(path.rsplit("_emb_keys.", 1))
        if not os.path.isfile(values):
            raise ConvertError(f"{values}: missing, expected next to {path}")
        n_bytes, size = os.path.getsize(path), os.path.getsize(values)
        n, width = n_bytes // 8, np.dtype(DTYPES[dtype]).itemsize
        dim = dim or (size // (n * width) if n else 0)
        if n_bytes % 8 or size != n * dim * width:
            raise ConvertError(f"{values}: {size} bytes, expected {n} keys x {dim} values x {width} bytes "
                               f"({n_bytes} bytes of keys); is --dim or --dtype wrong, or a file truncated?")
        keys.append(Part(row, 0, n, 1, path, 0))
        parts.append(Part(row, 0, n, dim, values, 0))
        row += n
    if dim == 0:
        raise ConvertError(f"'{name}': no rows; expected --dim N")
    return _Dump(name, dtype, (row, dim), [part for part in parts if part.rows], keys)


def open_dynamicemb(request: Request) -> List[Tensor]:
    """The tables below a directory. Values are fp32; other types need --dim and --dtype."""
    if request.dtype not in (None, "fp32") and not request.dims:
        raise ConvertError(f"--dtype {request.dtype}: expected --dim too, because the files have no header")
    if not os.path.isdir(request.source):
        raise ConvertError(f"{request.source}: expected the directory of a dump")
    tables: Dict[str, Dict[Tuple[int, int], str]] = {}
    for directory, _, files in os.walk(request.source):
        for file in files:
            match = KEYS.match(file)
            if match:
                name = os.path.join(os.path.relpath(directory, request.source), match[1])
                ranks = tables.setdefault(os.path.normpath(name), {})
                place, path = (int(match[2]), int(match[3])), os.path.join(directory, file)
                if place in ranks:
                    raise ConvertError(f"{path} and {ranks[place]}: expected one file of each rank")
                ranks[place] = path
    if not tables:
        raise ConvertError(f"{request.source}: no file *_emb_keys.rank_R.world_size_W, expected a dump of DynamicEmb")
    return [_table(name, ranks, request) for name, ranks in sorted(tables.items())]
