# SPDX-License-Identifier: Apache-2.0
"""hpsd.tensorflow and hpsd.hashing, compared with TensorFlow and Keras by ./dev frameworks."""
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, *path) for path in (("clients", "python"), ("tests", "python"), ("tests", "e2e"), ("tests", "lib"))]
from served import *  # noqa: E402,F401,F403  its fixtures
