# SPDX-License-Identifier: Apache-2.0
"""What travels to a machine with a GPU (tests/gpu/bundle.sh), and its try.sh on the simulated device."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from rig import BIN, PATIENCE_S, until  # noqa: E402

SIZE_MAX = 64 << 20
GPU_PROGRAMS = os.path.join(ROOT, "build", "gpu", "build")  # of ./dev gpu-bundle, if it was run
PROGRAM = "int main(void) { return 0; }"
# The parent of try.sh, which tells its pid. Signals are as a shell in a terminal leaves them.
PARENT = ("import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
          "child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
          "print(child.pid, flush=True); sys.exit(child.wait() % 256)")


def run(*args, check=True, **how):
    return subprocess.run(args, capture_output=True, text=True, check=check, timeout=PATIENCE_S * 8, **how)


def bundled(path, gpu=()):
    return run(f"{ROOT}/tests/gpu/bundle.sh", BIN, path, *gpu, check=False)


@pytest.fixture(name="bundle", scope="module")
def bundle_of_this_build(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("bundle"))
    done = bundled(path, [GPU_PROGRAMS] if os.path.exists(f"{GPU_PROGRAMS}/gpu_bench") else [])
    assert done.returncode == 0, done.stderr
    return path


def results(out):
    path = os.path.join(out, "results.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def processes(words):
    """Command lines of processes that have these words."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
                line = f.read().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [line] if words in line and int(pid) != os.getpid() else []
    return found


