# SPDX-License-Identifier: Apache-2.0
"""Each method and each HTTP route, called by each role on each listener. The comments in proto/ say which role a method
needs; an HTTP route needs the role of its method. A method or a route without a role fails the test.
"""
import glob
import os
import re
import subprocess
import tempfile

import pytest
import wire
from google.protobuf import descriptor_pb2, descriptor_pool
from guarded import REFUSED, digest
from http1 import answers, request
from rig import PROTO, ROOT, admin_pb, as_somebody_else, health_pb2, kserve_pb, pb  # noqa: F401  their descriptors
from grpc.reflection.v1 import reflection_pb2
from grpc.reflection.v1alpha import reflection_pb2 as old_reflection_pb2
from reflected import message_class
from target import Daemon, default_config, scratch

FILES = [pb, admin_pb, kserve_pb, health_pb2, reflection_pb2, old_reflection_pb2]
KSERVE = "/inference.GRPCInferenceService/"
ROLES = ("lookup", "read", "load", "admin")
MINE, OTHER = "mine-1", "other-1"  # models that do not exist: no call changes anything
# Methods without a role, and services of the admin listener alone. A change of a role in proto/, or of the listeners of
# a service, needs a change here, too.
OPEN = {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", KSERVE + "ServerLive", KSERVE + "ServerReady"}
ADMINISTRATION = {"hps.v1.Admin"}
PAGES = {"/healthz": ((), "always"), "/readyz": ((), "always"), "/metrics": (("read",), "")}  # beyond loopback
DRAIN = "/hps.v1.Admin/Drain"
IN_MESSAGES = {KSERVE + "ModelStreamInfer": kserve_pb.ModelStreamInferResponse}  # errors are in the messages
ERRORS = {"has not the role": wire.PERMISSION_DENIED, "requests_per_s": wire.RESOURCE_EXHAUSTED}
VALID = {"WaitForUpdatesRequest": {"goal": pb.WAIT_GOAL_NOW}}  # fields that are checked before the caller


# ---- needs: (roles: one is enough; "always", "unnamed" or "": when a role for any model is enough) -------------------

def needs(comment, of):
    """None: the comment does not say. Roles (): it needs none."""
    found = re.search(r"Role: ([a-z ]+?)(, for any model)?[.;]", comment)
    if found is None:
        return None
    words = found[1].removesuffix(" role").split(" or ")
    assert set(words) <= {*ROLES, "any", "none"}, (of, comment)
    if words in (["any"], ["none"]):
        return (ROLES if words == ["any"] else ()), "always"
    return tuple(words), "unnamed" if found[2] else ""


def methods():
    """{path: (roles, when any model is enough, class of the request)}"""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", f"-I{PROTO}", "--include_source_info", "--include_imports",
                        f"--descriptor_set_out={out.name}", *[module.DESCRIPTOR.name for module in FILES]], check=True)
        described = descriptor_pb2.FileDescriptorSet.FromString(out.read())
    made, pool = {}, descriptor_pool.Default()
    for file in described.file:
        comments = {tuple(at.path): " ".join(at.leading_comments.split()) for at in file.source_code_info.location}
        for i, service in enumerate(file.service):
            need = of_service = needs(comments.get((6, i), ""), service.name)
            for k, method in enumerate(service.method):
                path = f"/{file.package}.{service.name}/{method.name}"
                if comments.get((6, i, 2, k)):  # otherwise the method shares the comment before it
                    need = needs(comments[6, i, 2, k], path) or of_service
                assert need is not None, f"the comment of {path} names no role"
                request_type = message_class(pool, pool.FindMessageTypeByName(method.input_type[1:]))
                made[path] = (*need, request_type)
    return made


METHODS = methods()


def routes():
    """{(verb, path): the path of its method, or a page}. The tables of the server, with their macros expanded."""
    made = {}
    for file in glob.glob(f"{ROOT}/server/**/*.c", recursive=True):
        with open(file, encoding="utf-8") as f:
            table = re.search(r"_route routes\[\] = \{\n(.*?)^\};", f.read(), re.S | re.M)
        if table is None:
            continue
        expanded = subprocess.run(["cpp", "-P"], input=table[1], text=True, capture_output=True, check=True).stdout
        text = r'((?:"[^"]*"\s*)+)'
        found = re.findall(rf'\{{\s*(?:\.verb = )?{text},\s*(?:\.pattern = )?{text},\s*(?:{text})?', expanded)
        assert len(found) == len(re.findall(r'"(?:GET|POST)"', expanded)) > 0, file
        for verb, pattern, method in [["".join(re.findall('"([^"]*)"', word)) for word in one] for one in found]:
            made[verb, pattern] = KSERVE + (method or "ModelInfer") if pattern.startswith("/v2") else pattern
    return made


