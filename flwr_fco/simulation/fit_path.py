"""A data-driven strength of psi: the strength at which all entries are 0, a path down from it, and the best point.

    start: strength_max = the dual norm of the clients' averaged gradient at 0, the arrays that psi leaves alone optimal
    strengths = strength_max * (1, ..., ratio), in equal steps of the logarithm
    for each strength, from the largest: a run that begins with the model of the last one; the loss on held-out data of
    every client, their mean by numbers of examples, and its standard error over the clients
    with FedNewton: one run for all strengths, and for the folds of a cross-validation

The clients answer by questions (:mod:`flwr_fco.messages.protocol`), so this is the same in process, over Ray and
over a SuperLink.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.algorithms.contract.replies import LARGEST_CLAIM, Mean
from flwr_fco.algorithms.newton.path import chosen, models_of
from flwr_fco.callbacks import Checkpoint
from flwr_fco.certificates import Request, check_held_out
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import checked, plain
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import Answer
from flwr_fco.messages.records import EXAMPLES, model_record, model_vector
from flwr_fco.regularizers.base import with_strength
from flwr_fco.results import Number, Result, frame_of
from flwr_fco.simulation.simulate import simulate
from flwr_fco.strategies import CompositeStrategy, FedNewton, Strengths, run_of
from flwr_fco.strategies.nodes import Tables
from flwr_fco.strategies.questions import ask, prepared
from flwr_fco.strategies.run import Run

Matrix = NDArray[np.float64]

#: Maximum number of points at which the unregularized arrays are evaluated, and the tolerance on their gradient.
_QUESTIONS = 100
_TOLERANCE = 1e-11


def strength_max(run: Run) -> tuple[float, Vector]:
    """Return the smallest strength at which the solution is 0 wherever psi acts, from the clients' gradients.

    Arrays without psi, such as an intercept, are optimised first, with one question for each step of L-BFGS. The
    strength is at most ten times the median of the clients' own, so that no client sets the path's range alone.

    Parameters
    ----------
    run : Run
        Of a strategy that is prepared with a model.

    Returns
    -------
    float
    ndarray of float64, shape (d,)
        That solution, with the optimised arrays without psi.

    Raises
    ------
    ConfigurationError
        If psi has no such strength, or no client answers.
    """
    from scipy.optimize import minimize

    psi = run.problem.psi
    acts = ~psi.free_coordinates()
    w = np.where(acts, 0.0, run.method.retrieve(run.problem, run.state))
    gradient = np.zeros(w.size)
    answers = list[Answer]()

    def loss_and_gradient(free: Vector) -> tuple[float, Vector]:
        w[~acts] = free
        answers[:] = ask(run, Request("gradient", {}, ("loss",), {"gradient": w.shape}), w)
        if not answers:
            raise ConfigurationError("no client has answered, so no strength follows; see `left_out`")
        weights = [answer.weight for answer in answers]
        gradient[:] = run.mean.of([answer.vectors["gradient"] for answer in answers], weights)
        return run.mean.of_numbers([answer.numbers["loss"] for answer in answers], weights), gradient[~acts]

    best = w[~acts]
    if best.size:
        # "ftol" 0: the gradient decides. The last point that was asked about need not be the best one.
        options = {"maxfun": _QUESTIONS, "gtol": _TOLERANCE, "ftol": 0.0}
        best = minimize(loss_and_gradient, best, jac=True, method="L-BFGS-B", options=options).x
    loss_and_gradient(best)
    # 0 in what psi leaves alone, up to rounding, which a weight of 0 divides.
    slopes = [gradient, *(answer.vectors["gradient"] for answer in answers)]
    largest, *others = (psi.strength_max(np.where(acts, own, 0.0)) for own in slopes)
    own = sorted((strength, str(answer.partition)) for strength, answer in zip(others, answers, strict=True))
    limit = LARGEST_CLAIM * own[(len(own) - 1) // 2][0]
    if run.options.bounds.max_ratio is not None and 0.0 < limit < largest:
        text = "The path begins at %.4g, ten times the clients' median, not at %.4g: that of partition %s is %.4g"
        logger.warning(text, limit, largest, own[-1][1], own[-1][0])
        largest = limit
    return largest, w


def held_out_losses(run: Run, w: Vector, rows: dict[int | None, float]) -> dict[int | None, tuple[float, float]]:
    """Return each node's weight, and the loss on its held-out examples.

    Where most clients have data apart from their training data, those that have none are left out.

    Parameters
    ----------
    run : Run
        Of a strategy that is prepared with a model.
    w : ndarray of float64, shape (d,)
        The model.
    rows : dict of int to float
        Each node's number of examples at the first model that it was asked about, which later answers must repeat;
        those of new ones are added.

    Raises
    ------
    ConfigurationError
        If no client answers, or most clients have no data apart from their training data.
    """

    def check(answer: Answer) -> None:
        if answer.numbers["held-out"] not in (0.0, 1.0):
            raise ProtocolError(f"its held-out is {answer.numbers['held-out']:g}; expected 1 or 0")
        check_held_out(np.array([answer.numbers["loss"]]), answer.numbers["least"])
        if answer.examples != (first := rows.setdefault(answer.node_id, answer.examples)):
            raise ProtocolError(f"it validates on {answer.examples:g} examples, at the first model on {first:g}")

    agreed = ("held-out", "least")
    answers = ask(run, Request("validation", {}, ("loss", *agreed), agreed=agreed, check=check), w)
    if not answers:
        raise ConfigurationError("no client has answered, so nothing is validated; see `left_out`")
    without = [f"partition {answer.partition}" for answer in answers if not answer.numbers["held-out"]]
    if without:
        prefix = f"{len(without)} of {len(answers)} clients would validate on the data that they train on, which always"
        advice = "Give them client_app(load_objective, load_evaluation_objective=...)"
        raise ConfigurationError(f"{prefix} favours the smallest strength: {', '.join(without[:20])}. {advice}")
    return {answer.node_id: (answer.weight, answer.numbers["loss"]) for answer in answers}


def _errors_of(losses: Sequence[Mapping[int | None, tuple[float, float]]], mean: Mean) -> Matrix | None:
    """Return what :meth:`Mean.errors` says of the losses of clients that always answered; None of no losses."""
    if not losses:
        return None
    nodes = sorted(set.intersection(*(set(own) for own in losses)), key=str)
    if not nodes:
        raise ConfigurationError("no client has answered at every strength, so nothing is compared")
    rows = np.array([[own[node][1] for own in losses] for node in nodes])
    return mean.errors(rows, np.array([losses[0][node][0] for node in nodes]))


class PathPoint(NamedTuple):
    """A point of a path.

    Parameters
    ----------
    strength : float
        Strength of the regularizer.
    result : Result
        Result of the run at this strength.
    nonzero : int
        Number of non-zero entries among those that psi acts on.
    held_out, standard_error : float
        Loss on held-out data and its standard error; NaN without validation.
    difference_error : float, default NaN
        Standard error of the difference of the loss to the path's smallest one, in which levels of sites cancel.
    gap : float, default NaN
        Duality gap of the model, if the method has one.
    """

    strength: float
    result: Result
    nonzero: int
    held_out: float
    standard_error: float
    difference_error: float = math.nan
    gap: float = math.nan


@dataclass
class PathResult:
    """A path of models, from the largest strength to the smallest.

    Parameters
    ----------
    points : list of PathPoint
        The models with their strengths and losses.
    acted_on : tuple of str
        Names of the arrays that psi acts on.

    Examples
    --------
    >>> path = PathResult([PathPoint(0.1, None, 2, 0.30, 0.05), PathPoint(0.01, None, 4, 0.28, 0.05)])
    >>> path.best.strength, path.one_standard_error.strength
    (0.01, 0.1)
    """

    points: list[PathPoint]
    acted_on: tuple[str, ...] = field(default=())

    @property
    def best(self) -> PathPoint:
        """The point with the smallest loss on held-out data; ties go to the largest strength.

        Raises
        ------
        ConfigurationError
            If the path was not validated.
        """
        return self._chosen("best")

    @property
    def one_standard_error(self) -> PathPoint:
        """The point of largest strength whose loss on held-out data is above the smallest by at most a standard error.

        It is that of the difference of both losses, if it is known.
        """
        return self._chosen("one-standard-error")

    def _chosen(self, rule: str) -> PathPoint:
        if not self.points or math.isnan(self.points[0].held_out):
            raise ConfigurationError("this path was not validated (validate=False); take one of `points`")
        numbers = [(point.held_out, point.standard_error, point.difference_error) for point in self.points]
        losses, errors, differences = np.array(numbers).T
        errors = np.where(np.isnan(differences), errors[np.argmin(losses)], differences)
        return self.points[chosen(losses, errors, rule)]

    def rows(self) -> list[dict[str, Number]]:
        """Return a mapping of names to numbers for each point."""
        rows = []
        for point in self.points:
            history = point.result.train_metrics_clientapp
            last = [{"certificate": own["certificate"]} for own in history.values() if "certificate" in own][-1:]
            known = {"held-out": point.held_out, "standard-error": point.standard_error, "duality-gap": point.gap}
            row: dict[str, Any] = {"strength": point.strength, "nonzero": point.nonzero}
            row |= {name: number for name, number in known.items() if not math.isnan(number)}
            rows.append(row | {"rounds": max(history, default=0)} | dict(*last))
        return rows

    def table(self) -> Any:
        """Return the points as a pandas ``DataFrame`` (``pip install pandas``)."""
        return frame_of(self.rows())

    def __repr__(self) -> str:
        if not self.points:
            return "PathResult: 0 strengths"
        ends = f"from {self.points[0].strength:.4g} to {self.points[-1].strength:.4g}"
        shown = f"PathResult: {len(self.points)} strengths {ends}"
        if not math.isnan(self.points[0].held_out):
            best, simple = self.best, self.one_standard_error
            edge = ", the smallest of the path" if best is self.points[-1] and len(self.points) > 1 else ""
            where = f"{best.strength:.4g}{edge} ({best.nonzero} not zero)"
            shown += f"\n  smallest held-out loss {best.held_out:.4g} at {where}"
            shown += f"\n  one standard error: {simple.strength:.4g} ({simple.nonzero} not zero)"
        return shown


@dataclass(eq=False)
class StrengthPath:
    """A strategy run at a path of strengths; ``start`` takes the arguments of the strategy's own ``start``.

    Parameters
    ----------
    strategy : CompositeStrategy
        Strategy whose regularizer has a strength; the value of that strength is ignored.
    num_strengths : int, default 20
        Number of strengths, in equal steps of the logarithm.
    ratio : float, optional
        Ratio of the smallest to the largest strength: by default 0.01, and of ``FedNewton`` as ``Strengths`` says.
    strengths : sequence of float, optional
        Strengths to use instead of `num_strengths` and `ratio`; sorted from the largest.
    validate : bool, default True
        Whether every model is evaluated on the clients' held-out data, if there is no `cv`.
    cv : int, optional
        Number of folds of a cross-validation, into which each client deals its own rows, instead of held-out data; for
        ``FedNewton``, whose messages carry all strengths and folds.

    Raises
    ------
    ConfigurationError
        If an argument is out of range, or the regularizer has no strength.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> from flwr_fco.strategies import FedDualAvg
    >>> path = StrengthPath(FedDualAvg(regularizer=L1(1.0), client_lr="auto"), num_strengths=3, ratio=0.01)
    """

    strategy: CompositeStrategy
    num_strengths: int = 20
    ratio: float | None = None
    strengths: Sequence[float] | None = None
    validate: bool = True
    cv: int | None = None

    def __post_init__(self) -> None:
        with_strength(self.strategy.regularizer, 1.0)
        checked("validate", self.validate, bool)
        key = self.strategy.weighted_by_key
        if key != EXAMPLES and self.strategy.weighting != "uniform" and self.strengths is None and not self._in_one_run:
            prefix = f"weighted_by_key={key!r}: the gradients from which the largest strength follows weigh by examples"
            raise ConfigurationError(f"{prefix}, so its model need not be 0; give strengths=[...]")
        self._path = Strengths(self.num_strengths, self.ratio, plain(self.strengths), self.cv)
        if self.cv is not None and not self._in_one_run:
            prefix = f"cv={self.cv!r}: only FedNewton with hessian='block' solves for all folds in one run"
            advice = "give client_app(load_objective, load_evaluation_objective=...) and no cv"
            raise ConfigurationError(f"{prefix}; take it, or {advice}")

    @property
    def _in_one_run(self) -> bool:
        return isinstance(self.strategy, FedNewton) and self.strategy.hessian == "block"

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600, **options: Any
    ) -> PathResult:
        """Run the strategy at each strength.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
            The connection to the clients.
        initial_arrays : ArrayRecord
            The start point for the largest strength.
        num_rounds : int, default 3
            Number of rounds for each strength; callbacks such as ``EarlyStopping`` may end a run earlier. Of FedNewton,
            which runs once for all strengths, the largest number of all rounds.
        timeout : float, default 3600
            Seconds to wait for the replies of a round.
        **options
            As for the strategy's own ``start``.

        Raises
        ------
        ConfigurationError
            See :func:`strength_max` and :func:`held_out_losses`; or if FedNewton has not solved all problems.
        RunInterrupted
            On Ctrl-C. As of any error, its `path` has the strengths that are done, if there are any.
        """
        if self._in_one_run:
            return self._all_at_once(grid, initial_arrays, num_rounds, timeout, options)
        saved = [each.path for each in options.get("callbacks") or () if isinstance(each, Checkpoint)]
        if saved or options.get("resume") is not None:
            one = (saved or [options["resume"]])[0]
            raise ConfigurationError(f"{one} is the file of one run, not of a path: leave out resume and Checkpoint")
        strategy = self.strategy
        before = strategy.regularizer, strategy.tables
        results = []
        losses = []
        rows = dict[int | None, float]()
        try:
            # Asked once for all runs.
            strategy.tables = strategy.tables or Tables()
            run = prepared(strategy, grid, initial_arrays, timeout)
            largest, arrays = 0.0, initial_arrays
            if self.strengths is None:
                largest, w = strength_max(run)
                arrays = model_record(run.problem.layout, w, run.passed)
            strengths = self._path.from_largest(largest)
            for strength in strengths:
                strategy.regularizer = with_strength(before[0], strength)
                results.append(strategy.start(grid, arrays, num_rounds, timeout, **options))
                arrays = results[-1].arrays
                w = model_vector(run.problem.layout, arrays)[0]
                if self.validate:
                    losses.append(held_out_losses(run_of(strategy), w, rows))
                logger.info("Strength %.4g: %s not zero", strength, np.count_nonzero(w))
            return self._result(strengths, results, _errors_of(losses, run.mean))
        except BaseException as error:
            if done := len(losses if self.validate else results):
                # Without one where nobody has answered at all of them.
                with suppress(ConfigurationError):
                    vars(error)["path"] = self._result(strengths[:done], results[:done], _errors_of(losses, run.mean))
                    error.add_note("The strengths that are done are the error's `path`.")
            raise
        finally:
            strategy.regularizer, strategy.tables = before

    def _all_at_once(self, grid: Grid, start: ArrayRecord, num_rounds: int, timeout: float, options: Any) -> PathResult:
        """Run FedNewton for all strengths, and folds, in the same messages."""
        strategy: Any = self.strategy
        before = strategy.strengths
        rows = dict[int | None, float]()
        try:
            own = {name: getattr(self._path, name) for name in ("num", "ratio", "values", "folds")}
            strategy.strengths = replace(before or self._path, **own)
            if self.validate and self.cv is None:
                # Before the run: clients may have no data to validate on.
                run = prepared(strategy, grid, start, timeout)
                held_out_losses(run, run.point, rows)
            result = strategy.start(grid, start, num_rounds, timeout, **options)
            run = run_of(strategy)
            state = strategy.state
            models, gaps = models_of(state)
            if not run.finished():
                prefix = f"{len(models)} of {strategy.strengths.count} strengths are begun"
                advice = f"give more, or a larger tolerance or ratio (now {strategy.tolerance:g}, {self.ratio})"
                raise ConfigurationError(f"{prefix}, not all are solved after num_rounds={num_rounds}; {advice}")
            errors = state.held_out
            if self.cv is None:
                losses = [held_out_losses(run, w, rows) for w in models] if self.validate else []
                errors = _errors_of(losses, run.mean)
            results = [replace(result, arrays=model_record(run.problem.layout, w, run.passed)) for w in models]
            return self._result(state.strengths.tolist(), results, errors, gaps)
        finally:
            strategy.strengths = before

    def _result(self, strengths: Any, results: Any, errors: Matrix | None, gaps: Any = None) -> PathResult:
        layout = run_of(self.strategy).problem.layout
        nothing = np.full((3, len(results)), math.nan)
        models = (model_vector(layout, result.arrays)[0] for result in results)
        counts = [int(np.count_nonzero(w[layout.regularized_mask()])) for w in models]
        of_losses = (nothing if errors is None else errors).tolist()
        columns = strengths, results, counts, *of_losses, gaps or nothing[0].tolist()
        return PathResult([PathPoint(*row) for row in zip(*columns, strict=True)], tuple(layout.regularized_names))


__all__ = ["PathPoint", "PathResult", "StrengthPath", "fit_path"]


def fit_path(
    strategy: CompositeStrategy,
    client_app: ClientApp,
    *,
    num_nodes: int,
    num_rounds: int,
    initial_arrays: ArrayRecord | Mapping[str, NDArray[Any] | Array],
    num_strengths: int = 20,
    ratio: float | None = None,
    strengths: Sequence[float] | None = None,
    validate: bool = True,
    cv: int | None = None,
    **options: Any,
) -> PathResult:
    """Fit a path of regularization strengths with the clients in this process.

    In a ServerApp: ``StrengthPath(strategy).start(grid, initial_arrays, num_rounds)``.

    Parameters
    ----------
    strategy : CompositeStrategy
        Strategy whose regularizer has a strength; the value of that strength is ignored.
    client_app : flwr.clientapp.ClientApp
        Needs ``load_evaluation_objective``, the loss on a client's held-out data, if the path is validated.
    num_nodes, num_rounds, initial_arrays
        As for :func:`flwr_fco.simulate`; each strength runs `num_rounds` rounds. ``FedNewton`` runs once for all
        strengths, and `num_rounds` is the largest number of all rounds.
    num_strengths : int, default 20
        Number of strengths, in equal steps of the logarithm.
    ratio : float, optional
        Ratio of the smallest to the largest strength, at which all entries that psi acts on are 0: by default 0.01, and
        of ``FedNewton`` as :class:`flwr_fco.strategies.Strengths` says.
    strengths : sequence of float, optional
        Strengths to use instead of `num_strengths` and `ratio`.
    validate : bool, default True
        Whether every model is evaluated on the clients' held-out data.
    cv : int, optional
        Number of folds of a cross-validation, into which each client deals its own rows, instead of held-out data; for
        ``FedNewton``, whose messages carry all strengths and folds.
    **options
        Passed to :func:`flwr_fco.simulate`, such as ``callbacks``.

    Returns
    -------
    PathResult
        A point for each strength, from the largest to the smallest.

    Examples
    --------
    >>> from flwr_fco import L1, Epochs, FedDualAvg, LeastSquares, client_app
    >>> def load(context, shift=0):
    ...     features = np.random.default_rng(shift + context.node_config["partition-id"]).standard_normal((30, 4))
    ...     return LeastSquares(features, features @ np.array([1.0, -1.0, 0.0, 0.0]))
    >>> path = fit_path(
    ...     FedDualAvg(regularizer=L1(1.0), client_lr="auto", work=Epochs(1, batch_size=None), fraction_evaluate=0.0),
    ...     client_app(load, load_evaluation_objective=lambda context: load(context, 100)),
    ...     num_nodes=3,
    ...     num_rounds=50,
    ...     initial_arrays={"coefficients": np.zeros(4), "intercept": np.zeros(1)},
    ...     num_strengths=4,
    ... )
    >>> [point.nonzero for point in path.points]
    [0, 2, 2, 2]
    """
    runs = StrengthPath(strategy, num_strengths, ratio, strengths, validate, cv)
    given: dict[str, Any] = {"num_nodes": num_nodes, "num_rounds": num_rounds, "initial_arrays": initial_arrays}
    return simulate(runs, client_app, on_interrupt="raise", **given, **options)
