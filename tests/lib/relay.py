# SPDX-License-Identifier: Apache-2.0
"""TCP relays that stand before servers and can be made as bad as a network.

    with Relays() as relays:
        front = relays.add(port, to=server_port)   # 127.0.0.1:port leads to 127.0.0.1:server_port
        front.set(CUT)

All run on one thread of their own. What a state does holds for connections that are there and for those that come:

    PASS         bytes go through
    CUT          connections are reset, and nobody answers at the port
    HANG         connections are kept and taken, nothing goes through; what was held arrives late, when that ends
    DEAF         what clients send goes through, what servers answer is lost
    MUTE         what servers send goes through, what clients send is lost
    SLOW         both ways, late and little at a time

Of a connection that lost bytes nothing more goes through: it is reset when its state ends, as its ends no longer
agree where they are.
"""
import asyncio
import contextlib
import socket
import struct
import threading

PASS, CUT, HANG, DEAF, MUTE, SLOW = STATES = "pass", "cut", "hang", "deaf", "mute", "slow"
TO_SERVER, TO_CLIENT = range(2)
LOST = {DEAF: TO_CLIENT, MUTE: TO_SERVER}
CHUNK = 16384
SLOW_CHUNK, SLOW_S = 8192, 0.1  # so much at a time, so late
PATIENCE_S = 30


class Connection:
    """One of a client, and the one to the server that belongs to it."""

    def __init__(self, relay, reader, writer):
        self.relay, self.client = relay, (reader, writer)
        self.server = None
        self.lossy = False

    async def run(self):
        try:
            await self.relay.opened.wait()  # a server that hangs does not hear of it either
            self.server = await asyncio.open_connection("127.0.0.1", self.relay.to)
            await asyncio.gather(self.pump(TO_SERVER, self.client[0], self.server[1]),
                                 self.pump(TO_CLIENT, self.server[0], self.client[1]))
        except (OSError, EOFError):
            pass
        finally:
            self.close()

    async def pump(self, direction, source, sink):
        relay = self.relay
        while data := await source.read(SLOW_CHUNK if relay.state == SLOW else CHUNK):
            if relay.state == SLOW:
                await asyncio.sleep(SLOW_S)
            await relay.opened.wait()
            if self.lossy or LOST.get(relay.state) == direction:
                self.lossy = True
                continue
            sink.write(data)
            await sink.drain()
        raise EOFError

    def close(self):
        """At once, with a reset: what is under way is not delivered."""
        for _, writer in filter(None, (self.client, self.server)):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Relay:
    """One port. Its methods may be called on any thread but that of the relays."""

    def __init__(self, relays, port, to):
        self.relays, self.port, self.to = relays, port, to
        self.state = PASS
        self.listener = None
        self.opened = None  # not while it hangs
        self.connections = {}  # and their tasks

    def set(self, state):
        """Back when the state is so."""
        assert state in STATES, state
        self.relays.call(self.change(state))

    # ---- on the thread of the relays ----

    async def begin(self):
        self.opened = asyncio.Event()
        self.opened.set()
        await self.listen()

    async def listen(self):
        self.listener = await asyncio.start_server(self.accept, "127.0.0.1", self.port)

    async def accept(self, reader, writer):
        connection = Connection(self, reader, writer)
        self.connections[connection] = asyncio.current_task()
        try:
            await connection.run()
        finally:
            del self.connections[connection]

    async def change(self, state):
        self.state = state
        for connection in list(self.connections):
            if state == CUT or (connection.lossy and state not in LOST):
                connection.close()
                self.connections[connection].cancel()
        if state == HANG:
            self.opened.clear()
        else:
            self.opened.set()
        if state == CUT and self.listener is not None:
            self.listener.close()
            self.listener = None
        elif state != CUT and self.listener is None:
            await self.listen()


class Relays:
    """The thread that all of them run on."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="relays", daemon=True)
        self.thread.start()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def add(self, port, to):
        one = Relay(self, port, to)
        self.call(one.begin())
        return one

    def close(self):
        self.call(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()

    @staticmethod
    async def end():
        mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