ROUTES = routes()


# ---- who calls -------------------------------------------------------------------------------------------------------

CALLERS = {None: ((), True), "stranger": ((), True)}  # {token: (roles, for all models)}
CALLERS |= {role: ((role,), True) for role in ROLES}
LIMITED = "limited"  # to one call a second
CALLERS |= {f"{role}-mine": ((role,), False) for role in ROLES}


def may(caller, roles, any_model, model):
    """`model` "": the call names none; None: it cannot name one."""
    has, for_all = CALLERS[caller]
    if roles == ():
        return True
    if not set(has) & set(roles):
        return False
    return for_all or model == MINE or any_model == "always" or (any_model == "unnamed" and not model)


def access_file(work):
    rules = [{"who": [f"token:{name}"], "may": list(has), **({} if for_all else {"models": ["mine-*"]})}
             for name, (has, for_all) in CALLERS.items() if has]
    rules.append({"who": [f"token:{LIMITED}"], "may": list(ROLES), "requests_per_s": 1})
    tokens = [{"name": name, "sha256": digest(f"token {name}")} for name in (*CALLERS, LIMITED) if name]
    path = os.path.join(work, "access.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'{{"rules": {rules}, "tokens": {tokens}}}'.replace("'", '"'))
    return path


def fields(caller):
    return [("authorization", f"Bearer token {caller}")] if caller else []


# ---- gRPC ------------------------------------------------------------------------------------------------------------

def field_of_model(message_class):
    """The name of the field that names the model, or None."""
    names = [field.name for field in message_class.DESCRIPTOR.fields if field.name in ("model", "name", "model_name")]
    return names[0] if names else None


def requests(path):
    """[(model, message)]"""
    of = METHODS[path][2]
    field = field_of_model(of) if not path.startswith("/grpc.") else None
    valid = VALID.get(of.DESCRIPTOR.name, {})
    return [(None, of())] if field is None else [(model, of(**{field: model}, **valid)) for model in (MINE, OTHER, "")]


class Client(wire.Client):
    """Keeps what it receives."""

    def __init__(self, address):
        self.data = {}  # by stream
        super().__init__(address)

    def _frame(self, kind, flags, stream, payload):
        if kind == wire.DATA:
            self.data[stream] = self.data.get(stream, b"") + payload
        super()._frame(kind, flags, stream, payload)


def codes(client, path, caller, first=1):
    """{model: code of the call}; OK if the call has sent a message and has not ended. `first`: number of a stream."""
    made = {}
    for i, (model, message) in enumerate(requests(path)):
        stream = first + 2 * i
        client.send(wire.call(stream, path, message.SerializeToString(), *fields(caller)))
        client.read_until(lambda c, s=stream: "grpc-status" in c.trailers.get(s, {}) or s in c.resets or c.data.get(s),
                          path)
        made[model] = int(client.trailers.get(stream, {}).get("grpc-status", "0" if client.data.get(stream) else "-1"))
        if path in IN_MESSAGES and made[model] == wire.OK:
            text = IN_MESSAGES[path].FromString(client.data[stream][5:]).error_message
            made[model] = max([code for words, code in ERRORS.items() if words in text], default=wire.OK)
    return made


def judge(path, caller, is_known, model, code, wrong):
    """`is_known`: the server knows the user of the socket."""
    roles, any_model, _ = METHODS[path]
    allowed = may(caller, roles, any_model, model)
    refusal = wire.PERMISSION_DENIED if caller or is_known else wire.UNAUTHENTICATED
    # Without a model, the server may find a request invalid before it checks the caller: that reveals nothing.
    good = code not in (*REFUSED, wire.UNIMPLEMENTED, -1) if allowed else \
        code == refusal or (model == "" and code == wire.INVALID_ARGUMENT)
    is_not_built = any(word in path for word in ("SharedMemoryRegister", "TraceSetting", "LogSettings"))
    if not good and not (allowed and is_not_built and code == wire.UNIMPLEMENTED):
        wrong.append(f"{path} model {model!r} by {caller}: code {code}, expected {'no ' if allowed else ''}refusal")


def try_listener(connect, is_admin, is_known=False):
    """All methods by all callers; a list of faults."""
    wrong = []
    for path in sorted(METHODS, key=lambda path: path == DRAIN):  # which is last: the server then ends
        service = path.split("/")[1]
        for caller in CALLERS:
            with connect() as client:
                found = codes(client, path, caller)
            for model, code in found.items():
                if service in ADMINISTRATION and not is_admin:
                    expected = (wire.UNIMPLEMENTED,) if CALLERS[caller][0] else REFUSED
                    wrong += [] if code in expected else [f"{path} on a public listener by {caller}: code {code}"]
                else:
                    judge(path, caller, is_known, model, code, wrong)
    return wrong


# ---- HTTP ------------------------------------------------------------------------------------------------------------

def try_routes(daemon):
    """All routes by all callers; a list of faults."""
    wrong = []
    for (verb, pattern), method in sorted(ROUTES.items()):
        address = daemon.kserve[0] if pattern.startswith("/v2") else daemon.http
        roles, any_model = METHODS[method][:2] if pattern.startswith("/v2") else PAGES[pattern]
        for caller in CALLERS:
            for model in (MINE, OTHER) if "{}" in pattern else ("",):
                path = pattern.replace("{}", model, 1).replace("{}", "1")
                with wire.connect(address) as sock:
                    body = b"{}" if verb == "POST" else b""
                    sent = request(body, fields(caller), path, verb, length=bool(body))
                    (status, _), = answers(sock, 1, sent)
                expected = 200 if may(caller, roles, any_model, model) else 401 if caller is None else 403
                if status != expected and (expected != 200 or status in (401, 403)):
                    wrong.append(f"{verb} {path} by {caller}: status {status}, expected {expected}")
    return wrong


# ---- the matrix ------------------------------------------------------------------------------------------------------

@pytest.fixture(name="served")
def serve():
    """serve(admin listener) is a daemon."""
    with scratch() as work:
        made = []

        def make(*flags):
            made.append(Daemon(work, default_config(durable=False, server={
                "access": access_file(work), "kserve_listen": ["127.0.0.1:0"], "drain_delay_ms": 3600000,
                "plaintext": True, "handshake_failures_max": 0}), flags=["--http-listen", "0.0.0.0:0", *flags]))
            return made[-1]

        yield make
        for daemon in made:
            daemon.kill()


def services(daemon, address):
    """The names that reflection lists."""
    call = daemon.channel(address).stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString, reflection_pb2.ServerReflectionResponse.FromString)
    answer, = call(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=fields("read"),
                   timeout=wire.PATIENCE_S)
    return {service.name for service in answer.list_services_response.service}


