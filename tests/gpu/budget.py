# SPDX-License-Identifier: Apache-2.0
"""Compares the registers, spills and loads in flight of every kernel with tests/gpu/budget.txt,
also for each variant of the kernels (tests/gpu/variants.txt).

`budget.py [--write]` compiles the kernels with nvcc for each processor, like the build, and reads
the output of ptxas. The check fails if a kernel exceeds its budget or has no budget. It also fails
if a kernel lacks 16-byte accesses that it should have, or if a budget has no kernel. A kernel of a
variant has the default budget, unless `kernel@variant` has its own. Without nvcc, the exit code is
77 and the kernels are not checked. Registers and loads in flight are compared only with the toolkit
that the file names, because each toolkit allocates differently. Spills are always compared.
nvdisasm (PyPI: nvidia-cuda-nvdisasm), on the PATH or next to nvcc, prints the machine code from
which loads in flight are counted. Without nvdisasm, they are not compared, and a message says so.
Standard library only.

`budget.py --ptx DIR` takes the PTX of all kernels from DIR, where the build for tests/gpu/offline has made it: nvcc then
compiles only this, in a third of the time.
`budget.py --code DIR` writes the machine code of the default to DIR/code_sm_90.sass and so on.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUDGET = os.path.join(ROOT, "tests/gpu/budget.txt")
VARIANTS = os.path.join(ROOT, "tests/gpu/variants.txt")
SOURCE = "cache/embed/kernels.cu"
PROCESSORS = [80, 90, 100]
VARIANT_PROCESSORS = [90]  # of the devices that they are measured on
SKIPPED = 77
LOOKUP = "hps_embed_kernel_lookup"
OF_TESTS = ("bench_", "check_")  # kernels with other names need a budget
HEADER = """# SPDX-License-Identifier: Apache-2.0
#
# What each kernel may take, written by `python3 tests/gpu/budget.py --write`: registers a thread,
# bytes spilled, 16-byte loads and stores in its code. Of the lookup kernel also how many such loads a
# warp has in flight at least, of ways and of rows, by the order of its machine code (-: unknown).
"""


def variants():
    """{name: definitions}; the name of the default is empty"""
    found = {"": []}
    with open(VARIANTS, encoding="utf-8") as f:
        for line in f:
            words = line.split()
            if words and words[0][0] != "#":
                found[words[0]] = words[1:]
    return found


def find_nvdisasm(nvcc):
    done = subprocess.run([nvcc, "--dryrun", SOURCE], capture_output=True, text=True, cwd=ROOT)
    top = re.search(r"TOP=(\S+)", done.stderr)
    beside = os.path.join(top.group(1), "bin/nvdisasm") if top else ""
    return shutil.which("nvdisasm") or (beside if os.access(beside, os.X_OK) else None)


def nvcc_version(nvcc):
    out = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"release (\d+\.\d+)", out).group(1)


def kernel_of(symbol):
    """hps_x in the mangled symbol of HPS_KERNEL(hps_x, ...), which has the length of the name
    before it."""
    for match in re.finditer(r"(\d+)(\w+)", symbol):
        for start in range(len(match.group(1))):
            name = match.group(2)[:int(match.group(1)[start:])]
            if name.endswith("_entry"):
                return name[:-len("_entry")]
    return symbol


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done


def in_flight(code):
    """The most 16-byte loads of ways and of rows that are issued before the first of them is used.
    A load that a store uses first belongs to a row; ways are read before."""
    instructions = re.findall(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", code)
    first_copy = next(i for i, (op, _) in enumerate(instructions) if op.startswith("STG.E.EF.128"))
    most = {"ways": 0, "rows": 0}
    for i, (op, operands) in enumerate(instructions):
        if not op.startswith("LDG.E.128"):
            continue
        base, n, kind = int(re.match(r"R(\d+)", operands).group(1)), 1, "ways"
        loaded = {f"R{base + word}" for word in range(4)}
        for later, used in instructions[i + 1:]:
            registers = re.findall(r"\bR\d+", used)
            if later.startswith("LDG.E.128") and not loaded & set(registers[1:]):
                n += 1
            reads = registers if re.match(r"ST|\w*SETP", later) else registers[1:]
            if loaded & set(reads):
                kind = "rows" if later.startswith("ST") else kind
                break
            if loaded & set(registers) or later in ("EXIT", "RET.REL.NODEC", "WARPSYNC.COLLECTIVE"):
                n = 0  # loaded for another path
                break
        if kind == "rows" or i < first_copy:
            most[kind] = max(most[kind], n)
    return [most["ways"], most["rows"]]


def compile_kernels(nvcc, processor, definitions, folder, ptx=None):
    """(the PTX, the compiled file, the output of ptxas)"""
    cubin, flags = os.path.join(folder, "kernels.cubin"), []
    source = ptx
    if ptx is None:
        source, ptx = SOURCE, os.path.join(folder, "kernels.ptx")
        flags = ["-std=c++20", "-O2", "-fmad=false", "-DHPS_CUDA", "-D_GNU_SOURCE", "-I", ROOT, *definitions, "-keep",
                 "-keep-dir", folder]
    return ptx, cubin, run([nvcc, *flags, f"-arch=sm_{processor}", "-Xptxas", "-v", "-cubin", source, "-o", cubin]).stderr


def write_code(nvcc, nvdisasm, path):
    for processor in PROCESSORS:
        with tempfile.TemporaryDirectory() as folder:
            _, cubin, _ = compile_kernels(nvcc, processor, [], folder)
            with open(os.path.join(path, f"code_sm_{processor}.sass"), "w", encoding="utf-8") as f:
                f.write(run([nvdisasm, "-c", "-ndf", cubin]).stdout)


def measure(nvcc, nvdisasm, processor, definitions, folder, ptx=None):
    """{kernel: [registers, spilled bytes, 16-byte loads, stores, ways in flight, rows in flight]}"""
    ptx, cubin, out = compile_kernels(nvcc, processor, definitions, folder, ptx)
    took, name = {}, None
    for line in out.split("\n"):
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = kernel_of(match.group(1))
            took[name] = [0, 0, 0, 0, "-", "-"]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            took[name][1] = int(match.group(1)) + int(match.group(2))
        elif match := re.search(r"Used (\d+) registers", line):
            took[name][0] = int(match.group(1))
    with open(ptx, encoding="utf-8") as f:
        for body in re.split(r"\.entry\s+", f.read())[1:]:
            took[kernel_of(body)][2:4] = [
                len(re.findall(r"ld\.global\.nc(?:\.L2::cache_hint)?\.v4\.[bu]32", body)),
                len(re.findall(r"st\.global(?:\.cs|\.wb)?\.v4\.[bu]32", body))]
    if nvdisasm is not None:
        for body in re.split(r"\n\.text\.", run([nvdisasm, "-c", "-ndf", cubin]).stdout)[1:]:
            if kernel_of(body) == LOOKUP:
                took[LOOKUP][4:6] = in_flight(body)
    return {name: numbers for name, numbers in took.items() if not name.startswith(OF_TESTS)}


def read_budget():
    toolkit, budget = None, {}
    with open(BUDGET, encoding="utf-8") as f:
        for line in f:
            words = line.split()
            if not words or words[0] == "#":
                continue
            if words[0] == "toolkit":
                toolkit = words[1]
            else:
                budget[words[0], words[1]] = [word if word == "-" else int(word) for word in words[2:8]]
    return toolkit, budget


def default_of(key):
    return key[0].partition("@")[0], key[1]


def write_budget(toolkit, measured):
    with open(BUDGET, "w", encoding="utf-8") as f:
        f.write(f"{HEADER}\ntoolkit {toolkit}\n\n")
        f.write(f"# {'kernel':<34} {'processor':<10} registers  spilled  loads  stores  ways  rows\n")
        for key, took in sorted(measured.items()):
            if key == default_of(key) or took != measured[default_of(key)]:
                registers, spilled, loads, stores, ways, rows = took
                f.write(f"{key[0]:<36} {key[1]:<10} {registers:>9} {spilled:>8} {loads:>6} {stores:>7} "
                        f"{ways:>5} {rows:>5}\n")


def compare(toolkit, measured):
    named, budget = read_budget()
    found = []
    for key in sorted(set(measured) | set(budget)):
        label = f"{key[0]} on {key[1]}"
        may = budget.get(key, budget.get(default_of(key)))
        if may is None or key not in measured:
            found.append(f"{label}: {'no budget' if may is None else 'a budget, but no kernel'}")
            continue
        took = measured[key]
        flight = f", {took[4]} ways and {took[5]} rows in flight" if took[4] != "-" else ""
        print(f"{label}: {took[0]} registers of {may[0]}, {took[1]} bytes spilled of {may[1]}, "
              f"{took[2]} + {took[3]} accesses of 16 bytes{flight}")
        if took[0] > may[0] and toolkit == named:
            found.append(f"{label}: {took[0]} registers, {may[0]} allowed")
        if took[1] > may[1]:
            found.append(f"{label}: {took[1]} bytes spilled, {may[1]} allowed")
        if (took[2] == 0 and may[2] > 0) or (took[3] == 0 and may[3] > 0):
            found.append(f"{label}: its 16-byte accesses are gone")
        for what, n, least in zip(("ways", "rows"), took[4:], may[4:]):
            if "-" not in (n, least) and n < least and toolkit == named:
                found.append(f"{label}: {n} loads of {what} in flight, {least} wanted")
    return found


def main():
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc is None:
        print("SKIPPED: there is no nvcc, the kernels' registers and spills were not checked")
        return SKIPPED
    toolkit, nvdisasm = nvcc_version(nvcc), find_nvdisasm(nvcc)
    if nvdisasm is None:
        print("SKIPPED in part: there is no nvdisasm, the order of loads and stores was not checked")
    if sys.argv[1:2] == ["--code"]:
        if nvdisasm is not None:
            write_code(nvcc, nvdisasm, sys.argv[2])
        return 0 if nvdisasm is not None else SKIPPED
    made, measured = sys.argv[2] if sys.argv[1:2] == ["--ptx"] else None, {}
    with tempfile.TemporaryDirectory() as folder:
        for variant, definitions in variants().items():
            for processor in VARIANT_PROCESSORS if variant else PROCESSORS:
                ptx = made and os.path.join(os.path.abspath(made), f"{variant or f'sm_{processor}'}.ptx")
                took = measure(nvcc, nvdisasm, processor, definitions, folder, ptx)
                for kernel, numbers in took.items():
                    name = f"{kernel}@{variant}" if variant else kernel
                    measured[name, f"sm_{processor}"] = numbers
    if "--write" in sys.argv[1:]:
        write_budget(toolkit, measured)
        return 0
    found = compare(toolkit, measured)
    for line in found:
        print(f"over budget: {line}")
    print(f"CUDA {toolkit}: {len(measured)} kernels and processors, {len(found)} over budget")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
