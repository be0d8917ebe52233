# SPDX-License-Identifier: Apache-2.0
"""tools/release.sh in a small repository whose ./dev makes two packages with a program and a script."""
import os
import shutil
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

DEV = r"""#!/bin/bash
set -eu
echo "$*" >>../called
[[ $1 == package ]] || exit 0
for suite in bookworm trixie; do
    mkdir -p "root/DEBIAN" root/usr/bin build/package/{$suite,python}
    printf 'Package: hpsd\nVersion: 1.2.3\nArchitecture: all\nMaintainer: m <m@m>\nDescription: d\n' >root/DEBIAN/control
    cp /bin/true root/usr/bin/program
    printf '#!/bin/sh\n' >root/usr/bin/script
    chmod +x root/usr/bin/script
    dpkg-deb --root-owner-group --build root "build/package/$suite/hpsd_1.2.3_all.deb"
    rm -r root
done
touch build/package/python/hpsd-1.2.3{-py3-none-any.whl,.tar.gz}
"""


def git(tree, *args):
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@e", "-c", f"safe.directory={tree}", *args], cwd=tree, check=True,
                   capture_output=True)


@pytest.fixture(name="tree")
def repository_of_version_1_2_3(tmp_path):
    """A commit that can be released. If root runs this, another user owns it."""
    tree = tmp_path / "tree"
    for folder in ("clients/python/hpsd", "tools"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(f"{ROOT}/tools/release.sh", tree / "tools")
    (tree / "clients/python/hpsd/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-02\n\n- A change.\n")
    (tree / ".gitignore").write_text("/build/\n")
    (tree / "dev").write_text(DEV)
    (tree / "dev").chmod(0o755)
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "c")
    if os.geteuid() == 0:
        for folder, _, names in os.walk(tree):
            for name in (".", *names):
                os.chown(os.path.join(folder, name), 65534, 65534)
    return tree


def release(tree, version="1.2.3", **env):
    return subprocess.run([tree / "tools/release.sh", version], capture_output=True, text=True, timeout=60, check=False,
                          env={"PATH": os.environ["PATH"], "HOME": str(tree.parent), **env})


def test_release_when_the_commit_is_ready_then_sums_and_libraries_of_all_files(tree):
    done = release(tree)
    assert done.returncode == 0, done.stderr
    assert (tree / "../called").read_text().splitlines() == ["check", "package --test"]
    out = tree / "build/release"
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=out, check=True)
    names = {line.split("  ")[1] for line in (out / "SHA256SUMS").read_text().splitlines()}
    assert names == {"bookworm/hpsd_1.2.3_all.deb", "trixie/hpsd_1.2.3_all.deb", "hpsd-1.2.3-py3-none-any.whl", "hpsd-1.2.3.tar.gz",
                     "hpsd-source-1.2.3.tar.gz", "libraries.txt"}
    assert (out / "libraries.txt").read_text().splitlines() == [
        f"{suite}/hpsd_1.2.3_all/usr/bin/program: libc.so.6" for suite in ("bookworm", "trixie")]


def test_release_when_the_commit_is_not_ready_then_refused_before_the_checks(tree):
    assert "has version 1.2.3" in release(tree, "1.2.4").stderr
    (tree / "new").touch()
    assert "the tree has changes" in release(tree).stderr
    (tree / "new").unlink()
    git(tree, "tag", "v1.2.3", "HEAD")
    git(tree, "commit", "-q", "--allow-empty", "-m", "c")
    assert "v1.2.3 is another commit" in release(tree).stderr
    git(tree, "tag", "-d", "v1.2.3")
    changes = tree / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("Unreleased\n", "Unreleased\n\n- Another change.\n"))
    git(tree, "commit", "-qam", "c")
    assert "has changes above 1.2.3" in release(tree).stderr
    assert not (tree / "../called").exists()
