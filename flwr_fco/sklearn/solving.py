"""How an estimator is solved: its strategy, and the runs before, of and after the fit."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference.federated import TIMES, Questions, Table, check_events, own_estimates, sums_of, trends
from flwr_fco.inference.federated import table as table_of
from flwr_fco.regularizers import L2Squared, Regularizer, Zero
from flwr_fco.regularizers.base import with_strength
from flwr_fco.simulation.fit_path import StrengthPath
from flwr_fco.strategies import FedNewton, Strengths, proved_zero, run_of
from flwr_fco.strategies.nodes import Tables

#: Relative duality gap above which a fit is not solved, even if no step lowers the objective by more than rounding.
_SOLVED = 1e-9
#: Ratio of the loss with an intercept alone to that at 0, at which it is rounding.
_CONSTANT = 1e-13
#: Relative residual of the unpenalised fit of a table of intervals.
_UNPENALISED = 1e-14
#: That of the models of a cross-validation.
_ON_A_PATH = 1e-10
#: Options of a strategy that is used, or of which only questions are, at however many sites.
FEW: dict[str, Any] = {"min_train_nodes": 1, "fraction_evaluate": 0.0}
#: Without an l1 term all coefficients are non-zero: above so many no block of the Hessian is asked for.
_LARGEST_BLOCK = 2048


class Sites(NamedTuple):
    """What the runs of a fit know of the sites.

    Parameters
    ----------
    number : int
        How many there are.
    tables : Tables
        What they have said of their tables.
    weights : dict of int to float, or None
        What the rows of each partition weigh, if they have weights.
    """

    number: int
    tables: Tables
    weights: dict[int | None, float] | None


class Solves(BaseEstimator):  # type: ignore[misc]
    """An estimator whose fit is a few runs over the same sites."""

    _table: Table | None

    def _start(self, d: int, outputs: int) -> ArrayRecord:
        start = ArrayRecord({"coefficients": Array(np.zeros((d, outputs) if outputs > 1 else (d,)))})
        if self._common_intercept:
            start["intercept"] = Array(np.zeros(outputs))
        return start

    def _strategy(self, psi: Regularizer, told: list[tuple[float, float, Vector]], outputs: int, sites: Sites) -> Any:
        """Return the strategy; `told` is each client's weight, and its loss and gradient at 0."""
        dense_solution = isinstance(psi, L2Squared | Zero) and told[0][2].size > _LARGEST_BLOCK
        if dense_solution and self._path is not None:
            raise ConfigurationError(
                f"cv={self.cv!r} of a ridge with {told[0][2].size} coefficients, which are all non-zero: above "
                f"{_LARGEST_BLOCK} no Hessian block is asked for, and a cross-validation needs blocks; give l1_ratio > "
                "0, or leave cv out"
            )
        null = at_zero = math.fsum(weight * loss for weight, loss, _ in told)
        if self._common_intercept and isinstance(self, RegressorMixin):
            # With the best intercept the loss is less by half of its slope's square.
            null -= 0.5 * math.fsum(weight * float(gradient[-1]) for weight, _, gradient in told) ** 2
            if null <= _CONSTANT * at_zero:
                # Targets that are all the same: what is left of them is rounding.
                null = at_zero
        tolerance = max(self.tol * null, np.finfo(np.float64).tiny)
        hessian: Literal["none", "block"] = "none" if dense_solution else "block"
        options: dict[str, Any] = {"hessian": hessian, "tolerance": tolerance, "min_available_nodes": sites.number}
        strategy = FedNewton(regularizer=psi, **options, **FEW)
        strategy.site_weights, strategy.tables = sites.weights, sites.tables
        return strategy

    def _solved(
        self, told: Any, sites: Sites, run: Any, start: Any, outputs: int, total: float, rows: float
    ) -> tuple[NDArray[np.float64], Vector]:
        """Return the coefficients and intercepts of a run, at the strength of the cross-validation if there is one."""
        psi = self._penalty(self._strength(total) if self._path is None else 1.0, outputs)
        strategy = self._strategy(psi, told, outputs, sites)
        self._total, self._slopes = total, np.sum([weight * own[-outputs:] for weight, _, own in told], axis=0)
        self._weighted = sites.weights is not None
        without = "" if self.without_ is None else f", without site {self.without_}"
        data = f"{rows:.0f} rows{', weighted' * self._weighted}, of {len(told)} sites{without}"
        rounds, tolerance = max(1, self.max_rounds - 1), strategy.tolerance
        self.n_iter_ = 1
        names = self._names(self.n_features_in_)
        if self._intervals is not None:
            # Before the fit: what cannot be is refused at once.
            self._intervals.places(names)
            answers = run(Questions(strategy, partial(own_estimates, kind=self._kind)), start, 1)
            check_events(answers, names, self._kind)
            self.n_iter_ += 1
        for name in ("path_", "strength_"):
            # Of an earlier fit.
            self.__dict__.pop(name, None)
        if self._path is not None:
            start = self._choose(self._path, strategy, run, start, rounds, total)
        result = run(strategy, start, rounds)
        metrics = result.train_metrics_clientapp
        last = metrics[max(metrics)]
        self.n_iter_ += len(metrics)
        self.duality_gap_ = float(last.get("duality-gap", math.nan))
        # The tolerance is `tol` times the loss with an intercept alone.
        unbounded = self.duality_gap_ > tolerance * max(1.0, _SOLVED / self.tol)
        unsolved = unbounded or not run_of(strategy).finished()
        if unsolved:
            what = f"not solved to tol={self.tol} after {self.n_iter_} rounds; raise max_rounds or scale the features"
            warnings.warn(what, ConvergenceWarning, stacklevel=4)
        if self._intervals is not None:
            own = tolerance * min(1.0, _UNPENALISED / self.tol)
            sums, asked = sums_of(strategy, self._kind, own, run, result.arrays, rounds)
            trend = None
            if self._kind is TIMES:
                trend = run(Questions(strategy, partial(trends, sums=sums)), start, 1)
                self.n_iter_ += 1
            self._table = table_of(self._intervals, names, answers, sums, self._kind, self._sites, trend)
            self.n_iter_ += asked
        self._describe(strategy, last, outputs, total, data, unsolved)
        intercepts = np.full(outputs, math.nan if self.site_intercepts else 0.0)
        if self._common_intercept:
            intercepts = result.arrays["intercept"].numpy()
        return result.arrays["coefficients"].numpy().reshape(-1, outputs), intercepts

    def _choose(self, path: Strengths, strategy: FedNewton, run: Any, start: Any, rounds: int, examples: float) -> Any:
        """Give the strategy the strength that a cross-validation chooses; return the model there."""
        # What is no argument of StrengthPath, such as the size of a message, is the user's too.
        tolerance = strategy.tolerance
        strategy.strengths, strategy.tolerance = path, tolerance * max(1.0, _ON_A_PATH / self.tol)
        values = path.values
        if values is None and isinstance(strategy.regularizer, L2Squared):
            # No strength makes a ridge 0: C from 1e-3 to 1e3 in scikit-learn's scale, ten of them as there.
            num = path.num if isinstance(self.cv, Strengths) else 10
            values = (np.geomspace(1e3, 1e-3, num) / examples).tolist()
        runs = StrengthPath(strategy, path.num, path.ratio, values, cv=path.folds)
        self.path_ = run(runs, start, rounds)
        chosen = self.path_.best if path.rule == "best" else self.path_.one_standard_error
        self.n_iter_ += len(chosen.result.train_metrics_clientapp)
        self.strength_ = chosen.strength
        strategy.strengths, strategy.tolerance = None, tolerance
        strategy.regularizer = with_strength(strategy.regularizer, chosen.strength)
        return chosen.result.arrays

    def _describe(
        self, strategy: FedNewton, last: Any, outputs: int, examples: float, data: str, unsolved: bool
    ) -> None:
        """Store what is proved, and the lines of a summary."""
        first, path = self._first, self._path
        strength = getattr(strategy.regularizer, "strength", 0.0)
        value = strength if first == "alpha" else 1.0 / (strength * examples) if strength > 0.0 else math.inf
        chosen_by = "" if path is None else f", of {len(self.path_.points)} by {path.folds}-fold cross-validation"
        end = ("Duality gap", f"{self.duality_gap_:.3g}, of an objective of {last.get('objective', math.nan):.6g}")
        if math.isnan(self.duality_gap_):
            text = "the length of a proximal gradient step; there is no duality gap"
            end = ("Residual", f"{last.get('residual', math.nan):.3g}, {text}")
        text = f"{strength:.6g} ({first}={value:.6g}, l1_ratio={self.l1_ratio:g}){chosen_by}"
        rounds = f"{self.n_iter_}" + f", not solved to tol={self.tol:g}" * unsolved
        self._lines = [("Strength", text), ("Data", data), ("Rounds", rounds), end]
        if self.site_intercepts:
            self._lines.append(("Intercepts", "each site's own, which have stayed there"))
        proved = proved_zero(strategy)["coefficients"].reshape(-1, outputs)
        self.proved_zero_ = proved[:, 0] if first == "alpha" else np.ascontiguousarray(proved.T)
        if proved.any():
            count = np.count_nonzero(proved.all(axis=1))
            self._lines.append(("Proved zero", f"{count} features, which no optimum of the pooled problem has"))
