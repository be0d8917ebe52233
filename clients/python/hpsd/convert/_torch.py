# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save, and distributed checkpoints. torch is not needed.

Pickles are read with stand-ins for all classes, so no code that a pickle names is imported or called.
"""
import glob
import io
import os
import pickle
import zipfile
from typing import Any, Dict, List, Optional, Tuple

from ._source import ConvertError, Part, Request, Slice, Tensor, table_name

PICKLE_BYTES_MAX = 256 << 20
VALUES_MAX = 1 << 20  # values that are visited in a state dict
STORAGES = {"FloatStorage": "fp32", "HalfStorage": "fp16", "BFloat16Storage": "bf16", "ByteStorage": "uint8",
            "DoubleStorage": "fp64", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
            "CharStorage": "int8", "BoolStorage": "bool"}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "uint8": "uint8"}
INT8 = "; for a quantised collection of TorchRec use `convert torchrec-int8`"
SIZES = {"fp32": 4, "fp16": 2, "bf16": 2, "uint8": 1, "fp64": 8, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
         "bool": 1}


class Stand:
    """In place of an object of any class in a pickle; keeps only its arguments and state."""
    of = ""
    args: Tuple[Any, ...]
    state: Any

    def __init__(self, *args: Any, **_more: Any) -> None:
        self.args, self.state = args, None

    def __new__(cls, *_args: Any, **_more: Any) -> "Stand":
        made = object.__new__(cls)
        made.args, made.state = (), None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, _item: Any) -> None:
        """Items of a list's subclass are ignored."""

    def extend(self, _items: Any) -> None:
        """As append."""

    def __setitem__(self, _key: Any, _value: Any) -> None:
        """Items of a dict's subclass are ignored."""

    def field(self, name: str) -> Any:
        """An attribute; None: the object does not have it."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class _Dict(Dict[Any, Any]):
    """An OrderedDict; torch gives it an attribute."""


class _Stored:
    """A tensor: where it is in the archive."""

    def __init__(self, storage: Any, offset: Any, size: Any, stride: Any, *_more: Any) -> None:
        self.storage, self.offset, self.size, self.stride = storage, offset, tuple(size), tuple(stride)


class _Unpickler(pickle.Unpickler):
    """Makes stand-ins for all classes and functions."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Dict
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch._utils" and name == "_rebuild_tensor_v2":
            return _Stored
        if module == "torch._utils" and name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
            return lambda data, *_more: data
        return type(name, (Stand,), {"of": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        return pid


def _unpickle(data: bytes, where: str) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except MemoryError:
        raise
    except Exception as error:  # a hostile pickle can raise anything
        raise ConvertError(f"{where}: not a pickle that can be read without its code: {error}") from None


class _Archive:
    """A file of torch.save at an offset in a file."""

    def __init__(self, path: str, begin: int = 0, size: Optional[int] = None) -> None:
        self.path, self.begin = path, begin
        self.size = os.path.getsize(path) - begin if size is None else size
        file: Any
        with Slice(path, begin, self.size) as file:
            magic = file.read(4)
            file.seek(0)
            if magic != b"PK\x03\x04":
                raise ConvertError(f"{path}: not a zip archive at byte {begin}, expected a file of torch.save "
                                   "(of torch 1.6 or later)")
            try:
                with zipfile.ZipFile(file) as archive:
                    self.entries = {entry.filename: entry for entry in archive.infolist()}
                    pickles = [name for name in self.entries if name.endswith("/data.pkl")]
                    if len(pickles) != 1 or self.entries[pickles[0]].file_size > PICKLE_BYTES_MAX:
                        raise ConvertError(f"{path}: expected one data.pkl of at most 256 MiB, as torch.save writes")
                    self.root = pickles[0][:-len("data.pkl")]
                    order = self.entries.get(self.root + "byteorder")
                    if order is not None and (order.file_size > 16 or archive.read(order) != b"little"):
                        raise ConvertError(f"{path}: big-endian, expected little-endian data")
                    self.content = _unpickle(archive.read(pickles[0]), path)
            except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
                raise ConvertError(f"{path}: a damaged archive of torch.save: {error}") from None

    def _data_offset(self, entry: zipfile.ZipInfo) -> int:
        with Slice(self.path, self.begin + entry.header_offset, 30) as file:
            head = file.read(30) or b""
        return (self.begin + entry.header_offset + 30 + int.from_bytes(head[26:28], "little")
                + int.from_bytes(head[28:30], "little"))

    def locate(self, name: str, stored: _Stored) -> Tuple[str, Tuple[int, ...], int, str]:
        """Type, shape and byte offset in the file of a tensor; the last is why it cannot be read, or empty."""
        pid = stored.storage
        numbers = (stored.offset, *stored.size, *stored.stride)
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ConvertError(f"{self.path}: '{name}' has the offset, size and strides {numbers}, expected numbers")
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            return "unknown", stored.size, 0, "a tensor without a storage"
        kind = getattr(pid[1], "of", "").rpartition(".")[2]
        dtype = STORAGES.get(kind, kind)
        entry = self.entries.get(f"{self.root}data/{pid[2]}")
        expected: List[int] = []
        step = 1
        for size in reversed(stored.size):
            expected.insert(0, step)
            step *= max(size, 1)
        if entry is None:
            raise ConvertError(f"{self.path}: '{name}': no entry data/{pid[2]} in the archive")
        if entry.compress_type != zipfile.ZIP_STORED:
            return dtype, stored.size, 0, "compressed data, expected stored data"
        if tuple(expected) != stored.stride and 0 not in stored.size:
            return dtype, stored.size, 0, (f"strides {list(stored.stride)}, expected {expected}; save "
                                           "tensor.contiguous()")
        n_values = 1
        for size in stored.size:
            n_values *= size
        width = SIZES.get(dtype, 0)
        if (stored.offset + n_values) * width > entry.file_size:
            raise ConvertError(f"{self.path}: '{name}' has {n_values} values, but its data are {entry.file_size} bytes")
        return dtype, stored.size, self._data_offset(entry) + stored.offset * width, ""


def _tensors(content: Any) -> Dict[str, _Stored]:
    """The tensors of a state dict by their names, also inside dicts and lists."""
    out: Dict[str, _Stored] = {}
    n_values = 0

    def visit(value: Any, name: str, depth: int) -> None:
        nonlocal n_values
        n_values += 1
        if n_values > VALUES_MAX:  # a list may contain itself
            raise ConvertError(f"more than {VALUES_MAX} values, expected a state dict")
        if isinstance(value, _Stored):
            if name in out:
                raise ConvertError(f"two tensors are named '{name}', expected one")
            out[name] = value
        elif isinstance(value, (dict, list, tuple)) and depth < 16:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                if isinstance(key, (str, int)):
                    visit(item, f"{name}.{key}" if name else str(key), depth + 1)

    visit(content, "", 0)
    return out


def open_torch(request: Request) -> List[Tensor]:
    """The tensors of a state dict, also inside dicts."""
    if os.path.isdir(request.source):
        raise ConvertError(f"{request.source}: a directory, expected a file of torch.save; for a distributed checkpoint "
                           "(.metadata, __0_0.distcp) use `convert dcp`")
    archive = _Archive(request.source)
    if isinstance(archive.content, Stand):
        raise ConvertError(f"{request.source}: an object of {archive.content.of}, expected a state dict; save "
                           "model.state_dict()")
    tensors = []
    for name, stored in _tensors(archive.content).items():
        dtype, shape, offset, refusal = archive.locate(name, stored)
        part = Part(0, 0, shape[0], shape[1], archive.path, offset) if len(shape) == 2 else None
        tensor = Tensor(name, dtype, shape, [part] if part else [])
        tensor.refusal = refusal or tensor.refusal + (INT8 if dtype == "uint8" and part else "")
        tensors.append(tensor)
    return tensors


# ---- distributed checkpoints ----------------------------------------------------------------------------------------


def _dcp_file(directory: str, name: str, info: Any) -> Tuple[str, int, int]:
    path, offset, length = (info.field(each) for each in ("relative_path", "offset", "length"))
    if info.field("transform_descriptors"):
        raise ConvertError(f"{directory}: '{name}' is transformed ({info.field('transform_descriptors')}), expected "
                           "plain data")
    if not isinstance(path, str) or os.path.basename(path) != path or not isinstance(offset, int) \
            or not isinstance(length, int):
        raise ConvertError(f"{directory}/.metadata: '{name}' is in '{path}', expected a file of the directory")
    full = os.path.join(directory, path)
    if not os.path.isfile(full):
        raise ConvertError(f"{full}: missing; expected the files of all ranks in the directory")
    if os.path.getsize(full) < offset + length:
        raise ConvertError(f"{full}: {os.path.getsize(full)} bytes, expected at least {offset + length} for '{name}'")
    return full, offset, length


def _numbers(value: Any) -> Tuple[int, ...]:
    """A torch.Size: a tuple, or a stand-in with it."""
    got = value.args[0] if isinstance(value, Stand) and value.args else value
    return tuple(got) if isinstance(got, (tuple, list)) and all(isinstance(n, int) for n in got) else ()


def _dcp_dtype(properties: Any) -> str:
    state = properties.state if isinstance(properties, Stand) else None
    given = state[0] if isinstance(state, tuple) and state else state.get("dtype") if isinstance(state, dict) else None
    name = getattr(given, "of", "unknown").rpartition(".")[2]
    return DTYPES.get(name, name)


class _DcpTensor(Tensor):
    """Its parts are found when it is converted: each part has its own archive."""

    def __init__(self, name: str, dtype: str, shape: Tuple[int, ...], directory: str, chunks: List[Any]) -> None:
        super().__init__(name, dtype, shape, [])
        self.refusal += INT8 if dtype == "uint8" and len(shape) == 2 else ""
        self._directory, self._chunks = directory, chunks

    def prepare(self) -> None:
        self.parts.clear()
        for offsets, sizes, info in self._chunks:
            path, begin, size = _dcp_file(self._directory, self.name, info)
            archive = _Archive(path, begin, size)
            if not isinstance(archive.content, _Stored):
                raise ConvertError(f"{path}: no tensor at byte {begin}, expected a part of '{self.name}'")
            dtype, shape, at, refusal = archive.locate(self.name, archive.content)
            if refusal or dtype != self.dtype or shape != sizes:
                raise ConvertError(f"{path}: '{self.name}' at byte {begin} is {dtype} {list(shape)}, expected "
                                   f"{self.dtype} {list(sizes)}{'; ' + refusal if refusal else ''}")
            self.parts.append(Part(offsets[0], offsets[1], sizes[0], sizes[1], path, at))
        super().prepare()


def open_dcp(request: Request) -> List[Tensor]:
    """The tensors of a checkpoint of torch.distributed.checkpoint, as TorchRec writes it."""
    path = os.path.join(request.source, ".metadata")
    if glob.glob(os.path.join(glob.escape(request.source), "*.safetensors")):
        raise ConvertError(f"{request.source}: safetensors of HuggingFaceStorageWriter; save them with "
                           "enable_consolidation=True, or join shards with consolidate_safetensors_files of torch; then "
                           "hpsctl load reads them without a conversion")
    if not os.path.isfile(path):
        raise ConvertError(f"{path}: missing, expected the directory of a distributed checkpoint")
    if os.path.getsize(path) > PICKLE_BYTES_MAX:
        raise ConvertError(f"{path}: {os.path.getsize(path)} bytes, expected at most 256 MiB")
    with open(path, "rb") as file:
        metadata = _unpickle(file.read(), path)
    described = metadata.field("state_dict_metadata") if isinstance(metadata, Stand) else None
    places = metadata.field("storage_data") if isinstance(metadata, Stand) else None
    if not isinstance(described, dict) or not isinstance(places, dict):
        raise ConvertError(f"{path}: no state_dict_metadata and storage_data, expected the metadata of "
                           "torch.distributed.checkpoint")
    where = {(index.field("fqn"), _numbers(index.field("offset"))): info for index, info in places.items()
             if isinstance(index, Stand) and isinstance(info, Stand)}
    tensors: List[Tensor] = []
    for name, one in described.items():
        chunks = one.field("chunks") if isinstance(one, Stand) else None
        if not isinstance(name, str) or not isinstance(chunks, list):
            continue  # not a tensor
        found = []
        shape = _numbers(one.field("size"))
        for chunk in chunks:
            offsets, sizes = (_numbers(chunk.field(each)) for each in ("offsets", "sizes"))
            if not len(offsets) == len(sizes) == len(shape):
                raise ConvertError(f"{path}: the part of '{name}' at {list(offsets)} has the shape {list(sizes)}, expected "
                                   f"{len(shape)} dimensions")
            if (name, offsets) not in where:
                raise ConvertError(f"{path}: no file for the part of '{name}' at {list(offsets)}")
            found.append((offsets, sizes, where[name, offsets]))
        tensors.append(_DcpTensor(name, _dcp_dtype(one.field("properties")), shape, request.source, found))
    return tensors


def open_int8(request: Request) -> List[Tensor]:
    """The uint8 tensors of a quantised collection of TorchRec: rows of scale, bias, values and padding."""
    if not request.dims:
        raise ConvertError("torchrec-int8: the files do not have the number of values per row; expected --dim N")
    tensors = open_dcp(request) if os.path.isdir(request.source) else open_torch(request)
    found: List[Tensor] = []
    for tensor in tensors:
        if tensor.dtype != "uint8":
            continue
        found.append(tensor)
        if tensor.width == 0:
            continue  # not of 2 dimensions: keeps its refusal
        tensor.is_embedding, tensor.refusal = True, ""
        dim = request.dim(tensor.name) or 0
        width = -(-(dim + 4) // 16) * 16
        if dim == 0 or tensor.width != width:
            tensor.refusal = (f"rows of {tensor.width} bytes, expected {width} for --dim {dim}; give each table's with "
                              f"--dim {table_name(tensor.name)}=N")
            continue
        tensor.dim = dim
    return found
