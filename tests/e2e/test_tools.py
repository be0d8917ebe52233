# SPDX-License-Identifier: Apache-2.0
"""hps-gen, hps-bench, and what all programs share: help, versions, wrong words."""
import json
import os
import re
import signal
import socket
import subprocess
from concurrent import futures

import grpc
import numpy as np
import pytest

from made_up import Admin, partition, version
from rig import BIN, PATIENCE_S, Daemon, admin_pb, ask, default_config, floats, generate, hpsgen

pytestmark = pytest.mark.one_thread
TOOLS = ("hpsd", "hpsd-sim", "hpsctl", "hps-gen", "hps-bench", "hps-publish")


def run(tool, *args, code=0):
    done = subprocess.run([os.path.join(BIN, tool), *map(str, args)], capture_output=True, text=True,
                          timeout=PATIENCE_S * 2, check=False)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("options", [
    ("hugectr", "fp32", "dense"), ("hugectr", "fp32", "hashed"), ("npy", "fp32", "dense"),
    ("npy", "fp16", "hashed"), ("dle", "fp32", "dense"), ("dle", "fp16", "dense")])
def test_gen_when_loaded_then_every_row_comes_back(daemon, work, options):
    form, dtype, keys_are = options
    generate(f"{work}/g", "--tables", 3, "--rows", 500, "--dim", 12, "--format", form, "--dtype", dtype,
             "--keys", keys_are, "--seed", 5)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    keys = hpsgen.hashed_keys(500) if keys_are == "hashed" else np.arange(500)
    reply = ask(one.stub(), "m", {f"feature_{i}": keys for i in range(3)})
    for i, result in enumerate(reply.results):
        expected = hpsgen.rows(5, i, keys, 12, np.float16 if dtype == "fp16" else np.float32)
        np.testing.assert_array_equal(floats(result), expected.astype(np.float32))
        assert result.unknown_key_count == 0


def test_gen_when_its_ps_json_is_served_then_the_model_is_ready(daemon, work):
    generate(f"{work}/g", "--tables", 2, "--rows", 100, "--dim", 4, "--model", "mine")
    with open(f"{work}/g/ps.json", encoding="utf-8") as f:
        config = json.load(f)
    config.setdefault("server", {}).update(drain_delay_ms=1, disk_free_min_bytes="1MiB")
    one = daemon(config)
    result = ask(one.stub(), "mine", {"feature_1": [3]}).results[0]
    np.testing.assert_array_equal(floats(result), hpsgen.rows(1, 1, [3], 4))


def test_bench_when_rows_are_right_then_0_and_when_one_is_not_then_5(daemon, work):
    generate(f"{work}/g", "--tables", 2, "--rows", 1000, "--dim", 8)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    path = f"{work}/g/feature_1/emb_vector"
    values = np.fromfile(path, "<f4")
    values[1234] += 1
    values.tofile(path)
    manifest = f"{work}/g/manifest.json"
    if os.path.exists(manifest):
        os.unlink(manifest)  # it has checksums
    one.load("wrong", f"{work}/g")
    args = ["--addr", one.grpc[0], "--admin", one.admin, "-q", "-n", 200, "-k", 256, "--verify"]
    result = json.loads(run("hps-bench", *args, "--model", "m", "-o", "json").stdout.splitlines()[-1])
    assert result
    run("hps-bench", *args, "--model", "m", "--stream", "--output-type", "bf16")
    run("hps-bench", *args, "--model", "wrong", code=5)
    run("hps-bench", *args, "--model", "none", code=1)


