# SPDX-License-Identifier: Apache-2.0
"""Client of hpsd: look up rows of embedding tables.

    import hpsd
    client = hpsd.connect("127.0.0.1:8601", model="dlrm")
    rows = client.lookup("items", [1, 2, 3])    # numpy in, numpy out; torch in, torch out

hpsd.serve() starts a daemon for a notebook or a test. hpsd.aio is the same client for asyncio. hpsd.torch has layers for PyTorch.
"""
from ._address import TLS
from ._answer import Answer, Status
from ._client import Client, connect
from ._flat import FlatAnswer
from ._model import Model, Position, Table, Version
from ._server import Server, serve
from .errors import (DeadlineExceeded, Error, InvalidArgument, NotFound, NotVisible, PermissionDenied,
                     ResourceExhausted, Unauthenticated, Unavailable, Unimplemented)

__version__ = "0.2.0"  # of all of hpsd: CMakeLists.txt reads it here
__all__ = [
    "Answer", "Client", "DeadlineExceeded", "Error", "FlatAnswer", "InvalidArgument", "Model", "NotFound", "NotVisible",
    "PermissionDenied", "Position", "ResourceExhausted", "Server", "Status", "TLS", "Table", "Unauthenticated", "Unavailable", "Unimplemented",
    "Version", "connect", "serve",
]
