"""What may leave a site, as its owner says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from flwr_fco.core.validation import AT_LEAST_ONE, Choice
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Poisson
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.linear import Linear


@dataclass(frozen=True)
class Disclosure(Choice):
    """Limits that a site's owner sets on what its answers give away of its rows; by default there are none.

    `min_rows`, `min_events` and `min_class_rows` are about every answer: training in each strategy, evaluations,
    questions. A site below them answers with an error, which names the limit and not the site's own numbers. A site
    whose owner gives a Disclosure, also one without limits, writes a line of its log for each message: what the server
    asked for, and what the site has sent, or why it has refused.

    Numbers of rows are no limit on how much leaves: who asks often enough can solve for single rows. Second derivatives
    tell most; a federation that does not want to give them fits with ``FedNewton(hessian="none")``, at every site.

    Parameters
    ----------
    min_rows : int, optional
        Smallest number of rows that an answer is about.
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

    Examples
    --------
    >>> Disclosure(min_rows=20).check_rows(12, "the gradient of fold 2")
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: the server asks for the gradient of fold 2; this site has fewer rows for it than min_rows=20 allows. Its owner can change the limit: client_app(..., disclosure=Disclosure(min_rows=...))
    """  # noqa: E501

    min_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    min_class_rows: int | None = field(default=None, metadata=AT_LEAST_ONE)
    min_events: int | None = field(default=None, metadata=AT_LEAST_ONE)

    @property
    def limits_rows(self) -> bool:
        """Whether there is a limit on what an answer is about."""
        return any(getattr(self, limit.name) is not None for limit in fields(self))

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
    return [] if isinstance(objective, Linear) else None


def _events_of(objective: Objective) -> list[int] | None:
    """Return the rows with an event, of a loss with classes those of each class, as :func:`_classes_of` does."""
    events: Any = getattr(objective, "num_events", None)
    if events is not None:
        return [int(events)]
    if isinstance(objective, Poisson):
        return [int((objective.targets > 0.0).sum())]
    return _classes_of(objective)
