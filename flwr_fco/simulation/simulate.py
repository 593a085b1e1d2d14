"""`simulate`: runs a strategy with its clients in this process, or on Ray actors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.client_apps.client import forget_objectives
from flwr_fco.core.computing import logger, quiet, single_threaded_blas
from flwr_fco.core.validation import AT_LEAST_ONE, NATURAL, checked, of_type, short, takes
from flwr_fco.errors import ConfigurationError, RunInterrupted
from flwr_fco.simulation.grid import InProcessGrid, RayGrid, identity

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
_Found = TypeVar("_Found", covariant=True)


class Startable(Protocol[_Found]):
    """A strategy, by what its `start` returns: of this package's a result with rows and tables, of Flower's its own."""

    @property
    def start(self) -> Callable[..., _Found]: ...


def simulate(
    strategy: Startable[_Found],
    client_app: ClientApp,
    *,
    num_nodes: int,
    num_rounds: int,
    initial_arrays: ArrayRecord | Mapping[str, NDArray[Any] | Array],
    evaluate_fn: EvaluateFunction | None = None,
    evaluate_every: int = 1,
    train_config: ConfigRecord | None = None,
    evaluate_config: ConfigRecord | None = None,
    run_config: Mapping[str, Any] | None = None,
    node_config: Callable[[int], Mapping[str, Any]] | None = None,
    raise_errors: bool = True,
    progress: bool | None = None,
    verbose: bool = False,
    on_interrupt: Literal["return", "raise"] = "return",
    engine: Literal["in-process", "ray"] = "in-process",
    workers: int | None = None,
    address: str | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    **start_options: Any,
) -> _Found:
    """Run a strategy with its clients in this process, or on a Ray cluster.

    The same Strategy and ClientApp run unchanged in Flower's simulation and in a deployment, with bit-identical
    results.

    Parameters
    ----------
    strategy : flwr.serverapp.strategy.Strategy
        A strategy of this package or any other strategy for Flower's Message API.
    client_app : flwr.clientapp.ClientApp
        ClientApp, for example from :func:`flwr_fco.client_apps.client_app`.
    num_nodes : int
        Number of clients; client m has ``partition-id`` m.
    num_rounds : int
        Number of rounds.
    initial_arrays : ArrayRecord or mapping of str to ndarray or Array
        The start point.
    evaluate_fn : callable, optional
        ``(round, arrays) -> MetricRecord or None``: central evaluation.
    evaluate_every : int, default 1
        Number of rounds between two central evaluations; there is always one before the first and after the last round.
    train_config, evaluate_config : ConfigRecord, optional
        Sent to the clients.
    run_config : mapping, optional
        ``context.run_config`` of the nodes.
    node_config : callable, optional
        ``partition_id -> mapping``, added to ``context.node_config``.
    raise_errors : bool, default True
        Raise a client's exception with its node and round; if False, it becomes an error reply, as in Flower.
    progress : bool, optional
        Show a progress bar; by default if standard error is a terminal.
    verbose : bool, default False
        Keep Flower's log lines of every round; by default only warnings are shown.
    on_interrupt : {"return", "raise"}, default "return"
        What Ctrl-C does if the strategy is from this package: return the result so far, with a warning, or raise
        :class:`flwr_fco.errors.RunInterrupted` with that ``result``, for scripts that must not continue.
    engine : {"in-process", "ray"}, default "in-process"
        Where the clients run. ``"ray"``: on Ray actors, each of which loads the data of its own clients once. Results
        are bit-identical.
    workers : int, optional
        Number of workers; by default as many as the cluster has room for, and at most one for each node.
    address : str, optional
        Address of a Ray cluster, such as ``"auto"`` on one of its machines; by default Ray is started and stopped here.
    num_cpus, num_gpus : float, default 1 and 0
        CPUs and GPUs that Ray reserves for each worker.
    **start_options
        Passed to ``strategy.start``, such as ``callbacks`` and ``resume``; a ``timeout`` ends no client here.

    Returns
    -------
    Result
        Of ``strategy.start``. ``arrays`` holds the final primal model; metrics are stored by round.

    Raises
    ------
    ConfigurationError
        If an argument has the wrong type, the strategy would wait for more nodes than there are (Flower waits forever),
        or the ClientApp cannot be sent to the engine's workers.
    ClientError
        If a client raised an exception and `raise_errors` is set.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.client_apps import client_app
    >>> from flwr_fco.objectives import LeastSquares
    >>> from flwr_fco.regularizers import L1
    >>> from flwr_fco.strategies import FedDualAvg
    >>> def load(context):
    ...     features = np.random.default_rng(context.node_config["partition-id"]).standard_normal((50, 4))
    ...     return LeastSquares(features, features @ np.array([1.0, -1.0, 0.0, 0.0]))
    >>> result = simulate(
    ...     FedDualAvg(regularizer=L1(0.1), client_lr=0.02, fraction_evaluate=0.0),
    ...     client_app(load),
    ...     num_nodes=3,
    ...     num_rounds=50,
    ...     initial_arrays={"coefficients": np.zeros(4), "intercept": np.zeros(1)},
    ... )
    >>> (result.arrays["coefficients"].numpy() != 0).tolist()
    [True, True, False, False]
    """
    # Later they would be obscure errors in Python or Flower.
    if isinstance(strategy, type) or not callable(getattr(strategy, "start", None)):
        raise ConfigurationError(f"strategy={_called(strategy)}; expected a Strategy, such as FedDualAvg()")
    # Any callable that takes a message and a context is accepted.
    if isinstance(client_app, type) or not callable(client_app) or not takes(client_app, 2):
        raise ConfigurationError(f"client_app={_called(client_app)}; expected a ClientApp, such as client_app(load)")
    record = {"example": "ArrayRecord(arrays) of a list of arrays, or of a network ArrayRecord(model.state_dict())"}
    checked("initial_arrays", initial_arrays, ArrayRecord | Mapping, record)
    checked("num_nodes", num_nodes, int, AT_LEAST_ONE)
    checked("num_rounds", num_rounds, int, NATURAL)
    checked("evaluate_every", evaluate_every, int, AT_LEAST_ONE)
    checked("on_interrupt", on_interrupt, Literal["return", "raise"])
    checked("engine", engine, Literal["in-process", "ray"])
    checked("evaluate_fn", evaluate_fn, EvaluateFunction | None)
    checked("run_config", run_config, Mapping | None)
    checked("node_config", node_config, Callable[[int], Mapping[str, Any]] | None)
    # A path of runs, and Flower's wrappers for privacy, have the strategy that samples.
    _check_samples(getattr(strategy, "strategy", strategy), num_nodes)
    reserved: Any = {"workers": workers, "address": address, "num_cpus": num_cpus, "num_gpus": num_gpus}
    given = [f"{name}={value!r}" for name, value in reserved.items() if value != getattr(RayGrid, name)]
    if given and engine != "ray":
        raise ConfigurationError(f"{', '.join(given)} with engine='in-process', which has none; give engine='ray'")
    if not isinstance(initial_arrays, ArrayRecord):
        named = {checked("name", name, str): _as_array(name, array) for name, array in initial_arrays.items()}
        initial_arrays = ArrayRecord(named)
    start_options |= {"train_config": train_config, "evaluate_config": evaluate_config, "evaluate_fn": evaluate_fn}
    if evaluate_fn is not None:
        rounds = {*range(0, num_rounds, evaluate_every), num_rounds}
        start_options["evaluate_fn"] = lambda number, arrays: evaluate_fn(number, arrays) if number in rounds else None
    options: Any = {"run_config": run_config, "node_config": node_config, "raise_errors": raise_errors}
    try:
        with ExitStack() as stack:
            grid = InProcessGrid(client_app, num_nodes, **options)
            if engine == "ray":
                grid = stack.enter_context(RayGrid(client_app, num_nodes, **options, **reserved))
            stack.enter_context(identity(grid.run_id))
            stack.enter_context(nullcontext() if verbose else quiet())
            stack.enter_context(single_threaded_blas())
            stack.callback(forget_objectives, grid.run_id)
            # Who has a tolerance ends the run when it is reached.
            total = num_rounds if getattr(strategy, "tolerance", None) is None else None
            stack.enter_context(progress_bar(grid, total, progress))
            found: Any = strategy.start(grid, initial_arrays, num_rounds, **start_options)
    except RunInterrupted as stop:
        if on_interrupt == "raise":
            raise
        logger.warning("simulate: %s; this is the result so far", stop)
        return cast(_Found, stop.result)
    except KeyboardInterrupt:
        # The second Ctrl-C, while a run that was interrupted saves itself; or a strategy of Flower's.
        kept = getattr(strategy, "result", None) is not None
        prefix = "the result so far is the strategy's `result`" if kept else "the result so far is lost"
        raise KeyboardInterrupt(f"{type(strategy).__name__} was interrupted: {prefix}") from None
    if found is None:
        prefix = f"{type(strategy).__name__}.start returns None; expected a Result"
        raise ConfigurationError(f"{prefix}: return what super().start(...) does")
    return cast(_Found, found)


def _as_array(name: str, array: Any) -> Array:
    # Flower takes NumPy's arrays and tensors, none of JAX, and no scalars.
    try:
        plain = array if hasattr(array, "detach") else np.asarray(own := np.asarray(array), own.dtype.newbyteorder("="))
        return array if isinstance(array, Array) else Array(plain)
    except (TypeError, ValueError) as error:
        prefix = f"array {name!r} is {getattr(array, 'dtype', short(array))}, which Flower cannot send ({error})"
        raise ConfigurationError(f"{prefix}; expected float64, float32 or float16; of a tensor `.float()`") from error


@contextmanager
def progress_bar(grid: InProcessGrid, num_rounds: int | None, shown: bool | None = None) -> Iterator[None]:
    """Show the rounds that a grid has delivered, and when Numba compiles, which it does once on a machine.

    Parameters
    ----------
    grid : InProcessGrid
        Which reports the rounds.
    num_rounds : int, optional
        How many there will be; None where the run ends by itself.
    shown : bool, optional
        By default if standard error is a terminal.
    """
    if not (getattr(sys.stderr, "isatty", bool)() if shown is None else shown):
        yield
        return
    # Imported here because most runs in a process show no progress bar; Flower itself depends on rich.
    from numba.core.event import Event, Listener, install_listener
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as bar, ExitStack() as stack:
        task = bar.add_task("rounds", total=num_rounds)

        class Compilation(Listener):
            def on_start(self, event: Event) -> None:
                bar.update(task, description="compiling (first run only)", refresh=True)

            def on_end(self, event: Event) -> None:
                bar.update(task, description="rounds", refresh=True)

        stack.callback(setattr, grid, "report", grid.report)
        grid.report = lambda number: bar.update(task, completed=number)
        stack.enter_context(install_listener("numba:compile", Compilation()))
        yield


def _called(value: Any) -> str:
    """Return a description of a wrong argument, without its contents."""
    return f"the class {value.__name__}" if isinstance(value, type) else of_type(value)


def _check_samples(strategy: Any, num_nodes: int) -> None:
    """Refuse a strategy that would wait for nodes that cannot come."""
    kinds = [kind for kind in ("train", "evaluate") if getattr(strategy, f"fraction_{kind}", 0.0) != 0.0]
    names = dict.fromkeys(each for kind in kinds for each in (f"min_{kind}_nodes", "min_available_nodes"))
    if needed := [f"{each}={value}" for each in names if (value := getattr(strategy, each, 0)) > num_nodes]:
        prefix = f"{type(strategy).__name__} has {' and '.join(needed)}, but there are num_nodes={num_nodes}"
        raise ConfigurationError(f"{prefix}: it would wait for ever. Lower what is larger, or simulate more nodes")
