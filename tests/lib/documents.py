# SPDX-License-Identifier: Apache-2.0
"""The code blocks of the documents. tests/python runs the Python code of users; tests/e2e/test_documents.py runs the
other blocks, and checks that none is left out."""
import glob
import os
import re
import subprocess
import sys
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ADDRESS = "127.0.0.1:8601"
# Prepended to code of a section that does not import hpsd itself.
SETUP = f'import hpsd\nimport numpy as np\n\nclient = hpsd.connect("{ADDRESS}")\n'
# tests/python runs their Python code
PAGES = ("README.md", "clients/python/README.md", "deploy/wheel/README.md", "docs/python.md", "docs/pytorch.md",
         "docs/torchrec.md", "docs/tensorflow.md")


@dataclass(frozen=True)
class Block:
    """`language` is the language of the fence; "" if the block is indented."""

    file: str
    section: str
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.file}:{self.line}"


def read(file):
    with open(os.path.join(ROOT, file), encoding="utf-8") as f:
        return f.read()


def files():
    found = []
    for pattern in ("*.md", "docs/**/*.md", "clients/**/*.md", "deploy/**/*.md", "tests/**/*.md"):
        found += sorted(glob.glob(pattern, root_dir=ROOT, recursive=True))
    return found


def _of_file(file):
    """Blocks are fenced, or indented by four spaces after an empty line. An indented block may contain empty lines."""
    lines = read(file).split("\n")
    section, at = "", 0
    while at < len(lines):
        begin = at
        if lines[at].startswith("```"):
            at = lines.index("```", at + 1)
            yield Block(file, section, begin + 1, lines[begin][3:], "\n".join(lines[begin + 1:at]) + "\n")
        elif lines[at].startswith("    ") and lines[at - 1] == "":
            while at + 1 < len(lines) and lines[at + 1][:4] in ("", "    "):
                at += 1
            yield Block(file, section, begin + 1, "", "\n".join(line[4:] for line in lines[begin:at + 1]).rstrip() + "\n")
        elif re.match("#+ ", lines[at]):
            section = lines[at].lstrip("# ").lower()
        at += 1


def blocks():
    return [block for file in files() for block in _of_file(file)]


def block(file, begins):
    """The only block of a file that begins with this text."""
    found, = [one for one in _of_file(file) if one.code.startswith(begins)]
    return found


def python_pages():
    """{page: its blocks}. README.md, the client's README.md and each section of the pages in docs are one page, and a
    page is one program. Names begin with the name of the file: those of pages that need torch contain "torch"."""
    pages = {}
    for file in PAGES:
        for one in _of_file(file):
            if one.language == "python":
                section = f"{os.path.basename(file)[:-3]}_{one.section.replace(' ', '_')}"
                name = {"README.md": "README", "clients/python/README.md": "clients", "deploy/wheel/README.md": "wheel"}.get(file, section)
                pages.setdefault(name, [] if "import hpsd" in one.code else [SETUP]).append(one.code)
    return pages


def at(code, address):
    """The code with the address of the test's server."""
    return code.replace(ADDRESS, address)


def run_page(name, address, work, edit=lambda code: code):
    """Run the program of a page in `work`."""
    with open(os.path.join(work, "page.py"), "w", encoding="utf-8") as f:
        f.write(edit(at("\n".join(python_pages()[name]), address)))
    path = os.path.join(ROOT, "clients", "python")
    programs = os.environ.get("HPS_BIN_DIR", os.path.join(ROOT, "build", "bin"))
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "page.py"], capture_output=True, text=True,
                          timeout=120, cwd=work, check=False,
                          env={**os.environ, "PYTHONPATH": path, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
