# SPDX-License-Identifier: Apache-2.0
"""A fake server that reports the update states that a test chooses, for tests of the tools."""
import time
from concurrent import futures

import grpc

from rig import admin_grpc, admin_pb, health_grpc, health_pb2, pb, pb_grpc


def now_ms():
    return round(time.time() * 1000)


def partition(topic, number=0, offset=10, state="running", **fields):
    """A partition that has read all records, as its leader has just confirmed."""
    return admin_pb.PartitionUpdates(**{
        "topic": topic, "partition": number, "state": state, "offset": offset, "end_offset": max(offset, 0),
        "as_of_unix_ms": -1, "end_unix_ms": -1, "passed_over_offset": -1,
        **fields})


def version(partitions, model="m", number=1, **fields):
    """An active, connected version that has applied everything."""
    return admin_pb.VersionUpdates(**{
        "model": model, "version": number, "lineage": "l", "active": True, "listed": True, "connected": True,
        "as_of_unix_ms": -1, "partitions": partitions, **fields})


def refusal(topic, offset, number=0, age_s=0.0, message="rows of 20 bytes, expected 16", reason="width"):
    return admin_pb.RejectedRecord(topic=topic, partition=number, offset=offset, reason=reason, message=message,
                                   unix_ms=now_ms() - round(age_s * 1000))


class Admin(admin_grpc.AdminServicer, health_grpc.HealthServicer, pb_grpc.ParameterServerServicer):
    """Reports the elements of `says` one after the other; the last one is repeated. An element is a list of versions,
    or a gRPC code with which the call fails. Times of -1 become the time of the call. waits(request): the outcome of a
    wait and its text, or a gRPC code; tables: (name, dim, type)."""

    def __init__(self, *says, waits=lambda request: ("VISIBLE", ""), tables=(("t", 1, "FP32"),)):
        self.says, self.waits, self.tables = list(says), waits, tables
        self.requests, self.changes, self.waited = [], [], []

    def Check(self, request, context):
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    def GetUpdates(self, request, context):
        at_ms = now_ms()
        self.requests.append(request)
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, grpc.StatusCode):
            context.abort(said, "the update log does not answer: made up")
        reply = admin_pb.GetUpdatesResponse(versions=said, unix_ms=at_ms)
        for one in reply.versions:
            one.as_of_unix_ms = at_ms if one.as_of_unix_ms == -1 else one.as_of_unix_ms
            for part in one.partitions:
                for name in ("as_of_unix_ms", "end_unix_ms"):
                    if getattr(part, name) == -1:
                        setattr(part, name, at_ms)
        return reply

    def WaitForUpdates(self, request, context):
        self.waited.append(request)
        said = self.waits(request)
        if isinstance(said, grpc.StatusCode):
            context.abort(said, "made up")
        return pb.WaitForUpdatesResponse(outcome=pb.WaitOutcome.Value(f"WAIT_OUTCOME_{said[0]}"), text=said[1],
                                         key_bytes=8, mark=pb.UpdateMark(instance=77, rejected=5))

    def Lookup(self, request, context):
        for name, dim, dtype in self.tables:
            if name == request.queries[0].table:
                return pb.LookupResponse(results=[pb.TableResult(dim=dim, data_type=f"DATA_TYPE_{dtype}")])
        context.abort(grpc.StatusCode.NOT_FOUND, f"no table '{request.queries[0].table}'; its tables: t")

    def ListModels(self, request, context):
        return admin_pb.ListModelsResponse(models=[
            admin_pb.ModelInfo(model="m", active_version=1, versions=[admin_pb.VersionInfo(version=1)]),
            admin_pb.ModelInfo(model="n", active_version=2, versions=[admin_pb.VersionInfo(version=2)]),
            admin_pb.ModelInfo(model="none", versions=[admin_pb.VersionInfo(version=2)])])

    def ControlUpdates(self, request, context):
        self.changes.append(request)
        return admin_pb.ControlUpdatesResponse(partition_count=3)

    def ActivateVersion(self, request, context):
        self.changes.append(request)
        return admin_pb.ActivateVersionResponse(version=request.version, previous_version=2, pause_us=5)

    def RollbackModel(self, request, context):
        self.changes.append(request)
        return admin_pb.ActivateVersionResponse(version=1, previous_version=2, pause_us=5)

    def __enter__(self):
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        admin_grpc.add_AdminServicer_to_server(self, self.server)
        pb_grpc.add_ParameterServerServicer_to_server(self, self.server)
        health_grpc.add_HealthServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(0).wait()
