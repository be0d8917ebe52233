# SPDX-License-Identifier: Apache-2.0
"""Triton's backend "hps" in a host of ours (triton_host.c), also with sanitizers, under which the genuine Triton hangs at its end.
tests/interop/test_triton_backend.py tests it in the genuine one."""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import tempfile
import threading

import numpy as np
import pytest

import ports
import relay
from rig import BIN, PATIENCE_S, REPORT, Authority, Daemon, Table, default_config, hpsgen, model_config, scratch, until

BUILD = os.path.dirname(BIN)
LIBRARY = f"{BUILD}/triton/hps/libtriton_hps.so"
ROWS, DIMS = 1000, (4, 16, 7, 1, 32)
CUDA = {"LD_LIBRARY_PATH": f"{BUILD}/tests/cudart"}
INVALID, UNAVAILABLE, UNSUPPORTED, CANCELLED = "3", "4", "5", "7"  # Triton's codes
pytestmark = pytest.mark.skipif(not os.path.exists(LIBRARY), reason="this build has no libtriton_hps.so")


class Host:
    """The program. It checks every answer, and at its end that nothing is left."""

    def __init__(self, address, *settings, program="triton_host", env=(), dims=DIMS):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [f"{BUILD}/tests/{program}", LIBRARY, "m", str(ROWS), ",".join(map(str, dims)), f"addr={address}", *settings],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **dict(env)})
        self.said = ""
        self.first = self.process.stdout.readline().strip()

    def __call__(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        found = self.process.stdout.readline().strip()
        if not found:
            raise AssertionError(f"{line}: {self.read_log()}")
        return found

    def read_log(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None:
                self.process.stdin.close()
                last = self.process.stdout.read()
                assert (self.process.wait(PATIENCE_S), last) == (0, "ok\n"), self.read_log()
            self.said = self.read_log()
            assert not REPORT.search(self.said), self.said
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


@contextlib.contextmanager
def hpsd_with(dims, **how):
    """hpsd with tables of these widths."""
    with scratch() as work:
        keys = np.arange(ROWS)
        tables = [Table(f"t{i}", keys, hpsgen.rows(1, i, keys, dim)) for i, dim in enumerate(dims)]
        model = model_config("m", [table.save(f"{work}/m") for table in tables], list(dims), [table.name for table in tables])
        with Daemon(work, default_config([model]), **{"listen": (f"unix:{work}/hpsd.sock", "127.0.0.1:0"), **how}) as daemon:
            daemon.wait_ready()
            yield daemon


@pytest.fixture(name="served", scope="module")
def hpsd_with_a_model():
    with hpsd_with(DIMS) as daemon:
        yield daemon


def failed(line):
    return int(line.split(", ")[1].split()[0])


@pytest.mark.parametrize("settings", [(), ("connections=2",)], ids=["", "two connections"])
def test_backend_when_random_batches_come_from_threads_then_every_row_is_right(served, settings):
    with Host(served.grpc[0], *settings) as host:
        assert host.first == "0"
        for _ in range(3):
            assert host("load 3") == "0"
            host("random 40 4 0 0")
            assert host("unload") == "0"


def test_backend_when_functions_of_triton_fail_then_requests_are_answered_or_given_back(served):
    with Host(served.grpc[0]) as host:
        assert host("load 2") == "0"
        assert failed(host("random 100 4 60 0")) > 0
        assert host("ask 0") == "-1"


@pytest.mark.parametrize("permille", [0, 60])
def test_backend_when_tensors_are_in_gpu_memory_then_cuda_copies_them(served, permille):
    with Host(served.grpc[0], env=CUDA) as host:
        assert host("load 2") == "0"
        host(f"random 40 2 {permille} 1")


def test_backend_when_there_is_no_cuda_then_gpu_memory_is_refused_by_name(served):
    with Host(served.grpc[0]) as host:
        assert host("load 1") == "0"
        found = host("gpu")
        if found == "-1":
            pytest.skip("this machine has libcudart")
        assert found.startswith(f"{UNSUPPORTED} input 'KEYS': it is in GPU memory, and no CUDA runtime was found (libcudart.so.13, ")


def test_backend_when_the_server_is_older_then_it_works_without_the_younger_functions(served):
    with Host(served.grpc[0], program="triton_host_older") as host:
        assert host("load 2") == "0"
        host("random 20 2 0 0")


@contextlib.contextmanager
def relayed(daemon):
    """A relay before the TCP port of hpsd, and its address."""
    with relay.Relays() as relays:
        port = ports.take()
        yield relays.add(port, to=int(daemon.grpc[1].rsplit(":", 1)[1])), f"127.0.0.1:{port}"


def test_request_when_hpsd_does_not_answer_then_unavailable_at_its_timeout_and_the_next_one_is_right(served):
    with relayed(served) as (front, address), Host(address) as host:
        assert host("load 1") == "0"
        assert host("ask 0") == "-1"
        front.set(relay.HANG)
        code, text = host("ask 200000").split(" ", 1)
        assert code == UNAVAILABLE and text
        front.set(relay.PASS)
        assert host("ask 0") == "-1"
        front.set(relay.CUT)
        code, text = host("ask 200000").split(" ", 1)
        assert code == UNAVAILABLE and address in text
        front.set(relay.PASS)
        assert host("ask 0") == "-1"


def test_request_when_cancelled_then_its_lookup_is_cancelled(served):
    with relayed(served) as (front, address), Host(address, "timeout=1h") as host:
        assert host("load 1") == "0"
        assert host("ask 0") == "-1"
        front.set(relay.HANG)
        for _ in range(3):
            assert host("cancel").split(" ")[0] == CANCELLED
        front.set(relay.PASS)
        assert host("ask 0") == "-1"


@contextlib.contextmanager
def held_replies(daemon):
    """A relay whose replies wait for an event: (event, address). A connection of hpsd's client is the only one."""
    gate = threading.Event()
    host, port = daemon.grpc[1].rsplit(":", 1)

    def pump(source, sink, opened):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                opened()
                sink.sendall(data)

    def serve():
        with contextlib.suppress(OSError):
            client = listener.accept()[0]
            server = socket.create_connection((host, int(port)))
            ends.extend((client, server))
            threading.Thread(target=pump, args=(server, client, gate.wait), daemon=True).start()
            pump(client, server, lambda: None)

    ends = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield gate, "127.0.0.1:%d" % listener.getsockname()[1]
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def test_requests_when_no_reply_comes_then_all_of_an_instance_are_in_flight_at_once(served):
    def lookups():
        return sum(value for name, value in served.metrics().items() if "rpc_requests_total" in name and '/Lookup"' in name)

    with concurrent.futures.ThreadPoolExecutor(1) as pool, held_replies(served) as (gate, address), Host(address) as host:
        gate.set()
        assert host("load 1") == "0"
        assert host("ask 0") == "-1"
        gate.clear()
        before = lookups()
        sent = pool.submit(host, "many 16 3600000000")
        until(lambda: lookups() >= before + 16, "16 lookups")
        assert not sent.done()
        gate.set()
        assert sent.result(PATIENCE_S).startswith("16 ")


def test_request_when_its_timeout_has_no_end_then_right(served):
    with Host(served.grpc[0]) as host:
        assert host("load 1") == "0"
        for timeout_us in (2**63 - 1, 2**63, 2**64 - 10**6, 2**64 - 1):  # -1 of a client of gRPC arrives as the last
            assert host(f"ask {timeout_us}") == "-1"


@pytest.mark.parametrize("tensors", ["0 0 0", "1x0 1x0 0", "3 1x3 1", "1x3 3 1", "2x3 2x3 1", "3x2 1x3 2", "2x0 2x3 0", "2x2 2x1 2"])
def test_request_when_its_shapes_are_unusual_then_right(served, tensors):
    with Host(served.grpc[0]) as host:
        assert host("load 1") == "0"
        assert host(f"raw {tensors}") == host(f"raw {tensors}") == "-1"


@pytest.mark.parametrize("tensors,words", [
    ("6x2 2x3 2", "'NUMKEYS' has 2 rows, one for each sample, but input 'KEYS' has 6 rows"), ("6 2x3 1", "input 'KEYS' has 1 rows"),
    ("1x6 1x6 1", "model 'm' has 5 tables"), ("0 65537 0", "input 'NUMKEYS' has counts of 65537 tables, the limit is 65536"),
    ("0 65536 0", "queries: 65536, limit is 1024"), ("1 2 2 -1", "input 'NUMKEYS': [0, 1] is -1")])
def test_request_when_its_shapes_are_invalid_then_refused(served, tensors, words):
    with Host(served.grpc[0]) as host:
        assert host("load 1") == "0"
        found = host(f"raw {tensors}")
        assert found.startswith(f"{INVALID} ") and words in found


@pytest.mark.parametrize("dims", [(4, 8), (16, 8), (8, 16)])
def test_request_when_hpsd_starts_again_with_other_widths_in_the_version_of_this_number_then_one_fails(dims):
    with scratch() as work, Host(f"unix:{work}/hpsd.sock", dims=(8, 8)) as host:
        listen = (f"unix:{work}/hpsd.sock",)
        with hpsd_with((8, 8), listen=listen):
            assert host("load 1") == "0"
            assert host("ask 0") == host("ask 0") == "-1"
        host(f"dims {','.join(map(str, dims))}")
        with hpsd_with(dims, listen=listen):
            assert host("raw 5 2 2 3").startswith(f"{UNAVAILABLE} the tables of model \"m\" have other widths")
            assert host("raw 5 2 2 3") == host("ask 0") == "-1"


@pytest.mark.parametrize("setting,words", [
    ("timeout=soon", "--backend-config=hps,timeout=soon: expected a duration"), ("connections=0", "expected a number from 1 to 64"),
    ("token-in-clear=yes", "expected true or false")])
def test_backend_when_a_setting_is_invalid_then_it_does_not_start_and_names_it(served, setting, words):
    with Host(served.grpc[0], setting) as host:
        assert host.first.startswith(f"{INVALID} ") and words in host.first


def test_model_when_the_address_is_invalid_then_it_does_not_load_and_names_it():
    with Host("nowhere:port") as host:
        assert host("load 1").startswith(f"{INVALID} ") and host("load 1").count("nowhere:port") == 1


def test_backend_when_hpsd_needs_tls_and_a_token_then_the_settings_give_them():
    with scratch() as work:
        authority = Authority(work, "ca")
        certificate, key = authority.issue("server")
        token = "of-triton-0123456789abcdef"
        with open(f"{work}/token", "w", encoding="ascii") as f:
            f.write(f"{token}\n")
        with open(f"{work}/roles.json", "w", encoding="utf-8") as f:
            json.dump({"rules": [{"who": ["token:triton"], "may": ["lookup"]}],
                       "tokens": [{"name": "triton", "sha256": hashlib.sha256(token.encode()).hexdigest()}]}, f)
        table = Table("t", np.arange(ROWS), hpsgen.rows(1, 0, np.arange(ROWS), 4))
        server = {"tls": {"certificate": certificate, "key": key}, "access": f"{work}/roles.json"}
        config = default_config([model_config("m", [table.save(f"{work}/m")], [4], ["t"])], server=server)
        with Daemon(work, config) as daemon:
            daemon.wait_ready()
            with Host(daemon.grpc[0], f"tls-ca={authority.path}", f"token-file={work}/token", dims=(4,)) as host:
                assert host("load 1") == "0"
                host("random 10 2 0 0")
            with Host(daemon.grpc[0], f"tls-ca={authority.path}", dims=(4,)) as host:
                assert host("load 1") == "0"
                assert host("ask 0").startswith("1 ")  # INTERNAL: no role
            with Host(daemon.grpc[0], f"token-file={work}/token", "timeout=500ms", dims=(4,)) as host:
                assert host("load 1") == "0"
                assert host("ask 0") != "-1"  # without TLS


def test_model_when_hpsd_is_away_then_it_loads_and_says_so():
    with scratch() as work, Host(f"unix:{work}/nobody.sock", "timeout=200ms") as host:
        assert host("load 1") == "0"
        assert host("ask 0").startswith(f"{UNAVAILABLE} ")
    assert "model 'm': requests fail for now: " in host.said and "nobody.sock" in host.said


def test_setting_when_its_name_is_unknown_then_ignored_with_a_line(served):
    with Host(served.grpc[0], "adress=x") as host:
        assert host.first == "0"
    assert "--backend-config=hps,adress=x ignored: the names are addr, " in host.said
