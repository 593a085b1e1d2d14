"""A worker: clients in another process, which answer once a round for all of them, and end with their starter."""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import traceback
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import scipy.linalg  # noqa: F401 (its BLAS library has to be there when the threads are limited)
from flwr.app import Message
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import register
from flwr_fco.client_apps.training import forget_objectives
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.spec import Spec, Specified
from flwr_fco.simulation.grid import InProcessGrid
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.protocol import Downlink, Node
from flwr_fco.wire.uplink import Sent


def end_with(descriptor: int) -> None:
    """End this process, busy or hung, as soon as nobody can write to a pipe any more.

    The system closes a killed process's end of it. A parent that dies also sends a signal (PR_SET_PDEATHSIG), but the
    thread that started a worker may end long before its process does.

    Parameters
    ----------
    descriptor : int
        The pipe's end for reading; nothing is ever written to it.

    Examples
    --------
    >>> import subprocess, sys
    >>> code = "from flwr_fco.simulation import end_with; import os, time; ours, theirs = os.pipe(); end_with(ours)"
    >>> code += "; print('closes'); os.close(theirs); time.sleep(60)"
    >>> run = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
    >>> run.stdout.strip(), run.returncode != 0
    ('closes', True)
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


#: Where the arrays of a call lie in the shared memory: offset and length in bytes.
Spans = list[tuple[int, int]]
#: Arrays begin at multiples of this.
_ALIGNMENT = 64
#: Bytes of a vector up to which pickling it costs more than copying it.
_SMALL = 65_536


class Setup(NamedTuple):
    """What a worker must know of a run.

    Parameters
    ----------
    num_nodes : int
        Of the run, not of the worker.
    app : bytes
        The ClientApp, the run config, the function for the node configs, and what the user has registered: local
        solvers, and classes of regularizers and mirror maps; pickled by cloudpickle.
    """

    run_id: int
    num_nodes: int
    raise_errors: bool
    app: bytes


class Worker:
    """What a worker does, however it is called: by pipes, or as an actor of Ray's."""

    def __init__(self) -> None:
        self._grids: dict[int, InProcessGrid] = {}
        self._blas = single_threaded_blas()
        self._blas.__enter__()

    def begin(self, setup: Setup) -> None:
        """Prepare for a run."""
        app, run_config, node_config, methods, kinds = cloudpickle.loads(setup.app)
        for half in methods:
            # Without it the run ends in a sentence that names the method, if clients are asked for it.
            with suppress(ImportError, AttributeError):
                register(cloudpickle.loads(half))
        for kind in kinds:
            Specified._families[kind.family][kind.kind] = kind
        options = {"run_config": run_config, "node_config": node_config, "raise_errors": setup.raise_errors}
        self._grids[setup.run_id] = InProcessGrid(app, setup.num_nodes, run_id=setup.run_id, **options)

    def end(self, run_id: int) -> None:
        """Forget a run."""
        self._grids.pop(run_id, None)
        forget_objectives(run_id)

    def exchange(
        self,
        run_id: int,
        downlinks: Sequence[Downlink],
        letters: Sequence[tuple[int, int]],
        number: int,
        digest: str,
        introduced: tuple[Spec, str, AbstractSet[int]] | None,
    ) -> Any:
        """Answer as :meth:`InProcessGrid.exchange` does.

        Parameters
        ----------
        downlinks : sequence of Downlink
            Without the plan.
        letters : sequence of (int, int)
            Node ids, and which of the downlinks each gets.
        number : int
            The round.
        digest : str
            Of the plan.
        introduced : tuple of (Spec, str, set of int) or None
            The arguments of :meth:`InProcessGrid.introduce`.

        Returns
        -------
        Joined, or list of Sent or None
            None for a node that must be sent a message, because it lacks the plan or its state.
        """
        grid = self._grids[run_id]
        whole = [(Node(node_id, None), downlinks[i]) for node_id, i in letters]
        if introduced is not None:
            grid.introduce(*introduced)
        answers: Sequence[Sent | None] | None = grid.exchange(whole, number, digest)
        if answers is None:
            single = (grid.exchange([letter], number, digest) for letter in whole)
            answers = [None if answer is None else answer[0] for answer in single]
        return joined(answers)

    def deliver(self, run_id: int, messages: Sequence[Message]) -> list[Message | None]:
        """Answer messages."""
        with _flower.identity(run_id):
            return [self._grids[run_id].answer(message) for message in messages]

    def answer(self, call: tuple[Any, ...]) -> tuple[str, Any]:
        """Call a method; return ``("done", its result)`` or ``("raised", (the error, its cause))``.

        What a worker has no method for is asked of the run's grid.

        Parameters
        ----------
        call : tuple of (str, ...)
            The name and the arguments.
        """
        try:
            name, run, *others = call
            own = getattr(self, name, None)
            return "done", getattr(self._grids[run], name)(*others) if own is None else own(run, *others)
        except Exception as error:
            error.add_note(f"In a worker:\n{traceback.format_exc()}")
            cause = error.__cause__
            return "raised", (_sendable(error), None if cause is None else _sendable(cause))


