#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# release.sh VERSION: check that the tree can be released as this version, then collect in build/release the packages, a
# source archive, their SHA-256 sums and the libraries that each program links. Run as root, by ./dev release.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
export LC_ALL=C.UTF-8 # one order of names
version=$1 out=build/release

die() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}
git() { command git -c safe.directory="$PWD" "$@"; } # of another owner than root
head=$(git rev-parse HEAD)
changes=$(git status --porcelain)
[[ -z $changes ]] || die "the tree has changes: commit them"
found=$(sed -n 's/^__version__ = "\(.*\)".*/\1/p' clients/python/hpsd/__init__.py)
[[ $found == "$version" ]] || die "clients/python/hpsd/__init__.py has version $found"
grep -q "^## $version - 2[0-9-]*\$" CHANGELOG.md || die "CHANGELOG.md has no section \"## $version - DATE\""
[[ -z $(sed -n '/^## Unreleased/,/^## [0-9]/s/^- /&/p' CHANGELOG.md) ]] || die "CHANGELOG.md has changes above $version: move them there"
[[ -z $(git tag -l "v$version") || $(git rev-parse "v$version^{commit}") == "$head" ]] || die "v$version is another commit"
[[ ${HPS_CHECKED:-} == "$head" ]] || ./dev check # HPS_CHECKED: the commit that has passed
./dev package --test

rm -rf $out
mkdir -p $out
for suite in bookworm trixie; do
    mkdir $out/$suite
    cp build/package/$suite/*.deb $out/$suite/
done
cp build/package/python/*.{whl,tar.gz} $out/
git archive --prefix="hpsd-$version/" HEAD | gzip -n >"$out/hpsd-source-$version.tar.gz"
cd $out
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for deb in */*.deb; do
    case $deb in *-dbgsym_*) continue ;; esac
    mkdir -p "$work/${deb%.deb}"
    dpkg-deb -x "$deb" "$work/${deb%.deb}"
done
(cd "$work" && find . -type f \( -perm -u+x -o -name '*.so*' \) | sort | while read -r file; do
    { objdump -p "$file" 2>/dev/null || true; } | sed -n "s|^ *NEEDED *|${file#./}: |p" # not of scripts
done) >libraries.txt
find . -type f -printf "%P\n" | sort >"$work/names"
xargs -d "\n" -a "$work/names" sha256sum >SHA256SUMS
printf "release: %s files in %s; tag the commit: git tag -s v%s\n" "$(wc -l <SHA256SUMS)" "$out" "$version"
