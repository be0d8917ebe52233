# SPDX-License-Identifier: Apache-2.0
"""Sums JUnit files into the line that CI reads: `N passed, N failed`. Exits 1 on a failure or a missing file. If there
is a FILE.again, it has second results of some tests of FILE, which count.

usage: tally.py [--failed] FILE...
       --failed: print the failed tests as pytest's arguments
"""
import os
import re
import sys
import xml.etree.ElementTree as ET


def results(path):
    """{(class name, name): "passed", "failed" or "skipped"}. A test may have a second entry, for an error at its end."""
    found = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        kinds, test = {child.tag for child in case}, (case.get("classname"), re.sub(r"@[^@\]]*$", "", case.get("name")))
        if kinds & {"failure", "error"} or case.get("status") == "fail":
            found[test] = "failed"
        elif "skipped" in kinds or case.get("status") in ("disabled", "notrun"):
            found.setdefault(test, "skipped")
        else:
            found.setdefault(test, "passed")
    return found


def main(paths):
    wants_failed, paths = paths[:1] == ["--failed"], [path for path in paths if path != "--failed"]
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for path in paths:
        try:
            found = results(path)
            if os.path.exists(f"{path}.again"):
                found.update(results(f"{path}.again"))
        except (OSError, ET.ParseError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            counts["failed"] += 1
            continue
        for (where, name), result in found.items():
            counts[result] += 1
            if result == "failed" and wants_failed:
                print(f"{where.replace('.', '/')}.py::{name}")
            elif result != "passed" and not wants_failed:
                print(f"{result}: {where} {name}")
    if not wants_failed:
        if counts["skipped"]:
            print(f"({counts['skipped']} skipped)")
        print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