def test_comments_when_read_then_open_methods_are_those_that_are_meant_to_be():
    assert {path for path, (roles, *_) in METHODS.items() if roles == ()} == OPEN
    assert {pattern for _, pattern in ROUTES if not pattern.startswith("/v2")} == set(PAGES)
    assert set(ROUTES.values()) - set(PAGES) <= set(METHODS)


def test_calls_when_made_by_each_role_on_tcp_then_each_gets_those_of_its_role(served):
    daemon = served("--admin-listen", "127.0.0.1:0")
    known = {path.split("/")[1] for path in METHODS}
    assert services(daemon, daemon.admin) == known
    assert services(daemon, daemon.grpc[0]) == known - ADMINISTRATION
    wrong = try_routes(daemon) + try_listener(lambda: Client(daemon.grpc[0]), False)
    assert wrong + try_listener(lambda: Client(daemon.admin), True) == []


@pytest.mark.skipif(bool(as_somebody_else()), reason=as_somebody_else())
def test_calls_when_made_on_the_admin_socket_by_another_user_then_tokens_decide(served):
    daemon = served()
    path = daemon.admin.removeprefix("unix:")
    for directory in (daemon.work, os.path.dirname(path)):
        os.chmod(directory, 0o755)
    os.chmod(path, 0o666)

    def connect():
        os.seteuid(65534)
        try:
            return Client(daemon.admin)
        finally:
            os.seteuid(0)

    assert try_listener(connect, True, is_known=True) == []


def test_quota_when_used_up_then_every_method_is_refused_that_needs_a_role(served):
    daemon = served("--admin-listen", "127.0.0.1:0")
    wrong = []
    for path in sorted(METHODS.keys() - {DRAIN}):
        with Client(daemon.admin) as client:
            found = [code for k in range(3) for code in codes(client, path, LIMITED, 1 + 10 * k).values()]
        if (wire.RESOURCE_EXHAUSTED in found) != (path not in OPEN):
            wrong.append((path, found))
    assert wrong == []
