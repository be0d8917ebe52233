# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of the project in the complete tree.

`house.py [ROOT]` prints one line per violation (file:line: rule: text) and exits with 1 if there is any. `house.py
--self-test` plants violations of every rule in a temporary tree, and checks that each is found. Standard library only.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# ---- the rules ------------------------------------------------------------------------------------

# The folders that a folder may include from, in addition to itself. base <- net, config <- backends <- cache <- server,
# and tools -> client -> net, base; folders that use protobuf messages include proto. A subfolder of cache/ or server/
# may use only subfolders before it; a store uses no other store. A missing folder or an unused permission is an error.
BASE = ("base", "base/rows")
INCLUDES = {
    "base": (),
    "base/rows": ("base",),
    "net": ("base",),
    "config": BASE,
    "backends": ("base",),
    "backends/host": ("backends", "base"),
    "backends/rocksdb": ("backends", *BASE),
    "backends/basefile": ("backends", *BASE),
    "backends/redis/client": ("backends", "net", "base"),
    "backends/redis": ("backends/redis/client", "backends", "base"),
    "backends/kafka": ("backends", *BASE),
    "cache/version": ("backends", "base"),
    "cache/device": ("base",),
    "cache/embed": ("cache/device", "backends", "base"),
    "cache/device/sim": ("cache/embed", "cache/device", "base"),  # a separate library, not part of hpsd
    "cache/gpu": ("cache/embed", "base"),
    "cache/update": ("cache/gpu", "cache/version", "backends", *BASE),
    "cache/lookup": ("cache/update", "cache/gpu", "cache/version", "backends", *BASE),
    "server/observe": ("cache/lookup", "backends", "net", "base"),
    "server/access": ("config", "net", "base"),
    "server/rpc": ("server/access", "server/observe", "proto", "net", "base"),
    "server/lookup": ("server/rpc", "server/access", "server/observe", "cache/lookup", "cache/update", "cache/version", "net", "base"),
    "server/model": ("server/lookup", "server/update", "server/rpc", "server/access", "cache/update", "cache/version",
                     "proto", *BASE),
    "server/kserve": ("server/catalog", "server/model", "server/lookup", "server/rpc", "server/access",
                      "cache/version", "config", "net", "proto", "base"),
    "server/update/partition": ("cache/update", "backends", "config", *BASE),
    "server/update/source": ("server/update/partition", "base"),
    "server/update/sink": ("server/update/source", "server/update/partition", "server/rpc", "server/observe",
                           "cache/update", "proto", *BASE),
    "server/update/stream": ("server/update/sink", "server/observe", "base"),
    "server/update": ("server/update/stream", "server/update/partition", "server/observe", "config", "base"),
    "server/load": ("server/observe", "cache/lookup", "cache/gpu", "cache/version", "config", "backends", "proto",
                    *BASE),
    "server/catalog": ("server/load", "server/update", "server/update/partition", "server/rpc", "server/observe", "cache/lookup", "cache/update",
                       "cache/gpu", "cache/version", "config", "backends", "base"),
    "server/admin": ("server/catalog", "server/update", "server/update/partition", "config", "server/rpc", "server/access", "server/observe", "cache/lookup",
                     "cache/update", "backends", "proto", *BASE),
    "server": ("server/admin", "server/kserve", "server/catalog", "server/load", "server/lookup", "server/model", "server/rpc",
               "server/access", "server/observe", "cache/update", "cache/device", "config", "backends",
               "net", *BASE),
    "client": ("net", "proto", *BASE),
    "clients/triton": ("client", "base"),
    "clients/tensorflow": ("client",),
    "tools": ("client", "config", "net", "proto", *BASE),
}
GENERATED = re.compile(r"^(hps/v1|inference|grpc/(health|reflection)/\w+)/\w+\.pb-c\.h$")

PUBLIC_HEADER = "client/hpsd.h"  # installed without any other header

# Files that may include headers that open a store or a log. Other files use only the contracts, backends/*.h.
OPENERS = {
    "server/main.c": ("backends/basefile/basefile.h", "backends/host/map.h", "backends/kafka/kafka.h", "backends/redis/redis.h",
                      "backends/rocksdb/rocksdb.h", "backends/rocksdb/dir.h"),
}

# Only code that opens a store may contain its name. The rest of server/ asks for a role (backends/stores.h) or a
# capability (backends/store.h). The exceptions, with their reasons:
STORE_NAMES = re.compile(r"redis|rocks_?db|host_map", re.IGNORECASE)
STORE_NAMES_IN = {
    "server/main.c": (r".*", "opens the stores"),
    "server/options.c": (r"Redis|RocksDB", "--help names products and options"),
    "server/admin/models.c": (r"answer->redis_bytes_needed", "a field of the answer"),
    "server/admin/state.c": (r"to->(redis|rocksdb)_us|HPS_STAGE_(REDIS|ROCKSDB)", "fields of a slow request"),
    "server/observe/slowlog.c": (r'"(redis|rocksdb)_us"|HPS_STAGE_(REDIS|ROCKSDB)', "fields of the slow log"),
    "server/observe/metrics.h": (r'X\((REDIS, "redis"|ROCKSDB, "rocksdb")\)', "stages: values of a label"),
    "server/observe/metrics.c": (r"HPS_TIER_REDIS", "the tiers that have series of insertions"),
    "server/lookup/request.c": (r"HPS_(TIER|STAGE)_(REDIS|ROCKSDB)", "which stage the time in a tier is"),
    "server/update/updates.h": (r"docs/redis\.md", "names a document"),
}

