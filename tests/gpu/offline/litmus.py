# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's memory model for PTX allows: the order in which kernels hand rows to the host, in litmus tests.

`litmus.py [--ptx KERNELS.ptx] FILE.litmus...` lists every execution of each small program. The axioms of the
PTX ISA, chapter "Memory Consistency Model", allow some of them. `~exists (...)` holds if the final state in
parentheses is never reached, `exists (...)` if it can be. --ptx: where a file names a kernel and instructions that
order memory, the kernel has them in this order. Exit code 1: a file does not say the truth. Standard library only.

Programs are straight lines of ld, st, atom...add, fence and bar.cta.sync with constants. All accesses are of one
size and through the generic proxy. A location has one writer, or writers that are pairwise morally strong: then
coherence is a total order.
"""
import argparse
import collections
import itertools
import re
import sys

SCOPES = ("cta", "gpu", "sys")
Thread = collections.namedtuple("Thread", "name cta gpu")
# kind: R, W, F or B (a barrier). order: weak, relaxed, acquire, release, acq_rel or sc. An atomic is an R and a W behind
# it, which adds `value` to what the R has read.
Event = collections.namedtuple("Event", "number thread kind order scope place value register atomic")


class Program:
    """A litmus file: events in program order, a condition, and whether it must be reachable."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        match = re.fullmatch(r'PTX \S+\n"[^"]*"\n\{([^}]*)\}\n(.*?)\n(~?)exists\s*\((.*)\)\s*', text, re.S)
        self.code = re.search(r"PTX of (\w+): ([^\"]*)\.\"", text)
        self.events, self.must_exist = [], not match[3]
        for place, value in re.findall(r"(\w+)\s*=\s*(\d+);", match[1]):
            self.add(None, "W", "weak", "sys", place, int(value))
        rows = [[cell.strip() for cell in row.split("|")] for row in match[2].replace("\n", "").split(";")]
        threads = [Thread(*re.fullmatch(r"(P\d+)@cta (\d+),gpu (\d+)", cell).groups()) for cell in rows[0]]
        for number, thread in enumerate(threads):
            for row in rows[1:]:
                if number < len(row) and row[number]:
                    self.parse(thread, row[number])
        self.condition = {(thread, register): int(value) for thread, register, value in
                          re.findall(r"(P\d+):(\w+) == (\d+)", match[4])}

    def add(self, *parts, register=None, atomic=False):
        parts += (None,) * (6 - len(parts))
        self.events.append(Event(len(self.events), *parts, register, atomic))

    def parse(self, thread, text):
        words = re.split(r"[ ,.]+", text)
        scope = next((word for word in words if word in SCOPES), None)
        if words[0] == "ld":
            self.add(thread, "R", words[1], scope, words[-1], register=words[-2])
        elif words[0] == "st":
            self.add(thread, "W", words[1], scope, words[-2], int(words[-1]))
        elif words[0] == "atom" and words[3] == "add":
            read = {"acq_rel": "acquire", "release": "relaxed"}.get(words[1], words[1])
            write = {"acq_rel": "release", "acquire": "relaxed"}.get(words[1], words[1])
            self.add(thread, "R", read, scope, words[-2], register=words[-3], atomic=True)
            self.add(thread, "W", write, scope, words[-2], int(words[-1]), atomic=True)
        elif words[0] == "fence":
            self.add(thread, "F", words[1], scope)
        elif words[:3] == ["bar", "cta", "sync"] and len(words) == 4:
            self.add(thread, "B", "barrier", "cta", words[3])
        else:
            raise ValueError(f"instruction {text}")


def join(first, second):
    """The relation of a to c where first has (a, b) and second (b, c)."""
    after = collections.defaultdict(set)
    for b, c in second:
        after[b].add(c)
    return {(a, c) for a, b in first for c in after[b]}


def closure(relation):
    """Its transitive closure."""
    while True:
        more = relation | join(relation, relation)
        if more == relation:
            return relation
        relation = more


