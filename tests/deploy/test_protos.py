# SPDX-License-Identifier: Apache-2.0
"""Users generate code of other languages from proto/. Go's generator stops at a file without go_package."""
import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROTO = os.path.join(ROOT, "proto")
PLUGINS = ("google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.10",
           "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1")
FETCH_S = 300


def protos():
    return sorted(os.path.relpath(os.path.join(path, name), PROTO)
                  for path, _, names in os.walk(PROTO) for name in names if name.endswith(".proto"))


def test_protos_when_read_then_each_names_its_go_package():
    assert len(protos()) > 5
    for name in protos():
        with open(os.path.join(PROTO, name), encoding="utf-8") as f:
            assert 'option go_package = "' in f.read(), name


@pytest.mark.skipif(shutil.which("go") is None, reason="go is missing")
def test_protos_when_generated_for_go_then_each_has_a_file_in_its_package(tmp_path):
    for plugin in PLUGINS:
        done = subprocess.run(["go", "install", plugin], env={**os.environ, "GOBIN": str(tmp_path / "bin")},
                              capture_output=True, text=True, timeout=FETCH_S, check=False)
        if done.returncode != 0:
            pytest.skip(f"go could not install {plugin}: {done.stderr[-300:]}")
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["protoc", f"-I{PROTO}", f"--go_out={out}", f"--go-grpc_out={out}", *protos()], check=True,
                   env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    assert len(list(out.rglob("*.pb.go"))) == len(protos()) + 6  # and the stubs of six files with services
    assert "package hpsv1" in (out / "hpsd" / "hps" / "v1" / "lookup_grpc.pb.go").read_text(encoding="utf-8")
    assert "package inference" in (out / "hpsd" / "inference" / "grpc_service_grpc.pb.go").read_text(encoding="utf-8")
