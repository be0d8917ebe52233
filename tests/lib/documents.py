# SPDX-License-Identifier: Apache-2.0
"""The Python code of the documents, by page: README, the client's own, and each section of docs/python.md. The blocks of
a page are one program."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ADDRESS = "127.0.0.1:8601"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS = {"connections": "import hpsd\n", "errors": "import hpsd\n"}  # what sections take for granted


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def all_of_them():
    """{page: its blocks}; those that need torch have it in their names."""
    pages = {"README": BLOCK.findall(read("README.md")),
             "clients": BLOCK.findall(read("clients", "python", "README.md"))}
    for section in re.split(r"^## ", read("docs", "python.md"), flags=re.MULTILINE):
        name = section.split("\n", 1)[0].lower()
        blocks = BLOCK.findall(section)
        if blocks:
            torch = "torch_" if any("torch" in block for block in blocks) else ""
            pages[f"python_{torch}{name}"] = [NEEDS.get(name, ""), *blocks]
    return pages


def at(code, address):
    """The same with a server that listens there."""
    return code.replace(ADDRESS, address)


def run(name, address, work):
    """The program of a page."""
    code = at("\n".join(all_of_them()[name]), address)
    path = os.path.join(ROOT, "clients", "python")
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True,
                          timeout=120, cwd=work, check=False, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
