# SPDX-License-Identifier: Apache-2.0
"""Sums JUnit files into the line that CI reads: `N passed, N failed`. Exits 1 on a failure or a missing file."""
import sys
import xml.etree.ElementTree as ET


def main():
    passed = failed = skipped = 0
    for path in sys.argv[1:]:
        try:
            cases = list(ET.parse(path).getroot().iter("testcase"))
        except (OSError, ET.ParseError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            failed += 1
            continue
        for case in cases:
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"} or case.get("status") == "fail":
                failed += 1
                print(f"failed: {case.get('classname')} {case.get('name')}")
            elif "skipped" in kinds or case.get("status") in ("disabled", "notrun"):
                skipped += 1
                print(f"skipped: {case.get('classname')} {case.get('name')}")
            else:
                passed += 1
    if skipped:
        print(f"({skipped} skipped)")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
