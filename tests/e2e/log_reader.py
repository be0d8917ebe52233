# SPDX-License-Identifier: Apache-2.0
"""A consumer of update logs, ours (tests/e2e/log_reader.c), as a program that tests tell what to do."""
import os
import subprocess
import threading
import time

from rig import BIN

PROGRAM = os.path.join(os.path.dirname(BIN), "tests", "log_reader")
CAUGHT_UP, GAP, GONE, BAD, FAILED, DOWN, UP, COMMITS = range(8)
OK, NOT_FOUND, PERMISSION, UNAVAILABLE, DATA_LOSS = 0, -5, -7, -14, -15
NO_TIME, CREATED, APPENDED = range(3)  # enum hps_record_time
COMPACTION = {"unknown": 0, "no": 1, "yes": 2}
PATIENCE_S = 120


class Reader:
    """At `bootstrap`, of the tables a and b of a model, with properties of librdkafka, "_" for "."."""

    def __init__(self, bootstrap, model, **properties):
        args = [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
        self.process = subprocess.Popen([PROGRAM, bootstrap, f"hps_et.{model}.a,hps_et.{model}.b", f"group.{model}", *args],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.watchdog = threading.Timer(5 * PATIENCE_S, self.process.kill)
        self.watchdog.start()
        self.records, self.events = [], []
        self.answer()

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.process.stdin.close()
        end = self.process.stdout.read().split()
        code = self.process.wait(PATIENCE_S)
        self.watchdog.cancel()
        if not failed:
            assert end == ["closed"] and code == 0

    def answer(self):
        lines = []
        for line in self.process.stdout:
            words = line.rstrip("\n").split(" ")
            if words[0] == "ok":
                return lines
            if words[0] == "failed":
                raise RuntimeError(line)
            lines.append(words)
        raise AssertionError(f"the reader ended with {self.process.wait()}: {lines}")

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.answer()

    def listed(self):
        """(age in ms or -1, id of the cluster, {topic: (partitions, compaction, delete retention, time of, id)})"""
        first, *rest = self.ask("topics")
        return int(first[1]), first[2], {w[1]: (*(int(x) for x in w[2:6]), w[6]) for w in rest}

    def listed_now(self):
        """The same, by a list that is requested from now on."""
        clock, found = time.monotonic(), []
        self.until(lambda: found.append(self.listed()) or 0 <= found[-1][0] < 1000 * (time.monotonic() - clock),
                   "a recent list")
        return found[-1]

    def topics(self):
        return {topic: of[:4] for topic, of in self.listed_now()[2].items()}

    def ids(self):
        """{topic: its id as known now, "" where this librdkafka cannot ask}"""
        return {topic: of[4] for topic, of in self.listed()[2].items()}

    def cluster(self):
        return self.listed_now()[1]

    def offsets(self, topic, partition, time=-1):
        [words] = self.ask("offsets", topic, partition, time)
        return tuple(int(w) for w in words[1:])

    def heard(self, topic, partition):
        """(status, high, age in ms or -1, text)"""
        [words] = self.ask("heard", topic, partition)
        return (*(int(w) for w in words[1:4]), " ".join(words[4:]))

    def heard_now(self, topic, partition):
        """The end, by an answer that its leader gives to a question from now on."""
        clock = time.monotonic()
        self.until(lambda: (word := self.heard(topic, partition))[0] == OK
                   and 0 <= word[2] < 1000 * (time.monotonic() - clock), f"a word of {topic} [{partition}]")
        return self.heard(topic, partition)[1]

    def recall(self, topic, partition, offset):
        """(status, asked offset, low, offset, time, hash)"""
        self.ask("recall", topic, partition, offset)
        found = []
        self.until(lambda: found.extend(self.ask("recalled", topic, partition)) or found,
                   f"what is at {offset} of {topic}")
        return (*(int(w) for w in found[0][1:6]), found[0][6])

    def poll(self):
        for words in self.ask("poll"):
            if words[0] == "record":
                key, value = (None if w == "-" else int(w[1:]) if w[0] == "#" else bytes.fromhex(w.strip("."))
                              for w in words[6:8])  # of large ones the size alone
                self.records.append((int(words[2]), int(words[3]), key, value))
                self.times = (int(words[4]), int(words[5]))
            else:
                event = [int(w) for w in words[1:6]]
                self.events.append(tuple(event))

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE_S  # while a bad batch is searched, polls return early
        while time.monotonic() < end:
            if condition():
                return
            self.poll()
        raise AssertionError(f"{what}: {self.records[-5:]} {self.events}")

    def event(self, kind):
        """Poll until there is one, and take it: (kind, tag, offset, high, status)."""
        self.until(lambda: any(e[0] == kind for e in self.events), f"event {kind}")
        found = next(e for e in self.events if e[0] == kind)
        self.events.remove(found)
        return found

    def values(self, n):
        """Poll until there are so many records: their values, in order."""
        self.until(lambda: len(self.records) >= n, f"{n} records")
        return [value for _, _, _, value in self.records]

    def kinds(self):
        return {e[0] for e in self.events}
