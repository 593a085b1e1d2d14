"""Workers of any kind, and the grid whose nodes live in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import Any, Self

import cloudpickle
from flwr.app import Message
from flwr.clientapp import ClientApp

from flwr_fco.algorithms.contract import halves
from flwr_fco.client_apps.app import training_handler
from flwr_fco.core.logs import log
from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import AT_LEAST_ONE, checked
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.simulation.grid import InProcessGrid
from flwr_fco.simulation.worker import Joined, Setup
from flwr_fco.wire.protocol import Downlink, Node

#: Number of times that a call is repeated because its worker died.
_REPEATS = 2
#: App size in bytes above which the app probably carries its data.
_LARGE_APP = 8 * 2**20


class Lost:
    """Stands for the answer of a worker that died."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Workers(ABC):
    """Workers that outlive a run, so that sweeps can share them.

    Parameters
    ----------
    number : int
        Number of workers.
    """

    def __init__(self, number: int) -> None:
        self.number = checked("workers", number, int, AT_LEAST_ONE)
        self._runs: dict[int, Setup] = {}
        #: Whether the workers have been closed.
        self.closed = False

    def __enter__(self) -> Self:
        """Return the workers."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the workers."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End all workers, including busy ones."""

    @abstractmethod
    def _start(self, worker: int) -> None:
        """Start a worker, or its replacement."""

    @abstractmethod
    def _call(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Push one call to each of some workers; return their ``(what, value)``, or :class:`Lost`."""

    def ask(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call some workers at once, and wait for all of them.

        A worker that dies is replaced, and its call is made again.

        Parameters
        ----------
        calls : mapping of int to tuple
            A method's name and arguments, by worker.

        Returns
        -------
        dict of int to Any
            The methods' return values, by worker.

        Raises
        ------
        Exception
            The first worker's exception, if a method raised one.
        FlwrFcoError
            If workers have died repeatedly in the same call.
        """
        answers: dict[int, Any] = {}
        left = dict(calls)
        for attempt in range(_REPEATS + 1):
            latest = self._call(left)
            answers.update(latest)
            left = {k: left[k] for k, answer in latest.items() if isinstance(answer, Lost)}
            if not left:
                break
            for k in left:
                reason = answers[k].reason
                if attempt == _REPEATS:
                    raise FlwrFcoError(
                        f"worker {k} died {_REPEATS + 1} times in the same call: {reason}. Its clients need more "
                        "memory than there is, or end their process; engine='in-process' shows where"
                    )
                log(WARNING, "simulate: worker %s died (%s); its clients run again in another one", k, reason)
                self._start(k)
                for setup in self._runs.values():
                    self._call({k: ("begin", setup)})
        for k in sorted(answers):
            what, value = answers[k]
            if what == "raised":
                error, cause = value
                raise error from cause
        return {k: value for k, (_, value) in answers.items()}

    def begin(self, setup: Setup) -> None:
        """Announce a run to all workers.

        Raises
        ------
        ConfigurationError
            If the workers have been closed.
        """
        if self.closed:
            what = f"these {type(self).__name__} are closed"
            raise ConfigurationError(f"{what}; run inside of their `with` block, or make new ones")
        self.ask(dict.fromkeys(range(self.number), ("begin", setup)))
        self._runs[setup.run_id] = setup

    def end(self, run_id: int) -> None:
        """Make all workers forget a run."""
        if self._runs.pop(run_id, None) is not None:
            # A worker that has died has forgotten it, and is replaced when needed.
            self._call(dict.fromkeys(range(self.number), ("end", run_id)))


class WorkerGrid(InProcessGrid):
    """A grid whose nodes live in workers: one call per worker and round, bit-identical to :class:`InProcessGrid`.

    Parameters
    ----------
    workers : Workers
        Where the clients run; several grids may share them.
    client_app, num_nodes, run_config, node_config, raise_errors
        As for :class:`InProcessGrid`.

    Raises
    ------
    ConfigurationError
        If the ClientApp cannot be sent to another process.

    Examples
    --------
    >>> from flwr_fco.simulation import Processes
    >>> with Processes(2) as workers, WorkerGrid(workers, ClientApp(), 3) as grid:
    ...     print(list(grid.partition_ids.values()))
    [0, 1, 2]
    """

    def __init__(
        self,
        workers: Workers,
        client_app: ClientApp,
        num_nodes: int,
        *,
        run_config: Mapping[str, Any] | None = None,
        node_config: Callable[[int], Mapping[str, Any]] | None = None,
        raise_errors: bool = True,
    ) -> None:
        super().__init__(
            client_app, num_nodes, run_config=run_config, node_config=node_config, raise_errors=raise_errors
        )
        self.workers = workers
        self._homes: dict[int, int] = {}
        parts = (client_app, dict(run_config or {}), node_config, *_registered())
        workers.begin(Setup(self.run_id, num_nodes, raise_errors, _pickled(parts)))

    def __enter__(self) -> Self:
        """Return the grid."""
        return self

    def __exit__(self, *error: object) -> None:
        """Make the workers forget the grid's run."""
        self.workers.end(self.run_id)

    def exchange(self, letters: Sequence[tuple[Node, Downlink]], server_round: int, digest: str) -> Any:
        """Deliver downlinks and return the answers as :meth:`InProcessGrid.exchange` does, with one call per worker.

        An answer is None for a node that needs a message because its worker is new.
        """
        introduced, self._plan = self._plan, None
        if not (type(self) is WorkerGrid and self.raise_errors and training_handler(self.client_app) is not None):
            return None

        def call(positions: Sequence[int]) -> tuple[Any, ...]:
            # Most nodes of a round get the same downlink.
            numbers: dict[int, int] = {}
            downlinks: list[Any] = []
            to: list[tuple[int, int]] = []
            for node, downlink in (letters[i] for i in positions):
                number = numbers.setdefault(id(downlink), len(downlinks))
                if number == len(downlinks):
                    downlinks.append(_plain(downlink))
                to.append((node.node_id, number))
            strangers = introduced and introduced[2] & {node_id for node_id, _ in to}
            first = (introduced[0], introduced[1], strangers) if introduced and strangers else None
            return "exchange", self.run_id, downlinks, to, server_round, digest, first

        answers = self._ask([node.node_id for node, _ in letters], call)
        if self.report is not None and all(answers):
            self.report(server_round)
        return answers

    def _deliver_all(self, messages: Sequence[Message]) -> list[Message | None]:
        return self._ask(
            [message.metadata.dst_node_id for message in messages],
            lambda positions: ("deliver", self.run_id, [messages[i] for i in positions]),
        )

    def _ask(self, node_ids: Sequence[int], call: Callable[[Sequence[int]], tuple[Any, ...]]) -> list[Any]:
        """Ask nodes by one call for each of their workers, made from list positions; return the answers in order."""
        positions = self._by_worker(node_ids)
        in_order: list[Any] = [None] * len(node_ids)
        for k, answers in self.workers.ask({k: call(numbers) for k, numbers in positions.items()}).items():
            apart = answers.apart() if isinstance(answers, Joined) else answers
            for i, answer in zip(positions[k], apart, strict=True):
                in_order[i] = answer
        return in_order

    def _by_worker(self, node_ids: Sequence[int]) -> dict[int, list[int]]:
        """Return the list positions of nodes by worker; a node stays with its worker."""
        positions: dict[int, list[int]] = {}
        for i, node_id in enumerate(node_ids):
            home = self._homes.get(node_id)
            if home is None:
                # Round robin in order of arrival: full rounds and samples are spread evenly.
                home = self._homes[node_id] = len(self._homes) % self.workers.number
            positions.setdefault(home, []).append(i)
        return positions

    def states(self) -> dict[int, bytes]:
        answers = self.workers.ask(dict.fromkeys(range(self.workers.number), ("states", self.run_id)))
        return dict(sorted(item for states in answers.values() for item in states.items()))

    def restore(self, states: Mapping[int, bytes]) -> None:
        ids = list(states)
        indices = self._by_worker(ids)
        parts = {k: {ids[i]: states[ids[i]] for i in indices.get(k, ())} for k in range(self.workers.number)}
        self.workers.ask({k: ("restore", self.run_id, states) for k, states in parts.items()})


def _plain(downlink: Downlink) -> Downlink:
    """Return a downlink that can be pickled, without the plan, which the workers know."""
    unknown: Any = None
    mappings: Any = {name: dict(getattr(downlink, name)) for name in ("vectors", "numbers", "pass_through")}
    return downlink._replace(plan=unknown, **mappings)


def _registered() -> tuple[list[bytes], list[type[Specified]]]:
    """Return the user's registrations in this process, which a new process would lack."""

    def is_users(thing: Any) -> bool:
        return not str(getattr(thing, "__module__", "")).startswith("flwr_fco.")

    # One by one: a worker may lack the module of a method that this run does not need.
    methods = [cloudpickle.dumps(half) for half in halves().values() if is_users(half)]
    return methods, [kind for family in Specified._families.values() for kind in family.values() if is_users(kind)]


def _pickled(parts: tuple[Any, ...]) -> bytes:
    try:
        text: bytes = cloudpickle.dumps(parts)
    except Exception as error:
        what = f"the ClientApp cannot be sent to other processes: {type(error).__name__}: {error}"
        advice = "Open files, locks and connections inside load_objective, not outside; or take engine='in-process'"
        raise ConfigurationError(f"{what}. {advice}") from error
    if len(text) > _LARGE_APP:
        log(
            WARNING,
            "simulate: the ClientApp carries %.0f MB of data with it, of which every worker gets a copy. Load them "
            "inside load_objective, by context.node_config['partition-id']: then each worker loads what is its own",
            len(text) / 1e6,
        )
    return text
