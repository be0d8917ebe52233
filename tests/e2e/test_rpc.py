# SPDX-License-Identifier: Apache-2.0
"""Listeners, TLS, health, reflection, HTTP, and calls that end early."""
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import stat
import subprocess

import grpc
import numpy as np
import pytest
from grpc.reflection.v1 import reflection_pb2 as reflection_v1
from grpc.reflection.v1alpha import reflection_pb2 as reflection_v1alpha

from rig import (BIN, PATIENCE_S, Authority, Daemon, Table, admin_grpc, admin_pb, ask, default_config,
                 floats, generate, health_grpc, health_pb2, key_bytes, model_config, pb, pb_grpc, reflected, refused,
                 run_hpsd, scratch, until)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
REFLECTION = {"v1": reflection_v1, "v1alpha": reflection_v1alpha}


class Small:
    """Model "m" of one table "a"."""

    def __init__(self, work, server=(), **how):
        self.table = Table.random("a", 2000, 256)
        models = [model_config("m", [self.table.save(work + "/m")], [256], ["a"])]
        self.daemon = Daemon(work, default_config(models, server=server), **how)

    def check(self, stub, n=7):
        keys = self.table.keys[:n]
        result = ask(stub, "m", {"a": keys}).results[0]
        np.testing.assert_array_equal(floats(result), self.table.expect(keys))


@pytest.fixture(name="small", scope="module")
def small_model():
    with scratch() as work:
        small = Small(work)
        with small.daemon:
            yield small


# ---- health ------------------------------------------------------------------------------------------

def test_health_when_ready_then_serving_and_unknown_services_are_not_found(small):
    health = health_grpc.HealthStub(small.daemon.channel())
    for service in ("", "hps.v1.ParameterServer"):
        reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
        assert reply.status == SERVING
    with refused(grpc.StatusCode.NOT_FOUND):
        health.Check(health_pb2.HealthCheckRequest(service="no.Such"), timeout=PATIENCE_S)
    watch = health.Watch(health_pb2.HealthCheckRequest(service="no.Such"), timeout=PATIENCE_S)
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()


def test_health_when_drained_then_watchers_are_told_and_the_daemon_ends(work):
    small = Small(work, server={"drain_delay_ms": 300})
    health = health_grpc.HealthStub(small.daemon.channel())
    watches = [health.Watch(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE_S)
               for service in ("", "hps.v1.ParameterServer")]
    assert [next(watch).status for watch in watches] == [SERVING, SERVING]
    small.daemon.send(signal.SIGTERM)
    assert [next(watch).status for watch in watches] == [NOT_SERVING, NOT_SERVING]
    assert small.daemon.wait_end() == 0
    assert "a second signal stops at once" in small.daemon.log()
    small.daemon.stop()


def test_drain_when_asked_by_hpsctl_then_unready_and_exit_0(work):
    small = Small(work, server={"drain_delay_ms": 500})
    small.daemon.ctl("drain")
    until(lambda: small.daemon.get("/readyz") == (503, "draining\n") or not small.daemon.alive(),
          "unready")
    assert small.daemon.wait_end() == 0
    small.daemon.stop()


def test_http_when_asked_then_pages_and_types_are_those_documented(small):
    assert small.daemon.get("/healthz") == (200, "ok\n")
    assert small.daemon.get("/readyz") == (200, "ready\n")
    assert small.daemon.get("/nothing")[0] == 404
    text = small.daemon.get("/metrics")[1]
    assert "# TYPE hpsd_rpc_duration_seconds histogram" in text
    assert "hpsd_build_info{" in text and "process_resident_memory_bytes" in text


