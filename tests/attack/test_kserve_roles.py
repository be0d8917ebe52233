# SPDX-License-Identifier: Apache-2.0
"""TLS, certificates and roles on the KServe listener. Clients with some roles try all requests over HTTP/1.1. Lookups
of the healthy client on the other listener must succeed."""
import contextlib
import shutil
import signal

import numpy as np
import pytest
import wire
from guarded import ROLES, TOKENS, Guarded, rules
from http1 import CLOSED, answers, get, request, rest_of
from kserve_body import compose
from rig import Authority, until
from target import many, scratch

LISTENS = {"kserve_listen": ["127.0.0.1:0"]}
KEYS, COUNTS = np.array([0, -1], "<i8"), np.array([1, 1], "<i4")
LIVE = get("/v2/health/live")
REFUSED = (401, 403)


def infer(headers=(), model="m", keys=KEYS, counts=COUNTS):
    body, made = compose([("KEYS", keys), ("NUMKEYS", counts)], binary_output=True)
    return request(body, {**made, **dict(headers)}, f"/v2/models/{model}/infer")


def wide():
    return infer(keys=np.zeros(16384, "<i8"), counts=np.array([16384, 0], "<i4"))


def post(path):
    return request(b"{}", path=path)


REQUESTS = {  # name: (roles, one of which is enough; request)
    "infer": (("lookup",), infer()),
    "infer of a version": (("lookup",), infer(model="m/versions/1")),
    "whether it is ready": (("lookup", "read"), get("/v2/models/m/ready")),
    "metadata": (("read",), get("/v2/models/m")),
    "configuration": (("read",), get("/v2/models/m/config")),
    "statistics": (("read",), get("/v2/models/m/stats")),
    "load": (("load",), post("/v2/repository/models/m/load")),
}


def through(target, who, *alpn):
    return wire.connect(target.daemon.kserve[0], tls=target.context(who, *alpn))


def ask(target, who, *sends, alpn=()):
    """Statuses of the replies on one connection. There are fewer replies than requests if the server closes it."""
    found = []
    with contextlib.suppress(*CLOSED), through(target, who, *alpn) as sock:
        for one in sends:
            found += [status for status, _ in answers(sock, 1, one)]
    return found


@pytest.fixture(name="shared", scope="module")
def guarded_target():
    with scratch() as work:
        target = Guarded(work, server=LISTENS)
        yield target
        target.close()


@pytest.mark.parametrize("who", [*ROLES, "ads", None])
def test_requests_when_tried_by_each_client_then_allowed_by_its_roles_only(target, who):
    may = ROLES.get(who, [])
    for name, (roles, one) in REQUESTS.items():
        (status,) = ask(target, who, one)
        assert status == 200 if set(roles) & set(may) else status in REFUSED, (who, name, status)
    assert ask(target, who, LIVE, get("/v2/health/ready")) == [200, 200]


def test_client_when_certificate_is_of_another_authority_then_not_answered(target):
    """The certificate names a client with all roles."""
    assert ask(target, "stranger", LIVE) == []
    assert ask(target, "stranger", infer()) == []


@pytest.mark.parametrize("alpn", [["h2"], ["h3", "spdy/3"]])
def test_client_when_it_speaks_another_protocol_then_refused(target, alpn):
    assert ask(target, "all", LIVE, alpn=alpn) == []
    assert ask(target, "all", LIVE, alpn=["h2", "http/1.1"]) == [200]


@pytest.mark.parametrize("sends", [LIVE, wire.PREFACE + wire.settings(), b"\x16\x03\x01\x40\x00" + b"x" * 16384])
def test_port_when_no_tls_is_spoken_then_closed(target, sends):
    with wire.connect(target.daemon.kserve[0]) as sock:
        assert answers(sock, 1, sends) == []


