# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, by gRPC's codes: each error is also of the built-in class that it is like."""
from __future__ import annotations

from typing import Any, Dict, Tuple, Type

import grpc

SECONDS_MIN, SECONDS_MAX = 1e-6, 1e9


class Error(Exception):
    """A look-up failed. `code`: a grpc.StatusCode; `details`: what was expected and what is there."""

    def __init__(self, details: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(details)
        self.details = details
        self.code = code

    def __str__(self) -> str:
        return f"{self.details} [{self.code.name}]"

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.details, self.code)


class InvalidArgument(Error, ValueError):
    """The request is wrong; found here or by the server."""

    def __init__(self, details: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT) -> None:
        super().__init__(details, code)


class NotFound(Error, LookupError):
    """There is no such model, version or table; or, with unknown="error", no such key."""


class Unavailable(Error, ConnectionError):
    """No server could answer, however often it was tried within the deadline."""


class DeadlineExceeded(Error, TimeoutError):
    """A server was asked, and the answer did not come in time."""


class ResourceExhausted(Error):
    """The server has no room for the answer, or the caller is beyond its quota."""


class PermissionDenied(Error, PermissionError):
    """The caller has not the role for this model."""


class NotVisible(Error):
    """The updates that were waited for do not become visible. `outcome`: "rejected", "passed_over", "frozen", "paused",
    "gap", "failed", "no_topic", "unknown" or "version_ended"."""

    def __init__(self, details: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
                 outcome: str = "") -> None:
        super().__init__(details, code)
        self.outcome = outcome

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.details, self.code, self.outcome)


class Unauthenticated(Error, PermissionError):
    """The server knows the caller by nothing: no token, no certificate, or one that is not valid."""


class Unimplemented(Error, NotImplementedError):
    """This server cannot do that."""


def in_range(value: Any, what: str, least: float, most: float, expected: str, whole: bool = False) -> Any:
    """`value`, if it is a number that the next layer can hold, from `least` to `most`. Else, and for nan, raises
    InvalidArgument."""
    try:
        if least <= value <= most and (not whole or value == int(value)):
            return value
    except (TypeError, ValueError):
        pass
    raise InvalidArgument(f"{what}: got {value!r}, expected {expected} from {least} to {most}")


def seconds(value: Any, what: str, unit_s: float = 1) -> float:
    """A time that a call may take, in units of `unit_s`, as seconds. gRPC takes times of centuries for none at all."""
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


def error(code: grpc.StatusCode, details: str) -> Error:
    """The error of a gRPC code."""
    return _CLASSES.get(code, Error)(details, code)
