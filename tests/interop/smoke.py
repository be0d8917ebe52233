# SPDX-License-Identifier: Apache-2.0
"""Python's grpcio against grpc.testing.TestService: one line per case, exit 1 if any failed.

usage: smoke.py ADDRESS DESCRIPTORS   (a FileDescriptorSet of grpc/testing/test.proto; generated modules
would be called grpc.testing and hide grpc itself)
"""
import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PREFIX = "/grpc.testing.TestService/"


def load(path):
    with open(path, "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)

    def message(name):
        found = pool.FindMessageTypeByName("grpc.testing." + name)
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(found)
        return message_factory.MessageFactory(pool).GetPrototype(found)

    return message


message = load(sys.argv[2])
SimpleRequest, SimpleResponse = message("SimpleRequest"), message("SimpleResponse")
OutputRequest = message("StreamingOutputCallRequest")
OutputResponse = message("StreamingOutputCallResponse")
InputRequest = message("StreamingInputCallRequest")
InputResponse = message("StreamingInputCallResponse")
Empty = message("Empty")


def method(channel, kind, name, request, response):
    return getattr(channel, kind)(PREFIX + name, request_serializer=request.SerializeToString,
                                  response_deserializer=response.FromString)


def unary(channel):
    return method(channel, "unary_unary", "UnaryCall", SimpleRequest, SimpleResponse)


def duplex(channel):
    return method(channel, "stream_stream", "FullDuplexCall", OutputRequest, OutputResponse)


def output_request(*sizes):
    request = OutputRequest()
    for size in sizes:
        request.response_parameters.add(size=size)
    return request


def code_of(call):
    try:
        list(call()) if callable(call) else list(call)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def py_empty_unary(channel):
    assert method(channel, "unary_unary", "EmptyCall", Empty, Empty)(Empty()) == Empty()


def py_large_unary(channel):
    request = SimpleRequest(response_size=314159)
    request.payload.body = bytes(271828)
    assert len(unary(channel)(request).payload.body) == 314159


def py_gzip_unary(channel):
    request = SimpleRequest(response_size=10)
    request.expect_compressed.value = True
    request.payload.body = bytes(100000)
    reply = unary(channel)(request, compression=grpc.Compression.Gzip)
    assert len(reply.payload.body) == 10


def py_client_streaming(channel):
    call = method(channel, "stream_unary", "StreamingInputCall", InputRequest, InputResponse)
    requests = []
    for size in (27182, 8, 1828, 45904):
        requests.append(InputRequest())
        requests[-1].payload.body = bytes(size)
    assert call(iter(requests)).aggregated_payload_size == 74922


def py_server_streaming(channel):
    call = method(channel, "unary_stream", "StreamingOutputCall", OutputRequest, OutputResponse)
    sizes = [31415, 9, 2653, 58979, 0]
    assert [len(r.payload.body) for r in call(output_request(*sizes))] == sizes


def py_duplex(channel):
    sizes = [31415, 9, 2653, 58979]
    replies = duplex(channel)(output_request(size) for size in sizes)
    assert [len(r.payload.body) for r in replies] == sizes


def py_metadata(channel):
    metadata = (("x-grpc-test-echo-initial", "value"),
                ("x-grpc-test-echo-trailing-bin", b"\xab\xab\x00\xff"))
    _, call = unary(channel).with_call(SimpleRequest(response_size=1), metadata=metadata)
    assert ("x-grpc-test-echo-initial", "value") in call.initial_metadata()
    assert ("x-grpc-test-echo-trailing-bin", b"\xab\xab\x00\xff") in call.trailing_metadata()


def py_status_message(channel):
    text = "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \U0001f608\t\n"
    request = SimpleRequest()
    request.response_status.code = 2
    request.response_status.message = text
    try:
        unary(channel)(request)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNKNOWN
        assert error.details() == text
    else:
        raise AssertionError("no error")


def py_cancel(channel):
    call = duplex(channel)(iter([output_request(100)]))
    next(call)
    call.cancel()
    assert code_of(call) in (grpc.StatusCode.CANCELLED, grpc.StatusCode.OK)


def py_deadline(channel):
    request = OutputRequest()
    request.response_parameters.add(size=1, interval_us=60_000_000)
    call = method(channel, "unary_stream", "StreamingOutputCall", OutputRequest, OutputResponse)
    assert code_of(call(request, timeout=0.05)) == grpc.StatusCode.DEADLINE_EXCEEDED


def py_unimplemented(channel):
    call = method(channel, "unary_unary", "UnimplementedCall", Empty, Empty)
    assert code_of(lambda: [call(Empty())]) == grpc.StatusCode.UNIMPLEMENTED
    call = channel.unary_unary("/no.Such/Thing")
    assert code_of(lambda: [call(b"")]) == grpc.StatusCode.UNIMPLEMENTED


def main():
    failed = 0
    with grpc.insecure_channel(sys.argv[1]) as channel:
        for name, case in sorted(globals().items()):
            if not name.startswith("py_"):
                continue
            try:
                case(channel)
                print("PASS", name)
            except (AssertionError, grpc.RpcError) as error:
                failed += 1
                print("FAIL", name, repr(error)[:300])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
