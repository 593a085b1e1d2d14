"""A separate regularizer for each array of a model, and proximal operators from other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np

from flwr_fco.core.layout import Layout, checked_patterns, first_match, require_matches
from flwr_fco.core.validation import enter
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import Array, BoundRegularizer, Regularizer, Scope
from flwr_fco.regularizers.separable import Zero


@dataclass(frozen=True)
class PerParameter(Regularizer):
    """A psi for each array, chosen by its name: psi(w) = sum over arrays of psi_array(w_array).

    The proximal map applies each array's own. It acts on named arrays only: ``bind`` it to a layout, as strategies and
    clients do. ``regularizer.for_array(name)`` returns the regularizer of an array.

    Parameters
    ----------
    regularizers : mapping of str to Regularizer
        Shell patterns (``"*.weight"``) and the regularizer of the matching arrays. The first match wins; an array that
        matches no pattern has no regularizer.

    Raises
    ------
    ConfigurationError
        If the mapping is empty, a key is not a string or a value is not a regularizer. At :meth:`bind`, if a pattern is
        not the first match of any array that the regularizer acts on.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.core.layout import Layout
    >>> from flwr_fco.regularizers import L1, L2Squared
    >>> layout = Layout.from_arrays({"first": np.zeros((1, 2)), "second": np.zeros((1, 2))})
    >>> psi = PerParameter({"first": L1(1.0), "*": L2Squared(1.0)})
    >>> psi.bind(layout).prox(np.array([3.0, 0.5, 3.0, 0.5]), 1.0)
    array([2.  , 0.  , 1.5 , 0.25])
    """

    kind: ClassVar[str] = "per-parameter"
    by_name: ClassVar[bool] = True
    regularizers: Mapping[str, Regularizer]

    def __post_init__(self) -> None:
        own = lambda psi: isinstance(psi, Regularizer) and not psi.by_name  # noqa: E731
        patterns = checked_patterns("PerParameter", self.regularizers, "regularizer", own)
        convex = all(psi.convex for psi in patterns.values())
        # One that leaves its arrays alone takes nothing from the others.
        constraint = all(psi.constraint or isinstance(psi, Zero) for psi in patterns.values())
        vars(self).update(regularizers=patterns, convex=convex, constraint=constraint)

    def for_array(self, name: str) -> Regularizer | None:
        """Return the regularizer of the first pattern that matches, or None."""
        pattern = first_match(self.regularizers, name)
        return None if pattern is None else self.regularizers[pattern]

    def among(self, names: Sequence[str]) -> Regularizer:
        """Return psi of these arrays: without the patterns that are the first match of none of them.

        Parameters
        ----------
        names : sequence of str
            Names of arrays.

        Examples
        --------
        >>> PerParameter({"head.*": Zero(), "*": Zero()}).among(["body.weight"])
        PerParameter(regularizers={'*': Zero()})
        """
        used = {first_match(self.regularizers, name) for name in names}
        left = {pattern: psi for pattern, psi in self.regularizers.items() if pattern in used}
        return PerParameter(left) if left else Zero()

    def bind(self, layout: Layout, *, scope: Scope = "each") -> BoundRegularizer:
        """Return psi as a function of the flat vector of a model; every pattern must match an array.

        Raises
        ------
        ConfigurationError
            If a pattern matches none, because a misspelt name would leave its array without a regularizer.
        """
        left_alone = [entry.name for entry in layout.optimized if not entry.regularized]
        self.require_names(layout.regularized_names, left_alone)
        return super().bind(layout, scope=scope)

    def require_names(self, names: Sequence[str], left_alone: Sequence[str] = ()) -> None:
        """Raise unless every pattern is the first match of at least one array name.

        Parameters
        ----------
        names : sequence of str
            Names of the regularized arrays.
        left_alone : sequence of str, default ()
            Names of the other arrays, for the error message.

        Raises
        ------
        ConfigurationError
            If a pattern is not the first match of any name.
        """
        besides = f" ({list(left_alone)} are not regularized: name them in apply_to=)" if left_alone else ""
        require_matches("PerParameter", self.regularizers, names, besides)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise, because single-array operations require the regularizer of that array."""
        prefix = "PerParameter acts on named arrays, one by one"
        raise ConfigurationError(f"{prefix}: use psi.bind(layout) with scope='each', or psi.for_array(name) of one")

    value = prox = subgradient = check_shape = _refuse


