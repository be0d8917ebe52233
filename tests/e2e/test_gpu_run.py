# SPDX-License-Identifier: Apache-2.0
"""The measuring run (tests/gpu/run.sh) on the simulated device: on a machine that has little, with programs that fail or
hang, and killed in the middle of each part."""
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from rig import PATIENCE_S, ROOT, scratch, until

pytestmark = [pytest.mark.one_thread, pytest.mark.xdist_group("gpu_run")]  # the programs are built once
SCRIPT = "tests/gpu/run.sh"
COREUTILS = "basename cat chmod cp date dirname env head id ln ls mkdir mkfifo mktemp mv readlink rm sleep stat tail tee " \
            "timeout touch truncate uname wc"
COMPILER = "cmake ninja ar as ld ranlib nm objdump strip"
SOURCES = ("backends", "base", "bench", "cache", "client", "cmake", "config", "tests/gpu", "tests/lib")
PARTS = {1: "probe build device conformance gather fused code",
         2: "build device ceilings delivery misses updates apply pooled converted observe gather_small variants claims hit_rate widths "
            "profile memcheck initcheck torch",
         3: "daemon"}
# Runs the real program, then hangs if its last argument is named in the file `hang`. One check is listed.
WRAPPER = """#!/usr/bin/env bash
here=$(dirname "$0")
if [[ $* == "checks --list" ]]; then
    echo batch_sizes
    exit
fi
"$here/real" "$@" || exit
if [[ ${!#} == "$(<"$here/hang")" ]]; then
    echo $$ >"$here/hanging"
    exec sleep 1000
fi
"""
CHECKS = """#!/usr/bin/env bash
case $* in
    *--list*) printf 'crashes\\nfails\\nhangs\\nis late\\n' ;;
    probe | *" probe") ;;
    *crashes) kill -SEGV $$ ;;
    *fails) head -c 17M /dev/zero && exit 1 ;;
    *) exec sleep 1000 ;;
esac
"""
TRY = """#!/bin/sh
while [ "$1" != --out ]; do shift; done
echo '{"bench":"orders","case":"host","metric":"p50","value":7,"unit":"us"}' >>"$2/results.jsonl"
for i in 1 2 3 4 5 6 7 8 9; do echo $i >"$2/extra$i"; done
truncate -s 20M "$2/log.txt"
echo $$ >"$(dirname "$0")/bin/hanging"
[ "$(cat "$(dirname "$0")/bin/hang")" = daemon ] && exec sleep 1000
exit 0
"""


