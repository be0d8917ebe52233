# SPDX-License-Identifier: Apache-2.0
"""hpsd as started by the service manager: the command line of the unit, sockets and notifications.

Paths below /etc, /run and /var/lib are replaced by a directory of the test, and ports by free ones.
"""
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from rig import BIN, PATIENCE_S, REPORT, SANITIZER, admin_grpc, admin_pb, scratch  # noqa: E402
import grpc  # noqa: E402

DEPLOY = os.path.join(ROOT, "deploy")
WATCHDOG_US = 300000
LAUNCH = """
import fcntl, os, sys
umask, n, command = int(sys.argv[1], 8), int(sys.argv[2]), sys.argv[3:]
held = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 200) for fd in command[:n]]
for number, fd in enumerate(held):
    os.dup2(fd, 3 + number)
os.umask(umask)
if n:
    os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(command[n], command[n:])
"""


def unit(name):
    """{setting: last value} of a unit."""
    with open(os.path.join(DEPLOY, name), encoding="utf-8") as f:
        return dict(re.findall(r"^(\w+)=(.*)$", f.read(), re.M))


def socket_units():
    return {unit(name)["FileDescriptorName"]: unit(name)
            for name in os.listdir(DEPLOY) if name.endswith(".socket")}


class Service:
    """Does for hpsd.service what systemd does, as far as hpsd can observe it."""

    def __init__(self, work):
        self.work, self.unit, self.process = work, unit("hpsd.service"), None
        for place in ("etc/hpsd", "run/hpsd", "var/lib/hpsd"):
            os.makedirs(f"{work}/{place}")
        with open(os.path.join(DEPLOY, "hpsd.json"), encoding="utf-8") as f:
            config = json.loads(self.moved(f.read()))
        config["server"].update(listen=["127.0.0.1:0"], http_listen="127.0.0.1:0", drain_delay_ms=500,
                                drain_timeout_ms=1000)
        self.write_config(config)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(f"{work}/notify")

    def moved(self, text):
        return re.sub(r"(/etc/hpsd|/run/hpsd|/var/lib/hpsd)", rf"{self.work}\1", text)

    def write_config(self, config):
        self.config = config
        with open(f"{self.work}/etc/hpsd/hpsd.json", "w", encoding="utf-8") as f:
            json.dump(config, f)

    def command(self):
        words = self.moved(self.unit["ExecStart"]).split()
        assert words[0] == "/usr/sbin/hpsd"
        return [os.path.join(BIN, "hpsd"), *words[1:]]

    def start(self, sockets=(), notify=False, env=()):
        """sockets: [(name, socket)]. notify: hpsd sends messages, which the test must read. Returns the addresses of
        the line "listening"."""
        env = {"PATH": "/usr/bin:/bin", **dict(env)}
        if notify:
            env.update(NOTIFY_SOCKET=f"{self.work}/notify", WATCHDOG_USEC=str(WATCHDOG_US))
        env.update((name, value) for name, value in os.environ.items() if name.endswith("SAN_OPTIONS"))
        if sockets:
            env["LISTEN_FDS"] = str(len(sockets))
            env["LISTEN_FDNAMES"] = ":".join(name for name, _ in sockets)
        numbers = [str(one.fileno()) for _, one in sockets]
        with open(f"{self.work}/log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, self.unit["UMask"], str(len(numbers)), *numbers,
                 *self.command()], env=env, stdout=subprocess.PIPE, stderr=log, cwd="/",
                pass_fds=[int(number) for number in numbers])
        return self.read_line("listening")

    def read_line(self, word):
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], f"no line {word!r}"
        words = b""
        while not words.endswith(b"\n"):  # unbuffered, so that select sees the next line
            byte = os.read(self.process.stdout.fileno(), 1)
            if not byte:
                break
            words += byte
        words = words.decode().split()
        assert words and words[0] == word, self.log()
        return dict(pair.split("=", 1) for pair in words[1:])

    def log(self):
        with open(f"{self.work}/log", encoding="utf-8") as f:
            return f.read()

    def expect(self, message):
        """Read notifications up to this one; returns the earlier ones."""
        passed = []
        while message not in passed:
            more = select.select([self.notify], [], [], PATIENCE_S)[0] and len(passed) < 200
            assert more, f"no {message} in {passed}\n{self.log()}"
            passed.append(self.notify.recv(4096).decode())
        return passed[:-1]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        assert not REPORT.search(self.log()), self.log()
        return code

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        self.notify.close()


