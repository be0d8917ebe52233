# SPDX-License-Identifier: Apache-2.0
"""A log that a seed determines, the rows that result from it, and clients that check replies against it.

Every row contains its table, key and record offset, so each returned row shows between which offsets of the log it was
correct. If a daemon published offset P before a lookup began, the lookup must return a row that was correct at P or at
a later offset written before the reply. An older row is stale; any other row is wrong.

As a program, this file is such a client: `chaos.py BOARD NUMBER OUT ADDRESS` looks up rows of one daemon until the
board says that the test ends. It writes its results to OUT as JSON.
"""
import bisect
import json
import os
import random
import sys
import threading
import time

import grpc
import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reflected  # noqa: E402

MODEL = "chaos"
DIMS = {"a": 4, "b": 33}
VERSIONS = (1, 2, 3)
GUEST = 3  # the version that is loaded and unloaded again and again; a daemon that has it serves it as active version
ACTIVE = 1  # the active version of a daemon without the guest
GONE, COMES, THERE, GOES = range(4)  # states of the guest at a daemon: absent, loading, loaded, unloading
KEYS = 256  # of each table
FILE_KEYS = 200  # files have the keys below
DEFAULT = -1.0
PLACES = [("a", 0), ("a", 1), ("b", 0), (None, 0), (None, 1)]  # topic's table, partition; None: the topic of the model
N_DAEMONS = 2
CALL_TIMEOUT_S = 60
CALLS_KEPT = 1 << 20
FOUND, DEFAULTED, UNKNOWN = 1, 2, 3
EXACT, MEMORY_ONLY = 1, 3  # miss policies
ROW, UNIT = 1, 2  # consistency


def topic_of(table):
    return f"hps_et.{MODEL}" + (f".{table}" if table else "")