def test_http2_when_sent_over_tls_then_no_call_begins(target):
    """HTTP/2 on the HTTP/1.1 listener must not bypass the routes."""
    with through(target, "all") as sock:
        found = answers(sock, 1, wire.PREFACE + wire.settings() + wire.call(1, wire.LOOKUP, b""))
    assert all(400 <= status < 600 for status, _ in found), found


def test_model_when_not_allowed_then_its_existence_is_not_revealed(target):
    said = {}
    for model in ("m", "gone"):
        with through(target, "ads") as sock:
            ((status, said[model]),) = answers(sock, 1, infer(model=model))
        assert status == 403
    assert said["m"].replace(b"'m'", b"'gone'") == said["gone"]
    assert ask(target, "ads", infer(model="ads-none")) == [404]


FORMS = {"another token": "Bearer wrong", "half of it": "Bearer " + TOKENS["ci"][:-1], "its name": "Bearer ci",
         "one that has expired": "Bearer " + TOKENS["old"], "another scheme": "Basic " + TOKENS["ci"],
         "nothing behind the word": "Bearer ", "no word": TOKENS["ci"]}


@pytest.mark.parametrize("form", FORMS)
def test_token_when_invalid_then_refused(target, form):
    (status,) = ask(target, "nobody", get("/v2/models/m", {"Authorization": FORMS[form]}))
    assert status in REFUSED


def test_token_when_valid_then_gives_exactly_its_roles(target):
    token = {"Authorization": f"Bearer {TOKENS['ci']}"}
    found = ask(target, "nobody", get("/v2/models/m", token), get("/v2/models/m"), infer(token))
    assert found[0] == 200 and found[1] in REFUSED and found[2] in REFUSED, found


def test_tokens_when_guessed_repeatedly_then_log_is_bounded(target):
    n = many(300, 3000)
    for at in range(0, n, 10):
        found = ask(target, None, *[get("/v2/models/m", {"Authorization": f"Bearer {at + i}"}) for i in range(10)])
        assert found and all(status in REFUSED for status in found), found
    assert target.daemon.log().count("component=audit") < n // 2


# reloads that remove rights

def stalled(target, who):
    """A connection that has received the beginning of a reply, and does not read the rest."""
    sock = through(target, who)
    sock.sendall(wide())
    assert sock.recv(12) == b"HTTP/1.1 200"
    return sock


def test_reload_when_it_removes_a_client_then_its_open_requests_end(target):
    with stalled(target, "all") as sock:
        made = rules()
        made["rules"] = [rule for rule in made["rules"] if "cert:all.example" not in rule["who"]]
        target.reload(made)
        try:
            until(lambda: set(ask(target, "all", infer())) <= set(REFUSED), "the new rules")
            assert rest_of(sock) < 16384 * 1024  # the size of the rows
        finally:
            target.reload(rules())
    until(lambda: ask(target, "all", infer()) == [200], "the old rules")


def test_reload_when_the_authority_changes_then_older_connections_end(other_guarded):
    target = other_guarded()
    with through(target, "all") as idle, stalled(target, "all") as busy:
        assert answers(idle, 1, infer())[0][0] == 200
        shutil.copy(Authority(target.work, "later").path, target.authority.path)
        target.daemon.send(signal.SIGHUP)
        assert rest_of(idle) == 0
        assert rest_of(busy) < 16384 * 1024


@pytest.fixture(name="other_guarded")
def maker_of_guarded(work):
    made = []

    def make(**how):
        made.append(Guarded(work, server=LISTENS, **how))
        return made[-1]

    yield make
    for target in made:
        target.close()


def test_client_when_it_lacks_a_required_certificate_then_probes_are_refused_too(other_guarded):
    target = other_guarded(tls={"require_client_certificate": True})
    with target.beside():
        for who in (None, "stranger"):
            assert ask(target, who, LIVE) == []
            assert ask(target, who, infer()) == []
        assert ask(target, "looker", LIVE, infer()) == [200, 200]
        (status,) = ask(target, "nobody", infer())
        assert status in REFUSED
