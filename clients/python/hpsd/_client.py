# SPDX-License-Identifier: Apache-2.0
"""hpsd.connect and hpsd.Client."""
from __future__ import annotations

import queue
import time
from types import TracebackType
from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Tuple, Type, TypeVar, Union, overload

import grpc
import numpy.typing as npt

from . import _address, _messages, _model, _wait
from ._address import Addresses, Token
from ._flat import Flat, FlatAnswer
from ._lookup import Answer, Defaults, Dims, Keys, Lookup, Options, Pooling, Reading, Repeated, Seconds, T, Tables, Widths, Word
from ._model import Model
from ._servers import Attempts, Server, Servers
from ._wait import Records
from .errors import SECONDS_MIN, InvalidArgument, NotFound, error

Result = TypeVar("Result")


def _watch(channel: Any, connected: Callable[[], None]) -> Callable[[], None]:
    """The `watch` of Servers: runs in a thread of grpc until the channel has a connection."""
    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            channel.unsubscribe(changed)
            connected()

    channel.subscribe(changed, try_to_connect=True)
    return lambda: channel.unsubscribe(changed)


class Transport:
    """Calls with a deadline. A call that reaches no server is retried on another one, or later. Thread-safe."""

    def __init__(self, targets: List[str], tls: Optional[_address.TLS], token: Token) -> None:
        self.servers = Servers(targets, lambda target: _address.open_channel(grpc, target, tls), _watch)
        self._token = token
        self.widths = Widths()

    def close(self) -> None:
        for channel in self.servers.take_channels():
            channel.close()

    def retried(self, timeout_s: float, attempt: Callable[[Server, Attempts], Result]) -> Result:
        """Call `attempt`, which raises grpc.RpcError, until it succeeds. Returns its result."""
        attempts = Attempts(self.servers, timeout_s)
        while True:
            server = attempts.next()
            try:
                result = attempt(server, attempts)
            except grpc.RpcError as failure:
                code, details = failure.code(), failure.details() or ""
                if not attempts.may_retry(server, code, details):
                    raise attempts.verdict(server, code, details) from failure
            else:
                self.servers.worked(server)
                return result
            time.sleep(attempts.pause_s())

    def _how(self, server: Server, attempts: Attempts) -> Dict[str, Any]:
        return {**attempts.how(server), "metadata": _address.metadata(self._token)}

    def unary(self, path: str, request: bytes, timeout_s: float, hedge_s: Optional[float] = None) -> bytes:
        def once(server: Server, attempts: Attempts) -> bytes:
            if hedge_s is not None:
                return self._race(path, request, server, attempts, hedge_s)
            reply: bytes = self.servers.method(server, "unary_unary", path)(request, **self._how(server, attempts))
            return reply

        return self.retried(timeout_s, once)

    def _race(self, path: str, request: bytes, server: Server, attempts: Attempts, hedge_s: Optional[float]) -> bytes:
        """The first reply: of `server`, or of another one that gets the request after hedge_s seconds."""
        ended: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        racing: Dict[Any, Server] = {}

        def start(which: Server) -> None:
            method: Any = self.servers.method(which, "unary_unary", path)
            call = method.future(request, **self._how(which, attempts))
            racing[call] = which
            call.add_done_callback(ended.put)

        try:
            start(server)
            while True:
                try:
                    call = ended.get(timeout=hedge_s)
                except queue.Empty:
                    hedge_s = None
                    start(self.servers.pick((server,)))
                    continue
                which = racing.pop(call)
                if call.code() is grpc.StatusCode.OK:
                    self.servers.worked(which)
                    return call.result()
                if racing or which is not server:  # else the caller counts the failure
                    self.servers.failed(which)
                if not racing:
                    raise call.exception()
        finally:
            for call in racing:
                call.cancel()

    def at(self, server: Server, path: str, request: bytes, timeout_s: float) -> bytes:
        """The reply of this server only. Waits for a connection to it."""
        try:
            reply: bytes = self.servers.method(server, "unary_unary", path)(
                request, timeout=timeout_s, wait_for_ready=True, metadata=_address.metadata(self._token))
        except grpc.RpcError as failure:
            raise error(failure.code(), f"{server.target}: {failure.details()}") from failure
        return reply

    def stream(self, path: str, request: bytes, timeout_s: float, begin: Callable[[], Reading]) -> Reading:
        """Call a streaming method. Each attempt takes its messages with a new Reading from `begin`."""
        def once(server: Server, attempts: Attempts) -> Reading:
            reading = begin()
            for data in self.servers.method(server, "unary_stream", path)(request, **self._how(server, attempts)):
                reading.add(data)
            return reading

        return self.retried(timeout_s, once)


