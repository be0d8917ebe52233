# SPDX-License-Identifier: Apache-2.0
"""A server that says of its updates what a test makes it say: for what the tools make of that."""
import time
from concurrent import futures

import grpc

from rig import admin_grpc, admin_pb, health_grpc, health_pb2


def now_ms():
    return round(time.time() * 1000)


def partition(topic, number=0, offset=10, state="running", **fields):
    """One that has read all there is, as its leader has said just now."""
    return admin_pb.PartitionUpdates(**{
        "topic": topic, "partition": number, "state": state, "offset": offset, "end_offset": max(offset, 0),
        "as_of_unix_ms": -1, "end_unix_ms": -1, "same_topic_unix_ms": -1, "passed_over_offset": -1,
        **fields})


def version(partitions, model="m", number=1, **fields):
    """An active one, connected, that has proved all."""
    return admin_pb.VersionUpdates(**{
        "model": model, "version": number, "lineage": "l", "active": True, "listed": True, "connected": True,
        "as_of_unix_ms": -1, "partitions": partitions, **fields})


def refusal(topic, offset, number=0, age_s=0.0, message="rows of 20 bytes, expected 16", reason="width"):
    return admin_pb.RejectedRecord(topic=topic, partition=number, offset=offset, reason=reason, message=message,
                                   unix_ms=now_ms() - round(age_s * 1000))


class Admin(admin_grpc.AdminServicer, health_grpc.HealthServicer):
    """Says of its versions what the lists of `says` hold, one after the other; the last one stays. An element is a list
    of versions, or a gRPC code with which the call fails, or what a function of the request returns. Times of -1 are
    those of the call."""

    def __init__(self, *says, tables=(("m", "t", 1),), key_bytes=8):
        self.says, self.tables, self.key_bytes = list(says), tables, key_bytes
        self.start_us = 77
        self.requests, self.changes = [], []

    def Check(self, request, context):
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    def GetUpdates(self, request, context):
        at_ms = now_ms()
        self.requests.append(request)
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        said = said(request) if callable(said) else said
        if isinstance(said, grpc.StatusCode):
            context.abort(said, "the update log does not answer: made up")
        reply = admin_pb.GetUpdatesResponse(versions=said, unix_ms=at_ms, process_start_us=self.start_us)
        for one in reply.versions:
            one.as_of_unix_ms = at_ms if one.as_of_unix_ms == -1 else one.as_of_unix_ms
            for part in one.partitions:
                for name in ("as_of_unix_ms", "end_unix_ms", "same_topic_unix_ms"):
                    if getattr(part, name) == -1:
                        setattr(part, name, at_ms)
        return reply

    def ListTables(self, request, context):
        return admin_pb.ListTablesResponse(key_bytes=self.key_bytes, tables=[
            admin_pb.TableInfo(model=model, version=1, table=table, dim=dim, data_type=(*dtype, "fp32")[0])
            for model, table, dim, *dtype in self.tables])

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
        health_grpc.add_HealthServicer_to_server(self, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()
        return self

    def __exit__(self, *_):
        self.server.stop(0).wait()
