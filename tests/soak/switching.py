# SPDX-License-Identifier: Apache-2.0
"""./dev soak: checks that rows stay correct in every byte while versions are switched every second.

One hpsd serves two versions of the 26 tables of DLRM-DCNv2, generated from different seeds. The test activates them in
turn. Clients with stock grpcio, which know the service only by reflection, look up min(100,000, rows) random keys of
every table again and again, in changing order and combination, and unknown keys. Each reply is compared byte by byte
with the generator's formula for the version in the reply. The first difference ends the run.
"""
import argparse
import contextlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import grpc
import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.path.abspath(os.environ.get("HPS_BIN_DIR") or os.path.join(ROOT, "build", "bin"))
sys.path.insert(0, os.path.join(ROOT, "tests", "lib"))
import hpsgen  # noqa: E402
import reflected  # noqa: E402

SERVICE = "hps.v1.ParameterServer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
ABSENT_SHARE = 0.05
CALL_TIMEOUT_S = 60
REPORT_S = 0.5
PROGRESS_S = 5


class Wrong(Exception):
    """A reply that differs from the generated rows."""


class Model:
    """The output of hps-gen in a directory. All versions have the same keys; the seed of a version determines its
    rows."""

    def __init__(self, name, directory, seeds, hashed=False, defaults=None):
        with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as f:
            self.tables = json.load(f)["tables"]
        self.name, self.seeds, self.hashed = name, seeds, hashed
        self.defaults = defaults or [0.0] * len(self.tables)

    def keys(self, at):
        """The keys of rows with these numbers. Numbers beyond the table give absent keys."""
        return (hpsgen.mix64(at + hpsgen.GOLDEN) if self.hashed else at).view(np.int64)

    def rows(self, version, number, keys):
        return hpsgen.rows(self.seeds[version], number, keys, self.tables[number]["dim"])

    def sample(self, number, n_max, seed):
        """The numbers of min(n_max, rows) random rows of a table."""
        n_rows = self.tables[number]["rows"]
        rng = np.random.default_rng([seed, number])
        return rng.choice(n_rows, min(n_max, n_rows), replace=False).astype(np.uint64)


def share(number, n_clients, n_keys):
    """The part of a table's sample that a client checks: its own share, or the complete sample if it is small."""
    return slice(number, None, n_clients) if n_keys >= n_clients else slice(None)


class Walk:
    """The rows of one table that a client checks again and again, each time in another order."""

    def __init__(self, rows, n_versions):
        self.rows, self.rounds, self.at = rows, 0, 0
        self.order = np.arange(len(rows))
        self.checks = np.zeros((n_versions, len(rows)), np.int64)

    def next(self, n, rng):
        """Indexes of the next rows, at least one and at most n."""
        taken = self.order[self.at:self.at + n]
        self.at += len(taken)
        if self.at == len(self.rows):
            self.at = 0
            self.rounds += 1
            self.order = rng.permutation(len(self.rows))
        return taken

    def covered(self):
        return len(self.rows) if self.rounds > 0 else self.at


class Query:
    """Keys of one table for one call: the next rows of the walk, some of them twice, and absent keys."""

    def __init__(self, model, number, walk, n_max, rng):
        table = model.tables[number]
        self.number, self.name, self.dim = number, table["name"], table["dim"]
        self.places = walk.next(n_max, rng)
        present = walk.rows[self.places]
        twice = rng.choice(present, rng.binomial(len(present), ABSENT_SHARE))
        n_absent = rng.binomial(len(present) + 1, ABSENT_SHARE)
        beyond = np.where(rng.random(n_absent) < 0.5, rng.integers(0, 1000, n_absent),
                          rng.integers(0, 2**62, n_absent)).astype(np.uint64)
        at = np.concatenate([present, twice, beyond + np.uint64(table["rows"])])
        order = rng.permutation(len(at))
        self.absent = order >= len(present) + len(twice)
        self.keys = model.keys(at[order])
        self.n_absent = n_absent


