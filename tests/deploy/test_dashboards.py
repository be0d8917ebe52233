# SPDX-License-Identifier: Apache-2.0
"""Prometheus rules and the dashboard against the /metrics of a running hpsd."""
import contextlib
import json
import os
import http.client
import re
import shutil
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from rig import (PATIENCE_S, Daemon, ask, default_config, generate, kafka, kserve_grpc, kserve_pb,  # noqa: E402
                 key_bytes, pb, refused, scratch, until)
import redis  # noqa: E402  in addition to rig.py

DEPLOY = os.path.join(ROOT, "deploy")
# Labels that Prometheus adds to every series of a target.
OF_PROMETHEUS = {"instance", "job"}
# Metrics that Prometheus creates itself.
NOT_OURS = {"up"}
# ./dev installs promtool there.
PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hpsd", "promtool"))
NO_BROKER = kafka.missing()
NO_REDIS = redis.missing()
OF_REDIS = ("hpsd_tier_server_", "hpsd_tier_reachable_", "hpsd_shared_")
OF_UPDATES = "hpsd_update_"
OPERATORS = {"and", "or", "unless", "sum", "max", "min", "avg", "count", "Inf"}  # a "(" may follow later


def read(*path):
    with open(os.path.join(DEPLOY, *path), encoding="utf-8") as f:
        return f.read()


def rules():
    """[{"record" or "alert": name, "expr": text, "labels": labels in its annotations}]"""
    found = []
    for block in re.split(r"^      - ", read("prometheus", "hpsd.rules.yml"), flags=re.M)[1:]:
        kind, name = re.match(r"(record|alert): (\S+)", block).groups()
        expr = re.search(r"^        expr: (?:>\n((?:          .*\n)+)|(.*)\n)", block, re.M)
        found.append({kind: name, "expr": " ".join((expr[1] or expr[2]).split()),
                      "labels": set(re.findall(r"\$labels\.(\w+)", block))})
    return found


def panels():
    """[(title, expression, labels of its legend)]"""
    return [(panel["title"], target["expr"], set(re.findall(r"{{\s*(\w+)\s*}}", target.get("legendFormat", ""))))
            for panel in json.loads(read("grafana", "hpsd.json"))["panels"] for target in panel["targets"]]


def expressions():
    found = [(rule.get("record") or rule["alert"], rule["expr"], rule["labels"]) for rule in rules()]
    return found + panels()


def selectors(expr):
    """[(metric, [(label, operator, value)])] of an expression."""
    found = []
    for name, braces in re.findall(r"(?<![\w$:])([a-zA-Z_:][\w:]*)(\{[^}]*\})?(?![\w(:])", without_clauses(expr)):
        if name in OPERATORS and not braces:
            continue
        matchers = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', braces)
        found.append((name, matchers))
    return found


def without_clauses(expr):
    """The expression without label lists and ranges, which contain no metrics."""
    return re.sub(r"\b(by|on|ignoring|without)\s*\([^)]*\)|\[[^\]]*\]", " ", expr)


def grouping(expr):
    return {word.strip() for clause in re.findall(r"\bby\s*\(([^)]*)\)", expr) for word in clause.split(",")}


def matches(labels, matchers):
    compare = {"=": lambda have, want: have == want, "!=": lambda have, want: have != want,
               "=~": lambda have, want: re.fullmatch(want, have) is not None,
               "!~": lambda have, want: re.fullmatch(want, have) is None}
    return all(compare[operator](labels.get(name, ""), value) for name, operator, value in matchers)


@contextlib.contextmanager
def update_source(work):
    """A configuration block that reads from a test broker, which has a valid and an invalid record."""
    if NO_BROKER is not None:
        yield {}
        return
    with kafka.Broker(work) as broker:
        topic = broker.create("hps_et.m.feature_0", 1)
        broker.write(topic, [(key_bytes([1]), np.zeros(4, "<f4").tobytes()), (b"bad", b"")])
        yield {"update_source": {"type": "kafka", "brokers": broker.bootstrap, "start": "earliest"}}