def test_bench_when_bags_and_matrices_are_right_then_0_and_when_one_is_not_then_5(daemon, work):
    generate(f"{work}/g", "--tables", 3, "--rows", 1000, "--dim", 8)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    args = ["--addr", one.grpc[0], "--admin", one.admin, "-q", "-n", 50, "-k", 100, "--verify", "--model", "m"]
    for pooling in ("sum", "mean", "sqrtn", "mean_by_count"):
        result = json.loads(run("hps-bench", *args, "--pooling", pooling, "--bag-keys", 7, "--weighted",
                                "-o", "json").stdout.splitlines()[-1])
        assert (result["keys"], result["rows_checked"]) == (50 * 3 * 100, 50 * 3 * 15)
    for words, n_rows in ((["--pooling", "sum"], 3 * 100), ([], 7 * 100)):
        result = json.loads(run("hps-bench", *args, "--hotness", "4,1,2", *words, "-o", "json").stdout.splitlines()[-1])
        assert (result["keys"], result["rows_checked"]) == (50 * 7 * 100, 50 * n_rows)
    run("hps-bench", *args, "--pooling", "sum", "--row-layout", "concat", "--output-type", "fp16", "--stream")
    run("hps-bench", *args, "--row-layout", "concat", "--stream")
    run("hps-bench", *args, "--output-type", "raw")
    for row_dtype in ("fp16", "bf16", "int8_rowwise_f32", "int8_rowwise_f16"):
        one.load(row_dtype, f"{work}/g", row_dtype=row_dtype)
        for words in ([], ["--output-type", "raw"], ["--pooling", "sum", "--bag-keys", 7, "--weighted"]):
            run("hps-bench", *args[:-1], row_dtype, *words)
    told = run("hps-bench", *args, "--pooling", "mean", "--bag-keys", 9, "--data-seed", 2, code=5).stdout
    assert "of 9 keys: does not match the rows of hps-gen" in told, told
    for words in (["--bag-keys", 3], ["--weighted"], ["--output-type", "raw", "--pooling", "sum"],
                  ["--output-type", "raw", "--row-layout", "concat"], ["--pooling", "sum", "--bag-keys", 101],
                  ["--hotness", "1,2"], ["--hotness", "1,2,3,4"], ["--hotness", "1,0,2"], ["--hotness", "1,2,30000"],
                  ["--hotness", "1,2,3", "--pooling", "sum", "--bag-keys", 2]):
        run("hps-bench", *args, *words, code=2)


def test_lookup_when_bags_or_stored_rows_are_asked_then_they_are_shown(daemon, work):
    generate(f"{work}/g", "--tables", 1, "--rows", 100, "--dim", 4, "--format", "npy", "--dtype", "fp16")
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    rows = hpsgen.rows(1, 0, range(100), 4, np.float16).astype(np.float32)
    asked = ["lookup", "m", "feature_0", "1,2", "7:0.5,-3", "", "--pooling", "sum"]
    [told] = one.ctl("-o", "json", *asked)
    assert (told["pooling"], told["data_type"], told["dim"]) == ("sum", "fp32", 4)
    expected = [rows[1] + rows[2], np.float32(0.5) * rows[7], np.zeros(4)]
    np.testing.assert_array_equal(np.array([row["row"] for row in told["rows"]], np.float32), np.array(expected))
    assert told["rows"][1]["keys"] == [{"key": 7, "status": "found", "weight": 0.5},
                                       {"key": -3, "status": "unknown", "weight": 1}]
    lines = one.ctl(*asked).splitlines()
    assert lines[0].split() == ["BAG", "KEYS", "STATUS", "ROW"]
    assert lines[2].split()[:4] == ["1", "2", "1", "unknown"] and "1 unknown" in lines[-1], lines
    assert "stored as fp16" in one.ctl("lookup", "m", "feature_0", 1, "--output-type", "raw")
    for weight in ("x", "nan", "1e300", ""):
        assert f'weight "{weight}" of key 1' in one.ctl("lookup", "m", "feature_0", f"1:{weight}", "--pooling", "sum",
                                                        code=2)
    for word in ("1,2", "1:0.5"):
        said = one.ctl("lookup", "m", "feature_0", word, code=2)
        assert word in said and "--pooling" in said, said


def test_bench_when_some_calls_fail_then_1_and_how_many(daemon, work):
    """Room for one reply at a time, and nobody waits for it."""
    generate(f"{work}/g", "--tables", 1, "--rows", 1000, "--dim", 128)
    one = daemon(default_config(server={"model_roots": [work], "reply_bytes_in_flight": "1MiB", "queue_ms_max": 0,
                                        "reply_bytes_max": "1MiB"}))
    one.load("m", f"{work}/g")
    done = run("hps-bench", "--addr", one.grpc[0], "--admin", one.admin, "-q", "-n", 200, "-k", 1500, "-p", 32,
               "--model", "m", "-o", "json", code=1)
    result = json.loads(done.stdout.splitlines()[-1])
    failed = sum(result["errors"].values())
    assert failed > 0 and result["requests"] > 0
    assert f"{failed} of {failed + result['requests']} calls failed" in done.stderr


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_when_asked_for_help_then_the_same_in_every_spelling(tool):
    help_text = run(tool, "--help").stdout
    assert help_text.startswith(f"usage: {tool.removesuffix('-sim')} ")
    assert run(tool, "-h").stdout == help_text and run(tool, "help").stdout == help_text
    for part in ("\nexample:\n", "\nexit codes:\n", "-h, --help ", "--version "):
        assert part in help_text, help_text
    assert max(map(len, help_text.splitlines())) <= 80, help_text


