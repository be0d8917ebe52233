#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gRPC's interoperability cases (Java) and smoke tests of Python and Node against our gRPC server; clients of KServe v2
# in Java and Node with hpsd; the Python client, installed by pip into each Python that is here.
# usage: run.sh BUILD-DIR   (built libraries in it; clients are fetched into BUILD-DIR/interop)
set -euo pipefail

build=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
protos=/usr/share/grpc-proto
out=$build/interop
python=${PYTHON:-/usr/bin/python3}

flags=(-XX:TieredStopAtLevel=1 -XX:+UseSerialGC) # short programs: less time for the compiler
jvm=(java "${flags[@]}")

# client_compressed_*: we inflate what clients send; answers are never compressed, so server_compressed_*
# does not apply.
cases=(empty_unary large_unary client_streaming server_streaming ping_pong empty_stream
    cancel_after_begin cancel_after_first_response timeout_on_sleeping_server custom_metadata
    status_code_and_message special_status_message unimplemented_method unimplemented_service
    client_compressed_unary client_compressed_streaming)

die() {
    printf 'interop: %s\n' "$*" >&2
    exit 1
}

for program in java javac mvn node npm protoc protoc-c gcc; do
    command -v "$program" >/dev/null || die "$program is not installed"
done
[[ -f $protos/grpc/testing/test.proto ]] || die "$protos is missing (package grpc-proto)"
"$python" -c 'import grpc' || die "$python has no grpc (package python3-grpcio)"

server_build() {
    mkdir -p "$out/proto"
    protoc-c --proto_path=$protos --c_out="$out/proto" grpc/testing/{empty,messages}.proto
    protoc --proto_path=$protos --include_imports --descriptor_set_out="$out/test.desc" \
        grpc/testing/test.proto
    local libs
    read -ra libs <<<"$(pkg-config --libs libevent libnghttp2 libssl libcrypto zlib libprotobuf-c)"
    gcc -std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -I"$root" -I"$out/proto" \
        "$here/server.c" "$out"/proto/grpc/testing/{empty,messages}.pb-c.c \
        "$build/libhps_net.a" "$build/libhps_base.a" "${libs[@]}" -lpthread -lm -o "$out/server"
}

clients_fetch() {
    if ! compgen -G "$out/java/javax.annotation-api-*.jar" >/dev/null; then
        cp "$here/pom.xml" "$out/pom.xml"
        mvn -q -B -f "$out/pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
            -DoutputDirectory="$out/java" || die "the Java client could not be fetched"
    fi
    if [[ ! -d $out/node/node_modules/@grpc/grpc-js ]]; then
        npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$out/node" \
            @grpc/grpc-js@1.10.9 @grpc/proto-loader@0.7.13 || die "the Node client could not be fetched"
    fi
}

# Stubs of our protos by grpc-java's plugin, and the client that uses them.
kserve_build() {
    local plugin=$out/protoc-gen-grpc-java machine
    machine=$(uname -m)
    if [[ ! -x $plugin ]]; then
        mvn -q -B dependency:copy -DoutputDirectory="$out/plugin" -Dmdep.stripVersion=true \
            -Dartifact="io.grpc:protoc-gen-grpc-java:1.60.0:exe:linux-${machine/aarch64/aarch_64}" ||
            die "the plugin of grpc-java could not be fetched"
        install -m 755 "$out"/plugin/protoc-gen-grpc-java-*.exe "$plugin"
    fi
    rm -rf "$out/kserve"
    mkdir -p "$out/kserve/source" "$out/kserve/classes"
    protoc --plugin="$plugin" -I"$root/proto" --java_out="$out/kserve/source" \
        --grpc-java_out="$out/kserve/source" inference/{grpc_service,model_config}.proto
    javac "${flags[@]/#/-J}" -nowarn -cp "$out/java/*" -d "$out/kserve/classes" "$out"/kserve/source/inference/*.java \
        "$here/KServe.java"
}

server_pid='' install_pid=''
server_stop() {
    if [[ -n $server_pid ]]; then
        kill "$server_pid" 2>/dev/null || true
        wait "$server_pid" || die "the server ended badly (see $out/server.log)"
        server_pid=
    fi
}
trap 'kill $server_pid $install_pid 2>/dev/null || true' EXIT

passed=0
failed=0
# Counts the PASS and FAIL lines of a smoke test, and one that ended without any as a failure.
tally() {
    local name=$1 log=$2 good bad
    good=$(grep -c '^PASS ' "$log" || true)
    bad=$(grep -c '^FAIL ' "$log" || true)
    grep '^PASS \|^FAIL \|^SKIP ' "$log" || true
    if ((good + bad == 0)); then
        printf 'FAIL %s (see %s)\n' "$name" "$log"
        bad=1
    fi
    passed=$((passed + good))
    failed=$((failed + bad))
}

export HPS_BIN_DIR=$build/bin PYTHONPATH=$root/tests/e2e:$root/tests/lib
mkdir -p "$out"
timeout 1200 "$python" "$here/install.py" "$out/install" >"$out/install.log" 2>&1 &
install_pid=$! # it waits for pip most of the time
server_build
clients_fetch
kserve_build

exec {ready}< <(exec "$out/server" 127.0.0.1:0 2>"$out/server.log")
server_pid=$!
read -r -t 20 word address <&"$ready" || die "the server did not start (see $out/server.log)"
[[ $word == ready ]] || die "the server said '$word'"

# The first JVM writes the classes that it has loaded into an archive, with which the next ones start.
archive=(-XX:ArchiveClassesAtExit="$out/classes.jsa")
for name in "${cases[@]}"; do
    log=$out/java-$name.log
    if timeout 120 "${jvm[@]}" "${archive[@]}" -cp "$out/java/*" \
        io.grpc.testing.integration.TestServiceClient \
        --server_host="${address%:*}" --server_port="${address##*:}" --use_tls=false \
        --test_case="$name" >"$log" 2>&1; then
        printf 'PASS java_%s\n' "$name"
        passed=$((passed + 1))
    else
        printf 'FAIL java_%s (see %s)\n' "$name" "$log"
        failed=$((failed + 1))
    fi
    archive=(-XX:SharedArchiveFile="$out/classes.jsa")
done

timeout 120 "$python" "$here/smoke.py" "$address" "$out/test.desc" >"$out/python.log" 2>&1 || true
tally python "$out/python.log"
NODE_PATH=$out/node/node_modules timeout 120 node "$here/smoke.js" "$address" "$protos" \
    >"$out/node.log" 2>&1 || true
tally node "$out/node.log"

server_stop
timeout 120 "$python" "$here/kserve.py" "$out/kserve/asked" "${jvm[@]}" -cp "$out/kserve/classes:$out/java/*" \
    KServe >"$out/kserve-java.log" 2>&1 || true
tally kserve_java "$out/kserve-java.log"
NODE_PATH=$out/node/node_modules timeout 120 "$python" "$here/kserve.py" "$out/kserve/asked" \
    node "$here/kserve.js" "$root/proto" >"$out/kserve-node.log" 2>&1 || true
tally kserve_node "$out/kserve-node.log"
wait "$install_pid" || true
install_pid=
tally install "$out/install.log"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
