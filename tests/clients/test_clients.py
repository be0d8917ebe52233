# SPDX-License-Identifier: Apache-2.0
"""Clients in other languages: the examples of docs/clients.md, and grpc-go and grpc-java in scenarios.

The programs of the scenarios are called as COMMAND TARGET N:
lookup, stream: look up the keys 0 to N - 1. They print the SHA-256 of the rows and the number of messages.
deadline: for each line of input, one call, with deadlines of 60, 0.2 and 60 s. Prints their codes.
health: prints the reply of Check, the replies of Watch, and the code with which the server ends it.
balance: four callers, until a line of input. Prints the number of failed calls. The host `two` is 127.0.0.1 and 127.0.0.2.
"""
import functools
import glob
import hashlib
import os
import select
import signal
import subprocess
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [*(os.path.join(os.path.dirname(HERE), folder) for folder in ("e2e", "lib")), HERE]
import documents  # noqa: E402
import languages  # noqa: E402
from rig import PATIENCE_S, Daemon, Table, default_config, model_config, scratch, until  # noqa: E402

START_S = PATIENCE_S * 6  # a JVM loads thousands of classes
N_ROWS, DIM = 41_000, 128  # 21 MB
ROWS = np.random.default_rng(1).random((N_ROWS, DIM), np.float32)
SCENARIOS = {"go": ("scenarios", "scenarios.go"), "java": ("Scenarios", "Scenarios.java")}


def programs(name, work):
    try:
        languages.copy(name, f"{work}/programs")
    except languages.LeftOut as reason:
        pytest.skip(f"{name}: {reason}")
    return f"{work}/programs"


def serve(work, *listen, state="state"):
    path = Table("items", np.arange(N_ROWS, dtype="<i8"), ROWS).save(work)
    config = default_config([model_config("default", [path], [DIM], ["items"])], durable=False, server={"drain_delay_ms": 200})
    return Daemon(work, config, state=state, listen=listen or ("127.0.0.1:0",))


@pytest.fixture(name="work")
def work_directory():
    with scratch() as work:
        yield work


@pytest.mark.parametrize("name", languages.LANGUAGES)
def test_example_when_run_as_shown_then_it_prints_the_row(work, name):
    folder = programs(name, work)
    with serve(work) as one:
        command = languages.example(name, folder, lambda code: documents.at(code, one.grpc[0]))
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr
    count, dim, value = done.stdout.split()
    assert (count, dim, np.float32(value)) == ("3", str(DIM), ROWS[0, 0])


def test_protos_when_generated_for_go_then_each_has_a_file_in_its_package(work):
    programs("go", work)  # installs the plugins
    folder = f"{languages.ROOT}/proto"
    protos = glob.glob("**/*.proto", root_dir=folder, recursive=True)
    os.mkdir(f"{work}/out")
    subprocess.run(["protoc", f"-I{folder}", "--go_out=.", "--go-grpc_out=.", *protos], check=True, cwd=f"{work}/out",
                   env={**os.environ, **languages.LANGUAGES["go"].env})
    assert len(glob.glob(f"{work}/out/**/*.pb.go", recursive=True)) == len(protos) + 6  # six files have services
    for path, package in (("hps/v1/lookup", "hpsv1"), ("inference/grpc_service", "inference")):
        with open(f"{work}/out/hpsd/{path}_grpc.pb.go", encoding="utf-8") as code:
            assert f"\npackage {package}\n" in code.read()


# ---- scenarios ---------------------------------------------------------------------------------------

@pytest.fixture(name="program", params=SCENARIOS, scope="module")
def program_of_a_language(request):
    name, file = SCENARIOS[request.param]
    with scratch() as work, open(os.path.join(HERE, file), encoding="utf-8") as code:
        folder = programs(request.param, work)
        command = languages.build(request.param, folder, name, code.read())
        with open(f"{folder}/hosts", "w", encoding="utf-8") as hosts:  # of Java
            hosts.write("127.0.0.1 two\n127.0.0.2 two\n")
        yield functools.partial(Program, command, folder)


class Program:
    def __init__(self, command, folder, *arguments):
        self.log = open(f"{folder}/log", "w+", encoding="utf-8")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen([*command, *map(str, arguments)], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, bufsize=0)  # select() sees each line

    def line(self):
        """The next line of output; "" after the last one."""
        assert select.select([self.process.stdout], [], [], START_S)[0], "no line"
        return self.process.stdout.readline().decode().strip()

    def call(self):
        self.process.stdin.write(b"\n")
        return self

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if failure[0]:
            self.process.kill()
        status = self.process.wait(START_S)
        self.log.seek(0)
        sys.stderr.write(self.log.read())
        for file in (self.process.stdin, self.process.stdout, self.log):
            file.close()
        assert failure[0] or status == 0


@pytest.mark.parametrize("command, scheme, n", [
    ("lookup", "", 3), ("lookup", "", N_ROWS), ("lookup", "unix", 3), ("stream", "", N_ROWS), ("stream", "unix", 3)])
def test_rows_when_looked_up_then_all_their_bytes(work, program, command, scheme, n):
    with serve(work, "127.0.0.1:0", f"unix:{work}/socket") as one:
        with program(command, f"unix://{work}/socket" if scheme else one.grpc[0], n) as client:
            digest, n_messages = client.line().split()
    assert digest == hashlib.sha256(ROWS[:n].tobytes()).hexdigest()
    assert (int(n_messages) > 1) == (command == "stream" and n == N_ROWS)


def test_call_when_the_server_hangs_then_its_deadline_ends_it_alone(work, program):
    with serve(work) as one, program("deadline", one.grpc[0], 0) as client:
        assert client.call().line() == "OK"
        one.send(signal.SIGSTOP)
        os.waitpid(one.process.pid, os.WUNTRACED)  # until all its threads are stopped
        assert client.call().line() in ("DEADLINE_EXCEEDED", "DeadlineExceeded")
        one.send(signal.SIGCONT)
        assert client.call().line() == "OK"


def test_health_when_the_server_stops_then_the_watch_says_so(work, program):
    with serve(work) as one, program("health", one.grpc[0], 0) as client:
        assert [client.line(), client.line()] == ["SERVING"] * 2
        one.stop()
        assert client.line() == "NOT_SERVING" and client.line() in ("UNAVAILABLE", "Unavailable")


def test_round_robin_when_a_server_restarts_then_no_call_fails(work, program):
    """It stops in order first, and is killed then."""
    def calls(daemon):
        return daemon.metrics().get('hpsd_lookup_requests_total{code="OK"}', 0)

    with serve(work) as one:
        port = one.grpc[0].rpartition(":")[2]
        with serve(work, f"127.0.0.2:{port}", state="other") as other:
            with program("balance", f"dns:///two:{port}", 0) as client:
                for end in (other.stop, other.kill):
                    until(lambda: min(calls(one), calls(other)) > 50, "calls of both")
                    before = calls(one)
                    end()
                    until(lambda: calls(one) > before + 50, "calls of the other one")
                    other.restart()
                until(lambda: calls(other) > 50, "calls after the restart")
                assert client.call().line() == "0"
