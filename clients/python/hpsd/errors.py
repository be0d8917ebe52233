# SPDX-License-Identifier: Apache-2.0
"""Errors by gRPC status code. Each class also derives from a similar built-in exception."""
from __future__ import annotations

from typing import Any, Dict, Tuple, Type

import grpc

SECONDS_MIN, SECONDS_MAX = 1e-6, 1e9


class Error(Exception):
    """A call failed. `code`: a grpc.StatusCode; `details`: the message."""

    def __init__(self, details: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(details)
        self.details = details
        self.code = code

    def __str__(self) -> str:
        return f"{self.details} [{self.code.name}]"

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.details, self.code)


class InvalidArgument(Error, ValueError):
    """The request is invalid. The client or the server found this."""

    def __init__(self, details: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(details, code)


class NotFound(Error, LookupError):
    """There is no such model, version or table; or, with unknown="error", no such key."""


class Unavailable(Error, ConnectionError):
    """No server could answer within the deadline, in spite of retries."""


class DeadlineExceeded(Error, TimeoutError):
    """A server got the request, but did not reply in time."""


class ResourceExhausted(Error):
    """The server has no capacity for the request, or the caller exceeds its quota."""


class PermissionDenied(Error, PermissionError):
    """The caller lacks the role for this model."""


class NotVisible(Error):
    """The awaited updates will not become visible. `outcome`: "rejected", "passed_over", "frozen", "paused",
    "gap", "failed", "no_topic", "unknown" or "version_ended"."""

    def __init__(self, details: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
                 outcome: str = "") -> None:
        super().__init__(details, code)
        self.outcome = outcome

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.details, self.code, self.outcome)


class Unauthenticated(Error, PermissionError):
    """The call has no valid token or certificate."""


class Unimplemented(Error, NotImplementedError):
    """The server does not support this."""


def in_range(value: Any, what: str, least: float, most: float, expected: str, whole: bool = False) -> Any:
    """Return `value` if it is a number from `least` to `most`. Otherwise, also for nan, raise InvalidArgument."""
    try:
        if least <= value <= most and (not whole or value == int(value)):
            return value
    except (TypeError, ValueError):
        pass
    raise InvalidArgument(f"{what}: got {value!r}, expected {expected} from {least} to {most}")


def seconds(value: Any, what: str, unit_s: float = 1) -> float:
    """Convert a timeout in units of `unit_s` to seconds. Values beyond SECONDS_MAX are errors: gRPC would treat them as
    no timeout."""
    unit = "seconds" if unit_s == 1 else "milliseconds"
    return float(in_range(value, what, SECONDS_MIN / unit_s, SECONDS_MAX / unit_s, unit)) * unit_s


_CLASSES: Dict[grpc.StatusCode, Type[Error]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}


def malformed(reason: object) -> Error:
    """The error for a reply that cannot be read."""
    return Error(f"the reply is malformed: {reason}", grpc.StatusCode.INTERNAL)


def error(code: grpc.StatusCode, details: str) -> Error:
    """The exception for a gRPC status code."""
    return _CLASSES.get(code, Error)(details, code)