def verbs_of(tool):
    """Words before the options: none, or each verb."""
    _, *verbs = run(tool, "--help").stdout.split("\nverbs (")
    return [[]] + [[line.split()[0]] for line in "".join(verbs).split("\n\n")[0].splitlines()[1:]
                   if line.startswith("  ") and line[2] != " "]


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_when_an_option_takes_one_of_some_words_then_help_has_all_of_them(tool):
    """The parser names the words that it knows when it refuses another."""
    for words in verbs_of(tool):
        text = run(tool, *words, "--help").stdout
        for option in re.findall(r"^ .{5}(--[a-z-]+) \S*\|", text, re.MULTILINE):
            refusal = run(tool, *words, option, "nonsense", "--no-such", code=2).stderr
            known = re.search(r'"nonsense": expected ([^ ;]+\|[^ ;]+)', refusal)
            assert not known or re.search(f" {re.escape(known[1])}(  |\n)", text), (refusal, text)


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_when_asked_for_its_version_then_it_is_that_of_the_build(tool):
    first = run(tool, "--version").stdout.splitlines()[0]
    name, version, revision = first.split()
    assert name == tool.removesuffix("-sim")
    assert first.split(" ", 1)[1] == run("hpsctl", "--version").stdout.splitlines()[0].split(" ", 1)[1]
    assert version[0].isdigit() and revision.startswith("("), first


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_when_asked_nonsense_then_2_and_one_line_that_says_where_help_is(tool):
    name = tool.removesuffix("-sim")
    for words, said in ((["--nonsense"], "--nonsense: unknown option"),
                        (["--hlep"], "--hlep: unknown option (did you mean --help?)"),
                        (["nonsense"], "nonsense: ")):
        done = run(tool, *words, code=2)
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith(f"{name}: {said}") and line.endswith(f"; see {name} --help"), line


def test_ctl_when_asked_about_a_verb_then_the_same_in_every_spelling():
    listed = run("hpsctl", "help").stdout
    verbs = [line.split()[0] for line in listed.split("\nverbs")[1].split("\n\n")[0].splitlines()[1:]]
    assert {"ping", "load", "wait-for", "completion"} <= set(verbs)
    for verb in verbs:
        text = run("hpsctl", "help", verb).stdout
        assert text.startswith(f"usage: hpsctl {verb} ") and "\nexample:\n" in text
        assert max(map(len, text.splitlines())) <= 80, text
        assert run("hpsctl", verb, "--help").stdout == text
    [line] = run("hpsctl", "laod", code=2).stderr.splitlines()
    assert line == "hpsctl: laod: unknown verb (did you mean load?); see hpsctl --help"
    [line] = run("hpsctl", "activate", "m", code=2).stderr.splitlines()
    assert line == "hpsctl: activate m: expected MODEL VERSION; see hpsctl activate --help"
    [line] = run("hpsctl", "activate", "m", "new", code=2).stderr.splitlines()
    assert line == 'hpsctl: version "new": expected a whole number from 1; see hpsctl activate --help'


@pytest.mark.parametrize("tool, words, said", [
    ("hpsctl", ["--timeout", "soon", "ping"], '--timeout "soon": expected seconds, or 250ms, 3min; see hpsctl --help'),
    ("hpsctl", ["slowlog", "gte"], "slowlog gte: expected get|reset (did you mean get?); see hpsctl slowlog --help"),
    ("hps-gen", ["--tables", "0"], "--tables 0: expected 1 to 4096; see hps-gen --help"),
    ("hps-gen", ["--preset", "dlrm-dcnv2", "--scale", "2", "--out", "x"],
     '--scale "2": expected a number above 0 and up to 1; see hps-gen --help'),
    ("hps-gen", ["--tables", "1", "--rows", "1", "--dim", "1"],
     "no directory: expected --out DIR; see hps-gen --help"),
    ("hps-bench", ["--threads", "65"], "--threads 65: expected 1 to 64; see hps-bench --help"),
    ("hps-bench", ["--zipf", "x"], '--zipf "x": expected ALPHA[,Q[,S]], ALPHA 0 to 10, Q and S 0 to 1; see hps-bench --help'),
    ("hps-bench", ["--protocol=kserve"], "--protocol: removed; hps-bench calls only hps.v1; for KServe use "
     "perf_analyzer of Triton; see hps-bench --help"),
    ("hps-publish", ["-b", "x:1", "-m", "m"],
     "nothing to publish: expected --from, --diff, --deletes or -; see hps-publish --help"),
    ("hps-publish", ["-b", "x:1", "-m", "m", "--diff", "old"],
     "--diff: got no value, expected OLD NEW; see hps-publish --help"),
    ("hpsd", ["--check"], "no configuration: expected --config FILE or --table NAME=PATH; see hpsd --help"),
])
def test_tool_when_arguments_are_wrong_then_what_was_given_and_what_is_expected(tool, words, said):
    done = run(tool, *words, code=2)
    assert done.stderr == f"{tool}: {said}\n"


