# SPDX-License-Identifier: Apache-2.0
"""Message classes and methods of a gRPC server, from its reflection service.

Needs only stock grpcio and protobuf, no generated modules. The few messages of the reflection protocol that are needed
are described below.
"""
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PATIENCE_S = 30


def message_class(pool, descriptor):
    """The class of a message in a pool. protobuf before 4.22 needs a factory for this."""
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)


def add_message(file, name, *fields):
    """`fields`: (name, number, type). The type is a scalar type or the name of a message."""
    message = file.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    for field_name, number, kind, *repeated in fields:
        field = message.field.add(name=field_name, number=number)
        field.label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        if isinstance(kind, str):
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{file.package}.{kind}"
        else:
            field.type = kind


def reflection_classes(version):
    """(request, response) of grpc.reflection.<version>, with only the fields that are needed."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"reflection_{version}.proto", syntax="proto3",
                                              package=f"grpc.reflection.{version}")
    add_message(file, "ServerReflectionRequest", ("file_containing_symbol", 4, kinds.TYPE_STRING))
    add_message(file, "FileDescriptorResponse",
                ("file_descriptor_proto", 1, kinds.TYPE_BYTES, "repeated"))
    add_message(file, "ErrorResponse", ("error_code", 1, kinds.TYPE_INT32),
                ("error_message", 2, kinds.TYPE_STRING))
    add_message(file, "ServerReflectionResponse",
                ("file_descriptor_response", 4, "FileDescriptorResponse"),
                ("error_response", 7, "ErrorResponse"))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return [message_class(pool, pool.FindMessageTypeByName(f"{file.package}.ServerReflection{name}"))
            for name in ("Request", "Response")]


def files_with(channel, symbol, version):
    """The files that define a symbol, from the server."""
    request, response = reflection_classes(version)
    call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                 request.SerializeToString, response.FromString)
    answer, = call(iter([request(file_containing_symbol=symbol)]), timeout=PATIENCE_S)
    if answer.HasField("error_response"):
        raise LookupError(f"{symbol}: {answer.error_response.error_message}")
    return [descriptor_pb2.FileDescriptorProto.FromString(data)
            for data in answer.file_descriptor_response.file_descriptor_proto]


class Service:
    """A service of the server at `channel`: its methods, and the messages and enums of its package."""

    def __init__(self, channel, name, version="v1"):
        self.channel, self.name = channel, name
        self.package = name.rpartition(".")[0]
        self.pool = descriptor_pool.DescriptorPool()
        waiting = {file.name: file for file in files_with(channel, name, version)}
        while waiting:  # a file must be added after its imports
            file = next(f for f in waiting.values() if not waiting.keys() & set(f.dependency))
            self.pool.AddSerializedFile(waiting.pop(file.name).SerializeToString())
        self.descriptor = self.pool.FindServiceByName(name)

    def message(self, name):
        return message_class(self.pool, self.pool.FindMessageTypeByName(f"{self.package}.{name}"))

    def enum(self, name):
        """{name of a value: its number}."""
        values = self.pool.FindEnumTypeByName(f"{self.package}.{name}").values
        return {value.name: value.number for value in values}

    def method(self, name, streams=False):
        """A callable that takes one request; with `streams` it returns a stream of replies."""
        described = self.descriptor.FindMethodByName(name)
        make = self.channel.unary_stream if streams else self.channel.unary_unary
        return make(f"/{self.name}/{name}",
                    message_class(self.pool, described.input_type).SerializeToString,
                    message_class(self.pool, described.output_type).FromString)
