# SPDX-License-Identifier: Apache-2.0
"""Files that are installed with the programs: units, users, rules, dashboard, sample configuration."""
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", folder) for folder in ("e2e", "lib")]
from rig import SANITIZER  # noqa: E402
import ports  # noqa: E402
import redis  # noqa: E402
DEPLOY = os.path.join(ROOT, "deploy")
BIN = os.environ.get("HPS_BIN_DIR", os.path.join(ROOT, "build", "bin"))
UNITS = sorted(name for name in os.listdir(DEPLOY) if name.endswith((".service", ".socket")))
BUS_ABOVE = 10_000  # distance between the port and the bus port of a Redis cluster node
EXPOSURE_MAX = {"": 1.2, "hpsd-network.conf": 1.1, "hpsd-credentials.conf": 1.2}  # of 10, without and with a drop-in


def run(*args, env=None):
    return subprocess.run(args, capture_output=True, text=True, timeout=60, check=False, env=env)


def need(program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: NOT CHECKED")


def read(*path):
    with open(os.path.join(DEPLOY, *path), encoding="utf-8") as f:
        return f.read()


@pytest.fixture(name="units")
def units_with_our_binary(tmp_path):
    """Copies of the units with the path of the tested program, which has no spaces."""
    hpsd = os.path.join(BIN, "hpsd")
    (tmp_path / "program").symlink_to(hpsd if os.path.exists(hpsd) else "/bin/true")
    for name in UNITS:
        text = read(name).replace("/usr/sbin/hpsd", str(tmp_path / "program"))
        text = re.sub(r"^(User|Group|SocketUser|SocketGroup)=hpsd", r"\1=root", text, flags=re.M)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_units_when_verified_then_systemd_reports_no_problem(units):
    need("systemd-analyze")
    done = run("systemd-analyze", "verify", "--man=no", *(str(units / name) for name in UNITS))
    ours = [line for line in done.stderr.splitlines() if "hpsd" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("drop_in", sorted(name for name in os.listdir(DEPLOY) if re.match(r"hpsd-.*\.conf$", name)))
def test_units_when_a_drop_in_is_installed_then_systemd_accepts_it(units, drop_in):
    need("systemd-analyze")
    (units / "hpsd.service.d").mkdir()
    (units / "hpsd.service.d" / drop_in).write_text(read(drop_in))
    done = run("systemd-analyze", "verify", "--man=no", str(units / "hpsd.service"))
    assert [line for line in done.stderr.splitlines() if drop_in in line or "hpsd" in line] == []
    assert done.returncode == 0, done.stderr
    assert f"/etc/systemd/system/hpsd.service.d/{drop_in.removeprefix('hpsd-')}" in read(drop_in)


def test_units_when_the_gpu_drop_in_is_installed_then_only_gpu_devices_are_allowed():
    merged = read("hpsd.service") + read("hpsd-gpu.conf")
    assert re.findall(r"^PrivateDevices=(.*)$", merged, re.M)[-1] == "no"
    assert re.findall(r"^DevicePolicy=(.*)$", merged, re.M)[-1] == "closed"
    assert re.findall(r"^DeviceAllow=(.*)$", merged, re.M) == ["char-nvidia* rw"]


def test_units_when_the_driver_hangs_repeatedly_then_hpsd_is_always_restarted():
    merged = read("hpsd.service") + read("hpsd-gpu.conf")
    assert re.findall(r"^Restart=(.*)$", merged, re.M) == ["on-failure"]
    assert "1" not in re.search(r"^RestartPreventExitStatus=(.*)$", merged, re.M)[1].split()
    assert re.findall(r"^StartLimitIntervalSec=(.*)$", merged, re.M) == ["0"]


@pytest.mark.parametrize("drop_in", EXPOSURE_MAX)
def test_service_when_examined_then_exposure_is_low(tmp_path, drop_in):
    need("systemd-analyze")
    unit = tmp_path / "hpsd.service"
    unit.write_text(read("hpsd.service") + (read(drop_in) if drop_in else ""))
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager",
               f"--threshold={round(EXPOSURE_MAX[drop_in] * 10)}", str(unit))
    assert done.returncode == 0, done.stdout[-400:]
    level = float(re.search(r"exposure level for hpsd.service: ([\d.]+)", done.stdout)[1])
    assert level <= EXPOSURE_MAX[drop_in]


def test_service_when_exec_paths_apply_then_hpsd_and_its_reload_command_run(tmp_path):
    """Runs in a mount namespace like that of the service manager."""
    hpsd = os.path.join(BIN, "hpsd")
    may_mount = "mount --make-rprivate / && mount -o remount,bind,noexec /"
    if os.geteuid() != 0 or run("unshare", "-m", "/bin/bash", "-c", may_mount).returncode != 0:
        pytest.skip("only root may mount, and not in every container: NOT CHECKED")
    if SANITIZER or not os.path.exists(hpsd):
        pytest.skip("hpsd is not built, or is a sanitizer's, which maps libraries of its own: NOT CHECKED")
    service = read("hpsd.service")
    assert re.search(r"^NoExecPaths=(.*)$", service, re.M)[1] == "/"
    paths = re.search(r"^ExecPaths=(.*)$", service, re.M)[1].split()
    shutil.copy(hpsd, tmp_path / "hpsd")
    shutil.copy(hpsd, tmp_path / "other")
    paths = [str(tmp_path / "hpsd") if path == "/usr/sbin/hpsd" else path.lstrip("-") for path in paths]
    script = ["set -e", "mount --make-rprivate /"]
    script += [f"mount --bind {path} {path}" for path in paths if os.path.exists(path)]
    script += [f"mount --bind {tmp_path}/other {tmp_path}/other",
               f"mount -o remount,bind,noexec {tmp_path}/other"]
    script += ["mount -o remount,bind,noexec /", f"{tmp_path}/hpsd --version", "/usr/bin/kill -0 $$",
               f"! {tmp_path}/other --version", "! /usr/bin/env true"]
    done = run("unshare", "-m", "/bin/bash", "-c", "\n".join(script))
    assert done.returncode == 0, done.stderr
    reload = re.search(r"^ExecReload=(\S+)", service, re.M)[1]
    assert os.path.realpath(reload) in [os.path.realpath(path) for path in paths]


def test_socket_units_when_read_then_each_names_its_listener_and_agrees_with_the_sample():
    server = json.loads(read("hpsd.json"))["server"]
    expected = {
        "hpsd.socket": ("grpc", server["listen"][0]),
        "hpsd-http.socket": ("http", server["http_listen"]),
        "hpsd-admin.socket": ("admin", server["admin_listen"].removeprefix("unix:")),
    }
    for unit, (name, address) in expected.items():
        text = read(unit)
        assert re.search(r"^FileDescriptorName=(.*)$", text, re.M)[1] == name
        assert re.search(r"^ListenStream=(.*)$", text, re.M)[1] == address
        assert "Service=hpsd.service" in text


def test_sysusers_when_applied_to_an_empty_root_then_the_user_exists(tmp_path):
    need("systemd-sysusers")
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", os.path.join(DEPLOY, "hpsd.sysusers"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"^hpsd:x:\d+:\d+:[^:]*:/var/lib/hpsd:/usr/sbin/nologin$",
                     (tmp_path / "etc" / "passwd").read_text(), re.M)
    assert re.search(r"^hpsd:", (tmp_path / "etc" / "group").read_text(), re.M)


