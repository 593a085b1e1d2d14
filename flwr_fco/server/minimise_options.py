"""The options of strategies whose clients minimise to a tolerance instead of taking gradient steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flwr_fco.server.options import AT_LEAST_ONE, POSITIVE
from flwr_fco.work import Minimise, Work

__all__ = ["MinimiseOptions"]

EngineName = Literal["auto", "aogm", "lbfgs", "preconditioned-lbfgs", "newton-cg", "exact", "dual-ascent"]


@dataclass(repr=False, eq=False, kw_only=True)
class MinimiseOptions:
    """Options of a strategy whose clients minimise their loss with linear and quadratic terms.

    Parameters
    ----------
    engine : str, default "auto"
        ``"aogm"`` (the optimised gradient method with adaptive restart), ``"lbfgs"`` (SciPy's),
        ``"preconditioned-lbfgs"``, ``"newton-cg"``, ``"exact"`` (quadratics), ``"dual-ascent"`` (the hinge loss), or
        ``"auto"``: the fastest that a client's objective allows.
    tolerance : float, default 1e-10
        What the stopping rule is compared with.
    rule : {"gradient", "energy", "gap"}, default "gradient"
        The norm of the gradient, the relative change of the value, or a certified primal-dual gap.
    max_iterations : int, default 10000
        Of the engine. A client that stops there is counted in the round's metric ``num-capped``, and logged.
    """

    engine: EngineName = "auto"
    tolerance: float = field(default=1e-10, metadata=POSITIVE)
    rule: Literal["gradient", "energy", "gap"] = "gradient"
    max_iterations: int = field(default=10_000, metadata=AT_LEAST_ONE)

    def work(self) -> Work:
        """Return the minimisation of every round."""
        return Minimise(self.engine, self.tolerance, self.rule, self.max_iterations)