# Each third-party library may be used by one file or folder. Exceptions have reasons.
LIBRARIES = {
    r"nghttp2/": {"net/http2_internal.h": "HTTP/2 sessions of both roles, in the files that include it"},
    r"event2/": {"net/loop.c": "the event loop"},
    r"openssl/": {"net/tls.c": "TLS"},
    r"zlib\.h": {
        "net/gzip.c": "compressed gRPC messages",
        "tests/fuzz/fuzz_gzip.c": "makes messages that must come out again",
    },
    r"jansson\.h": {
        "config/json.h": "JSON texts, in the files that include it",
        "clients/triton/config.c": "the configuration as Triton gives it",
    },
    r"rocksdb/c\.h": {
        "backends/rocksdb/internal.h": "the store on SSD, in the files that include it",
        "bench/bench_rocksdb.c": "compares with RocksDB as it comes",
        "bench/bench_update.c": "compares with RocksDB as it comes",
        "tests/unit/backends/rocksdb/test_database.c": "makes databases that are not ours",
        "tests/unit/backends/rocksdb/test_errors.c": "has RocksDB say its errors",
        "tests/unit/backends/rocksdb/test_listener.c": "has RocksDB tell of its health",
    },
    r"rocksdb/": {"backends/rocksdb/listener.cc": "what the C interface has not: a listener"},
    r"grpcpp/": {"bench/grpc_cpp_server.cc": "the comparison with libgrpc++"},
    r"(cstdio|cstring|cxxabi\.h|exception|memory|string|vector)$": {
        "backends/rocksdb/listener.cc": "types of the listener's calls",
        "bench/grpc_cpp_server.cc": "the comparison with libgrpc++",
        "clients/tensorflow/operator.cc": "what the classes of TensorFlow take and keep",
    },
    r"(cstdint|cstdlib|map|mutex)$": {"clients/tensorflow/operator.cc": "the clients of a process, by address"},
    r"tensorflow/": {"clients/tensorflow/operator.cc": "the operator's interface"},
    r"librdkafka/": {
        "backends/kafka/handle.h": "the log of updates, in the files that include it",
        "client/producer.c": "the producer of updates",
        "tests/lib/mock_kafka.c": "brokers within the test program",
    },
    r"liburing\.h": {"backends/basefile/read.c": "many reads of base files at once"},
    r"systemd/": {"server/observe/notify.c": "readiness, watchdog, passed sockets"},
    r"cuda_runtime\.h": {"cache/device/cuda.cu": "the device layer over the CUDA runtime"},
    r"cuda_runtime_api\.h": {"tests/gpu/offline/runtime.c": "stands in for the CUDA runtime"},
    r"sanitizer/": {
        "base/poison.h": "marks pooled memory that nobody owns",
        "cache/device/sim/sanitize.h": "tells of the simulated device's order and stacks",
    },
    r"protobuf-c/": {
        "client/message.h": "unpacking for every message of the client",
        "proto/fields.h": "where the fields of a message are",
        "proto/json.h": "every message as JSON",
        "server/rpc/message.h": "unpacking for every message of the server",
    },
    r"hiredis/": {
        "backends/redis/client/codec.c": "replies and commands of Redis",
        "bench/bench_redis.c": "compares with hiredis as it comes",
        "tests/lib/redis_rig.c": "asks servers",
    },
    r"cmocka\.h": {"tests/*": "the test library"},
    r"hpsd\.h": {"docs/examples/c/lookup.c": "the header as it is installed"},
}
# All other files are C, or CUDA in *.cu.
CXX_IN = {
    "backends/rocksdb/listener.cc": "a listener of RocksDB is a C++ object",
    "bench/grpc_cpp_server.cc": "the comparison with libgrpc++",
    "clients/tensorflow/operator.cc": "an operator of TensorFlow is a C++ object",
}
CXX_LINES_MAX = 300  # not counting bench/

# Without <locale.h>: numbers are formatted and parsed in the "C" locale.
SYSTEM = re.compile(
    r"^(sys|net|netinet|arpa|linux)/\w+\.h$|^(assert|complex|cpuid|ctype|dirent|dlfcn|endian|errno|execinfo|"
    r"fcntl|fenv|float|fnmatch|ftw|glob|grp|immintrin|inttypes|limits|malloc|math|netdb|nmmintrin|"
    r"poll|pthread|pwd|regex|sched|semaphore|setjmp|signal|spawn|stdalign|stdarg|stdatomic|stdbool|"
    r"stddef|stdint|stdio|stdlib|stdnoreturn|string|strings|syscall|termios|time|uchar|ucontext|unistd|threads|"
    r"wchar|x86intrin)\.h$")

HEAP = r"malloc|calloc|realloc|reallocarray|free|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign"
HEAP_IN = {
    "base/heap.c": "the one caller of libc's heap",
    "tests/lib/fault_heap.c": "the failing heap stands where libc's heap stands",
}
LOCKS = (r"pthread_(?:mutex|cond|condattr|mutexattr|rwlock|rwlockattr|spin|spinlock|barrier)_\w+|PTHREAD_\w+_INITIALIZER|"
         r"(?:mtx|cnd)_\w+|std::(?:\w*mutex|condition_variable\w*|\w+_lock|lock_guard)")
LOCKS_IN = ("base/lock.h", "base/lock.c", "clients/tensorflow/operator.cc")  # the last runs in other programs
UNSAFE = r"strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atoll|atof|rand|srand|system|popen"
SLEEPS = r"sleep|usleep|nanosleep|clock_nanosleep|p?poll(?=\s*\(NULL)"
SLEEPS_IN = {
    "tests/lib/pause.h": "the moment between two looks at a condition, where sched_yield would spin",
    "cache/device/cuda.cu": "between two questions to a driver that tells nobody when its work has ended",
    "cache/device/sim/device.c": "the time that a simulated step takes",
    "tools/hps-bench.c": "the pace of its requests",
    "bench/bench_kafka.c": "the pace of its records",
    "bench/bench_e2e_hpsd.c": "between two looks at a process that it has started",
}

# Folders that may read rows from a store: the tier walk, and updates, which read the rows that they are about to write.
READERS = ("backends", "backends/basefile", "cache/lookup", "cache/update")  # backends: a store that calls itself, table by table
STORE_READ = re.compile(r"(?:->|\.)(get|get_many)\b(?!\s*=[^=])")  # a call, or a reference to the function
# Folders that must not distinguish tiers by kind or by the store's name. They use capabilities (cache/version/tier.h);
# the embedding cache is one of hps_version_tiers, like other tiers.
KINDLESS = ("cache/lookup", "server/lookup")
KIND_TEST = re.compile(r"(?:[=!]=|[<>]=?)\s*HPS_TIER_(?!COUNT)\w+|\bHPS_TIER_(?!COUNT)\w+\s*(?:[=!]=|[<>])|"
                       r"\bcase\s+HPS_TIER_|"
                       r"\bstrcmp\s*\([^;]*\bops->name\b")
STORES_LOOP = re.compile(r"\bversion->n_tiers\b")

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800  # of product code; a longer file has more than one subject
LINE_COLUMNS_MAX = 100

