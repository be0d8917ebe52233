# SPDX-License-Identifier: Apache-2.0
"""HTTP/2, gRPC and protobuf with sockets only, so that attacks can send any malformed frame.

Of the server's bytes it parses what attacks need: which frames arrived, how calls ended, and whether the connection is
open. Every read has a time limit: PATIENCE_S.
"""
import contextlib
import os
import select
import socket
import ssl
import struct
import time
import zlib

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
TABLE_SIZE, ENABLE_PUSH, STREAMS_MAX, WINDOW, FRAME_MAX, LIST_MAX = range(1, 7)
CANCEL, REFUSED_STREAM, ENHANCE_YOUR_CALM = 0x8, 0x7, 0xb
PATIENCE_S = 30 * float(os.environ.get("HPS_TEST_SLOW") or 1)  # ./dev attack asan, tsan

OK, CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 3, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16

LOOKUP = "/hps.v1.ParameterServer/Lookup"
STREAM = "/hps.v1.ParameterServer/LookupStream"


# ---- protobuf ----------------------------------------------------------------------------------------

def varint(value):
    out = bytearray()
    value &= 2**64 - 1
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field, value):
    return varint(field << 3) + varint(value)


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def keys_of(keys):
    return b"".join(struct.pack("<q", key) for key in keys)


def query(table, keys):
    """A TableQuery, as a field of a LookupRequest. `keys`: numbers or bytes."""
    return text(3, text(1, table) + text(2, keys if isinstance(keys, bytes) else keys_of(keys)))


def lookup(model, *queries, more=b""):
    return text(1, model) + b"".join(queries) + more


def grpc_frame(message, compressed=0, size=None):
    """`size`: the declared size, if it is wrong."""
    return struct.pack(">BI", compressed, len(message) if size is None else size) + message


# ---- HPACK -------------------------------------------------------------------------------------------

def hpack_int(value, bits, first=0):
    top = (1 << bits) - 1
    if value < top:
        return bytes([first | value])
    out = bytearray([first | top])
    value -= top
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def hpack_text(value):
    value = value.encode() if isinstance(value, str) else value
    return hpack_int(len(value), 7) + value


def literal(name, value, indexed=False):
    """A field without Huffman coding. `indexed`: the server stores it in the header table, with index 62."""
    return (b"\x40" if indexed else b"\x00") + hpack_text(name) + hpack_text(value)


def head(path, *fields, method="POST", timeout=None):
    """The header block of a gRPC call. `fields`: additional pairs."""
    block = literal(":method", method) + literal(":scheme", "http") + literal(":path", path)
    block += literal(":authority", "attack") + literal("content-type", "application/grpc") + literal("te", "trailers")
    if timeout is not None:
        block += literal("grpc-timeout", timeout)
    return block + b"".join(literal(name, value) for name, value in fields)


# Huffman's code of RFC 7541 is canonical: symbols of equal length follow each other. Trailers need no others.
_HUFFMAN = {5: "012aceiost", 6: " %-./3456789=A_bdfghlmnpru", 7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz", 8: "&*,;XZ",
            10: "!\"()?", 11: "'+|", 12: "#>", 13: "\0$@[]~", 14: "^}", 15: "<`{"}


def _codes():
    codes, code, last = {}, 0, 5
    for length, symbols in _HUFFMAN.items():
        code <<= length - last
        last = length
        for symbol in symbols:
            codes[length, code] = symbol
            code += 1
    return codes


_CODES = _codes()


def unhuffman(data):
    out, code, length = [], 0, 0
    for byte in data:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            if (length, code) in _CODES:
                out.append(_CODES[length, code])
                code = length = 0
    return "".join(out)


# The entries of the static table that servers send.
_STATIC = {8: (":status", "200"), 31: ("content-type", ""), 54: ("server", "")}


class Fields:
    """Reads the header blocks of one connection."""

    def __init__(self):
        self.table = []

    def _at(self, index):
        if index > 61:
            return self.table[index - 62] if index - 62 < len(self.table) else ("?", "?")
        return _STATIC.get(index, (f"static-{index}", ""))

    @staticmethod
    def _int(block, at, bits):
        top = (1 << bits) - 1
        value = block[at] & top
        at += 1
        if value < top:
            return value, at
        shift = 0
        while True:
            value += (block[at] & 0x7f) << shift
            shift += 7
            at += 1
            if block[at - 1] < 0x80:
                return value, at

    def _text(self, block, at):
        coded = block[at] & 0x80
        size, at = self._int(block, at, 7)
        raw = block[at:at + size]
        return (unhuffman(raw) if coded else raw.decode("latin-1")), at + size

    def read(self, block):
        found, at = {}, 0
        while at < len(block):
            byte = block[at]
            if byte & 0x80:
                index, at = self._int(block, at, 7)
                name, value = self._at(index)
            elif byte & 0xe0 == 0x20:
                _, at = self._int(block, at, 5)
                continue
            else:
                keep = byte & 0x40
                index, at = self._int(block, at, 6 if keep else 4)
                if index:
                    name = self._at(index)[0]
                else:
                    name, at = self._text(block, at)
                value, at = self._text(block, at)
                if keep:
                    self.table.insert(0, (name, value))
            found[name] = value
        return found