#: Named factories of operators; see Adapter.register.
FACTORIES: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Adapter(Regularizer):
    """Any object with pyproximal's interface as psi: psi(w) = operator(w), and its ``operator.prox``.

    The proximal map is the operator's::

        argmin_w step * psi(w) + 1/2 ||w - v||^2 = operator.prox(v, step)

    and as exact as the operator's. The operator receives the array as one vector (a copy), and its value may be boolean
    (inside or outside), as for pyproximal's indicators. At step 0 the map returns v without calling ``operator.prox``,
    unless the value is boolean.

    Parameters
    ----------
    name : str
        Name of a factory of operators registered with :meth:`register`; only the name and the `arguments` are sent. An
        operator has ``operator(x) -> float | bool`` and ``operator.prox(x, tau) -> array``.
    arguments : mapping of str to number, string or array, optional
        Keyword arguments of the factory.

    Raises
    ------
    ConfigurationError
        If the name is not registered, or the operator lacks the two methods.

    Examples
    --------
    >>> import numpy as np
    >>> class Huber:
    ...     def __init__(self, sigma):
    ...         self.sigma = sigma
    ...     def __call__(self, x):
    ...         return float(np.where(abs(x) > self.sigma, abs(x) - self.sigma / 2, x**2 / (2 * self.sigma)).sum())
    ...     def prox(self, x, tau):
    ...         return x - tau * x / np.maximum(abs(x), tau + self.sigma)
    >>> _ = Adapter.register("huber", Huber)
    >>> psi = Adapter("huber", {"sigma": 1.0})
    >>> psi.prox(np.array([3.0, 0.5]), 1.0)
    array([2.  , 0.25])
    >>> Regularizer.from_spec(psi.to_spec()) == psi
    True
    """

    kind: ClassVar[str] = "adapter"
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in FACTORIES or not isinstance(self.arguments, Mapping):
            prefix = f"Adapter({self.name!r}, {self.arguments!r}): expected a registered name and a mapping"
            advice = f"call Adapter.register({self.name!r}, factory) in a module of both ServerApp and ClientApp"
            raise ConfigurationError(f"{prefix}; known here: {', '.join(sorted(FACTORIES)) or 'none'}; {advice}")
        operator = FACTORIES[self.name](**self.arguments)
        if not callable(operator) or not callable(getattr(operator, "prox", None)):
            raise ConfigurationError(f"Adapter: {operator!r}; expected operator(x) and operator.prox(x, tau)")
        vars(self).update(arguments=dict(self.arguments), _operator=operator)

    def __reduce__(self) -> tuple[type[Adapter], tuple[str, Mapping[str, Any]]]:
        """Pickle by constructor: the operator is made again."""
        return type(self), (self.name, self.arguments)

    @staticmethod
    def register(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Register a factory of operators under a name, so that the adapter can be sent to clients.

        Call it in a module that both the ServerApp and the ClientApp import: only the name and the arguments are sent,
        never code.

        Parameters
        ----------
        name : str
            A name of your choice.
        factory : callable
            A class or function that returns an operator; called with the arguments given to :class:`Adapter`.

        Returns
        -------
        callable
            The factory.

        Raises
        ------
        ConfigurationError
            If the name is already registered for another factory.
        """
        enter(FACTORIES, name, factory, "the name is taken: an operator called")
        return factory

    def value(self, w: Array) -> float:
        """Return operator(w); an indicator's True and False become 0.0 and inf."""
        result = self._operator(w.reshape(-1).copy())  # type: ignore[attr-defined]
        if isinstance(result, bool | np.bool_):
            return 0.0 if result else float(np.inf)
        return float(result)

    def solve(self, v: Array, step: float, out: Array) -> None:
        """Write operator.prox(v, step)."""
        point = v.reshape(-1).copy()
        operator = self._operator  # type: ignore[attr-defined]
        if step > 0.0 or isinstance(operator(point.copy()), bool | np.bool_):
            # An indicator ignores the step, but may divide by it.
            point = np.asarray(operator.prox(point, step or 1.0))
        np.add(point.reshape(v.shape), 0.0, out=out, casting="same_kind")
