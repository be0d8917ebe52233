# SPDX-License-Identifier: Apache-2.0
"""The genuine Triton Inference Server of the wheel nvidia-pytriton, started with models and backends of a test."""
import contextlib
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig

from rig import PATIENCE_S, until

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = os.path.join(os.environ.get("HPS_INTEROP_PACKAGES") or sysconfig.get_path("purelib"), "pytriton", "tritonserver")
STUB = os.path.join(SERVER, "python_backend_stubs", sysconfig.get_python_version(), "triton_python_backend_stub")


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def missing():
    """Why the genuine server cannot run here; None: it can."""
    return None if os.path.exists(SERVER) else "no nvidia-pytriton: ./dev interop installs it"


def missing_python():
    """Why its Python backend cannot run here; None: it can."""
    if missing():
        return missing()
    if not os.path.exists(STUB):
        return f"nvidia-pytriton has no stub for Python {sysconfig.get_python_version()}"
    done = subprocess.run(["/usr/bin/python3", "-I", "-c", "import numpy; print(numpy.__version__)"], capture_output=True,
                          text=True, check=False)
    return None if done.stdout.startswith("1.") else f"its Python backend needs numpy 1, /usr/bin/python3 has {done.stdout}"


class Genuine:
    """A server. `rpc` and `web` are its addresses for gRPC and HTTP, `log` the path of its log.

    repository: a directory of models; it loads all of them, or those in `models`
    backends: {name: library}; the Python backend is always there
    """

    def __init__(self, work, repository, *more, backends=None, models=("*",), environment=None):
        self.web_port, self.rpc_port = free_ports(2)
        self.web, self.rpc = f"127.0.0.1:{self.web_port}", f"127.0.0.1:{self.rpc_port}"
        self.log = f"{work}/triton.log"
        directory = f"{work}/backends"
        os.makedirs(directory, exist_ok=True)
        for name, library in (backends or {}).items():
            os.makedirs(f"{directory}/{name}", exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.symlink(library, f"{directory}/{name}/{os.path.basename(library)}")
        if not missing_python():
            shutil.copy(STUB, f"{SERVER}/backends/python/stub.{os.getpid()}")  # another run may use the file now
            os.replace(f"{SERVER}/backends/python/stub.{os.getpid()}", f"{SERVER}/backends/python/triton_python_backend_stub")
            with contextlib.suppress(FileExistsError):
                os.symlink(f"{SERVER}/backends/python", f"{directory}/python")
        self.command = [f"{SERVER}/bin/tritonserver", "--model-repository", repository, "--backend-directory", directory,
                        "--model-control-mode=explicit", *(f"--load-model={name}" for name in models),
                        "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--http-port={self.web_port}",
                        f"--grpc-port={self.rpc_port}", "--allow-metrics=false", *more]
        self.environment = {**os.environ, **(environment or {})}
        self.process = None

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment)
        try:
            until(self._ready, "the genuine server", patience_s=4 * PATIENCE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def _ready(self):
        assert self.process.poll() is None, "\n".join(line for line in self.said().splitlines() if re.match("E[0-9]", line))
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", self.web_port, timeout=PATIENCE_S)
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        return False

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def stop(self):
        """Drains as at the end of a pod. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def connection(server):
    """A socket to its HTTP port."""
    with socket.create_connection(("127.0.0.1", server.web_port), timeout=PATIENCE_S) as link:
        yield link