# ---- frames ------------------------------------------------------------------------------------------

def frame(kind, stream=0, payload=b"", flags=0, size=None):
    """`size`: the declared size, if it is wrong."""
    size = len(payload) if size is None else size
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def settings(**values):
    names = {"table": TABLE_SIZE, "streams": STREAMS_MAX, "window": WINDOW, "frame": FRAME_MAX}
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", names[name], value) for name, value in values.items()))


def reset(stream, code=CANCEL):
    return frame(RST_STREAM, stream, struct.pack(">I", code))


def window(stream, bytes_more):
    return frame(WINDOW_UPDATE, stream, struct.pack(">I", bytes_more))


OPEN = settings(window=2**31 - 1) + window(0, 2**31 - 1 - 65535)  # replies of any size


def data(stream, payload, end=True, frame_bytes=16384):
    """DATA frames of a message."""
    pieces = [payload[at:at + frame_bytes] for at in range(0, len(payload), frame_bytes)] or [b""]
    last = len(pieces) - 1
    return b"".join(frame(DATA, stream, piece, END_STREAM if end and i == last else 0)
                    for i, piece in enumerate(pieces))


def call(stream, path, message, *fields, timeout=None, compressed=0):
    """A complete unary call."""
    return (frame(HEADERS, stream, head(path, *fields, timeout=timeout), END_HEADERS) +
            data(stream, grpc_frame(message, compressed)))


def repeated(path, n, *fields, body=None, times=1, first=1):
    """n calls on one connection from stream `first` on, in few bytes. The server stores the fields of the first head in
    its table (4 KiB), so the other heads have one byte per field. `body`: the message of each call; None: the calls
    stay open. `times`: how often each head has the last field."""
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "attack"),
             ("content-type", "application/grpc"), ("te", "trailers"), *fields]
    indexed = bytes(0x80 | 61 + len(pairs) - i for i in range(len(pairs))) + b"\xbe" * (times - 1)
    plain = b"".join(literal(name, value, indexed=True) for name, value in pairs) + b"\xbe" * (times - 1)
    return b"".join(frame(HEADERS, stream, plain if stream == first else indexed, END_HEADERS) +
                    (data(stream, body) if body is not None else b"") for stream in range(first, first + 2 * n, 2))


def squeezed(message, level=9):
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(message) + packer.flush()


def gzip_call(stream, squeezed_message):
    return call(stream, LOOKUP, squeezed_message, ("grpc-encoding", "gzip"), compressed=1)


