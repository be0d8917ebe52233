# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, checked over the whole tree.

`house.py [ROOT]` prints one line per violation (file:line: rule: what) and exits 1 if there is any.
`house.py --self-test` plants one violation of every rule in a temporary tree and checks that each is
found: a lint that finds nothing proves nothing. Standard library only.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# ---- the rules ------------------------------------------------------------------------------------

# Which folders a folder may include from. base <- net, config <- backends <- cache <- server, and
# tools -> client -> net, base; who speaks a message includes proto.
INCLUDES = {
    "base": {"base"},
    "net": {"net", "base"},
    "config": {"config", "base"},
    "backends": {"backends", "net", "base"},
    "cache": {"cache", "backends", "base"},
    "server": {"server", "cache", "backends", "config", "net", "base", "proto"},
    "client": {"client", "net", "base", "proto"},
    "tools": {"tools", "client", "config", "net", "base", "proto"},
}
ANYTHING = {"tests", "bench"}
GENERATED = re.compile(r"^(hps/v1|grpc/(health|reflection)/\w+)/\w+\.pb-c\.h$")

# The concrete stores: everybody else knows backends/store.h.
CONCRETE_STORES = {"backends/host_map.h", "backends/kafka.h", "backends/rocksdb.h"}
CONCRETE_STORES_IN = {"server/main.c", "server/stores.c"}

# One third-party library, one file; every exception with its reason.
LIBRARIES = {
    r"nghttp2/": {"net/http2.c": "HTTP/2 sessions of both roles"},
    r"event2/": {
        "net/loop.c": "the event loop",
        "net/http1.c": "evhttp parses HTTP/1.1 of probes and scrapers",
    },
    r"openssl/": {"net/tls.c": "TLS"},
    r"zlib\.h": {
        "net/gzip.c": "compressed gRPC messages",
        "tests/unit/net/test_grpc_server.c": "compresses as a foreign client does",
    },
    r"jansson\.h": {
        "config/parse.c": "ps.json",
        "config/manifest.c": "manifest.json of a model directory",
    },
    r"rocksdb/": {
        "backends/rocksdb.c": "the store on SSD",
        "bench/bench_rocksdb.c": "compares with RocksDB as it comes",
        "bench/bench_update.c": "compares with RocksDB as it comes",
        "tests/unit/backends/test_rocksdb.c": "makes databases that are not ours, or damaged",
    },
    r"librdkafka/": {
        "backends/kafka_internal.h": "the log of updates, in the files that include it",
        "client/producer.c": "the producer of updates",
        "tests/lib/mock_kafka.c": "brokers within the test program",
    },
    r"systemd/": {"server/notify.c": "readiness, watchdog, passed sockets"},
    r"cuda_runtime\.h": {"cache/device_cuda.cu": "the device layer over the CUDA runtime"},
    r"sanitizer/": {
        "base/poison.h": "marks pooled memory that nobody owns",
        "cache/sanitize.h": "tells of the simulated device's order and stacks",
    },
    r"protobuf-c/": {
        "client/message.h": "unpacking for every message of the client",
        "client/message.c": "with its allocator from base/heap.h",
        "server/message.h": "unpacking for every message of the server",
        "server/message.c": "with its allocator from base/heap.h",
    },
    r"hiredis/": {
        "backends/redis_codec.c": "replies and commands of Redis",
        "bench/bench_redis.c": "compares with hiredis as it comes",
    },
    r"cmocka\.h": {"tests/*": "the test library"},
    r"grpc\+\+/|grpcpp/|absl/|boost/": {"bench/*": "the peers to compare with"},
}
SYSTEM = re.compile(
    r"^(sys|net|netinet|arpa|linux)/\w+\.h$|^(assert|complex|ctype|dirent|dlfcn|endian|errno|execinfo|"
    r"fcntl|fenv|float|fnmatch|ftw|getopt|glob|grp|immintrin|inttypes|limits|locale|malloc|math|netdb|nmmintrin|"
    r"poll|pthread|pwd|regex|sched|semaphore|setjmp|signal|spawn|stdalign|stdarg|stdatomic|stdbool|"
    r"stddef|stdint|stdio|stdlib|stdnoreturn|string|strings|syscall|termios|time|uchar|ucontext|unistd|threads|"
    r"wchar|x86intrin)\.h$")