TESTED = ("base", "net", "config", "backends", "cache", "server")
UNTESTED = {  # source files without a test at the same path in tests/unit/, and the tests that cover them
    "base/rows/rowtensor.c": "test_rowfile.c",
    "backends/basefile/base.c": "test_store.c and test_file.c",
    "backends/basefile/load.c": "test_store.c, and test_fault_basefile.c: kills and full disks",
    "backends/basefile/read.c": "test_store.c and test_file.c, in every way of reading",
    "backends/basefile/rows.c": "test_store.c and test_merge.c, against a model of the rows",
    "backends/basefile/space.c": "test_store.c and test_file.c",
    "backends/basefile/walk.c": "test_store.c: scans and views against a model",
    "backends/basefile/writer.c": "test_store.c and test_file.c",
    "backends/host/load.c": "test_map.c and test_store_host_map.c",
    "backends/host/share.c": "test_memory.c and test_versions.c: who gives way when memory is short",
    "backends/host/space.c": "test_map.c and test_store_host_map.c",
    "backends/kafka/consumer.c": "test_kafka.c",
    "backends/kafka/dead_letters.c": "log_contract.c, and test_kafka_log.py with a broker",
    "backends/kafka/handle.c": "test_kafka.c",
    "backends/kafka/offsets.c": "log_contract.c and test_leaders.c",
    "backends/kafka/recall.c": "log_contract.c and test_leaders.c",
    "backends/kafka/topics.c": "log_contract.c and test_leaders.c, and test_kafka_log.py with a broker",
    "backends/redis/batch.c": "test_write.c and test_read.c: scripts that a server does not know",
    "backends/redis/insert.c": "test_write.c and test_store_redis.c",
    "backends/redis/leases.c": "test_redis.c: who may delete, and what the keeper counts",
    "base/args_help.c": "test_args.c, and test_tools.py for every program",
    "base/build_info.c": "test_tools.py: --version",
    "base/row_kernel_avx2.c": "test_row_kernel.c, which walks all kernels",
    "base/row_kernel_avx512.c": "test_row_kernel.c, which walks all kernels",
    "base/row_kernel_scalar.c": "test_row_kernel.c, which walks all kernels",
    "base/rows/snapshot_restore.c": "test_snapshot.c: what is whole comes back, what is not is refused",
    "base/rows/rowsort_merge.c": "test_rowsort.c, with budgets that need more than one pass",
    "config/listeners.c": "test_finish.c and test_parse.c",
    "config/options_print.c": "test_options.c and test_print.c",
    "config/parse_models.c": "test_parse.c and test_config.c",
    "backends/redis/client/conn.c": "test_client.c, plain and over TLS, by real servers",
    "backends/redis/client/maintenance.c": "test_fault_redis.c: servers that come back are found",
    "backends/redis/client/node.c": "test_client.c and test_fault_redis.c",
    "backends/rocksdb/health.c": "test_fault_rocksdb.c: disks that fail and fill; test_damaged.c",
    "backends/rocksdb/options.c": "test_read.c and test_database.c, in every read mode",
    "backends/rocksdb/records.c": "test_store_rocksdb.c and test_fault_catalog.c",
    "cache/device/sim/kernels.c": "test_cache.c, which launches them all against a dictionary",
    "cache/device/sim/memory.c": "test_device.c, which copies past its ends",
    "cache/embed/kernels.c": "test_cache.c, and on a GPU run_checks.c",
    "cache/embed/pack.c": "test_batch.c and test_cache.c: what was packed is looked up",
    "cache/embed/region.c": "test_batch.c, whose look-ups write to regions",
    "cache/embed/slice.c": "test_stage.c and test_cache.c: what was applied is looked up",
    "cache/gpu/change.c": "test_tier.c, through the tier that they are parts of",
    "cache/gpu/lookup.c": "test_tier.c",
    "cache/gpu/space.c": "test_tier.c",
    "cache/lookup/unique.c": "test_lookup.c, against a dictionary, and test_gpu.c",
    "cache/lookup/rows.c": "test_lookup.c: policies, types, unknown keys; test_bags.c: every form of answer",
    "cache/lookup/count.c": "test_lookup.c, test_insertion.c, test_gpu.c, and test_warmup.c: hot keys",
    "cache/lookup/tiers_blocking.c": "test_tiers.c and test_walk_together.c",
    "cache/lookup/tiers_upward.c": "test_tiers.c, test_walk_together.c and test_backfill.c",
    "cache/lookup/tiers_others.c": "test_walk_together.c, also without memory",
    "cache/update/plan.c": "test_update.c: what a batch comes to is seen in the tiers",
    "cache/update/state.c": "test_update.c, which opens versions again",
    "net/grpc_http.c": "test_http1_server.c and test_http1_calls.c",
    "net/grpc_http_answer.c": "test_http1_server.c and test_http1_calls.c",
    "net/grpc_route.c": "test_http1_server.c: which route a path has, and which paths have none",
    "net/http1_head.c": "test_http1_server.c: every head that is malformed",
    "net/http1_server_phase.c": "test_http1_server.c",
    "net/http1_server_receive.c": "test_http1_server.c, byte by byte and in all other ways",
    "net/http1_server_send.c": "test_http1_server.c and test_http1_calls.c: readers of every pace",
    "net/grpc_guard.c": "test_grpc_server.c: who may call, and what a change of rules ends",
    "net/grpc_call.c": "test_grpc_server.c: the life of a call",
    "net/grpc_call_life.c": "test_grpc_server.c: the life of a call",
    "net/grpc_conn.c": "test_grpc_pace.c and test_grpc_intake.c: pressure; test_grpc_server.c",
    "net/grpc_call_headers.c": "test_grpc_server.c: what a client may ask for",
    "net/grpc_call_receive.c": "test_grpc_server.c: messages in pieces, limits, waiting for room",
    "net/grpc_call_send.c": "test_grpc_server.c: answers, statuses, back-pressure",
    "net/grpc_channel.c": "test_grpc_client.c: connections that are refused, lost, drained",
    "net/grpc_fields.c": "test_grpc_server.c: metadata",
    "net/http2_send.c": "test_http2.c, and test_grpc_server.c: slow readers, lost connections, small calls beside bulk",
    "net/http2_request.c": "test_http2.c: by TCP, where nghttp2 judges, and by a Unix socket the same requests",
    "net/http2_stream.c": "test_http2.c and test_grpc_client.c",
    "net/limits_account.c": "test_limits.c",
    "server/main.c": "test_config.py and test_check.py, by exit codes",
    "server/program.c": "test_gpu.py, where no GPU is",
    "server/daemon.c": "test_rpc.py and test_config.py, which start it with all that it assembles",
    "server/pages.c": "test_rpc.py: probes and pages, for whom",
    "server/run.c": "test_restart.py, test_readiness.py and test_service.py: signals, drain, systemd",
    "server/reload.c": "test_config.py: what a SIGHUP changes, and what it refuses",
    "server/listeners.c": "test_config.py, and test_service.py with sockets of systemd",
    "server/observe/notify.c": "test_service.py, as systemd sees it",
    "server/observe/rpc_metrics.c": "test_rpc.py: every method is counted",
    "server/access/token.c": "test_rpc.py: an admin listener on TCP with a token",
    "server/kserve/infer.c": "test_kserve_infer.py: one by one, and as a stream",
    "server/kserve/infer_rest.c": "test_kserve_http.py",
    "server/kserve/infer_grpc.c": "test_kserve_infer.py, by stubs of stock grpcio, and fuzz_kserve_grpc.c",
    "server/kserve/infer_view.c": "test_kserve_infer.py: both views, and each thing that is refused",
    "server/kserve/answer_grpc.c": "test_kserve_infer.py",
    "server/kserve/answer_stream.c": "test_kserve_infer.py: streams",
    "server/kserve/values.c": "test_kserve_infer.py",
    "server/lookup/exchange.c": "test_kserve_infer.py: streams",
    "server/rpc/health.c": "test_readiness.py, by a stock client",
    "server/rpc/message.c": "fuzz_request.c and test_rpc.py",
    "server/rpc/reflection.c": "test_rpc.py, by a stock client",
    "server/rpc/unary.c": "test_rpc.py and test_kserve_admin.py: who may call what; test_config.py and test_unload.py: the audit log",
    "server/update/partition/partition.c": "test_updates.c, which adds partitions",
    "server/update/partition/route.c": "test_updates.c: topics that are, and are not, of the version",
    "server/update/partition/steps.c": "test_updates.c and test_proof.c: what follows from events",
    "server/update/source/identity.c": "test_proof.c: topics that are recreated",
    "server/update/source/link.c": "test_updates.c: outages of the log",
    "server/update/source/proof.c": "test_proof.c: as-of and leaders",
    "server/update/source/topics.c": "test_updates.c and test_proof.c: topics that come, go and are not listed",
    "server/update/sink/apply.c": "test_updates.c, test_fault_update.c",
    "server/update/sink/replay.c": "test_share.c: shards that lag, turn by turn",
    "server/update/stream/command.c": "test_updates.c and test_proof.c: pause, resume, seek, accept-gap",
    "server/update/stream/life.c": "test_updates.c: start, stop and restart",
    "server/update/stream/show.c": "test_proof.c, which asks the view and the metrics",
    "server/update/stream/start.c": "test_updates.c and test_proof.c: where partitions start, and gaps",
    "server/update/stream/turn.c": "test_updates.c, turn by turn",
    "server/lookup/prepare.c": "test_service.c, test_fault_lookup.c and test_lookup.py",
    "server/lookup/dispatch.c": "test_service.c, test_fault_lookup.c and test_lookup.py; what comes next: test_next.c",
    "server/lookup/decode_field.c": "test_decode.c: malformed bytes, and limits",
    "server/lookup/encode_head.c": "test_encode.c and test_encode_stream.c, as protobuf-c reads it",
    "server/lookup/explain.c": "test_service.c and test_lookup.py: notes of tiers and of keys",
    "server/lookup/handover.c": "test_service.c, test_fault_lookup.c and test_fault_unit_race.c",
    "server/lookup/reply.c": "test_service.c, test_fault_lookup.c and test_lookup.py",
    "server/lookup/request_pool.c": "test_service.c and test_fault_lookup.c",
    "server/kserve/http.c": "test_kserve_admin.py: every route, and bodies that are none",
    "server/kserve/metadata.c": "test_kserve_admin.py, by a stock client",
    "server/kserve/op.c": "test_kserve_admin.py: labels, unknown names",
    "server/kserve/repository.c": "test_kserve_admin.py, by a stock client",
    "server/kserve/service.c": "test_kserve_admin.py: who may call what",
    "server/kserve/statistics.c": "test_kserve_admin.py: counts that only rise",
    "server/model/pinned.c": "test_describe.c: one version or all, and nothing is held",
    "server/model/wait_service.c": "test_wait_for.py: over the wire, who may ask, and how calls end",
    "server/model/service.c": "test_model.py: over the wire, who may ask, and errors",
    "server/lookup/quota.c": "test_access.py, and test_limits.c what it counts",
    "server/lookup/room.c": "test_service_room.c: who waits for room, and for how long",
    "server/load/seed_shared.c": "test_loader.c",
    "server/load/refill.c": "test_loader.c: refills while a version serves",
    "server/load/records.c": "test_catalog.c, which opens what was written, and test_takeover.py",
    "server/load/warmup_run.c": "test_warmup.c: what is warmed up, and when it ends",
    "server/load/whole.c": "test_warmup.c and test_insertion.py: caches that hold a whole table",
    "server/catalog/gpu.c": "test_gpu.py: versions with and without room on a device",
    "server/catalog/configured.c": "test_catalog.c and test_kserve_admin.py; a first load: test_readiness.py",
    "server/catalog/definition.c": "test_catalog.c and test_definition.py: drift, entries that a load brings",
    "server/catalog/load.c": "test_catalog.c and test_versions.py",
    "server/catalog/model.c": "test_catalog.c: what is stored of a model",
    "server/catalog/notes.c": "test_definition.py: what a load prints before it begins",
    "server/catalog/ready.c": "test_readiness.c and test_readiness.py",
    "server/catalog/recover.c": "test_catalog.c, test_fault_catalog.c and test_restart.py",
    "server/catalog/request.c": "test_catalog.c and test_definition.py",
    "server/catalog/source.c": "test_load_tables.py and test_versions.py: which files may be read",
    "server/catalog/store_servers.c": "test_redis_status.py",
    "server/catalog/switch.c": "test_catalog.c and test_switching.py",
    "server/catalog/unload.c": "test_catalog.c and test_unload.py",
    "server/admin/service.c": "test_rpc.py and test_config.py: who may call what",
    "server/admin/models.c": "test_versions.py and test_walk.py (explain)",
    "server/admin/export.c": "test_export.py",
    "server/admin/snapshot.c": "test_snapshot.py",
    "server/admin/state.c": "test_tools.py and test_redis_status.py",
    "server/admin/updates.c": "test_updates.py and test_wait_for.py",
}