# In place of ncu and compute-sanitizer: the second call, and each later one, hangs.
TOOL = """#!/usr/bin/env bash
if [[ ! -e $0.called ]]; then
    touch "$0.called"
    echo "========= ERROR SUMMARY: 0 errors"
    exit
fi
echo $$ >"$0.hanging"
exec sleep 1000
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def tools(path, names):
    """A directory for PATH with these programs alone."""
    os.makedirs(path)
    for name in names.split():
        os.symlink(shutil.which(name), f"{path}/{name}")
    return path


def start(tree, *args, path=None, before=()):
    env = {"PATH": path or f"{tree}/tools", "HOME": tree}
    interruptible = ["/usr/bin/env", "--default-signal=INT"]  # a job in the background ignores SIGINT, and so would its children
    return subprocess.Popen([*interruptible, *before, f"{tree}/{SCRIPT}", "--sim", *args], env=env, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, start_new_session=True, cwd="/")


def run(tree, *args, **how):
    with start(tree, *args, **how) as process:
        said = process.communicate(timeout=PATIENCE_S * 40)[0]
    return process.returncode, said


def results_of(out, bounded=True):
    """The results and the table of a part. Their lines are whole, even if the part was killed."""
    sizes = [os.path.getsize(f"{out}/{name}") for name in os.listdir(out)]
    assert not bounded or (len(sizes) <= 8 and max(sizes) <= 16 << 20)
    results = [json.loads(line) for line in read(f"{out}/results.jsonl").splitlines()]
    table = read(f"{out}/results.md")
    assert table.startswith("# GPU run, part ") and "\n| bench | case |" in table
    return results, table


def is_gone(pid):
    try:
        return read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(name="built", scope="module")
def built_on_the_spot():
    """A copy of the sources in which a run has built the programs, and the exit code and output of that run. It had no
    git, sed or grep, and a compiler that warns of more and optimises less, which takes half of the time. It was root without a
    network where unshare allows that."""
    with scratch() as tree:
        for name in SOURCES:
            shutil.copytree(f"{ROOT}/{name}", f"{tree}/{name}")
        tools(f"{tree}/tools", f"bash {COREUTILS} {COMPILER}")
        write(f"{tree}/tools/cc", f'#!/usr/bin/env bash\nexec {shutil.which("gcc")} -Wpadded "$@" -g0 -O1\n')
        alone = ("unshare", "--map-root-user", "--net")
        able = subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
        yield tree, run(tree, "--limit", "1000", "--out", f"{tree}/out", before=[shutil.which("unshare"), *alone[1:]] if able else [])


@pytest.fixture(name="carried")
def tree_with_carried_programs(built, work):
    """A tree without sources; its programs can be made to hang."""
    programs = f"{work}/build/gpu-bundle/bin"
    os.makedirs(programs)
    shutil.copy(f"{built[0]}/build/gpu/build/gpu_bench", f"{programs}/real")
    for name in ("gpu_bench", "gpu_bench_fast"):
        write(f"{programs}/{name}", WRAPPER)
    write(f"{programs}/gpu_bench_bad", "#!/usr/bin/env bash\nexit 1\n")
    write(f"{programs}/variants.txt", "fast\nbad\ngone\n")
    write(f"{programs}/hang", "")
    write(f"{work}/build/gpu-bundle/try.sh", TRY)
    write(f"{work}/build/gpu-bundle/commit.txt", "0123abcd\n")
    write(f"{work}/{SCRIPT}", read(f"{ROOT}/{SCRIPT}"))
    tools(f"{work}/tools", f"bash sh {COREUTILS}")
    return work


def test_parts_when_the_machine_has_a_compiler_and_little_else_then_run_in_order(built):
    tree, (code, said) = built
    assert code == 0, said
    for part, steps in PARTS.items():
        results, table = results_of(f"{tree}/out/part{part}")
        assert re.findall(r"^==> (.+) \(at most", read(f"{tree}/out/part{part}/log.txt"), re.MULTILINE) == steps.split()
        benches = {result["bench"] for result in results}
        for name in steps.split():
            assert name in benches | {"probe", "build", "device"} or name == "conformance" or \
                f"\n- not run: {name}: " in table, name
        if part == 2:
            assert {r["case"] for r in results if r["bench"] == "misses" and r["metric"] == "rows in spills" and 0 < r["value"] < 30} == \
                {r["case"] for r in results if r["bench"] == "misses" and r["metric"] == "missing"} != set()
        assert part != 2 or "\n- not run: torch: python3 has no torch" in table
        assert "\n- commit: unknown\n" in table and "- not run: probe" not in table
        assert table.count("\n| ") == len(results) + 1
    conformance = [r["met"] for r in results_of(f"{tree}/out/part1")[0] if r["metric"] == "holds"]
    assert len(conformance) > 20 and all(conformance)


def test_part_when_programs_are_carried_then_builds_nothing_and_tries_the_variants(carried):
    code, said = run(carried, "--part", "2", "--out", f"{carried}/out"[1:])  # from /
    assert code == 1, said  # of `bad`
    _, table = results_of(f"{carried}/out")
    assert "==> build" not in said and "- commit: 0123abcd\n- programs: build/gpu-bundle/bin\n" in table
    assert "- not measured: variant bad: its checks did not pass\n" in table
    assert "- not run: variant gone: there is no such program\n" in table
    assert "==> variant fast" in said and "variant fast: exit code" not in table


@pytest.mark.parametrize("whom", ["script told", "script interrupted", "script", "group"])
@pytest.mark.parametrize("part, hangs", [(1, "fused"), (2, "misses"), (3, "daemon")])
def test_part_when_killed_in_the_middle_then_keeps_what_it_has_and_nothing_goes_on(carried, part, hangs, whom):
    programs = f"{carried}/build/gpu-bundle/bin"
    write(f"{programs}/hang", f"{hangs}\n")
    with start(carried, "--part", str(part), "--out", f"{carried}/out") as process:
        try:
            until(lambda: os.path.exists(f"{programs}/hanging") and read(f"{programs}/hanging").endswith("\n"),
                  f"{hangs} hangs")
            row = "| orders |" if part == 3 else f"| {hangs} |"
            until(lambda: row in read(f"{carried}/out/results.md"), "the table has what the step has found")
            send, number = {"script told": (os.kill, signal.SIGTERM), "script interrupted": (os.kill, signal.SIGINT),
                            "script": (os.kill, signal.SIGKILL), "group": (os.killpg, signal.SIGKILL)}[whom]
            send(process.pid, number)
            said = process.communicate(timeout=PATIENCE_S)[0]
        finally:
            process.kill()  # if it has not ended
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), said
    until(lambda: is_gone(int(read(f"{programs}/hanging"))), "the step has ended")
    results, table = results_of(f"{carried}/out", bounded=number != signal.SIGKILL)
    steps = PARTS[part].replace("build ", "").replace("variants", "variant_fast variant_bad variant_gone").split()
    assert {r["bench"] for r in results} >= ({"probe", hangs} if part < 3 else {"orders"})
    assert f"\n- {hangs}: the run was stopped in it\n" in table
    assert re.findall(r"^- not run: (.+): the run was stopped before it$", table, re.MULTILINE) == \
        [name.replace("variant_", "variant ") for name in steps[steps.index(hangs) + 1:]]
    assert row in table


def test_part_when_a_program_writes_too_much_then_its_folder_is_bounded(carried):
    out = f"{carried}/out"
    write(f"{out}/another/kept", "kept")
    write(f"{out}/hpsd.log", "of an earlier run")
    code, said = run(carried, "--part", "3", "--out", out)
    assert code == 0 and read(f"{out}/another/kept") == "kept" and not os.path.exists(f"{out}/hpsd.log"), said
    shutil.rmtree(f"{out}/another")  # the run has not made it
    _, table = results_of(out)
    assert "| orders | host | p50 | 7 | us |  |  |" in table and "- removed: extra" in table


def test_steps_when_one_hangs_then_its_limit_ends_it_and_the_rest_is_listed(carried):
    programs = f"{carried}/build/gpu-bundle/bin"
    write(f"{programs}/hang", "ceilings\n")
    code, said = run(carried, "--part", "2", "--limit", "5", "--out", f"{carried}/out")
    assert code == 1 and is_gone(int(read(f"{programs}/hanging"))), said
    results, table = results_of(f"{carried}/out")
    assert {r["bench"] for r in results} == {"probe", "ceilings"}
    assert re.search(r"\n- ceilings: stopped after \d s; ", table) and table.count(": no time was left\n") == 18


def test_checks_when_they_crash_fail_or_hang_then_each_is_alone(carried):
    write(f"{carried}/build/gpu-bundle/bin/gpu_bench", CHECKS)
    code, said = run(carried, "--part", "1", "--limit", "6", "--out", f"{carried}/out")
    assert code == 1 and "FAILED: 1/conformance" in said
    results, table = results_of(f"{carried}/out")
    assert [r["case"] for r in results if not r.get("met", True)] == ["crashes", "hangs"]
    for line in ("conformance: crashes: exit code 139", "conformance: fails: failed, see log.txt",
                 "conformance: hangs: exit code 137", "not run: conformance: is late: no time was left"):
        assert f"\n- {line}\n" in table, table


@pytest.mark.parametrize("tool, result, not_run", [
    ("ncu", "profile_apply: exit code 137, see profile.txt", "profile: profile_gather"),
    ("compute-sanitizer", "memcheck: widths_when_mapped: no result, see log.txt", "memcheck: bags_of_all_sizes")])
def test_tool_when_it_hangs_then_what_it_did_not_reach_is_listed(carried, tool, result, not_run):
    write(f"{carried}/build/gpu-bundle/bin/gpu_bench", "#!/usr/bin/env bash\n")
    os.remove(f"{carried}/build/gpu-bundle/bin/variants.txt")
    write(f"{carried}/tools/{tool}", TOOL)
    code, said = run(carried, "--part", "2", "--limit", "15", "--out", f"{carried}/out")
    assert code == 0 and is_gone(int(read(f"{carried}/tools/{tool}.hanging"))), said
    results, table = results_of(f"{carried}/out")
    assert f"\n- {result}\n" in table and f"\n- not run: {not_run}: no time was left\n" in table, table
    assert [(r["bench"], r["case"], r["value"]) for r in results] == \
        ([] if tool == "ncu" else [("memcheck", "widths_when_gathered", 0)])


@pytest.mark.parametrize("capability, code", [("9.0", "for sm_90\n"), (None, "for sm_100\nfor sm_90\n")])
def test_code_when_there_is_no_disassembler_then_the_carried_text_is_kept(carried, capability, code):
    programs = f"{carried}/build/gpu-bundle/bin"
    write(f"{programs}/gpu_bench", "#!/usr/bin/env bash\n")
    for processor in ("sm_90", "sm_100"):
        write(f"{programs}/code_{processor}.sass", f"for {processor}\n")
    if capability:
        write(f"{carried}/tools/nvidia-smi", f"#!/usr/bin/env bash\necho {capability}\n")
    status, said = run(carried, "--part", "1", "--out", f"{carried}/out")
    assert status == 0 and read(f"{carried}/out/code.sass") == code, said


@pytest.mark.parametrize("why, expected", [("no programs", "there are no programs for it"),
                                           ("no device", "no device that can be used")])
def test_part_when_nothing_can_be_measured_then_says_why(carried, why, expected):
    does = "[[ $* == *--list ]]" if why == "no device" else "exit 1"
    write(f"{carried}/build/gpu-bundle/bin/gpu_bench", f"#!/usr/bin/env bash\n{does}\n")
    code, said = run(carried, "--part", "1", "--out", f"{carried}/out")
    assert code == 1, said
    _, table = results_of(f"{carried}/out")
    assert f"\n- not run: conformance: {expected}\n- not run: gather: {expected}\n" in table


def test_limits_when_they_exceed_those_of_the_part_then_refused(carried):
    script = read(f"{carried}/{SCRIPT}")
    write(f"{carried}/{SCRIPT}", script.replace("conformance 30", "conformance 31"))
    code, said = run(carried, "--part", "1", "--out", f"{carried}/out")
    assert code == 2 and "the limits of part 1 sum to 101 s" in said