def test_tmpfiles_when_read_then_owner_is_the_user_of_the_service():
    service, lines = read("hpsd.service"), read("hpsd.tmpfiles").splitlines()
    assert "User=hpsd" in service and "d /var/lib/hpsd 0750 hpsd hpsd -" in lines
    need("systemd-tmpfiles")
    done = run("systemd-tmpfiles", "--cat-config", os.path.join(DEPLOY, "hpsd.tmpfiles"))
    assert done.returncode == 0, done.stderr


def test_dashboard_when_parsed_then_every_panel_has_an_expression():
    dashboard = json.loads(read("grafana", "hpsd.json"))
    assert all(panel["targets"] and all(t["expr"] for t in panel["targets"])
               for panel in dashboard["panels"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("sample", ["hpsd.json", "hpsd-redis.json"])
def test_sample_configuration_when_checked_then_hpsd_accepts_it(sample):
    hpsd = os.path.join(BIN, "hpsd")
    if not os.path.exists(hpsd):
        pytest.skip(f"{hpsd} is not built: NOT CHECKED")
    done = run(hpsd, "--config", os.path.join(DEPLOY, sample), "--check")
    assert done.returncode == 0, done.stderr


def stem(package):
    """The package name without the version, which differs between distributions."""
    return re.match(r"[a-z+-]+", package)[0].rstrip("-")


def test_container_when_built_then_it_has_the_libraries_that_hpsd_needs():
    hpsd = os.path.join(BIN, "hpsd")
    if not os.path.exists(hpsd):
        pytest.skip(f"{hpsd} is not built: NOT CHECKED")
    need("readelf")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", hpsd).stdout)
    assert needed
    found = run("dpkg", "-S", *(f"*/{name}" for name in needed
                                if not re.match(r"lib(c|m|stdc|gcc_s|asan|ubsan|tsan)\b|ld-linux", name)))
    owners = {stem(line.split(":")[0]) for line in found.stdout.splitlines()}
    there = {stem(word) for word in re.findall(r"\blib\S+|\bzlib1g", read("Containerfile"))}
    assert owners <= there, owners - there


def test_container_when_run_then_its_user_is_a_number_and_its_configuration_is_reachable():
    text = read("Containerfile")
    assert re.search(r"^USER [1-9][0-9]*:[1-9][0-9]*$", text, re.M) and re.search(r"^HEALTHCHECK .*hpsctl", text, re.M)
    made = set(re.search(r"install -d -o hpsd -g hpsd -m 0750 (.*)$", text, re.M)[1].split())
    assert made == set(re.findall(r"^d (\S+) 0750 hpsd hpsd -$", read("hpsd.tmpfiles"), re.M))  # also the folder of README's table
    config, = re.findall(r"^COPY deploy/(\S+) /etc/hpsd/hpsd.json$", text, re.M)
    done = run(os.path.join(BIN, "hpsd"), "--check", "--config", os.path.join(DEPLOY, config))
    assert done.returncode == 0, done.stderr
    assert "0.0.0.0:8601" in done.stdout and "0.0.0.0:8602" in done.stdout


def test_compose_when_read_then_its_files_exist_and_its_ports_are_published_on_this_host_only():
    text = read("compose.yml")
    ports_of = re.findall(r'ports: \[(.*)\]', text)
    assert ports_of and all(port.startswith("127.0.0.1:") for line in ports_of for port in re.findall(r'"(.*?)"', line))
    mounts = dict(re.findall(r'"\./(\S+?):(\S+?):ro"', text))  # podman-compose leaves the inline files of `configs` out
    assert len(mounts) == 6 and all(os.path.exists(os.path.join(DEPLOY, name)) for name in mounts)
    rules, = re.findall(r"rule_files: \[(.*)\]", read("prometheus", "prometheus.yml"))
    assert mounts["prometheus/hpsd.rules.yml"] == f"/etc/prometheus/{rules}"
    folder, = re.findall(r"path: (.*?)}", read("grafana", "dashboards.yml"))
    assert os.path.dirname(mounts["grafana/hpsd.json"]) == folder


# ---- a fleet over Redis -------------------------------------------------------------------------------

def services():
    """{service: words of its command} of the compose file, which has commands as JSON."""
    blocks = re.split(r"^  (?=[\w-]+:)", read("redis.compose.yml").split("services:")[1], flags=re.M)[1:]
    return {block.split(":")[0]: json.loads(re.search(r"command: (\[.*?\])(?:,|$)", block, re.M)[1])
            for block in blocks}


@pytest.mark.skipif(redis.missing() is not None, reason="no redis-server")
def test_fleet_when_passwords_are_not_set_then_redis_does_not_start(tmp_path):
    done = run("redis-server", os.path.join(DEPLOY, "redis-hpsd.conf"), "--port", str(ports.take(BUS_ABOVE)), "--dir", str(tmp_path))
    assert done.returncode != 0 and "HPSD_PASSWORD_SHA256" in done.stdout + done.stderr


@pytest.fixture(name="fleet")
def files_of_a_fleet_with_passwords(tmp_path, monkeypatch):
    """A copy of deploy/ after the commands in the compose file have created passwords."""
    need("openssl")
    copy = str(shutil.copytree(DEPLOY, tmp_path / "deploy"))
    commands = re.findall(r"^#   ((?:hpsd=|sha\(|sed ).*)$", read("redis.compose.yml"), re.M)
    assert len(commands) == 5
    subprocess.run(["sh", "-ec", "\n".join(commands)], cwd=copy, check=True)
    monkeypatch.setattr(sys.modules[__name__], "DEPLOY", copy)
    return copy


@pytest.mark.usefixtures("fleet")
@pytest.mark.skipif(redis.missing() is not None or shutil.which("redis-cli") is None, reason="no redis-server")
def test_fleet_when_its_commands_have_run_then_redis_is_a_cluster_and_hpsd_uses_it(tmp_path):
    commands = services()
    port_of = {str(7000 + i): str(ports.take(BUS_ABOVE)) for i in range(1, 7)}
    assert set(port_of) == {commands[f"redis-{i}"][3] for i in range(1, 7)}

    def real(word, data="/data"):
        word = re.sub(r"\b700\d\b", lambda found: port_of[found[0]], word)
        return word.replace("/etc/redis/hpsd.conf", os.path.join(DEPLOY, "redis-hpsd.conf")).replace("/data", data)

    servers = []
    try:
        for i in range(1, 7):
            data = tmp_path / str(i)
            data.mkdir()
            args = [real(word, str(data)) for word in commands[f"redis-{i}"]]
            servers.append(subprocess.Popen(redis.ending_with_parent(args), stdout=subprocess.DEVNULL))

        env = dict(os.environ, REDISCLI_AUTH=re.search(r"REDISCLI_AUTH: ([\w-]+)", read("redis.compose.yml"))[1])

        def cli(*args):
            return run("redis-cli", "-p", *args, env=env).stdout

        def cluster():
            return run(*(real(word) for word in commands["cluster"]), env=env)

        def is_made():
            return cluster().returncode == 0  # the container is also restarted after a failure

        redis.until(is_made, "the cluster")
        for port in port_of.values():
            redis.until(lambda port=port: "cluster_state:ok" in cli(port, "cluster", "info"), "the cluster's state")
        assert "Performing" not in cluster().stdout  # the cluster exists already
        nodes = (port_of["7001"], "cluster", "nodes")
        redis.until(lambda: len(re.findall(r"\bslave\b", cli(*nodes))) == 3, "a replica of each")
        redis.until(lambda: "fail" not in cli(*nodes) and "disconnected" not in cli(*nodes), "all nodes")
        assert "NOAUTH" in run("redis-cli", "-p", port_of["7001"], "dbsize").stdout  # needs a password
        replicas = re.findall(r"^\S+ 127\.0\.0\.1:(\d+)@\S* \S*slave", cli(*nodes), re.M)
        for port in replicas:  # replicas use the password, too
            redis.until(lambda port=port: "master_link_status:up" in cli(port, "info", "replication"), "a replica")
        serve(tmp_path, real(read("hpsd-redis.json")), commands["hpsd-2"])
    finally:
        for server in servers:
            server.kill()
            server.wait()


def serve(work, sample, command):
    """Start hpsd as in the fleet, with other ports and directories, and check its Redis tier."""
    if not os.path.exists(os.path.join(BIN, "hpsd")):
        return
    config = json.loads(sample)
    config["persistent_db"]["path"] = config["server"]["state_dir"] = str(work / "state")
    config["server"]["admin_listen"] = f"unix:{work}/admin.sock"
    (work / "hpsd.json").write_text(json.dumps(config))
    args = [str(work / "hpsd.json") if word.startswith("/etc") else re.sub(r":86\d\d$", ":0", word) for word in command]
    with subprocess.Popen([os.path.join(BIN, "hpsd"), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as hpsd:
        try:
            line = hpsd.stdout.readline()
            assert line.startswith(b"listening "), hpsd.stderr.read()
            assert hpsd.stdout.readline() == line.replace(b"listening ", b"ready ")  # there are no models

            def knows_redis():  # hpsd may connect to Redis only after it is ready
                done = run(os.path.join(BIN, "hpsctl"), "--addr", f"unix:{work}/admin.sock", "-o", "json", "status")
                tiers = {tier["tier"]: tier for tier in json.loads(done.stdout)["tiers"]}
                assert set(tiers) == {"host", "redis", "rocksdb"}
                roles = [server.get("role") for server in tiers["redis"].get("servers", [])]
                return tiers["redis"].get("note") == "cluster" and roles.count("master") == 3

            redis.until(knows_redis, "the cluster in the status")
        finally:
            hpsd.terminate()
            assert hpsd.wait(60) == 0