EVIL = "\x1b[2J\r\n\x7f\x9b31m\u202e\u2066\u200b"  # drives a terminal, turns text around, is not seen
SHOWN = "\\u001b[2J\\u000d\\u000a\\u007f\\u009b31m\\u202e\\u2066\\u200b"


class Hostile(Admin):
    """Says everything so."""

    def ListModels(self, request, context):
        return admin_pb.ListModelsResponse(models=[admin_pb.ModelInfo(model=EVIL, reason=EVIL)])

    def GetStatus(self, request, context):
        return admin_pb.GetStatusResponse(version=EVIL, not_ready_reasons=[EVIL])

    def GetConfig(self, request, context):
        return admin_pb.GetConfigResponse(json='{\n  "a": "%s"\n}\n' % EVIL.replace("\n", "\\n"))

    def LoadModel(self, request, context):
        yield admin_pb.LoadProgress(model=EVIL, stage=EVIL, version=1)
        yield admin_pb.LoadProgress(model=EVIL, stage="done", version=1, done=True)

    def Drain(self, request, context):
        context.abort(grpc.StatusCode.INTERNAL, EVIL)


@pytest.mark.parametrize("address", ["http://h:80", "a,b", " h:80", "::1", "h:p:q", "h:0", "h:70000"])
@pytest.mark.parametrize("tool, words, named", [
    ("hpsctl", ("--addr", "ADDRESS", "ping"), "--addr"),
    ("hps-bench", ("--rows", "9", "--tables", "a", "--addr", "ADDRESS"), "--addr"),
    ("hps-bench", ("--admin", "ADDRESS"), "--admin"),
    ("hps-publish", ("-m", "m", "-b", "h", "-w", "--addr", "ADDRESS", "-"), "--addr"),
    ("hps-publish", ("-m", "m", "-b", "ADDRESS", "-"), "--bootstrap-server")])
def test_tool_when_an_address_is_none_then_refused_at_once_and_the_option_is_named(tool, words, named, address):
    if named == "--bootstrap-server" and address in ("a,b", " h:80"):
        return  # a list of brokers, to Kafka's clients
    said = run(tool, *(word.replace("ADDRESS", address) for word in words), code=2).stderr
    assert said.startswith(f"{tool}: {named}"), said
    wrong = "'a': " if address == "a,b" and tool == "hps-bench" and named == "--addr" else address  # of a list, the first one
    assert "expected" in said and wrong in said


def test_ctl_when_a_server_says_what_drives_terminals_then_it_is_shown_and_does_nothing():
    with Hostile([version([partition(EVIL)], model=EVIL, lineage=EVIL)]) as hostile:
        for words, code in ((["models"], 0), (["status"], 0), (["config", "get"], 0), (["updates"], 0),
                            (["load", "m", "--from", "/x"], 0), (["drain"], 1)):
            done = run("hpsctl", "--addr", hostile.address, *words, code=code)
            text = done.stdout + done.stderr
            assert not any(c in text.replace("\n", "") for c in EVIL if not c.isprintable()), repr(text)
            assert SHOWN.split("\\u000a")[1] in text, text
        for verb in ("models", "updates"):
            done = run("hpsctl", "--addr", hostile.address, "-o", "json", verb)
            assert done.stdout.strip("\n").isprintable(), repr(done.stdout)
            assert [m["model"] for m in json.loads(done.stdout)["models" if verb == "models" else "versions"]] == [EVIL]


class Quick(Admin):
    """Loads a version at once."""

    def LoadModel(self, request, context):
        yield admin_pb.LoadProgress(model="m", version=1, stage="plan")
        yield admin_pb.LoadProgress(model="m", version=1, stage="done", row_count=7, activated=True, done=True)


def test_ctl_when_a_load_is_quick_then_it_shows_no_empty_progress():
    with Quick([]) as quick:
        done = run("hpsctl", "--addr", quick.address, "load", "m", "--from", "/x", "--activate")
    assert (done.stderr, done.stdout) == ("", "m version 1 loaded, 7 rows, active\n")


@pytest.mark.parametrize("words", [("status",), ("lookup", "m", "t", "1")])
def test_ctl_when_no_server_is_there_then_it_says_how_to_name_one(work, words):
    said = run("hpsctl", "--addr", f"unix:{work}/none.sock", *words, code=3).stderr
    assert f"cannot reach unix:{work}/none.sock" in said and "HPSD_ADDR" in said and "unix:STATE_DIR/admin.sock" in said


