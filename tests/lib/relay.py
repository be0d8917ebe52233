# SPDX-License-Identifier: Apache-2.0
"""TCP relays in front of servers, which simulate network failures.

    with Relays() as relays:
        front = relays.add(port, to=server_port)   # 127.0.0.1:port leads to 127.0.0.1:server_port
        front.set(CUT)

All relays run on one thread. A state applies to existing and to new connections:

    PASS         bytes are forwarded
    CUT          connections are reset, and the port refuses new ones
    HANG         connections stay open and are accepted; bytes are held back until the state ends
    DEAF         bytes from clients are forwarded, bytes from servers are lost
    MUTE         bytes from servers are forwarded, bytes from clients are lost
    SLOW         bytes are forwarded in small chunks with a delay

A connection that has lost bytes forwards nothing more, because its ends no longer agree on their position in the
stream. It is reset when the relay leaves DEAF and MUTE.
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
SLOW_CHUNK, SLOW_S = 8192, 0.1  # bytes per chunk, and the delay of each
PATIENCE_S = 30


class Connection:
    """A connection from a client, and the relay's own connection to the server."""

    def __init__(self, relay, reader, writer):
        self.relay, self.client = relay, (reader, writer)
        self.server = None
        self.lossy = False

    async def run(self):
        try:
            await self.relay.opened.wait()  # while the relay hangs, the server must not see the connection
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
        """Reset both sides at once. Bytes in flight are lost."""
        for _, writer in filter(None, (self.client, self.server)):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Relay:
    """One port. Its methods may be called on any thread except the thread of the relays."""

    def __init__(self, relays, port, to):
        self.relays, self.port, self.to = relays, port, to
        self.state = PASS
        self.listener = None
        self.opened = None  # cleared while the relay hangs
        self.connections = {}  # {connection: its task}

    def set(self, state):
        """Change the state, and wait until it is in effect."""
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
    """The thread of all relays."""

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
