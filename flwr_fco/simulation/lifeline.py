"""Processes that end with the one that started them, which a kill leaves no time to tell them."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress


def end_with(descriptor: int) -> None:
    """End this process, busy or hung, as soon as nobody can write to a pipe any more.

    The system closes a killed process's end of it. A parent that dies also sends a signal (PR_SET_PDEATHSIG), but the
    thread that started a worker may end long before its process does.

    Parameters
    ----------
    descriptor : int
        The pipe's end for reading; nothing is ever written to it.
    """

    def wait() -> None:
        poll = select.poll()
        # No events are asked for, and a hang-up is always one.
        poll.register(descriptor, 0)
        while not poll.poll():
            continue
        os._exit(1)

    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        # The kernel's signal on Linux: compiled code may never let a thread of Python's run.
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=wait, name="flwr-fco-lifeline", daemon=True).start()