def test_metrics_when_a_model_has_many_tables_then_only_series_of_tables_are_left_out(daemon, work):
    n_tables = 700  # with more series than are exported
    generate(f"{work}/g", "--tables", n_tables, "--rows", 3, "--dim", 4)
    one = daemon(default_config(server={"model_roots": [work]}))
    one.load("m", f"{work}/g")
    ask(one.stub(), "m", {f"feature_{n_tables - 1}": [0, 1, 2], "feature_0": [0]})
    text = one.get("/metrics")[1]
    for name in ("hpsd_store_read_only 0", "hpsd_tier_capacity_bytes{", "hpsd_metrics_series_dropped "):
        assert f"\n{name}" in text
    assert "\nhpsd_metrics_series_dropped 0\n" not in text
    stats, = one.ctl("-o", "json", "stats", "m")
    found = {one["table"]: int(one.get("found_key_count", 0)) for one in stats["tables"]}
    assert len(found) == n_tables and (found["feature_0"], found[f"feature_{n_tables - 1}"]) == (1, 3)


# ---- reflection --------------------------------------------------------------------------------------

def reflect(channel, version, *requests):
    messages = REFLECTION[version]
    call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                 messages.ServerReflectionRequest.SerializeToString,
                                 messages.ServerReflectionResponse.FromString)
    asked = [messages.ServerReflectionRequest(**request) for request in requests]
    answers = list(call(iter(asked), timeout=PATIENCE_S))
    assert [answer.original_request for answer in answers] == asked
    return answers


@pytest.mark.parametrize("version", REFLECTION)
def test_reflection_when_asked_for_services_then_all_public_ones_are_listed(small, version):
    answer, = reflect(small.daemon.channel(), version, {"list_services": ""})
    names = {service.name for service in answer.list_services_response.service}
    assert {"hps.v1.ParameterServer", "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection"} <= names
    assert "hps.v1.Admin" not in names


@pytest.mark.parametrize("version", REFLECTION)
def test_reflection_when_descriptors_are_loaded_then_a_lookup_needs_no_stubs(small, version):
    channel = small.daemon.channel()
    by_symbol, by_name = reflect(
        channel, version, {"file_containing_symbol": "hps.v1.ParameterServer.Lookup"},
        {"file_by_filename": "hps/v1/lookup.proto"})
    files = [list(answer.file_descriptor_response.file_descriptor_proto)
             for answer in (by_symbol, by_name)]
    assert files[0] == files[1]
    service = reflected.Service(channel, "hps.v1.ParameterServer", version)
    request = service.message("LookupRequest")(model="m")
    request.queries.add(table="a", keys=key_bytes(small.table.keys[:3]))
    result = service.method("Lookup")(request, timeout=PATIENCE_S).results[0]
    np.testing.assert_array_equal(floats(result), small.table.expect(small.table.keys[:3]))


@pytest.mark.parametrize("version", REFLECTION)
def test_reflection_when_the_name_is_unknown_then_the_answer_is_an_error_in_the_stream(small, version):
    answers = reflect(small.daemon.channel(), version, {"file_containing_symbol": "no.Such"},
                      {"file_by_filename": "no.proto"}, {"list_services": "*"})
    assert [answer.error_response.error_code for answer in answers[:2]] == [5, 5]
    assert answers[2].HasField("list_services_response")


# ---- methods -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", ["/hps.v1.ParameterServer/Prefetch", "/no.Such/Method", "/x/",
                                  "/hps.v1.ParameterServer/lookup"])
def test_method_when_not_there_then_unimplemented(small, path):
    with refused(grpc.StatusCode.UNIMPLEMENTED):
        small.daemon.channel().unary_unary(path)(b"", timeout=PATIENCE_S)


def test_call_when_its_metadata_is_too_large_then_client_and_log_name_the_limit(small):
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "16384"):
        small.daemon.stub().GetModel(pb.GetModelRequest(), timeout=PATIENCE_S, metadata=[("x-large", "v" * 20000)])
    assert "metadata_bytes_max=16384" in small.daemon.log()


def test_admin_when_called_on_the_public_port_then_unimplemented(small):
    admin = admin_grpc.AdminStub(small.daemon.channel())
    with refused(grpc.StatusCode.UNIMPLEMENTED, "admin socket"):
        admin.Ping(admin_pb.PingRequest(), timeout=PATIENCE_S)
    with refused(grpc.StatusCode.UNIMPLEMENTED):
        admin.Drain(admin_pb.DrainRequest(), timeout=PATIENCE_S)


