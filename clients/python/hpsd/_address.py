# SPDX-License-Identifier: Apache-2.0
"""Where the servers are and what they are shown: addresses, TLS, tokens, options of channels."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import grpc

from .errors import InvalidArgument

Addresses = Union[str, Sequence[str]]
Token = Union[None, str, Callable[[], Optional[str]]]
PEM = Union[None, bytes, str, "os.PathLike[str]"]

DEFAULT_PORT = 8601
CONNECT_MS_MAX = 1000  # of one attempt
RECONNECT_MS_MIN, RECONNECT_MS_MAX = 100, 1000

_OPTIONS: List[Tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),  # 4 MB are few for rows; the server has a limit of its own
    ("grpc.max_send_message_length", -1),
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),  # of a name with many addresses
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.use_local_subchannel_pool", 1),  # a connection is of one client, and of one process
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.primary_user_agent", "hpsd-python"),
    ("SingleThreadedUnaryStream", 1),  # whoever reads a stream waits for it, with no thread beside
]


@dataclass(frozen=True)
class TLS:
    """Certificates, as paths of PEM files or as their bytes. `ca`: whom to trust, without it the system's; `cert` and
    `key`: this client's own; `name`: whose certificate the server shows, where that is not the host of its address."""

    ca: PEM = None
    cert: PEM = None
    key: PEM = None
    name: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(_pem(self.ca), _pem(self.key), _pem(self.cert))


def _pem(given: PEM) -> Optional[bytes]:
    if given is None or isinstance(given, bytes):
        return given
    with open(given, "rb") as file:
        return file.read()


def as_tls(given: Any) -> Optional[TLS]:
    """None, True (the system's authorities), the path of a CA's file, or a TLS."""
    if given is None or given is False:
        return None
    if given is True:
        return TLS()
    return given if isinstance(given, TLS) else TLS(ca=given)


def as_target(address: str) -> str:
    """What gRPC calls an address: "unix:PATH", "HOST:PORT", "HOST", or one that has a scheme already."""
    if not isinstance(address, str) or not address:
        raise InvalidArgument(f"address: got {address!r}, expected HOST:PORT or unix:PATH")
    if address.startswith("unix:"):
        return "unix:" + os.path.abspath(address[len("unix:"):])
    if address.startswith(("dns:", "ipv4:", "ipv6:")):
        return address
    host, colon, port = address.rpartition(":")
    if address.endswith("]") or not colon:
        host, port = address, str(DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidArgument(f"address: got {address!r}, expected HOST:PORT with a port from 1 to 65535")
    return f"{host}:{port}"


def as_targets(addresses: Addresses) -> List[str]:
    given = [addresses] if isinstance(addresses, str) else list(addresses)
    if not given:
        raise InvalidArgument("address: got none, expected HOST:PORT or unix:PATH, or a list of them")
    return [as_target(address) for address in given]


def open_channel(module: Any, target: str, tls: Optional[TLS]) -> Any:
    """A channel of grpc, or of grpc.aio. It connects when it is first used."""
    options = list(_OPTIONS)
    if tls is None:
        return module.insecure_channel(target, options=options)
    if tls.name is not None:
        options.append(("grpc.ssl_target_name_override", tls.name))
    return module.secure_channel(target, tls.credentials(), options=options)


def metadata(token: Token) -> Optional[Tuple[Tuple[str, str], ...]]:
    word = token() if callable(token) else token
    return None if word is None else (("authorization", f"Bearer {word}"),)