class Client:
    """Calls the server and checks its replies."""

    def __init__(self, address, model, number=0, n_clients=1, sample=100000, batch=512, seed=1):
        self.channel = grpc.insecure_channel(address, options=UNLIMITED)
        service = reflected.Service(self.channel, SERVICE)
        self.request = service.message("LookupRequest")
        self.lookup = service.method("Lookup")
        self.lookup_stream = service.method("LookupStream", streams=True)
        status, types = service.enum("KeyStatus"), service.enum("DataType")
        self.found, self.unknown = status["KEY_STATUS_FOUND"], status["KEY_STATUS_UNKNOWN"]
        self.fp32 = types["DATA_TYPE_FP32"]
        self.model, self.batch = model, batch
        self.versions = sorted(model.seeds)
        self.rng = np.random.default_rng([seed, number])
        self.walks = []
        for i in range(len(model.tables)):
            rows = model.sample(i, sample, seed)
            self.walks.append(Walk(rows[share(number, n_clients, len(rows))], len(self.versions)))
        self.n_calls = self.n_streams = self.n_found = self.n_unknown = 0
        self.calls = []  # (start, end, version), taken by report()

    def close(self):
        self.channel.close()

    def covered(self):
        """The fraction of this client's keys that have been checked at least once."""
        n_covered = sum(walk.covered() for walk in self.walks)
        return n_covered / sum(len(walk.rows) for walk in self.walks)

    def report(self):
        calls, self.calls = self.calls, []
        return {"calls": calls, "streams": self.n_streams, "found": self.n_found,
                "unknown": self.n_unknown, "covered": self.covered()}

    def call(self):
        """Call the server with all tables or some, check every row, and return the version of the reply."""
        rng, n_tables = self.rng, len(self.walks)
        chosen = rng.permutation(n_tables)
        if rng.random() < 0.25:
            chosen = chosen[:rng.integers(1, n_tables + 1)]
        n_max = int(rng.integers(1, 2 * self.batch))
        queries = [Query(self.model, i, self.walks[i], n_max, rng) for i in chosen]
        request = self.request(model=self.model.name)
        for query in queries:
            request.queries.add(table=query.name, keys=query.keys.astype("<i8").tobytes())
        self.n_calls += 1
        is_stream = self.n_calls % 8 == 0
        begun = time.monotonic()
        if is_stream:
            replies = list(self.lookup_stream(request, timeout=CALL_TIMEOUT_S))
        else:
            replies = [self.lookup(request, timeout=CALL_TIMEOUT_S)]
        ended = time.monotonic()
        version = self.check(queries, replies)
        self.calls.append((begun, ended, version))
        self.n_streams += is_stream
        return version

    def check(self, queries, replies):
        versions = sorted({reply.version for reply in replies})
        if len(versions) != 1 or versions[0] not in self.model.seeds:
            raise Wrong(f"one call was answered from versions {versions}, expected one of {self.versions}")
        parts = [(name, list(results)) for name, results in itertools.groupby(
            (result for reply in replies for result in reply.results), lambda result: result.table)]
        expected, got = [query.name for query in queries], [name for name, _ in parts]
        if got != expected:
            raise Wrong(f"version {versions[0]}: expected tables {expected}, got {got}")
        for query, (_, results) in zip(queries, parts):
            self.check_table(versions[0], query, results)
        return versions[0]

    def check_table(self, version, query, results):
        n, where = len(query.keys), f"table {query.name}, version {version}"
        told = {"rows": (n, sum(result.row_count for result in results)),
                "dims": ({query.dim}, {result.dim for result in results}),
                "data types": ({self.fp32}, {result.data_type for result in results}),
                "defaulted keys": (0, sum(result.defaulted_key_count for result in results)),
                "unknown keys": (query.n_absent, sum(result.unknown_key_count for result in results)),
                "bytes": (n * query.dim * 4, sum(len(result.rows) for result in results))}
        if len(results) == 1:
            told["unique keys"] = (len(np.unique(query.keys)), results[0].unique_key_count)
        for what, (expected, got) in told.items():
            if expected != got:
                raise Wrong(f"{where}: {what}: expected {expected}, got {got}")
        status = b"".join(result.key_status or bytes([self.found]) * result.row_count
                          for result in results)
        expected = np.where(query.absent, self.unknown, self.found).astype(np.uint8)
        got = np.frombuffer(status, np.uint8)
        if len(got) != n or (got != expected).any():
            self.blame_status(where, query, expected, got)
        rows = np.frombuffer(b"".join(result.rows for result in results), "<f4").reshape(n, query.dim)
        wanted = np.full((n, query.dim), self.model.defaults[query.number], "<f4")
        is_there = ~query.absent
        wanted[is_there] = self.model.rows(version, query.number, query.keys[is_there])
        if rows.tobytes() != wanted.tobytes():
            self.blame_row(where, version, query, wanted, rows)
        self.walks[query.number].checks[self.versions.index(version), query.places] += 1
        self.n_unknown += query.n_absent
        self.n_found += n - query.n_absent

    def blame_status(self, where, query, expected, got):
        if len(got) != len(expected):
            raise Wrong(f"{where}: {len(got)} states of {len(expected)} keys")
        at = int(np.argmax(got != expected))
        raise Wrong(f"{where}, key {query.keys[at]}: expected status {expected[at]}, got {got[at]} "
                    f"({np.count_nonzero(got != expected)} of {len(got)} keys of this table differ)")

    def blame_row(self, where, version, query, wanted, rows):
        differs = wanted.view("<u4") != rows.view("<u4")
        bad = np.flatnonzero(differs.any(axis=1))
        key, row = query.keys[bad[0]], rows[bad[0]]
        value = int(np.argmax(differs[bad[0]]))
        expected, got = wanted[bad[0], value:value + 4], row[value:value + 4]
        known = {f"the row of version {other}": self.model.rows(other, query.number, key)[0]
                 for other in self.versions if other != version}
        known["the default row"] = np.full(query.dim, self.model.defaults[query.number], "<f4")
        known.update((f"the row of key {other}", self.model.rows(version, query.number, other)[0])
                     for other in query.keys if other != key)
        same = next((what for what, other in known.items() if other.tobytes() == row.tobytes()),
                    "no row that this call could have")
        raise Wrong(f"{where}, key {key}: the row differs from value {value} of {query.dim} on\n"
                    f"  expected {expected} {[hex(v) for v in expected.view('<u4')]} ...\n"
                    f"  got      {got} {[hex(v) for v in got.view('<u4')]} ...\n"
                    f"  what came is {same}; {len(bad)} of {len(rows)} rows of this table differ")