class Client:
    """Lookups in one model, in its active version or in a pinned one. Thread-safe."""

    def __init__(self, transport: Transport, defaults: Defaults, how: Tuple[Any, ...]) -> None:
        self._transport = transport
        self._defaults = defaults
        self._how = how  # the arguments of connect
        self._owns = True  # the connections; a pinned client shares the connections of another client
        self._widths = transport.widths
        self._version = 0
        self._pins = False

    @classmethod
    def of_version(cls, transport: Transport, model: str, timeout: float, hedge_ms: Optional[float],
                   version: int) -> "Client":
        """A client that shares connections. version 0: the active version of each call."""
        made = cls(transport, Defaults(model, timeout, hedge_ms), ())
        made._owns, made._version, made._pins = False, version, version != 0
        return made

    @property
    def timeout(self) -> float:
        """Default timeout of a call, in seconds."""
        return self._defaults.timeout

    # ---- lookups ----

    @overload  # type: ignore[misc]  # tensors first: they also match the next overload
    def lookup(self, tables: str, keys: Keys[T], *, pooling: Pooling = ..., concat: bool = ...,
               output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
               unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
               full: Literal[False] = ...) -> T: ...

    @overload
    def lookup(self, tables: str, keys: npt.ArrayLike, *, pooling: Pooling = ..., concat: bool = ...,
               output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
               unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
               full: Literal[False] = ...) -> npt.NDArray[Any]: ...

    @overload
    def lookup(self, tables: Mapping[str, Any], keys: None = ..., *, pooling: Pooling = ..., concat: Literal[False] = ...,
               output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
               unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
               full: Literal[False] = ...) -> Dict[str, Any]: ...

    @overload
    def lookup(self, tables: Tables, keys: Any = ..., *, pooling: Pooling = ..., concat: bool = ...,
               output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
               unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
               full: Literal[True]) -> Answer: ...

    @overload
    def lookup(self, tables: Tables, keys: Any = ..., *, pooling: Pooling = ..., concat: bool = ...,
               output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
               unknown: Word = ..., max_staleness: Seconds = ..., consistency: Word = ..., timeout: Seconds = ...,
               full: bool = ...) -> Any: ...

    def lookup(self, tables: Tables, keys: Any = None, *, pooling: Pooling = None, concat: bool = False,
               output: Any = None, miss: Word = None, max_wait: Seconds = None,
               unknown: Word = None, max_staleness: Seconds = None,
               consistency: Word = None, timeout: Seconds = None, full: bool = False) -> Any:
        """Look up rows of keys.

        lookup("items", keys) takes keys of any integer dtype and any shape, and returns an array of shape + (dim,).
        lookup({"items": keys, "users": keys}) looks up several tables at once and returns {table: rows}; pairs
        [("items", keys), ("items", others)] return a list.

        pooling: "sum", "mean", "sqrtn", "mean_by_count", or {table: pooling}. Keys may then be (keys, offsets) or
            (keys, offsets, weights): bag b has keys[offsets[b]:offsets[b + 1]]. Without offsets the last dimension of
            the keys is a bag.
        concat: return one matrix, whose rows hold the values of all tables one after the other.
        output: "fp32" (default), "fp16", "bf16", or the corresponding dtype. bf16 in numpy is uint16.
        miss: "exact", "wait" (at most max_wait seconds), "memory_only", "threshold" (default: the policy of the model).
        unknown: "default_row", "zero", "error", for keys that no tier has (default: the policy of the model).
        max_staleness: seconds; a server that may lack older updates refuses, and the client tries another one.
        consistency: "unit": the rows of all tables include the same updates.
        timeout: seconds for all attempts together.
        full: return an Answer: rows, status of each key, version, label and update sequence.
        """
        lookup = Lookup(tables, keys, pooling, concat)
        options = Options(miss, max_wait, unknown, output, max_staleness, consistency)
        reading = self.read(lookup, lookup.request(self._defaults.model, self._version, options), timeout)
        return lookup.result(reading, full)

    def repeated(self, tables: Tables, pooling: Pooling, options: Options, places: List[slice], n_bytes: int) -> Repeated:
        return Repeated(tables, pooling, self._defaults.model, self._version, options, places, n_bytes)

    def read(self, lookup: Lookup, request: bytes, timeout: Seconds) -> Reading:
        """The reply to the request of a lookup."""
        hedge_s, timeout_s = self._defaults.hedge_s, self._defaults.timeout_of(timeout)
        path = lookup.path(self._widths, likes_pieces=hedge_s is None)
        if path == _messages.LOOKUP_STREAM:
            reading = self._transport.stream(path, request, timeout_s, lookup.begin)
        else:
            reading = lookup.begin()
            reading.add(self._transport.unary(path, request, timeout_s, hedge_s))
        head = reading.end()
        self._widths.learn(reading)
        if self._pins and self._version == 0:
            self._version = head.version
        return reading

    # ---- flat ----

    @overload  # type: ignore[misc]
    def lookup_flat(self, keys: T, counts: Any, *, output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                    timeout: Seconds = ..., full: Literal[False] = ...) -> T: ...

    @overload
    def lookup_flat(self, keys: npt.ArrayLike, counts: Any, *, output: Any = ..., miss: Word = ...,
                    max_wait: Seconds = ..., timeout: Seconds = ..., full: Literal[False] = ...) -> npt.NDArray[Any]: ...

    @overload
    def lookup_flat(self, keys: Any, counts: Any, *, output: Any = ..., miss: Word = ..., max_wait: Seconds = ...,
                    timeout: Seconds = ..., full: Literal[True]) -> FlatAnswer: ...

    def lookup_flat(self, keys: Any, counts: Any, *, output: Any = None, miss: Word = None, max_wait: Seconds = None,
                    timeout: Seconds = None, full: bool = False) -> Any:
        """Look up rows of many tables in one array. For many small tables it costs half as much as lookup.

        keys: any integer dtype and shape, read in C order: the keys of the first table of the model, then of the second.
        counts: the number of keys of each table, in the order of client.model().tables. Later tables may be omitted.
        Returns a matrix of shape (number of keys, dim) if all tables in counts have rows of the same width, otherwise
        a vector with one row after another. A table with count 0 is in counts, too.

        output, miss, max_wait, timeout: as in lookup.
        full: return a FlatAnswer: rows, status of each key, widths of the tables, and version.
        """
        flat = Flat(keys, counts, miss, max_wait, output, full)
        timeout_s = self._defaults.timeout_of(timeout)
        end = time.monotonic() + timeout_s
        request = flat.request(self._defaults.model, self._version)
        dims = None
        while dims is None:
            version = flat.read(self._transport.unary(_messages.INFER, request, max(end - time.monotonic(), SECONDS_MIN),
                                                       self._defaults.hedge_s))
            dims = self._widths.of_version(version, len(flat.counts))
            if dims is None or not flat.fits(dims):  # a new version, or another one with the same number
                dims = self._dims_of(version, flat.dims_lookup(), end)
        if self._pins and self._version == 0:
            self._version = version
        return flat.result(version, dims)

    def _dims_of(self, version: int, lookup: Lookup, end: float) -> Optional[Dims]:
        """The dims of the tables of a version. Skips servers that do not have the version. None: no server has it, and
        this client is not pinned to it."""
        request = lookup.request(self._defaults.model, version, Options())
        n_left = 2 * len(self._transport.servers)
        while True:
            n_left -= 1
            reading = lookup.begin()
            try:
                reading.add(self._transport.unary(_messages.LOOKUP, request, max(end - time.monotonic(), SECONDS_MIN)))
            except NotFound:
                if n_left == 0 and self._version != 0:
                    raise
                if n_left == 0:
                    return None
            else:
                reading.end()
                return self._widths.learn_version(version, reading.dims)

    # ---- models and versions ----

    def wait_for_updates(self, records: Optional[Records] = None, *, timeout: Optional[float] = None) -> None:
        """Wait until lookups at every address of this client see updates: the given records, as (topic, partition, offset),
        or all records that are in the log now.

        Raises DeadlineExceeded, which names the missing updates, or NotVisible if more waiting does not help. Needs the
        role `lookup`."""
        request = _wait.request(self._defaults.model, self._version, records)
        end = time.monotonic() + self._defaults.timeout_of(timeout)
        for server in self._transport.servers:
            left_s = max(end - time.monotonic(), SECONDS_MIN)
            data = self._transport.at(server, _messages.WAIT_FOR_UPDATES, _wait.within(request, left_s), left_s)
            _wait.read(server.target, data)

    def model(self, timeout: Optional[float] = None) -> Model:
        """The versions of the model, with their tables, widths, types and positions of updates. Needs the role `read` if
        the server has access rules."""
        request = _model.request(self._defaults.model, self._version)
        timeout_s = self._defaults.timeout_of(timeout)
        return _model.read(self._transport.unary(_messages.GET_MODEL, request, timeout_s), self._version)

    def version(self, number: int = 0) -> "Client":
        """A client pinned to one version, also after a switch. 0: the version of its first reply. It shares the
        connections of this client."""
        pinned = Client(self._transport, self._defaults, self._how)
        pinned._owns, pinned._version, pinned._pins = False, _model.version_number(number), True
        return pinned

    # ---- lifetime ----

    def close(self) -> None:
        """Close the connections. No effect on a pinned client."""
        if self._owns:
            self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __copy__(self) -> "Client":
        """A copy makes its own connections."""
        return _connect_again(self._how, self._version, self._pins)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Client":
        return self.__copy__()

    def __reduce__(self) -> Tuple[Any, ...]:
        """An unpickled client makes its own connections. A pickle contains no secret."""
        _, _, tls, token, *_ = self._how
        if token is not None and not callable(token):
            raise InvalidArgument("token: a client with a token as text cannot be pickled, because the pickle would contain the "
                                  "token; pass a function that returns the token")
        if isinstance(tls, _address.TLS) and isinstance(tls.key, bytes):
            raise InvalidArgument("tls.key: a client with a private key as bytes cannot be pickled, because the pickle would "
                                  "contain the key; pass the path of a file")
        return _connect_again, (self._how, self._version, self._pins)


