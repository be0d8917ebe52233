# SPDX-License-Identifier: Apache-2.0
"""What is installed beside the programs: units, users, rules, dashboard, sample configuration."""
import json
import os
import re
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy")
BIN = os.environ.get("HPS_BIN_DIR", os.path.join(ROOT, "build", "bin"))
UNITS = sorted(name for name in os.listdir(DEPLOY) if name.endswith((".service", ".socket")))
EXPOSURE_MAX = 2.5  # of 10; systemd's word below 2.5 and above 1 is OK


def run(*args):
    return subprocess.run(args, capture_output=True, text=True, timeout=60, check=False)


def need(program):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: NOT CHECKED")


def read(*path):
    with open(os.path.join(DEPLOY, *path), encoding="utf-8") as f:
        return f.read()


@pytest.fixture(name="units")
def units_with_our_binary(tmp_path):
    """Copies of the units whose daemon is a program that exists here."""
    hpsd = os.path.join(BIN, "hpsd")
    for name in UNITS:
        text = read(name).replace("/usr/sbin/hpsd", hpsd if os.path.exists(hpsd) else "/bin/true")
        text = re.sub(r"^(User|Group|SocketUser|SocketGroup)=hpsd", r"\1=root", text, flags=re.M)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_units_when_verified_then_systemd_says_nothing(units):
    need("systemd-analyze")
    done = run("systemd-analyze", "verify", "--man=no", *(str(units / name) for name in UNITS))
    ours = [line for line in done.stderr.splitlines() if "hpsd" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


def test_units_when_the_drop_in_for_gpus_is_there_then_systemd_takes_it(units):
    need("systemd-analyze")
    (units / "hpsd.service.d").mkdir()
    (units / "hpsd.service.d" / "gpu.conf").write_text(read("hpsd-gpu.conf"))
    done = run("systemd-analyze", "verify", "--man=no", str(units / "hpsd.service"))
    assert [line for line in done.stderr.splitlines() if "gpu.conf" in line or "hpsd" in line] == []
    assert done.returncode == 0, done.stderr
    merged = read("hpsd.service") + read("hpsd-gpu.conf")
    assert re.findall(r"^PrivateDevices=(.*)$", merged, re.M)[-1] == "no"


def test_service_when_examined_then_exposure_is_low():
    need("systemd-analyze")
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager",
               f"--threshold={round(EXPOSURE_MAX * 10)}", os.path.join(DEPLOY, "hpsd.service"))
    assert done.returncode == 0, done.stdout[-400:]
    assert float(re.search(r"exposure level for hpsd.service: ([\d.]+)", done.stdout)[1]) < EXPOSURE_MAX


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


def test_dashboard_when_parsed_then_every_panel_asks_something():
    dashboard = json.loads(read("grafana", "hpsd.json"))
    assert all(panel["targets"] and all(t["expr"] for t in panel["targets"])
               for panel in dashboard["panels"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_sample_configuration_when_checked_then_hpsd_takes_it():
    hpsd = os.path.join(BIN, "hpsd")
    if not os.path.exists(hpsd):
        pytest.skip(f"{hpsd} is not built: NOT CHECKED")
    done = run(hpsd, "--config", os.path.join(DEPLOY, "hpsd.json"), "--check")
    assert done.returncode == 0, done.stderr