def test_lookup_when_called_on_the_admin_socket_then_answered(small):
    small.check(pb_grpc.ParameterServerStub(small.daemon.channel(small.daemon.admin)))


# ---- calls that end early ----------------------------------------------------------------------------

def all_quiet(daemon):
    now = daemon.metrics()
    return now["hpsd_requests_in_flight"] == 0 and now["hpsd_reply_bytes_in_flight"] == 0


def request_of(table, n):
    return pb.LookupRequest(model="m", queries=[pb.TableQuery(keys=key_bytes(np.resize(table.keys, n)))])


def test_calls_when_cancelled_then_all_they_held_is_given_back(small):
    stub = small.daemon.stub()
    request = request_of(small.table, 20000)
    for turn in range(30):
        calls = [stub.Lookup.future(request, timeout=PATIENCE_S) for _ in range(4)]
        calls[turn % 4].add_done_callback(lambda call: None)
        for call in calls[: turn % 5]:
            call.cancel()
        for call in calls[turn % 5:]:
            assert call.result().results[0].row_count == 20000
    streams = [stub.LookupStream(request, timeout=PATIENCE_S) for _ in range(8)]
    for number, one in enumerate(streams):
        if number % 2:
            next(one)
        one.cancel()
    until(lambda: all_quiet(small.daemon), "nothing in flight")
    small.check(stub)


def test_calls_when_their_deadline_is_near_then_each_ends_and_nothing_is_kept(small):
    stub = small.daemon.stub()
    request = request_of(small.table, 50000)
    codes = set()
    for turn in range(40):
        try:
            stub.Lookup(request, timeout=0.0005 * (turn + 1))
            codes.add(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            codes.add(error.code())
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert grpc.StatusCode.DEADLINE_EXCEEDED in codes
    until(lambda: all_quiet(small.daemon), "nothing in flight")
    small.check(stub)


def test_connection_when_cut_in_a_reply_then_nothing_is_kept(small):
    for _ in range(5):
        channel = small.daemon.channel()
        stub = pb_grpc.ParameterServerStub(channel)
        streams = [stub.LookupStream(request_of(small.table, 50000)) for _ in range(3)]
        next(streams[0])
        channel.close()
    until(lambda: all_quiet(small.daemon), "nothing in flight")
    small.check(small.daemon.stub())


def test_streams_when_250_are_open_on_one_connection_then_calls_go_on_and_all_hear_the_end(work):
    small = Small(work, server={"drain_delay_ms": 300})
    channel = small.daemon.channel()
    health, stub = health_grpc.HealthStub(channel), pb_grpc.ParameterServerStub(channel)
    watches = [health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S) for _ in range(250)]
    assert [next(watch).status for watch in watches] == [SERVING] * 250
    connections = sum(value for name, value in small.daemon.metrics().items()
                      if name.startswith("hpsd_connections"))
    assert connections == 1
    calls = [stub.Lookup.future(request_of(small.table, 100), timeout=PATIENCE_S) for _ in range(100)]
    assert [call.result().results[0].row_count for call in calls] == [100] * 100
    small.daemon.send(signal.SIGTERM)
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 250
    assert small.daemon.wait_end() == 0
    small.daemon.stop()


def test_calls_when_250_are_under_way_at_once_then_each_is_right(small):
    stub = small.daemon.stub()
    calls = []
    for number in range(250):
        keys = np.resize(np.roll(small.table.keys, number), 500)
        request = pb.LookupRequest(model="m", queries=[pb.TableQuery(keys=key_bytes(keys))])
        calls.append((keys, stub.Lookup.future(request, timeout=PATIENCE_S)))
    for keys, call in calls:
        np.testing.assert_array_equal(floats(call.result().results[0]), small.table.expect(keys))


# ---- bytes that are not gRPC -------------------------------------------------------------------------

@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
                                  b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, bytes(100)])
def test_listener_when_sent_something_else_then_it_closes_and_serves_others(small, data):
    host, port = small.daemon.grpc[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as peer:
        peer.sendall(data)
        try:
            while peer.recv(4096):
                pass
        except ConnectionResetError:
            pass
    small.check(small.daemon.stub())


# ---- listeners ---------------------------------------------------------------------------------------

def knock(daemon, n, stack):
    """Open n connections to the gRPC port that say nothing."""
    host, port = daemon.grpc[0].rsplit(":", 1)
    for _ in range(n):
        stack.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S))


