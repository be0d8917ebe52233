# SPDX-License-Identifier: Apache-2.0
"""Turns PTX of nvcc into C over the simulated device, so that its kernels can run without a GPU.

`translate.py KERNELS.ptx OUT.c`. Loads, stores, atomics and moves are translated here; every other instruction
becomes a call of the function of its name in ptx.h. What neither knows is an error: here, or of the C compiler,
which names the line of the PTX file. Standard library only.
"""
import re
import sys

TYPES = {"pred": "bool", "8": "uint8_t", "16": "uint16_t", "32": "uint32_t", "64": "uint64_t"}
SPECIAL = {"%tid.x": "hps_simt_here->thread", "%ctaid.x": "hps_simt_here->block",
           "%ntid.x": "hps_simt_here->block_threads", "%nctaid.x": "hps_simt_here->grid_blocks"}
SPACES = {"global", "shared", "param"}
ORDERS = {"relaxed": "RELAXED", "volatile": "RELAXED", "acquire": "ACQUIRE", "release": "RELEASE",
          "acq_rel": "ACQ_REL"}
ATOMICS = {"add": "fetch_add", "or": "fetch_or", "and": "fetch_and", "xor": "fetch_xor", "exch": "exchange_n",
           "cas": "cas"}
# Cache operators and scopes, which change no value; L1::... and L2::... are cache operators, too.
HINTS = {"ca", "cg", "cs", "lu", "wb", "wt", "nc", "cta", "cluster", "gpu", "sys", "weak"}
NO_RESULT = {"bar", "barrier"}
HEAD = """#include "tests/gpu/offline/ptx.h"

#include "cache/device/sim/run.h"
#include "tests/gpu/offline/bodies.h"
"""


class Unknown(Exception):
    """Something of PTX that is not translated."""


def type_of(name):
    """The C type of u32, b32, s32, f32 or pred: of the width."""
    return TYPES[name if name == "pred" else name[1:]]


def operand(text):
    """A register, a special register, a number or the address of the arguments or of shared memory."""
    if text in SPECIAL:
        return SPECIAL[text]
    if re.fullmatch(r"%?[a-z]+\d*", text):
        return text.lstrip("%")
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return f"UINT32_C(0x{text[2:]})"
    if re.fullmatch(r"-?\d+", text):
        value = int(text)
        return f"INT64_C({value})" if -2**63 < value < 2**63 else f"UINT64_C({value % 2**64})"
    if text.endswith("_param_0"):
        return "(uint64_t)(uintptr_t)args"
    if text == "hps_shared_memory":
        return "0"
    raise Unknown(f"operand {text}")


def split(text):
    """Operands; {a, b} is a single one."""
    return [part.strip() for part in re.findall(r"(?:\{[^}]*\}|[^,{])+", text)] if text.strip() else []


def parts_of(text):
    """The registers of {a, b}, or of a alone."""
    return [operand(part.strip()) for part in text.strip("{}").split(",")]


class Access:
    """A load, a store or an atomic: the parts of its name, and where it goes."""

    def __init__(self, name, address, line):
        words = name.split(".")
        self.type = type_of(words[-1])
        self.width = int(words[-1][1:]) // 8
        self.count, self.order, self.space, self.function = 1, None, "global", None
        for word in words[1:-1]:
            if word in SPACES:
                self.space = word
            elif word in ORDERS:
                self.order = ORDERS[word]
            elif word in ATOMICS and words[0] in ("atom", "red"):
                self.function = ATOMICS[word]
            elif re.fullmatch(r"v\d", word):
                self.count = int(word[1])
            elif word not in HINTS and "::" not in word:
                raise Unknown(f"{word} of {name}")
        if self.order and self.count > 1 or words[0] in ("atom", "red") and words[-1][0] == "f":
            raise Unknown(f"several values in order, or an atomic of floats: {name}")
        base, plus = re.fullmatch(r"\[([^\]+]+)(?:\+(-?\d+))?\]", address).groups()
        note = "WATCH_STORE" if words[0] != "ld" else "WATCH_LOAD_NC" if "nc" in words else "WATCH_LOAD"
        self.at = (f"ptx_{self.space}({operand(base)} + INT64_C({plus or 0}), {self.width * self.count}, "
                   f"{note}, {line})")


def load(name, operands, line):
    access, registers = Access(name, operands[1], line), parts_of(operands[0])
    if access.order:
        return f"{registers[0]} = __atomic_load_n(({access.type} *){access.at}, __ATOMIC_{access.order});"
    taken = " ".join(f"{register} = v[{i}];" for i, register in enumerate(registers))
    return f"{{ {access.type} v[{access.count}]; memcpy(v, {access.at}, sizeof(v)); {taken} }}"


def store(name, operands, line):
    access, registers = Access(name, operands[0], line), parts_of(operands[1])
    if access.order:
        return f"__atomic_store_n(({access.type} *){access.at}, {registers[0]}, __ATOMIC_{access.order});"
    values = ", ".join(f"({access.type}){register}" for register in registers)
    return f"{{ {access.type} v[] = {{{values}}}; memcpy({access.at}, v, sizeof(v)); }}"


