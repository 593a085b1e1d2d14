"""What may leave a site, as its owner says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.validation import AT_LEAST_ONE, NON_NEGATIVE, Choice
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression, Poisson
from flwr_fco.objectives._linear import LinearModel
from flwr_fco.objectives.base import Objective


@dataclass(frozen=True)
class Disclosure(Choice):
    """Limits that a site's owner sets on what its answers give away of its rows; by default there are none.

    `min_rows`, `min_events` and `min_class_rows` are about every answer: training in each strategy, evaluations,
    questions. A site below them answers with an error, which names the limit and not the site's own numbers. A site
    whose owner gives a Disclosure, also one without limits, writes a line of its log for each message: what the server
    asked for, and what the site has sent, or why it has refused.

    `hessian_share` is about second derivatives. Every vector that leaves is a weighted sum of the site's rows: a
    gradient, an increment or the means of the columns is one, a block of the Hessian on k columns is k (with several
    outputs, each of these times their number). They are counted over the whole run, and a block leaves only if the
    count, with it, is at most `hessian_share` times the rows. Below 1, what has left by then has fewer equations than
    the rows have unknowns, on any set of columns: a block has (k + 1) / 2 a column. Gradients count, but are not
    refused: a run that goes on by gradients sends one a round. Numbers (the loss, its conjugate) are not counted. A
    count does not judge the points that a server asks about, which can single out rows. A path of strengths is refused.

    The count is kept in the node's ``context.state``: for one run at one SuperNode, through all its processes. Another
    run, one that resumes a run over a SuperLink too, begins at 0, and so does a SuperNode that is started again; who
    may start runs is decided by Flower's authentication.

    Parameters
    ----------
    min_rows : int, optional
        Smallest number of rows that an answer is about.
    hessian_share : float, optional
        Weighted sums of rows that may have left when a Hessian block leaves, as a multiple of the number of rows, >= 0;
        0 forbids Hessian blocks. DataSHIELD's ``nfilter.glm``, 1/3 by default, compares a model's parameters with the
        rows in the same way, but in each message by itself.
    min_class_rows : int, optional
        For losses with classes, the smallest number of rows of a class that occurs at the site. Rows with an event and
        censored rows are two classes.
    min_events : int, optional
        Smallest number of rows with an event, if there are any: deaths of ``CoxRegression``, counts above 0 of
        ``Poisson``, the rows of each class of a loss with classes. A loss of your own says it in an attribute
        ``num_events``. Losses of numbers, such as squares, have no events.

    Raises
    ------
    ConfigurationError
        If a limit is of another type or out of range.

    References
    ----------
    Gaye and others: DataSHIELD: taking the analysis to the data, not the data to the analysis (Int. J. Epidemiol.
    2014).

    Examples
    --------
    >>> Disclosure(min_rows=20, hessian_share=1 / 3).check_rows(12, "the gradient of fold 2")
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: the server asks for the gradient of fold 2; this site has fewer rows for it than min_rows=20 allows. Its owner can change the limit: client_app(..., disclosure=Disclosure(min_rows=...))
    """  # noqa: E501

    min_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    hessian_share: float | None = field(default=None, metadata=NON_NEGATIVE)
    min_class_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    min_events: int | None = field(default=None, metadata=AT_LEAST_ONE)

    @property
    def limits_rows(self) -> bool:
        """Whether there is a limit on what an answer is about, besides that on second derivatives."""
        return any(getattr(self, limit.name) is not None for limit in fields(self) if limit.name != "hessian_share")

    def check(self, objective: Objective, what: str) -> None:
        """Refuse an answer about the rows of an objective.

        Parameters
        ----------
        objective : Objective
            The loss on these rows.
        what : str
            What the server asks for; used in the error message.

        Raises
        ------
        ConfigurationError
            If they are fewer than `min_rows`, those of a class fewer than `min_class_rows`, or those with an event
            fewer than `min_events`; or if the objective does not say its classes or events.
        """
        self.check_rows(int(objective.num_examples), what)
        if self.min_class_rows is not None:
            self.check_classes(self._said(_classes_of(objective), objective, "min_class_rows", what), what)
        if self.min_events is not None:
            self.check_events(self._said(_events_of(objective), objective, "min_events", what), what)

    def check_rows(self, rows: int, what: str) -> None:
        """Refuse an answer about fewer rows than `min_rows`.

        Parameters
        ----------
        rows : int
            How many rows the answer is about: the site's, or those of a fold or of a difference of folds.
        what : str
            What the server asks for; used in the error message.

        Raises
        ------
        ConfigurationError
            If they are fewer; the message does not say how many there are.
        """
        if self.min_rows is not None and rows < self.min_rows:
            raise self._refusal("min_rows", what, "has fewer rows for it than")

    def check_classes(self, counts: Iterable[int], what: str) -> None:
        """Refuse an answer about a class of fewer rows than `min_class_rows`, but more than 0.

        Parameters
        ----------
        counts : iterable of int
            Number of rows of each class.
        what : str
            What the server asks for; used in the error message.

        Raises
        ------
        ConfigurationError
            If a class has fewer; the message does not say which one.
        """
        if self.min_class_rows is not None and any(0 < count < self.min_class_rows for count in counts):
            raise self._refusal("min_class_rows", what, "has a class with fewer rows than")

    def check_events(self, counts: Iterable[int], what: str) -> None:
        """Refuse an answer about fewer rows with an event than `min_events`, but more than 0.

        Parameters
        ----------
        counts : iterable of int
            Number of rows with an event; of a loss with classes, of each class.
        what : str
            What the server asks for; used in the error message.

        Raises
        ------
        ConfigurationError
            If there are fewer; the message does not say how many.
        """
        if self.min_events is not None and any(0 < count < self.min_events for count in counts):
            raise self._refusal("min_events", what, "has fewer events than")

    def most_sums(self, rows: int) -> float:
        """Return how many weighted sums of the rows may have left when a Hessian block leaves.

        Parameters
        ----------
        rows : int
            The site's number of rows.

        Examples
        --------
        >>> Disclosure(hessian_share=1 / 3).most_sums(300), Disclosure().most_sums(300)
        (100, inf)
        """
        if self.hessian_share is None:
            return math.inf
        # A third of 300 rows is 100, whatever is lost to rounding.
        return math.floor(min(self.hessian_share * rows * (1.0 + 1e-12), 2.0**53))

    def _said(self, counts: list[int] | None, objective: Objective, limit: str, what: str) -> list[int]:
        if counts is None:
            classes = limit == "min_class_rows"
            which, attribute = ("which class each row has", "labels") if classes else ("its events", "num_events")
            raise ConfigurationError(
                f"the server asks for {what}; this site's owner sets {limit}={getattr(self, limit)}, and its "
                f"{type(objective).__name__} does not say {which}: give it an attribute `{attribute}`, or leave the "
                "limit out"
            )
        return counts

    def _refusal(self, limit: str, what: str, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"the server asks for {what}; this site {why} {limit}={getattr(self, limit)} allows. Its owner can change "
            f"the limit: client_app(..., disclosure=Disclosure({limit}=...))"
        )


def _classes_of(objective: Objective) -> list[int] | None:
    """Return the rows of each class; none of a loss of numbers, and None of one that does not say."""
    labels: Any = getattr(objective, "labels", None)
    if labels is not None:
        return [int(count) for count in np.unique(labels, return_counts=True)[1]]
    data = objective.linear_data()
    numbers = isinstance(objective, LinearModel) or (data is not None and data.link == "identity")
    return [] if numbers else None


def _events_of(objective: Objective) -> list[int] | None:
    """Return the rows with an event, of a loss with classes those of each class, as :func:`_classes_of` does."""
    events: Any = getattr(objective, "num_events", None)
    if events is not None:
        return [int(events)]
    rows = rows_with_events(objective)
    return [int(own.sum()) for own in rows] if rows else _classes_of(objective)


def rows_with_events(objective: Objective) -> list[NDArray[np.bool_]]:
    """Return which rows have an event, of a loss with classes for each class; nothing if it does not say.

    Parameters
    ----------
    objective : Objective
        The loss on the rows.
    """
    if isinstance(objective, Poisson):
        return [objective.targets > 0.0]
    labels: Any = getattr(objective, "labels", None)
    if labels is None:
        return []
    kinds = [1] if isinstance(objective, CoxRegression) else np.unique(labels)
    return [np.asarray(labels == kind) for kind in kinds]
