# SPDX-License-Identifier: Apache-2.0
"""What was written to a log of updates, what happened to it, and whether what a reader of it claims is so.

Every write has a number, in the order in which they were sent, and its row tells it: so of each row that is looked up
anybody can say which write it is of, and which later ones it lacks. `History` is what was written: by whom it was
acknowledged, and when. A claim of freshness says "every update that was logged before this time is here"; `Judge`
compares it with what lookups saw, and remembers each lie. Nothing here knows how a reader comes to its claims.

All times are those of time.time(), and each errs on the reader's side: an update counts as sent before the client had
it, and as acknowledged when this program had heard of that. From then on it counts, also if its partition or topic is
new and the reader does not know it yet. A reader may round to milliseconds.
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
    """That of a write; of a version's files the number is the version's, negative."""
    return np.array([key, number, (key * 31 + number * 7) % 65521, -number - key], "<f4")


def numbers_in(keys, statuses, rows):
    """Of each row the number of the write that it is of; None: there is no row. ValueError: no write has such a row."""
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


# ---- what was written ----------------------------------------------------------------------------------

@dataclasses.dataclass
class Life:
    """A topic of a name, from its making to its end; the next of that name is another one."""
    begun: float
    ended: float = math.inf


@dataclasses.dataclass
class Update:
    """A write of a key. Without a time of `acked` it may be in the log, or not."""
    number: int
    model: str
    table: str
    key: int
    is_delete: bool
    place: tuple  # topic, partition
    life: Life
    sent: float
    seen_from: float  # nobody may see it earlier: of a transaction, when its commit began
    acked: float = math.inf
    offset: int = -1


class History:
    """The writes of each key, in order, and the lives of topics. `file_keys`: below that, versions' files have rows."""

    def __init__(self, file_keys):
        self.file_keys = file_keys
        self.lock = threading.Lock()
        self.updates = []  # that of number N at N - 1
        self.of = collections.defaultdict(list)  # by model, table, key
        self.lives = collections.defaultdict(list)  # by topic
        self.floors = collections.defaultdict(list)  # by topic, partition: from then on what was before may be missing

    def make(self, topic, at):
        self.lives[topic].append(Life(at))

    def unmake(self, topic, at):
        self.lives[topic][-1].ended = at

    def accept(self, topic, partition, at):
        """The reader was told to go on with what it has."""
        self.floors[topic, partition].append(at)

    def write(self, model, table, key, is_delete, place, at, is_open=False):
        with self.lock:
            one = Update(len(self.updates) + 1, model, table, key, is_delete, place, self.lives[place[0]][-1], at,
                         math.inf if is_open else at)
            self.updates.append(one)
            self.of[model, table, key].append(one)
        return one

    def counts(self, one, ended):
        """Whether a reader that made a claim until then must have had it, if it was early enough."""
        if one.life.ended <= ended:
            return False
        floors = self.floors.get(one.place)
        n = bisect.bisect_right(floors, ended) if floors else 0
        return n == 0 or one.acked > floors[n - 1]

    def newest(self, model, table, key, cutoff, ended):
        """The last update that everybody must have who has all from before `cutoff`; None: there is none."""
        for one in reversed(self.of.get((model, table, key), ())):
            if one.acked <= cutoff and self.counts(one, ended):
                return one
        return None

    def last(self, model, table, key):
        """The last update that the log has, whoever must have it; None: there is none."""
        return next((one for one in reversed(self.of.get((model, table, key), ()))
                     if one.acked < math.inf and one.life.ended == math.inf), None)

    def newest_delete(self, model, table, key, ended):
        """The number of the last one that anybody may have seen by then; 0: none, and no file has the key; None: none,
        and files have it."""
        for one in reversed(self.of.get((model, table, key), ())):
            if one.is_delete and one.seen_from <= ended:
                return one.number
        return 0 if key >= self.file_keys else None

    def has(self, number, one, ended):
        """Whether somebody who saw write `number` of a key, None: no row, has write `one` of it, or a later one."""
        if number is not None or one.is_delete:
            return number is None or number >= one.number
        gone = self.newest_delete(one.model, one.table, one.key, ended)
        return gone is not None and gone > one.number


# ---- what happened -------------------------------------------------------------------------------------

