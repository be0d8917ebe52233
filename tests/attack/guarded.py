# SPDX-License-Identifier: Apache-2.0
"""A target with TLS and a role file. Each role has a certificate; the healthy client has that with the role `lookup`.
"""
import hashlib
import json
import os
import signal
import ssl

import wire
from rig import Authority
from target import Target
from wire import PERMISSION_DENIED, UNAUTHENTICATED, Client, Gone, call

REFUSED = (PERMISSION_DENIED, UNAUTHENTICATED)
ROLES = {"looker": ["lookup"], "reader": ["read"], "loader": ["load"], "chief": ["admin"], "nobody": [],
         "all": ["lookup", "read", "load", "admin"]}
TOKENS = {"ci": "a token of somebody", "old": "a token that has expired"}


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def rules():
    made = [{"who": [f"cert:{name}.example"], "may": may, **({"models": ["m"]} if name in ("looker", "loader") else {})}
            for name, may in ROLES.items() if may]
    made += [{"who": ["cert:ads.example"], "may": ["lookup"], "models": ["ads-*"]},
             {"who": ["token:ci", "token:old"], "may": ["read", "admin"]}]
    return {"rules": made, "tokens": [{"name": "ci", "sha256": digest(TOKENS["ci"])},
                                      {"name": "old", "sha256": digest(TOKENS["old"]),
                                       "expires": "2001-01-01T00:00:00Z"}]}


class Guarded(Target):
    """`server`, `tls`: additional options."""

    def __init__(self, work, server=(), tls=()):
        self.authority, others = Authority(work, "ours"), Authority(work, "theirs")
        self.pairs = {name: self.authority.issue(name, f"DNS:{name}.example") for name in (*ROLES, "ads")}
        self.pairs["stranger"] = others.issue("stranger", "DNS:all.example")
        certificate, key = self.authority.issue("server")
        self.access_file = os.path.join(work, "access.json")
        self.write(rules())
        mine = self.pairs["looker"]
        super().__init__(work, client={"ca": self.authority.path, "certificate": mine[0], "key": mine[1]}, server={
            "admin_listen": "127.0.0.1:0", "access": self.access_file, "tls": {
                "certificate": certificate, "key": key, "client_ca": self.authority.path, **dict(tls)}, **dict(server)})
        self.address = self.address.replace("127.0.0.1", "localhost")
        self.admin = self.daemon.admin.replace("127.0.0.1", "localhost")

    def write(self, made):
        with open(self.access_file + ".new", "w", encoding="utf-8") as f:
            json.dump(made, f)
        os.chmod(self.access_file + ".new", 0o600)
        os.replace(self.access_file + ".new", self.access_file)

    def reload(self, made=None):
        """Does not wait. Tests must poll the effect, not the log, because log lines are limited in rate."""
        if made is not None:
            self.write(made)
        self.daemon.send(signal.SIGHUP)

    def context(self, who, *alpn):
        """TLS context of a client with this certificate; None: no certificate."""
        made = ssl.create_default_context(cafile=self.authority.path)
        if alpn:
            made.set_alpn_protocols(list(alpn))
        if who is not None:
            made.load_cert_chain(*self.pairs[who])
        return made

    def through(self, who, address=None, hello=wire.settings()):
        return Client(address or self.address, tls=self.context(who, "h2"), hello=hello)

    def code(self, who, path, message, *fields, on_admin=False):
        """The gRPC code of the call; UNAUTHENTICATED if the connection fails."""
        try:
            with self.through(who, self.admin if on_admin else self.address) as client:
                client.send(call(1, path, message, *fields))
                return client.code(1)
        except (Gone, OSError):
            return UNAUTHENTICATED