@pytest.fixture(name="service")
def service_of_unit():
    with scratch() as work, contextlib.closing(Service(work)) as service:
        yield service


def ping(address):
    with grpc.insecure_channel(address) as channel:
        return admin_grpc.AdminStub(channel).Ping(admin_pb.PingRequest(), timeout=PATIENCE_S)


def get(address, path):
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


# ---- notifications ------------------------------------------------------------------------------------

def test_service_when_started_reloaded_and_stopped_then_systemd_is_notified(service):
    assert service.unit["Type"] == "notify" and service.unit["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service.unit["WatchdogSec"]) > 0
    addresses = service.start(notify=True)
    assert "STATUS=ready" in service.expect("READY=1")
    assert service.read_line("ready") == addresses
    for _ in range(3):
        service.expect("WATCHDOG=1")
    service.process.send_signal(signal.SIGHUP)
    last = service.expect("READY=1")[-1]
    assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", last)
    service.process.send_signal(signal.SIGTERM)
    service.expect("STOPPING=1")
    service.expect("STATUS=draining")
    service.expect("WATCHDOG=1")  # the watchdog must accept a long drain
    assert service.process.wait(PATIENCE_S) == 0


def test_service_when_a_model_cannot_be_loaded_then_status_says_not_ready(service):
    service.config["models"] = [{
        "model": "m", "sparse_files": [f"{service.work}/none"], "embedding_vecsize_per_table": [4],
        "embedding_table_names": ["a"], "default_value_for_each_table": [0.0],
        "deployed_device_list": [0],
        "max_batch_size": 8, "gpucache": False}]
    service.write_config(service.config)
    addresses = service.start(notify=True)
    # hpsd is up. /readyz and the line "ready" report whether the models are loaded.
    status = service.expect("READY=1")[-1]
    assert status.startswith('STATUS=not ready: model "m" ')
    while not status.startswith('STATUS=not ready: model "m" failed to load: '):  # unless it has failed already
        assert select.select([service.notify], [], [], PATIENCE_S)[0], service.log()
        status = service.notify.recv(4096).decode()
    assert get(addresses["http"], "/readyz") == 503
    assert not select.select([service.process.stdout], [], [], 0)[0]


# ---- permissions --------------------------------------------------------------------------------------

def test_service_when_started_then_only_the_group_can_use_the_admin_socket(service):
    addresses = service.start()
    path = f"{service.work}/run/hpsd/admin.sock"
    assert addresses["admin"] == f"unix:{path}"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert ping(addresses["admin"])
    state = f"{service.work}/var/lib/hpsd"
    there = [os.path.join(at, name) for at, dirs, files in os.walk(state) for name in dirs + files]
    assert f"{state}/hpsd/CURRENT" in there and f"{state}/lock" in there
    assert [one for one in there if stat.S_IMODE(os.stat(one).st_mode) & 0o077] == []
    assert service.end() == 0
    assert not os.path.exists(path)


def test_service_when_reloaded_then_logs_which_credentials_need_a_restart(service):
    credentials = f"{service.work}/run/credentials/hpsd.service"
    os.makedirs(credentials)
    with open(f"{credentials}/admin.token", "w", encoding="ascii") as f:
        f.write("secret\n")
    os.chmod(f"{credentials}/admin.token", 0o644)
    service.config["server"]["admin_token_file"] = f"{credentials}/admin.token"
    service.write_config(service.config)
    service.start(notify=True, env={"CREDENTIALS_DIRECTORY": credentials})
    service.expect("READY=1")
    assert "a secret that every user of this host can read (mode 0644); chmod o= " in service.log()
    assert "credentials not renewed" not in service.log()
    service.process.send_signal(signal.SIGHUP)
    service.expect("READY=1")
    assert re.search(r"credentials not renewed: .*restart hpsd.* keys=server\.admin_token_file", service.log())
    assert service.end() == 0


def test_units_when_read_then_user_group_and_modes_agree():
    service, admin = unit("hpsd.service"), socket_units()["admin"]
    with open(os.path.join(DEPLOY, "hpsd.sysusers"), encoding="utf-8") as f:
        user = re.search(r"^u (\S+) ", f.read(), re.M)[1]
    with open(os.path.join(DEPLOY, "hpsd.tmpfiles"), encoding="utf-8") as f:
        places = {line[1]: line[2:5] for line in map(str.split, f.read().splitlines()) if line[0] == "d"}
    assert {service["User"], service["Group"], admin["SocketUser"], admin["SocketGroup"]} == {user}
    assert admin["SocketMode"] == "0660"
    run = os.path.dirname(admin["ListenStream"])
    assert run == "/run/" + service["RuntimeDirectory"]
    assert places[run] == [service["RuntimeDirectoryMode"], user, user]
    assert admin["DirectoryMode"] == service["RuntimeDirectoryMode"]
    assert places["/var/lib/" + service["StateDirectory"]] == [service["StateDirectoryMode"], user, user]
    # Without this setting, a stop of the service removes the file of hpsd-admin.socket, which is still listening.
    assert service["RuntimeDirectoryPreserve"] == "yes"


def test_sysusers_and_tmpfiles_when_applied_then_the_group_reaches_the_admin_socket(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root may change owners: NOT CHECKED")
    (tmp_path / "etc").mkdir()
    for program, name in (("systemd-sysusers", "hpsd.sysusers"), ("systemd-tmpfiles", "hpsd.tmpfiles")):
        flags = ["--create"] if program == "systemd-tmpfiles" else []
        try:
            done = subprocess.run([program, *flags, f"--root={tmp_path}", os.path.join(DEPLOY, name)],
                                  capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except FileNotFoundError:
            pytest.skip(f"{program} is not installed: NOT CHECKED")
        assert done.returncode == 0, done.stderr
    groups = (tmp_path / "etc" / "group").read_text()
    gid = int(re.search(r"^hpsd:x:(\d+):", groups, re.M)[1])
    for place in ("run/hpsd", "var/lib/hpsd", "var/lib/hpsd/models", "etc/hpsd"):
        found = (tmp_path / place).stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (gid, 0o750), place


# ---- sockets ------------------------------------------------------------------------------------------

class Sockets:
    """The sockets of the units, opened as by systemd."""

    def __init__(self, service, names):
        self.items, self.addresses = [], {}
        for name in names:
            where = socket_units()[name]["ListenStream"]
            if where.startswith("/"):
                one, where = socket.socket(socket.AF_UNIX), service.moved(where)
                one.bind(where)
                self.addresses[name] = f"unix:{where}"
            else:
                one = socket.socket()
                one.bind((where.rsplit(":", 1)[0], 0))
                self.addresses[name] = "%s:%d" % one.getsockname()
            one.listen()
            self.items.append((name, one))

    def close(self):
        for _, one in self.items:
            one.close()


@pytest.mark.parametrize("names", [["grpc"], ["http"], ["admin"], ["kserve"], ["grpc", "http", "admin"],
                                   ["admin", "http", "kserve", "grpc"]])
def test_service_when_given_sockets_then_it_serves_on_them_and_does_not_remove_them(service, names):
    with contextlib.closing(Sockets(service, names)) as sockets:
        for turn in range(2):
            addresses = service.start(sockets.items)
            for name in names:
                assert addresses[name] == sockets.addresses[name]
            assert get(addresses["http"], "/readyz") == 200
            assert ping(addresses["admin"])
            with grpc.insecure_channel(addresses["grpc"]) as channel:
                grpc.channel_ready_future(channel).result(PATIENCE_S)
            if turn == 0 and "http" in names:  # a client that connects while hpsd is down waits
                assert service.end() == 0
                host, port = sockets.addresses["http"].rsplit(":", 1)
                early = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
                early.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                service.start(sockets.items)
                assert early.recv(64).startswith(b"HTTP/1.")
                early.close()
            assert service.end() == 0
        if "admin" in names:
            assert os.path.exists(sockets.addresses["admin"].removeprefix("unix:"))


def refused(service, sockets):
    with pytest.raises(AssertionError) as caught:
        service.start(sockets)
    assert service.process.wait(PATIENCE_S) == 2
    return str(caught.value)


def listening():
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    one.listen()
    return one


def test_service_when_given_an_admin_socket_without_authentication_then_refused(service):
    with listening() as one:
        text = refused(service, [("admin", one)])
        assert "without a configured administrator" in text and "127.0.0.1:%d" % one.getsockname()[1] in text
        token = f"{service.work}/token"
        with open(token, "w", encoding="ascii") as f:
            f.write("secret\n")
        service.config["server"]["admin_token_file"] = token
        service.write_config(service.config)
        assert service.start([("admin", one)])["admin"] == "127.0.0.1:%d" % one.getsockname()[1]


def test_service_when_given_two_http_sockets_then_refused(service):
    with listening() as one, listening() as other:
        assert "second http socket" in refused(service, [("http", one), ("http", other)])


# ---- installed files ----------------------------------------------------------------------------------

def test_install_when_done_then_all_files_exist_and_the_unit_finds_hpsd(tmp_path):
    build = os.path.dirname(BIN)
    if SANITIZER:
        pytest.skip("a sanitizer's build installs no units: NOT CHECKED")
    if not os.path.exists(os.path.join(build, "cmake_install.cmake")):
        pytest.skip(f"{build} is no build directory: NOT CHECKED")
    done = subprocess.run(["cmake", "--install", build, "--prefix", "/usr"],
                          env={**os.environ, "DESTDIR": str(tmp_path)}, capture_output=True, text=True,
                          timeout=PATIENCE_S * 4, check=False)
    assert done.returncode == 0, done.stderr
    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir()}
    assert installed >= {
        "usr/sbin/hpsd", "usr/bin/hpsctl", "usr/bin/hps-gen", "usr/bin/hps-bench",
        "usr/lib/systemd/system/hpsd.service", "usr/lib/systemd/system/hpsd.socket",
        "usr/lib/systemd/system/hpsd-http.socket", "usr/lib/systemd/system/hpsd-admin.socket",
        "usr/lib/systemd/system/hpsd-kserve.socket",
        "usr/lib/sysusers.d/hpsd.conf", "usr/lib/tmpfiles.d/hpsd.conf",
        "usr/share/doc/hpsd/examples/hpsd.json", "usr/share/doc/hpsd/examples/hpsd-gpu.conf",
        "usr/share/doc/hpsd/examples/hpsd-network.conf", "usr/share/doc/hpsd/examples/hpsd-credentials.conf",
        "usr/share/doc/hpsd/examples/hpsd-redis.json", "usr/share/doc/hpsd/examples/redis-hpsd.conf",
        "usr/share/doc/hpsd/examples/redis.compose.yml", "usr/share/doc/hpsd/examples/hpsd.logrotate",
        "usr/share/hpsd/hpsd.rules.yml",
        "usr/share/hpsd/hpsd.json", "usr/share/bash-completion/completions/hpsctl",
        "usr/share/bash-completion/completions/hpsd", "usr/share/zsh/vendor-completions/_hpsctl",
        "usr/share/zsh/vendor-completions/_hpsd"}
    program = unit("hpsd.service")["ExecStart"].split()[0]
    assert os.access(f"{tmp_path}{program}", os.X_OK)
    check = subprocess.run([f"{tmp_path}{program}", "--config",
                            f"{tmp_path}/usr/share/doc/hpsd/examples/hpsd.json", "--check"],
                           capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert check.returncode == 0, check.stderr
    assert subprocess.run(["bash", "-n", f"{tmp_path}/usr/share/bash-completion/completions/hpsctl"],
                          check=False).returncode == 0
