# SPDX-License-Identifier: Apache-2.0
"""The client of hpsd for asyncio: `client = hpsd.aio.connect("127.0.0.1:8601")`, `await client.lookup("items", keys)`."""
from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Awaitable, Callable, Dict, List, Literal, Mapping, Optional, Set, Type, TypeVar, Union, overload

import grpc
import grpc.aio
import numpy.typing as npt

from . import _address, _messages, _model, _wait
from ._address import Addresses, Token
from ._flat import Flat, FlatAnswer
from ._lookup import Answer, Defaults, Dims, Keys, Lookup, Options, Pooling, Reading, Seconds, T, Tables, Widths, Word
from ._model import Model
from ._servers import Attempts, Server, Servers
from ._wait import Records
from .errors import SECONDS_MIN, NotFound, error

Result = TypeVar("Result")


class Transport:
    """Like the Transport of hpsd. The connections belong to the event loop that first uses them."""

    def __init__(self, targets: List[str], tls: Optional[_address.TLS], token: Token) -> None:
        self.servers = Servers(targets, lambda target: _address.open_channel(grpc.aio, target, tls))
        self._token = token
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    async def close(self) -> None:
        for channel in self.servers.take_channels():
            await channel.close()

    async def retried(self, timeout_s: float, attempt: Callable[[Server, Attempts], Awaitable[Result]]) -> Result:
        attempts = Attempts(self.servers, timeout_s)
        while True:
            server = attempts.next()
            try:
                result = await attempt(server, attempts)
            except grpc.RpcError as failure:
                code, details = failure.code(), failure.details() or ""
                if not attempts.may_retry(server, code, details):
                    raise attempts.verdict(server, code, details) from failure
            else:
                self.servers.worked(server)
                return result
            await asyncio.sleep(attempts.pause_s())

    def _call(self, kind: str, path: str, request: bytes, server: Server, how: Dict[str, Any]) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.servers.take_channels()  # another event loop cannot use them
            self._loop = loop
        return self.servers.method(server, kind, path)(request, **how, metadata=_address.metadata(self._token))

    async def unary(self, path: str, request: bytes, timeout_s: float, hedge_s: Optional[float] = None) -> bytes:
        async def once(server: Server, attempts: Attempts) -> bytes:
            if hedge_s is not None:
                return await self._race(path, request, server, attempts, hedge_s)
            reply: bytes = await self._call("unary_unary", path, request, server, attempts.how(server))
            return reply

        return await self.retried(timeout_s, once)

    async def _race(self, path: str, request: bytes, server: Server, attempts: Attempts, hedge_s: float) -> bytes:
        """The first reply: of `server`, or of another one that gets the request after hedge_s seconds."""
        racing: Dict["asyncio.Task[bytes]", Server] = {}

        async def ask(which: Server) -> bytes:
            reply: bytes = await self._call("unary_unary", path, request, which, attempts.how(which))
            return reply

        try:
            racing[asyncio.ensure_future(ask(server))] = server
            done: Set["asyncio.Task[bytes]"] = (await asyncio.wait(racing, timeout=hedge_s))[0]
            if not done:
                other = self.servers.pick((server,))
                racing[asyncio.ensure_future(ask(other))] = other
            while True:
                done = done or (await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED))[0]
                task = done.pop()
                which = racing.pop(task)
                if task.exception() is None:
                    self.servers.worked(which)
                elif racing or which is not server:  # else the caller counts the failure
                    self.servers.failed(which)
                if task.exception() is None or not racing:
                    return task.result()
        finally:
            for task in racing:
                task.cancel()

    async def at(self, server: Server, path: str, request: bytes, timeout_s: float) -> bytes:
        """The reply of this server only. Waits for a connection to it."""
        try:
            reply: bytes = await self._call("unary_unary", path, request, server,
                                            {"timeout": timeout_s, "wait_for_ready": True})
        except grpc.RpcError as failure:
            raise error(failure.code(), f"{server.target}: {failure.details()}") from failure
        return reply

    async def stream(self, path: str, request: bytes, timeout_s: float, begin: Callable[[], Reading]) -> Reading:
        """Call a streaming method. Each attempt takes its messages with a new Reading from `begin`."""
        async def once(server: Server, attempts: Attempts) -> Reading:
            reading = begin()
            async for data in self._call("unary_stream", path, request, server, attempts.how(server)):
                reading.add(data)
            return reading

        return await self.retried(timeout_s, once)


