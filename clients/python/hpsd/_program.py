# SPDX-License-Identifier: Apache-2.0
"""Layers as text, for programs of torch and models of Keras, which other processes can load. The text has the
addresses, model, version, table and options, and never a token. A program uses the connections and the token of a
client of this process that was made with the same arguments. Without such a client it makes its own connections, with
the token of set_token, and keeps them until the process ends. Thread-safe."""
from __future__ import annotations

import functools
import json
import os
import threading
import weakref
from typing import Any, Dict, Tuple

from ._address import PEM, TLS, Token, as_targets, as_tls
from ._client import Client, Transport, connect
from .errors import InvalidArgument

KINDS: Dict[str, Any] = {}  # classes of layers, by name
_token: Token = None
_lock = threading.Lock()
_transports: "weakref.WeakValueDictionary[str, Transport]" = weakref.WeakValueDictionary()  # by description
_connected: Dict[str, Client] = {}  # clients that programs made


def set_token(token: Token) -> None:
    """Set the bearer token, or a function that returns one, for connections that loaded programs make from now on. Programs
    do not contain tokens."""
    global _token
    _token = token


def _current_token() -> Any:
    return _token() if callable(_token) else _token


def _path(pem: PEM) -> Any:
    """The absolute path of `pem`; None if not set; False for certificates as bytes, which the text leaves out."""
    return False if isinstance(pem, bytes) else None if pem is None else os.path.abspath(os.fspath(pem))


def _connection(client: Client) -> str:
    """The arguments of `connect` without the token, and a number that tells clients with equal arguments apart."""
    addresses, model, given, _, timeout, hedge_ms, plaintext = client._how
    tls = as_tls(given)
    how = {"addresses": as_targets(addresses), "model": model, "timeout": timeout, "hedge_ms": hedge_ms, "plaintext": plaintext,
           "tls": tls and {"ca": _path(tls.ca), "cert": _path(tls.cert), "key": _path(tls.key), "name": tls.name}}
    number = 0
    with _lock:
        while True:
            text = json.dumps({**how, "number": number}, default=float)
            if _transports.setdefault(text, client._transport) is client._transport:
                return text
            number += 1


def write(client: Client, kind: str, arguments: Dict[str, Any], options: Dict[str, Any]) -> str:
    """The text of a layer. A pinned client without a version first gets one from the server."""
    if client._pins and client._version == 0:
        client.lookup({})
    return json.dumps({"connection": _connection(client), "version": client._version, "kind": kind, "arguments": arguments,
                       "options": options}, default=lambda number: number.item())


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Tuple[Any, str, Dict[str, Any], int]:
    """The layer, its connection as text and as a dictionary, and its version."""
    of = json.loads(text)
    layer = KINDS[of["kind"]](None, **of["arguments"], **of["options"])
    return layer, of["connection"], json.loads(of["connection"]), of["version"]


def read(text: str) -> Any:
    """The layer that `write` was called for, without a client."""
    return _parsed(text)[0]


def client_of(text: str) -> Client:
    """The client that `write` was called with, or an equal one."""
    _, connection, how, version = _parsed(text)
    transport = _transports.get(connection)
    if transport is None:
        transport = _connect(connection, how)
    return Client.of_version(transport, how["model"], how["timeout"], how["hedge_ms"], version)


def _connect(connection: str, how: Dict[str, Any]) -> Transport:
    tls = how["tls"]
    if tls is not None and False in tls.values():
        raise InvalidArgument("tls: the program was made with certificates as bytes, which it does not contain; make it with "
                              "paths of files")
    with _lock:
        if connection not in _connected:
            _connected[connection] = connect(how["addresses"], how["model"], tls=tls and TLS(**tls),
                                             token=None if _token is None else _current_token,
                                             timeout=how["timeout"], hedge_ms=how["hedge_ms"], plaintext=how["plaintext"])
        return _transports.setdefault(connection, _connected[connection]._transport)