def test_listeners_when_the_public_port_is_full_then_operator_and_probes_are_let_in(work):
    with Daemon(work, default_config(durable=False, server={"connections_max": 2})) as one, \
            contextlib.ExitStack() as stack:
        knock(one, 5, stack)
        until(lambda: "too many connections" in one.log(), "refused connections")
        one.ctl("ping")
        assert one.get("/healthz") == (200, "ok\n") and one.get("/metrics")[0] == 200


def test_connections_when_descriptors_are_few_then_enough_are_left_for_loads(work):
    small = Small(work, wrapper=("prlimit", "--nofile=200:300"))
    with small.daemon as one, contextlib.ExitStack() as stack:
        assert "open_files_max=300" in one.log()
        knock(one, 300, stack)
        until(lambda: "too many connections" in one.log(), "refused connections")
        one.ctl("load", "m", "--from", f"{work}/m", "--activate")
        assert "listeners paused" not in one.log()



def test_unix_socket_when_listened_on_then_calls_are_answered_and_the_file_goes(work):
    path = os.path.join(work, "grpc.sock")
    small = Small(work, listen=("127.0.0.1:0", f"unix:{path}"))
    assert small.daemon.grpc[1] == f"unix:{path}"
    for sock in (path, small.daemon.admin.removeprefix("unix:")):
        assert stat.S_IMODE(os.stat(sock).st_mode) == 0o660
    for address in small.daemon.grpc:
        small.check(pb_grpc.ParameterServerStub(small.daemon.channel(address)))
    for authority in (path, path.replace("/", "%2F"), "localhost"):
        named = small.daemon.channel(f"unix:{path}", [("grpc.default_authority", authority)])
        small.check(pb_grpc.ParameterServerStub(named))
    small.daemon.stop()
    assert not os.path.exists(path)


@pytest.mark.parametrize("flag", ["--listen", "--http-listen"])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_listener_when_beyond_loopback_without_tls_then_refused(work, flag, address):
    table = Table.random("a", 9, 4).save(work + "/m")
    code, out, err = run_hpsd("--state-dir", work + "/s", "--table", f"a={table}", flag, address)
    assert (code, out) == (2, "")
    assert "plaintext" in err and address in err
    assert not os.path.exists(work + "/s/lock")


def test_admin_when_on_tcp_without_protection_then_refused(work):
    table = Table.random("a", 9, 4).save(work + "/m")
    code, _, err = run_hpsd("--state-dir", work + "/s", "--table", f"a={table}", "--listen",
                            "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")
    assert code == 2
    assert "server.admin_token_file" in err and "server.access" in err


def test_admin_when_on_tcp_with_a_token_then_only_its_bearers_are_let_in(work):
    token = os.path.join(work, "token")
    with open(token, "w", encoding="utf-8") as f:
        f.write("open-sesame\n")
    small = Small(work, server={"admin_token_file": token}, flags=["--admin-listen", "127.0.0.1:0"])
    with small.daemon as daemon:
        admin = daemon.admin_stub()
        for metadata in (None, [("authorization", "Bearer open-sesam")], [("authorization", "x")]):
            with refused(grpc.StatusCode.UNAUTHENTICATED):
                admin.Ping(admin_pb.PingRequest(), timeout=PATIENCE_S, metadata=metadata)
        good = [("authorization", "Bearer open-sesame")]
        assert admin.Ping(admin_pb.PingRequest(), timeout=PATIENCE_S, metadata=good).version
        daemon.ctl("ping", code=1)
        daemon.ctl("--token-file", token, "ping")
        assert "open-sesame" not in daemon.log()


# ---- TLS ---------------------------------------------------------------------------------------------

def read(path):
    with open(path, "rb") as f:
        return f.read()