def connect(addresses: Addresses, model: str = "default", *, tls: Any = None, token: Token = None,
            timeout: float = 5.0, hedge_ms: Optional[float] = None, plaintext: bool = False) -> Client:
    """A client of the servers at `addresses`: "HOST:PORT", "unix:PATH", or a list of them, which it uses in turn.
    It connects on first use.

    model: name of the model; hpsd --table serves "default".
    tls: True (the authorities of the system), the path of a CA file, or hpsd.TLS.
    token: a bearer token, or a function that returns one.
    timeout: default timeout of a call with all its attempts, in seconds.
    hedge_ms: after this many milliseconds without a reply, send the request to another server as well.
    plaintext: send the token without TLS also to other hosts.
    """
    targets = _address.as_targets(addresses)
    _address.check_token(targets, _address.as_tls(tls), token, plaintext)
    transport = Transport(targets, _address.as_tls(tls), token)
    return Client(transport, Defaults(model, timeout, hedge_ms),
                  how=(addresses, model, tls, token, timeout, hedge_ms, plaintext))


def _connect_again(how: Tuple[Any, ...], version: int, pins: bool) -> Client:
    addresses, model, tls, token, timeout, hedge_ms, plaintext = how
    client = connect(addresses, model, tls=tls, token=token, timeout=timeout, hedge_ms=hedge_ms, plaintext=plaintext)
    client._version, client._pins = version, pins
    return client
