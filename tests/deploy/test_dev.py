# SPDX-License-Identifier: Apache-2.0
"""./dev in unusual folders and environments: a copy of it, with stubs of apt-get, cmake and the like in PATH. The tests of
the demo and of the benchmarks run the real programs."""
import fcntl
import os
import re
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "e2e"), os.path.join(ROOT, "bench")]
from rig import BIN, PATIENCE_S, scratch  # noqa: E402

STUBS = {
    "dpkg-query": r"""for status in ${STATUS:-installed}; do
        sed -n '/^packages\[/,/"$/p' dev | sed 's/.*="//; s/"//' | tr -s ' ' '\n' | sed "s/.*/$status, &, ,/"
    done; echo "installed, another, ${PROVIDES:-},";""",
    "apt-get": 'echo "apt-get $*"; [ -z "$OFFLINE" ]',
    "sudo": 'exec "$@"',
    "cmake": 'echo "python: $(command -v python3) ${PYTHONHOME-}${PYTHONPATH-}${VIRTUAL_ENV-}, home: $HOME"; echo "java: $JDK_JAVA_OPTIONS"; [ ! -e build/CMakeCache.txt ]',
    "ninja": "cat build/configure.log",
}


def program(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)


@pytest.fixture(name="tree")
def copy_with_stubs():
    """A folder with dev and the files that it reads; ../bin has the programs of STUBS."""
    with scratch() as work:
        os.chmod(work, 0o755)
        tree, programs = f"{work}/it's a trée", f"{work}/bin"
        for folder in (f"{tree}/tests/lib", f"{tree}/bench", f"{tree}/tools", f"{tree}/.ci", f"{tree}/build/bin", programs):
            os.makedirs(folder)
        for name in ("dev", "bench/main.c", "tools/demo.sh", ".ci/run"):
            shutil.copy(f"{ROOT}/{name}", f"{tree}/{name}")
        os.symlink(f"{ROOT}/tests/fuzz", f"{tree}/tests/fuzz")
        for name, text in STUBS.items():
            program(f"{programs}/{name}", text)
        yield tree


