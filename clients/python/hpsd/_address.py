# SPDX-License-Identifier: Apache-2.0
"""Addresses of servers, TLS, tokens, and options of gRPC channels."""
from __future__ import annotations

import ipaddress
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

import grpc

from .errors import InvalidArgument

Addresses = Union[str, Sequence[str]]
Token = Union[None, str, Callable[[], Optional[str]]]
PEM = Union[None, bytes, str, "os.PathLike[str]"]

DEFAULT_PORT = 8601
UNIX_PATH_BYTES_MAX = 107
CONNECT_MS_MAX = 1000  # timeout of one connection attempt
RECONNECT_MS_MIN, RECONNECT_MS_MAX = 100, 1000

_OPTIONS: List[Tuple[str, Any]] = [
    ("grpc.max_receive_message_length", 2**31 - 1),  # the default of 4 MB is too small for rows
    ("grpc.max_send_message_length", -1),
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),  # for names with several addresses
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.use_local_subchannel_pool", 1),  # a connection belongs to one client in one process
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.primary_user_agent", "hpsd-python"),
    ("SingleThreadedUnaryStream", 1),  # the reader of a stream waits for it, without another thread
]


@dataclass(frozen=True)
class TLS:
    """Certificates, each as the path of a PEM file or as its bytes.

    ca: the trusted authorities (default: the authorities of the system).
    cert, key: the certificate of this client and its private key.
    name: the name in the certificate of the server, if it differs from the host in the address.
    """

    ca: PEM = None
    cert: PEM = None
    key: PEM = field(default=None, repr=False)
    name: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(_pem(self.ca), _pem(self.key), _pem(self.cert))


def _pem(given: PEM) -> Optional[bytes]:
    if given is None or isinstance(given, bytes):
        return given
    with open(given, "rb") as file:
        return file.read()


def as_tls(given: Any) -> Optional[TLS]:
    """The TLS options that `given` means: None or False for no TLS, True for the authorities of the system, the path
    of a CA file, or a TLS."""
    if given is None or given is False:
        return None
    if given is True:
        return TLS()
    return given if isinstance(given, TLS) else TLS(ca=given)


_PARTS = re.compile(r"(?P<host>\[[^\[\]\s]*\]|[^\x00-\x20\x7f,:/?#@\[\]]+)(:(?P<port>[0-9]{1,5}))?", re.ASCII)


def _is_host(host: str) -> bool:
    """False for an invalid IP address. The resolver checks any other name."""
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1].partition("%")[0])
        elif re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host, re.ASCII):
            ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def as_target(address: str) -> str:
    """The gRPC target of an address: "unix:PATH", "HOST:PORT", "HOST", or one with a scheme of gRPC. Any other address
    raises InvalidArgument, as gRPC would try to resolve it until the deadline."""
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
                          f"unix:PATH with a path of at most {UNIX_PATH_BYTES_MAX} bytes, or a list of these")


def as_targets(addresses: Addresses) -> List[str]:
    several = isinstance(addresses, Iterable) and not isinstance(addresses, (str, bytes))
    given: List[Any] = list(addresses) if several else [addresses]
    if not given:
        raise InvalidArgument("address: got none, expected HOST:PORT or unix:PATH, or a list of them")
    return [as_target(address) for address in given]


def _is_local(target: str) -> bool:
    """Whether calls to the target stay on this host: it is a Unix socket, or has only loopback addresses."""
    def is_loopback(one: str) -> bool:
        parts = _PARTS.fullmatch(one)
        host = parts["host"].strip("[]").lower() if parts else ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    if target.startswith("unix:"):
        return True
    addresses = re.sub("^(dns|ipv4|ipv6):", "", target).rpartition("/")[2]
    return all(is_loopback(one) for one in addresses.split(","))


def check_token(targets: List[str], tls: Optional[TLS], token: Token, plaintext: bool) -> None:
    """Raise InvalidArgument if the token would leave this host in clear text."""
    far = [target for target in targets if not _is_local(target)]
    if token is not None and tls is None and not plaintext and far:
        raise InvalidArgument(f"token: got an address on another host without TLS, {far[0]!r}, so others on the network could "
                              "read the token; expected tls=, or plaintext=True")


def open_channel(module: Any, target: str, tls: Optional[TLS]) -> Any:
    """A channel of `module`: grpc or grpc.aio. It connects on first use."""
    options = list(_OPTIONS)
    if tls is None:
        if _is_local(target):
            options.append(("grpc.enable_http_proxy", 0))  # a proxy of another host would get the token
        return module.insecure_channel(target, options=options)
    if tls.name is not None:
        options.append(("grpc.ssl_target_name_override", tls.name))
    return module.secure_channel(target, tls.credentials(), options=options)


def metadata(token: Token) -> Optional[Tuple[Tuple[str, str], ...]]:
    word = token() if callable(token) else token
    return None if word is None else (("authorization", f"Bearer {word}"),)
