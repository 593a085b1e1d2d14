"""Delivery of messages: sends them and waits for replies, without the long pauses of Flower's grids."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_fco.wire import flower as _flower

#: Seconds between two checks for replies: a fraction of the time waited so far, within bounds. A round of 20 s, which
#: is common over a SuperLink, ends at most .2 s late.
_SHARE, _SHORTEST, _LONGEST = 0.01, 0.01, 1.0


def send_and_receive(grid: Grid, messages: Iterable[Message], timeout: float | None) -> list[Message]:
    """Send messages and return the replies that arrive within `timeout` seconds, as ``grid.send_and_receive`` does.

    None waits for all replies. Flower's grids check for replies every 3 s (over HTTP) or every .1 s (in a simulation).
    Here the pauses grow with the time waited so far, from 10 ms to 1 s. A grid that overrides ``send_and_receive`` uses
    its own method.
    """
    if not _flower.polls(grid):
        return list(grid.send_and_receive(messages, timeout=timeout))
    replies: list[Message] = []
    waiting, began = {number for number in grid.push_messages(messages) if number}, time.monotonic()
    while waiting:
        arrived = list(grid.pull_messages(waiting))
        replies += arrived
        waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
        waited = time.monotonic() - began
        left = _LONGEST if timeout is None else timeout - waited
        if not waiting or left <= 0.0:
            break
        pause = max(_SHORTEST, _SHARE * waited)
        # At least the resolution of the clock.
        time.sleep(max(1e-4, min(pause, _LONGEST, left)))
    return replies