class Reach:
    """When leaders of partitions could not be reached."""

    def __init__(self):
        self.changes = collections.defaultdict(list)  # by place: (time, whether it can be)

    def mark(self, place, can_be, at):
        changes = self.changes[place]
        if not changes or changes[-1][1] != can_be:
            changes.append((at, can_be))

    def lost(self, place, begun, ended):
        """Whether it was out of reach all that time."""
        changes = self.changes.get(place, [])
        n = bisect.bisect_right(changes, (ended, True))
        return n > 0 and not changes[n - 1][1] and changes[n - 1][0] <= begun


@dataclasses.dataclass
class Fact:
    """While it holds nobody can say of these versions, or of this topic of theirs, what is newer than its beginning."""
    what: str
    model: str
    begun: float
    versions: tuple  # empty: all
    topic: str  # None: all
    ended: float = math.inf


@dataclasses.dataclass
class Lie:
    kind: str
    model: str
    at: float
    text: str


@dataclasses.dataclass
class Sight:
    """What lookups of one version saw: {table: {key: number of the write}}."""
    model: str
    version: int
    begun: float
    ended: float
    rows: dict

    def name(self, table, key):
        return f"{self.model}/{self.version}, table {table}, key {key}"


# ---- the judge -----------------------------------------------------------------------------------------