def secure(daemon, authority, pair=None):
    credentials = grpc.ssl_channel_credentials(read(authority.path),
                                               *((read(pair[1]), read(pair[0])) if pair else ()))
    channel = grpc.secure_channel(daemon.grpc[0], credentials,
                                  options=[("grpc.use_local_subchannel_pool", 1)])
    daemon.channels.append(channel)
    return pb_grpc.ParameterServerStub(channel)


def presented(daemon, pair=None):
    """The server's certificate, PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if pair:
        context.load_cert_chain(*pair)
    host, port = daemon.grpc[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
        with context.wrap_socket(plain) as peer:
            assert peer.selected_alpn_protocol() == "h2"
            return ssl.DER_cert_to_PEM_cert(peer.getpeercert(True)).strip()


def test_tls_when_the_certificate_is_renewed_then_hup_takes_it_and_old_calls_go_on(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    small = Small(work, server={"tls": {"certificate": certificate, "key": key}})
    with small.daemon as daemon:
        stub = secure(daemon, authority)
        small.check(stub, 2000)
        with refused(grpc.StatusCode.UNAVAILABLE):
            ask(daemon.stub(), "m", {"a": [1]})  # without TLS
        with refused(grpc.StatusCode.UNAVAILABLE):
            ask(secure(daemon, Authority(work, "stranger")), "m", {"a": [1]})
        before = presented(daemon)
        assert before == read(certificate).decode().strip()
        renewed = authority.issue("renewed")
        os.replace(renewed[1], key)
        os.replace(renewed[0], certificate)
        daemon.send(signal.SIGHUP)
        until(lambda: presented(daemon) == read(certificate).decode().strip(), "the new certificate")
        small.check(stub)
        small.check(secure(daemon, authority))
        with open(certificate, "w", encoding="utf-8") as f:
            f.write("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        daemon.send(signal.SIGHUP)
        until(lambda: certificate in daemon.log(), "a complaint about the certificate")
        small.check(secure(daemon, authority))
        elsewhere = authority.issue("elsewhere")
        with open(daemon.config_file, encoding="utf-8") as f:
            config = json.load(f)
        config["server"]["tls"] = {"certificate": elsewhere[0], "key": elsewhere[1]}
        daemon.write_config(config)
        daemon.send(signal.SIGHUP)
        until(lambda: presented(daemon) == read(elsewhere[0]).decode().strip(), "the other file")
        small.check(secure(daemon, authority))
        small.check(stub)


def test_tools_when_tls_is_mixed_up_then_they_say_so_and_the_unix_socket_needs_none(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    small = Small(work, server={"tls": {"certificate": certificate, "key": key}})

    def tool(name, *args):
        done = subprocess.run([os.path.join(BIN, name), *args], capture_output=True, text=True,
                              timeout=PATIENCE_S * 2)
        return done.returncode, done.stdout + done.stderr

    with small.daemon as one, Daemon(work, default_config(durable=False), state="plain") as plain:
        code, text = tool("hpsctl", "--addr", one.grpc[0], "ping")
        assert code == 3 and "whether it needs TLS" in text, text
        code, text = tool("hpsctl", "--addr", plain.grpc[0], "--tls-ca", authority.path, "ping")
        assert code == 3 and "does not speak TLS" in text, text
        code, text = tool("hps-bench", "--addr", one.grpc[0], "--tls-ca", authority.path, "--admin",
                          one.admin, "--model", "m", "--requests", "10", "--keys", "5")
        assert code == 0, text


def resumes(address, pair, version):
    """Whether a second connection may leave the certificate out, as it goes on with the session of the first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode, context.maximum_version = False, ssl.CERT_NONE, version
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(["h2"])
    host, port = address.rsplit(":", 1)
    session = None
    for _ in range(2):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw, \
                context.wrap_socket(raw, session=session) as peer:
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            assert peer.recv(1)  # SETTINGS, behind the tickets of TLS 1.3
            session, resumed = peer.session, peer.session_reused
    return resumed