def atomic(name, operands, line):
    if name.startswith("red."):
        operands = ["before", *operands]
    access, values = Access(name, operands[1], line), [operand(text) for text in operands[2:]]
    order, pointer = f"__ATOMIC_{access.order or 'RELAXED'}", f"({access.type} *){access.at}"
    if access.function == "cas":
        does = (f"before = {values[0]}; __atomic_compare_exchange_n({pointer}, &before, {values[1]}, false, {order}, "
                "__ATOMIC_RELAXED);")
    else:
        does = f"before = __atomic_{access.function}({pointer}, {values[0]}, {order});"
    return f"{{ {access.type} before; {does} {operand(operands[0])} = before; }}"


def move(name, operands):
    """Of a value; of the parts of one into registers, or the other way round."""
    to, value = parts_of(operands[0]), parts_of(operands[1])
    if name == "mov.pred":
        return f"{to[0]} = {value[0]} != 0;"
    width = int(name.split(".")[-1][1:])
    if len(to) > 1:
        each = width // len(to)
        return " ".join(f"{part} = (uint{each}_t)({value[0]} >> {i * each});" for i, part in enumerate(to))
    each = width // len(value)
    return f"{to[0]} = " + " | ".join(f"(uint{width}_t){part} << {i * each}" for i, part in enumerate(value)) + ";"


def instruction(text, line):
    """One instruction, without its predicate, in C."""
    name, rest = re.fullmatch(r"([\w.:]+)\s*(.*)", text).groups()
    kind, operands = name.split(".")[0], split(rest)
    if kind == "bra":
        return f"goto {operands[0].strip('$')};"
    if kind == "ret":
        return "return;"
    if kind in ("membar", "fence"):
        return "ptx_fence();"
    if kind in ("ld", "ldu"):
        return load(name, operands, line)
    if kind == "st":
        return store(name, operands, line)
    if kind in ("atom", "red"):
        return atomic(name, operands, line)
    if kind == "mov":
        return move(name, operands)
    if kind == "cvta":
        return f"{operand(operands[0])} = {operand(operands[1])};"
    if kind == "createpolicy": # of a cache
        return f"{operand(operands[0])} = 0;"
    function = "ptx_" + name.replace(".", "_").replace("::", "_")
    if kind in NO_RESULT:
        return f"{function}({', '.join(operand(text) for text in operands)});"
    arguments = [operand(text) for text in operands[1:]]
    arguments += ["0"] * (3 - len(arguments))
    to, _, also = operands[0].partition("|")
    if also: # a shuffle tells whether the lane exists
        also = f" {operand(also)} = true;"
    return f"{operand(to)} = {function}({', '.join(arguments)});{also}"


def statement(text, line):
    """One line of a kernel's body in C."""
    if match := re.fullmatch(r"\.reg \.(\w+)\s+%(\w+)<(\d+)>;", text):
        names = ", ".join(f"{match[2]}{i} = 0" for i in range(int(match[3])))
        return f"{type_of(match[1])} {names};"
    if match := re.fullmatch(r"\{ \.reg \.(\w+) (\w+); (.*;) \}", text): # from assembly within C
        return f"{{ {type_of(match[1])} {match[2]}; {statement(match[3], line)} (void){match[2]}; }}"
    if match := re.fullmatch(r"\$?(\w+):", text):
        return f"{match[1]}:;"
    if text.startswith(".pragma"):
        return ""
    if match := re.fullmatch(r"(?:@(!?)%(p\d+)\s+)?([a-z][^;]*);", text):
        guard = f"if ({match[1]}{match[2]}) " if match[2] else ""
        return f"{guard}{{ {instruction(match[3].strip(), line)} }}"
    raise Unknown("statement")


def kernel_of(symbol):
    """check_warp of _Z16check_warp_entry15check_warp_args."""
    return re.fullmatch(r"_Z\d+(\w+)_entry\d+\w+", symbol)[1]


def translate(path):
    """The C file, and how many kernels and instructions there are."""
    out, names, n = [HEAD], [], 0
    inside = False
    with open(path, encoding="utf-8") as f:
        for number, text in enumerate(f, 1):
            text = re.sub(r"//.*", "", text).strip()
            if match := re.match(r"(?:\.visible )?\.entry (\w+)\(", text):
                names.append(kernel_of(match[1]))
                out.append(f"static void {names[-1]}(const void *args)\n{{")
            elif text in ("{", "}") and names:
                inside = text == "{"
                out.append("" if inside else "}\n")
            elif inside and text:
                try:
                    out.append(f'#line {number} "{path}"\n    {statement(text, number)}')
                except (Unknown, KeyError, TypeError, AttributeError, IndexError) as error:
                    sys.exit(f"{path}:{number}: {text}: not translated ({error})")
                n += 1
    table = ", ".join(f'{{"{name}", {name}}}' for name in names)
    out.append(f"const struct offline_body offline_bodies[] = {{{table}}};\n"
               f"const size_t n_offline_bodies = {len(names)};\n")
    return "\n".join(out), len(names), n


if __name__ == "__main__":
    code, n_kernels, n_instructions = translate(sys.argv[1])
    with open(sys.argv[2], "w", encoding="utf-8") as out_file:
        out_file.write(code)
    print(f"{sys.argv[1]}: {n_kernels} kernels, {n_instructions} instructions")
