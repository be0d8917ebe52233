# SPDX-License-Identifier: Apache-2.0
"""Records the updates written to a log, and checks a reader's claims of freshness against what lookups returned.

Writes are numbered in the order in which they were sent. A row contains the number of its write, so each row that a
lookup returns shows which write it is from and which later writes it lacks. `History` records the writes and when they
were acknowledged. A claim of freshness says "every update logged before this time is visible". `Judge` compares claims
with the returned rows, and records false claims as lies. It does not depend on how a reader computes its claims.

All times are from time.time(), and measurement errors favour the reader. The time of sending is taken before the client
gets an update; the time of acknowledgement, after this program has received it. From then on a reader must have the
update, even if it does not know a new topic or partition yet. A reader may round times to milliseconds.
"""
import bisect
import collections
import dataclasses
import itertools
import math
import threading

import numpy as np

DIM = 4
DEFAULT = -1.0
FOUND, UNKNOWN = 1, 3  # status of a key
ROUNDED_S = 0.001


def row_of(key, number):
    """The row of write `number`; for a row of a version's files, `number` is the negative version."""
    return np.array([key, number, (key * 31 + number * 7) % 65521, -number - key], "<f4")


def numbers_in(keys, statuses, rows):
    """The number of the write of each row, or None for no row. Raises ValueError if no write has such a row."""
    found = []
    for key, status, row in zip(keys, statuses, rows):
        if status == UNKNOWN and (row == DEFAULT).all():
            found.append(None)
            continue
        number = int(row[1]) if np.isfinite(row[1]) else 0
        if status != FOUND or not number or not (row == row_of(key, number)).all():
            raise ValueError(f"key {key}: no write has the row {row.tolist()}, status {status}")
        found.append(number)
    return found


# ---- writes ------------------------------------------------------------------------------------------

@dataclasses.dataclass
class Life:
    """The time from creation to deletion of a topic. A recreated topic gets a new Life."""
    begun: float
    ended: float = math.inf


@dataclasses.dataclass
class Update:
    """A write of a key. If `acked` is infinite, it is not known whether the log has the write."""
    number: int
    model: str
    table: str
    key: int
    is_delete: bool
    place: tuple  # topic, partition
    life: Life
    sent: float
    seen_from: float  # lookups may not return it earlier; for transactions, the time at which the commit began
    acked: float = math.inf
    offset: int = -1


class History:
    """The writes of each key in order, and the lives of topics. Files of versions have the keys below `file_keys`."""

    def __init__(self, file_keys):
        self.file_keys = file_keys
        self.lock = threading.Lock()
        self.updates = []  # write N is at index N - 1
        self.of = collections.defaultdict(list)  # by model, table, key
        self.lives = collections.defaultdict(list)  # by topic
        self.floors = collections.defaultdict(list)  # by place: times of accepted gaps; earlier updates may be missing

    def make(self, topic, at):
        self.lives[topic].append(Life(at))

    def unmake(self, topic, at):
        self.lives[topic][-1].ended = at

    def accept(self, topic, partition, at):
        """An operator accepted the gap: the reader may lack earlier updates."""
        self.floors[topic, partition].append(at)

    def write(self, model, table, key, is_delete, place, at, is_open=False):
        with self.lock:
            one = Update(len(self.updates) + 1, model, table, key, is_delete, place, self.lives[place[0]][-1], at,
                         math.inf if is_open else at)
            self.updates.append(one)
            self.of[model, table, key].append(one)
        return one

    def counts(self, one, ended):
        """Whether a claim made until `ended` can cover the update: its topic exists, and no later gap was accepted."""
        if one.life.ended <= ended:
            return False
        floors = self.floors.get(one.place)
        n = bisect.bisect_right(floors, ended) if floors else 0
        return n == 0 or one.acked > floors[n - 1]

    def newest(self, model, table, key, cutoff, ended):
        """The last update that a reader must have if it claims all updates acknowledged by `cutoff`, or None."""
        for one in reversed(self.of.get((model, table, key), ())):
            if one.acked <= cutoff and self.counts(one, ended):
                return one
        return None

    def last(self, model, table, key):
        """The last acknowledged update that is in a topic which exists now, or None."""
        return next((one for one in reversed(self.of.get((model, table, key), ()))
                     if one.acked < math.inf and one.life.ended == math.inf), None)

    def newest_delete(self, model, table, key, ended):
        """The number of the last delete that a reader may have seen by `ended`. Without such a delete: None if the
        files have the key, else 0."""
        for one in reversed(self.of.get((model, table, key), ())):
            if one.is_delete and one.seen_from <= ended:
                return one.number
        return 0 if key >= self.file_keys else None

    def has(self, number, one, ended):
        """Whether a reader that saw write `number` of a key (None: no row) has applied update `one` or a later one."""
        if number is not None or one.is_delete:
            return number is None or number >= one.number
        gone = self.newest_delete(one.model, one.table, one.key, ended)
        return gone is not None and gone > one.number


