# SPDX-License-Identifier: Apache-2.0
# Rows of the keys 0, 1, 2 with stock grpcio. Once: protoc -I proto --python_out=. hps/v1/lookup.proto
import sys

import grpc
import numpy as np
from hps.v1 import lookup_pb2 as pb

address, model, table = sys.argv[1:4]
with grpc.insecure_channel(address) as channel:
    lookup = channel.unary_unary("/hps.v1.ParameterServer/Lookup",
                                 pb.LookupRequest.SerializeToString, pb.LookupResponse.FromString)
    keys = np.arange(3, dtype="<i8")
    query = pb.TableQuery(table=table, keys=keys.tobytes())
    result = lookup(pb.LookupRequest(model=model, queries=[query]), timeout=5).results[0]
    rows = np.frombuffer(result.rows, "<f4").reshape(result.row_count, result.dim)
    print(rows)
