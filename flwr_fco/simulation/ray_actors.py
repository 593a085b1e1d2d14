"""Workers that are actors of Ray's, which demands a token: on this machine, or on a cluster."""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import secrets
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from logging import WARNING
from typing import Any

from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.simulation.workers import Lost, Workers

#: Bytes of an array from which on it goes through the object store, once for all workers.
_STORED = 100_000


class RayActors(Workers):
    """Actors of Ray's; what all of them are told in a round lies in the object store once.

    Parameters
    ----------
    number : int, optional
        How many; by default as many as the cluster has room for.
    address : str, optional
        Of a cluster, such as ``"auto"`` on one of its machines. By default Ray is started on this machine if it does
        not run in this process yet, and ended by :meth:`close`.
    num_cpus, num_gpus : float, default 1 and 0
        What is reserved for each of them, on one machine.

    Raises
    ------
    ConfigurationError
        If no machine of the cluster has room for a worker, or Ray does not know such a reservation.
    NotInstalledError
        Without Ray.

    Examples
    --------
    >>> RayActors(num_cpus=0)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: num_cpus=0 and num_gpus=0 leave room for any number of workers; say how many
    """

    def __init__(
        self, number: int | None = None, *, address: str | None = None, num_cpus: float = 1.0, num_gpus: float = 0.0
    ) -> None:
        check_reservation(num_cpus, num_gpus)
        if number is None and not num_cpus and not num_gpus:
            raise ConfigurationError("num_cpus=0 and num_gpus=0 leave room for any number of workers; say how many")
        try:
            ray: Any = import_ray(address)
        except ImportError as error:
            what = "engine='ray' needs Ray; install it with `pip install -e '.[sweep]'`"
            raise NotInstalledError(f"{what}, or take engine='processes'") from error
        self._ray, self._owns = ray, not ray.is_initialized()
        if self._owns:
            # Workers import what this process can import, and compute on one core each.
            paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            environment = {"env_vars": {**threads, "PYTHONPATH": paths}}
            options = {"log_to_driver": False, "logging_level": logging.ERROR, "runtime_env": environment}
            try:
                ray.init(address=address or "local", **options, **({} if address else {"include_dashboard": False}))
            except (ConnectionError, ValueError) as error:
                what = f"address={address!r}: {error}; expected a running cluster, as `ray start --head` makes it"
                raise ConfigurationError(f"{what}, or no address for this machine alone") from error
        try:
            room = room_of(ray, num_cpus, num_gpus)
            super().__init__(int(room) if number is None else number)
            if room < self.number:
                what = f"{self.number} workers with num_cpus={num_cpus:g} and num_gpus={num_gpus:g}"
                there = f"the cluster has room for {room:g}"
                raise ConfigurationError(f"{what}, but {there}; take fewer workers, or smaller reservations")
            kind = ray.remote(_Actor)
            first = kind.options(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0)
            # What it takes the place of may have gone with its machine, and the room with it.
            self._another = kind.options(num_cpus=0, num_gpus=num_gpus, max_restarts=0)
            self._actors = {worker: first.remote() for worker in range(self.number)}
        except BaseException:
            if self._owns:
                ray.shutdown()
            raise

    def _start(self, worker: int) -> None:
        self._ray.kill(self._actors[worker])
        self._actors[worker] = self._another.remote()

    def _call(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        framed = {k: _framed(call) for k, call in calls.items()}
        each = [array for _, arrays in framed.values() for array in arrays]
        used = Counter(map(id, each))
        often = {id(array): array for array in each if used[id(array)] > 1 and array.nbytes >= _STORED}
        stored = {key: self._ray.put(array) for key, array in often.items()}
        pending = {
            k: self._actors[k].answer.remote(text, *(stored.get(id(array), array) for array in arrays))
            for k, (text, arrays) in framed.items()
        }
        answers: dict[int, Any] = {}
        for k, answer in pending.items():
            try:
                text, arrays = self._ray.get(answer)
                answers[k] = pickle.loads(text, buffers=arrays)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
                answers[k] = Lost(type(error).__name__)
        return answers

    def kill(self, worker: int) -> None:
        """End a worker at once, for tests."""
        self._ray.kill(self._actors[worker], no_restart=True)

    def close(self) -> None:
        """End all workers, busy ones too, and Ray where it was started here."""
        self.closed = True
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        if self._owns:
            # Once: Ray may have been started again since, by somebody else.
            self._owns = False
            self._ray.shutdown()


class _Actor:
    """A worker in an actor: the arrays of a call come beside it, read-only and without copies."""

    def __init__(self) -> None:
        from flwr_fco.simulation.worker import Worker

        self._worker = Worker()

    def answer(self, text: bytes, *arrays: Any) -> Any:
        """Answer a call."""
        # Ray itself would call a function of Python's for every object of an answer.
        return _framed(self._worker.answer(pickle.loads(text, buffers=arrays)))


def _framed(value: Any) -> tuple[bytes, list[Any]]:
    """Return an object as bytes, and its arrays beside them unless they are small: an object of Ray's costs more."""
    arrays: list[Any] = []

    def beside(buffer: pickle.PickleBuffer) -> bool:
        whose: Any = memoryview(buffer).obj
        if whose.nbytes < _STORED:
            return True
        arrays.append(whose)
        return False

    return pickle.dumps(value, protocol=5, buffer_callback=beside), arrays


def check_reservation(num_cpus: float, num_gpus: float) -> None:
    """Raise an error if Ray cannot reserve this for a worker.

    Parameters
    ----------
    num_cpus, num_gpus : float
        Parts of a GPU are reserved below 1.

    Raises
    ------
    ConfigurationError
        If a number is negative or not finite, or `num_gpus` is above 1 and not whole.

    Examples
    --------
    >>> check_reservation(2, 0.5)
    >>> check_reservation(1, 1.5)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: num_cpus=1, num_gpus=1.5; expected numbers of at least 0, and above 1 whole GPUs
    """
    finite = 0 <= num_cpus < math.inf and 0 <= num_gpus < math.inf
    if not finite or (num_gpus > 1 and num_gpus % 1):
        what = f"num_cpus={num_cpus:g}, num_gpus={num_gpus:g}"
        raise ConfigurationError(f"{what}; expected numbers of at least 0, and above 1 whole GPUs")


def room_of(ray: Any, num_cpus: float, num_gpus: float) -> float:
    """Return how many workers a cluster has room for, infinity if they reserve nothing.

    A worker is on one machine: 3 cores fit once into 4, and once into each of two machines with 4.

    Parameters
    ----------
    ray : module
        Connected to the cluster.
    num_cpus, num_gpus : float
        What each worker reserves.

    Raises
    ------
    ConfigurationError
        If no machine has room for one.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> machines = [{"Alive": True, "Resources": {"CPU": 4.0}}] * 2
    >>> room_of(SimpleNamespace(nodes=lambda: machines), num_cpus=3, num_gpus=0)
    2.0
    """
    wanted = {name: each for name, each in (("CPU", num_cpus), ("GPU", num_gpus)) if each > 0}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # 0.3 / 0.1 is below 3.
    rooms = (min((machine.get(name, 0.0) / each + 1e-9) // 1 for name, each in wanted.items()) for machine in machines)
    room = sum(rooms) if wanted else math.inf
    if not room:
        descriptions = {
            f"{machine.get('CPU', 0.0):g} cores and {machine.get('GPU', 0.0):g} GPUs" for machine in machines
        }
        what = f"num_cpus={num_cpus:g}, num_gpus={num_gpus:g}: no machine of the cluster has that much"
        raise ConfigurationError(f"{what}; there are machines with {', or '.join(sorted(descriptions))}; reserve less")
    return room


#: The first release with token authentication.
_SINCE = (2, 52)


def import_ray(address: str | None = None) -> Any:
    """Import Ray, and demand a token of everybody who uses what is started here.

    Ray listens on all interfaces. From 2.52 on it demands a token if ``RAY_AUTH_MODE=token`` is set before it is
    imported; here it is set, with a token of this process's own, unless the environment says something else. Where that
    is too late, or Ray is older, or a cluster is without tokens, there is a warning.

    Parameters
    ----------
    address : str, optional
        Of a cluster, which has its own settings.

    Raises
    ------
    ImportError
        If Ray is not installed.
    """
    if not address and "ray" not in sys.modules:
        os.environ.update(token_settings())
    ray = import_module("ray")
    if not _demands_token():
        where = f"The Ray cluster at {address}" if address else "Ray, which is started on this machine,"
        log(
            WARNING,
            "%s demands no token: it listens on all interfaces, and whoever reaches its ports runs code as this user. "
            "Set RAY_AUTH_MODE=token before Ray is imported or started (Ray >= 2.52; docs/tutorials/ray-cluster.md), "
            "or close its ports; engine='processes' opens none",
            where,
        )
    return ray


def token_settings() -> dict[str, str]:
    """Return the variables with which a Ray that is started demands a token, beside those that are set already.

    Examples
    --------
    >>> set(token_settings()) <= {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}
    True
    """
    try:
        installed = tuple(map(int, re.findall(r"\d+", version("ray"))[:2]))
    except ImportError:
        return {}
    if installed < _SINCE or os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return {"RAY_AUTH_MODE": "token", **({} if given else {"RAY_AUTH_TOKEN": secrets.token_hex(32)})}


def _demands_token() -> bool:
    """Whether Ray in this process demands and gives a token, which it decides when it is imported."""
    try:
        raylet: Any = import_module("ray._raylet")
        return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)
    except (ImportError, AttributeError):
        return False