def test_mtls_when_required_then_only_clients_of_the_authority_are_served(work):
    authority, stranger = Authority(work, "ca"), Authority(work, "stranger")
    certificate, key = authority.issue("server")
    client, fraud = authority.issue("client"), stranger.issue("fraud")
    small = Small(work, server={"tls": {"certificate": certificate, "key": key,
                                        "client_ca": authority.path,
                                        "require_client_certificate": True}})
    with small.daemon as daemon:
        small.check(secure(daemon, authority, client), 2000)
        for pair in (None, fraud):
            with refused(grpc.StatusCode.UNAVAILABLE):
                ask(secure(daemon, authority, pair), "m", {"a": [1]})
        for spoken in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
            assert not resumes(daemon.grpc[0], client, spoken)


def test_reload_when_certificates_become_required_then_connections_without_one_end(work):
    authority = Authority(work, "ca")
    (certificate, key), client = authority.issue("server"), authority.issue("client")
    tls = {"certificate": certificate, "key": key, "client_ca": authority.path}
    small = Small(work, server={"tls": tls, "handshake_timeout_ms": int(1000 * PATIENCE_S)})
    with small.daemon as daemon:
        host, port = daemon.grpc[0].rsplit(":", 1)

        def connect(*pair):
            context = ssl.create_default_context(cafile=authority.path)
            context.set_alpn_protocols(["h2"])
            if pair:
                context.load_cert_chain(*pair)
            made = context.wrap_socket(socket.create_connection((host, int(port)), timeout=PATIENCE_S),
                                       server_hostname="localhost")
            made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            assert made.recv(1)  # of its settings: the connection is judged, and stays
            return made

        with connect() as bare, connect(*client) as known:
            daemon.write_config({**json.loads(read(daemon.config_file)),
                                 "server": {**json.loads(read(daemon.config_file))["server"],
                                            "tls": {**tls, "require_client_certificate": True}}})
            daemon.send(signal.SIGHUP)
            with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                while bare.recv(4096):  # GOAWAY, then the end
                    pass
            assert "options not applied" not in daemon.log()
            known.sendall(b"\0\0\x08\6\0\0\0\0\0answered")
            got = b""
            while b"answered" not in got:
                more = known.recv(4096)
                assert more, got
                got += more


def page(daemon, path, authority=None, pair=None, headers=(), alpn=("http/1.1",)):
    """Status and body of a page; over TLS if an authority is given."""
    port = int(daemon.http.rsplit(":", 1)[1])
    if authority is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    else:
        context = ssl.create_default_context(cafile=authority.path)
        context.set_alpn_protocols(list(alpn))
        if pair:
            context.load_cert_chain(*pair)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=dict(headers))
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


@pytest.mark.parametrize("listen, status", [("127.0.0.1:0", 421), ("0.0.0.0:0", 200)])
def test_http_when_a_browser_sends_the_name_of_another_site_then_refused_on_loopback(work, listen, status):
    with Small(work, server={"plaintext": True}, flags=["--http-listen", listen]).daemon as daemon:
        for path in ("/healthz", "/metrics"):
            assert page(daemon, path, headers=[("Host", "site.example:8602")])[0] == status
            assert page(daemon, path)[0] == page(daemon, path, headers=[("Host", "localhost")])[0] == 200