# Split, so that this file does not match itself.
WORDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
PLACES = re.compile(
    r"(?<![\w.])/(wo" r"rk|home|Us" r"ers|root)/|art" r"ifactory|\bnex" r"us\b|gop" r"roxy|jf" r"rog|"
    r"\b(registry|pypi|mirror|repo1?|proxy)\.[a-z-]+\.[a-z]{2,}", re.IGNORECASE)

SOURCES = re.compile(
    r"(\.(c|h|def|py|sh|proto|cmake|cc|cpp|cxx|cuh?|java|js|go|service|socket|yml|yaml|supp)|/CMakeLists\.txt|"
    r"/Containerfile|/conf\.d/.*)$|^(CMakeLists\.txt|dev|\.ci/run)$")
BINARY = re.compile(r"\.(png|npy|bin|raw|gz|pb|der)$|/corpus/")
SPDX = "SPDX-License-Identifier: Apache-2.0"


# ---- reading --------------------------------------------------------------------------------------

def files_of(root):
    """Relative paths of files that git tracks or would track; without git, all files."""
    try:
        out = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "-co", "--exclude-standard"],
            check=True, capture_output=True).stdout.decode()
        return sorted({path for path in out.split("\0") if path and os.path.isfile(os.path.join(root, path))})
    except (OSError, subprocess.CalledProcessError):
        pass
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [d for d in folders if d not in (".git", "__pycache__", "node_modules", ".cache")
                      and not (folder == root and d.startswith("build"))]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(found)


TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def blanked(text):
    """C text in which comments, strings and characters are replaced by spaces; lines keep their lengths."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return TOKEN.sub(blank, text)


def matches(path, allowed):
    return any(path == a or (a.endswith("*") and path.startswith(a[:-1])) for a in allowed)


# ---- checks: each yields (line, rule, text) ---------------------------------------------------------

def folder_of(path):
    """The folder with the rules for a file: its own folder or, for tests, benchmarks and similar files, the top
    folder."""
    folder = os.path.dirname(path)
    return folder if folder in INCLUDES else path.split("/")[0]


def check_folder(path):
    folder, top = os.path.dirname(path), path.split("/")[0]
    if folder not in INCLUDES and any(top == known.split("/")[0] for known in INCLUDES):
        yield 1, "folder", f"{folder}/: a folder that tests/lint/house.py does not list"


def check_includes(path, lines, used):
    folder = folder_of(path)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^">]+)[>"]', line)
        if not match:
            continue
        name = match.group(2)
        if match.group(1) == "<":
            yield from check_library(path, number, name, used)
            continue
        target = "proto" if GENERATED.match(name) else os.path.dirname(name)
        if path == PUBLIC_HEADER:
            yield number, "include", f"{name}: applications have {path} alone"
        elif name in OPENERS.get(path, ()):
            used.add(("opener", path, name))
        elif "/" not in name:
            yield number, "include", f'"{name}": includes are written from the root of the repository'
        elif target not in INCLUDES and target != "proto" and folder in INCLUDES:
            yield number, "include", f"{name}: a folder that tests/lint/house.py does not list"
        elif folder in INCLUDES and target != folder:
            used.add(("include", folder, target))
            if target not in INCLUDES[folder]:
                yield number, "include", f"{folder}/ may not include {name}"


def check_library(path, number, name, used):
    for pattern, allowed in LIBRARIES.items():
        if re.match(pattern, name):
            place = next((place for place in allowed if matches(path, [place])), None)
            used.add(("library", pattern, place))
            if place is None:
                yield number, "library", f"<{name}> belongs in {', '.join(allowed)} alone"
            return
    if not SYSTEM.match(name):
        yield number, "library", f"<{name}>: a library that tests/lint/house.py does not list"


def check_unused(files, used):
    """Permissions that no file uses. They would mislead readers."""
    here = "tests/lint/house.py"
    if here not in files:
        return  # a planted tree of the self-test
    for folder, targets in INCLUDES.items():
        for target in targets:
            if ("include", folder, target) not in used:
                yield here, 1, "unused", f"{folder}/ may include from {target}/, and does not"
    for pattern, places in LIBRARIES.items():
        for place in places:
            if ("library", pattern, place) not in used:
                yield here, 1, "unused", f"{place} may include {pattern}, and does not"
    for path, names in OPENERS.items():
        for name in names:
            if ("opener", path, name) not in used:
                yield here, 1, "unused", f"{path} may include {name}, and does not"
    for path in HEAP_IN:
        if ("heap", path) not in used:
            yield here, 1, "unused", f"{path} may call libc's heap, and does not"
    for path in SLEEPS_IN:
        if ("sleep", path) not in used:
            yield here, 1, "unused", f"{path} may sleep, and does not"
    for path in STORE_NAMES_IN:
        if ("store name", path) not in used:
            yield here, 1, "unused", f"{path} may name stores, and does not"
    for path in CXX_IN:
        if path not in files:
            yield here, 1, "unused", f"{path} may be C++, and is not there"


def check_calls(path, lines, used):
    banned = [(UNSAFE, "is unsafe, see base/")]
    if path not in HEAP_IN:
        banned.append((HEAP, "is for base/heap.c alone"))
    elif re.search(r"(?<![\w.>])(" + HEAP + r")\s*\(", "\n".join(lines)):
        used.add(("heap", path))
    if path in SLEEPS_IN and re.search(r"(?<![\w.>])(" + SLEEPS + r")\s*\(", "\n".join(lines)):
        used.add(("sleep", path))
    if path not in SLEEPS_IN:
        banned.append((SLEEPS, "waits for nothing: wait for what happens, or hps_thread_pause"))
    if path.startswith("tests/") and path != "tests/lib/tmpdir.c":
        banned.append(("mkdtemp", "is for tests/lib/tmpdir.c alone"))
    for names, why in banned:
        pattern = re.compile(r"(?<![\w.>])(" + names + r")\s*\(")
        for number, line in enumerate(lines, 1):
            for match in pattern.finditer(line):
                yield number, "banned call", f"{match.group(1)} {why}"


def check_tiers(path, lines):
    folder = folder_of(path)
    for number, line in enumerate(lines, 1):
        if folder in INCLUDES and folder not in READERS and STORE_READ.search(line):
            yield number, "store read", f"a store's {STORE_READ.search(line).group(1)} is for {', '.join(READERS)} alone"
        if folder in KINDLESS and KIND_TEST.search(line):
            yield number, "tier kind", "ask what the tier can: HPS_CAP_... of cache/version/tier.h"
        if folder in KINDLESS and STORES_LOOP.search(line):
            yield number, "tier loop", "leaves out the device: hps_version_tiers, or reports[] by kind"


def check_locks(path, lines):
    """Locks must have ranks: only base/lock.* may use the system's locks in product code."""
    if folder_of(path) not in INCLUDES or path in LOCKS_IN:
        return
    for number, line in enumerate(lines, 1):
        for match in re.finditer(rf"\b({LOCKS})\b", line):
            yield number, "lock", f"{match.group(1)} is for base/lock.h alone, where each lock has its rank"


