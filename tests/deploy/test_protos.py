# SPDX-License-Identifier: Apache-2.0
"""Go's generator, which tests/clients runs, stops at a file without go_package."""
import glob
import os

PROTO = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "proto")


def test_protos_when_read_then_each_names_its_go_package():
    protos = glob.glob("**/*.proto", root_dir=PROTO, recursive=True)
    assert len(protos) > 5
    for name in protos:
        with open(os.path.join(PROTO, name), encoding="utf-8") as f:
            assert 'option go_package = "' in f.read(), name