def dev(tree, *args, other_user=False, command="./dev", start=subprocess.run, **env):
    """Run ./dev. A variable of `env` that is None is removed. `other_user`: as a user who does not own the folder."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONNOUSERSITE"}  # of the ./dev that runs this
    given = {**outside, "PATH": f"{os.path.dirname(tree)}/bin:/usr/bin:/bin", "XDG_CACHE_HOME": f"{tree}/cache", **env}
    as_user = ["setpriv", "--reuid=65534", "--clear-groups"] if other_user and os.geteuid() == 0 else []
    return start([*as_user, command, *args], cwd=tree, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                 stderr=subprocess.STDOUT, env={name: value for name, value in given.items() if value is not None},
                 **({"timeout": PATIENCE_S, "check": False} if start is subprocess.run else {}))


def others_python(tree):
    os.makedirs(f"{tree}/venv/bin")
    program(f"{tree}/venv/bin/python3", "exit 99")


def others_gpu(tree):
    others_python(tree)
    os.mkdir(f"{tree}/tests/gpu")
    program(f"{tree}/tests/gpu/run.sh", 'echo "$(command -v python3) $PYTHONPATH $PYTHONNOUSERSITE"')


def moved(tree):
    with open(f"{tree}/build/CMakeCache.txt", "w", encoding="utf-8") as f:
        f.write("CMAKE_HOME_DIRECTORY:INTERNAL=/src\n")


def renamed(tree):
    os.rename(tree, f"{tree}:2")
    return f"{tree}:2"


def installed_environments(tree):
    for name in ("interop", "frameworks", "tensorflow"):
        for path in (f"tests/{name}/requirements.txt", f"cache/hpsd/{name}/installed.txt"):
            os.makedirs(os.path.dirname(f"{tree}/{path}"))
            program(f"{tree}/{path}", "")
    os.mkdir(f"{tree}/tests/clients")
    program(f"{tree}/tests/clients/languages.py", "")


def left_out(tree, client=0):
    program(f"{tree}/build/bin/hps-benchmarks", "exit 77")
    with open(f"{tree}/bench/python_client.py", "w", encoding="utf-8") as f:
        f.write(f"print('judged')\nraise SystemExit({client})\n")
    installed_environments(tree)
    os.mkdir(f"{tree}/cache/hpsd/frameworks/bin")
    os.symlink("/usr/bin/python3", f"{tree}/cache/hpsd/frameworks/bin/python")


def broken_environment(tree):
    for folder in ("cache/hpsd/interop", "tests/interop"):
        os.makedirs(f"{tree}/{folder}")
    for path in ("cache/hpsd/interop/bin", "tests/interop/run.sh"):
        program(f"{tree}/{path}", "")


def open_to_all(tree):
    for folder in (tree, f"{tree}/build"):
        os.chmod(folder, 0o777)


def without(*names):
    """{path} has all programs of this system but these."""
    def prepare(tree):
        programs = f"{os.path.dirname(tree)}/bin"
        for name in set(os.listdir("/usr/bin")) - set(STUBS):
            os.symlink(f"/usr/bin/{name}", f"{programs}/{name}")
        for name in names:
            os.unlink(f"{programs}/{name}")
    return prepare


CASES = {  # what prepares the tree (and may return a new path), arguments, environment, exit code, what the output has
    "a package that was never installed": (None, ["packages", "fuzz"], {"STATUS": "not-installed"}, 0, "apt-get install .* clang "),
    "a package half installed": (None, ["packages", "fuzz"], {"STATUS": "half-installed"}, 0, "apt-get install .* clang "),
    "packages of two architectures": (None, ["packages", "fuzz"], {"STATUS": "not-installed installed"}, 0, "^$"),
    "packages that others provide": (None, ["packages", "fuzz"], {"STATUS": "not-installed", "PROVIDES": "clang (= 1), libclang-rt-dev, llvm"}, 0, "^$"),
    "no network": (None, ["packages", "fuzz"], {"STATUS": "not-installed", "OFFLINE": "1"}, 1, "run as root, with network: apt-get .* clang "),
    "not root, no sudo": (without("sudo"), ["packages", "fuzz"], {"STATUS": "not-installed", "other_user": True, "PATH": "{bin}"}, 1,
                          "sudo is not installed; run as root, .*apt-get .* clang "),
    "no Debian": (without("apt-get", "dpkg-query"), ["packages", "fuzz"], {"PATH": "{bin}"}, 1, "apt-get is missing; install the equivalent.* clang "),
    "a checkout of somebody else": (None, ["build"], {"other_user": True}, 1, "cannot write to .*: copy it"),
    "a path that PATH cannot have": (renamed, ["build"], {}, 1, "must not contain : .*: rename it"),
    "no HOME": (None, ["build"], {"HOME": None}, 0, 'home: {tree}/build/home$\njava: "-Duser.home={tree}/build/home"'),
    "no HOME, not root": (None, ["help"], {"HOME": None, "other_user": True}, 0, "usage"),
    "a HOME that cannot be written": (open_to_all, ["build"], {"HOME": "/", "other_user": True}, 0, 'home: {tree}/build/home$\njava: "-Duser.home={tree}/build/home"'),
    "a Python that is active": (others_python, ["build"], {"VIRTUAL_ENV": "{tree}/venv", "PYTHONHOME": "/x", "PYTHONPATH": "/x",
                                                         "PATH": "{tree}/venv/bin:{bin}:/usr/bin/"}, 0, "python: /usr/bin//python3 , "),
    "a Python that is active, which ./dev gpu uses": (others_gpu, ["gpu"], {"PYTHONPATH": "/x", "PATH": "{tree}/venv/bin:/usr/bin:/bin"}, 0,
                                                      "^{tree}/venv/bin/python3 /x $"),
    "a build folder of another checkout": (moved, ["build"], {}, 0, "build was configured in another folder: configuring it again"),
    "an environment that cannot be installed": (broken_environment, ["interop"], {}, 77, "SKIPPED: Triton"),
    "environments that are installed": (installed_environments, ["packages", "environments"], {}, 0, "^$"),
    "a peer left out": (left_out, ["bench", "grpc", "python"], {}, 77, "judged"),
    "a peer left out, and a failure": (lambda tree: left_out(tree, 1), ["bench", "grpc", "python"], {}, 1, "judged"),
    **{f"{verb} and a wrong word": (None, [verb, *wrong], {}, 2, rf"usage: \./dev {verb} .*\n.*does not accept '{' '.join(wrong)}'{names}")
       for verb, wrong, names in (
           ("packages", ["nosuch"], "; names: .*kafka"), ("packages", [], "; names"), ("bench", ["nosuch"], "; names: grpc .* kserve"),
           ("fuzz", ["60", "nosuch"], "; names: .* npy"), ("fuzz", ["soon"], ""), ("demo", ["--kep"], ""), ("build", ["msan"], ""),
           ("sim", ["msan"], ""), ("soak", ["long"], ""), *((verb, ["word"], "") for verb in (
               "asan", "check", "clean", "fmt", "gpu-bundle", "help", "interop", "lint", "tsan")))},
}


@pytest.mark.parametrize("case", CASES)
def test_dev_when_the_tree_or_the_environment_is_unusual_then_it_works_or_says_what_to_do(tree, case):
    prepare, args, env, code, pattern = CASES[case]
    if env.get("other_user") and prepare is None and os.geteuid() != 0:
        pytest.skip("only root can run a program as another user")
    if prepare is not None:
        tree = prepare(tree) or tree
    folder = f"{os.path.dirname(tree)}/bin"
    env = {name: value.format(tree=tree, bin=folder) if isinstance(value, str) else value for name, value in env.items()}
    done = dev(tree, *args, **env)
    assert done.returncode == code, done.stdout
    assert re.search(pattern.replace("{tree}", re.escape(tree)), done.stdout, re.MULTILINE), done.stdout


def test_build_folder_when_another_verb_uses_it_then_one_waits_and_clean_refuses(tree):
    with open(f"{tree}/build/lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("demo (pid 7)", file=lock, flush=True)
        refused = dev(tree, "clean")
        assert refused.returncode == 1 and "./dev demo (pid 7) uses build: stop it first" in refused.stdout
        with dev(tree, "build", start=subprocess.Popen) as waiting:
            assert "waiting for ./dev demo (pid 7) and its child processes, which use build" in waiting.stdout.readline()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert "python: " in waiting.stdout.read()
    assert waiting.returncode == 0
    assert dev(tree, "clean").returncode == 0 and not os.path.exists(f"{tree}/build")


def test_ci_when_something_is_left_out_then_it_says_so_and_a_wrong_step_is_refused(tree):
    program(f"{tree}/dev", 'case $1 in help) echo; echo "  lint x"; echo "  soak x"; seq 20000 ;; soak) exit 77 ;; esac')
    wrong, done = (dev(tree, *steps, command=".ci/run") for steps in (["nosuch"], ["soak", "lint"]))
    assert (wrong.returncode, done.returncode) == (2, 0), done.stdout
    assert "no verb 'nosuch'" in wrong.stdout
    assert re.search("^soak .* left out$", done.stdout, re.MULTILINE) and re.search("^lint .* ok$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("asan, tsan, lines", [
    (0, 77, ["asan .* ok", "tsan .* left out", "lint .* ok"]), (0, 3, ["asan .* ok", r"tsan .* FAILED \(exit 3\)"]),
    (4, 0, [r"asan .* FAILED \(exit 4\)"])])
def test_ci_when_sanitizers_follow_each_other_then_they_run_at_once_and_both_count(tree, asan, tsan, lines):
    os.mkfifo(f"{tree}/both")
    program(f"{tree}/dev", f'''case $1 in help) echo; for verb in asan tsan lint; do echo "  $verb x"; done ;;
    asan) cat both && exit {asan} ;; tsan) echo met >both && exit {tsan} ;; esac''')
    done = dev(tree, "asan", "tsan", "lint", command=".ci/run")
    assert done.returncode == (asan or tsan % 77) and "met" in done.stdout, done.stdout
    summary = done.stdout.partition("summary\n")[2].partition("in all")[0]
    assert re.fullmatch("".join(f"{line}\n" for line in lines), summary), summary


def test_demo_when_a_model_cannot_be_loaded_then_it_ends_with_the_cause(tree):
    for name in ("hpsd", "hpsctl"):
        os.symlink(f"{BIN}/{name}", f"{tree}/build/bin/{name}")
    program(f"{tree}/build/bin/hps-gen", f'''"{BIN}/hps-gen" "$@" --scale 0.0001 || exit
while [ "$1" != --out ]; do shift; done
truncate -s 3 "$2"/*3/emb_vector''')
    done = dev(tree, str(PATIENCE_S - 5), "tools/demo.sh", command="timeout", HPS_BIN_DIR=None)
    assert done.returncode == 1, done.stdout
    assert "a model failed to load" in done.stdout and re.search("emb_vector: 3 bytes, expected", done.stdout)
    assert not os.path.exists(f"{tree}/build/demo")


def test_benchmarks_when_a_peer_is_missing_then_the_table_the_file_and_the_exit_code_say_so(tree):
    with open(f"{ROOT}/bench/bench.h", encoding="utf-8") as f:
        benches = re.findall(r"hps_status (bench_\w+)\(struct hps_error \*err\);", f.read())
    with open(f"{tree}/stub.c", "w", encoding="utf-8") as f:
        f.write('#include "bench/bench.h"\n')
        f.writelines(f'hps_status {name}(struct hps_error *err)\n{{\n    (void)err;\n{left}    return HPS_OK;\n}}\n' for name, left in (
            (name, '    bench_left_out("peer", "it is missing");\n' if name == "bench_redis" else "") for name in benches))
    build = ["gcc", "-D_GNU_SOURCE", f'-DHPS_BENCH_DIR="{tree}"', f"-I{ROOT}", f"{ROOT}/bench/main.c", f"{ROOT}/bench/report.c", "stub.c",
             f"{os.path.dirname(BIN)}/libhps_base.a", "-o", "driver"]
    subprocess.run(build, cwd=tree, check=True, timeout=PATIENCE_S)
    assert dev(tree, "grpc", command="./driver").returncode == 0
    done = dev(tree, command="./driver")
    assert done.returncode == 77 and re.search("^redis +peer +LEFT OUT: it is missing$", done.stdout, re.MULTILINE)
    with open(f"{tree}/redis.jsonl", encoding="utf-8") as f:
        assert f.read() == '{"bench":"redis","case":"peer","left_out":"it is missing"}\n'


def test_python_benchmark_when_torchrec_is_missing_then_the_table_and_the_exit_code_say_so(tree, capsys, monkeypatch):
    import python_client
    monkeypatch.setitem(sys.modules, "torchrec", None)
    report = python_client.Report(f"{tree}/python.jsonl")
    python_client.measure_layers(report, None)
    assert report.exit_code == 77 and re.search("^python +EmbeddingBagCollection +LEFT OUT: ", capsys.readouterr().out, re.MULTILINE)
