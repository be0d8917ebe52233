# SPDX-License-Identifier: Apache-2.0
"""What the documents show is run as it stands there, with the addresses, paths and sizes of a test; what is not run is
listed, with the reason. Python of users is run by tests/python."""
import contextlib
import functools
import glob
import json
import os
import re
import select
import shlex
import struct
import subprocess
import sys

import numpy as np
import pytest
from google.protobuf import text_format
from inference import model_config_pb2

import documents
import redis
import test_check
import test_kafka_rights
import test_redis
from rig import (BIN, PATIENCE_S, REPORT, ROOT, SLOW, Authority, Daemon, Table, admin_pb, ask, default_config, generate, hpsgen,
                 kserve_grpc, kserve_pb, model_config, pb, run_hpsd)

pytestmark = pytest.mark.one_thread
guarded_broker = test_kafka_rights.guarded_broker  # a fixture
RUN = set()

# file, how the block begins: why it is not run, and what is tested instead.
NOT_RUN = {
    ("docs/clients.md", '{\n  "loadBalancingConfig"'): "for other languages; ./dev frameworks uses it (tests/clients)",
    ("docs/clients.md", "go install"): "needs Go; ./dev frameworks runs it (tests/clients)",
    ("docs/clients.md", "package main"): "as the one before",
    ("docs/clients.md", "npm install"): "needs Node; ./dev frameworks runs it (tests/clients)",
    ("docs/clients.md", "const fs"): "as the one before",
    ("docs/clients.md", "import com.google.gson"): "needs the plugin of grpc-java; ./dev frameworks runs it (tests/clients)",
    ("docs/clients.md", "cargo init"): "needs cargo; ./dev frameworks runs it (tests/clients)",
    ("docs/clients.md", "pub mod hps"): "as the one before",
    ("docs/gpu-results.md", "try.sh"): "is in the bundle that ./dev gpu-bundle makes for another machine",
    ("docs/kserve.md", "import numpy as np\nimport tritonclient"):
        "needs tritonclient; ./dev interop runs it (tests/interop/test_tritonclient.py)",
    ("docs/kserve.md", '{"data"'): "needs perf_analyzer; ./dev interop runs it (tests/interop/test_perf_analyzer.py)",
    ("docs/kserve.md", "perf_analyzer"): "as the one before",
    ("docs/migration.md", "-tritonserver"): "needs Triton; ./dev interop runs it (tests/interop/test_migration.py)",
    ("docs/migration.md", "import numpy as np\nimport tritonclient"):
        "needs tritonclient; ./dev interop runs it (tests/interop/test_tritonclient.py)",
    ("docs/migration.md", " import numpy as np\n import tritonclient"): "as the one before",
    ("docs/migration.md", " import torch"): "needs torch; ./dev frameworks runs it (tests/frameworks/test_torch.py)",
    ("docs/tensorflow.md", "clients/tensorflow/build.sh"):
        "needs TensorFlow; ./dev frameworks runs it and tests the operator (tests/tensorflow/test_operator.py)",
    ("docs/triton.md", "./dev triton"): "needs Triton; ./dev interop runs it (tests/interop/test_triton_backend.py)",
    ("README.md", "sudo apt install"): "needs bare roots of Debian; ./dev package --test runs it (tests/package)",
    ("README.md", "pip install build"): "as the one before",
    ("docs/loading.md", "import torch"): "needs torch; ./dev frameworks runs it (tests/frameworks/test_convert.py)",
    ("docs/loading.md", "export HPSD_ADDR=unix:state/admin.sock\npython3 -m hpsd convert dcp"): "as the one before",
    ("docs/loading.md", "import keras"): "as the one before",
    ("docs/loading.md", "export HPSD_ADDR=unix:state/admin.sock\npython3 -m hpsd convert keras"): "as the one before",
    ("docs/torchrec.md", "export HPSD_ADDR"): "needs torch; ./dev frameworks runs it (tests/frameworks/test_torch.py)",
    ("docs/operations.md", "./dev build && sudo cmake --install"):
        "needs root and systemd; tests/deploy installs into a directory and starts hpsd by its units there",
    ("docs/operations.md", "level=info msg=reloaded"): "lines of a log; test_config.py asserts them",
    ("docs/redis.md", "TIER   SERVER"): "output of hpsctl status",
    ("docs/python.md", "pip install clients"): "needs PyPI; ./dev interop runs it (tests/interop/install.py)",
    ("docs/python.md", "apt-get install"): "is run line by line by tests/python/test_package.py; what apt-get would install, ./dev does",
}
TUTORIAL = "docs/examples/dlrm/README.md"  # ./dev frameworks runs its blocks (tests/frameworks/test_dlrm.py)
DRAWINGS = "docs/architecture.md"  # all of its blocks: folders, files in the order of their work, data paths


