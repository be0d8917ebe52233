# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's checkpoints ("bundles") and SavedModels. TensorFlow is not needed."""
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from ._source import ConvertError, Part, Request, Tensor

INDEX_BYTES_MAX = 256 << 20
MAGIC = 0xdb4775248b80fb57
DTYPES = {1: "fp32", 2: "fp64", 3: "int32", 4: "uint8", 6: "int8", 7: "string", 9: "int64", 14: "bf16", 19: "fp16"}
SIZES = {"fp32": 4, "fp16": 2, "bf16": 2}
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
Value = Union[int, bytes]


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise ConvertError("a number is cut off")
        value |= (data[at] & 0x7f) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[Tuple[int, Value]]:
    """The fields of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(tag & 7)
        if size is None:
            if tag & 7 != 2:
                raise ConvertError(f"a protobuf field of type {tag & 7}")
            size, at = _varint(data, at)
        if at + size > len(data):
            raise ConvertError("a protobuf field is cut off")
        yield tag >> 3, data[at:at + size]
        at += size


def _all(data: Any, number: int) -> List[Any]:
    return [value for field, value in _fields(data) if field == number] if isinstance(data, bytes) else []


def _one(data: Any, number: int, default: Any) -> Any:
    found = _all(data, number)
    return found[-1] if found and isinstance(found[-1], type(default)) else default


def _block(data: bytes, handle: Tuple[int, int]) -> Iterator[Tuple[bytes, bytes]]:
    """The entries of a block of a LevelDB table."""
    begin, size = handle
    if begin + size + 5 > len(data) or size < 4:
        raise ConvertError("a block is outside the file")
    if data[begin + size] != 0:
        raise ConvertError("the index is compressed, expected an index without compression")
    block = data[begin:begin + size]
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key = 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise ConvertError("an entry is outside its block")
        key = key[:shared] + block[at:at + own]
        at += own
        yield key, block[at:at + length]
        at += length


def _handle(data: bytes, at: int = 0) -> Tuple[Tuple[int, int], int]:
    begin, at = _varint(data, at)
    size, at = _varint(data, at)
    return (begin, size), at


def _read_index(path: str) -> Dict[bytes, bytes]:
    if os.path.getsize(path) > INDEX_BYTES_MAX:
        raise ConvertError(f"{path}: {os.path.getsize(path)} bytes, expected at most 256 MiB")
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 48 or int.from_bytes(data[-8:], "little") != MAGIC:
        raise ConvertError(f"{path}: expected the index of a TensorFlow checkpoint (it may be truncated)")
    try:
        _, at = _handle(data[-48:])
        index, _ = _handle(data[-48:], at)
        return {key: value for _, handle in _block(data, index) for key, value in _block(data, _handle(handle)[0])}
    except ConvertError as error:
        raise ConvertError(f"{path}: {error}") from None


def _number(value: int) -> bytes:
    """A signed number in the keys of slices (OrderedCode)."""
    size, magnitude = 1, ~value if value < 0 else value
    while magnitude >= 1 << (7 * size - 1):
        size += 1
    if size > 8:
        raise ConvertError("a slice begins after 2^55 rows")
    header = (0xff00 >> size & 0xff) << 8 * (size - 1)
    return ((value & (1 << 8 * size) - 1) ^ header).to_bytes(size, "big")


def _slice_key(name: bytes, extents: List[Tuple[int, int]]) -> bytes:
    text = name.replace(b"\xff", b"\xff\x00").replace(b"\x00", b"\x00\xff")
    return b"\x00" + text + b"\x00\x01\x01" + bytes([len(extents)]) + b"".join(
        _number(start) + _number(length) for start, length in extents)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shape(entry: bytes) -> Tuple[int, ...]:
    return tuple(_signed(_one(dim, 1, 0)) for dim in _all(_one(entry, 2, b""), 2))


class _Bundle:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.entries = _read_index(prefix + ".index")
        self.shards = max(1, _one(self.entries.get(b"", b""), 1, 1))

    def place(self, entry: bytes, need: Optional[int], name: str) -> Tuple[str, int]:
        """File and offset of an entry that must have `need` bytes."""
        shard, offset, size = _one(entry, 3, 0), _one(entry, 4, 0), _one(entry, 5, 0)
        path = f"{self.prefix}.data-{shard:05d}-of-{self.shards:05d}"
        if not os.path.isfile(path):
            raise ConvertError(f"{path}: missing, expected all {self.shards} files of the checkpoint")
        if need is not None and size != need:
            raise ConvertError(f"{self.prefix}.index: '{name}' has {size} bytes, expected {need} for its shape")
        return path, offset

    def parts(self, key: bytes, entry: bytes, dtype: str, shape: Tuple[int, ...]) -> List[Part]:
        """Where the rows of an array are."""
        name, width = key.decode("utf-8", "replace"), SIZES[dtype]
        slices = _all(entry, 7)
        if not slices:
            return [Part(0, 0, shape[0], shape[1], *self.place(entry, shape[0] * shape[1] * width, name))]
        parts = []
        for one in slices:
            extents = [(_signed(_one(extent, 1, 0)), _signed(_one(extent, 2, -1))) for extent in _all(one, 1)]
            if len(extents) != 2:
                raise ConvertError(f"'{name}': a slice of {len(extents)} dimensions, expected 2")
            sliced = self.entries.get(_slice_key(key, extents))
            if sliced is None:
                raise ConvertError(f"{self.prefix}.index: no entry for the slice {extents} of '{name}'")
            rows, columns = (shape[i] if length < 0 else length for i, (_, length) in enumerate(extents))
            parts.append(Part(extents[0][0], extents[1][0], rows, columns,
                              *self.place(sliced, rows * columns * width, name)))
        return parts

    def full_names(self) -> Dict[str, str]:
        """{key: name of the variable} from the graph of objects, which TF 2 stores as a string."""
        entry = self.entries.get(b"_CHECKPOINTABLE_OBJECT_GRAPH")
        if entry is None:
            return {}
        path, offset = self.place(entry, None, "_CHECKPOINTABLE_OBJECT_GRAPH")
        size = _one(entry, 5, 0)
        if size > INDEX_BYTES_MAX:
            return {}
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read(size)
        length, at = _varint(data, 0)
        graph = data[at + 4:at + 4 + length]  # behind a checksum of the length
        return {_one(attribute, 3, b"").decode("utf-8", "replace"): _one(attribute, 2, b"").decode("utf-8", "replace")
                for node in _all(graph, 1) for attribute in _all(node, 2)}


def _prefix(source: str) -> str:
    """The prefix of the files of a checkpoint, from a prefix, an index, or a directory."""
    if source.endswith(".index"):
        return source[:-len(".index")]
    if not os.path.isdir(source):
        if not os.path.isfile(source + ".index"):
            raise ConvertError(f"{source}.index: missing, expected a checkpoint's prefix or directory, or a SavedModel")
        return source
    if os.path.isfile(os.path.join(source, "variables", "variables.index")):
        return os.path.join(source, "variables", "variables")
    found = sorted(file for file in os.listdir(source) if file.endswith(".index"))
    if len(found) != 1:
        raise ConvertError(f"{source}: has {len(found)} checkpoints ({', '.join(found[:5])}), expected one; give its "
                           "prefix, such as model.ckpt-1000")
    return os.path.join(source, found[0][:-len(".index")])


def open_tf(request: Request) -> List[Tensor]:
    """The variables of a checkpoint or SavedModel, with TensorFlow's names."""
    bundle = _Bundle(_prefix(request.source))
    try:
        full = bundle.full_names()
    except ConvertError as error:
        raise ConvertError(f"{bundle.prefix}: _CHECKPOINTABLE_OBJECT_GRAPH: {error}") from None
    found: List[Tensor] = []
    places, names = set(), set()
    for key, entry in bundle.entries.items():
        if key == b"" or key.startswith(b"\x00") or key == b"_CHECKPOINTABLE_OBJECT_GRAPH":
            continue
        text = key.decode("utf-8", "replace")
        dtype, shape = DTYPES.get(_one(entry, 1, 0), f"DataType {_one(entry, 1, 0)}"), _shape(entry)
        name = full.get(text) or text
        if name in names:
            name = text
        tensor = Tensor(name[:-len(SUFFIX)] if name.endswith(SUFFIX) else name, dtype, shape, [])
        if not tensor.refusal:
            tensor.parts = bundle.parts(key, entry, dtype, shape)
            place = tuple(tensor.parts)
            if place in places:
                continue  # an exported model names an array twice
            places.add(place)
        tensor.is_embedding = tensor.is_embedding and "OPTIMIZER_SLOT" not in text
        found.append(tensor)
        names.add(tensor.name)
    return found