class Judge:
    """Remembers lies, and counts claims, by kind. `bound_s`: for so long a reader may take a leader for reachable, and
    its end for the last one heard; `margin_s`: of what is exported now and then, and rounded."""

    def __init__(self, history, reach, bound_s, margin_s):
        self.history, self.reach = history, reach
        self.bound_s, self.margin_s = bound_s, margin_s
        self.facts, self.lies, self.claims = [], [], collections.Counter()
        self.pending = []  # of what is judged when all is known of the time
        self.lock = threading.Lock()

    def lie(self, kind, model, at, text):
        with self.lock:
            self.lies.append(Lie(kind, model, at, text))

    def fact(self, what, model, at, versions=(), topic=None):
        """It holds until its `ended` is set."""
        one = Fact(what, model, at, tuple(versions), topic)
        self.facts.append(one)
        return one

    def during(self, model, version, place, begun, ended):
        """What is so all that time; with a place, of that alone."""
        return [fact for fact in self.facts if fact.model == model and fact.begun <= begun and ended <= fact.ended
                and (not fact.versions or version in fact.versions)
                and (fact.topic is None or place is None or place[0] == fact.topic)]

    # ---- of rows ----

    def seen(self, sight):
        """Each row is one that may be there; others are lies whatever is claimed."""
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
        """[(table, key, number, what it lacks)] of what was acknowledged before `cutoff`, there or anywhere."""
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
        """Words for a write."""
        if number is None or number < 0:
            return "without a row" if number is None else f"as of the files of version {-number}"
        one = self.history.updates[number - 1]
        return (f"{'deleted' if one.is_delete else 'written'} by {number} ({one.place[0]}:{one.place[1]}:{one.offset}, "
                f"acknowledged at {one.acked:.3f})")

    def complete(self, kind, sight, cutoff, at, what, place=None):
        """A claim, made at `at` in words `what`: all from before `cutoff`, there or anywhere, came before the sight."""
        self.claims[kind] += 1
        lacking = self.lacking(sight, cutoff, place)
        if lacking:
            table, key, number, one = min(lacking, key=lambda found: found[3].acked)
            self.lie(kind, sight.model, at, f"{what}: {len(lacking)} keys lack updates that it says are there; "
                     f"{sight.name(table, key)} is {self.told(number)} and lacks {self.told(one.number)}, "
                     f"{cutoff - one.acked:.3f} s older than it may be, {at - one.acked:.3f} s old")
        return not lacking

    def known(self, kind, sight, cutoff, at, what, place=None):
        """The same, where nothing can be known of what is newer than a fact, either. A reader may act on a fact a bit
        later than it began, a partition even later; until then it applies updates."""
        late_s = self.margin_s if place is None else self.bound_s
        if self.complete(kind, sight, cutoff, at, what, place):
            for fact in self.during(sight.model, sight.version, place, at, sight.ended):
                if cutoff > fact.begun + late_s:
                    self.lie(kind, sight.model, at, f"{what}: {sight.model}/{sight.version} is {fact.what} for "
                             f"{at - fact.begun:.3f} s, and this is as of {cutoff - fact.begun:.3f} s later")

    # ---- claims ----

    def looked_up(self, sight, staleness_ms):
        """An OK answer."""
        self.seen(sight)
        if staleness_ms:
            self.known("max_staleness_ms", sight, sight.begun - staleness_ms / 1000 - ROUNDED_S, sight.begun,
                       f"OK with max_staleness_ms {staleness_ms}")

    def staleness(self, sight, seconds, begun):
        """hpsd_update_staleness_seconds, asked for at `begun`, and what lookups saw later; None: it was not there."""
        if seconds is None:
            self.lie("staleness", sight.model, begun, f"update_staleness_seconds of {sight.model} is not told")
        elif math.isfinite(seconds):
            self.known("staleness", sight, begun - seconds - self.margin_s, begun,
                       f"update_staleness_seconds {seconds:.3f}")

    def lag(self, sight, place, records, seconds, begun, where):
        """Of a partition, `records` or `seconds` None: it says nothing of that."""
        what = f"{where}: {place[0]}:{place[1]} has a lag of"
        if records == 0:
            self.complete("lag", sight, begun - self.bound_s, begun, f"{what} 0 records", place)
        if seconds is not None and math.isfinite(seconds):
            self.known("lag_seconds", sight, begun - seconds - self.margin_s, begun, f"{what} {seconds:.3f} s", place)

    def as_of(self, sight, at, begun, place=None, more=""):
        """`hpsctl updates`: of the version, or a partition of it, of which it says `more`."""
        whose = "" if place is None else f"{place[0]}:{place[1]} {more} "
        self.known("as_of", sight, at - ROUNDED_S, begun, f"updates: {whose}as of {begun - at:.3f} s ago", place)

    def state(self, model, version, place, state, begun, ended, where):
        """That of a partition. A topic that was made anew may still pass for the old one where it cannot be asked."""
        self.claims["state"] += 1
        for fact in self.during(model, version, place, begun, ended):
            if state == "running" and fact.topic is None:
                self.lie("state", model, begun, f"{where}: {place[0]}:{place[1]} of {model}/{version} is running, "
                         f"though it is {fact.what} for {begun - fact.begun:.3f} s")

    def up(self, model, places, begun, ended, where):
        """The source of a model is up, that is the leaders of all its partitions answer."""
        self.claims["up"] += 1
        with self.lock:
            self.pending.append((model, list(places), begun, ended, where))

    def settle(self, now, after_s):
        """Judge what was told longer than `after_s` ago: by then it is known what could be reached."""
        with self.lock:
            old = list(itertools.takewhile(lambda one: one[3] + after_s < now, self.pending))
            self.pending = self.pending[len(old):]  # which are the first
        for model, places, begun, ended, where in old:
            lost = [place for place in places if self.reach.lost(place, begun - self.bound_s, ended + after_s / 2)]
            if lost:
                self.lie("up", model, begun, f"{where}: the source of {model} is up, and the leader of "
                         f"{lost[0][0]}:{lost[0][1]} has been out of reach for more than {self.bound_s:.1f} s")

    def waited(self, sight, begun):
        """`wait-for now`, begun at `begun`, ended well before the lookups of the sight."""
        self.known("wait-for", sight, begun - ROUNDED_S, begun, "wait-for now: visible")

    def published(self, sight, updates, begun, ended):
        """`hps-publish --wait` of these ended well, and the sight is of later."""
        self.claims["publish"] += 1
        lost = [(one, number) for one in updates for number in [sight.rows[one.table][one.key]]
                if not self.history.has(number, one, sight.ended)]
        if lost:
            one, number = lost[0]
            self.lie("publish", sight.model, ended, f"hps-publish --wait, begun {ended - begun:.3f} s before: all is "
                     f"visible; {len(lost)} of {len(updates)} rows are not: {sight.name(one.table, one.key)} is "
                     f"{self.told(number)} and lacks {self.told(one.number)}")

    def activated(self, sight, other, lag_max_s, begun):
        """A version took over. It may not lack what is older than `lag_max_s`, unless `other`, the one before, does."""
        self.claims["activate"] += 1
        lost = [(table, key, number, one)
                for table, key, number, one in self.lacking(sight, begun - lag_max_s - self.margin_s)
                if self.history.has(other.rows[table][key], one, other.ended)]
        if lost:
            table, key, number, one = lost[0]
            self.lie("activate", sight.model, begun, f"{sight.model}/{sight.version} was activated and lacks updates "
                     f"of {len(lost)} keys that version {other.version} has: {sight.name(table, key)} is "
                     f"{self.told(number)} and lacks {self.told(one.number)}, {begun - one.acked:.3f} s old")
