"""The estimator of survival times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import is_missing
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference.federated import TIMES
from flwr_fco.objectives import CoxRegression
from flwr_fco.objectives.survival import baseline, concordance
from flwr_fco.regularizers import Regularizer
from flwr_fco.sklearn.base import Federated
from flwr_fco.sklearn.reading import are_parts

#: The fields of targets that are no time and no event.
_ENTRY, _STRATA = "entry", "strata"
_EXPECTED = (
    "expected two columns, the time and 1 for an event or 0 for a censored row; or a structured array or a frame with "
    "a time, a boolean event, and where there are any 'entry' and 'strata'"
)


@dataclass(repr=False, eq=False)
class FederatedCoxRegression(Federated):
    """Cox regression over several clients, each a stratum with its own baseline hazard, without pooling the rows.

    -1/n log partial likelihood + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2), over the n rows of all clients:
    ``alpha`` is that of scikit-survival's ``CoxnetSurvivalAnalysis``, and 0 is the usual Cox regression.

    The `y` of :meth:`fit` has two columns: the times, and 1 for an event or 0 for a censored row, in this order. Or it
    is scikit-survival's structured array of a boolean event and a time. A structured array or a frame may have the
    fields ``"entry"``, the time from which on a row is under observation, and ``"strata"``, strata within the clients.

    Parameters
    ----------
    alpha : float, default 0.0
        Strength, >= 0.
    l1_ratio : float, default 1.0
        Between 0 (ridge) and 1 (lasso).
    ties : {"efron", "breslow"}, default "efron"
        What is done with events at the same time (:class:`flwr_fco.objectives.CoxRegression`).
    num_clients : int, default 4
        Number of clients that `fit(X, y)` deals the rows to; fewer if there are fewer rows. Each is a stratum: of
        pooled rows that have one baseline, take 1.
    max_rounds : int, default 5000
        The fit ends with a warning after this many rounds; about a dozen are enough.
    tol : float, default 1e-14
        The fit ends at a duality gap of this fraction of the loss at 0, or where rounding allows no smaller one.
        Without a penalty, or with a factor of 0, there is no gap: it ends at a proximal gradient step that short.
    penalty_factor : mapping of str to float, or array-like, shape (d,), optional
        Factor >= 0 of a feature's penalty, as in :class:`FederatedElasticNet`.
    standardize : bool, default False
        Penalise the coefficients of features that are divided by their standard deviations over the rows of all
        clients; `coef_` is that of the features as they are.
    cv : int, Strengths or list of splits, optional
        Choose the strength by a cross-validation, as in :class:`FederatedElasticNet`, by the partial likelihood of the
        left-out rows alone; `alpha` is then ignored.

    Attributes
    ----------
    coef_ : ndarray, shape (d,)
        Coefficients: logarithms of hazard ratios.
    n_iter_ : int
        Number of rounds: messages to each client, the one before round 1 included.
    duality_gap_ : float
        Bound on how far the objective is above the optimum, from the clients' sums; NaN without a penalty.
    proved_zero_ : ndarray of bool, shape (d,)
        Which coefficients are zero in every optimum of the problem, as far as the duality gap proves it.
    path_ : PathResult
        With `cv`, the models and losses of all strengths.
    strength_ : float
        With `cv`, the chosen `alpha`.

    Examples
    --------
    >>> X, times = np.array([[0.0], [1.0], [1.0], [0.0]]), np.array([[3.0, 1], [2.0, 1], [1.0, 1], [1.5, 1]])
    >>> model = FederatedCoxRegression(num_clients=1).fit(X, times)
    >>> model.coef_.round(6), model.predict([[2.0]]).round(6)
    (array([0.940614]), array([1.881227]))
    """

    # A class attribute, not a parameter: an intercept would be part of the baseline.
    fit_intercept: bool = field(default=False, init=False)
    # Each site is a stratum, whose baseline takes the place of an intercept.
    site_intercepts: None = field(default=None, init=False)
    alpha: float = 0.0
    l1_ratio: float = field(default=1.0, kw_only=True)
    ties: Literal["efron", "breslow"] = field(default="efron", kw_only=True)
    _kind = TIMES
    _of_y = MappingProxyType({"multi_output": True})

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return each row's risk score, shape (n,): the logarithm of its hazard ratio to a row of zeros."""
        return np.asarray(self._features(X) @ self.coef_)

    def predict_survival_function(
        self, X: ArrayLike, times: ArrayLike, own: tuple[Any, Any], *, strata: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return the chances that rows of a site have no event up to some times, with the site's own baseline.

        Call it at the site: the baseline is Breslow's, of the site's rows, and nothing is sent.

        Parameters
        ----------
        X : array-like, shape (n, d)
            The rows to predict.
        times : array-like, shape (T,)
            The times, in the unit of the site's.
        own : pair of array-like
            The site's rows and their times and events, as for :meth:`fit`, of which the baseline is made.
        strata : array-like, shape (n,), optional
            The stratum of each row of `X`; needed if the site has several.

        Returns
        -------
        ndarray of float64, shape (n, T)
            The chances; NaN after the last time that the site, or the row's stratum, was under observation.

        Raises
        ------
        ConfigurationError
            If the site has no event, or a stratum is not one of the site's.

        References
        ----------
        Breslow: Discussion of Cox's regression models and life-tables (J. R. Stat. Soc. B 1972).

        Examples
        --------
        >>> X, y = np.array([[0.0], [1.0], [1.0], [0.0]]), np.array([[3.0, 1], [2.0, 1], [1.0, 1], [1.5, 0]])
        >>> model = FederatedCoxRegression(0.1, num_clients=1).fit(X, y)
        >>> model.predict_survival_function([[0.0], [1.0]], [1.0, 2.5, 4.0], (X, y)).round(3)
        array([[0.905, 0.741,   nan],
               [0.67 , 0.301,   nan]])
        """
        scores = self.predict(X)
        objective = self._objective(self._features(own[0]), self._targets(own[1]))
        if not objective.num_events:
            raise ConfigurationError("own=(X, y) has no event, so there is no baseline; give a site's rows with events")
        found = baseline(objective, self.coef_)
        known = np.unique(_fields_of(own[1])[1].get(_STRATA, 0)).tolist()
        given = np.broadcast_to(known, (scores.size,)) if strata is None and len(known) == 1 else strata
        labels = [] if given is None else np.asarray(given).tolist()
        if len(labels) != scores.size or not set(labels) <= set(known):
            raise ConfigurationError(
                f"strata={strata!r}; expected for each of the {scores.size} rows of X one of the site's, which are "
                f"{known[:10]}"
            )
        hazards = np.array([found.at(known.index(label), times) for label in labels])
        return np.asarray(np.exp(-hazards * np.exp(scores)[:, None]))

    def score(self, X: ArrayLike, y: Any) -> float:
        """Return Harrell's concordance of the risk scores with the times of one site, or of the strata in `y`.

        Parameters
        ----------
        X : array-like, shape (n, d)
            The features.
        y : array-like, shape (n, 2), structured array or frame
            The times and events, as for :meth:`fit`.
        """
        ordered, compared = concordance(self._objective(self._features(X), self._targets(y)), self.coef_)
        return ordered / compared if compared else math.nan

    def _told(self, X: Any, y: Any) -> Any:
        several = are_parts(X) and isinstance(y, list | tuple)
        return [self._targets(own) for own in y] if several else self._targets(y)

    @staticmethod
    def _targets(y: Any) -> NDArray[np.float64]:
        """Return times, events, entries and strata, shape (n, 4): an entry of -1 is before all times."""
        pair, more, found = _fields_of(y)
        if len(pair) != 2:
            raise ConfigurationError(f"y has {found}; {_EXPECTED}")
        if pair[0].dtype == np.bool_ and pair[1].dtype != np.bool_:
            pair.reverse()
        try:
            times, events = (own.astype(np.float64) for own in pair)
            entry = more[_ENTRY].astype(np.float64) if _ENTRY in more else np.full(len(times), -1.0)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"y has times, events or entries that are no numbers; {_EXPECTED}") from error
        strata = more.get(_STRATA, np.zeros(len(times), dtype=np.int64))
        if any(is_missing(label) for label in strata.tolist()):
            raise ConfigurationError("y has a stratum that is missing; give such rows a stratum, or leave them out")
        return np.column_stack([times, events, entry, np.unique(strata, return_inverse=True)[1]])

    def _objective(self, X: Any, y: NDArray[np.float64], weights: Vector | None = None) -> CoxRegression:
        times, events, entry, strata = y.T
        return CoxRegression(X, times, events, ties=self.ties, entry=entry, strata=strata, sample_weight=weights)

    def _strategy(self, psi: Regularizer, told: list[tuple[float, float, Vector]], outputs: int, **more: Any) -> Any:
        if not any(weight * loss > 0.0 for weight, loss, _ in told):
            raise ConfigurationError(
                "there is no event at which anybody else of the same client and stratum is at risk, so there is "
                "nothing to fit; events are 1 and censored rows 0"
            )
        return super()._strategy(psi, told, outputs, **more)


def _fields_of(y: Any) -> tuple[list[NDArray[Any]], dict[str, NDArray[Any]], str]:
    """Return time and event in the order in which targets have them, entry and strata by name, and what was given."""
    array = np.asarray(y)
    names = list(y.columns) if hasattr(y, "columns") else list(array.dtype.names or ())
    if not names:
        return list(array.T) if array.ndim == 2 else [], {}, f"an array of shape {array.shape}"
    fields = {name: np.asarray(y[name]) for name in names}
    more = {name: fields.pop(name) for name in (_ENTRY, _STRATA) if name in fields}
    return list(fields.values()), more, f"the fields {names}"