def code_of(file, begins):
    """For a test that runs a block: its argument `code`."""
    found = documents.block(file, begins)
    RUN.add(found)
    return pytest.mark.parametrize("code", [found.code], ids=[str(found)])


def with_values(code, values):
    """The same with the values of a test, {what is shown: what is put there}; each is needed."""
    for old, new in values.items():
        assert old in code, f"{old} is not in\n{code}"
        code = code.replace(old, str(new))
    return code


def shell(code, work, **environment):
    """Run by a shell, line by line as somebody would who copies it; what it says."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-euxo", "pipefail", "-c", code], capture_output=True, text=True, timeout=PATIENCE_S * 4,
                          check=False, cwd=work, env={**os.environ, "PATH": path, **environment})
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
    assert not REPORT.search(done.stderr), done.stderr
    return done.stdout


@contextlib.contextmanager
def started(code, work):
    """Run a block that starts hpsd as its last command, with addresses of its own; the address for lookups, and an
    environment in which the programs are found, and the line that told all addresses (HPSD_SAID)."""
    programs = os.path.join(work, "build", "bin")
    os.makedirs(programs)
    for name in os.listdir(BIN):
        os.symlink(os.path.join(BIN, name), os.path.join(programs, name))
    for name, command in (("hpsd", f"{shlex.quote(BIN)}/hpsd --listen 127.0.0.1:0 --http-listen 127.0.0.1:0"),
                          ("python3", shlex.quote(sys.executable))):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(programs, name))
        write(os.path.join(programs, name), f'#!/bin/sh\nexec {command} "$@"\n')
    env = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    log = os.path.join(work, "log")
    with open(log, "wb") as err:
        process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", f"{code}\nwait\n"], cwd=work, env=env, stderr=err,
                                   stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    with process:
        said = ""
        while not said.startswith("ready"):
            readable = select.select([process.stdout], [], [], PATIENCE_S * 2)[0]
            said = process.stdout.readline() if readable else ""
            assert said, read(log)
        addresses = dict(pair.split("=", 1) for pair in said.split()[1:])
        try:
            yield addresses["grpc"], {**env, "HPSD_SAID": said}
        finally:
            os.kill(int(addresses["pid"]), 9)
    assert not REPORT.search(read(log)), read(log)


def write(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, 0o755)
    return path


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


# ---- README, and what a newcomer does ----------------------------------------------------------------

README_READY, README_ROWS, README_VERSIONS, README_VERSIONS_OUTPUT = (
    documents.block("README.md", begins) for begins in ("ready grpc=", "[[ 0.", "export HPSD_ADDR", "default version 2"))
RUN.update((README_READY, README_ROWS, README_VERSIONS, README_VERSIONS_OUTPUT))


@code_of("README.md", "./dev build")
def test_readme_when_followed_then_the_output_is_as_shown(work, code):
    write(f"{work}/dev", "#!/bin/sh\n[ $1 = build ]\n")  # the programs are built already
    os.symlink(f"{ROOT}/clients", f"{work}/clients")
    with started(code, work) as (address, env):
        env = {**env, "PYTHONPATH": f"{ROOT}/clients/python"}

        def run(*args):
            return subprocess.run(args, cwd=work, env=env, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout

        def names(line):
            return re.sub(r"\d+(?= |$)", "N", line.strip())
        assert names(env["HPSD_SAID"]) == names(README_READY.code)
        _, first, second = documents.python_pages()["README"]
        assert len(first.splitlines()) == 3
        assert run("python3", "-c", documents.at(first + second, address)) == README_ROWS.code
        took = re.compile(r"\d+ us")
        assert took.sub("", run("bash", "-euc", README_VERSIONS.code)) == took.sub("", README_VERSIONS_OUTPUT.code)


@code_of("docs/performance.md", "hps-gen --tables 26")
def test_measuring_when_followed_then_every_row_is_right(work, code):
    code = with_values(code, {"--rows 100000": "--rows 100", "--dim 128": "--dim 8", "--duration 10": "--requests 50",
                                 "--rate 2000": "--requests 50 --rate 2000"})
    begin, rest = code.split("&\n", 1)
    with started(f"{begin}&", work) as (address, _):
        out = shell(with_values(rest, {"hps-bench": f"hps-bench --addr {address}"}), work)
    assert out.count("keys/s") >= 2


VERBS = [("README.md", "./dev demo"), ("CONTRIBUTING.md", "./dev check"), ("docs/gpu-results.md", "./dev gpu\n"),
         ("docs/gpu-results.md", "./dev gpu-bundle")]


@pytest.mark.parametrize("file, begins", VERBS)
def test_verbs_when_documents_name_them_then_dev_has_them(file, begins):
    """They are not run: among them is the one that runs this test, and others need a GPU, or hours."""
    block = documents.block(file, begins)
    RUN.add(block)
    said = subprocess.run([f"{ROOT}/dev", "help"], capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    for line in block.code.splitlines():
        program, *words = line.split("#")[0].split()
        assert os.access(f"{ROOT}/{program}", os.X_OK), line
        assert program != "./dev" or re.search(rf"^  {re.escape(words[0])} ", said, re.MULTILINE), line


for verb_block in VERBS:
    RUN.add(documents.block(*verb_block))


# ---- lookups ----------------------------------------------------------------------------------------

@code_of("docs/lookups.md", "row = np.frombuffer")
def test_int8_rows_when_read_as_shown_then_their_values(work, daemon, code):
    keys = np.arange(50, dtype="<i8")
    table = Table("items", keys, hpsgen.rows(1, 0, keys, 12))
    one = daemon(default_config([model_config("m", [table.save(work)], [12], ["items"], row_dtype="int8_rowwise_f32")]))

    def result_as(output_type):
        request = pb.LookupRequest(model="m", output_type=output_type,
                                   queries=[pb.TableQuery(table="items", keys=keys.tobytes())])
        return one.stub().Lookup(request, timeout=PATIENCE_S).results[0]
    names = {"np": np, "result": result_as(pb.DATA_TYPE_RAW)}
    exec(code, names)  # pylint: disable=exec-used
    expected = np.frombuffer(result_as(pb.DATA_TYPE_FP32).rows, "<f4").reshape(50, 12)
    np.testing.assert_array_equal(names["values"], expected)


@code_of("docs/lookups.md", "query = lambda")
def test_matrix_when_asked_for_as_shown_then_tables_side_by_side(work, daemon, code):
    keys = np.arange(50, dtype="<i8")
    tables = [Table(name, keys, np.repeat(keys[:, None], dim, 1).astype("<f4")) for name, dim in (("items", 3), ("users", 5))]
    one = daemon(default_config([model_config("dlrm", [table.save(work) for table in tables], [3, 5], ["items", "users"])]))
    names = {"np": np, "pb": pb, "lookup": lambda request: one.stub().Lookup(request, timeout=PATIENCE_S),
             "items": np.array([1, 2, 3]), "item_offsets": np.array([0, 2, 3]),
             "users": np.array([7]), "user_offsets": np.array([0, 0, 1])}
    exec(code, names)  # pylint: disable=exec-used
    np.testing.assert_array_equal(names["batch"], [[3] * 3 + [0] * 5, [3] * 3 + [7] * 5])


@code_of("docs/lookups.md", "hpsctl lookup dlrm")
def test_shell_when_looked_up_as_shown_then_rows_and_bags(work, daemon, code):
    generate(f"{work}/g", "--tables", 1, "--rows", 500, "--dim", 4, "--format", "npy")
    one = daemon(default_config([model_config("dlrm", [f"{work}/g/feature_0.npy"], [4], ["items"])]))
    out = shell(with_values(code, {"hps-bench": f"hps-bench --addr {one.grpc[0]} --requests 20"}), work, HPSD_ADDR=one.admin)
    assert "found" in out and "unknown" in out and "keys/s" in out


# ---- the C library -----------------------------------------------------------------------------------

C_STATIC = documents.block("docs/c.md", "cc lookup.c $(pkg-config --static")
RUN.add(C_STATIC)
BUILD = os.path.dirname(BIN)


@pytest.mark.skipif(not os.path.exists(f"{BUILD}/client/libhpsd-client.a"), reason="builds with sanitizers have no library")
@code_of("docs/c.md", "cmake --install")
def test_c_library_when_installed_as_shown_then_the_example_prints_rows(work, daemon, code):
    keys = np.arange(50, dtype="<i8")
    table = Table("items", keys, hpsgen.rows(1, 0, keys, 3))
    one = daemon(default_config([model_config("default", [table.save(work)], [3], ["items"])]))
    prefix = f"{work}/prefix"
    os.symlink(f"{ROOT}/docs/examples/c/lookup.c", f"{work}/lookup.c")
    listen = {"127.0.0.1:8601": f"127.0.0.1:1,{one.grpc[0]}"}  # the client finds the server that runs
    env = {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{prefix}/lib"}
    expected = "".join(f"{key}{'' if key in keys else ' (default)'} {' '.join(f'{value:g}' for value in row)}\n"
                       for key, row in ((0, table.expect([0])[0]), (999, table.expect([999])[0])))
    code = with_values(code, {"install build": f"install {BUILD}", "/usr/local": prefix, **listen})
    assert shell(code, work, **env).endswith(expected)
    needed = subprocess.run(["ldd", f"{work}/lookup"], capture_output=True, text=True, check=True, env={**os.environ, **env}).stdout
    assert f"{prefix}/lib/libhpsd-client.so.1" in needed
    assert shell(f"{C_STATIC.code}\nunset LD_LIBRARY_PATH\n{code.splitlines()[-1]}", work, **env) == expected
    assert "hpsd-client" not in subprocess.run(["ldd", f"{work}/lookup"], capture_output=True, text=True, check=True).stdout
    for file, *flags in (("libhpsd-client.so", "-D"), ("libhpsd-client.a",)):
        names = subprocess.run(["nm", "-g", "--defined-only", "-P", *flags, f"{prefix}/lib/{file}"], capture_output=True,
                               text=True, check=True).stdout
        found = {line.split()[0].partition("@")[0] for line in names.splitlines() if len(line.split()) > 1}
        declared = set(re.findall(r"\b(hpsd_\w+)\(", read(f"{prefix}/include/hpsd.h").partition("#ifndef")[2]))
        assert {name for name in found if name != "HPSD_1"} <= declared and "hpsd_lookup" in found, file


# ---- KServe ------------------------------------------------------------------------------------------

KSERVE = "docs/kserve.md"
PORTS = {"127.0.0.1:8600": "kserve", "127.0.0.1:8601": "grpc"}  # what is shown: of which listener it is
KSERVE_REQUESTS = [documents.block(KSERVE, begins) for begins in ("curl -sS", "import grpc", "import json")]
RUN.update(KSERVE_REQUESTS)


@contextlib.contextmanager
def followed(work, code):
    """The block that starts a server of items and users; a function that puts its addresses where a block has those that are shown."""
    with started(with_values(code, {"127.0.0.1:8600": "127.0.0.1:0"}), work) as (_, env):
        addresses = dict(re.findall(r"(\w+)=(\S+)", env["HPSD_SAID"]))
        yield lambda block: re.sub("|".join(PORTS), lambda shown: addresses[PORTS[shown[0]]], block)


@code_of(KSERVE, "hps-gen --tables 2")
def test_kserve_when_begun_as_shown_then_each_first_request_has_the_rows_of_its_keys(work, code):
    by_hand, by_grpc, by_http = (block.code for block in KSERVE_REQUESTS)
    assert "`protoc -I proto --python_out=. proto/inference/*.proto`" in read(f"{ROOT}/{KSERVE}")  # as rig.py makes them
    with followed(work, code) as here:
        items, users = (np.load(f"{work}/g/feature_{number}.npy") for number in range(2))
        expected = np.concatenate([items[[0, 1, 2]].ravel(), users[7]])
        output, = json.loads(shell(here(by_hand), work))["outputs"]
        assert output["name"] == "OUTPUT0" and np.array_equal(np.array(output["data"], "<f4"), expected)
        names = {}
        exec(here(by_grpc), names)  # pylint: disable=exec-used
        np.testing.assert_array_equal(names["rows"], expected)
        exec(here(by_http), names)  # pylint: disable=exec-used
        np.testing.assert_allclose(names["means"], [items[:3].mean(axis=0), items[7:9].mean(axis=0)], rtol=1e-6)


# ---- migration from HPS ------------------------------------------------------------------------------

MIGRATION = "docs/migration.md"


def migration(begins):
    found = documents.block(MIGRATION, begins)
    RUN.add(found)
    return found.code


PS_JSON, CHECK, CHECKED, OURS, CHECK_AGAIN, START, FIRST, FIRST_OUTPUT, INFER, SECOND, HUGECTR, UPDATES = map(migration, (
    '{\n  "supportlonglong"', "cp ps.json", "hpsd: missing", '"persistent_db"', "hpsd --check", "hpsd --config", "export HPSD_ADDR",
    "MODEL  VERSION", "curl", "hpsctl load", "sed", "hpsctl wait-for"))
CONFIG_PBTXT, PYTHON = map(migration, (' name: "wdl"', "-from hugectr"))


def diff_side(code, mark):
    """One side of a diff: '-' before, '+' after."""
    return "".join(line[1:] + "\n" for line in code.splitlines() if line[:1] in ("", " ", mark))


def wdl(work):
    """The tables of version 1 and of version 2, in directories of HugeCTR."""
    versions = []
    for version, iterations, sign in ((1, 2000, 1), (2, 4000, -1)):
        tables = []
        for number, (rows, dim) in enumerate(((200, 1), (500, 16))):
            keys = np.arange(rows)
            values = sign * (keys[:, None] + np.arange(dim) / 100).astype("<f4")
            tables.append(Table(f"wdl{number}_sparse_{iterations}.model", keys, values))
            path = tables[-1].save_hugectr(f"{work}/models/wdl/{version}")
            keys.astype("<i8").tofile(f"{path}/slot_id")
        versions.append(tables)
    return versions


def at_work(code, work, brokers="127.0.0.1:1"):
    """A block with the places of a test."""
    for shown, here in (("/models", f"{work}/models"), ("/var/lib/hpsd", f"{work}/state"), ("/run/hpsd", work),
                        ("127.0.0.1:8600", "127.0.0.1:0"), ("127.0.0.1:9092", brokers)):
        code = code.replace(shown, here)
    return code


def moved(work, brokers="127.0.0.1:1"):
    """The configuration after step 2, from its blocks."""
    return {**json.loads(at_work(PS_JSON, work, brokers)), **json.loads("{" + at_work(OURS, work) + "}")}


def of_infer(code, kserve, work):
    output, = json.loads(shell(code.replace("127.0.0.1:8600", kserve), work))["outputs"]
    return np.array(output["data"], "<f4")


def of_check(code, work):
    """The lines of a check; the reason why no GPU is usable depends on the build."""
    done = subprocess.run(["bash", "-euc", code], cwd=work, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
                          capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert json.loads(read(f"{work}/effective.json"))["models"][0]["model"]["value"] == "wdl"
    return without_reason(done.stderr)


def without_reason(lines):
    return [re.sub("GPU here: [^;]*", "GPU here", line) for line in lines.splitlines()]


def contents(*paths):
    names = [name for path in paths for name in (path, *glob.glob(f"{path}/**", recursive=True)) if os.path.isfile(name)]
    found = {}
    for name in names:
        with open(name, "rb") as f:
            found[name] = f.read()
    return found


def test_migration_when_followed_then_each_step_does_what_the_guide_says(work):
    versions = wdl(work)
    old, new = (np.concatenate([wide.rows[5:7], deep.rows[1:2]], None) for wide, deep in versions)
    write(f"{work}/ps.json", at_work(PS_JSON, work))
    files_of_hps = contents(f"{work}/ps.json", f"{work}/models")
    said, shown = of_check(CHECK, work), without_reason(CHECKED)
    assert said in (shown, shown[1:])  # the first line is not said on a host with a GPU
    write(f"{work}/hpsd.json", json.dumps(moved(work)))
    assert [line for line in of_check(CHECK_AGAIN, work) if "missing" in line] in (shown[:1], [])

    with started(START, work) as (_, env):
        here = {"HPSD_ADDR": f"unix:{work}/state/admin.sock"}
        kserve = re.search(r"kserve=(\S+)", env["HPSD_SAID"])[1]
        assert shell(at_work(FIRST, work), work) == FIRST_OUTPUT
        np.testing.assert_array_equal(of_infer(INFER, kserve, work), old)
        steps = shell(at_work(SECOND, work), work, **here)
        assert re.search(r"host memory .* yes\n[^$]*version 2 loaded, 700 rows, active\n[^$]*version 1 is active", steps), steps
        shell("hpsctl activate wdl 2", work, **here)
        np.testing.assert_array_equal(of_infer(INFER, kserve, work), new)
        with pytest.raises(AssertionError, match="expected 1 to 120 letters"):
            shell(f"hpsctl load wdl --from {work}/models/wdl/2", work, **here)
        assert "wdl version 3 loaded" in shell(at_work(HUGECTR, work), work, **here)
        np.testing.assert_array_equal(of_infer(INFER, kserve, work), new)
    with Daemon(work, json.loads(read(f"{work}/hpsd.json"))) as one:
        assert one.stub().Lookup(pb.LookupRequest(model="wdl"), timeout=PATIENCE_S).version == 3
        assert not one.admin_stub().GetStatus(admin_pb.GetStatusRequest(), timeout=PATIENCE_S).config_drift
    assert contents(f"{work}/ps.json", f"{work}/models") == files_of_hps  # with which HPS can be started again


needs_redis = pytest.mark.skipif(redis.missing() is not None, reason=redis.missing() or "")


@needs_redis
def test_migration_when_hps_has_rows_in_redis_then_hpsd_neither_reads_nor_deletes_them(work):
    (_, deep), _ = wdl(work)
    of_hps = "hps_et{hps_et.wdl.deep/p0}v"
    with redis.Redis(f"{work}/redis") as server:
        server.ask("HSET", of_hps, "\x01" + "\0" * 7, "an older row")
        config = {**moved(work), "volatile_db": {"type": "redis_cluster", "address": server.address, "num_partitions": 8,
                                                 "num_node_connections": 5, "overflow_policy": "evict_oldest",
                                                 "redis_command_timeout_ms": int(1000 * SLOW)}}
        with Daemon(work, config) as one:
            result, = ask(one.stub(), "wdl", {"deep": [1]}).results
            np.testing.assert_array_equal(np.frombuffer(result.rows, "<f4"), deep.rows[1])
            assert [count.found_keys for count in result.tier_counts if count.tier == "redis"] == [1]
            assert len(server.ask("KEYS", "*")) > 1
            one.ctl("unload", "wdl", "1")
            assert server.ask("KEYS", "*") == [of_hps]
            assert server.ask("HGETALL", of_hps)[1] == "an older row"


def test_migration_when_hps_producers_write_then_hpsd_applies_their_records(work, broker):
    (_, deep), _ = wdl(work)
    for table in ("wide", "deep"):
        broker.create(f"hps_et.wdl.{table}")
    config = moved(work, broker.bootstrap)
    with Daemon(work, config) as one:
        row = np.arange(16, dtype="<f4") - 7
        record = b"HCTR" + struct.pack("<Iq", row.nbytes, 3) + row.tobytes()
        broker.write("hps_et.wdl.deep", [{"value": record}])
        out = shell(UPDATES, work, HPSD_ADDR=one.admin)
        assert "hps_et.wdl.deep" in out, out
        result, = ask(one.stub(), "wdl", {"deep": [3, 4]}).results
        np.testing.assert_array_equal(np.frombuffer(result.rows, "<f4").reshape(2, 16), [row, deep.rows[4]])


def test_migration_when_config_pbtxt_is_as_shown_then_hpsd_reports_the_same_tensors(work):
    wdl(work)
    with Daemon(work, moved(work)) as one:
        served = kserve_grpc.GRPCInferenceServiceStub(one.channel()).ModelConfig(
            kserve_pb.ModelConfigRequest(name="wdl"), timeout=PATIENCE_S).config
    for side, kind in (("-", "KIND_GPU"), ("+", "KIND_CPU")):
        shown = text_format.Parse(diff_side(CONFIG_PBTXT, side), model_config_pb2.ModelConfig())
        for field in ("name", "backend", "max_batch_size"):
            assert getattr(shown, field) == getattr(served, field), field
        assert [(one.name, one.data_type, list(one.dims)) for one in (*shown.input, *shown.output)] == [
            (one.name, one.data_type, list(one.dims)) for one in (*served.input, served.output[0])]
        group, = shown.instance_group
        assert group.Kind.Name(group.kind) == kind


def test_migration_when_python_is_changed_as_shown_then_the_same_rows(work):
    (_, deep), _ = wdl(work)
    with Daemon(work, moved(work)) as one:
        code = diff_side(PYTHON, "+").replace(documents.ADDRESS, one.grpc[0])
        done = subprocess.run([sys.executable, "-c", f"keys = [1, 2, 1]\n{code}print(rows.tolist())"], check=False, text=True,
                              timeout=PATIENCE_S, env={**os.environ, "PYTHONPATH": f"{ROOT}/clients/python"}, capture_output=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.array(json.loads(done.stdout), "<f4"), deep.rows[[1, 2, 1]])


# ---- operations --------------------------------------------------------------------------------------

def dlrm(work, number):
    """The tables of version `number` below work/models."""
    for name, dim in (("items", 4), ("users", 8)):
        Table.random(name, 40, dim, seed=number).save(f"{work}/models/dlrm/{number}")
        Table.random(name, 40, dim, seed=number).save_hugectr(f"{work}/models/{number}")
    return [f"{work}/models/dlrm/{number}/{name}.rows.npy" for name in ("items", "users")]


def config_of(work, **more):
    entry = model_config("dlrm", dlrm(work, 1), [4, 8], ["items", "users"])
    dlrm(work, 2)
    return default_config([entry], server={"model_roots": [work]}, **more)


@code_of("docs/versions.md", "hpsctl load dlrm --from /models/dlrm/2 --dry-run")
def test_versions_when_switched_as_shown_then_back_at_the_first(work, daemon, code):
    one = daemon(config_of(work))
    shell(with_values(code, {"/models/": f"{work}/models/"}), work, HPSD_ADDR=one.admin)
    assert list(one.versions("dlrm")) == [1]


@code_of("docs/versions.md", "hpsctl load dlrm --table users")
def test_load_when_tables_are_named_as_shown_then_versions_of_them(work, daemon, code):
    config = config_of(work)
    config["models"][0]["embedding_table_names"] = ["users", "items"]
    config["models"][0]["sparse_files"].reverse()
    config["models"][0]["embedding_vecsize_per_table"].reverse()
    one = daemon(config)
    with open(f"{work}/ps.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    shell(with_values(code, {"/models/dlrm0_sparse_2000.model": f"{work}/models/2/users", "/etc/hpsd": work,
                                "/models/dlrm1_sparse_2000.model": f"{work}/models/2/items"}), work, HPSD_ADDR=one.admin)
    assert sorted(one.versions("dlrm")) == [1, 2, 3]


@code_of("docs/versions.md", "hpsctl load dlrm --from /models/dlrm/2 --row-dtype")
def test_load_when_of_a_type_as_shown_then_rows_are_stored_so(work, daemon, code):
    one = daemon(config_of(work))
    shell(with_values(code, {"/models/": f"{work}/models/"}), work, HPSD_ADDR=one.admin)
    reply = one.stub().GetModel(pb.GetModelRequest(model="dlrm", version=2), timeout=PATIENCE_S)
    assert {table.data_type for table in reply.versions[0].tables} == {pb.DATA_TYPE_INT8_ROWWISE_F16}


@code_of("docs/versions.md", "hpsctl snapshot create")
def test_snapshot_when_made_and_restored_as_shown_then_the_same_model(work, daemon, code):
    config = config_of(work)
    one = daemon(config)
    make, restore = code.splitlines()
    shell(with_values(make, {"/var/lib/hpsd": work}), work, HPSD_ADDR=one.admin)
    one.stop()
    shell(with_values(restore, {"/var/lib/hpsd/monday": f"{work}/monday", "--state-dir /var/lib/hpsd": f"--state-dir {work}/new"}), work)
    other = daemon({**config, "models": []}, state="new")
    assert list(other.versions("dlrm")) == [1]


# ---- configurations ----------------------------------------------------------------------------------

def passes(work, **config):
    test_check.passed(test_check.check(work, default_config(**config)))


@code_of("docs/redis.md", '"volatile_db"')
def test_tiers_when_configured_as_shown_then_the_check_passes(work, code):
    passes(work, **json.loads("{" + with_values(code, {"/var/lib/hpsd": work}) + "}"))


@code_of("docs/updates.md", '"update_source"')
def test_updates_when_configured_as_shown_then_the_check_passes(work, code):
    passes(work, **json.loads("{" + code + "}"))


@code_of("docs/updates.md", '"properties"')
def test_properties_when_configured_as_shown_then_the_check_passes(work, code):
    Authority(work, "kafka-ca")
    source = json.loads("{" + with_values(code, {"/etc/hpsd": work}) + "}")
    passes(work, update_source={"type": "kafka", "brokers": "k1:9092", **source})


@code_of("docs/operations.md", '"tls"')
def test_tls_when_configured_as_shown_then_it_is_served(work, daemon, code):
    authority = Authority(work, "clients")
    certificate, key = authority.issue("server")
    code = with_values(code, {"/etc/hpsd/tls.crt": certificate, "/etc/hpsd/tls.key": key, "/etc/hpsd/clients.crt": authority.path})
    one = daemon(default_config(server=json.loads("{" + code + "}")))
    assert one.alive()


@code_of("docs/operations.md", '{"rules"')
def test_roles_when_written_as_shown_then_they_are_served(work, daemon, code):
    roles = write(f"{work}/roles.json", with_values(code, {"9f86...": "9f86" * 16}))
    os.chmod(roles, 0o600)
    one = daemon(default_config(server={"access": roles}))
    assert one.alive()


# ---- Redis -------------------------------------------------------------------------------------------

@needs_redis
@code_of("docs/redis.md", "ACL SETUSER")
def test_redis_user_when_made_as_shown_then_it_may_do_what_a_daemon_needs(work, code):
    words = code.split()
    with redis.Redis(work) as server:
        server.ask(*words)
    assert words[2:4] == ["hpsd", "on"] and words[5:] == test_redis.ACL  # which tests serve with


# ---- Kafka -------------------------------------------------------------------------------------------

@code_of("docs/updates.md", "kafka-acls.sh")
def test_rights_when_granted_as_shown_then_the_broker_takes_them(guarded, code):
    for line in code.splitlines():
        words = line.split()
        assert words[:3] == ["kafka-acls.sh", "...", "--add"] and words[3:5] == ["--allow-principal", "User:hpsd"]
        guarded.rights("--add", *words[5:])


@code_of("docs/updates.md", "hpsctl updates")
def test_streams_when_watched_and_moved_as_shown_then_they_go_on(work, broker, daemon, code):
    broker.create("hps_et.shown.items", 4)
    broker.write("hps_et.shown.items", [{"key": b"\0" * 8, "value": b"\0" * 16, "partition": 3} for _ in range(3)])
    config = config_of(work, update_source={"type": "kafka", "brokers": broker.bootstrap, "start": "earliest",
                                            "metadata_refresh_interval_ms": 200})
    config["models"][0]["model"] = "shown"
    one = daemon(config)
    one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "shown")  # the block waits for at most 10 s
    shell(with_values(code, {"dlrm": "shown", "123456": 2, "120000": 1}), work, HPSD_ADDR=one.admin)
    assert "paused" in one.ctl("updates", "--model", "shown")


@code_of("docs/publishing.md", "hps-publish -b HOST:PORT")
def test_publishing_when_as_shown_then_rows_are_in_the_log(work, broker, code):
    old, new = (os.path.dirname(dlrm(work, number)[0]) for number in (1, 2))
    for table in ("items", "users"):
        broker.create(f"hps_et.published.{table}")
    np.save(f"{work}/items.npy", np.ones((5, 4), "<f4"))
    np.save(f"{work}/keys.npy", np.arange(5))
    write(f"{work}/trainer", "#!/bin/sh\necho items 1 0.5 1 1.5 2; echo users 2 null\n")
    code = with_values(code, {"HOST:PORT": broker.bootstrap, "MODEL": "published", "TABLE": "items", "DIR": new, "OLD": old, "NEW": new,
                                 "trainer |": "./trainer |"})
    shell(code, work)
    lengths = {table: len(broker.read(f"hps_et.published.{table}")) for table in ("items", "users")}
    assert lengths["items"] >= 40 + 5 + 40 + 1 + 5 and lengths["users"] >= 40 + 40 + 1


# ---- refusals ----------------------------------------------------------------------------------------

LITERAL = r'"(?:\\.|[^"\\\n])*"'
TEXT = rf"{LITERAL}(?:\s*(?:PRI\w+|{LITERAL}))*"  # adjacent literals are one text
VALUE = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t)?[diouxXcsp]|…")
ROLE_FILE = {"requests_per_s", "reply_bytes"}  # limits that are no options
# Refusals that no client gets: a part of the text, and who gets it.
NO_CLIENT = {"to look a name up": "hpsd, for names in its configuration",
             "event loop: out of memory": "the start", "thread cannot be started": "the start",
             "host map not complete": "the log, about a load in the background",
             "are free above disk_free_min_bytes": "the log, about hints for the next start"}


def texts_of_source(begin=""):
    """The texts of the C sources that refuse calls; only those directly behind `begin`."""
    names = [name for folder in ("net", "server") for name in glob.glob(f"{ROOT}/{folder}/**/*.c", recursive=True)]
    found = set()
    for name in [*names, f"{ROOT}/base/pool.c"]:
        code = re.sub(r"/\*.*?\*/|'(?:\\.|[^'\\\n])'", "", read(name), flags=re.DOTALL)
        for text in re.findall(rf"{begin}({TEXT})", code):
            parts = re.findall(LITERAL, re.sub(r"\bPRI\w+", '"lu"', text))
            found.add(re.sub(r"\\(.)", r"\1", "".join(part[1:-1] for part in parts)))
    return found


@functools.cache
def pattern_of(text):
    """Matches `text` with any values; None if it hardly has fixed words."""
    pieces = VALUE.split(text)
    return re.compile("(.*)".join(map(re.escape, pieces)), re.DOTALL) if len("".join(pieces)) > 10 else None


def is_made_of(message, text, words):
    """Whether a message of the document is a text of the source: with values, which are `words`, or shortened."""
    made, shortened = (pattern and pattern.fullmatch(other) for pattern, other in
                       ((pattern_of(text), message), (pattern_of(message), text)))
    return bool(shortened or (made and set(re.findall(r"\w+", " ".join(made.groups()))) <= words))


def test_refusals_when_documented_then_they_are_those_of_the_source():
    texts = texts_of_source()
    words = set(re.findall(r"\w+", " ".join(texts)))
    options = set(re.findall(r"^OPTION\(\w+,\s*(\w+),", read(f"{ROOT}/config/options.def"), re.MULTILINE)) | ROLE_FILE
    metrics = dict(re.findall(r'X\(\w+, \w+, "(\w+)",\s*"([\w,]*)"', read(f"{ROOT}/server/observe/metrics.h")))
    section = read(f"{ROOT}/docs/security.md").split("## Why was I refused?\n")[1].split("\n## ")[0]
    head, _, *rows = [[re.findall("`([^`]+)`", cell) or cell.strip() for cell in line.strip("|").split("|")]
                      for line in section.splitlines() if line.startswith("|")]
    assert head == ["reason", "limit", "option", "metric", "message"] and len(rows) > 20
    for row in rows:
        assert len(row) == len(head) and set(row[2]) <= options, row
        for name, _, values in (metric.rstrip("}").partition("{") for metric in row[3]):
            assert name in metrics and (not values or set(values.split(",")) <= texts), row
        for message in row[4] if isinstance(row[4], list) else []:
            assert any(is_made_of(message, text, words) for text in texts), message
    messages = [message for row in rows if isinstance(row[4], list) for message in row[4]]
    refusals = texts_of_source(r"HPS_EXHAUSTED,\s*") | {text for text in texts if re.match(r"((call|command) )?rejected: ", text)}
    assert all(any(part in text for text in refusals) for part in NO_CLIENT)
    missing = [text for text in refusals if pattern_of(text) and not any(part in text for part in NO_CLIENT)
               and not any(is_made_of(message, text, words) for message in messages)]
    assert missing == [], "refusals without a row in docs/security.md"


# ---- nothing is left out -----------------------------------------------------------------------------

def test_blocks_when_in_any_document_then_they_are_run_or_there_is_a_reason():
    left_out = {documents.block(*where) for where in NOT_RUN}
    assert all(NOT_RUN.values()) and not left_out & RUN
    python = {one for one in documents.blocks() if one.file in documents.PAGES and one.language == "python"}
    others = [str(one) for one in documents.blocks()
              if one not in RUN | left_out | python and (one.file, one.language) != (DRAWINGS, "") and one.file != TUTORIAL]
    assert others == [], "blocks that no test runs: run them here, or say in NOT_RUN why not"
