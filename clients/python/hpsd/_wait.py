# SPDX-License-Identifier: Apache-2.0
"""WaitForUpdates: wait until lookups see updates."""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

import grpc

from . import _messages
from .errors import DeadlineExceeded, InvalidArgument, NotVisible, in_range

Records = Iterable[Tuple[str, int, int]]  # topic, partition and offset, as the producer received them
_WORDS = {number: word for word, number in _messages.words("WaitOutcome", "WAIT_OUTCOME_").items()}
_GOALS = _messages.words("WaitGoal", "WAIT_GOAL_")


def request(model: str, version: int, records: Optional[Records]) -> Any:
    """hps.v1.WaitForUpdatesRequest without its time limit. records None: all records that are in the log now."""
    partitions: Dict[Tuple[str, int], List[int]] = {}
    made = _messages.WaitForUpdatesRequest(model=model, version=version, goal=_GOALS["now"])
    if records is None:
        return made
    made.goal = _GOALS["records"]
    for topic, partition, offset in records:
        in_range(partition, "records: partition", 0, 2**31 - 1, "a whole number", whole=True)
        in_range(offset, "records: offset", 0, 2**63 - 1, "a whole number", whole=True)
        partitions.setdefault((topic, int(partition)), []).append(int(offset))
    if not partitions:
        raise InvalidArgument("records: got none, expected (topic, partition, offset)")
    for (topic, partition), offsets in partitions.items():
        of = made.records.add(topic=topic, partition=partition)
        for offset in sorted(set(offsets)):
            if of.last and of.last[-1] == offset - 1:
                of.last[-1] = offset
            else:
                of.first.append(offset)
                of.last.append(offset)
    return made


def within(made: Any, left_s: float) -> bytes:
    """The serialised request, with a time limit that leaves time for the reply."""
    made.max_wait_ms = max(1, min(int(900 * left_s), 2**32 - 1))
    return bytes(made.SerializeToString())


def read(target: str, data: bytes) -> None:
    """Read hps.v1.WaitForUpdatesResponse. Raises DeadlineExceeded or NotVisible unless all updates are visible."""
    reply = _messages.read(_messages.WaitForUpdatesResponse, data)
    outcome = _WORDS.get(reply.outcome, str(reply.outcome))
    if outcome == "not_yet":
        raise DeadlineExceeded(f"{target}: not visible in time: {reply.text}", grpc.StatusCode.DEADLINE_EXCEEDED)
    if outcome != "visible":
        raise NotVisible(f"{target}: {reply.text}", outcome=outcome)