# ---- switches ----------------------------------------------------------------------------------------

class Switches:
    """Records the switches, and checks which versions a call may have used."""

    def __init__(self, version):
        self.begun, self.ended, self.versions = [-np.inf], [-np.inf], [version]

    def add(self, begun, ended, version):
        self.begun.append(begun)
        self.ended.append(ended)
        self.versions.append(version)

    def __len__(self):
        return len(self.versions) - 1

    def check(self, calls):
        """A call may use the last version activated before it began, or one that was activated while it ran."""
        for begun, ended, version in calls:
            first = int(np.searchsorted(self.ended, begun, "right")) - 1
            last = int(np.searchsorted(self.begun, ended, "right"))
            possible = self.versions[first:last]
            if version not in possible:
                raise Wrong(f"a call of {1e3 * (ended - begun):.1f} ms that began "
                            f"{1e3 * (begun - self.ended[first]):.1f} ms after the end of a switch to version "
                            f"{self.versions[first]} was answered from version {version}")


# ---- processes ---------------------------------------------------------------------------------------

def client_main(pipe, address, model, number, options):
    """The process of a client: makes calls until a message arrives on the pipe or the pipe is closed."""
    try:
        client = Client(address, model, number, options.clients, options.keys, options.batch, options.seed)
        reported = time.monotonic()
        while not pipe.poll():
            client.call()
            if time.monotonic() - reported > REPORT_S:
                pipe.send(client.report())
                reported = time.monotonic()
        pipe.send(client.report() | {"checks": [walk.checks for walk in client.walks]})
        client.close()
    except (Wrong, LookupError) as error:
        pipe.send({"failure": str(error)})
    except grpc.RpcError as error:
        pipe.send({"failure": f"a call failed: {error.code().name}: {error.details()}"})
    except OSError:
        pass  # the parent has ended