@contextlib.contextmanager
def volatile_db(work):
    """A configuration block with a test Redis server below the host map."""
    if NO_REDIS is not None:
        yield {}
        return
    with redis.Redis(work) as server:
        yield {"volatile_db": {"type": "redis_cluster", "address": server.address, "local_cache_bytes": "16MiB"}}


@pytest.fixture(name="series", scope="module")
def series_of_a_daemon():
    """{metric: [labels]} after loads, lookups of all kinds, updates and failed calls."""
    with scratch() as work, scratch() as log, update_source(log) as source, volatile_db(f"{work}/redis") as volatile:
        generate(f"{work}/v1", "--tables", 2, "--rows", 500, "--dim", 4)
        with open(f"{work}/v1/ps.json", encoding="utf-8") as f:
            cached = {**json.load(f)["models"][0], "model": "cached", "gpucache": True}
        config = default_config([cached], server={"model_roots": [work]}, **volatile, **source)
        with Daemon(work, config, env={"HPS_DEVICE": "sim"}) as one:
            one.load("m", f"{work}/v1")
            stub = one.stub()
            for _ in range(2):
                ask(stub, "m", {"feature_0": np.arange(9), "feature_1": [10**9]})
            request = pb.LookupRequest(model="m", queries=[pb.TableQuery(table="feature_0", keys=key_bytes([1]))])
            list(stub.LookupStream(request, timeout=PATIENCE_S))
            with refused(grpc.StatusCode.NOT_FOUND):
                ask(stub, "none", {"a": [1]})
            with pytest.raises(grpc.RpcError):  # loads need the admin socket
                kserve_grpc.GRPCInferenceServiceStub(one.channel()).RepositoryModelLoad(
                    kserve_pb.RepositoryModelLoadRequest(model_name="m"), timeout=PATIENCE_S)
            if source:
                one.ctl("--timeout", PATIENCE_S, "wait-for", "now", "--model", "m", "--allow-refused")
            found = {}
            for sample in one.metrics():
                name, _, braces = sample.partition("{")
                found.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', braces)))
            yield found


def test_rules_when_parsed_then_all_are_found(series):
    assert series
    text = read("prometheus", "hpsd.rules.yml")
    assert len(rules()) == text.count("expr:") == len(re.findall(r"- (?:record|alert):", text))
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    used = {name for _, expr, _ in expressions() for name, _ in selectors(expr) if ":" in name}
    assert used <= set(recorded)


@pytest.mark.parametrize("where, expr, words", expressions())
def test_expression_when_compared_with_a_daemon_then_every_selector_finds_series(series, where, expr, words):
    found = selectors(expr)
    assert found, where
    for name, matchers in found:
        if name in NOT_OURS or ":" in name:
            continue
        if name.startswith(OF_UPDATES) and NO_BROKER is not None:
            pytest.skip(f"no updates: {NO_BROKER}")
        if NO_REDIS is not None and (name.startswith(OF_REDIS) or ("tier", "=", "redis") in matchers):
            pytest.skip(f"no Redis: {NO_REDIS}")
        assert name in series, f"{where}: no metric {name}"
        own = [matcher for matcher in matchers if matcher[0] not in OF_PROMETHEUS]
        fitting = [labels for labels in series[name] if matches(labels, own)]
        assert fitting, f"{where}: {name} has no series with {own}, only {series[name]}"
        for label, _, _ in own:
            assert all(label in labels for labels in series[name]), f"{where}: {name} has no label {label}"
        for label, _, value in own:
            known = {labels[label] for every in series.values() for labels in every if label in labels}
            text = documented().get(name.removeprefix("hpsd_"), "")
            assert all(word in known or f"`{word}`" in text for word in value.split("|")), f"{where}: {value}"
        assert "method" not in [label for label, _, _ in own], f"{where}: methods of other protocols are left out"
        for label in grouping(expr) - OF_PROMETHEUS:
            assert all(label in labels for labels in fitting), f"{where}: {name} has no label {label}"
    # Labels in a legend or an annotation must be kept by the aggregation.
    kept = grouping(expr) or {label for name, _ in found for labels in series.get(name, []) for label in labels}
    if not any(":" in name for name, _ in found):
        assert words - OF_PROMETHEUS <= kept, where


