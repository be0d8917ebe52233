# SPDX-License-Identifier: Apache-2.0
"""Reports of all tests."""


def pytest_terminal_summary(terminalreporter):
    """Print why the first attempts of tests failed that passed on the second, like failures."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first attempt of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for name, text in report.sections:
            terminalreporter.section(name, "-")
            terminalreporter.write_line(text)