HEAP = r"malloc|calloc|realloc|reallocarray|free|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign"
HEAP_IN = {
    "base/heap.c": "the one caller of libc's heap",
    "tests/lib/fault_heap.c": "the failing heap stands where libc's heap stands",
}
UNSAFE = r"strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atoll|atof|rand|srand|system|popen"
SLEEPS = r"sleep|usleep|nanosleep|clock_nanosleep"

FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS = {}  # "file.c:function": reason
LINE_COLUMNS_MAX = 100

TESTED = ("base", "net", "config", "backends", "cache")
UNTESTED = {  # no test file of that name: where it is tested instead
    "net/grpc_call.c": "test_grpc_server.c and test_grpc_client.c: the part that both roles share",
    "backends/kafka_consumer.c": "test_kafka.c",
    "backends/kafka_letters.c": "log_contract.c, and test_kafka_log.py with a broker",
    "backends/kafka_offsets.c": "log_contract.c and test_kafka_leaders.c",
    "backends/kafka_recall.c": "log_contract.c and test_kafka_leaders.c",
    "backends/kafka_topics.c": "log_contract.c and test_kafka_leaders.c, and test_kafka_log.py with a broker",
    "backends/redis_conn.c": "test_redis_cluster.c, plain and over TLS, by real servers",
    "backends/redis_keeper.c": "test_fault_redis.c: servers that come back are found",
    "backends/redis_node.c": "test_redis_cluster.c and test_fault_redis.c",
    "cache/version.c": "test_models.c, which pins and switches versions",
    "cache/sim_memory.c": "test_device_sim.c, which copies past its ends",
    "cache/embed_kernels.c": "test_embed_cache.c, which launches them all against a dictionary",
    "cache/embed_region.c": "test_embed_batch.c, whose look-ups write to regions",
    "cache/embed_slice.c": "test_embed_stage.c and test_embed_cache.c: what was applied is looked up",
    "cache/gpu_change.c": "test_gpu_tier.c, through the tier that they are parts of",
    "cache/gpu_lookup.c": "test_gpu_tier.c",
    "cache/gpu_space.c": "test_gpu_tier.c",
    "cache/update_plan.c": "test_update.c: what a batch comes to is seen in the tiers",
    "cache/update_state.c": "test_update.c, which opens versions again",
}

# Written in pieces, so that this file does not find itself.
WORDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
PLACES = re.compile(
    r"(?<![\w.])/(wo" r"rk|home|Us" r"ers|root)/|art" r"ifactory|\bnex" r"us\b|gop" r"roxy|jf" r"rog|"
    r"\b(registry|pypi|mirror|repo1?|proxy)\.[a-z-]+\.[a-z]{2,}", re.IGNORECASE)

SOURCES = re.compile(
    r"(\.(c|h|def|py|sh|proto|cmake|cpp|cuh?|java|js|go|service|socket|yml|yaml|supp)|/CMakeLists\.txt|"
    r"/Containerfile|/conf\.d/.*)$|^(CMakeLists\.txt|dev|\.ci/run)$")
BINARY = re.compile(r"\.(png|npy|bin|raw|gz|pb|der)$|/corpus/")
SPDX = "SPDX-License-Identifier: Apache-2.0"


# ---- reading --------------------------------------------------------------------------------------

