# SPDX-License-Identifier: Apache-2.0
"""kill -9 during loads, switches, unloads and starts. Afterwards hpsd must serve the old or the new state, completely.

hpsd runs with a library (tests/fault/killpoint.c) that kills it before a chosen call that changes its files, or, in
half of the cases, after half of a write. A window is a step of an operation: calls of one kind. The test kills hpsd in
each window, at a random call. After each kill it restarts hpsd and checks everything.

HPS_KILLS is the number of kills (the default is for `./dev check`), HPS_KILL_SEED the seed.
"""
import collections
import copy
import fnmatch
import os
import random
import shutil
import signal
import subprocess

import grpc
import numpy as np
import pytest

from rig import (BIN, PATIENCE_S, Daemon, Killpoint, Table, ask, default_config, kill_seed, kills, refused,
                 rocksdb_families)

pytestmark = pytest.mark.one_thread
KILLS = kills(60)
MIB = 1 << 20
SEEDS = (1, 2, 3)  # of the model files
KEEP_VERSIONS = 3
VERSION_BYTES = 17 * MIB  # of its rows; more memory than a sort may use
RECORDS = "hpsd/*.log"

# The operation, and its calls by name and path below the state directory.
CREATION = ("creation", "*")
WINDOWS = [
    ("load", "write hpsd/MANIFEST*"),  # the column family, the ingest
    ("load", "rename hpsd/OPTIONS*"),
    ("load", "mkdir hpsd/load-*"),
    ("load", "pwrite tmp/*"),  # sorted runs of the external sort
    ("load", "write hpsd/load-*.sst"),
    ("load", "fdatasync hpsd/load-*.sst"),
    ("load", "link hpsd/*.sst"),  # the ingest begins
    ("load", "fdatasync hpsd/0*.sst"),
    ("load", "fdatasync hpsd/MANIFEST*"),
    ("load", "unlink hpsd/load-*"),  # ingested, but not in the catalog yet
    ("load", "remove hpsd/load-*"),
    ("load", "write " + RECORDS),
    ("load", "*"),
    ("switching load", "write " + RECORDS),
    ("switching load", "fdatasync " + RECORDS),
    ("activate", "write " + RECORDS),
    ("activate", "fdatasync " + RECORDS),
    ("rollback", "* " + RECORDS),
    ("unload", "write " + RECORDS),
    ("unload", "fdatasync " + RECORDS),
    ("unload", "write hpsd/MANIFEST*"),  # removed from the catalog; its column family is dropped
    ("unload", "fdatasync hpsd/MANIFEST*"),
    ("unload", "rename hpsd/OPTIONS*"),
    ("unload", "unlink hpsd/*.sst"),
    ("start", "*"),
    ("start", "* hpsd/MANIFEST*"),
    ("start", "rename hpsd/CURRENT"),
]


class State:
    """The content of a catalog. previous None: one of two versions, unknown which."""

    def __init__(self):
        self.seeds, self.active, self.previous = {}, 0, 0
        self.been = []  # versions that were active, the latest last; keep_versions counts only these

    def seen(self):
        return self.seeds, self.active

    def after(self, operation, version, seed=0):
        """The states that a kill during the operation may leave: the old one, those in between, the new one."""
        states = [self]

        def then(**changes):
            state = copy.deepcopy(states[-1])
            state.__dict__.update(changes)
            states.append(state)
            return state

        def leave(number):
            if states[-1].previous == number:
                then(previous=0)
            del then().seeds[number]
            states[-1].been = [n for n in states[-1].been if n != number]

        def activate(previous):
            then(active=version, previous=previous, been=[n for n in self.been if n != version] + [version])
            for number in self.been:
                if len(states[-1].been) > KEEP_VERSIONS and number != version:
                    leave(number)

        if operation in ("activate", "rollback"):
            activate(self.active if operation == "activate" else 0)
        elif operation == "unload":
            if version == self.active:  # the last version
                then(previous=0)
            leave(version)
            if version == self.active:
                states[-1].active = 0
        else:
            then().seeds[version] = seed
            if self.active == 0:
                states[-1].active, states[-1].been = version, [version]
            elif operation == "switching load":
                activate(self.active)
        return states