# ---- events ------------------------------------------------------------------------------------------

class Reach:
    """Records when leaders of partitions were unreachable."""

    def __init__(self):
        self.changes = collections.defaultdict(list)  # by place: (time, whether it is reachable)

    def mark(self, place, can_be, at):
        changes = self.changes[place]
        if not changes or changes[-1][1] != can_be:
            changes.append((at, can_be))

    def lost(self, place, begun, ended):
        """Whether the place was unreachable during the whole time."""
        changes = self.changes.get(place, [])
        n = bisect.bisect_right(changes, (ended, True))
        return n > 0 and not changes[n - 1][1] and changes[n - 1][0] <= begun


@dataclasses.dataclass
class Fact:
    """While it lasts, a reader cannot know updates of these versions, or of this topic, that are newer than its
    start."""
    what: str
    model: str
    begun: float
    versions: tuple  # empty: all
    topic: str  # None: all topics of the model
    ended: float = math.inf


@dataclasses.dataclass
class Lie:
    kind: str
    model: str
    at: float
    text: str


@dataclasses.dataclass
class Sight:
    """What lookups of one version returned: {table: {key: number of the write}}."""
    model: str
    version: int
    begun: float
    ended: float
    rows: dict

    def name(self, table, key):
        return f"{self.model}/{self.version}, table {table}, key {key}"


# ---- the judge -----------------------------------------------------------------------------------------

