"""Worker processes on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation.worker import SharedMemory, frame, receive
from flwr_fco.simulation.workers import Lost, Workers

#: Seconds that a worker gets to end on its own.
_PATIENCE = 2.0
#: Without the current directory, which Python puts before everything else.
_MAIN = "import sys; del sys.path[0]; from flwr_fco.simulation.worker import main; main(sys.argv[1:])"


class Processes(Workers):
    """Worker processes on this machine, called through pipes, with arrays in shared memory.

    Parameters
    ----------
    number : int, optional
        Number of workers; by default the number of cores that this process may use.

    Examples
    --------
    >>> with Processes(2) as workers:
    ...     print(len(workers.pids()))
    2
    """

    def __init__(self, number: int | None = None) -> None:
        super().__init__(available_cores() if number is None else number)
        if os.name != "posix":
            raise ConfigurationError("engine='processes' needs Linux or macOS; expected 'in-process' or 'ray' here")
        self._asked = SharedMemory(_memory())
        self._answered = [SharedMemory(_memory()) for _ in range(self.number)]
        #: Our ends of pipes, which the system closes where this process is killed; the workers end then.
        self._lifelines: dict[int, int] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._pipes: dict[int, Connection] = {}
        try:
            for worker in range(self.number):
                self._start(worker)
        except BaseException:
            self.close()
            raise

    def _start(self, worker: int) -> None:
        earlier = self._processes.get(worker)
        if earlier is not None:
            _end(earlier)
        # One for each: of several processes with the same end of a pipe the system tells one.
        lifeline, ours = map(_above_streams, os.pipe())
        theirs, self._pipes[worker] = (Connection(_above_streams(end.detach())) for end in socket.socketpair())
        descriptors = (self._asked.descriptor, self._answered[worker].descriptor, theirs.fileno(), lifeline)
        # A worker can import what this process can import, and computes on one core.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        try:
            self._processes[worker] = subprocess.Popen(
                [sys.executable, "-c", _MAIN, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**threads, **os.environ, "PYTHONPATH": paths},
                pass_fds=descriptors,
            )
        finally:
            os.close(lifeline)
            theirs.close()
            if worker in self._lifelines:
                os.close(self._lifelines[worker])
            self._lifelines[worker] = ours

    def _call(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        self._asked.clear()
        frames = {k: frame(call, self._asked) for k, call in calls.items()}
        try:
            for k, framed in frames.items():
                try:
                    self._pipes[k].send_bytes(framed)
                except OSError:
                    answers[k] = Lost(_end(self._processes[k]))
            for k in calls:
                if k not in answers:
                    try:
                        answers[k] = receive(self._pipes[k], self._answered[k])
                    except (OSError, EOFError):
                        answers[k] = Lost(_end(self._processes[k]))
        except BaseException:
            # Interrupted: pending output of the workers would be taken for answers to the next call.
            for k in calls:
                _end(self._processes[k])
            raise
        return answers

    def pids(self) -> list[int]:
        """Return the ids of the processes."""
        return [process.pid for _, process in sorted(self._processes.items())]

    def close(self) -> None:
        self.closed = True
        processes, self._processes = self._processes, {}
        for process in processes.values():
            _end(process)
        for pipe in self._pipes.values():
            pipe.close()
        for memory in (self._asked, *self._answered):
            if memory.descriptor >= 0:
                os.close(memory.descriptor)
                memory.descriptor = -1
        for worker in list(self._lifelines):
            os.close(self._lifelines.pop(worker))


def _end(process: subprocess.Popen[bytes]) -> str:
    """End a process, and return how it ended."""
    process.terminate()
    try:
        code = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _memory() -> int:
    """Return the descriptor of an unnamed file, in memory where the system supports it."""
    if hasattr(os, "memfd_create"):
        return _above_streams(os.memfd_create("flwr-fco"))
    with tempfile.TemporaryFile() as file:
        return _above_streams(os.dup(file.fileno()))


def _above_streams(descriptor: int) -> int:
    """Return a descriptor that is no standard stream's, which a worker has for itself and a daemon has closed."""
    if descriptor > 2:
        return descriptor
    import fcntl

    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