def files_of(root):
    """Paths of the tree, relative: what git tracks or would track; without git, everything."""
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
    """C text with comments, strings and characters blanked, line by line as long as before."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group())
    return TOKEN.sub(blank, text)


def matches(path, allowed):
    return any(path == a or (a.endswith("/*") and path.startswith(a[:-1])) for a in allowed)


# ---- checks: each yields (line, rule, text) ---------------------------------------------------------

def check_includes(path, lines):
    folder = path.split("/")[0]
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        name = match.group(2)
        if match.group(1) == "<":
            yield from check_library(path, number, name)
            continue
        target = "proto" if GENERATED.match(name) else name.split("/")[0]
        if "/" not in name:
            yield number, "include", f'"{name}": includes are written from the root of the repository'
        elif folder in INCLUDES and target not in INCLUDES[folder]:
            yield number, "include", f"{folder}/ may not include {name}"
        elif (name in CONCRETE_STORES and folder not in ANYTHING | {"backends"}
              and path not in CONCRETE_STORES_IN):
            yield number, "include", f"{name}: stores are known through backends/store.h"


def check_library(path, number, name):
    for pattern, allowed in LIBRARIES.items():
        if re.match(pattern, name):
            if not matches(path, allowed):
                yield number, "library", f"<{name}> belongs in {', '.join(allowed)} alone"
            return
    if not SYSTEM.match(name):
        yield number, "library", f"<{name}>: a library that tests/lint/house.py does not list"


def check_calls(path, lines):
    banned = [(UNSAFE, "is unsafe, see base/")]
    if path not in HEAP_IN:
        banned.append((HEAP, "is for base/heap.c alone"))
    if path.startswith("tests/"):
        banned.append((SLEEPS, "makes tests slow and flaky: wait for what happens"))
    for names, why in banned:
        pattern = re.compile(r"(?<![\w.>])(" + names + r")\s*\(")
        for number, line in enumerate(lines, 1):
            for match in pattern.finditer(line):
                yield number, "banned call", f"{match.group(1)} {why}"


def check_functions(path, lines):
    """Functions open and close in column 0 (tests/lint relies on clang-format for that)."""
    opened, depth = 0, 0
    for number, line in enumerate(lines, 1):
        if opened == 0 and line.rstrip() == "{":
            opened, depth = number, 0
        if opened:
            depth += line.count("{") - line.count("}")
            if depth == 0:
                body = number - opened - 1
                head = " ".join(lines[max(0, opened - 6):opened - 1])
                names = re.findall(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*$", head.rstrip())
                name = names[-1] if names else "?"
                if body > FUNCTION_LINES_MAX and f"{path}:{name}" not in LONG_FUNCTIONS:
                    yield (opened, "function length",
                           f"{name} has {body} lines, more than {FUNCTION_LINES_MAX}")
                opened = 0


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


def check_file(root, path):
    if BINARY.search(path):
        return
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
        text = f.read()
    lines = text.split("\n")
    upstream = path.startswith("proto/grpc/") and "Licensed under the Apache License" in text[:1024]
    if SOURCES.search(path) and not upstream and not any(SPDX in line for line in lines[:3]):
        yield 1, "licence", f"no '{SPDX}' in the first three lines"
    yield from check_text(path, lines)
    if path.endswith((".c", ".h", ".cu", ".cuh", ".def")):
        code = blanked(text).split("\n")
        yield from check_includes(path, lines)
        yield from check_calls(path, code)
        yield from check_functions(path, code)
        if not path.endswith(".def"):
            yield from check_columns(path, lines)


def check_tests(files):
    tests = {os.path.basename(path) for path in files if path.startswith("tests/")}
    for path in files:
        folder, _, name = path.partition("/")
        if folder in TESTED and name.endswith(".c") and "/" not in name:
            if f"test_{name}" not in tests and path not in UNTESTED:
                yield path, 1, "untested", f"no tests/**/test_{name}"
    for path in UNTESTED:
        if path.split("/")[1] in {t[5:] for t in tests} and path in files:
            yield path, 1, "untested", "has a test now: remove it from UNTESTED"


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def check_docs(root, files):
    """Documents list each option, each metric."""
    for source, pattern, doc, what in (
            ("config/options.def", r"^OPTION\(\w+,\s*(\w+),", "docs/config.md", "option"),
            ("server/metrics.h", r"^\s+X\(\w+, (?:COUNTER|GAUGE|HISTOGRAM), \"(\w+)\"",
             "docs/operations.md", "metric")):
        if source not in files:
            continue
        text = read(root, doc) if doc in files else ""
        for name in re.findall(pattern, read(root, source), re.MULTILINE):
            if not re.search(rf"`(hpsd_)?{name}(\{{[^`]*)?`", text):
                yield doc, 1, "document", f"the {what} {name} of {source} is missing"


def check_tree(root):
    files = files_of(root)
    found = []
    for path in files:
        found += [(path, *rest) for rest in check_file(root, path)]
    found += check_tests(files)
    found += check_docs(root, files)
    return found


# ---- the test of the test ---------------------------------------------------------------------------

C = f"/* {SPDX} */\n"
PLANTS = [  # rule, file, content
    ("include", "base/a.c", C + '#include "net/loop.h"\n'),
    ("include", "net/a.c", C + '#include "config/config.h"\n'),
    ("include", "config/a.c", C + '#include "net/loop.h"\n'),
    ("include", "backends/a.c", C + '#include "cache/tiers.h"\n'),
    ("include", "cache/a.c", C + '#include "server/metrics.h"\n'),
    ("include", "cache/b.c", C + '#include "backends/rocksdb.h"\n'),
    ("include", "cache/c.c", C + '#include "hps/v1/lookup.pb-c.h"\n'),
    ("include", "server/a.c", C + '#include "client/client.h"\n'),
    ("include", "tools/a.c", C + '#include "server/metrics.h"\n'),
    ("include", "base/b.c", C + '#include "heap.h"\n'),
    ("library", "server/b.c", C + "#include <nghttp2/nghttp2.h>\n"),
    ("library", "cache/d.c", C + "#include <rocksdb/c.h>\n"),
    ("library", "config/b.c", C + "#include <openssl/ssl.h>\n"),
    ("library", "base/c.c", C + "#include <glib.h>\n"),
    ("banned call", "base/d.c", C + "void *f(void)\n{\n    return malloc(1);\n}\n"),
    ("banned call", "net/b.c", C + "void f(char *a)\n{\n    strcpy(a, a);\n}\n"),
    ("banned call", "tests/unit/base/test_z.c", C + "void f(void)\n{\n    usleep(1);\n}\n"),
    ("licence", "base/e.c", "int x;\n"),
    ("licence", "tests/e2e/test_a.py", "import os\n"),
    ("function length", "base/f.c", C + "int long_one(int a)\n{\n" + "    a++;\n" * 71 + "}\n"),
    ("columns", "base/g.c", C + "int " + "a" * 100 + ";\n"),
    ("leftover", "base/h.c", C + "/* TO" "DO: later */\n"),
    ("place", "docs/a.md", "See /wo" "rk/main for more.\n"),
    ("place", "docs/b.md", "From https://regis" "try.example.org/x\n"),
    ("untested", "cache/lonely.c", C),
    ("document", "config/options.def",
     C + 'OPTION(server, secret_knob, secret_knob, U32, none, "", "1", 0, 9, 0, "x")\n'),
    ("document", "server/metrics.h", C + '    X(A, COUNTER, "secret_total", "", "x")\n'),
]
CLEAN = [
    ("net/loop.c", C + "#include <event2/event.h>\n#include <sys/un.h>\n" + '#include "base/heap.h"\n'),
    ("base/heap.c", C + "void *f(void)\n{\n    return malloc(1);\n}\n"),
    ("base/ok.c", C + '/* malloc(1) */\nconst char *s = "free(x)";\nvoid g(struct h *h)\n{\n'
                      "    h->free(h);\n    rocksdb_free(h);\n}\n"
                      "int short_one(int a)\n{\n" + "    a++;\n" * 70 + "}\n"),
    ("server/main.c", C + '#include "backends/rocksdb.h"\n#include "hps/v1/admin.pb-c.h"\n'),
    ("tests/unit/net/test_loop.c", C),
    ("tests/unit/base/test_heap.c", C),
    ("tests/unit/base/test_ok.c", C),
]


def self_test():
    failures = 0
    for rule, path, content in [*PLANTS, *((None, *clean) for clean in CLEAN)]:
        root = tempfile.mkdtemp(prefix="house-")
        try:
            for name, text in CLEAN if rule is None else [(path, content)]:
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
