# SPDX-License-Identifier: Apache-2.0
"""Serves the model over HTTP: POST {"numbers": [[13 floats], ...], "keys": [[26 integers], ...]} returns the scores.

    serve.py 8701 --runs runs --hpsd unix:hpsd.sock    rows in hpsd
    serve.py 8702 --local runs/1                       all weights in this process

With hpsd, the path / is the version of the model that is active there, and /2 is version 2.
"""
import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch

import hpsd
import hpsd.torch
import model


class Local:
    def __init__(self, run):
        self.model = model.load(run).eval()

    def get(self, _):
        return self.model


class Served:
    """Version N: its dense part is in RUNS/N, its rows are in version N of hpsd."""

    def __init__(self, address, runs):
        self.client, self.runs, self.models = hpsd.connect(address, model="dlrm"), runs, {}
        self.version = self.active()
        threading.Thread(target=self.follow, daemon=True).start()

    def active(self):
        return self.client.model().active.number

    def follow(self):
        while True:
            time.sleep(1)
            try:
                self.version = self.active()
            except hpsd.Error as error:
                print(f"version {self.version} stays: {error}", flush=True)

    def get(self, path):
        version = int(path.strip("/") or self.version)
        if version not in self.models:
            rows = self.client.version(version)
            self.models[version] = hpsd.torch.replace(model.load(f"{self.runs}/{version}", "meta"), rows).eval()
        return self.models[version]


class Handler(BaseHTTPRequestHandler):
    source = None
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            with torch.no_grad():
                logits = model.score(self.source.get(self.path), np.array(asked["numbers"], "f4"), np.array(asked["keys"], "i8"))
            code, reply = 200, {"scores": torch.sigmoid(logits).tolist()}
        except hpsd.Error as error:
            code, reply = 503, {"error": str(error)}
        text = json.dumps(reply).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("--local", metavar="RUN")
    parser.add_argument("--hpsd", metavar="ADDRESS", default="127.0.0.1:8601")
    parser.add_argument("--runs", metavar="DIR")
    options = parser.parse_args()
    Handler.source = Local(options.local) if options.local else Served(options.hpsd, options.runs)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print(f"serving on port {options.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
