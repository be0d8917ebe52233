# SPDX-License-Identifier: Apache-2.0
"""Requests of HTTP/1.1 by hand, for the listeners of KServe: nothing here refuses to write what is wrong."""
import contextlib
import re
import ssl

CLOSED = (ConnectionError, ssl.SSLError)  # how a server that ends the connection is met


def request(body=b"", headers=(), path="/v2/models/m/infer", method="POST", length=True):
    """Bytes of a request; nothing is checked."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"Content-Length: {len(body)}"] if length else []
    lines += [f"{name}: {value}" for name, value in dict(headers).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def get(path, headers=()):
    return request(headers=headers, path=path, method="GET", length=False)


def answers(sock, n=1, sends=b""):
    """[(status, body)] of up to n answers; fewer if the server closes."""
    with contextlib.suppress(*CLOSED):
        sock.sendall(sends)
    got, found = b"", []
    with contextlib.suppress(*CLOSED):
        while len(found) < n:
            head, end, rest = got.partition(b"\r\n\r\n")
            length = int((re.findall(rb"(?i)content-length: (\d+)", head) or [b"0"])[0])
            if end and len(rest) >= length:
                found.append((int(head.split()[1]), rest[:length]))
                got = rest[length:]
                continue
            piece = sock.recv(65536)
            if not piece:
                break
            got += piece
    return found


def rest_of(sock):
    """How many bytes still come until the server closes."""
    n = 0
    with contextlib.suppress(*CLOSED):
        while piece := sock.recv(1 << 20):
            n += len(piece)
    return n
