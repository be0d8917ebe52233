# SPDX-License-Identifier: Apache-2.0
"""The registers and spills of every kernel, against tests/gpu/budget.txt.

`budget.py [--write]` compiles the kernels with nvcc for each processor, as the build does, and reads
what ptxas says. A kernel over its budget, without one, or without 16-byte accesses that it should have
fails; so does a budget without its kernel. Without nvcc: exit 77, nothing was checked. Registers are
compared only with the toolkit that the file names, as each allocates a little differently; spills
always. Standard library only.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUDGET = os.path.join(ROOT, "tests/gpu/budget.txt")
SOURCES = ["cache/embed/kernels.cu"]
PROCESSORS = [80, 90, 100]
SKIPPED = 77
HEADER = """# SPDX-License-Identifier: Apache-2.0
#
# What each kernel may take, written by `python3 tests/gpu/budget.py --write`: registers a thread,
# bytes spilled, 16-byte loads and stores in its code.
"""


def nvcc_version(nvcc):
    out = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"release (\d+\.\d+)", out).group(1)


def kernel_of(symbol):
    """hps_x of HPS_KERNEL(hps_x, ...), whose symbol is mangled with its length before it."""
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
    return done.stderr


def measure(nvcc, source, processor, folder):
    """{kernel: [registers, spill bytes]}, {kernel: [16-byte loads, stores]}"""
    flags = ["-std=c++20", "-O2", "-fmad=false", "-DHPS_CUDA", "-D_GNU_SOURCE", "-I", ROOT]
    out = run([nvcc, *flags, f"-gencode=arch=compute_{processor},code=sm_{processor}", "-Xptxas", "-v",
               "-c", source, "-o", os.path.join(folder, "kernels.o")])
    took, name = {}, None
    for line in out.split("\n"):
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            name = kernel_of(match.group(1))
            took[name] = [0, 0]
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            took[name][1] = int(match.group(1)) + int(match.group(2))
        elif match := re.search(r"Used (\d+) registers", line):
            took[name][0] = int(match.group(1))
    ptx = os.path.join(folder, "kernels.ptx")
    run([nvcc, *flags, f"-arch=compute_{processor}", "-ptx", source, "-o", ptx])
    wide = {}
    with open(ptx, encoding="utf-8") as f:
        for body in re.split(r"\.entry\s+", f.read())[1:]:
            wide[kernel_of(body)] = [len(re.findall(r"ld\.global\.nc\.v4\.[bu]32", body)),
                                     len(re.findall(r"st\.global\.cs\.v4\.[bu]32", body))]
    return took, wide


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
                budget[words[0], words[1]] = [int(word) for word in words[2:6]]
    return toolkit, budget


def write_budget(toolkit, measured):
    with open(BUDGET, "w", encoding="utf-8") as f:
        f.write(f"{HEADER}\ntoolkit {toolkit}\n\n")
        f.write(f"# {'kernel':<30} {'processor':<10} registers  spilled  loads  stores\n")
        for (kernel, processor), (registers, spilled, loads, stores) in sorted(measured.items()):
            f.write(f"{kernel:<32} {processor:<10} {registers:>9} {spilled:>8} {loads:>6} {stores:>7}\n")


def compare(toolkit, measured):
    named, budget = read_budget()
    found = []
    for key in sorted(set(measured) | set(budget)):
        label = f"{key[0]} on {key[1]}"
        if key not in budget or key not in measured:
            found.append(f"{label}: {'no budget' if key not in budget else 'a budget, but no kernel'}")
            continue
        took, may = measured[key], budget[key]
        print(f"{label}: {took[0]} registers of {may[0]}, {took[1]} bytes spilled of {may[1]}, "
              f"{took[2]} + {took[3]} accesses of 16 bytes")
        if took[0] > may[0] and toolkit == named:
            found.append(f"{label}: {took[0]} registers, {may[0]} allowed")
        if took[1] > may[1]:
            found.append(f"{label}: {took[1]} bytes spilled, {may[1]} allowed")
        if (took[2] == 0 and may[2] > 0) or (took[3] == 0 and may[3] > 0):
            found.append(f"{label}: its 16-byte accesses are gone")
    return found


def main():
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc is None:
        print("SKIPPED: there is no nvcc, the kernels' registers and spills were not checked")
        return SKIPPED
    toolkit = nvcc_version(nvcc)
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for source in SOURCES:
            for processor in PROCESSORS:
                took, wide = measure(nvcc, source, processor, folder)
                for kernel, numbers in took.items():
                    measured[kernel, f"sm_{processor}"] = numbers + wide.get(kernel, [0, 0])
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
