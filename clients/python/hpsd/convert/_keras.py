# SPDX-License-Identifier: Apache-2.0
"""Keras 3: .keras and .weights.h5. Needs h5py; TensorFlow and Keras are not needed."""
import json
import re
import zipfile
from typing import Any, Dict, List, Tuple

import numpy as np

from ._source import DTYPES, Array, ConvertError, Request, Tensor

NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
CONFIG_BYTES_MAX = 64 << 20


class _Dataset(Tensor):
    """An array in an HDF5 file."""

    def __init__(self, name: str, dataset: Any) -> None:
        dtype = str(dataset.dtype)
        if dataset.dtype.itemsize == 2 and str(dataset.attrs.get("dtype", "")) == "bfloat16":
            dtype = "bfloat16"  # HDF5 has no such type, so Keras stores two bytes and this attribute
        super().__init__(name, NAMES.get(dtype, dtype), tuple(dataset.shape or ()), [])
        self._dataset = dataset
        if dataset.is_virtual or dataset.external:
            self.refusal = "data in other files, expected data in the file itself"
        elif dataset.chunks or dataset.id.get_storage_size() != dataset.nbytes:  # may expand to any size
            self.refusal = "chunked or incomplete data, expected contiguous data, as Keras writes"

    def read(self, begin: int, end: int) -> Array:
        return np.ascontiguousarray(self._dataset[begin:end]).view(DTYPES[self.dtype])

    def prepare(self) -> None:
        """HDF5 checks its own files."""


def _snake(name: str) -> str:
    """As Keras names the groups of its files."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _layer_names(config: Any) -> Dict[str, Tuple[str, str]]:
    """{path of a layer in the file: (its name, its class)} from the config.json of a model."""
    found: Dict[str, Tuple[str, str]] = {}

    def visit(model: Any, prefix: str, depth: int) -> None:
        inner = model.get("config") if isinstance(model, dict) else None
        layers = inner.get("layers") if isinstance(inner, dict) else None
        used: Dict[str, int] = {}
        for layer in layers if isinstance(layers, list) and depth < 16 else ():
            kind = _snake(str(layer.get("class_name")))
            number = used.get(kind, 0)
            used[kind] = number + 1
            path = f"{prefix}layers/{kind}{f'_{number}' if number else ''}"
            name = layer.get("config", {}).get("name") if isinstance(layer.get("config"), dict) else None
            if isinstance(name, str):
                found[path] = (name, kind)
            visit(layer, path + "/", depth + 1)

    visit(config, "", 0)
    return found


def open_keras(request: Request) -> List[Tensor]:
    """The variables of a model. The variables of Embedding layers are tables. A .keras gives them the names of the
    layers, a .weights.h5 the names in the file."""
    try:
        import h5py  # pylint: disable=import-outside-toplevel
    except ImportError:
        raise ConvertError("keras: needs h5py; install it with pip install 'hpsd[convert]'") from None
    source: Any = request.source
    names: Dict[str, Tuple[str, str]] = {}
    try:
        if zipfile.is_zipfile(source):
            archive = zipfile.ZipFile(source)  # pylint: disable=consider-using-with
            entries = {entry.filename: entry.file_size for entry in archive.infolist()}
            if "model.weights.h5" not in entries or entries.get("config.json", 0) > CONFIG_BYTES_MAX:
                raise ConvertError(f"{source}: expected model.weights.h5 and config.json in it, as Keras 3 writes")
            if "config.json" in entries:
                names = _layer_names(json.loads(archive.read("config.json")))
            source = archive.open("model.weights.h5")
        file = h5py.File(source, "r")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConvertError(f"{request.source}: expected a .keras or .weights.h5 file of Keras 3: {error}") from None
    found: List[Tensor] = []
    used = set()

    def visit(path: str, item: Any) -> None:
        match = re.fullmatch(r"(.*?)/?vars/(\d+)", path)
        if not isinstance(item, h5py.Dataset):
            return
        name, kind = names.get(match[1], ("", "")) if match else ("", "")
        shown = match[1] if match and match[2] == "0" else path
        name = name if match and match[2] == "0" and name not in used else ""
        tensor = _Dataset(name or re.sub(r"^(_?layers/)", "", shown), item)
        tensor.is_embedding = kind == "embedding" if kind else re.search(r"(^|/)\w*emb\w*(/vars/0|/?$)", shown) is not None
        found.append(tensor)
        used.add(tensor.name)

    file.visititems(visit)
    return found