def failing_lookups(one, n):
    """Send n lookups of a model that does not exist, over each KServe protocol."""
    stub = kserve_grpc.GRPCInferenceServiceStub(one.channel())
    request = kserve_pb.ModelInferRequest(model_name="none", raw_input_contents=[key_bytes([1]), b"\1\0\0\0"])
    request.inputs.add(name="KEYS", datatype="INT64", shape=[1])
    request.inputs.add(name="NUMKEYS", datatype="INT32", shape=[1])
    answers = list(stub.ModelStreamInfer(iter([request] * 3), timeout=PATIENCE_S))
    assert all("none" in answer.error_message for answer in answers) and len(answers) == 3
    host, port = one.kserve[0].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("POST", "/v2/models/none/infer", json.dumps({"inputs": [
        {"name": "KEYS", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "NUMKEYS", "datatype": "INT32", "shape": [1], "data": [1]}]}))
    assert connection.getresponse().status == 404
    connection.close()
    for _ in range(n - 4):
        with refused(grpc.StatusCode.NOT_FOUND):
            stub.ModelInfer(request, timeout=PATIENCE_S)


def alerts_of(name, per_minute, instances):
    """A test of promtool: the alert after 15 minutes in which the counters grow at these rates."""
    series = [{"series": sample[:-1] + f',instance="{instance}",job="hpsd"}}', "values": f"0+{value}x20"}
              for sample, value in per_minute.items() if "_total{" in sample for instance in instances]
    return {"interval": "1m", "input_series": series, "alert_rule_test": [
        {"eval_time": "15m", "alertname": name, "exp_alerts": []}]}


def check_rules(*tests):
    """Check the rules with promtool, and run these tests."""
    rules_file = os.path.join(DEPLOY, "prometheus", "hpsd.rules.yml")
    subprocess.run([PROMTOOL, "check", "rules", rules_file], check=True, stdout=subprocess.DEVNULL)
    with scratch() as work:
        with open(f"{work}/tests.yml", "w", encoding="utf-8") as f:
            json.dump({"rule_files": [rules_file], "evaluation_interval": "1m", "tests": tests}, f)
        done = subprocess.run([PROMTOOL, "test", "rules", f"{work}/tests.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: Debian's package prometheus has it")
def test_lookups_when_only_kserve_lookups_fail_then_the_alert_fires_for_each_instance():
    with scratch() as work:
        generate(f"{work}/v1", "--tables", 1, "--rows", 50, "--dim", 4)
        with open(f"{work}/v1/ps.json", encoding="utf-8") as f:
            (model,) = json.load(f)["models"]
        config = default_config([{**model, "model": "m"}], server={"kserve_listen": ["127.0.0.1:0"]})
        with Daemon(work, config) as one:
            ask(one.stub(), "m", {"feature_0": [1]})
            with refused(grpc.StatusCode.INVALID_ARGUMENT):
                one.stub().Lookup(pb.LookupRequest(model="m", queries=[pb.TableQuery(keys=b"odd")]))
            count = 'hpsd_lookup_requests_total{code="%s"}'
            until(lambda: one.metrics()[count % "INVALID_ARGUMENT"] == 1, "the first two lookups")
            well = alerts_of("HpsdLookupsFail", one.metrics(), ["a", "b"])
            failing_lookups(one, 198)
            until(lambda: one.metrics()[count % "NOT_FOUND"] == 198, "all lookups that fail")
            badly = alerts_of("HpsdLookupsFail", one.metrics(), ["a", "b"])
        badly["alert_rule_test"][0]["exp_alerts"] = [
            {"exp_labels": {"severity": "page", "instance": instance},
             "exp_annotations": {"summary": f"99% of lookups of {instance} fail"}} for instance in ("a", "b")]
        check_rules(well, badly)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: Debian's package prometheus has it")
def test_limits_when_nearly_reached_or_exceeded_then_alerts_name_instance_and_limit():
    values = {'hpsd_limit_max{limit="%s",instance="%s"}': "100+0x20", 'hpsd_limit_used{limit="%s",instance="%s"}': "85+0x20"}
    series = {name % (limit, instance): value for name, value in values.items()
              for limit in ("reply_bytes", "request_bytes") for instance in ("a", "b")}
    series['hpsd_limit_used{limit="reply_bytes",instance="b"}'] = "95+0x20"
    series |= {f'hpsd_limit_refused_total{{limit="reply_bytes",scope="{scope}",instance="a"}}': f"0+{per_minute}x20"
               for scope, per_minute in (("address", 90), ("all", 30))}
    firing_now = [f'ALERTS{{alertname="{name}",alertstate="firing",severity="ticket",limit="reply_bytes",{more}}}'
                  for name, more in (("HpsdLimitNear", 'instance="b"'), ("HpsdMemoryRefused", 'instance="a",scope="address"'))]
    check_rules({"interval": "1m", "input_series": [{"series": name, "values": value} for name, value in series.items()],
                 "promql_expr_test": [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": "15m",
                                       "exp_samples": [{"labels": labels, "value": 1} for labels in firing_now]}]})


