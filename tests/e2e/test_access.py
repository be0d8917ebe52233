# SPDX-License-Identifier: Apache-2.0
"""Permissions: the role file, tokens, certificates, and what a reload revokes."""
import hashlib
import json
import os
import queue
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import grpc
import pytest
from grpc.reflection.v1 import reflection_pb2, reflection_pb2_grpc as reflection_grpc

from rig import (BIN, PATIENCE_S, Authority, Daemon, Table, admin_grpc, admin_pb, as_somebody_else, ask, default_config,
                 health_grpc, health_pb2, key_bytes, model_config, pb, pb_grpc, refused, run_hpsd, until)

DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


def read(path):
    with open(path, "rb") as f:
        return f.read()


def rule(who, may, **more):
    return {"who": who, "may": may, **more}


def token(name, **more):
    """The entry of a token that is named `name`; its secret is the name."""
    return {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **more}


class Served:
    """A daemon with models "m" and "other", a role file, and an admin listener on TCP."""

    def __init__(self, work, rules, tokens=(), **server):
        self.path = os.path.join(work, "roles.json")
        self.write(rules, tokens)
        tables = [Table.random(name, 50, 4) for name in ("m", "other")]
        self.key = int(tables[0].keys[0])
        models = [model_config(one.name, [one.save(f"{work}/{one.name}")], [4], [one.name]) for one in tables]
        self.daemon = Daemon(work, default_config(models, server={"access": self.path, **server}, durable=False),
                             flags=["--admin-listen", "127.0.0.1:0"])

    def write(self, rules, tokens=()):
        with open(self.path, "w", encoding="utf-8") as f:
            json.dump({"rules": rules, "tokens": list(tokens)}, f)

    def reload(self, rules, tokens=()):
        self.write(rules, tokens)
        n = self.daemon.log().count("reloaded")
        self.daemon.process.send_signal(signal.SIGHUP)
        until(lambda: self.daemon.log().count("reloaded") > n, "the reload")

    def admin(self, credentials=None):
        return admin_grpc.AdminStub(channel(self.daemon, self.daemon.admin, credentials))


def channel(daemon, address, credentials=None):
    options = [("grpc.use_local_subchannel_pool", 1)]
    made = (grpc.secure_channel(address, credentials, options=options) if credentials
            else grpc.insecure_channel(address, options=options))
    daemon.channels.append(made)
    return made


def by(name):
    return {"metadata": (("authorization", f"Bearer {name}"),), "timeout": PATIENCE_S}


def look(daemon, model, name=None, credentials=None):
    stub = pb_grpc.ParameterServerStub(channel(daemon, daemon.grpc[0], credentials))
    return ask(stub, model, {model: [1]}, metadata=by(name)["metadata"] if name else None)


