# SPDX-License-Identifier: Apache-2.0
"""The messages of proto/hps/v1/lookup.proto. The classes are built from its serialised descriptor, so that they work with
any protobuf runtime. They use a separate pool, to avoid conflicts with modules that protoc generated."""
from __future__ import annotations

import pkgutil
from typing import Any, Dict

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from .errors import malformed

_PACKAGE = "hps.v1"
_pool = descriptor_pool.DescriptorPool()
try:
    _described = pkgutil.get_data(__package__, "lookup.binpb") or b""
except FileNotFoundError:
    raise ImportError("hpsd/lookup.binpb is missing: run ./dev build, or install the package with pip") from None
for _file in descriptor_pb2.FileDescriptorSet.FromString(_described).file:
    _pool.AddSerializedFile(_file.SerializeToString())


def class_of(name: str) -> Any:
    described = _pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(described)
    return message_factory.MessageFactory(_pool).GetPrototype(described)  # protobuf before 4.22


def words(enum: str, prefix: str) -> Dict[str, int]:
    """The short names of the values of an enum, and their numbers: "exact" for MISS_POLICY_EXACT."""
    values = _pool.FindEnumTypeByName(f"{_PACKAGE}.{enum}").values
    return {value.name[len(prefix):].lower(): value.number for value in values if value.number != 0}


def read(message: Any, data: bytes) -> Any:
    """Parse a reply as a message of the class `message`."""
    try:
        return message.FromString(data)
    except DecodeError as failure:
        raise malformed(failure) from None


GetModelRequest = class_of("GetModelRequest")
GetModelResponse = class_of("GetModelResponse")
WaitForUpdatesRequest = class_of("WaitForUpdatesRequest")
WaitForUpdatesResponse = class_of("WaitForUpdatesResponse")

LOOKUP = f"/{_PACKAGE}.ParameterServer/Lookup"
LOOKUP_STREAM = f"/{_PACKAGE}.ParameterServer/LookupStream"
GET_MODEL = f"/{_PACKAGE}.ParameterServer/GetModel"
WAIT_FOR_UPDATES = f"/{_PACKAGE}.ParameterServer/WaitForUpdates"
INFER = "/inference.GRPCInferenceService/ModelInfer"