class Story:
    """A daemon that is killed again and again, and the expected content of its catalog."""

    def __init__(self, work, rng):
        self.work, self.rng, self.state, self.steps = work, rng, State(), []
        self.tables = {}
        for seed in SEEDS:
            self.tables[seed] = [Table.random("big", VERSION_BYTES // 512, 128, seed=seed),
                                 Table.random("small", 500, 8, seed=seed, number=1)]
            for table in self.tables[seed]:
                table.save(f"{work}/v{seed}")
        self.point = Killpoint(f"{work}/control", f"{work}/state")
        config = default_config(server={
            "model_roots": [work], "load_memory_bytes": "16MiB", "disk_free_min_bytes": "8MiB",
            "keep_versions": KEEP_VERSIONS, "hot_keys_save_s": 0})
        self.counts = collections.Counter()  # calls of a window in an undisturbed operation
        self.killed = collections.Counter()  # kills by window
        self.daemon = Daemon(work, config, wrapper=self.point.wrapper)
        self.learn("creation")
        self.daemon.kill()
        self.daemon.start()
        self.learn("start")

    # ---- operations ----

    def learn(self, operation):
        trace = self.point.take_trace()
        for window in [CREATION, *WINDOWS]:
            if window[0] == operation:
                self.counts[window] = len(fnmatch.filter(trace, window[1]))

    def choose(self, operation):
        """(version, seed, arguments of hpsctl) of a possible operation, or None."""
        state, rng = self.state, self.rng
        others = sorted(set(state.seeds) - {state.active})
        if operation in ("load", "switching load"):
            seed = rng.choice(SEEDS)
            args = ["load", "m", "--from", f"{self.work}/v{seed}"]
            args += ["--activate"] if operation == "switching load" else []
            return max(state.seeds, default=0) + 1, seed, args
        if operation == "rollback":
            return (state.previous, 0, ["rollback", "m"]) if state.previous else None
        if operation == "unload" and len(state.seeds) == 1 and rng.random() < 0.5:
            return state.active, 0, ["unload", "m", str(state.active)]
        if not others:
            return None
        version = rng.choice(others)
        return version, 0, [operation, "m", str(version)]

    def hpsctl(self, args):
        done = subprocess.run([f"{BIN}/hpsctl", "--addr", self.daemon.admin, *args], capture_output=True,
                              text=True, timeout=PATIENCE_S * 4, check=False)
        return done.returncode, done.stdout + done.stderr

    def do(self, operation):
        """Run the operation without a kill."""
        version, seed, args = self.choose(operation)
        self.steps.append(" ".join(args))
        self.point.take_trace()
        code, text = self.hpsctl(args)
        assert code == 0, text
        self.learn(operation)
        self.state = self.state.after(operation, version, seed)[-1]

    def prepare(self, operation):
        """Run operations until this operation is possible."""
        needed = {"switching load": 1, "activate": 2, "rollback": 2, "unload": 2}
        while len(self.state.seeds) < needed.get(operation, 0):
            self.do("load")
        if operation == "rollback" and not self.state.previous:
            self.do("activate")

    # ---- kills ----

    def kill(self, window):
        """Kill hpsd in this operation, sometimes also in the start after it, and check the result."""
        self.prepare(window[0])
        if window[0] in ("start", "creation"):
            states = [self.state]
            self.kill_start(window)
        else:
            states = self.kill_operation(window)
            if self.rng.random() < 0.2:
                self.kill_start(("start", "*"))
        self.daemon.start()
        self.point.take_trace()
        self.settle(states)

    def kill_operation(self, window):
        """Kill hpsd in the operation; the states that this may leave."""
        version, seed, args = self.choose(window[0])
        self.arm(window, " ".join(args))
        code, text = self.hpsctl(args)
        states = self.state.after(window[0], version, seed)
        if code != 0:
            assert self.daemon.process.wait(PATIENCE_S) == -signal.SIGKILL, text
        self.end(window)
        return states if code != 0 else states[-1:]  # if hpsctl reported success, the operation is complete

    def kill_start(self, window):
        self.daemon.kill()
        if window[0] == "creation":
            shutil.rmtree(self.daemon.state)
            self.state = State()
        self.arm(window, window[0])
        try:
            self.daemon.start()
        except AssertionError:
            assert self.daemon.process.wait(PATIENCE_S) == -signal.SIGKILL, self.daemon.log()
        self.end(window)

    def arm(self, window, what):
        number = self.rng.randint(1, max(1, self.counts[window]))
        torn = self.rng.randint(0, 1)
        self.steps.append(f"{what}, killed at {number} of {self.counts[window]} x '{window[1]}'"
                          + ", torn" * torn)
        self.point.arm(window[1], number, torn)

    def end(self, window):
        """Disarm the kill if it has not happened; record where it happened."""
        if self.daemon.alive():
            self.point.disarm()
            self.steps.append("killed when it was done")
            self.killed[(window[0], "done")] += 1
            self.point.take_trace()
        else:
            last = self.point.take_trace()[-1]
            self.steps.append("at " + last)
            self.killed[window] += fnmatch.fnmatch(last, window[1])
        self.daemon.kill()

    # ---- checks ----

    def settle(self, states):
        """Find the state of the catalog among the possible ones, and check everything."""
        models = self.daemon.ctl("-o", "json", "models")[0].get("models", [])
        versions = models[0]["versions"] if models else []
        seeds = {int(v["version"]): int(v["source"][-1]) for v in versions}
        active = int(models[0].get("active_version", 0)) if models else 0
        assert all(v["state"] in ("active", "resident") for v in versions), versions
        possible = [state for state in states if state.seen() == (seeds, active)]
        assert possible, f"{seeds} active {active}, expected one of {[s.seen() for s in states]}"
        self.state = possible[-1]
        if len({state.previous for state in possible}) > 1:
            self.state.previous = None
        if self.state.previous == 0:
            assert self.hpsctl(["rollback", "m"])[0] == 1
        self.check_rows()
        self.check_disk()

    def check_rows(self):
        stub = self.daemon.stub()
        if self.state.active:
            assert ask(stub, "m", {"small": [1]}).version == self.state.active
        for version, seed in self.state.seeds.items():
            tables = self.tables[seed]
            reply = ask(stub, "m", {table.name: table.keys for table in tables}, version=version)
            assert reply.version == version
            for table, result in zip(tables, reply.results):
                assert result.key_status == b"", f"version {version}: keys of {table.name} are missing"
                same = np.array_equal(np.frombuffer(result.rows, "<u8"), table.rows.view("<u8").ravel())
                assert same, f"version {version}: rows of {table.name} are wrong"
        with refused(grpc.StatusCode.NOT_FOUND):
            ask(stub, "m", {"small": [1]}, version=max(self.state.seeds, default=0) + 1)

    def check_disk(self):
        """Only versions of the catalog may use disk space."""
        state = self.daemon.state
        families = {"default", "catalog"} | {f"m@{version}" for version in self.state.seeds}
        assert set(rocksdb_families(f"{state}/hpsd")) == families
        assert os.listdir(f"{state}/tmp") == []
        assert set(os.listdir(state)) <= {"admin.sock", "hpsd", "hpsd.ballast", "hpsd.lock", "instance", "lock", "tmp"}
        rows = others = 0
        names = os.listdir(f"{state}/hpsd")
        for name in names:
            n_bytes = os.stat(f"{state}/hpsd/{name}").st_blocks * 512
            if name.endswith(".sst"):
                rows += n_bytes
            else:
                others += n_bytes
        assert len(names) < 50, names
        assert not [name for name in names if name.startswith("load-") or name.endswith(".dbtmp")]
        assert rows < len(self.state.seeds) * VERSION_BYTES * 1.2 + MIB  # with aligned blocks
        assert others < 8 * MIB


def test_kill_when_at_any_call_that_changes_files_then_the_catalog_is_old_or_new_and_complete(work):
    seed = kill_seed()
    rng = random.Random(seed)
    story = Story(work, rng)
    try:
        for _ in range(KILLS // 15):
            story.kill(CREATION)
        for operation in ("load", "switching load", "activate", "rollback", "unload"):
            story.do(operation)
        known = [window for window in WINDOWS if story.counts[window]]  # other versions of RocksDB lack some
        assert len(known) > len(WINDOWS) * 3 / 4, f"calls that never came: {set(WINDOWS) - set(known)}"
        windows = [window for _ in range(-(-KILLS // len(known)))
                   for window in rng.sample(known, len(known))]
        while windows and story.killed.total() < KILLS:
            story.kill(windows.pop())
        for window in known:
            for _ in range(20):
                if story.killed[window] == 0:  # the chosen call did not happen
                    story.kill(window)
            assert story.killed[window] > 0, f"never killed in {window}"
    except BaseException:
        print(f"HPS_KILL_SEED={seed} HPS_KILLS={KILLS}; the last steps:", *story.steps[-12:], sep="\n  ")
        print(story.daemon.log()[-4000:])
        raise
    finally:
        story.daemon.kill()
    print(f"seed {seed}: {story.killed.total()} kills")
    for (operation, pattern), n in sorted(story.killed.items()):
        print(f"  {operation:16} {pattern:32} {n:5}")


if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-s", "-p", "no:cacheprovider", __file__]))
