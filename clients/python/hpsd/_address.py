# SPDX-License-Identifier: Apache-2.0
"""Where the servers are and what they are shown: addresses, TLS, tokens, options of channels."""
from __future__ import annotations

import ipaddress
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

import grpc

from .errors import InvalidArgument

Addresses = Union[str, Sequence[str]]
Token = Union[None, str, Callable[[], Optional[str]]]
PEM = Union[None, bytes, str, "os.PathLike[str]"]

DEFAULT_PORT = 8601
UNIX_PATH_BYTES_MAX = 107
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


_PARTS = re.compile(r"(?P<host>\[[^\[\]\s]*\]|[^\x00-\x20\x7f,:/?#@\[\]]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)


def _is_host(host: str) -> bool:
    """False: an IP address that is not valid. Any other name is for the resolver."""
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1].partition("%")[0])
        elif re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host, re.ASCII):
            ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def as_target(address: str) -> str:
    """What gRPC calls an address: "unix:PATH", "HOST:PORT", "HOST", or one with a scheme of gRPC's own. Any
    other raises InvalidArgument: gRPC would try to resolve it until the deadline."""
    if isinstance(address, str):
        if address.startswith("unix:"):
            path = os.path.abspath(address[len("unix:"):])
            if address != "unix:" and len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
                return "unix:" + path
        elif address.startswith(("dns:", "ipv4:", "ipv6:")):
            return address
        else:
            parts = _PARTS.fullmatch(address)
            port = int(parts["port"] or DEFAULT_PORT) if parts else 0
            if parts and 0 < port < 65536 and _is_host(parts["host"]):
                return f"{parts['host']}:{port}"
    raise InvalidArgument(f"address: got {address!r}, expected HOST:PORT with a port from 1 to 65535, HOST, [IPV6]:PORT, or "
                          f"unix:PATH with a path of at most {UNIX_PATH_BYTES_MAX} bytes; of several servers a list of these")


def as_targets(addresses: Addresses) -> List[str]:
    several = isinstance(addresses, Iterable) and not isinstance(addresses, (str, bytes))
    given: List[Any] = list(addresses) if several else [addresses]
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