def test_bundle_when_made_then_it_is_small_and_needs_the_driver_alone(bundle, tmp_path):
    size = sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(bundle) for name in names)
    assert size < SIZE_MAX
    with open(f"{bundle}/commit.txt", encoding="ascii") as f:
        assert re.match("[0-9a-f]{40}|unknown", f.read())
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    loader = [f"{bundle}/lib/ld-linux-x86-64.so.2", "--library-path", f"{bundle}/lib", "--list"]
    for name in ("hpsd", "hpsd-sim", "hpsctl", "hps-gen", "hps-bench"):
        said = run(*loader, f"{bundle}/libexec/{name}").stdout
        paths = re.findall(r"=> (/.*) \(0x", said)
        assert paths and all(path.startswith(bundle) for path in paths), said
        done = run(f"{bundle}/bin/{name}", "--driver-dir", tmp_path, "--version", env={**os.environ, "LD_DEBUG": "libs"})
        assert done.stdout.startswith(name.removesuffix("-sim") + " ") and f":{tmp_path}" in done.stderr
    if os.path.exists(f"{bundle}/bin/gpu_bench") and shutil.which("nvcc") and shutil.which("nvdisasm"):
        with open(f"{bundle}/bin/code_sm_90.sass", encoding="utf-8") as f:
            assert "hps_embed_kernel_lookup" in f.read()
    for name in filter(lambda name: name.startswith("gpu_"), os.listdir(f"{bundle}/bin")):
        said = run("readelf", "-W", "--version-info", f"{bundle}/bin/{name}").stdout
        versions = {tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", said)}
        assert versions and max(versions) <= (2, 34)


@pytest.mark.parametrize("source, refusal", [
    (PROGRAM, None),
    ("#include <stdlib.h>\nint main(void) { return (int)arc4random(); }", "gpu_bench needs arc4random@GLIBC_2.36"),
    (f"char large[12 << 20] = {{1}}; {PROGRAM}", "of the tree, must be below 67108864"),  # the bundle alone is
], ids=["small", "newer_glibc", "large"])
def test_programs_when_bundled_then_variants_come_along_and_what_cannot_travel_is_refused(tmp_path, source, refusal):
    gpu = tmp_path / "gpu"
    gpu.mkdir()
    (gpu / "variants.txt").write_text("wide\n")
    run("cc", "-x", "c", "-o", gpu / "gpu_bench", "-", input=source)
    os.link(gpu / "gpu_bench", gpu / "gpu_bench_wide")
    done = bundled(tmp_path / "bundle", [gpu])
    if refusal:
        assert done.returncode == 1 and refusal in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        carried = {name for name in os.listdir(tmp_path / "bundle" / "bin") if not name.startswith("hps")}
        assert carried == {"gpu_bench", "gpu_bench_wide", "variants.txt"}


def tried(bundle, tmp_path, *args):
    """try.sh on the simulated device, to its end: exit code, output, results."""
    work = tmp_path / "work"
    work.mkdir()
    done = run(f"{bundle}/try.sh", "--sim", "--out", tmp_path / "out", "--work", work, *args, check=False)
    assert not os.listdir(work) and not processes(str(work)) and not done.stderr, done.stdout + done.stderr
    return done.returncode, done.stdout, results(tmp_path / "out")


def changed(bundle, tmp_path, program, script):
    """The bundle with a script in place of one program."""
    own = tmp_path / "bundle"
    (own / "bin").mkdir(parents=True)
    (own / "try.sh").write_bytes(open(f"{bundle}/try.sh", "rb").read())
    for name in {"hpsd", "hpsd-sim", "hpsctl", "hps-bench", "hps-gen"} - {program}:
        os.symlink(f"{bundle}/bin/{name}", own / "bin" / name)
    (own / "bin" / program).write_text(f"#!/bin/sh\n{script}\n")
    for name in ("try.sh", f"bin/{program}"):
        os.chmod(own / name, 0o755)
    return own


def test_try_when_run_on_the_simulated_device_then_every_step_has_results_and_rocksdb_is_loaded_once(bundle, tmp_path):
    script = f"""for file; do :; done
        [ "$1" = --version ] || {{
            grep -q persistent_db "$file" && printf "rocksdb "
            [ ! -e "$(dirname "$file")/state/rocksdb/hpsd" ] || printf "exists "
            echo
        }} >>{tmp_path}/starts
        exec {bundle}/bin/hpsd-sim "$@" """
    code, said, found = tried(changed(bundle, tmp_path, "hpsd-sim", script), tmp_path, "--limit", "1000")
    assert code == 0 and "not run" not in said, said
    reused, host_map = "rocksdb exists ", "exists "  # a host map is loaded alone
    assert (tmp_path / "starts").read_text().splitlines() == ["rocksdb ", *[reused] * 3, *[host_map] * 4]
    files = os.listdir(tmp_path / "out")
    assert len(files) <= 8 and all(os.path.getsize(tmp_path / "out" / name) < 16 << 20 for name in files)
    values = {(line["bench"], line["case"], line["metric"]): line["value"] for line in found}
    assert len(values) == len(found)
    assert ("hpsd_device", "device 0: simulated device 0", "devices") in values

    def of(bench, case, metric):
        taken = [value for key, value in values.items() if key[0] == bench and key[1].startswith(case) and key[2] == metric]
        assert taken, (bench, case, metric)
        return taken

    for path in ("auto", "gpu", "host", "host map", "RocksDB", "while the cache fills"):
        assert min(of("hpsd_verified", path, "rows compared")) > 0 and set(of("hpsd_verified", path, "wrong rows")) == {0}
    # A set of the cache may be full; a run with few requests, on a busy machine, shows that as some percent.
    assert min(of("hpsd_orders", "gpu", "unique keys from the GPU")) > 50
    cases = {"hpsd_orders": ("auto", "gpu", "host"), "hpsd_claims": ("host map, 16", "host map, 1 ", "RocksDB"),
             "hpsd_hit_rate": ("room",)}
    for bench, case in ((bench, case) for bench, names in cases.items() for case in names):
        for metric in ("p50", "p99", "keys/s", "CPU of hpsd per million keys"):
            assert min(of(bench, case, metric)) >= (0 if metric[0] == "C" else 1)
    for threshold in ("0", "1.1"):
        all_room, half = (of("hpsd_hit_rate", f"room for {share} % of the keys, threshold {threshold}", "unique keys from the GPU")
                          for share in (125, 50))
        assert len(all_room) == len(half) == 1 and all_room[0] > half[0]
    of("hpsd_hit_rate", "room", "insertions")
    assert all((value > 0) <= case.endswith("threshold 0") for (_, case, metric), value in values.items() if metric == "defaulted")


def test_try_when_the_limit_is_short_then_the_rest_is_listed(bundle, tmp_path):
    code, said, _ = tried(bundle, tmp_path, "--limit", "2")
    assert code == 0 and ("not run: hpsd_hit_rate" in said or said.endswith("not run: hpsd_model: hps-gen\n")), said


def test_try_when_the_first_start_fails_and_there_is_no_device_then_nothing_is_measured_as_of_a_gpu(bundle, tmp_path):
    script = f"""[ "$1" = --version ] || [ -e {tmp_path}/started ] || {{ touch {tmp_path}/started; exit 1; }}
        exec {bundle}/bin/hpsd "$@" """
    code, said, found = tried(changed(bundle, tmp_path, "hpsd-sim", script), tmp_path, "--limit", "1000")
    assert code == 1 and "failed: hpsd_model: the start of hpsd" in said, said
    for case in ("hpsd_orders: gpu", "hpsd_orders: host", "hpsd_hit_rate: all"):
        assert f"not run: {case}: no device\n" in said, said
    assert {line["case"].split(",")[0] for line in found} == {"none", "host", "host map", "RocksDB alone"}
    assert {line["case"][:17] for line in found if line["bench"] == "hpsd_orders"} == {"host, no device, "}


def test_try_when_rows_are_wrong_then_it_says_so_and_fails(bundle, tmp_path):
    own = changed(bundle, tmp_path, "hps-gen", f'exec {bundle}/bin/hps-gen --seed 2 "$@"')  # compared with seed 1
    code, said, found = tried(own, tmp_path, "--limit", "1000")
    wrong = [line for line in found if line["metric"] == "wrong rows"]
    assert code == 1 and wrong and all(line["value"] > 0 and line["target"] == 0 and not line["met"] for line in wrong), said


@pytest.mark.parametrize("victim, number, code", [("try", signal.SIGTERM, 143), ("try", signal.SIGINT, 130),
                                                  ("try", signal.SIGKILL, 247), ("parent", signal.SIGKILL, -9),
                                                  ("group", signal.SIGKILL, -9)])
def test_try_when_killed_then_results_stay_and_all_else_is_gone(bundle, tmp_path, victim, number, code):
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    args = [sys.executable, "-c", PARENT, f"{bundle}/try.sh", "--sim", "--out", out, "--work", work]
    with subprocess.Popen(args, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        pid = int(parent.stdout.readline())
        until(lambda: any(line["metric"] == "p50" for line in results(out)), "results")
        assert any("hpsd-sim" in line for line in processes(str(work)))
        seen = results(out)
        os.kill({"try": pid, "parent": parent.pid, "group": -parent.pid}[victim], number)
        assert parent.wait(PATIENCE_S) == code
    until(lambda: not os.listdir(work) and not processes(str(work)), "all is gone")
    assert results(out)[:len(seen)] == seen
    assert os.path.getsize(out / "hpsd.log") > 0
