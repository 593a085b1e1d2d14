"""A check of the contract of strategies, for built-in and user-defined ones."""

import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

from flwr_fco.client_apps import client_app
from flwr_fco.errors import FlwrFcoError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, Zero
from flwr_fco.server.method import algorithm_class
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import CompositeStrategy, Epochs, Minimise, run_of
from flwr_fco.testing.functions import agree, attempt, known, require
from flwr_fco.wire import flower
from flwr_fco.work import FirstOrder


def check_strategy(make: Callable[..., CompositeStrategy], tolerance: float | None = 1e-4) -> None:
    """Check that a strategy fulfils the contract of :class:`flwr_fco.strategies.CompositeStrategy`.

    The problem is a small LASSO with four heterogeneous clients (or, for a method that refuses psi, the same least
    squares without psi). The strategy returns the user's names, shapes and dtypes; its state keeps its dtypes and
    shapes, a round does not change its arrays in place, and after saving and loading, the next round is identical bit
    for bit; the same seed gives identical results; a round without valid replies changes nothing; with one local step
    it comes to the solution.

    Parameters
    ----------
    make : callable
        The class, or a function that takes the same keyword arguments and returns a strategy. Options that the strategy
        does not have, such as a client's learning rate, are omitted.
    tolerance : float or None, default 1e-4
        Largest distance of a coefficient to the solution, after 300 rounds of one local step with full batches. None
        for a method that only comes near, or much later.

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
    try:
        _check(make, tolerance)
    except FlwrFcoError as error:
        raise AssertionError(f"a run ended with {type(error).__name__}: {error}") from error


def _client(seed: int) -> LeastSquares:
    """Return a well-conditioned client, with data from a model of its own."""
    rng = np.random.default_rng(seed)
    features = np.sqrt(30) * np.linalg.qr(rng.standard_normal((30, 6)))[0]
    truth = np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.standard_normal(6)
    return LeastSquares(features, features @ truth, scale=0.5)


def _check(make: Callable[..., CompositeStrategy], tolerance: float | None) -> None:
    like, objectives = make(), [_client(m) for m in range(4)]
    method, minimises = algorithm_class(like), isinstance(getattr(like, "work", None), Minimise)
    psi = Zero() if "regularizer" in method.refuses else L1(0.3)
    app = client_app(lambda context: objectives[int(context.node_config["partition-id"])])
    start = ArrayRecord({"coefficients": Array(np.zeros(6, np.float32)), "intercept": Array(np.zeros(1))})

    def build(client_lr: float = 0.1, batch_size: int | None = 7, **options: Any) -> CompositeStrategy:
        work = Minimise(max_iterations=10_000) if minimises else Epochs(1, batch_size)
        options |= {"regularizer": psi, "client_lr": client_lr, "work": work, "min_train_nodes": 1}
        options["batch_size"] = None if minimises else batch_size
        made = make(**{field.name: options[field.name] for field in fields(like) if field.name in options})
        made.fraction_evaluate = 0.0
        run_of(made).prepare(start)
        return made

    def run(strategy: CompositeStrategy, rounds: int) -> Any:
        more: Any = {"initial_arrays": start, "progress": False, "on_interrupt": "raise"}
        result = simulate(strategy, app, num_nodes=4, num_rounds=rounds, **more)
        return np.concatenate([result.arrays[name].numpy() for name in start]), result

    def play(strategy: CompositeStrategy, number: int, app: Any = app) -> tuple[Any, Any]:
        with flower.quiet(50):
            grid, arrays = InProcessGrid(app, 4), run_of(strategy).primal_arrays()
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            return strategy.aggregate_train(number, grid.send_and_receive(messages))

    # Without minibatches, only the sampling of clients is random.
    draws, everyone = isinstance(run_of(build()).plan.work, FirstOrder), method.reads == "everyone"
    options: Any = {} if draws or everyone else {"fraction_train": 0.5}
    one, twin, other, restored = (build(seed=seed, **options) for seed in (3, 3, 5, 3))
    (model, result), (same, _), (different, _) = (run(strategy, 2) for strategy in (one, twin, other))
    got, expected = (
        {name: f"{each[name].dtype}{list(each[name].shape)}" for name in start} for each in (result.arrays, start)
    )
    require(got == expected, f"the arrays came back as {got}, the user gave {expected}")
    lacking = {"num-replies", "num-left-out", "skipped", "bytes-up", "bytes-down"} - {
        *result.train_metrics_clientapp[2]
    }
    require(not lacking, f"the round's metrics lack {sorted(lacking)}")
    agree(model, same, "two runs with the same seed differ")
    equal = np.array_equal(model, different)
    require(equal == (everyone and not draws), f"the seed has {'no' * equal} effect, where clients draw: {draws}")

    before = one.state
    held = {name: np.copy(value) for name, value in before._asdict().items()}
    require(before.round == 2, f"after two rounds the state says round {before.round}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        run_of(one).save(path)
        run_of(restored).load(path)
        require(not known(attempt(run_of(other).load, path)), "load accepted a state that other settings wrote")
    for number in (3, 4):
        for strategy in (one, restored):
            play(strategy, number)
        equal = all(map(np.array_equal, one.state, restored.state))
        require(equal, f"round {number} after saving and loading the state differs from round {number} without")
    for name, value in held.items():
        agree(getattr(before, name), value, f"a round changed state.{name} in place: `aggregate` returns new arrays")
        shape = np.shape(getattr(one.state, name))
        good = (value.dtype == np.float64 and value.shape == shape) or not value.ndim
        require(good, f"state.{name} is {value.dtype}{value.shape}, then {shape}; expected float64, and one shape")

    before = one.state
    arrays, metrics = play(one, 5, lambda message, context: None)
    require(one.state is before, "a round without replies changed the state")
    require(arrays and metrics["skipped"] == 1, f"a round without replies returned {arrays} and reports {metrics}")
    if tolerance is not None:
        w, bound = np.zeros(7), psi.bind(objectives[0].layout)
        for _ in range(1000):
            w = bound.prox(w - 0.3 * np.mean([objective.gradient(w) for objective in objectives], axis=0), 0.3)
        model, _ = run(build(client_lr=0.3, batch_size=None), 300)
        agree(model, w, "300 rounds of one local step do not come to the solution", tolerance, 1.0)
