# SPDX-License-Identifier: Apache-2.0
"""Sends fresh clicks to services of the model, and prints the AUC of their scores.

    auc.py runs/1 local=http://127.0.0.1:8001 hpsd=http://127.0.0.1:8002 triton=127.0.0.1:8003
    auc.py runs/1 --day 1 --while $! --plot auc.svg updated=http://... not_updated=http://...
"""
import argparse
import contextlib
import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request

import numpy as np

from clicks import N_CATEGORIES, Clicks, auc
from plot import lines

PATIENCE_S = 60  # for a reply
PAUSE_S = 2  # between two AUCs, in which other processes get the CPUs


def wait_for(address, seconds=180):
    """Until the service accepts connections."""
    host, port = re.search(r"([^/:]+):(\d+)", address).groups()
    for tried in range(10 * seconds):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
            return
        if tried == 50:
            print(f"waiting for {address}", file=sys.stderr, flush=True)
        time.sleep(0.1)
    raise SystemExit(f"{address} does not accept connections")


def by_http(url, numbers, keys):
    body = json.dumps({"numbers": numbers.tolist(), "keys": keys.tolist()}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE_S) as reply:
            return np.array(json.load(reply)["scores"], np.float32)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.read().decode()}") from None
    except OSError as error:
        raise SystemExit(f"{url}: {error}") from None


def by_triton(address, numbers, keys):
    import tritonclient.grpc as triton
    inputs = {"NUMBERS": numbers, "KEYS": np.ascontiguousarray(keys.T).reshape(1, -1),  # table after table
              "NUMKEYS": np.full((1, N_CATEGORIES), len(keys), np.int32)}
    tensors = []
    for name, values in inputs.items():
        tensors.append(triton.InferInput(name, list(values.shape), {"f4": "FP32", "i8": "INT64", "i4": "INT32"}[values.dtype.str[1:]]))
        tensors[-1].set_data_from_numpy(values)
    try:
        with triton.InferenceServerClient(address) as client:
            return client.infer("scores", tensors, client_timeout=PATIENCE_S).as_numpy("SCORES")
    except triton.InferenceServerException as error:
        raise SystemExit(f"{address}: {error}") from None


def measured(services, clicks, n, batch=1024):
    """{service: its AUC for the next n clicks}, the same clicks for all services."""
    scores, truth = {name: [] for name in services}, []
    for begin in range(0, n, batch):
        numbers, keys, clicked = clicks.batch(min(batch, n - begin))
        truth.append(clicked)
        for name, address in services.items():
            way = by_http if address.startswith("http") else by_triton
            scores[name].append(way(address, numbers, keys))
    return {name: auc(np.concatenate(of), np.concatenate(truth)) for name, of in scores.items()}


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="training run, for the sizes of the model")
    parser.add_argument("services", nargs="+", metavar="NAME=ADDRESS", help="http://HOST:PORT of serve.py, or HOST:PORT of Triton")
    parser.add_argument("--day", type=int, default=0, help="whose clicks")
    parser.add_argument("--clicks", type=int, default=20_480, help="for each AUC")
    parser.add_argument("--while", dest="process", type=int, metavar="PID", help="repeat until this process has ended")
    parser.add_argument("--plot", metavar="SVG", help="AUC over time")
    options = parser.parse_args()
    services = dict(one.split("=", 1) for one in options.services)
    with open(f"{options.run}/sizes.json", encoding="utf-8") as file:
        sizes = json.load(file)
    for address in services.values():
        wait_for(address)
    clicks = Clicks(sizes["rows"], sizes["zipf"], options.day, seed=3)
    begin, series = time.monotonic(), {name: [] for name in services}
    again = True
    while again:
        again = options.process is not None and runs(options.process)  # the last AUC is of the time after its end
        found = measured(services, clicks, options.clicks)
        now = time.monotonic() - begin
        print("   ".join(f"{name} AUC {value:.6f}" for name, value in found.items()), flush=True)
        for name, value in found.items():
            series[name].append((now, value))
        time.sleep(PAUSE_S if again else 0)
    if options.plot:
        lines(options.plot, f"AUC on fresh clicks of day {options.day}", "seconds", "AUC", {name.replace("_", " "): of for name, of in series.items()})


if __name__ == "__main__":
    main()