def test_http_when_beyond_loopback_then_it_speaks_the_tls_of_the_others_and_renews_it(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    small = Small(work, server={"tls": {"certificate": certificate, "key": key}},
                  flags=["--http-listen", "0.0.0.0:0"])
    with small.daemon as daemon:
        for alpn in ("http/1.1",), ("h2", "http/1.1"), ():
            assert page(daemon, "/readyz", authority, alpn=alpn) == (200, "ready\n")
        status, text = page(daemon, "/metrics", authority)
        assert status == 200 and "hpsd_build_info" in text
        assert page(daemon, "/none", authority)[0] == 404
        with pytest.raises(ssl.SSLError):
            page(daemon, "/readyz", authority, alpn=("h2",))
        with pytest.raises(ssl.SSLError):
            page(daemon, "/readyz", Authority(work, "stranger"))
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            page(daemon, "/readyz")  # without TLS
        assert page(daemon, "/readyz", authority)[0] == 200
        renewed = authority.issue("renewed")
        os.replace(renewed[1], key)
        os.replace(renewed[0], certificate)
        daemon.send(signal.SIGHUP)
        address = ("127.0.0.1", int(daemon.http.rsplit(":", 1)[1]))
        until(lambda: ssl.get_server_certificate(address).strip() == read(certificate).decode().strip(),
              "the new certificate")


def test_pages_when_there_is_a_role_file_then_for_readers_alone_and_probes_for_all(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    roles = {"rules": [{"who": ["token:prometheus"], "may": ["read"]}, {"who": ["any"], "may": ["lookup"]}],
             "tokens": [{"name": "prometheus", "sha256": hashlib.sha256(b"scrape").hexdigest()}]}
    with open(f"{work}/access.json", "w", encoding="utf-8") as f:
        json.dump(roles, f)
    small = Small(work, server={"access": f"{work}/access.json", "audit_log": f"{work}/audit.log",
                                "tls": {"certificate": certificate, "key": key}},
                  flags=["--http-listen", "0.0.0.0:0"])
    with small.daemon as daemon:
        status, text = page(daemon, "/metrics", authority)
        assert status in (401, 403) and "hpsd_" not in text, (status, text)
        assert page(daemon, "/metrics", authority, headers={"Authorization": "Bearer other"}.items())[0] in (401, 403)
        status, text = page(daemon, "/metrics", authority, headers={"Authorization": "Bearer scrape"}.items())
        assert status == 200 and "hpsd_build_info" in text
        assert page(daemon, "/readyz", authority) == (200, "ready\n")
        assert page(daemon, "/healthz", authority) == (200, "ok\n")

        def refusals():
            with open(f"{work}/audit.log", encoding="utf-8") as f:
                return [line for line in f if "result=refused" in line]

        until(lambda: len(refusals()) == 2, "what was refused, in the audit log")
        assert all('method="GET /' in line for line in refusals())


def test_pages_when_certificates_are_required_then_for_who_shows_one(work):
    authority = Authority(work, "ca")
    (certificate, key), client = authority.issue("server"), authority.issue("client")
    small = Small(work, server={"tls": {"certificate": certificate, "key": key, "client_ca": authority.path,
                                        "require_client_certificate": True}},
                  flags=["--http-listen", "0.0.0.0:0"])
    with small.daemon as daemon:
        assert page(daemon, "/readyz", authority)[0] == 200
        assert page(daemon, "/metrics", authority)[0] == 401
        assert page(daemon, "/metrics", authority, pair=client)[0] == 200


def test_http_when_a_client_shakes_hands_slowly_then_others_are_answered(work):
    authority = Authority(work, "ca")
    certificate, key = authority.issue("server")
    small = Small(work, server={"tls": {"certificate": certificate, "key": key}},
                  flags=["--http-listen", "0.0.0.0:0"])
    failures = 'hpsd_connections_failed_total{reason="protocol"}'

    def failed(daemon):
        text = page(daemon, "/metrics", authority)[1]
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(failures))

    with small.daemon as daemon, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(daemon.http.rsplit(":", 1)[1]))
        for _ in range(80):  # more than there are places
            one = stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            one.sendall(b"\x16\x03\x01")
        assert page(daemon, "/healthz", authority) == (200, "ok\n")
        before = failed(daemon)
        with socket.create_connection(address, timeout=PATIENCE_S) as one:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
            with contextlib.suppress(ConnectionResetError):
                while one.recv(4096):
                    pass
        assert failed(daemon) == before + 1
        assert "connection failed: it ended before its first request" in daemon.log()


def test_tls_when_files_are_bad_then_the_daemon_names_them_and_does_not_start(work):
    authority = Authority(work, "ca")
    certificate, _ = authority.issue("server")
    _, other_key = authority.issue("other")
    for pair, named in ((work + "/none.crt", other_key), work + "/none.crt"), \
                       ((certificate, other_key), "key"):
        config = default_config(server={"listen": "127.0.0.1:0", "http_listen": "",
                                        "tls": {"certificate": pair[0], "key": pair[1]}})
        path = os.path.join(work, "bad.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        code, _, err = run_hpsd("--config", path, "--state-dir", work + "/s")
        assert code == 2, err
        assert named in err