class Model:
    """What holds in every execution of a program, and the axioms."""

    def __init__(self, program):
        self.events, events = program.events, program.events
        threads = [event for event in events if event.thread]
        pairs = list(itertools.permutations(threads, 2))
        self.order = {(a.number, b.number) for a, b in pairs if a.thread == b.thread and a.number < b.number}
        self.near = {(a.number, b.number) for a, b in itertools.permutations(events, 2) if a.place == b.place and
                     a.kind in "RW" and b.kind in "RW"}
        self.strong = {(a.number, b.number) for a, b in pairs if self.morally_strong(a, b)}
        self.updates = {(a.number, a.number + 1) for a in events if a.atomic and a.kind == "R"}
        self.barriers = {(a.number, b.number) for a, b in pairs if a.kind == b.kind == "B" and a.place == b.place and
                         a.thread[1:] == b.thread[1:]}
        # Patterns: (first operation, its write), (a read, the last operation).
        self.releases = {(w.number, w.number) for w in events if w.kind == "W" and w.order == "release"}
        self.acquires = {(r.number, r.number) for r in events if r.kind == "R" and r.order == "acquire"}
        for a, b in itertools.product(threads, threads):
            if (a.number, b.number) in self.order:
                releases = a.kind == "F" or (a.kind == "W" and a.order == "release" and a.place == b.place)
                if releases and b.kind == "W" and b.order != "weak":
                    self.releases.add((a.number, b.number))
                acquires = b.kind == "F" or (b.kind == "R" and b.order == "acquire" and a.place == b.place)
                if acquires and a.kind == "R" and a.order != "weak":
                    self.acquires.add((a.number, b.number))

    def morally_strong(self, a, b):
        """In program order, or both strong and each within the other's scope; memory operations of one place."""
        if a.kind in "RW" and b.kind in "RW" and a.place != b.place:
            return False
        if a.thread == b.thread:
            return True
        if "weak" in (a.order, b.order) or "B" in (a.kind, b.kind):
            return False
        scope = min(a.scope, b.scope, key=SCOPES.index)
        return scope == "sys" or (a.thread.gpu == b.thread.gpu and (scope == "gpu" or a.thread.cta == b.thread.cta))

    def allows(self, reads, coherence, fences):
        """reads: (write, read) pairs; coherence: of writes, total in each place; fences: the order of fence.sc."""
        observed = reads & self.strong
        observed = observed | join(closure(join(observed, self.updates)), observed)
        synchronizes = join(join(self.releases, observed), self.acquires) & self.strong
        base = closure(self.order | synchronizes | (fences & self.strong) | self.barriers)
        cause = base | join(observed, base)
        before = join({(r, w) for w, r in reads}, coherence)  # a read, and a write that overwrites its value
        communication = reads | coherence | before
        per_place = closure((self.order & self.near) | (communication & self.strong))
        return not (any((b, a) in cause & self.near for a, b in communication) or  # causality and coherence
                    any((b, a) in fences for a, b in cause) or
                    any(a == b for a, b in per_place) or
                    any((r, w) in join(before & self.strong, coherence & self.strong) for r, w in self.updates))


def values_of(events, source):
    """The value of each event; None: values out of thin air."""
    values = {}
    for _ in events:
        for event in events:
            if event.kind == "R" and source[event.number] in values:
                values[event.number] = values[source[event.number]]
            elif event.kind == "W" and (not event.atomic or event.number - 1 in values):
                values[event.number] = event.value + (values[event.number - 1] if event.atomic else 0)
    return values if all(event.number in values for event in events if event.kind in "RW") else None


def coherence_orders(model, writes):
    """Every total order of the writes of each place, the initial value first."""
    each = []
    for place in {write.place for write in writes}:
        first, *others = [write.number for write in writes if write.place == place]
        if any(pair not in model.strong for pair in itertools.permutations(others, 2)):
            raise ValueError(f"writes of {place} that are not morally strong")
        each.append([list(itertools.combinations((first, *order), 2)) for order in itertools.permutations(others)])
    for chosen in itertools.product(*each):
        yield {pair for order in chosen for pair in order}


def reachable(program):
    """Whether an execution that is allowed ends in the condition; and how many are allowed."""
    model = Model(program)
    reads = [event for event in program.events if event.kind == "R"]
    writes = [event for event in program.events if event.kind == "W"]
    fences = [event.number for event in program.events if event.kind == "F" and event.order == "sc"]
    sources = [[write.number for write in writes if write.place == read.place] for read in reads]
    found, n_allowed = False, 0
    for chosen in itertools.product(*sources):
        source = {read.number: write for read, write in zip(reads, chosen)}
        values = values_of(program.events, source)
        if values is None:
            continue
        final = {(read.thread.name, read.register): values[read.number] for read in reads}
        ends = all(final[at] == value for at, value in program.condition.items())
        pairs = {(write, read) for read, write in source.items()}
        if any(model.allows(pairs, coherence, set(itertools.combinations(order, 2)))
               for coherence in coherence_orders(model, writes) for order in itertools.permutations(fences)):
            n_allowed += 1
            found = found or ends
    return found, n_allowed


ORDERING = re.compile(r"^\s*(?:@\S+\s+)?((?:bar|atom|red|fence|membar|(?:ld|st)\.(?:relaxed|acquire|release))\.[\w.]+?)"
                      r"(?:\.[bus]\d+)?[;\s]", re.M)


def in_kernel(code, ptx):
    """Whether the kernel that a file names has the instructions that it names, with none that orders between them."""
    kernel = next((body for body in ptx.split(".entry ") if f"{code[1]}_entry" in body.split("(")[0]), "")
    return f" {code[2].replace(', ', ' ')} " in f" {' '.join(ORDERING.findall(kernel))} "


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ptx", type=argparse.FileType(encoding="utf-8"))
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    ptx = arguments.ptx.read() if arguments.ptx else None
    n_false = 0
    for path in arguments.files:
        program = Program(path)
        found, n_allowed = reachable(program)
        right = found == program.must_exist and n_allowed > 0
        says = f"the state {'can' if found else 'can never'} be reached ({n_allowed} allowed executions)"
        if ptx and program.code and not in_kernel(program.code, ptx):
            right, says = False, f"{says}; {program.code[1]} has not: {program.code[2]}"
        n_false += not right
        print(f"{path}: {'right' if right else 'WRONG'}: {says}")
    print(f"{len(arguments.files) - n_false} passed, {n_false} failed")
    return 1 if n_false else 0


if __name__ == "__main__":
    sys.exit(main())
