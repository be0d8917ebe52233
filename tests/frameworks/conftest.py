# SPDX-License-Identifier: Apache-2.0
"""The Python client's layers, and pooled lookups, compared with PyTorch and TorchRec by ./dev frameworks."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, *path) for path in (("clients", "python"), ("tests", "python"), ("tests", "e2e"), ("tests", "interop"))]
from served import *  # noqa: E402,F401,F403  its fixtures