def check_store_names(path, lines, used):
    if not path.startswith("server/"):
        return
    for number, line in enumerate(lines, 1):
        allowed = STORE_NAMES_IN.get(path, ("(?!)",))[0]
        if STORE_NAMES.search(line):
            used.add(("store name", path))
        match = STORE_NAMES.search(re.sub(allowed, "", line))
        if match:
            yield number, "store name", f"'{match.group()}': server/ asks for a store's role or capabilities"


def check_functions(path, lines):
    """Checks the length of functions. They open and close in column 0; clang-format ensures this."""
    opened, depth = 0, 0
    for number, line in enumerate(lines, 1):
        if opened == 0 and line.rstrip() == "{" and not lines[number - 2].startswith(("class ", "namespace")):
            opened, depth = number, 0
        if opened:
            depth += line.count("{") - line.count("}")
            if depth == 0:
                body = number - opened - 1
                head = " ".join(lines[max(0, opened - 6):opened - 1])
                names = re.findall(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*$", head.rstrip())
                name = names[-1] if names else "?"
                if body > FUNCTION_LINES_MAX:
                    yield (opened, "function length",
                           f"{name} has {body} lines, more than {FUNCTION_LINES_MAX}")
                opened = 0


FIELDS_MAX = 40
FEW_FIELDS = ("server/update", "backends/kafka", "net")  # folders in which structs must stay small
STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


def check_structs(root, files):
    """Structs with too many fields. Fields of a nested struct count if it is from the same top folder."""
    found = {}
    for path in (p for p in files if p.endswith((".c", ".h")) and folder_of(p) in INCLUDES):
        text = blanked(read(root, path))
        for match in STRUCT.finditer(text):
            found.setdefault(match.group(1), (path, text[:match.start()].count("\n") + 1, match.group(2)))

    def count(name):
        top = found[name][0].split("/")[0]
        fields = re.sub(r"\([^()]*\)\s*\([^()]*\)", "function", found[name][2]).split(";")[:-1]
        total = 0
        for field in fields:
            within = re.match(r"\s*(?:const )?struct (\w+) (?!\*)", field)
            nested = within and within.group(1) in found and found[within.group(1)][0].split("/")[0] == top
            inner = count(within.group(1)) if nested else 0
            total += (1 + inner) * (1 + field.count(","))
        return total
    for name, (path, number, _) in found.items():
        if path.startswith(FEW_FIELDS) and count(name) > FIELDS_MAX:
            yield path, number, "struct fields", f"struct {name} has {count(name)}, more than {FIELDS_MAX}"


def check_text(path, lines):
    for number, line in enumerate(lines, 1):
        if WORDS.search(line):
            yield number, "leftover", f"'{WORDS.search(line).group()}': finish it or leave it out"
        if PLACES.search(line) and path != "LICENSE":
            yield number, "place", f"'{PLACES.search(line).group()}' names one machine or site"


def check_columns(_, lines):
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS_MAX:
            yield number, "columns", f"{len(line)} columns, more than {LINE_COLUMNS_MAX}"


def check_language(path, lines):
    if path.endswith((".cc", ".cpp", ".cxx", ".hpp")):
        if path not in CXX_IN:
            yield 1, "language", f"C++ is for {', '.join(CXX_IN)} alone"
        if folder_of(path) in INCLUDES and len(lines) - 1 > CXX_LINES_MAX:
            yield 1, "language", f"{len(lines) - 1} lines of C++, more than {CXX_LINES_MAX}"


def check_length(path, lines):
    if folder_of(path) in INCLUDES and len(lines) - 1 > FILE_LINES_MAX:
        yield 1, "file length", f"{len(lines) - 1} lines, more than {FILE_LINES_MAX}"


def check_file(root, path, used):
    if BINARY.search(path):
        return
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        text = f.read()
    lines = text.split("\n")
    upstream = path.startswith("proto/grpc/") and "Licensed under the Apache License" in text[:1024]
    if SOURCES.search(path) and not upstream and not any(SPDX in line for line in lines[:3]):
        yield 1, "licence", f"no '{SPDX}' in the first three lines"
    yield from check_text(path, lines)
    yield from check_language(path, lines)
    if path.endswith((".c", ".h", ".cc", ".cu", ".cuh", ".def")):
        code = blanked(text).split("\n")
        yield from check_folder(path)
        yield from check_includes(path, lines, used)
        yield from check_calls(path, code, used)
        yield from check_tiers(path, code)
        yield from check_locks(path, code)
        yield from check_store_names(path, lines, used)
        yield from check_length(path, lines)
        yield from check_functions(path, code)
        if not path.endswith(".def"):
            yield from check_columns(path, lines)


def check_tests(files):
    for path in files:
        if path.split("/")[0] in TESTED and path.endswith((".c", ".cc")):
            test = f"tests/unit/{os.path.dirname(path)}/test_{os.path.splitext(os.path.basename(path))[0]}.c"
            if test in files and path in UNTESTED:
                yield path, 1, "untested", f"{test} is there: remove it from UNTESTED"
            elif test not in files and path not in UNTESTED:
                yield path, 1, "untested", f"no {test}, and no reason in UNTESTED"
    if "tests/lint/house.py" not in files:
        return  # a planted tree of the self-test
    there = {os.path.basename(path) for path in files if path.startswith("tests/")}
    for path, reason in UNTESTED.items():
        if path not in files:
            yield path, 1, "untested", "is not there: remove it from UNTESTED"
        tests = re.findall(r"\w+\.(?:c|py)\b", reason)
        if not tests:
            yield path, 1, "untested", "UNTESTED names no test"
        for test in tests:
            if test not in there:
                yield path, 1, "untested", f"UNTESTED names {test}, which is not there"


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


PATH = re.compile(r"(?<![\w/.-])((?:base|net|config|backends|cache|server|client|tools|tests|bench|docs|deploy|proto)/"
                  r"[\w/.-]+\.(?:c|h|cu|cuh|def|py|sh|proto))(?![\w*])")


def check_paths(root, files):
    """Documents and the list of fuzz targets may name only existing files."""
    there = {os.path.basename(path) for path in files}
    for path in files:
        if path.endswith((".md", "fuzz/targets.ini")):
            for number, line in enumerate(read(root, path).split("\n"), 1):
                missing = [name for name in PATH.findall(line) if name not in files]
                missing += [name for name in re.findall(r"(?<![\w/.-])\w+\.(?:c|cu|cuh)\b", line) if name not in there]
                for name in missing:
                    yield path, number, "document", f"{name} is not there"


def check_comments(root, files):
    """Comments may name only existing source files."""
    there = {os.path.basename(path) for path in files}
    for path in files:
        if path.endswith((".c", ".h", ".cc", ".cu", ".cuh")) and folder_of(path) in INCLUDES:
            for number, line in enumerate(read(root, path).split("\n"), 1):
                for name in re.findall(r"[\w-]+\.(?:cc?|cuh?)\b", line):
                    if name not in there:
                        yield path, number, "comment", f"{name} is not there"


def check_docs(root, files):
    """Documents must list every option and every metric."""
    for source, pattern, doc, what in (
            ("config/options.def", r"^OPTION\(\w+,\s*(\w+),", "docs/config.md", "option"),
            ("server/observe/metrics.h", r"^\s+X\(\w+, (?:COUNTER|GAUGE|HISTOGRAM), \"(\w+)\"",
             "docs/monitoring.md", "metric")):
        if source not in files:
            continue
        text = read(root, doc) if doc in files else ""
        for name in re.findall(pattern, read(root, source), re.MULTILINE):
            if not re.search(rf"`(hpsd_)?{name}(\{{[^`]*)?`", text):
                yield doc, 1, "document", f"the {what} {name} of {source} is missing"


DEFINITION = re.compile(r"^(?!static|typedef|enum)[a-z][\w *]*?\b(\w+)(?:\([^;{}]*\)\s*\{|\[\w*\]\s*=)", re.MULTILINE)


def check_circles(root, files):
    """Files of net/ that use each other's functions and tables in a cycle."""
    texts = {path: blanked(read(root, path)) for path in files if re.match(r"net/\w+\.c$", path)}
    home = {name: path for path, text in texts.items() for name in DEFINITION.findall(text)}
    uses = {path: {home[word] for word in set(re.findall(r"\w+", text)) if word in home} - {path}
            for path, text in texts.items()}

    def reached(path):
        seen, left = set(), [path]
        while left:
            new = uses[left.pop()] - seen
            seen |= new
            left += new
        return seen
    in_circle = {path for path in texts if path in reached(path)}
    for path in sorted(in_circle):
        others = sorted(other for other in in_circle if path in uses[other])
        yield path, 1, "file circle", f"uses files that use it, such as {others[0]}"


def check_tree(root):
    files = files_of(root)
    found, used = [], set()
    for path in files:
        found += [(path, *rest) for rest in check_file(root, path, used)]
    found += check_unused(files, used)
    found += check_tests(files)
    found += check_docs(root, files)
    found += check_structs(root, files)
    found += check_circles(root, files)
    found += check_paths(root, files)
    found += check_comments(root, files)
    return found


# ---- self-test --------------------------------------------------------------------------------------

C = f"/* {SPDX} */\n"
PLANTS = [  # rule, file, content
    ("include", "base/a.c", C + '#include "net/loop.h"\n'),
    ("include", "net/a.c", C + '#include "config/config.h"\n'),
    ("include", "config/a.c", C + '#include "net/loop.h"\n'),
    ("include", "backends/a.c", C + '#include "cache/lookup/tiers.h"\n'),
    ("include", "cache/version/a.c", C + '#include "server/observe/metrics.h"\n'),
    ("include", "cache/lookup/b.c", C + '#include "backends/rocksdb/rocksdb.h"\n'),
    ("include", "server/daemon.c", C + '#include "backends/rocksdb/rocksdb.h"\n'),
    ("include", "server/main.c", C + '#include "backends/rocksdb/internal.h"\n'),
    ("include", "backends/redis/a.c", C + '#include "backends/host/map.h"\n'),
    ("include", "base/j.c", C + '#include "base/rows/npy.h"\n'),
    ("include", "cache/update/a.c", C + '#include "cache/lookup/lookup.h"\n'),
    ("include", "cache/gpu/a.c", C + '#include "cache/device/sim/sim.h"\n'),
    ("include", "server/lookup/a.c", C + '#include "server/update/updates.h"\n'),
    ("include", "server/catalog/a.c", C + '#include "server/daemon.h"\n'),
    ("store name", "server/catalog/b.c", C + "struct hps_space *redis;\n"),
    ("store name", "server/load/a.c", C + "/* What RocksDB has. */\n"),
    ("store name", "server/daemon.c", C + "void f(struct host_map *map);\n"),
    ("store name", "server/admin/models.c", C + "int redis_bytes;\n"),
    ("folder", "cache/x/a.c", C),
    ("folder", "cache/a.c", C),
    ("folder", "server/nowhere/a.h", C),
    ("include", "net/c.c", C + '#include "cache/nowhere/a.h"\n'),
    ("include", "cache/lookup/c.c", C + '#include "hps/v1/lookup.pb-c.h"\n'),
    ("include", "client/hpsd.h", C + '#include "client/client.h"\n'),
    ("include", "server/a.c", C + '#include "client/client.h"\n'),
    ("include", "tools/a.c", C + '#include "server/observe/metrics.h"\n'),
    ("unused", "tests/lint/house.py", f"# {SPDX}\n"),
    ("untested", "tests/lint/house.py", f"# {SPDX}\n"),
    ("untested", "server/update/lonely.c", C),
    ("file circle", "net/a.c", [("net/a.c", C + "int a(void)\n{\n    return b();\n}\n"),
                                ("net/b.c", C + "const int c[2] = {1};\n\nint b(void)\n{\n    return d[0];\n}\n"),
                                ("net/d.c", C + "const int d[1] = {0};\n\nint e(void)\n{\n    return a();\n}\n")]),
    ("file length", "base/i.c", C + "int a;\n" * 801),
    ("include", "base/b.c", C + '#include "heap.h"\n'),
    ("library", "server/b.c", C + "#include <nghttp2/nghttp2.h>\n"),
    ("library", "cache/d.c", C + "#include <rocksdb/c.h>\n"),
    ("library", "backends/rocksdb/internal.h", C + "#include <rocksdb/listener.h>\n"),
    ("library", "backends/rocksdb/listener.cc", C + "#include <rocksdb/c.h>\n"),
    ("library", "net/d.c", C + "#include <string>\n"),
    ("language", "backends/rocksdb/more.cc", C),
    ("language", "backends/rocksdb/listener.cc", C + "int a;\n" * CXX_LINES_MAX),
    ("untested", "backends/rocksdb/listener.cc", C),
    ("library", "config/b.c", C + "#include <openssl/ssl.h>\n"),
    ("library", "base/c.c", C + "#include <glib.h>\n"),
    ("library", "tools/hps-x.c", C + "#include <getopt.h>\n"),  # base/args.h parses every command line
    ("banned call", "tests/unit/base/test_x.c", C + "void f(char *name)\n{\n    mkdtemp(name);\n}\n"),
    ("banned call", "base/d.c", C + "void *f(void)\n{\n    return malloc(1);\n}\n"),
    ("lock", "cache/lookup/e.c", C + "static pthread_mutex_t a;\n"),
    ("lock", "base/l.c", C + "void f(void *a)\n{\n    pthread_cond_wait(a, a);\n}\n"),
    ("lock", "base/m.c", C + "void f(void *a)\n{\n    mtx_lock(a);\n}\n"),
    ("lock", "backends/rocksdb/listener.cc", C + "static std::mutex a;\n"),
    ("lock", "server/c.h", C + "#define LOCK PTHREAD_MUTEX_INITIALIZER\n"),
    ("banned call", "net/b.c", C + "void f(char *a)\n{\n    strcpy(a, a);\n}\n"),
    ("banned call", "tests/unit/base/test_z.c", C + "void f(void)\n{\n    usleep(1);\n}\n"),
    ("banned call", "server/load/e.c", C + "void f(void)\n{\n    nanosleep(a, NULL);\n}\n"),
    ("banned call", "base/clock.c", C + "void f(void)\n{\n    (void)poll(NULL, 0, 1);\n}\n"),
    ("banned call", "tests/unit/base/test_z.c", C + "void f(void)\n{\n    poll(NULL, 0, 1);\n}\n"),
    ("store read", "server/load/b.c", C + "void f(void)\n{\n    space->store->ops->get(space, &call, t, &b);\n}\n"),
    ("store read", "server/admin/c.c", C + "void f(void)\n{\n    ops.get_many(space, &call, parts, 2);\n}\n"),
    ("store read", "server/load/d.c", C + "void f(void)\n{\n    read_fn *read = ops->get;\n}\n"),
    ("store read", "server/admin/e.c", C + "void f(void)\n{\n    (*ops->get)(space);\n}\n"),
    ("tier kind", "cache/lookup/i.c", C + "int f(int k)\n{\n    return k > HPS_TIER_GPU;\n}\n"),
    ("tier kind", "cache/lookup/e.c", C + "int f(int k)\n{\n    return k == HPS_TIER_HOST;\n}\n"),
    ("tier kind", "cache/lookup/f.c", C + "int f(int k)\n{\n    return HPS_TIER_GPU != k;\n}\n"),
    ("tier kind", "server/lookup/g.c", C + 'int f(void)\n{\n    return strcmp(space->store->ops->name, "redis");\n}\n'),
    ("tier loop", "server/lookup/h.c", C + "int f(void)\n{\n    return version->n_tiers;\n}\n"),
    ("licence", "base/e.c", "int x;\n"),
    ("licence", "tests/e2e/test_a.py", "import os\n"),
    ("function length", "base/f.c", C + "int long_one(int a)\n{\n" + "    a++;\n" * 71 + "}\n"),
    ("struct fields", "server/update/big.h", C + "struct a {\n    int a1, a2;\n};\nstruct b {\n" +
     "    struct a a;\n" * 14 + "};\n"),
    ("columns", "base/g.c", C + "int " + "a" * 100 + ";\n"),
    ("leftover", "base/h.c", C + "/* TO" "DO: later */\n"),
    ("place", "docs/a.md", "See /wo" "rk/main for more.\n"),
    ("place", "docs/b.md", "From https://regis" "try.example.org/x\n"),
    ("untested", "cache/version/lonely.c", C),
    ("comment", "base/k.c", C + "/* See nowhere.c. */\n"),
    ("document", "docs/c.md", "It is in `server/nowhere.c`.\n"),
    ("document", "config/options.def",
     C + 'OPTION(server, secret_knob, secret_knob, U32, none, "", "1", 0, 9, 0, "x")\n'),
    ("document", "server/observe/metrics.h", C + '    X(A, COUNTER, "secret_total", "", "x")\n'),
]
CLEAN = [
    ("net/loop.c", C + "#include <event2/event.h>\n#include <sys/un.h>\n" + '#include "base/heap.h"\n'),
    ("base/lock.c", C + "void f(void *a)\n{\n    pthread_mutex_lock(a);\n}\n"),
    ("tests/unit/base/test_lock.c", C + "void g(void *a)\n{\n    pthread_mutex_lock(a);\n}\n"),
    ("base/heap.c", C + "void *f(void)\n{\n    return malloc(1);\n}\n"),
    ("base/ok.c", C + '/* malloc(1) */\nconst char *s = "free(x)";\nvoid g(struct h *h)\n{\n'
                      "    h->free(h);\n    rocksdb_free(h);\n}\n"
                      "int short_one(int a)\n{\n" + "    a++;\n" * 70 + "}\n"),
    ("server/main.c", C + '#include "backends/rocksdb/rocksdb.h"\n'),
    ("cache/lookup/tiers.c", C + "/* != HPS_TIER_GPU */\nint f(void)\n{\n    ops->get(space, &call, table, &batch);\n"
                             "    return reports[HPS_TIER_HOST].n < HPS_TIER_COUNT;\n}\n"),
    ("server/admin/models.c", C + '#include "hps/v1/admin.pb-c.h"\n#include "server/catalog/catalog.h"\n'
                               "answer->redis_bytes_needed = plan.shared_bytes_needed;\n"),
    ("tests/unit/net/test_loop.c", C),
    ("tests/unit/cache/lookup/test_tiers.c", C),
    ("tests/unit/base/test_heap.c", C),
    ("tests/unit/base/test_ok.c", C),
]


def self_test():
    failures = 0
    for rule, path, content in [*PLANTS, *((None, *clean) for clean in CLEAN)]:
        root = tempfile.mkdtemp(prefix="house-")
        try:
            planted = content if isinstance(content, list) else [(path, content)]
            for name, text in CLEAN if rule is None else planted:
                os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                    f.write(text)
            found = check_tree(root)
        finally:
            shutil.rmtree(root)
        if rule is None and found:
            print(f"clean {path}: {found}")
            failures += 1
        elif rule is not None and rule not in {kind for _, _, kind, _ in found}:
            print(f"planted {rule} in {path}: not found ({found})")
            failures += 1
    print(f"{len(PLANTS)} planted violations, {len(CLEAN)} clean files, {failures} mistakes")
    return 1 if failures else 0


def main():
    if "--self-test" in sys.argv[1:]:
        return self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))))
    found = check_tree(root)
    for path, number, rule, text in found:
        print(f"{path}:{number}: {rule}: {text}")
    print(f"house: {len(found)} violations" if found else "house: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
