#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts phrases that make prose hard to read, and long lines of Markdown.

`english.py [ROOT]` prints each violation and exits 1 if there is any. `--list FILE...` prints the lines that count.
`--self-test` plants violations and checks that each is found. Standard library only.

The prose of a file: Markdown outside code; comments of C, C++, CUDA, protobuf and Python; docstrings; the strings of
product code that have at least three words, such as help and error messages. A file may have LIMIT phrases per 1,000
words, at least one, and no line of Markdown above COLUMNS columns outside tables, code and lines of one link.
english.allow lists the files that have more, as `PATH RULE COUNT`. Each number must equal the count, so that it only
falls; `--shrink` lowers it.
"""
import os
import re
import sys
import tempfile

from house import files_of

LIMIT = 4
COLUMNS = 100
ALLOW = "tests/lint/english.allow"
READ = re.compile(r"\.(c|h|cc|cu|cuh|proto|def|md|py)$")
SKIP = re.compile(r"(^|/)(build[^/]*|corpus|third_party|node_modules)/|^proto/grpc/|^tests/lint/english\.py$")
PRODUCT = re.compile(r"(backends|base|cache|clients?|config|net|proto|server|tools)/")

# A phrase here marks a sentence to write again: name the subject, use an active verb and the usual noun.
PHRASES = (
    "whoever", "nobody", "somebody", "anybody", "nothing of", "anew", "meanwhile", "beside(?!s)", "for ever",
    "(?:is|are|was|were|be|been) (?:asked|told|known of|heard|waited for|under way|of no|over|none|gone)",
    "asked for", "told of", "under way", "(?:goes?|went|going) on", "given back", "(?:gives?|giving|gave) way",
    "there is none", "(?:has|have) none", "(?:has|have|had) (?:come|gone)", "comes? to", "stands? (?:still|there|for|in)",
    "what (?:is|was|are|were|it|its|a|an|has|had|they|he|she|comes|came|goes|went|others|there)",
    "(?:of|for|by|with|and|but|from|than|that) what", "all that", "as (?:many|much|long) as there", "so (?:many|much)",
    "those (?:of|that|who|which)", "(?:that|one) of (?:the|those)", "of (?:those|whom|which)", "of its own", "the others",
    "who (?:is|has|had|was|waits|asks|wants|may|must|comes|reads|writes)", "whose", "may be had", "can be had",
    "is to be",
    "no (?:longer|more|later|sooner|older) than (?:so|that|it)", "as far as", "once more", "not there", "is legal",
    "look-ups?", "mend(?:s|ed|ing)?", "of late", "at hand",
)
BLANK = r"(?:[ \t]+|[ \t]*\n[ \t]*)"  # a phrase may continue on the next line
PATTERN = re.compile(r"\b(?:" + "|".join(PHRASES).replace(" ", BLANK) + r")\b", re.I)
STRING = r'"(?:\\.|[^"\\\n])*"'
C_TOKEN = re.compile(r"(?P<comment>/\*.*?\*/|//[^\n]*(?:\n[ \t]*//[^\n]*)*)|(?P<string>" + STRING + r"(?:[\s\\]*" + STRING +
                     r")*)|'(?:\\.|[^'\\\n])*'|^[ \t]*#[ \t]*include[^\n]*", re.S | re.M)
PY_TOKEN = re.compile(r'""".*?"""|(?:^|[ \t])#[ \t][^\n]*(?:\n[ \t]*#[ \t][^\n]*)*', re.S | re.M)
LINK = re.compile(r"\s*(?:[-*] |\d+\. )?(?:!?\[[^]]*\]\([^)]*\)|\[[^]]*\]: \S+|<?https?://\S+)[.,;]?\s*")
WORD = re.compile(r"[A-Za-z']+")


def markdown(text):
    """Yield the lines of Markdown; a line of code is empty."""
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        yield "" if fenced or fence or line.startswith("    ") else line
        fenced ^= fence


def prose(path, text):
    """Yield the parts of a file that people read: (offset, part). A part keeps its line breaks."""
    if path.endswith(".md"):
        yield 0, "\n".join(markdown(text))
    elif path.endswith(".py"):
        for found in PY_TOKEN.finditer(text):
            yield found.start(), re.sub(r"(?m)^[ \t]*#", "", found.group())
    else:
        for found in C_TOKEN.finditer(text):
            if found["comment"]:
                yield found.start(), re.sub(r"(?m)^[ \t]*(?:/\*+|//|\*+/?)|\*/$", "", found.group())
            elif found["string"] and PRODUCT.match(path):
                words = re.sub(r'\\[nt]|["\\]', " ", found.group())
                if len(WORD.findall(words)) >= 3:
                    yield found.start(), words


def inspect(path, text):
    """The number of words, and the violations {rule: [(line number, phrase)]}."""
    words, phrases = 0, []
    for offset, part in prose(path, text):
        part = re.sub(r"`[^`\n]*`", "x", re.sub(r".*SPDX.*", "", part))
        words += len(WORD.findall(part))
        phrases += [(text.count("\n", 0, offset) + part.count("\n", 0, match.start()) + 1, match.group())
                    for match in PATTERN.finditer(part)]
    long = [(number, f"{len(line)} columns") for number, line in enumerate(markdown(text), 1)
            if path.endswith(".md") and len(line) > COLUMNS and line.lstrip()[:1] != "|" and not LINK.fullmatch(line)]
    return words, {"phrases": phrases, "columns": long}


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def counts(root):
    """{(path, rule): count} of the files that break a rule, and what english.allow has."""
    found = {}
    for path in files_of(root):
        if READ.search(path) and not SKIP.search(path):
            words, marks = inspect(path, read(root, path))
            if len(marks["phrases"]) <= max(1, words * LIMIT // 1000):
                marks["phrases"] = []
            found.update({(path, rule): len(marks[rule]) for rule in marks if marks[rule]})
    lines = read(root, ALLOW).splitlines() if os.path.exists(os.path.join(root, ALLOW)) else ()
    return found, {(path, rule): int(count) for path, rule, count in map(str.split, lines)}


def check(root):
    """Yield (path, rule, text) of each violation."""
    found, allowed = counts(root)
    for key in sorted(found.keys() | allowed.keys()):
        count, limit = found.get(key, 0), allowed.get(key, 0)
        if count > limit:
            yield *key, f"{count}, {limit} allowed; see them: python3 tests/lint/english.py --list {key[0]}"
        elif count < limit:
            yield *key, f"{count}, {limit} in {ALLOW}: lower it: python3 tests/lint/english.py --shrink"


def shrink(root):
    found, allowed = counts(root)
    with open(os.path.join(root, ALLOW), "w", encoding="utf-8") as file:
        file.writelines(f"{path} {rule} {min(found[path, rule], limit)}\n"
                        for (path, rule), limit in sorted(allowed.items()) if (path, rule) in found)


# ---- the test of the test ---------------------------------------------------------------------------

BAD, LONG = "He is told.\nShe is told.\n", "word " * 21
CASES = [  # the rule that is broken, {path: text}
    ("phrases", {"a.md": BAD}),
    ("phrases", {"a.md": "It is\ntold. He is told."}),
    ("phrases", {"a.c": "int a; /* is\n * told */\nint b; // is\n// told\n"}),
    ("phrases", {"a.proto": "// is told\nint32 a = 1; // anew\n"}),
    ("phrases", {"a.py": '"""Is told."""\n# It is\n# told.\n'}),
    ("phrases", {"config/a.def": 'OPTION("a", "he is "\n    "told anew")\n'}),
    ("phrases", {"server/a.h": 'X(A, "he is " \\\n "told anew") \\\n'}),
    ("phrases", {"a.md": BAD, ALLOW: "a.md phrases 1\n"}),
    ("phrases", {"a.md": BAD, ALLOW: "a.md phrases 3\n"}),
    ("phrases", {"a.md": "Is told.\n" + "word\n" * 1000, ALLOW: "a.md phrases 1\n"}),
    ("phrases", {ALLOW: "gone.md phrases 2\n"}),
    ("columns", {"a.md": LONG}),
    ("columns", {"a.md": LONG, ALLOW: "a.md columns 2\n"}),
    (None, {"a.md": BAD, ALLOW: "a.md phrases 2\n"}),
    (None, {"a.md": "Is told.\n"}),
    (None, {"a.md": "Is told anew. Whoever, nobody.\n" + "word\n" * 996}),
    (None, {"a.md": f"```\n{BAD}{LONG}\n```\n    {LONG}\n| {LONG} |\n- [{LONG}](a.md)\n`is told` `is told`\n"}),
    (None, {"a.py": "# A comment.\nassert he is told and she is told\n"}),
    (None, {"tests/a.c": 'char *a = "he is told anew";\n', "tools/a.c": 'char *a = "is told", b = "anew";\n'}),
]


def self_test():
    failures = 0
    for rule, files in CASES:
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            found = list(check(root))
            if ALLOW in files:
                shrink(root)
            left = [text for *_, text in check(root) if "--shrink" in text]
        if {kind for _, kind, _ in found} != ({rule} if rule else set()) or left:
            print(f"{rule} {files}: {found} {left}")
            failures += 1
    print(f"{len(CASES)} trees, {failures} mistakes")
    return 1 if failures else 0


def main(arguments):
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if "--self-test" in arguments:
        return self_test()
    if "--shrink" in arguments:
        return shrink(root)
    if "--list" in arguments:
        for path in arguments[1:]:
            text = read("", path)
            for number, mark in sorted(sum(inspect(path, text)[1].values(), [])):
                print(f"{path}:{number}: [{' '.join(mark.split())}] {text.splitlines()[number - 1].strip()}")
        return 0
    found = list(check(arguments[0] if arguments else root))
    for path, rule, text in found:
        print(f"{path}: {rule}: {text}")
    print(f"english: {len(found)} violations" if found else "english: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
