# SPDX-License-Identifier: Apache-2.0
"""The Python client is run from the tree."""
import os
import sys

# gRPC's own fork handler may hang the parent or abort the child. Before Python 3.10 subprocess forks, too.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "clients", "python"), os.path.join(ROOT, "tests", "e2e")]
from served import *  # noqa: E402,F401,F403  its fixtures