def place_of(key, table):
    """The partition that changes a key: even keys are in the topic of their table, odd keys in the topic of the
    model."""
    topic = None if key % 2 else table
    n = sum(name == topic for name, _ in PLACES)
    return PLACES.index((topic, key // 2 % n))


KEYS_OF = {table: [[key for key in range(KEYS) if place_of(key, table) == place] for place in range(len(PLACES))]
           for table in DIMS}


def rows_of(table, keys, offsets):
    """One row per key, as the record at its offset writes it. An offset below 0 means the files of version -offset."""
    number = list(DIMS).index(table)
    keys, offsets = np.asarray(keys, np.int64), np.asarray(offsets, np.int64)
    columns = np.arange(DIMS[table], dtype=np.int64)
    rows = (offsets[:, None] * 31 * (columns + 1) + keys[:, None] * 7 + number) % 65521
    rows[:, 0], rows[:, 1] = keys, offsets
    return rows.astype("<f4")


def changes(seed, place, offset):
    """The content of a record: [(table, key, whether it is a delete)]. A key occurs once."""
    rng = random.Random(f"{seed}/{place}/{offset}")
    if PLACES[place][0] is not None:
        table = PLACES[place][0]
        keys = rng.sample(KEYS_OF[table][place], rng.choice((1, 1, 1, 4, 20)))
        if len(keys) == 4:
            return [(table, key, False) for key in keys]
        return [(table, key, rng.random() < 0.25) for key in keys]
    return [(table, key, rng.random() < 0.25) for table in DIMS for key in rng.sample(KEYS_OF[table][place], 6)]


# ---- expected rows -------------------------------------------------------------------------------------

class Wrong(Exception):
    """A reply that contradicts the log."""


class History:
    """The records that change each key, beginning at the offsets from which the log is applied to the files."""

    def __init__(self, seed, begins=None):
        self.seed = seed
        self.begins = list(begins or [0] * len(PLACES))
        self.ends = list(self.begins)
        self.writes = {table: [[] for _ in range(KEYS)] for table in DIMS}  # offsets
        self.kinds = {table: [[] for _ in range(KEYS)] for table in DIMS}  # whether the record is a delete

    def extend(self, ends):
        """Add the records up to these offsets."""
        for place, end in enumerate(ends):
            for offset in range(self.ends[place], end):
                for table, key, is_delete in changes(self.seed, place, offset):
                    self.writes[table][key].append(offset)
                    self.kinds[table][key].append(is_delete)
            self.ends[place] = max(self.ends[place], end)

    def state(self, table, key, at):
        """The offset of the record that made the key's row at position `at`; -1: the files; None: no row."""
        n = bisect.bisect_left(self.writes[table][key], at)
        if n == 0:
            return -1 if key < FILE_KEYS else None
        return None if self.kinds[table][key][n - 1] else self.writes[table][key][n - 1]

    def spans(self, table, key, offset, low, high):
        """The positions [(first, last)] between `low` and `high` at which the key has the row of the record at `offset`
        (-1: of the files; None: no row)."""
        writes, kinds = self.writes[table][key], self.kinds[table][key]
        n = bisect.bisect_left(writes, low)  # index of the first write at or after `low`
        found, first = [], low
        while first <= high:
            last = min(writes[n], high) if n < len(writes) else high
            if n == 0:
                state = -1 if key < FILE_KEYS else None
            else:
                state = None if kinds[n - 1] else writes[n - 1]
            if state == offset:
                found.append((first, last))
            first, n = last + 1, n + 1
        return found


def common(spans, others):
    """The intersection of two lists of ranges."""
    found = ((max(a, c), min(b, d)) for a, b in spans for c, d in others)
    return [(first, last) for first, last in found if first <= last]


class Judge:
    """Compares replies with the log."""

    def __init__(self, seed):
        self.history, self.guest = History(seed), History(seed)
        self.n_rows = self.n_unknown = self.n_defaulted = 0

    def history_of(self, version, begins):
        if version == GUEST and begins != self.guest.begins:
            self.guest = History(self.guest.seed, begins)
        return self.guest if version == GUEST else self.history

    def check(self, version, low, high, results, unit, begins=None):
        """Check `results`: {table: (keys, statuses, rows)}. low: positions published before the call began. high:
        offsets written before it ended. unit: all keys of a partition must be from one position. begins: where the log
        of the guest begins."""
        history = self.history_of(version, begins)
        history.extend(high)
        at = {}
        for table, (keys, statuses, rows) in results.items():
            offsets = self.offsets(version, table, keys, statuses, rows)
            for i, key in enumerate(keys):
                if statuses[i] == DEFAULTED:
                    continue
                place = place_of(key, table)
                spans = history.spans(table, key, offsets[i], low[place], high[place])
                if not spans:
                    self.blame(history, version, table, key, place, offsets[i], low, high)
                if unit:
                    at[place] = common(at[place], spans) if place in at else spans
                    if not at[place]:
                        raise Wrong(f"version {version}, table {table}, key {key}: record {offsets[i]} of "
                                    f"{PLACES[place]} is not of the unit that the keys before it are of")

    def offsets(self, version, table, keys, statuses, rows):
        """The record offset of each row (-1: files; None: no row). Checks that every value of the row is of that
        record."""
        told = np.where(statuses == FOUND, rows[:, 1], 0)
        if not (np.isfinite(told).all() and (told == np.floor(told)).all()):
            raise Wrong(f"version {version}, table {table}: rows that no record has, {rows[0][:4]}...")
        wanted = rows_of(table, keys, told.astype(np.int64))
        wanted[statuses != FOUND] = DEFAULT
        differs = np.flatnonzero((wanted != rows).any(axis=1))
        if len(differs):
            i = differs[0]
            raise Wrong(f"version {version}, table {table}, key {keys[i]}, status {statuses[i]}: no record has the "
                        f"row {rows[i][:6]}..., {len(differs)} of {len(keys)} rows")
        foreign = np.flatnonzero((told < 0) & (told != -version))
        if len(foreign):
            raise Wrong(f"version {version}, table {table}, key {keys[foreign[0]]}: the row of another version")
        self.n_rows += int(np.count_nonzero(statuses == FOUND))
        self.n_unknown += int(np.count_nonzero(statuses == UNKNOWN))
        self.n_defaulted += int(np.count_nonzero(statuses == DEFAULTED))
        return [None if status != FOUND else max(int(offset), -1) for status, offset in zip(statuses, told)]

    @staticmethod
    def blame(history, version, table, key, place, offset, low, high):
        what = "no row" if offset is None else "the row of the files" if offset < 0 else f"the row of record {offset}"
        writes = [f"{'deleted' if gone else 'written'} at {at}" for at, gone in
                  zip(history.writes[table][key], history.kinds[table][key]) if offset is None or at >= offset]
        kind = "stale" if any(history.state(table, key, at) == offset for at in range(low[place])) else "wrong"
        raise Wrong(f"{kind}: version {version}, table {table}, key {key}: {what}; {PLACES[place]} was published up to "
                    f"{low[place]} and written up to {high[place]}; the key was {', '.join(writes[-6:]) or 'never'}")


# ---- what all processes see ----------------------------------------------------------------------------

class Board:
    """Integers in a file that the test and its clients share. Each integer is read and written atomically."""

    def __init__(self, path, seed=None):
        n_places = len(PLACES)
        n = 2 + 2 * N_DAEMONS + 2 * n_places + N_DAEMONS * len(VERSIONS) * n_places
        if seed is not None:
            np.zeros(n, "<i8").tofile(path)
        self.map = np.memmap(path, "<i8", "r+", shape=(n,))
        self.path = path
        if seed is not None:
            self.map[0] = seed
        self.lives = self.map[2:2 + N_DAEMONS]  # per daemon; odd: it is not running
        self.guests = self.map[2 + N_DAEMONS:2 + 2 * N_DAEMONS]  # per daemon, changes of the guest's state
        at = 2 + 2 * N_DAEMONS
        self.written = self.map[at:at + n_places]  # records that were given to the Kafka client
        self.begins = self.map[at + n_places:at + 2 * n_places]  # start positions in the files of the guest
        self.published = self.map[at + 2 * n_places:].reshape(N_DAEMONS, len(VERSIONS), n_places)

    @property
    def seed(self):
        return int(self.map[0])

    @property
    def ends(self):
        return bool(self.map[1])

    def end(self):
        self.map[1] = 1


# ---- a client ------------------------------------------------------------------------------------------

class Client:
    """Looks up rows of one daemon and checks them."""

    SERVICE = "hps.v1.ParameterServer"

    def __init__(self, board, number, address):
        self.board, self.number, self.address = board, number, address
        self.rng = np.random.default_rng([board.seed, number, 77])
        self.judge = Judge(board.seed)
        self.channel = self.lookup = self.request = None
        self.life = 0  # of the daemon, when the channel was last known to work
        self.calls = []  # (start, duration) of exact lookups without consistency unit
        self.n_calls = self.n_away = self.n_gone = self.n_units = 0
        self.tiers = {}

    def connect(self):
        """Connect until the daemon responds; False if the test ended first."""
        if self.channel is not None:
            self.channel.close()
        gate = threading.Event()
        while not self.board.ends:
            self.life = int(self.board.lives[self.number])
            self.channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
            try:
                service = reflected.Service(self.channel, self.SERVICE)
                self.request, self.lookup = service.message("LookupRequest"), service.method("Lookup")
                return True
            except grpc.RpcError:
                self.channel.close()
                gate.wait(0.02)
        return False

    def run(self):
        gate = threading.Event()
        there = self.connect()
        while there and not self.board.ends:
            life = int(self.board.lives[self.number])
            try:
                self.call()
                self.life = life
            except grpc.RpcError as error:
                now = int(self.board.lives[self.number])
                if (now == self.life and now % 2 == 0) or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise Wrong(f"a look-up failed: {error.code().name}: {error.details()}") from None
                self.n_away += 1
                there = self.connect()
            gate.wait(0.01)  # leave CPU time to the servers

    def call(self):
        rng, board, number = self.rng, self.board, self.number
        version, unit, memory_only = int(rng.integers(len(VERSIONS) + 1)), rng.random() < 0.2, rng.random() < 0.05
        if version == GUEST and board.guests[number] % 4 == GONE and rng.random() < 0.8:
            version = 0
        request = self.request(model=MODEL, version=version, consistency=UNIT if unit else ROW,
                               miss_policy=MEMORY_ONLY if memory_only else EXACT)
        keys = {table: rng.choice(KEYS, rng.integers(1, 96), replace=False) for table in DIMS}
        for table in DIMS:
            request.queries.add(table=table, keys=keys[table].astype("<i8").tobytes())
        guest, begins = int(board.guests[number]), board.begins.tolist()
        published = board.published[number].tolist()
        begun = time.monotonic()
        try:
            reply = self.lookup(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            is_there = guest == board.guests[number] and guest % 4 == THERE
            if version != GUEST or is_there or error.code() != grpc.StatusCode.NOT_FOUND:
                raise
            self.n_gone += 1
            return
        ended = time.monotonic()
        state = guest % 4 if guest == board.guests[number] else None
        right = version or {GONE: ACTIVE, THERE: GUEST}.get(state, reply.version)
        if reply.version != right or (right == GUEST and state == GONE):
            raise Wrong(f"version {reply.version} for {version}, while the guest was {state}")
        version, high = reply.version, board.written.tolist()
        low = published[VERSIONS.index(version)]
        if version == GUEST and state != THERE:
            low = begins
            if begins != board.begins.tolist():
                return  # the guest's files changed: it may have either of them
        self.n_calls += 1
        self.n_units += unit
        if not unit and not memory_only and len(self.calls) < CALLS_KEPT:
            self.calls.append((begun, ended - begun))
        results = {}
        for table, result in zip(DIMS, reply.results):
            n = len(keys[table])
            status = result.key_status or bytes([FOUND]) * n
            rows = np.frombuffer(result.rows, "<f4").reshape(n, DIMS[table])
            results[table] = keys[table].tolist(), np.frombuffer(status, np.uint8), rows
            for count in result.tier_counts:
                self.tiers[count.tier] = self.tiers.get(count.tier, 0) + count.found_keys
        defaulted = self.judge.n_defaulted
        try:
            self.judge.check(version, low, high, results, unit, begins)
        except Wrong as error:
            found = [f"{count.tier} {count.found_keys}" for result in reply.results for count in result.tier_counts]
            raise Wrong(f"{error}; {'a unit' if unit else 'rows'} from {', '.join(found)}") from None
        if not memory_only and self.judge.n_defaulted > defaulted:
            raise Wrong("default rows for a look-up that waits for true ones")

    def told(self):
        return {"calls": self.n_calls, "units": self.n_units, "away": self.n_away, "gone": self.n_gone,
                "rows": self.judge.n_rows,
                "unknown": self.judge.n_unknown, "tiers": self.tiers, "times": self.calls}


def main(board, number, out, address):
    client = Client(Board(board), int(number), address)
    failure = None
    try:
        client.run()
    except Wrong as error:
        failure = f"daemon {number}: {error}"
    told = {**client.told(), "failure": failure}
    with open(out, "w", encoding="utf-8") as f:
        json.dump(told, f)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