class Judge:
    """Records lies, and counts claims by kind. `bound_s`: a reader must notice within this time that a leader is
    unreachable or that the end of a partition has moved. `margin_s`: tolerance for metrics, which are rounded and
    updated periodically."""

    def __init__(self, history, reach, bound_s, margin_s):
        self.history, self.reach = history, reach
        self.bound_s, self.margin_s = bound_s, margin_s
        self.facts, self.lies, self.claims = [], [], collections.Counter()
        self.pending = []  # claims that a source is up, which `settle` judges
        self.lock = threading.Lock()

    def lie(self, kind, model, at, text):
        with self.lock:
            self.lies.append(Lie(kind, model, at, text))

    def fact(self, what, model, at, versions=(), topic=None):
        """A new fact. It lasts until the caller sets `ended`."""
        one = Fact(what, model, at, tuple(versions), topic)
        self.facts.append(one)
        return one

    def during(self, model, version, place, begun, ended):
        """The facts that last during the whole time; with a place, facts of its topic or of all topics."""
        return [fact for fact in self.facts if fact.model == model and fact.begun <= begun and ended <= fact.ended
                and (not fact.versions or version in fact.versions)
                and (fact.topic is None or place is None or place[0] == fact.topic)]

    # ---- rows ----

    def seen(self, sight):
        """Record each row that no state of the log allows as a lie."""
        for table, rows in sight.rows.items():
            for key, number in rows.items():
                why = self.why_not(sight, table, key, number)
                if why is not None:
                    self.lie("row", sight.model, sight.begun, f"{sight.name(table, key)} {why}")

    def why_not(self, sight, table, key, number):
        history = self.history
        if number is None:
            gone = history.newest_delete(sight.model, table, key, sight.ended)
            return "has no row, and nobody has deleted it" if gone is None else None
        if number < 0:
            return None if number == -sight.version and key < history.file_keys else f"has the row of version {-number}"
        one = history.updates[number - 1] if number <= len(history.updates) else None
        if one is None or (one.model, one.table, one.key) != (sight.model, table, key) or one.is_delete:
            return f"has the row of write {number}, which is {one}"
        if one.seen_from > sight.ended:
            return f"has the row of write {number}, whose transaction is not committed"
        return None

    def lacking(self, sight, cutoff, place=None):
        """[(table, key, number, update)] of keys that lack an update acknowledged by `cutoff`; `place`: only its
        updates."""
        found, history = [], self.history
        for table, rows in sight.rows.items():
            for key, number in rows.items():
                one = history.newest(sight.model, table, key, cutoff, sight.ended)
                if one is None or (place is not None and one.place != place):
                    continue
                if not history.has(number, one, sight.ended):
                    found.append((table, key, number, one))
        return found

    def told(self, number):
        """Describes a write in words."""
        if number is None or number < 0:
            return "without a row" if number is None else f"as of the files of version {-number}"
        one = self.history.updates[number - 1]
        return (f"{'deleted' if one.is_delete else 'written'} by {number} ({one.place[0]}:{one.place[1]}:{one.offset}, "
                f"acknowledged at {one.acked:.3f})")

    def complete(self, kind, sight, cutoff, at, what, place=None):
        """Judge the claim `what`, made at `at`: lookups return all updates acknowledged by `cutoff` (`place`: only of
        it)."""
        self.claims[kind] += 1
        lacking = self.lacking(sight, cutoff, place)
        if lacking:
            table, key, number, one = min(lacking, key=lambda found: found[3].acked)
            self.lie(kind, sight.model, at, f"{what}: {len(lacking)} keys lack updates that it says are there; "
                     f"{sight.name(table, key)} is {self.told(number)} and lacks {self.told(one.number)}, "
                     f"{cutoff - one.acked:.3f} s older than it may be, {at - one.acked:.3f} s old")
        return not lacking

    def known(self, kind, sight, cutoff, at, what, place=None):
        """As `complete`. Also, `cutoff` must not be later than the beginning of a fact. A reader may notice a fact some
        time after it began; until then it applies updates."""
        late_s = self.margin_s if place is None else self.bound_s
        if self.complete(kind, sight, cutoff, at, what, place):
            for fact in self.during(sight.model, sight.version, place, at, sight.ended):
                if cutoff > fact.begun + late_s:
                    self.lie(kind, sight.model, at, f"{what}: {sight.model}/{sight.version} is {fact.what} for "
                             f"{at - fact.begun:.3f} s, and this is as of {cutoff - fact.begun:.3f} s later")

    # ---- claims ----

    def looked_up(self, sight, staleness_ms):
        """Judge a reply with status OK."""
        self.seen(sight)
        if staleness_ms:
            self.known("max_staleness_ms", sight, sight.begun - staleness_ms / 1000 - ROUNDED_S, sight.begun,
                       f"OK with max_staleness_ms {staleness_ms}")

    def staleness(self, sight, seconds, begun):
        """Judge hpsd_update_staleness_seconds, read at `begun` before the lookups; None: the metric is missing."""
        if seconds is None:
            self.lie("staleness", sight.model, begun, f"update_staleness_seconds of {sight.model} is not told")
        elif math.isfinite(seconds):
            self.known("staleness", sight, begun - seconds - self.margin_s, begun,
                       f"update_staleness_seconds {seconds:.3f}")

    def lag(self, sight, place, records, seconds, begun, where):
        """Judge the lag of a partition. None: the reader reports no `records` or `seconds`."""
        what = f"{where}: {place[0]}:{place[1]} has a lag of"
        if records == 0:
            self.complete("lag", sight, begun - self.bound_s, begun, f"{what} 0 records", place)
        if seconds is not None and math.isfinite(seconds):
            self.known("lag_seconds", sight, begun - seconds - self.margin_s, begun, f"{what} {seconds:.3f} s", place)

    def as_of(self, sight, at, begun, place=None, more=""):
        """Judge the time `as of` in `hpsctl updates`, of a version or of one partition. `more` describes the
        partition."""
        whose = "" if place is None else f"{place[0]}:{place[1]} {more} "
        self.known("as_of", sight, at - ROUNDED_S, begun, f"updates: {whose}as of {begun - at:.3f} s ago", place)

    def state(self, model, version, place, state, begun, ended, where):
        """Judge the state of a partition. Facts of one topic do not count: hpsd may be unable to query a recreated
        topic."""
        self.claims["state"] += 1
        for fact in self.during(model, version, place, begun, ended):
            if state == "running" and fact.topic is None:
                self.lie("state", model, begun, f"{where}: {place[0]}:{place[1]} of {model}/{version} is running, "
                         f"though it is {fact.what} for {begun - fact.begun:.3f} s")

    def up(self, model, places, begun, ended, where):
        """Judge later the claim that the source of a model is up: that the leaders of all its partitions respond."""
        self.claims["up"] += 1
        with self.lock:
            self.pending.append((model, list(places), begun, ended, where))

    def settle(self, now, after_s):
        """Judge claims older than `after_s`: by then it is known which leaders were reachable."""
        with self.lock:
            old = list(itertools.takewhile(lambda one: one[3] + after_s < now, self.pending))
            self.pending = self.pending[len(old):]  # old claims are at the front
        for model, places, begun, ended, where in old:
            lost = [place for place in places if self.reach.lost(place, begun - self.bound_s, ended + after_s / 2)]
            if lost:
                self.lie("up", model, begun, f"{where}: the source of {model} is up, and the leader of "
                         f"{lost[0][0]}:{lost[0][1]} has been out of reach for more than {self.bound_s:.1f} s")

    def waited(self, sight, begun):
        """Judge a `wait-for now` that began at `begun` and succeeded before the lookups."""
        self.known("wait-for", sight, begun - ROUNDED_S, begun, "wait-for now: visible")

    def published(self, sight, updates, begun, ended):
        """Judge a `hps-publish --wait` of these updates that succeeded before the lookups."""
        self.claims["publish"] += 1
        lost = [(one, number) for one in updates for number in [sight.rows[one.table][one.key]]
                if not self.history.has(number, one, sight.ended)]
        if lost:
            one, number = lost[0]
            self.lie("publish", sight.model, ended, f"hps-publish --wait, begun {ended - begun:.3f} s before: all is "
                     f"visible; {len(lost)} of {len(updates)} rows are not: {sight.name(one.table, one.key)} is "
                     f"{self.told(number)} and lacks {self.told(one.number)}")

    def activated(self, sight, other, lag_max_s, begun):
        """Judge an activation. The version may lack updates older than `lag_max_s` only if version `other`, which was
        active before, lacks them too."""
        self.claims["activate"] += 1
        lost = [(table, key, number, one)
                for table, key, number, one in self.lacking(sight, begun - lag_max_s - self.margin_s)
                if self.history.has(other.rows[table][key], one, other.ended)]
        if lost:
            table, key, number, one = lost[0]
            self.lie("activate", sight.model, begun, f"{sight.model}/{sight.version} was activated and lacks updates "
                     f"of {len(lost)} keys that version {other.version} has: {sight.name(table, key)} is "
                     f"{self.told(number)} and lacks {self.told(one.number)}, {begun - one.acked:.3f} s old")
