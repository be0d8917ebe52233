#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the examples of docs/clients.md and the programs of this folder, in Go, Java, Node and Rust. Their
dependencies are downloaded and compiled once into ~/.cache/hpsd/clients, which clones share.

usage: languages.py   (prints the languages that are left out, and why; then exits with 77)
"""
import contextlib
import fcntl
import glob
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests", "lib"))
import documents  # noqa: E402

PAGE = "docs/clients.md"
SERVICE = '{\n  "loadBalancingConfig"'  # how the block with service.json begins
HOME = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hpsd", "clients")
JAVAC = "javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -nowarn"  # half of the CPU time
MACHINE = platform.machine().replace("aarch64", "aarch_64")


@dataclass
class Language:
    """`prepare` makes the folder of the programs, which has the folder `proto`; it may use the network. `name` is the name
    of a program without its ending."""

    tools: tuple
    begins: str  # how the example of the document begins
    example: str  # its name
    file: str
    prepare: str
    build: str
    run: str
    env: dict = field(default_factory=dict)


LANGUAGES = {
    "go": Language(
        ("go", "protoc"), "package main", "example", "{name}/main.go", documents.block(PAGE, "go install").code,
        "go build -o bin/{name} ./{name}", "bin/{name}",
        {"GOMODCACHE": f"{HOME}/go/modules", "GOCACHE": f"{HOME}/go/build", "GOBIN": f"{HOME}/go/bin", "GOFLAGS": "-modcacherw",
         "CGO_ENABLED": "0", "PATH": f"{HOME}/go/bin:{os.environ['PATH']}"}),
    "java": Language(
        ("javac", "mvn", "protoc"), "import com.google.gson", "Example", "{name}.java", f"""
        cp {ROOT}/tests/interop/pom.xml .
        mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=jars
        mvn -q -B dependency:copy -DoutputDirectory=plugin -Dmdep.stripVersion=true \
            -Dartifact=io.grpc:protoc-gen-grpc-java:1.60.0:exe:linux-{MACHINE}
        install -m 755 plugin/*.exe plugin/grpc-java
        mkdir stubs classes
        protoc --plugin=protoc-gen-grpc-java=plugin/grpc-java -I proto --java_out=stubs --grpc-java_out=stubs hps/v1/lookup.proto
        {JAVAC} -cp 'jars/*' -d classes stubs/hps/v1/*.java
        """, f"{JAVAC} -cp 'classes:jars/*' -d classes {{name}}.java",
        "java -XX:TieredStopAtLevel=1 -Djdk.net.hosts.file=hosts -cp classes:jars/* {name}"),
    "node": Language(
        ("node", "npm"), "const fs", "example", "{name}.js", documents.block(PAGE, "npm install").code, "true", "node {name}.js"),
    "rust": Language(
        ("cargo", "protoc"), "pub mod hps", "example", "src/main.rs",
        documents.block(PAGE, "cargo init").code + "cargo fetch -q\n", "cargo build -q", f"{HOME}/rust/target/debug/{{name}}",
        {"CARGO_HOME": f"{HOME}/rust", "CARGO_TARGET_DIR": f"{HOME}/rust/target", "CARGO_TERM_COLOR": "never",
         "CARGO_PROFILE_DEV_DEBUG": "0"}),
}


class Failed(Exception):
    """The output of a command."""


class LeftOut(Exception):
    """Why there are no programs in a language."""


def _shell(language, command, work, limit_s=600):
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", command], cwd=work, stdout=said, stderr=said,
                                   stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **language.env})
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            status = f"more than {limit_s:.0f} s"
        said.seek(0)
        if status != 0:
            raise Failed(f"{command.strip()}: {status}: {said.read()[-4000:]}")


def _write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def build(name, work, program, code, limit_s=600):
    """Build a program from `code`. Returns its command, to run in `work`."""
    language = LANGUAGES[name]
    _write(f"{work}/{language.file.format(name=program)}", code)
    _write(f"{work}/service.json", documents.block(PAGE, SERVICE).code)
    _shell(language, language.build.format(name=program), work, limit_s)
    return language.run.format(name=program).split()


def example(name, work, edit=lambda code: code, limit_s=600):
    """Build the example of the document."""
    language = LANGUAGES[name]
    return build(name, work, language.example, edit(documents.block(PAGE, language.begins).code), limit_s)


def copy(name, work):
    """Copy the folder of the programs to the new folder `work`. Makes it first if necessary. Raises LeftOut."""
    language, end = LANGUAGES[name], time.monotonic() + float(os.environ.get("HPS_INSTALL_S", 240))
    for tool in language.tools:
        if shutil.which(tool) is None:
            raise LeftOut(f"{tool} is not installed")
    inputs = [documents.read(path) for path in ("tests/interop/pom.xml", *sorted(glob.glob("proto/hps/v1/*", root_dir=ROOT)))]
    folder, version = f"{HOME}/{name}/programs", hashlib.sha256(f"{language} {inputs}".encode()).hexdigest()
    os.makedirs(f"{HOME}/{name}", exist_ok=True)
    with open(f"{HOME}/{name}/lock", "a+", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() != version:
            shutil.rmtree(folder, ignore_errors=True)
            lock.truncate(0)
            shutil.copytree(f"{ROOT}/proto", f"{folder}/proto")
            try:
                _shell(language, language.prepare, folder, end - time.monotonic())
            except Failed as error:
                raise LeftOut(f"its packages could not be installed: {' '.join(str(error).split())[-300:]}") from None
            with contextlib.suppress(Failed):  # compiles packages; tests report failures
                example(name, folder, limit_s=end - time.monotonic())
            lock.write(version)
        shutil.copytree(folder, work, symlinks=True)


def main():
    reasons = []
    for name in LANGUAGES:
        try:
            with tempfile.TemporaryDirectory(prefix="hps-") as work:
                copy(name, f"{work}/programs")
        except LeftOut as reason:
            reasons.append(f"{name}: {reason}")
    print("; ".join(reasons), end="")
    return 77 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