class Client:
    """Lookups in one model, like hpsd.Client. For one event loop."""

    def __init__(self, transport: Transport, defaults: Defaults, owns: bool = True) -> None:
        self._transport = transport
        self._defaults = defaults
        self._owns = owns
        self._widths = Widths()
        self._version = 0
        self._pins = False

    @overload  # type: ignore[misc]  # tensors first: they also match the next overload
    async def lookup(self, tables: str, keys: Keys[T], *, pooling: Pooling = ..., concat: bool = ...,
                     output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                     unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
                     full: Literal[False] = ...) -> T: ...

    @overload
    async def lookup(self, tables: str, keys: npt.ArrayLike, *, pooling: Pooling = ..., concat: bool = ...,
                     output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                     unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
                     full: Literal[False] = ...) -> npt.NDArray[Any]: ...

    @overload
    async def lookup(self, tables: Mapping[str, Any], keys: None = ..., *, pooling: Pooling = ..., concat: Literal[False] = ...,
                     output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                     unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
                     full: Literal[False] = ...) -> Dict[str, Any]: ...

    @overload
    async def lookup(self, tables: Tables, keys: Any = ..., *, pooling: Pooling = ..., concat: bool = ...,
                     output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                     unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
                     full: Literal[True]) -> Answer: ...

    @overload
    async def lookup(self, tables: Tables, keys: Any = ..., *, pooling: Pooling = ..., concat: bool = ...,
                     output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                     unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
                     full: bool = ...) -> Any: ...

    async def lookup(self, tables: Tables, keys: Any = None, *, pooling: Pooling = None, concat: bool = False,
                     output: Any = None, miss: Word = None, max_wait: Seconds = None,
                     unknown: Word = None, max_staleness: Seconds = None,
                     consistency: Word = None, timeout: Seconds = None, full: bool = False) -> Any:
        """Like hpsd.Client.lookup."""
        lookup = Lookup(tables, keys, pooling, concat)
        options = Options(miss, max_wait, unknown, output, max_staleness, consistency)
        timeout_s = self._defaults.timeout_of(timeout)
        return lookup.result(await self._ask(lookup, options, timeout_s), full)

    async def _ask(self, lookup: Lookup, options: Options, timeout_s: float) -> Reading:
        request = lookup.request(self._defaults.model, self._version, options)
        path = lookup.path(self._widths, likes_pieces=False)
        if path == _messages.LOOKUP_STREAM:
            reading = await self._transport.stream(path, request, timeout_s, lookup.begin)
        else:
            reading = lookup.begin()
            reading.add(await self._transport.unary(path, request, timeout_s, self._defaults.hedge_s))
        head = reading.end()
        self._widths.learn(reading)
        if self._pins and self._version == 0:
            self._version = head.version
        return reading

    @overload  # type: ignore[misc]
    async def lookup_flat(self, keys: T, counts: Any, *, output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                    timeout: Seconds = ..., full: Literal[False] = ...) -> T: ...

    @overload
    async def lookup_flat(self, keys: npt.ArrayLike, counts: Any, *, output: Any = ..., miss: Word = ...,
                    max_wait: Seconds = ..., timeout: Seconds = ..., full: Literal[False] = ...) -> npt.NDArray[Any]: ...

    @overload
    async def lookup_flat(self, keys: Any, counts: Any, *, output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                    timeout: Seconds = ..., full: Literal[True]) -> FlatAnswer: ...

    async def lookup_flat(self, keys: Any, counts: Any, *, output: Any = None, miss: Word = None, max_wait: Seconds = None,
                    timeout: Seconds = None, full: bool = False) -> Any:
        """Like hpsd.Client.lookup_flat."""
        flat = Flat(keys, counts, miss, max_wait, output, full)
        timeout_s = self._defaults.timeout_of(timeout)
        end = time.monotonic() + timeout_s
        request = flat.request(self._defaults.model, self._version)
        dims = None
        while dims is None:
            version = flat.read(await self._transport.unary(_messages.INFER, request, max(end - time.monotonic(), SECONDS_MIN),
                                                       self._defaults.hedge_s))
            dims = self._widths.of_version(version, len(flat.counts))
            if dims is None or not flat.fits(dims):  # a new version, or another one with the same number
                dims = await self._dims_of(version, flat.dims_lookup(), end)
        if self._pins and self._version == 0:
            self._version = version
        return flat.result(version, dims)

    async def _dims_of(self, version: int, lookup: Lookup, end: float) -> Optional[Dims]:
        """The dims of the tables of a version. Skips servers that do not have the version. None: no server has it, and
        this client is not pinned to it."""
        request = lookup.request(self._defaults.model, version, Options())
        n_left = 2 * len(self._transport.servers)
        while True:
            n_left -= 1
            reading = lookup.begin()
            try:
                reading.add(await self._transport.unary(_messages.LOOKUP, request, max(end - time.monotonic(), SECONDS_MIN)))
            except NotFound:
                if n_left == 0 and self._version != 0:
                    raise
                if n_left == 0:
                    return None
            else:
                reading.end()
                return self._widths.learn_version(version, reading.dims)

    async def wait_for_updates(self, records: Optional[Records] = None, *, timeout: Optional[float] = None) -> None:
        """Like hpsd.Client.wait_for_updates."""
        request = _wait.request(self._defaults.model, self._version, records)
        end = time.monotonic() + self._defaults.timeout_of(timeout)
        for server in self._transport.servers:
            left_s = max(end - time.monotonic(), SECONDS_MIN)
            data = await self._transport.at(server, _messages.WAIT_FOR_UPDATES, _wait.within(request, left_s), left_s)
            _wait.read(server.target, data)

    async def model(self, timeout: Optional[float] = None) -> Model:
        """Like hpsd.Client.model."""
        request = _model.request(self._defaults.model, self._version)
        timeout_s = self._defaults.timeout_of(timeout)
        return _model.read(await self._transport.unary(_messages.GET_MODEL, request, timeout_s), self._version)

    def version(self, number: int = 0) -> "Client":
        """Like hpsd.Client.version."""
        pinned = Client(self._transport, self._defaults, owns=False)
        pinned._version, pinned._pins = _model.version_number(number), True
        return pinned

    async def close(self) -> None:
        """Close the connections. No effect on a pinned client."""
        if self._owns:
            await self._transport.close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await self.close()


def connect(addresses: Addresses, model: str = "default", *, tls: Any = None, token: Token = None,
            timeout: float = 5.0, hedge_ms: Optional[float] = None, plaintext: bool = False) -> Client:
    """Like hpsd.connect."""
    targets = _address.as_targets(addresses)
    _address.check_token(targets, _address.as_tls(tls), token, plaintext)
    transport = Transport(targets, _address.as_tls(tls), token)
    return Client(transport, Defaults(model, timeout, hedge_ms))
