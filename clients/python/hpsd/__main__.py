# SPDX-License-Identifier: Apache-2.0
"""The command `python -m hpsd`."""
import sys

from .convert import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