class Clients:
    """The processes of the clients, and their reports."""

    def __init__(self, address, model, options):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes, self.told = {}, [], [{}] * options.clients
        self.calls = []
        # Only the parent handles Ctrl-C, and then ends the clients, which inherit the mask. The helper process of
        # multiprocessing unblocks the signal when it starts, so it is started first.
        multiprocessing.resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            for number in range(options.clients):
                ours, theirs = context.Pipe()
                process = context.Process(target=client_main,
                                          args=(theirs, address, model, number, options))
                process.start()
                theirs.close()
                self.pipes[ours] = number
                self.processes.append(process)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        except BaseException:
            self.end()
            raise

    def listen(self, until_s):
        """Receive reports until a time."""
        while self.pipes:
            left_s = until_s - time.monotonic()
            ready = multiprocessing.connection.wait(list(self.pipes), max(0, left_s))
            for pipe in ready:
                self.take(pipe)
            if left_s <= 0:
                return

    def take(self, pipe):
        number = self.pipes[pipe]
        try:
            told = pipe.recv()
        except (EOFError, ConnectionError):
            raise Wrong(f"client {number} ended early") from None
        if "failure" in told:
            raise Wrong(told["failure"])
        self.calls += told.pop("calls")
        self.told[number] = told
        if "checks" in told:
            del self.pipes[pipe]

    def sum(self, what):
        return sum(told.get(what, 0) for told in self.told)

    def covered(self):
        return min(told.get("covered", 0) for told in self.told)

    def finish(self):
        """Let every client end its call, and receive the last reports."""
        for pipe in self.pipes:
            pipe.send("end")
        self.listen(time.monotonic() + CALL_TIMEOUT_S)
        if self.pipes:
            raise Wrong(f"clients {sorted(self.pipes.values())} did not end")

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()


def total_checks(model, clients, options):
    """For each table, how often each key of its sample was checked, with one row per version."""
    totals = []
    for number in range(len(model.tables)):
        n_keys = min(options.keys, model.tables[number]["rows"])
        total = np.zeros((len(model.seeds), n_keys), np.int64)
        for i, told in enumerate(clients.told):
            total[:, share(i, options.clients, n_keys)] += told["checks"][number]
        totals.append(total)
    return totals


