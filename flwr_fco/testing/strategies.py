"""A check of the contract of strategies, for built-in and user-defined ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from flwr_fco.certificates import Answer, certificate, settle
from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives import LeastSquares, duality_terms
from flwr_fco.regularizers import L1, Zero
from flwr_fco.server.method import algorithm_class
from flwr_fco.server.strategy import CompositeStrategy, run_of
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.testing.objectives import require
from flwr_fco.wire import flower as _flower
from flwr_fco.work import Epochs, FirstOrder, Minimise

_STRENGTH, _CLIENTS, _FEATURES = 0.3, 4, 6

MakeStrategy = Callable[..., CompositeStrategy]


def check_strategy(make: MakeStrategy, limit: Callable[[Callable[..., Vector], Any], None] | None = None) -> None:
    """Check that a strategy fulfils the contract of :class:`flwr_fco.strategies.CompositeStrategy`.

    The problem is a small LASSO with four heterogeneous clients (or, for a method that refuses psi, the same least
    squares without psi). The strategy returns the user's names, shapes and dtypes; its state keeps its dtypes and
    shapes, a round does not change its arrays in place, and after saving and loading, the next round is identical bit
    for bit; the same seed gives identical results; a round without valid replies changes nothing.

    Parameters
    ----------
    make : callable
        The class, or a function that takes the same keyword arguments and returns a strategy. Options that the strategy
        does not have, such as a client's learning rate, are omitted.
    limit : callable, optional
        ``limit(run, problem)`` raises AssertionError unless the strategy converges where it should:
        ``run(rounds, *, equal=False, **options)`` returns the final model of a run with full batches, on clients with
        equal data or different ones; the problem has ``error(w)``, the certified ``gap(w, *, equal=False,
        factor=1.0)`` of the objective, with a factor on psi's strength, and ``support(w)``.

    Raises
    ------
    AssertionError
        If the contract is violated; the message says which part and by how much. Of a run that ends with an error of
        this package, such as one that diverges, that error is the cause.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg
    >>> check_strategy(FedDualAvg)
    """
    like = make()
    smooth = "regularizer" in algorithm_class(like).refuses
    build = _with_known_options(make, like, {"regularizer": Zero()} if smooth else {})
    problem = _Problem(0.0 if smooth else _STRENGTH)

    def run(rounds: int, *, equal: bool = False, **options: Any) -> Vector:
        return _run(build, problem.equal if equal else problem.different, rounds, **options)[0]

    try:
        for check in (_check_answers, _check_state, _check_repeatable, _check_skipped):
            check(build, problem.different)
        if limit is not None:
            limit(run, problem)
    except FlwrFcoError as error:
        raise AssertionError(f"a run ended with {type(error).__name__}: {error}") from error


def _app_of(objectives: list[LeastSquares]) -> ClientApp:
    return client_app(lambda context: objectives[int(context.node_config["partition-id"])])


def _simulated(strategy: CompositeStrategy, objectives: list[LeastSquares], rounds: int, start: Any) -> Result:
    strategy.fraction_evaluate = 0.0
    more = {"initial_arrays": start, "progress": False, "on_interrupt": "raise"}
    return simulate(strategy, _app_of(objectives), num_nodes=len(objectives), num_rounds=rounds, **more)


def _run(
    make: MakeStrategy, objectives: list[LeastSquares], rounds: int, **options: Any
) -> tuple[Vector, CompositeStrategy]:
    # A diverging run is measured like any other, so the check fails with its error.
    settings: dict[str, Any] = {"regularizer": L1(_STRENGTH), "min_evaluate_nodes": 1, "on_divergence": "warn"}
    strategy = make(**{**settings, **_batches(None), **options})
    layout = objectives[0].layout
    result = _simulated(strategy, objectives, rounds, layout.unflatten(np.zeros(layout.size)))
    return layout.flatten({name: array.numpy() for name, array in result.arrays.items()}), strategy


def _with_known_options(make: MakeStrategy, like: CompositeStrategy, fixed: dict[str, Any]) -> MakeStrategy:
    """Return a function that omits options that the strategy does not have, and sets those that are fixed."""
    names = {field.name for field in fields(like) if field.init}

    def build(**options: Any) -> CompositeStrategy:
        known = {name: value for name, value in {**options, **fixed}.items() if name in names}
        if isinstance(getattr(like, "work", None), Minimise) and "work" in known:
            # Another number of rows is another number of iterations.
            known["work"] = Minimise(max_iterations=10_000 + (known["work"].batch_size or 0))
        return make(**known)

    return build


def _batches(size: int | None) -> dict[str, Any]:
    """Return the options of one pass over the data in batches, by both names that strategies have for them."""
    return {"work": Epochs(1, batch_size=size), "batch_size": size}


class _Problem:
    """Well-conditioned clients with data from different models, or identical clients; strength 0.0 means no psi."""

    def __init__(self, strength: float) -> None:
        self.strength = strength
        self.different = [self._client(m) for m in range(_CLIENTS)]
        self.equal = [self._client(0) for _ in range(_CLIENTS)]
        self.optimum = self._solution(self.different)

    @staticmethod
    def _client(seed: int) -> LeastSquares:
        rng = np.random.default_rng(seed)
        features, _ = np.linalg.qr(rng.standard_normal((30, _FEATURES)))
        truth = np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.standard_normal(_FEATURES)
        features *= np.sqrt(30)
        return LeastSquares(features, features @ truth, scale=0.5)

    def _solution(self, objectives: list[LeastSquares]) -> Vector:
        """Return the minimiser: the clients are so well conditioned that proximal gradient steps find it quickly."""
        psi = L1(self.strength).bind(objectives[0].layout)
        step = 1.0 / max(objective.lipschitz() for objective in objectives)
        w, last = np.zeros(psi.layout.size), np.ones(psi.layout.size)
        while np.abs(w - last).max() > 1e-15:
            gradient = np.mean([objective.gradient(w) for objective in objectives], axis=0)
            w, last = psi.prox(w - step * gradient, step), w
        return w

    def error(self, w: Vector) -> float:
        return float(np.abs(w - self.optimum).max())

    def gap(self, w: Vector, *, equal: bool = False, factor: float = 1.0) -> float:
        objectives = self.equal if equal else self.different
        if self.strength:
            share = 1.0 / len(objectives)
            psi = L1(factor * self.strength).bind(objectives[0].layout)
            return settle(
                certificate(psi, w),
                lambda request: [Answer(*duality_terms(each, w, request.numbers), weight=share) for each in objectives],
            ).value
        # For a quadratic this is the exact gap, without cancellation.
        moved = w - (self._solution(objectives) if equal else self.optimum)
        return float(np.mean([0.5 * moved @ objective.hessian_product(w, moved) for objective in objectives]))

    def support(self, w: Vector) -> int:
        return int(np.count_nonzero(w[self.different[0].layout.regularized_mask()]))


def _check_answers(make: MakeStrategy, objectives: list[LeastSquares]) -> None:
    arrays = ArrayRecord({"coefficients": Array(np.zeros(_FEATURES, np.float32)), "intercept": Array(np.zeros(1))})
    result = _simulated(make(regularizer=L1(_STRENGTH), client_lr=0.1), objectives, 2, arrays)
    for name, array in arrays.items():
        got = result.arrays[name]
        what = f"{got.dtype}{list(got.shape)}, the user gave {array.dtype}{list(array.shape)}"
        same = (got.dtype, tuple(got.shape)) == (array.dtype, tuple(array.shape))
        require(same, f"array {name!r} came back as {what}")
    metrics = result.train_metrics_clientapp[2]
    for name in ("num-replies", "num-left-out", "skipped", "bytes-up", "bytes-down"):
        require(name in metrics, f"the round's metrics lack {name!r}; they have {sorted(metrics)}")


def _check_state(make: MakeStrategy, objectives: list[LeastSquares]) -> None:
    options: dict[str, Any] = {"client_lr": 0.1, **_batches(7)}
    strategy, other = (_run(make, objectives, rounds, **options)[1] for rounds in (2, 4))
    before, later = strategy.state, other.state
    held = {name: np.copy(value) for name, value in before._asdict().items()}
    require(before.round == 2, f"after two rounds the state says round {before.round}")
    for name, value in before._asdict().items():
        if isinstance(value, np.ndarray):
            require(value.dtype == np.float64, f"state.{name} is {value.dtype}, expected float64")
            shape = getattr(later, name).shape
            require(shape == value.shape, f"state.{name} changed its shape from {value.shape} to {shape}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        run_of(strategy).save(path)
        restored = _prepared(make, objectives, **options, min_evaluate_nodes=1)
        run_of(restored).load(path)
        for number in (3, 4):
            following = [_next_round(each, objectives, number) for each in (strategy, restored)]
            same = all(np.array_equal(a, b) for a, b in zip(*following, strict=True))
            what = f"round {number} after saving and loading the state differs from round {number} without"
            require(same, what)
        for name, value in held.items():
            kept = np.array_equal(getattr(before, name), value)
            require(kept, f"a round changed state.{name} in place; `aggregate` and all others return new arrays")
        try:
            run_of(_prepared(make, objectives, **options, seed=1)).load(path)
        except ConfigurationError:
            return
        raise AssertionError("load accepted a state that other settings wrote")


def _prepared(make: MakeStrategy, objectives: list[LeastSquares], **options: Any) -> CompositeStrategy:
    strategy, layout = make(regularizer=L1(_STRENGTH), **options), objectives[0].layout
    strategy.fraction_evaluate = 0.0
    arrays = {name: Array(array) for name, array in layout.unflatten(np.zeros(layout.size)).items()}
    run_of(strategy).prepare(ArrayRecord(arrays))
    return strategy


def _next_round(strategy: CompositeStrategy, objectives: list[LeastSquares], number: int) -> tuple[Any, ...]:
    grid = InProcessGrid(_app_of(objectives), len(objectives))
    with _flower.quiet():
        messages = strategy.configure_train(number, run_of(strategy).primal_arrays(), ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
    return tuple(strategy.state)


def _check_repeatable(make: MakeStrategy, objectives: list[LeastSquares]) -> None:
    options: dict[str, Any] = {"client_lr": 0.1, **_batches(7), "min_train_nodes": 1}
    draws = isinstance(run_of(_run(make, objectives, 1, **options)[1]).plan.work, FirstOrder)
    everyone = algorithm_class(make()).reads == "everyone"
    if not draws and not everyone:
        # Without minibatches, only the sampling of clients is random.
        options["fraction_train"] = 0.5
    first, second, other = (_run(make, objectives, 5, **options, seed=seed)[0] for seed in (3, 3, 4))
    require(np.array_equal(first, second), "two runs with the same seed differ")
    same = np.array_equal(first, other)
    if not draws and everyone:
        require(same, "no client draws a minibatch, and the seed has an effect")
    else:
        require(not same, "runs with different seeds are equal: the seed has no effect")


class _Silence(InProcessGrid):
    """A grid in which no client replies, even when asked again."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return []


def _check_skipped(make: MakeStrategy, objectives: list[LeastSquares]) -> None:
    _, strategy = _run(make, objectives, 2, client_lr=0.1)
    before = strategy.state
    grid = _Silence(client_app(lambda context: objectives[0]), _CLIENTS)
    with _flower.quiet(50):
        strategy.configure_train(3, ArrayRecord(), ConfigRecord(), grid)
        arrays, metrics = strategy.aggregate_train(3, [])
    require(strategy.state is before, "a round without replies changed the state")
    require(arrays, "a skipped round returned no arrays")
    require(metrics is not None and metrics["skipped"] == 1, f"a skipped round reports {metrics}")