def connect(address, source=None, tls=None, patience_s=PATIENCE_S):
    """A socket to "host:port" or "unix:PATH"; `source`: the address that it comes from; `tls`: an ssl.SSLContext."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(patience_s)
        sock.connect(address[5:])
    else:
        host, port = address.rsplit(":", 1)
        sock = socket.create_connection((host, int(port)), patience_s, (source, 0) if source else None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(sock, server_hostname="localhost") if tls else sock


class Gone(Exception):
    """The server has closed the connection."""


class Client:
    """An HTTP/2 connection. `send` can write any bytes. It also reads frames that arrive, so that neither side blocks
    the other."""

    def __init__(self, address, source=None, tls=None, hello=settings(), preface=PREFACE):
        self.sock = connect(address, source, tls)
        self.buffer = bytearray()
        self.fields = Fields()
        self.trailers = {}  # by stream
        self.resets = {}     # error code, by stream
        self.received = {}   # DATA bytes, by stream
        self.frames = {}  # number of frames, by type
        self.goaway = None   # error code and text
        self.is_open = True
        self.block = {}  # incomplete header blocks
        self.window = 65535  # the initial window of a stream
        self.granted = {0: 65535}  # additional window minus sent bytes, by stream; 0: the connection
        self.owed = b""  # replies to SETTINGS and PING, not yet sent
        self.reads = hello == OPEN  # reads replies of any size: returns read bytes to the window
        self.taken = 0
        with contextlib.suppress(Gone):
            self.send(preface + hello)

    def close(self):
        self.is_open = False
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _lost(self):
        self.close()
        raise Gone

    def send(self, bytes_, reads=True):
        """Writes all bytes. Gone: the server has closed the connection. `reads`: whether to read frames concurrently.
        """
        if not self.is_open:
            raise Gone
        view, self.owed = memoryview(self.owed + bytes_), b""
        self.sock.setblocking(False)
        end = time.monotonic() + PATIENCE_S
        while len(view):
            can_read, can_write, _ = select.select([self.sock] if reads else [], [self.sock], [],
                                                   max(0, end - time.monotonic()))
            if not can_read and not can_write:
                raise AssertionError("the server neither reads nor closes")
            if can_read:
                self.take_in()
            if can_write:
                try:
                    view = view[self.sock.send(view[:1 << 18]):]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    pass
                except OSError:
                    self._rest()
                    self._lost()

    def _rest(self):
        """Reads frames that the server sent before it closed the connection."""
        with contextlib.suppress(Gone, OSError):
            while select.select([self.sock], [], [], 0)[0]:
                self.take_in()

    def take_in(self, most=1 << 16):
        """Reads and parses the available bytes once."""
        try:
            piece = self.sock.recv(most)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._lost()
        if not piece:
            self._lost()
        self.buffer += piece
        at = 0
        while len(self.buffer) - at >= 9:
            size = int.from_bytes(self.buffer[at:at + 3], "big")
            if len(self.buffer) - at - 9 < size:
                break
            kind, flags = self.buffer[at + 3], self.buffer[at + 4]
            stream = int.from_bytes(self.buffer[at + 5:at + 9], "big") & 0x7fffffff
            self._frame(kind, flags, stream, bytes(self.buffer[at + 9:at + 9 + size]))
            at += 9 + size
        del self.buffer[:at]

    def _frame(self, kind, flags, stream, payload):
        self.frames[kind] = self.frames.get(kind, 0) + 1
        if kind == DATA:
            self.received[stream] = self.received.get(stream, 0) + len(payload)
            self.taken += len(payload)
            if self.reads and self.taken > 1 << 28:
                self.owed += window(0, self.taken)
                self.taken = 0
        elif kind in (HEADERS, CONTINUATION):
            self.block[stream] = self.block.get(stream, b"") + payload
            if flags & END_HEADERS:
                self.trailers.setdefault(stream, {}).update(self.fields.read(self.block.pop(stream)))
        elif kind == RST_STREAM:
            self.resets[stream] = struct.unpack(">I", payload)[0]
        elif kind == GOAWAY:
            self.goaway = struct.unpack(">I", payload[4:8])[0], payload[8:].decode("latin-1")
        elif kind == WINDOW_UPDATE:
            self.granted[stream] = self.granted.get(stream, 0) + struct.unpack(">I", payload)[0]
        elif kind in (SETTINGS, PING) and not flags & ACK:
            for at in range(0, len(payload) if kind == SETTINGS else 0, 6):
                name, value = struct.unpack_from(">HI", payload, at)
                self.window = value if name == WINDOW else self.window
            self.owed += frame(kind, payload=payload if kind == PING else b"", flags=ACK)

    def may_send(self, stream):
        """The number of DATA bytes that the server's windows allow."""
        return max(0, min(self.granted[0], self.window + self.granted.get(stream, 0)))

    def upload(self, stream, path, message, *fields, compressed=0, keep=0):
        """A call with a message of any size, sent as fast as the server's windows allow, except for the last `keep`
        bytes."""
        self.send(frame(HEADERS, stream, head(path, *fields), END_HEADERS))
        whole = grpc_frame(message, compressed)
        body = memoryview(whole)[:len(whole) - keep]
        while len(body) and stream not in self.trailers and stream not in self.resets:
            self.read_until(lambda c: stream in c.trailers or stream in c.resets or c.may_send(stream), "a window")
            size = min(self.may_send(stream), len(body))
            for each in (0, stream):
                self.granted[each] = self.granted.get(each, 0) - size
            self.send(data(stream, bytes(body[:size]), end=size == len(body) and not keep))
            body = body[size:]

    def read_until(self, condition, what):
        """Reads frames until `condition(self)` is true. Gone: the connection has ended before."""
        end = time.monotonic() + PATIENCE_S
        while not condition(self):
            if not self.is_open:
                raise Gone
            self.sock.setblocking(False)
            pending = getattr(self.sock, "pending", lambda: 0)()
            left = end - time.monotonic()
            if not pending and not select.select([self.sock], [], [], max(0, left))[0]:
                raise AssertionError(f"{what}: not within {PATIENCE_S} s")
            self.take_in()
            if self.owed:
                self.send(b"")

    def code(self, stream):
        """Waits for the end of a call, and returns its gRPC code; None: the stream was reset."""
        self.read_until(lambda c: "grpc-status" in c.trailers.get(stream, {}) or stream in c.resets, f"call {stream}")
        status = self.trailers.get(stream, {}).get("grpc-status")
        return None if status is None else int(status)

    def message(self, stream):
        return self.trailers.get(stream, {}).get("grpc-message", "")

    def ended(self):
        """Whether the server closes the connection; fails after PATIENCE_S."""
        try:
            self.read_until(lambda _: False, "the server was to close the connection")
        except Gone:
            return True
        return False

    def answers_ping(self):
        """Whether the connection is open: a PING is answered."""
        before = self.frames.get(PING, 0)
        try:
            self.send(frame(PING, payload=b"are you?"))
            self.read_until(lambda c: c.frames.get(PING, 0) > before, "an answer to a PING")
        except Gone:
            return False
        return True