def hpsctl(admin, *args):
    done = subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", admin, *map(str, args)],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Wrong(f"hpsctl {args[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")


def read_listening_line(process, patience_s=60):
    line = b""
    while b"\n" not in line:
        if not select.select([process.stdout], [], [], patience_s)[0]:
            raise Wrong("hpsd did not come to listen")
        piece = os.read(process.stdout.fileno(), 4096)
        if not piece:
            raise Wrong(f"hpsd ended with {process.wait()} before it listened")
        line += piece
    return dict(word.split("=", 1) for word in line.decode().splitlines()[0].split()[1:])


@contextlib.contextmanager
def daemon(work, options):
    """Start an hpsd without models; yields its addresses. At the end it is drained, or killed if draining fails."""
    memory = {"type": "parallel_hash_map"}
    if options.memory:
        memory["memory_bytes"] = options.memory
    config = {"supportlonglong": True, "volatile_db": memory, "models": [],
              "persistent_db": {"type": "rocks_db", "base_file": options.base_file},
              "server": {"listen": ["127.0.0.1:0"], "http_listen": "127.0.0.1:0",
                         "state_dir": f"{work}/state", "model_roots": [work], "drain_delay_ms": 1}}
    with open(f"{work}/hpsd.json", "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    log_file = f"{work}/hpsd.log"
    with open(log_file, "wb") as log:
        # In its own session, because only this program handles Ctrl-C. It ends hpsd after the clients.
        process = subprocess.Popen([os.path.join(BIN, "hpsd"), "--config", f"{work}/hpsd.json"],
                                   stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
    try:
        yield read_listening_line(process)
        process.terminate()
        code = process.wait(CALL_TIMEOUT_S)
        if code != 0:
            raise Wrong(f"hpsd ended with {code} when it was drained")
    except (Wrong, subprocess.TimeoutExpired):
        with open(log_file, encoding="utf-8", errors="replace") as f:
            sys.stderr.write("the end of the log of hpsd:\n" + "".join(f.readlines()[-20:]))
        raise
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# ---- the run -----------------------------------------------------------------------------------------

def say(text):
    print(text, flush=True)


def prepare(work, options):
    """Generate a directory for each version, and return the model."""
    for version, seed in options.seeds.items():
        subprocess.run([os.path.join(BIN, "hps-gen"), "--preset", "dlrm-dcnv2", "--scale",
                        str(options.scale), "--seed", str(seed), "--keys", options.key_form, "--out",
                        f"{work}/v{version}"], check=True, stdin=subprocess.DEVNULL)
    return Model("dlrm", f"{work}/v1", options.seeds, options.key_form == "hashed")


def switch_and_check(addresses, model, options):
    """Switch for a time, and until every key was checked; returns (clients, switches)."""
    clients, switches = Clients(addresses["grpc"], model, options), Switches(1)
    try:
        while clients.covered() == 0:  # the processes need time to start
            clients.listen(time.monotonic() + REPORT_S)
        begun = shown = time.monotonic()
        for turn in itertools.count(1):
            clients.listen(begun + turn * options.interval)
            if turn * options.interval > options.seconds and clients.covered() == 1:
                break
            since = time.monotonic()
            version = 1 + turn % 2
            hpsctl(addresses["admin"], "activate", model.name, version)
            switches.add(since, time.monotonic(), version)
            if since - shown >= PROGRESS_S:
                shown = since
                say(f"{since - begun:5.0f} s: {len(switches)} switches, {len(clients.calls):,} calls, "
                    f"{clients.sum('found') + clients.sum('unknown'):,} keys right, "
                    f"{100 * clients.covered():.0f} % of the sample checked at least once")
        clients.finish()
    finally:
        clients.end()
    switches.check(clients.calls)
    return clients, switches


def summary(model, clients, switches, options):
    checks = total_checks(model, clients, options)
    per_table = [total.shape[1] for total in checks]
    times_ms = 1e3 * np.array([ended - begun for begun, ended, _ in clients.calls])
    by_version = [sum(version == v for _, _, version in clients.calls) for v in sorted(model.seeds)]
    p50, p99 = np.percentile(times_ms, [50, 99])
    all_checks = [total.sum(axis=0) for total in checks]
    both = sum(int((total > 0).all(axis=0).sum()) for total in checks)
    lines = [
        ("tables", f"{len(checks)}"),
        ("keys checked per table, min / max", f"{min(per_table):,} / {max(per_table):,}"),
        ("distinct keys checked, all tables", f"{sum(per_table):,}"),
        ("... of these in every version", f"{both:,}"),
        ("times a key was checked, min / max",
         f"{min(c.min() for c in all_checks):,} / {max(c.max() for c in all_checks):,}"),
        ("rows right", f"{clients.sum('found'):,}"),
        ("unknown keys right", f"{clients.sum('unknown'):,}"),
        ("switches", f"{len(switches)}"),
        ("calls (of these streams)", f"{len(clients.calls):,} ({clients.sum('streams'):,})"),
        ("calls answered by version", " / ".join(f"{n:,}" for n in by_version)),
        ("failures", "0"),
        ("call p50 / p99 / max, ms", f"{p50:.1f} / {p99:.1f} / {times_ms.max():.1f}"),
    ]
    for what, value in lines:
        say(f"  {what:36} {value:>24}")
    if min(c.min() for c in all_checks) == 0 or 0 in by_version:
        raise Wrong("not every key was checked, or not every version answered")


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def arguments():
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", nargs="?", type=float, default=60, help="how long (default 60)")
    parser.add_argument("--scale", type=float, default=os.environ.get("HPS_SOAK_SCALE", "0.01"),
                        help="share of DLRM-DCNv2's rows (default $HPS_SOAK_SCALE, else 0.01: 1 GB a version)")
    parser.add_argument("--interval", type=float, default=1, help="seconds between switches (default 1)")
    parser.add_argument("--keys", type=positive, default=100000, help="keys of each table (default 100000)")
    parser.add_argument("--key-form", choices=("dense", "hashed"), default="dense",
                        help="keys as hps-gen --keys makes them (default dense)")
    parser.add_argument("--memory", help="hpsd's volatile_db.memory_bytes, such as 512MiB (default its own): "
                        "less than two versions need sends look-ups to RocksDB")
    parser.add_argument("--base-file", choices=("off", "auto"), default="off",
                        help="hpsd's persistent_db.base_file (default off); with --memory, look-ups read base files")
    parser.add_argument("--clients", type=positive, default=max(4, os.cpu_count() or 1),
                        help="processes that call (default 4, or one for each processor)")
    parser.add_argument("--batch", type=positive, default=512, help="keys of a table in a call, on average")
    parser.add_argument("--seed", type=int, default=1, help="of the random choice of keys (default 1)")
    options = parser.parse_args()
    options.seeds = {1: 11, 2: 22}  # seed of the rows of each version
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    work = tempfile.mkdtemp(prefix="hps-soak-")
    try:
        model = prepare(work, options)
        with daemon(work, options) as addresses:
            for version in options.seeds:
                began = time.monotonic()
                hpsctl(addresses["admin"], "load", model.name, "--from", f"{work}/v{version}",
                       "--version", version)
                say(f"version {version} loaded in {time.monotonic() - began:.1f} s")
            clients, switches = switch_and_check(addresses, model, options)
            summary(model, clients, switches, options)
        say("soak: every row, status and version was right")
        return 0
    except (Wrong, subprocess.SubprocessError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("soak: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