class HostileLookups(grpc.GenericRpcHandler):
    """Refuses everything so."""

    def service(self, handler_call_details):
        def refuse(request, context):
            context.abort(grpc.StatusCode.INTERNAL, EVIL)
        return grpc.unary_unary_rpc_method_handler(refuse)


def test_bench_when_a_server_says_what_drives_terminals_then_it_is_shown_and_does_nothing():
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(HostileLookups(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = run("hps-bench", "--addr", f"127.0.0.1:{port}", "--tables", "t", "--rows", 9, "--model", "m", "-q", "-n", 1,
                   code=1)
    finally:
        server.stop(None).wait()
    text = done.stdout + done.stderr
    assert not any(c in text.replace("\n", "") for c in EVIL if not c.isprintable()), repr(text)
    assert SHOWN in text, text


def test_bench_when_one_of_two_servers_is_missing_then_calls_are_repeated_at_the_other(daemon, work):
    generate(f"{work}/g", "--tables", 1, "--rows", 1000, "--dim", 8)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    args = ("--model", "m", "--tables", "feature_0", "--rows", 1000, "--verify", "-q", "-n", 50, "-o", "json")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        missing = "127.0.0.1:%d" % closed.getsockname()[1]
    said = json.loads(run("hps-bench", "--addr", f"{missing},{one.grpc[0]}", "--retry", *args).stdout)
    assert said["requests"] == 50 and said["errors"] == {} and said["rows_checked"] == 50 * 64


def test_bench_when_interrupted_then_calls_that_were_due_later_are_not_unsent(daemon, work):
    generate(f"{work}/g", "--tables", 1, "--rows", 1000, "--dim", 8)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    with subprocess.Popen([os.path.join(BIN, "hps-bench"), "--addr", one.grpc[0], "--admin", one.admin, "--model", "m", "--rate", "20",
                           "--duration", "100000", "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert "requests/s" in bench.stderr.readline()  # the load runs
        bench.send_signal(signal.SIGINT)
        said = json.loads(bench.communicate(timeout=PATIENCE_S)[0])
    assert said["requests"] > 0 and said["unsent"] < 1000, said  # 2,000,000 were due later


def test_completion_when_printed_then_bash_takes_it():
    script = run("hpsctl", "completion", "bash").stdout
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rollback" in script
    [words] = [line for line in script.splitlines() if line.strip().startswith("updates)")]
    assert {"pause", "resume", "seek", "accept-gap", "--to", "--all"} <= set(words.split("'")[3].split()), words
    assert run("hpsctl", "completion", "zsh").stdout.startswith("#compdef hpsctl\n")


def completed(address, typed):
    """What bash offers after the address of a server. As readline does, it splits words at colons."""
    script = ('source <(hpsctl completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hpsctl_complete; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    words = ["hpsctl", "--addr", *re.findall("[^:]+|:+", address), *typed.split(" ")]
    done = subprocess.run(["bash", "-c", script, "-", *words], text=True, check=True,
                          capture_output=True, env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"})
    assert done.stderr == ""
    return {word for word in done.stdout.split() if word.startswith("--") == typed.split(" ")[-1].startswith("--")}


def test_completion_when_bash_runs_it_then_verbs_options_and_names_of_the_server(work):
    for name in ("items", "users"):
        np.save(f"{work}/{name}.npy", np.zeros((4, 4), "<f4"))
    with Daemon(work, flags=["--table", f"items={work}/items.npy", "--table", f"users={work}/users.npy"]) as one:
        def offered(typed):
            return completed(one.admin, typed)
        assert offered("act") == {"activate"} and offered("help roll") == {"rollback"} and offered("updates pau") == {"pause"}
        assert offered("lookup ") == {"default"} and offered("lookup default ") == {"items", "users"}
        assert offered("lookup --values 3 default it") == {"items"} and offered("lookup default items ") == set()
        assert offered("lookup --poo") == {"--pooling"}


def test_completion_when_names_of_a_server_are_commands_then_they_neither_run_nor_are_offered(work):
    class Commands(Hostile):
        def ListModels(self, request, context):
            return admin_pb.ListModelsResponse(models=[admin_pb.ModelInfo(model=name, versions=[admin_pb.VersionInfo(version=1)]) for name in (
                f"$(touch${{IFS}}{work}/ran)", f"`touch${{IFS}}{work}/ran`", "a;b", "good-1.x")])

    with Commands([]) as hostile:
        assert completed(hostile.address, "lookup ") == {"good-1.x"}
    assert not os.path.exists(f"{work}/ran")
