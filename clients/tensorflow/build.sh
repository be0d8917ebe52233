#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Build the operator for the TensorFlow of a Python environment.
# usage: build.sh PYTHON OUTPUT [BUILD-DIR]   (BUILD-DIR: where ./dev build has built the client library; default: build)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
library=${3:-$root/build}/client/libhpsd-client.a
if (($# < 2)) || [[ ! -f $library ]]; then
    echo "usage: build.sh PYTHON OUTPUT [BUILD-DIR]; expected $library" >&2
    exit 2
fi
"$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tensorflow") is None)' || {
    echo "build.sh: $1 has no TensorFlow; give the Python that has it" >&2
    exit 2
}
mapfile -t flags < <("$1" -c 'import tensorflow as tf
print("-isystem" + tf.sysconfig.get_include(), *tf.sysconfig.get_compile_flags()[1:], *tf.sysconfig.get_link_flags(), sep="\n")' 2>/dev/null)
read -ra libraries <<<"$(pkg-config --libs libevent libevent_openssl libevent_pthreads libnghttp2 openssl zlib libprotobuf-c)"
"${CXX:-g++}" -shared -fPIC -O2 -Wall -Wextra -Werror -I"$root" "$here/operator.cc" -o "$2.new" "$library" "${flags[@]}" \
    "${libraries[@]}" -pthread -Wl,--exclude-libs,ALL
mv "$2.new" "$2"
