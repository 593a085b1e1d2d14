"""A client's work in a round: stochastic gradient steps, one minimisation to a tolerance, or one evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import ClassVar, Literal

from flwr_fco.core.spec import Specified
from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE, checked
from flwr_fco.errors import ConfigurationError

__all__ = ["Epochs", "Evaluation", "FirstOrder", "LocalWork", "Minimise", "Steps", "Work"]


class LocalWork(Specified):
    """Base class of what a client does in a round."""

    family: ClassVar[str] = "work"


@dataclass(frozen=True, repr=False)
class FirstOrder(LocalWork):
    """Steps along stochastic gradients; :func:`Epochs` and :func:`Steps` are the short ways to write one.

    Parameters
    ----------
    steps : int, optional
        Minibatches per round, K.
    epochs : int, optional
        Passes over the client's data per round, instead of `steps`. Default 1 if `steps` is not given.
    batch_size : int or None, default 32
        Rows in a minibatch; None uses full batches, without any randomness.

    Raises
    ------
    ConfigurationError
        If both `steps` and `epochs` are given, or a value is not a whole number >= 1.

    Examples
    --------
    >>> FirstOrder()
    Epochs(1, batch_size=32)
    >>> str(FirstOrder(steps=5, batch_size=None))
    '5 steps in full batches'
    """

    kind: ClassVar[str] = "steps"

    steps: int | None = field(default=None, metadata=AT_LEAST_ONE)
    epochs: int | None = field(default=None, metadata=AT_LEAST_ONE)
    batch_size: int | None = field(default=32, metadata=AT_LEAST_ONE)

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 1)
        if self.steps is not None and self.epochs is not None:
            raise ConfigurationError(f"epochs={self.epochs!r} and steps={self.steps!r}; give one of them")
        super().__post_init__()

    def __repr__(self) -> str:
        count = f"Epochs({self.epochs}" if self.steps is None else f"Steps({self.steps}"
        return f"{count}, batch_size={self.batch_size})"

    def __str__(self) -> str:
        n, work = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{n} {work}{'s' * (n != 1)} in " + (f"batches of {b}" if (b := self.batch_size) else "full batches")

    def num_draws(self, num_examples: int, per_step: int = 1) -> int:
        """Return the number of minibatches drawn: steps times `per_step`, or the epochs' minibatches.

        Parameters
        ----------
        num_examples : int
            The client's number of examples.
        per_step : int, default 1
            Minibatches per step. With `epochs`, the total is rounded up to whole steps.
        """
        per_epoch = 1 if self.batch_size is None else -(-num_examples // self.batch_size)
        steps = -(-(self.epochs or 1) * per_epoch // per_step) if self.steps is None else self.steps
        return steps * per_step

    def epoch_sizes(self, num_examples: int, per_step: int = 1) -> Iterator[int]:
        """Return how many rows of each shuffled epoch are used: all, but for the last the remaining batches.

        Parameters
        ----------
        num_examples : int
            The client's number of examples.
        per_step : int, default 1
            Minibatches per step.

        Examples
        --------
        >>> list(Steps(3, batch_size=2).epoch_sizes(4))
        [4, 2]
        """
        assert self.batch_size is not None
        whole, rest = divmod(self.num_draws(num_examples, per_step), -(-num_examples // self.batch_size))
        return chain(repeat(num_examples, whole), [rest * self.batch_size] * int(rest > 0))


def Epochs(count: int = 1, batch_size: int | None = 32) -> FirstOrder:
    """Return the work of so many passes over a client's data.

    Parameters
    ----------
    count : int, default 1
        Passes over the client's data per round.
    batch_size : int or None, default 32
        Rows in a minibatch; None uses full batches, without any randomness.

    Examples
    --------
    >>> Epochs(5, batch_size=10) == FirstOrder(epochs=5, batch_size=10)
    True
    """
    return FirstOrder(epochs=checked("Epochs", count, int, AT_LEAST_ONE), batch_size=batch_size)


def Steps(count: int, batch_size: int | None = 32) -> FirstOrder:
    """Return the work of so many minibatches.

    Parameters
    ----------
    count : int
        Minibatches per round, K.
    batch_size : int or None, default 32
        Rows in a minibatch; None uses full batches, without any randomness.

    Examples
    --------
    >>> Steps(10, batch_size=None).num_draws(num_examples=500)
    10
    """
    return FirstOrder(steps=checked("Steps", count, int, AT_LEAST_ONE), batch_size=batch_size)


@dataclass(frozen=True)
class Minimise(LocalWork):
    """One minimisation of the client's loss with linear and quadratic terms, to a tolerance.

    Parameters
    ----------
    tolerance : float, default 1e-10
        Tolerance of the stopping rule.
    rule : {"gradient", "gap"}, default "gradient"
        ``"gradient"``: the norm of the gradient of the minimised function. ``"gap"``: a certified primal-dual gap, for
        which its strong convexity must be known.
    max_iterations : int, default 10000
        A client that reaches this limit reports it in its metrics.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> str(Minimise(tolerance=1e-12))
    'minimise until the gradient is below 1e-12'
    """

    kind: ClassVar[str] = "minimise"

    tolerance: float = field(default=1e-10, metadata=POSITIVE)
    rule: Literal["gradient", "gap"] = "gradient"
    max_iterations: int = field(default=10_000, metadata=AT_LEAST_ONE)

    def __str__(self) -> str:
        return f"minimise until the {self.rule} is below {self.tolerance:g}"

    def stopping_norm(self, convexity: float, duality: float = 0.0) -> float:
        """Return the norm of the gradient at which the rule is met.

        With modulus m of strong convexity the value is within ||gradient||^2 / (2 m) of the minimum. DualFL's gap (3.6)
        is at most ||gradient||^2 / (2 (m - nu)), a bound that requires nu < m.

        Parameters
        ----------
        convexity : float
            m; 0 if it is not known.
        duality : float, default 0.0
            nu.

        Raises
        ------
        ConfigurationError
            If the rule is ``"gap"`` and the gradient bounds no gap.

        Examples
        --------
        >>> Minimise(tolerance=1e-8, rule="gap").stopping_norm(2.0)
        0.0002
        """
        if self.rule == "gradient":
            return self.tolerance
        if not convexity > duality:
            problem = f"rule='gap' needs a strong convexity above {duality:g}, and only {convexity:g} is known"
            advice = "Use rule='gradient', schedule='fixed', an l2 term in the loss, or a nu of DualFL's below it"
            raise ConfigurationError(f"{problem}. {advice}")
        return math.sqrt(2.0 * (convexity - duality) * self.tolerance)


@dataclass(frozen=True)
class Evaluation(LocalWork):
    """One evaluation of the client's loss and its derivatives, at the server's point.

    Examples
    --------
    >>> str(Evaluation())
    'evaluate the loss and its derivatives'
    """

    kind: ClassVar[str] = "evaluation"
    #: As a minimisation that takes one iteration, where servers and clients limit these.
    max_iterations: ClassVar[int] = 1

    def __str__(self) -> str:
        return "evaluate the loss and its derivatives"


Work = FirstOrder | Minimise | Evaluation
