# SPDX-License-Identifier: Apache-2.0
"""Clients with certificates, tokens and Unix users that have some roles. Each tries methods of all roles, also after a
reload has removed its rights. Lookups of the healthy client must succeed."""
import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest
import wire
from guarded import REFUSED, ROLES, TOKENS, Guarded, digest, rules
from rig import Authority, admin_pb, as_somebody_else, until
from target import HERE, many, scratch
from wire import NOT_FOUND, OK, PERMISSION_DENIED, UNAUTHENTICATED, Gone, call

SMALL = wire.lookup("m", wire.query("a", [1]))
WIDE = wire.lookup("m", wire.query("a", b"\0" * 8 * 4096))


def admin(method):
    return f"/hps.v1.Admin/{method}"


METHODS = {  # a method of each role; test_matrix.py tries all methods
    admin("GetStatus"): ("read", admin_pb.GetStatusRequest()),
    admin("LoadModel"): ("load", admin_pb.LoadModelRequest(model="m")),  # fails after the role was checked
    admin("GetConfig"): ("admin", admin_pb.GetConfigRequest()),
}


@pytest.fixture(name="shared", scope="module")
def guarded_target():
    with scratch() as work:
        target = Guarded(work)
        yield target
        target.close()


@pytest.mark.parametrize("who", [*ROLES, "ads", "stranger", None])
def test_methods_when_tried_by_each_client_then_allowed_by_its_roles_only(target, who):
    may = ROLES.get(who, [])
    for path, (role, message) in METHODS.items():
        code = target.code(who, path, message.SerializeToString(), on_admin=True)
        assert (code not in REFUSED) == (role in may), (who, path, code)
    assert (target.code(who, wire.LOOKUP, SMALL) == OK) == ("lookup" in may), who
    assert (target.code(who, wire.STREAM, SMALL) == OK) == ("lookup" in may), who


def test_model_when_not_allowed_then_its_existence_is_not_revealed(target):
    """The refusal is the same for a model that exists and for one that does not."""
    there = target.code("ads", wire.LOOKUP, SMALL)
    absent = target.code("ads", wire.LOOKUP, wire.lookup("none", wire.query("a", [1])))
    assert there == absent == PERMISSION_DENIED
    assert target.code("ads", wire.LOOKUP, wire.lookup("ads-none", wire.query("a", [1]))) == NOT_FOUND


FORMS = {
    "another token": "Bearer wrong",
    "half of it": "Bearer " + TOKENS["ci"][:-1],
    "more than it": "Bearer " + TOKENS["ci"] + " ",
    "its name": "Bearer ci",
    "its digest": "Bearer " + digest(TOKENS["ci"]),
    "one that has expired": "Bearer " + TOKENS["old"],
    "another scheme": "Basic " + TOKENS["ci"],
    "nothing behind the word": "Bearer ",
    "no word": TOKENS["ci"],
    "15,000 bytes": "Bearer " + "x" * 15000,
}


@pytest.mark.parametrize("form", FORMS)
def test_token_when_invalid_then_refused(target, form):
    status = METHODS[admin("GetStatus")][1].SerializeToString()
    assert target.code("nobody", admin("GetStatus"), status, ("authorization", FORMS[form]), on_admin=True) != OK


def test_token_when_valid_then_gives_exactly_its_roles(target):
    token = ("authorization", f"Bearer {TOKENS['ci']}")
    for path, (role, message) in METHODS.items():
        code = target.code("nobody", path, message.SerializeToString(), token, on_admin=True)
        assert (code not in REFUSED) == (role in ("read", "admin")), (path, code)
    assert target.code("nobody", wire.LOOKUP, SMALL, token) in REFUSED


def test_tokens_when_guessed_repeatedly_then_log_is_bounded(target):
    n = many(1000, 20000)
    with target.through("nobody", target.admin) as client, contextlib.suppress(Gone):
        for i in range(n):
            client.send(call(1 + 2 * i, admin("GetConfig"), b"", ("authorization", f"Bearer {i}")))
        client.read_until(lambda c: len(c.trailers) + len(c.resets) >= n, "an end of each call")
        assert not any(fields.get("grpc-status") == "0" for fields in client.trailers.values())
    assert target.daemon.log().count("component=audit") < n // 2


# reloads that remove rights

def stalled(target, who):
    """A call in flight: the client does not read its reply."""
    client = target.through(who, hello=wire.settings(window=0))
    client.upload(1, wire.LOOKUP, WIDE)
    assert client.answers_ping()
    return client


def ends(client):
    """Whether the call has failed, or the connection was closed."""
    with contextlib.suppress(Gone):
        client.read_until(lambda c: 1 in c.resets or "grpc-status" in c.trailers.get(1, {}), "the end of the call")
    return client.trailers.get(1, {}).get("grpc-status") != "0"


def test_reload_when_it_removes_a_client_then_its_open_calls_end(target):
    with stalled(target, "all") as client:
        made = rules()
        made["rules"] = [rule for rule in made["rules"] if "cert:all.example" not in rule["who"]]
        target.reload(made)
        try:
            assert ends(client)
            assert target.code("all", wire.LOOKUP, SMALL) in REFUSED
        finally:
            target.reload(rules())
    until(lambda: target.code("all", wire.LOOKUP, SMALL) == OK, "the old rules")


def test_reload_when_the_role_file_is_broken_then_nothing_changes(target):
    before = target.daemon.log().count("not reloaded")
    with open(target.access_file, "w", encoding="utf-8") as f:
        f.write('{"rules": [{"who": ["any"], "may": ["everything"]}]}')
    target.daemon.send(signal.SIGHUP)
    until(lambda: target.daemon.log().count("not reloaded") > before, "the refusal")
    assert target.code("nobody", wire.LOOKUP, SMALL) in REFUSED
    assert target.code("all", wire.LOOKUP, SMALL) == OK
    target.reload(rules())


def test_reload_when_the_authority_changes_then_older_connections_end(other_guarded):
    target = other_guarded
    with stalled(target, "all") as client:
        later = Authority(target.work, "later")
        shutil.copy(later.path, target.authority.path)
        target.reload()
        assert ends(client)


@pytest.fixture(name="other_guarded")
def guarded_of_one_test(work):
    target = Guarded(work)
    yield target
    target.close()


# ---- the admin socket --------------------------------------------------------------------------------

@pytest.mark.skipif(bool(as_somebody_else()), reason=as_somebody_else())
def test_admin_socket_when_another_user_opens_it_then_refused(other):
    """The server must check the user even if the mode of the socket allows every user."""
    target = other()
    path = target.daemon.admin.removeprefix("unix:")
    for directory in (target.work, os.path.dirname(path)):
        os.chmod(directory, 0o755)
    os.chmod(path, 0o666)
    program = (f"import sys; sys.path.insert(0, {HERE!r}); import wire\n"
               f"with wire.Client({target.daemon.admin!r}) as client:\n"
               f"    client.send(wire.call(1, '/hps.v1.Admin/GetConfig', b''))\n"
               f"    print(client.code(1))\n")
    with target.beside():
        said = {}
        for uid in (0, 65534):
            done = subprocess.run([sys.executable, "-c", program], user=uid, group=uid, extra_groups=[],
                                  capture_output=True, text=True, timeout=wire.PATIENCE_S, check=False)
            said[uid] = done.stdout.strip() or done.stderr
        assert said[0] == str(OK)
        assert said[65534] in (str(PERMISSION_DENIED), str(UNAUTHENTICATED))
