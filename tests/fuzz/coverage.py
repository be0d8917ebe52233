#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py TARGET PROGRAM PROFILE...: prints how much of the files in targets.ini a fuzz target has reached, the
functions that it never entered, and the reason in targets.ini why it cannot reach some functions."""
import configparser
import json
import os
import re
import subprocess
import sys
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def tool(name):
    """The path of llvm-cov, or of llvm-cov-14 if Debian installs only the name with the version."""
    for path in os.environ["PATH"].split(":"):
        found = sorted(f for f in (os.listdir(path) if os.path.isdir(path) else ()) if re.fullmatch(name + r"(-\d+)?", f))
        if found:
            return os.path.join(path, found[0])
    sys.exit(f"coverage.py: {name} is not installed: apt-get install llvm")


def percent(part, whole):
    return f"{100 * part // whole if whole else 100:3d} %"


def main():
    target, program, *profiles = sys.argv[1:]
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(os.path.join(HERE, "targets.ini"))
    if target not in ini:
        sys.exit(f"coverage.py: tests/fuzz/targets.ini does not say what {target} is for")
    files = [os.path.join(ROOT, path) for path in ini[target]["reaches"].split()]
    missing = [path for path in files if not os.path.exists(path)]
    if missing:
        sys.exit(f"coverage.py: {target} reaches {', '.join(missing)}, which is not there")
    merged = profiles[0] + ".merged"
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", "-o", merged, *profiles], check=True)
    out = subprocess.run([tool("llvm-cov"), "export", program, "-instr-profile", merged], check=True,
                         capture_output=True).stdout
    os.unlink(merged)
    data = json.loads(out)["data"][0]
    reason = " ".join(ini[target].get("not", "").split())
    named = set(re.findall(r"\w+", reason))  # functions and other words
    never = {}
    for function in data["functions"]:
        path = os.path.relpath(function["filenames"][0], ROOT)
        name = function["name"].split(":")[-1]
        never.setdefault(path, {})
        never[path][name] = max(function["count"], never[path].get(name, 0))
    print(f"{'lines':>7} {'branches':>9}  {target}")
    for file in data["files"]:
        path = os.path.relpath(file["filename"], ROOT)
        if os.path.join(ROOT, path) not in files:
            continue
        lines, branches = file["summary"]["lines"], file["summary"]["branches"]
        print(f"{percent(lines['covered'], lines['count']):>7} {percent(branches['covered'], branches['count']):>9}  {path}")
        unseen = [name for name, count in sorted(never.get(path, {}).items()) if count == 0 and name not in named]
        if unseen:
            print(textwrap.fill("never entered: " + ", ".join(unseen), 110, initial_indent=" " * 19,
                                subsequent_indent=" " * 21))
    if reason:
        print(textwrap.fill("cannot reach: " + reason, 110, initial_indent=" " * 19, subsequent_indent=" " * 21))


if __name__ == "__main__":
    main()