class Joined(NamedTuple):
    """Answers of many small vectors: those of a name are the rows of one array, which is pickled once.

    Parameters
    ----------
    vectors : dict of str to ndarray, shape (answers, d)
        A row for each answer.
    others : list of Sent
        The answers without their vectors.
    """

    vectors: dict[str, NDArray[np.float64]]
    others: list[Sent]

    def apart(self) -> list[Sent | None]:
        """Return the answers."""
        for rows in self.vectors.values():
            rows.flags.writeable = False
        parts = ({name: rows[i] for name, rows in self.vectors.items()} for i in range(len(self.others)))
        return [Sent(vectors, *other[1:]) for other, vectors in zip(self.others, parts, strict=True)]


def joined(answers: Sequence[Sent | None]) -> Joined | list[Sent | None]:
    """Return answers in the form that pickles fastest; those that follow each other with equal numbers share them."""
    results, last = list[Sent | None](), None
    for answer in answers:
        sent = answer
        if sent is not None:
            if type(sent.content) is dict and sent.content == last:
                sent = sent._replace(content=last)
            last = sent.content
        results.append(sent)
    present = [answer for answer in results if answer is not None]
    if len(present) == len(results) > 1 and present[0].vectors:
        shapes = {name: getattr(vector, "shape", ()) for name, vector in present[0].vectors.items()}
        if all(_fits(answer.vectors, shapes) for answer in present):
            vectors = {name: np.array([answer.vectors[name] for answer in present]) for name in shapes}
            return Joined(vectors, [answer._replace(vectors={}) for answer in present])
    return results


def _fits(vectors: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether these are plain arrays, small, with these names and shapes."""
    return vectors.keys() == shapes.keys() and all(
        type(vector) is np.ndarray and vector.nbytes <= _SMALL and vector.shape == shapes[name]
        for name, vector in vectors.items()
    )


def _sendable(error: BaseException) -> BaseException:
    """Return an error as such that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        twin = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            twin.add_note(note)
        return twin
    return error


# --- by pipes and shared memory ------------------------------------------------------------------------------------


class SharedMemory:
    """Memory that a process and its children share; the operating system frees it with the last of them.

    Parameters
    ----------
    descriptor : int
        Of an open file.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.clear()

    def clear(self) -> None:
        """Begin at the start again: what was put here has been read."""
        self._end = 0
        # The arrays are kept too: an id is unique only as long as its object lives.
        self._written: dict[int, tuple[Any, tuple[int, int]]] = {}

    def put(self, buffers: Sequence[pickle.PickleBuffer]) -> Spans:
        """Write arrays, each of them once until :meth:`clear`."""
        spans = []
        for buffer in buffers:
            whose = memoryview(buffer).obj
            entry = self._written.get(id(whose))
            if entry is None:
                raw = buffer.raw()
                entry = whose, (self._end, raw.nbytes)
                self._written[id(whose)] = entry
                done = 0
                while done < raw.nbytes:
                    done += os.pwrite(self.descriptor, raw[done:], self._end + done)
                self._end += -(-raw.nbytes // _ALIGNMENT) * _ALIGNMENT
            spans.append(entry[1])
        return spans

    def take(self, spans: Spans) -> list[memoryview]:
        """Return copies of arrays."""
        copies = []
        for offset, size in spans:
            buffer = np.empty(size, np.uint8).data
            done = 0
            while done < size:
                count = os.preadv(self.descriptor, [buffer[done:]], offset + done)
                if not count:
                    raise EOFError("the shared memory ends")
                done += count
            copies.append(buffer)
        return copies


def frame(value: Any, memory: SharedMemory) -> bytes:
    """Return an object as bytes for a pipe; its arrays are written into shared memory."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.dumps((memory.put(buffers), text), protocol=5)


def receive(pipe: Connection, memory: SharedMemory) -> Any:
    """Read what :func:`frame` made; an EOFError or an OSError says that the other side is gone."""
    spans, text = pickle.loads(pipe.recv_bytes())
    return pickle.loads(text, buffers=memory.take(spans))


def main(arguments: Sequence[str]) -> None:
    """Answer calls from a pipe until it ends.

    Parameters
    ----------
    arguments : sequence of str
        The descriptors of the memory of questions, of that of answers, of the pipe, and of that which ends the worker.
    """
    *memories, descriptor, lifeline = map(int, arguments)
    end_with(lifeline)
    # Ctrl-C goes to all processes of a terminal; the one that was started by the user ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A program that a client starts, and that outlives the worker, would keep the pipe open.
    os.set_inheritable(descriptor, False)
    # What a client prints is seen beside the log.
    os.dup2(2, 1)
    pipe, (asked, answered) = Connection(descriptor), map(SharedMemory, memories)
    worker = Worker()
    with _flower.quiet():
        while True:
            try:
                call = receive(pipe, asked)
                answered.clear()
                pipe.send_bytes(frame(worker.answer(call), answered))
            except (EOFError, ConnectionError):
                os._exit(0)
