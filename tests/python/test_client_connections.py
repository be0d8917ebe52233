# SPDX-License-Identifier: Apache-2.0
"""Connections of the Python client: several servers, failing and restarting servers, deadlines, forks, TLS and
tokens."""
import concurrent.futures
import contextlib
import gc
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import grpc
import numpy as np
import pytest

import documents
import hpsd
import hpsd.aio
from hpsd import _address, _flat, _lookup
from hpsd._servers import LEFT_S_MIN, Attempts, Servers
from rig import PATIENCE_S, Authority, Daemon, Table, default_config, scratch, until
from served import MODEL, Sync, config, rows_of

UNAVAILABLE, DEADLINE = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED


def closed_port():
    """A bound socket that does not listen, and its address."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, f"127.0.0.1:{held.getsockname()[1]}"


# ---- addresses, TLS, tokens --------------------------------------------------------------------------

def test_unix_socket_when_connected_then_rows_are_correct(daemon):
    with hpsd.connect(daemon.grpc[1], MODEL) as client:
        np.testing.assert_array_equal(client.lookup("items", [1]), rows_of("items", [1]))


@pytest.mark.parametrize("connect", [hpsd.connect, hpsd.aio.connect])
@pytest.mark.parametrize("address", [
    "", "host:0", "host:port", "host:99999", "host:²", "host:", "http://host:1", "host/", "user@host:1", "a:1,b:2", " host:1",
    "host :1", "::1", "::1:8601", "[::1", "[::g]:1", "[]:1", "1.2.3.256", "host:1:2", "a\0b", "unix:", "unix:" + "a" * 108, [], [8601],
    8601, None, b"host:1"])
def test_address_when_invalid_then_the_error_says_what_was_expected(connect, address):
    with pytest.raises(hpsd.InvalidArgument, match="address: got .*expected HOST:PORT"):
        connect(address)


@pytest.mark.parametrize("address, target", [
    ("host", "host:8601"), ("a-b_c.example.:1", "a-b_c.example.:1"), ("1.2.3.4", "1.2.3.4:8601"), ("[::1]:80", "[::1]:80"),
    ("[fe80::1%eth0]", "[fe80::1%eth0]:8601"),
    ("unix:/a/../b", "unix:/b"), ("dns:///host:1", "dns:///host:1"), ("ipv4:1.2.3.4:1", "ipv4:1.2.3.4:1")])
def test_address_when_valid_then_converted_to_a_grpc_target(address, target):
    assert _address.as_targets(address) == _address.as_targets((one for one in [address])) == [target]


def test_tls_and_tokens_when_the_server_requires_them_then_the_client_sends_them(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("hpsd.example", names="DNS:hpsd.example")
    roles = os.path.join(work, "roles.json")
    with open(roles, "w", encoding="utf-8") as f:
        json.dump({"rules": [{"who": ["token:app"], "may": ["lookup"]}],
                   "tokens": [{"name": "app", "sha256": hashlib.sha256(b"secret").hexdigest()}]}, f)
    server = {"tls": {"certificate": certificate, "key": key}, "access": roles}
    with Daemon(work, config(work, server=server), flags=["--admin-listen", "127.0.0.1:0"]) as one:
        tls = hpsd.TLS(ca=authority.path, name="hpsd.example")
        for token in ("secret", lambda: "secret"):
            with hpsd.connect(one.grpc[0], MODEL, tls=tls, token=token) as client:
                assert client.lookup("items", [1]).shape == (1, 4)
        with pytest.raises(hpsd.PermissionDenied, match="token:app has not the role: read"):
            client.model()
        with hpsd.connect(one.grpc[0], MODEL, tls=tls) as client, pytest.raises(hpsd.Unauthenticated):
            client.lookup("items", [1])
        with hpsd.connect(one.grpc[0], MODEL, tls=authority.path, timeout=1) as client, \
                pytest.raises(hpsd.Unavailable):  # the certificate has another name
            client.lookup("items", [1])


@pytest.mark.parametrize("connect", [hpsd.connect, hpsd.aio.connect])
@pytest.mark.parametrize("address", [
    "hpsd.example", "10.0.0.1:1", "127.0.0.1.example", "[fe80::1]:1", "dns:///hpsd.example:1", "dns://127.0.0.1/hpsd.example",
    "ipv4:127.0.0.1:1,10.0.0.1:1", ["127.0.0.1", "hpsd.example"]])
def test_token_when_it_would_leave_the_host_without_tls_then_refused_unless_plaintext(connect, address):
    for token in ("secret", lambda: "secret"):
        with pytest.raises(hpsd.InvalidArgument, match="token: got an address on another host without TLS"):
            connect(address, token=token)
    for how in ({}, {"token": "secret", "tls": True}, {"token": "secret", "plaintext": True}):
        connect(address, **how)


@pytest.mark.parametrize("address", ["localhost", "127.8.8.8:1", "[::1]", "unix:/a", "dns:///LOCALHOST:1",
                                     "ipv4:127.0.0.1:1,127.0.0.2:2", "ipv6:[::1]:1"])
def test_token_when_it_stays_on_the_host_then_no_tls_is_needed(address):
    hpsd.connect(address, token="secret")


def test_token_when_there_is_a_proxy_then_calls_on_this_host_avoid_it(daemon, monkeypatch):
    held, proxy = closed_port()
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://{proxy}")
    with held, hpsd.connect(daemon.grpc[0], MODEL, token="secret", timeout=PATIENCE_S) as client:
        assert client.lookup("items", [1]).shape == (1, 4)


# ---- choice of the server ----------------------------------------------------------------------------

def servers_of(n, watch=None):
    return Servers([f"{i}" for i in range(n)], lambda target: grpc.insecure_channel(target), watch)


def test_pick_when_all_are_up_then_round_robin():
    servers = servers_of(3)
    picked = [servers.pick().target for _ in range(6)]
    assert sorted(picked[:3]) == ["0", "1", "2"] and picked[3:] == picked[:3]


def test_pick_when_a_server_has_failed_then_other_servers_for_a_while():
    servers = servers_of(2)
    bad = servers.pick()
    servers.failed(bad)
    assert all(servers.pick() is not bad for _ in range(5))
    good = servers.pick()
    assert servers.pick((good,)) is bad  # better than no server
    bad.down_until = 0.0
    assert bad in (servers.pick(), servers.pick())
    assert servers.limit(bad, 9.0) < 2 and servers.limit(good, 9.0) < 2
    servers.worked(good)
    assert servers.limit(bad, 0.5) == 0.25  # leaves time for the other server
    assert servers.limit(bad, 9.0, n_rounds=1) == 2.0  # the lookup itself may be slow
    servers.worked(bad)
    assert servers.limit(bad, 9.0) == 9.0


def test_pick_when_a_server_is_watched_then_other_servers_until_it_is_connected():
    watched, ended = [], []
    servers = servers_of(2, lambda channel, connected: watched.append(connected) or (lambda: ended.append(channel)))
    bad = servers.pick()
    servers.method(bad, "unary_unary", "/x")  # creates its channel
    servers.failed(bad)
    servers.failed(bad)
    bad.down_until = 0.0
    assert len(watched) == 1 and all(servers.pick() is not bad for _ in range(5))
    watched[0]()
    assert bad in (servers.pick(), servers.pick())
    servers.failed(bad)
    assert len(watched) == 2
    assert servers.take_channels() == [] and len(ended) == 1
    watched[1]()  # of a channel that has been closed


def test_failures_when_consecutive_then_the_pause_grows_to_a_limit():
    servers = servers_of(1)
    server = servers.pick()
    waits = []
    for _ in range(40):
        servers.failed(server)
        waits.append(server.down_until - time.monotonic())
    assert max(waits[:1]) < 0.2 and max(waits) <= 2.0 and waits[-1] > 0.9
    assert servers.limit(server, 9.0) == 9.0  # there is no other server


def test_attempts_when_aborted_by_updates_then_the_same_server_is_retried_after_a_pause():
    attempts = Attempts(servers_of(1), 60.0)
    server = attempts.next()
    assert attempts.may_retry(server, grpc.StatusCode.ABORTED, "updates came") and attempts.pause_s() > 0
    assert attempts.next() is server and server.down_until <= time.monotonic()
    attempts.deadline = time.monotonic() + LEFT_S_MIN / 2
    assert not attempts.may_retry(server, grpc.StatusCode.ABORTED, "updates came")
    assert attempts.verdict(server, DEADLINE, "").code is grpc.StatusCode.ABORTED


def test_attempts_when_all_servers_have_failed_then_pauses_until_the_deadline():
    attempts = Attempts(servers_of(2), 60.0)
    first = attempts.next()
    assert attempts.may_retry(first, UNAVAILABLE, "refused") and attempts.pause_s() == 0
    second = attempts.next()
    assert second is not first and not attempts.how(second)["wait_for_ready"]
    assert attempts.may_retry(second, DEADLINE, "") and 0 < attempts.pause_s() < 0.1
    assert attempts.how(first)["wait_for_ready"]
    assert not attempts.may_retry(first, grpc.StatusCode.NOT_FOUND, "none")
    attempts.deadline = time.monotonic()
    assert not attempts.may_retry(first, UNAVAILABLE, "refused") and not attempts.may_retry(first, DEADLINE, "")
    verdict = attempts.verdict(second, DEADLINE, "")  # it is connecting; try again
    assert isinstance(verdict, hpsd.Unavailable) and f"{first.target}: refused" in str(verdict)
    attempts.servers.worked(second)
    assert not attempts.may_retry(second, DEADLINE, "")
    assert isinstance(attempts.verdict(second, DEADLINE, ""), hpsd.DeadlineExceeded)


# ---- unreachable servers -----------------------------------------------------------------------------

def test_deadline_when_not_set_then_5_seconds():
    assert hpsd.connect("127.0.0.1").timeout == 5


def test_deadline_when_no_server_listens_then_unavailable_names_address_and_attempts():
    held, address = closed_port()
    with held, hpsd.connect(address, timeout=0.3) as client:
        with pytest.raises(hpsd.Unavailable, match=rf"{address}: .*attempts within 0.3 s\)") as caught:
            client.lookup("items", [1])
        assert isinstance(caught.value, ConnectionError)


@contextlib.contextmanager
def silent_server():
    """A gRPC server that accepts calls and does not reply until the block ends."""
    gate, calls = threading.Event(), []

    def never(request, context):
        calls.append(request)
        gate.wait(PATIENCE_S)
        return b""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(never)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        server = grpc.server(pool, handlers=[Handler()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", calls
        finally:
            gate.set()
            server.stop(0).wait()


def test_deadline_when_the_server_does_not_reply_then_deadline_exceeded():
    with silent_server() as (address, calls), hpsd.connect(address, timeout=0.2) as client:
        with pytest.raises(hpsd.DeadlineExceeded, match=f"{address}: no reply within 0.2 s"):
            client.lookup("items", [1])
        assert len(calls) == 1
        with pytest.raises(TimeoutError):
            client.lookup("items", [1], timeout=0.1)


def test_errors_when_replies_are_streamed_then_the_same_as_unary(daemon, monkeypatch):
    monkeypatch.setattr(_lookup, "STREAM_BYTES_MIN", 0)
    with hpsd.connect(daemon.grpc[0], MODEL) as client:
        with pytest.raises(hpsd.NotFound, match="777") as caught:
            client.lookup("items", [777], unknown="error")
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
    held, address = closed_port()
    with held, hpsd.connect([address, daemon.grpc[0]], MODEL) as client:
        for _ in range(4):
            assert client.lookup("items", [1]).shape == (1, 4)
    with held, hpsd.connect(address, timeout=0.3) as client, pytest.raises(hpsd.Unavailable):
        client.lookup("items", [1])
    with silent_server() as (silent, calls), hpsd.connect(silent, timeout=0.2) as client:
        with pytest.raises(hpsd.DeadlineExceeded):
            client.lookup("items", [1])
        assert len(calls) == 1


@pytest.mark.parametrize("connect", [hpsd.connect, Sync], ids=["sync", "aio"])
def test_hedge_when_a_server_is_slow_then_another_server_replies(daemon, connect):
    with silent_server() as (silent, calls):
        with connect([silent, daemon.grpc[0]], MODEL, hedge_ms=20, timeout=PATIENCE_S) as client:
            rows = [client.lookup("items", [1]) for _ in range(8)]
        assert len(calls) >= 1  # it was called, and the client did not wait for it
        np.testing.assert_array_equal(np.concatenate(rows), rows_of("items", [1] * 8))


def test_hedge_when_one_server_refuses_then_waits_for_the_other(daemon):
    held, address = closed_port()
    with held, hpsd.connect([address, daemon.grpc[0]], MODEL, hedge_ms=1) as client:
        for _ in range(8):
            assert client.lookup("items", [1]).shape == (1, 4)
        with pytest.raises(hpsd.NotFound):
            client.lookup("none", [1])


def n_lookups(one):
    """The number of lookups that the daemon has replied to."""
    counts = one.metrics()
    return sum(counts.get(f'hpsd_rpc_requests_total{{method="hps.v1.ParameterServer/{name}",code="OK"}}', 0)
               for name in ("Lookup", "LookupStream"))


def test_servers_when_all_are_up_then_calls_are_shared_equally(work):
    with scratch() as other, Daemon(work, config(work)) as a, Daemon(other, config(other)) as b:
        with hpsd.connect([a.grpc[0], b.grpc[0]], MODEL) as client:
            for _ in range(20):
                client.lookup("items", [1])
        assert (n_lookups(a), n_lookups(b)) == (10, 10)


@pytest.mark.parametrize("connect", [hpsd.connect, Sync], ids=["sync", "aio"])
def test_flat_when_servers_have_different_versions_or_are_down_then_all_calls_succeed(work, connect):
    held, gone = closed_port()
    with held, scratch() as other, Daemon(work, config(work)) as a, Daemon(other, config(other)) as b:
        a.load(MODEL, f"{work}/files", activate=True)
        with connect([a.grpc[0], b.grpc[0], gone], MODEL) as client:
            answers = [client.lookup_flat([1, 2], [1, 1], full=True) for _ in range(6)]
    assert {answer.version for answer in answers} == {1, 2}
    for answer in answers:
        np.testing.assert_array_equal(answer.rows, np.concatenate((rows_of("items", 1), rows_of("users", 2))))


@pytest.mark.parametrize("connect", [hpsd.connect, Sync], ids=["sync", "aio"])
def test_flat_when_a_version_number_is_reused_then_widths_are_of_the_new_version(work, connect):
    rows = np.arange(40, dtype="<f4").reshape(5, 8)
    for folder, dim in (("narrow", 4), ("wide", 8)):
        Table("items", np.arange(5, dtype="<i8"), rows[:, :dim]).save(f"{work}/{folder}")
    with Daemon(work, default_config(server={"model_roots": [work]})) as one, connect(one.grpc[0], "m") as client:
        for version, folder in ((1, "narrow"), (2, "narrow"), (1, "wide")):
            one.load("m", f"{work}/{folder}", version=version, activate=True, force=True)
            answer = client.lookup_flat([3], [1], full=True)
            np.testing.assert_array_equal(answer.rows, rows[3:4, :answer.dims[0]])
            assert (answer.version, answer.dims) == (version, (8 if folder == "wide" else 4,))
            if version == 2:
                one.ctl("unload", "m", "1")


@pytest.mark.parametrize("connect", [hpsd.connect, Sync], ids=["sync", "aio"])
def test_flat_when_its_version_is_unloaded_before_widths_are_known_then_uses_the_active_one(work, connect, monkeypatch):
    with Daemon(work, config(work)) as one, connect(one.grpc[0], MODEL) as client:
        begin = _flat.Flat.dims_lookup

        def unloaded_first(flat):
            monkeypatch.setattr(_flat.Flat, "dims_lookup", begin)
            one.load(MODEL, f"{work}/files", activate=True)
            one.ctl("unload", MODEL, "1")
            return begin(flat)

        monkeypatch.setattr(_flat.Flat, "dims_lookup", unloaded_first)
        answer = client.lookup_flat([1], [1], full=True)
        assert answer.version == 2
        np.testing.assert_array_equal(answer.rows, rows_of("items", [1]))


@pytest.mark.parametrize("how", ["unary", "stream", "hedged"])
@pytest.mark.parametrize("connect", [hpsd.connect, Sync], ids=["sync", "aio"])
def test_hang_when_one_of_two_servers_hangs_then_the_other_serves(work, connect, how, monkeypatch):
    if how == "stream":
        monkeypatch.setattr(_lookup, "STREAM_BYTES_MIN", 0)
        monkeypatch.setattr(_lookup, "STREAM_BYTES_MIN_ELSE", 0)
    with scratch() as other, Daemon(work, config(work)) as a, Daemon(other, config(other)) as b, \
            connect([a.grpc[0], b.grpc[0]], MODEL, hedge_ms=60_000 if how == "hedged" else None) as client:
        def error(timeout):
            try:
                client.lookup("items", [1], timeout=timeout)
            except hpsd.Error as failure:
                return failure
            return None

        for _ in range(4):
            client.lookup("items", [1], timeout=PATIENCE_S)
        b.process.send_signal(signal.SIGSTOP)
        try:
            failures = [failure for failure in (error(2.0) for _ in range(20)) if failure is not None]
        finally:
            b.process.send_signal(signal.SIGCONT)
        assert len(failures) == 1 and isinstance(failures[0], hpsd.DeadlineExceeded), failures
        before = n_lookups(b)
        until(lambda: error(PATIENCE_S) is None and n_lookups(b) > before, "look-ups of the one that was frozen")


def test_restart_when_one_of_two_is_killed_under_load_then_no_call_fails(work):
    with scratch() as other, Daemon(work, config(work)) as a, \
            Daemon(other, config(other), listen=[f"unix:{other}/hpsd.sock"]) as b:
        client = hpsd.connect([a.grpc[0], b.grpc[0]], MODEL, timeout=PATIENCE_S)
        stop, failures, counts = threading.Event(), [], [0] * 4

        def look(i):
            while not stop.is_set():
                try:
                    rows = client.lookup({"items": [i, 1], "users": [i]})
                    assert (rows["items"] == rows_of("items", [i, 1])).all()
                    counts[i] += 1
                except Exception as error:  # noqa: BLE001 whatever it is, it should not be
                    failures.append(error)
                    return
        threads = [threading.Thread(target=look, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                at = sum(counts)
                until(lambda: sum(counts) > at + 40, "look-ups")
                b.kill()
                at = sum(counts)
                until(lambda: sum(counts) > at + 40 or failures, "look-ups of the other one")
                b.restart()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            client.close()
        assert not failures, failures[0]


def test_restart_when_it_is_the_only_server_then_calls_wait_for_it(work):
    with Daemon(work, config(work), listen=[f"unix:{work}/hpsd.sock"]) as one, \
            hpsd.connect(one.grpc[0], MODEL, timeout=PATIENCE_S) as client:
        client.lookup("items", [1])
        one.kill()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.lookup, "items", [2])
            one.restart()
            np.testing.assert_array_equal(waiting.result(PATIENCE_S), rows_of("items", [2]))


# ---- forks, leaks ------------------------------------------------------------------------------------

def run_python(program, *args):
    path = os.pathsep.join(p for p in sys.path if p.endswith(("clients/python", "tests/python", "tests/e2e")))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), *args], capture_output=True, text=True,
                          timeout=PATIENCE_S * 2, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FORK = """
    import asyncio, gc, os, sys
    import hpsd, hpsd.aio
    from hpsd import _lookup
    address, how, end = sys.argv[1:]
    aio = how == "aio"
    loop = asyncio.new_event_loop()
    if how == "stream":
        _lookup.STREAM_BYTES_MIN = 0

    def connect():
        return (hpsd.aio if aio else hpsd).connect(address, "shop", timeout=30, hedge_ms=5 if how == "hedged" else None)

    def look(client, wait=False):
        try:
            rows = client.wait_for_updates() if wait else client.lookup("items", [1])
            return (loop.run_until_complete(rows) if aio else rows).shape == (1, 4)
        except hpsd.Error as error:
            return "create the client after the fork" in str(error) and "refused"

    client = connect()
    if how != "unused":
        assert look(client) is True
    child = os.fork()
    if child == 0:
        loop = asyncio.new_event_loop()
        client_of_child = connect()
        outcome = look(client), look(client, wait=True), look(client_of_child)
        if end == "close":
            loop.run_until_complete(client.close()) if aio else client.close()
        if end != "keep":
            del client
            gc.collect()
        sys.stdout.write(f"{outcome}\\n")
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert look(client) is True  # the parent keeps its connections
    """


@pytest.mark.parametrize("how, end", [("unused", "keep"), ("used", "drop"), ("used", "close"), ("hedged", "keep"), ("stream", "drop"),
                                      ("aio", "keep"), ("aio", "close")])
def test_fork_when_the_client_is_older_then_refused_in_the_child_and_usable_in_the_parent(daemon, how, end):
    """A client that the child creates works only if the parent has not made a lookup."""
    out = run_python(FORK, daemon.grpc[0], how, end)
    assert out == f"('refused', 'refused', {True if how == 'unused' else 'refused'!r})\n"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_when_each_creates_its_client_then_all_lookups_succeed(two_tables, work, start):
    out = documents.run_page("python_processes", two_tables.grpc[0], work,
                             lambda code: code.replace("multiprocessing.Pool", f"multiprocessing.get_context('{start}').Pool"))
    assert out == "8\n"


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_leaks_when_10000_lookups_are_made_then_objects_and_descriptors_do_not_grow(client):
    def look(n):
        for i in range(n):
            client.lookup({"items": [i % 200, 1], "users": ([1, 2], [0, 2])}, pooling={"users": "sum"})
        gc.collect()
        return len(gc.get_objects()), descriptors()
    look(200)
    objects, files = look(200)
    after, files_after = look(10_000)
    assert after < objects + 200 and files_after <= files


def test_close_when_clients_are_closed_then_their_connections_end(daemon):
    with hpsd.connect(daemon.grpc[0], MODEL) as client:
        client.lookup("items", [1])
    before = descriptors()
    for _ in range(20):
        with hpsd.connect(daemon.grpc[0], MODEL) as client:
            client.lookup("items", [1])
    until(lambda: gc.collect() >= 0 and descriptors() <= before + 3, "connections that end")


def test_version_when_pinned_then_lookups_use_it_after_a_switch(work):
    with Daemon(work, config(work)) as one, hpsd.connect(one.grpc[0], MODEL) as client:
        with client.version() as pinned:
            assert pinned.lookup_flat([1], [1], full=True).version == pinned.lookup("items", [1], full=True).version == 1
            for _ in range(2):
                one.load(MODEL, f"{work}/files", activate=True)
            assert client.lookup("items", [1], full=True).version == 3
            with pytest.raises(hpsd.NotFound, match="version 1 .* is not loaded"):  # keep_versions is 2
                pinned.lookup("items", [1])
        with client.version(2) as older:
            assert older.lookup("items", [1], full=True).version == 2
            assert older.lookup_flat([1], [1], full=True).version == 2 != client.lookup_flat([1], [1], full=True).version
            assert list(older.model().versions) == [2]
            assert list(older.model().tables) == ["items", "users", "wide"]
        assert sorted(client.model().versions) == [2, 3] and client.model().active_version == 3