def firing(name, samples):
    """Whether the rule, which compares one metric with a number, is true for the samples."""
    (expr,) = [rule["expr"] for rule in rules() if rule.get("alert") == name]
    metric, number = re.fullmatch(r"(\w+) == (\d+)", expr).groups()
    return samples[metric] == float(number)


def test_alert_when_a_model_cannot_be_loaded_then_it_fires_until_the_load_succeeds():
    with scratch() as work:
        generate(f"{work}/v1", "--tables", 2, "--rows", 500, "--dim", 4)
        with open(f"{work}/v1/ps.json", encoding="utf-8") as f:
            config = default_config(json.load(f)["models"])
        os.rename(f"{work}/v1", f"{work}/away")
        with Daemon(work, config, ready=False) as one:
            until(lambda: sum(value for name, value in one.metrics().items()
                              if name.startswith("hpsd_model_load_failures_total{")) == 1, "the failure")
            assert firing("HpsdNotReady", one.metrics())
            os.rename(f"{work}/away", f"{work}/v1")
            one.send(signal.SIGHUP)
            one.read_line("ready")
            assert not firing("HpsdNotReady", one.metrics())


def test_dashboard_variables_when_queried_then_their_metrics_exist(series):
    for variable in json.loads(read("grafana", "hpsd.json"))["templating"]["list"]:
        if variable["type"] == "query":
            assert re.match(r"label_values\((\w+), instance\)$", variable["query"])[1] in series


def documented():
    """{metric: its description in docs/monitoring.md and the heading of its table}"""
    found, heading = {}, ""
    with open(os.path.join(ROOT, "docs", "monitoring.md"), encoding="utf-8") as f:
        for line in f:
            heading = line if line.startswith("#") else heading
            row = re.match(r"\| `(\w+)` \| (?:counter|gauge|histogram) \| (.*) \|$", line)
            if row:
                found[row[1]] = row[2] + heading
    return found


def test_metrics_when_documented_then_a_daemon_exports_them_or_the_document_says_when(series):
    assert len(documented()) > 20
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series}
    names = {name.removeprefix("hpsd_") for name in families | set(series) if name.startswith("hpsd_")}
    missing = {name for name in documented() if name not in names}
    assert missing == {name for name, text in documented().items() if "once it happened" in text
                       or ("with an `update_source`" in text and NO_BROKER is not None)
                       or ("with Redis" in text and NO_REDIS is not None)}