def speaks(daemon, cipher):
    """Whether the daemon accepts TLS 1.2 with this cipher."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(cipher)
    context.set_alpn_protocols(["h2"])
    host, port = daemon.grpc[0].rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw, context.wrap_socket(raw):
            return True
    except (ssl.SSLError, ConnectionResetError):
        return False


def test_tokens_when_of_different_roles_then_each_has_the_permissions_of_its_rule(work):
    served = Served(work, [rule(["token:app"], ["lookup"], models=["m"]),
                           rule(["token:watch"], ["read"], models=["ot*"]),
                           rule(["token:deploy"], ["load"]),
                           rule(["token:ops"], ["admin", "read"])],
                    [token(name) for name in ("app", "watch", "deploy", "ops")])
    with served.daemon as daemon:
        admin = served.admin()
        assert look(daemon, "m", "app").results[0].row_count == 1
        with refused(DENIED, "token:app", "lookup", "'other'"):
            look(daemon, "other", "app")
        with refused(DENIED, "token:app", "'absent'"):  # same error as for an existing model
            look(daemon, "absent", "app")
        with refused(DENIED, "token:ops"):  # no role includes another one
            look(daemon, "m", "ops")
        with refused(UNKNOWN):
            look(daemon, "m")
        with refused(UNKNOWN):
            look(daemon, "m", "made-up")
        models = admin.ListModels(admin_pb.ListModelsRequest(), **by("watch")).models
        assert [model.model for model in models] == ["other"]
        with refused(DENIED, "'m'"):
            admin.ListTables(admin_pb.ListTablesRequest(model="m"), **by("watch"))
        with refused(DENIED, "server as a whole"):
            admin.GetStatus(admin_pb.GetStatusRequest(), **by("watch"))
        with refused(DENIED, "load"):
            admin.UnloadVersion(admin_pb.UnloadVersionRequest(model="other", version=1), **by("watch"))
        with refused(grpc.StatusCode.NOT_FOUND):  # the role permits it
            admin.UnloadVersion(admin_pb.UnloadVersionRequest(model="other", version=9), **by("deploy"))
        with refused(DENIED, "admin"):
            admin.SetLogLevel(admin_pb.SetLogLevelRequest(level="info"), **by("deploy"))
        admin.SetLogLevel(admin_pb.SetLogLevelRequest(level="info"), **by("ops"))
        admin.GetStatus(admin_pb.GetStatusRequest(), **by("ops"))
        assert 'msg="call refused"' in daemon.log() and "who=token:app" in daemon.log()
        assert daemon.get("/readyz")[0] == 200


def test_explain_when_the_caller_lacks_the_role_lookup_then_the_reply_has_no_row(work):
    rules = [rule(["any"], ["read"]), rule(["token:app"], ["lookup"], models=["m"]), rule(["token:other"], ["lookup"], models=["other"])]
    served = Served(work, rules, [token("app"), token("other")])
    with served.daemon:
        for name, row_bytes in (("app", 16), ("other", 0)):
            reply = served.admin().ExplainKey(admin_pb.ExplainKeyRequest(model="m", table="m", key=served.key), **by(name))
            assert reply.state == admin_pb.KEY_STATE_FOUND
            assert [(tier.found, len(tier.row)) for tier in reply.tiers] == [(True, row_bytes)]


def test_reload_when_a_token_is_removed_or_expired_then_its_open_calls_fail(work):
    rules = [rule(["token:a", "token:b", "token:c"], ["load", "read"])]
    served = Served(work, rules, [token(name) for name in "abc"])
    with served.daemon as daemon:
        reflection = reflection_grpc.ServerReflectionStub(channel(daemon, daemon.admin))
        stays = threading.Event()

        def questions():
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            stays.wait(PATIENCE_S)

        answers = {name: reflection.ServerReflectionInfo(questions(), **by(name)) for name in "abc"}
        for stream in answers.values():
            next(stream)
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
        served.reload([rule(["token:b", "token:c"], ["load", "read"])], [token("b"), token("c", expires=soon)])
        for name in "ac":  # removed from the file; expired
            with refused(UNKNOWN):
                next(answers[name])
        assert answers["b"].is_active()
        with refused(UNKNOWN):
            served.admin().ListModels(admin_pb.ListModelsRequest(), **by("a"))
        served.admin().ListModels(admin_pb.ListModelsRequest(), **by("b"))
        stays.set()


def test_reload_when_a_certificate_name_or_ca_is_removed_then_its_calls_fail(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    trainer = authority.issue("trainer", "URI:spiffe://ads/trainer,DNS:Trainer.example")
    plain = authority.issue("plain", None)
    cas = os.path.join(work, "cas.pem")
    shutil.copy(authority.path, cas)
    rules = [rule(["cert:spiffe://ads/trainer"], ["lookup"]), rule(["cert:CN=plain"], ["read"])]
    served = Served(work, rules, tls={"certificate": certificate, "key": key, "client_ca": cas})
    with served.daemon as daemon:
        def credentials(pair):
            return grpc.ssl_channel_credentials(read(authority.path), read(pair[1]), read(pair[0]))

        for cipher, good in (("ECDHE-ECDSA-AES128-GCM-SHA256", True), ("ECDHE-ECDSA-AES128-SHA256", False)):
            assert speaks(daemon, cipher) == good
        look(daemon, "m", credentials=credentials(trainer))
        with refused(DENIED, "cert:CN=plain"):
            look(daemon, "m", credentials=credentials(plain))
        admin = served.admin(credentials(plain))
        admin.ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)
        with refused(DENIED):
            admin.Drain(admin_pb.DrainRequest(), timeout=PATIENCE_S)
        held = served.admin(credentials(plain))
        held.ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)
        served.reload(rules[:1])
        with refused(DENIED):
            held.ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)
        watch = health_grpc.HealthStub(channel(daemon, daemon.grpc[0], credentials(trainer))).Watch(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
        next(watch)
        shutil.copy(Authority(work, "another").path, cas)
        served.reload(rules)
        with refused(grpc.StatusCode.UNAVAILABLE):
            next(watch)


def test_admin_socket_when_the_role_file_has_no_rule_for_it_then_the_daemons_user_has_access(work):
    served = Served(work, [rule(["any"], ["lookup"])])
    with served.daemon as daemon:
        look(daemon, "m")
        with refused(UNKNOWN):
            served.admin().ListModels(admin_pb.ListModelsRequest(), timeout=PATIENCE_S)


@pytest.mark.skipif(bool(as_somebody_else()), reason=as_somebody_else())
def test_admin_socket_when_its_mode_allows_all_users_then_peer_credentials_decide(work):
    table = Table.random("a", 9, 4).save(f"{work}/m")
    os.chmod(work, 0o755)
    path = os.path.join(work, "admin.sock")
    with Daemon(work, flags=["--table", f"a={table}", "--admin-listen", f"unix:{path}"]) as daemon:
        def status(**who):
            return subprocess.run([os.path.join(BIN, "hpsctl"), "--addr", daemon.admin, "status"], text=True,
                                  capture_output=True, check=False, timeout=PATIENCE_S, cwd="/", **who)

        os.chmod(path, 0o666)
        os.chown(path, -1, 54321)
        assert status(user=0, group=0).returncode == 0
        assert status(user=12345, group=54321, extra_groups=[]).returncode == 0
        assert status(user=12345, group=12345, extra_groups=[7, 54321]).returncode == 0
        done = status(user=12345, group=12345, extra_groups=[])
        assert done.returncode == 1 and "user:12345" in done.stderr, done


def test_role_file_when_invalid_then_hpsd_names_the_field_and_exits(work):
    path = os.path.join(work, "roles.json")
    for text, *words in (('{"rules": [{"who": ["any"], "may": ["look"]}]}', "rules[0].may[0]", "lookup"),
                         ('{"rules": [{"who": ["token:x"], "may": ["read"]}]}', "rules[0].who[0]", "tokens"),
                         ('{"rules": [{"who": ["any"], "may": ["read"], "may": ["load"]}]}', "rules[0].may", "duplicate"),
                         ('{"ruels": []}', "ruels", "rules")):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        config = default_config([], server={"access": path})
        with open(os.path.join(work, "bad.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        for how in ((), ("--check",)):
            code, _, err = run_hpsd("--config", f.name, "--state-dir", work + "/s", *how)
            assert code == 2 and all(word in err for word in ("server.access", *words)), err


# ---- quotas ------------------------------------------------------------------------------------------

def pushback_ms(error):
    return int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])


def test_requests_when_above_requests_per_s_then_refused_with_pushback(work):
    served = Served(work, [rule(["token:app"], ["lookup"], requests_per_s=1), rule(["token:free"], ["lookup"])],
                    [token("app"), token("free")])
    with served.daemon as one:
        with pytest.raises(grpc.RpcError) as caught:
            for _ in range(1000):  # on any machine faster than one per second
                look(one, "m", "app")
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "token:app may send 1 a second" in caught.value.details()
        assert 0 < pushback_ms(caught.value) <= 1000
        for _ in range(5):
            look(one, "m", "free")  # has its own quota
        assert one.metrics()['hpsd_requests_rejected_total{reason="requests_per_s"}'] == 1
        served.reload([rule(["token:app"], ["lookup"])], [token("app")])
        for _ in range(5):
            look(one, "m", "app")


def test_quota_when_a_reload_lowers_it_then_it_applies_to_an_open_stream(work):
    served = Served(work, [rule(["token:app"], ["read"])], [token("app")])
    with served.daemon:
        questions = queue.SimpleQueue()
        stub = reflection_grpc.ServerReflectionStub(channel(served.daemon, served.daemon.admin))
        answers = stub.ServerReflectionInfo(iter(questions.get, None), **by("app"))

        def ask_many(n):
            for _ in range(n):
                questions.put(reflection_pb2.ServerReflectionRequest(list_services=""))
                next(answers)

        ask_many(20)
        served.reload([rule(["token:app"], ["read"], requests_per_s=1)], [token("app")])
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "token:app may send 1 a second"):
            ask_many(1000)
        questions.put(None)


def test_requests_when_malformed_then_they_count_against_the_quota(work):
    served = Served(work, [rule(["any"], ["lookup", "read"], requests_per_s=1)])
    with served.daemon as one:
        ask_model = channel(one, one.grpc[0]).unary_unary("/hps.v1.ParameterServer/GetModel")
        codes = {ask_model.future(b"\xff", timeout=PATIENCE_S).code() for _ in range(100)}
        assert codes == {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_replies_when_above_reply_bytes_then_refused_until_replies_have_ended(work):
    served = Served(work, [rule(["token:app"], ["lookup"], reply_bytes=1 << 20), rule(["token:free"], ["lookup"])],
                    [token("app"), token("free")])
    with served.daemon as one:
        stub = pb_grpc.ParameterServerStub(channel(one, one.grpc[0]))
        wide = pb.LookupRequest(model="m", queries=[pb.TableQuery(table="m", keys=key_bytes([1] * (1 << 20)))])
        stream = stub.LookupStream(wide, **by("app"))  # a single reply is allowed, whatever its size
        next(stream)  # read no further: the rest stays in flight
        with pytest.raises(grpc.RpcError) as caught:
            look(one, "m", "app")  # on another connection: the quota belongs to the identity
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "token:app" in caught.value.details() and pushback_ms(caught.value) > 0
        look(one, "m", "free")
        stream.cancel()
        until(lambda: allowed(one, "app"), "room in the quota")


def allowed(daemon, name):
    try:
        look(daemon, "m", name)
    except grpc.RpcError:
        return False
    return True
