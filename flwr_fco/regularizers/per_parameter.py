"""A separate regularizer for each array of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, Scope

_MOST_PATTERNS = 1_000


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
    regularizers: Mapping[str, Regularizer]

    def __post_init__(self) -> None:
        if not isinstance(self.regularizers, Mapping) or not self.regularizers:
            raise ConfigurationError(
                f"PerParameter({self.regularizers!r}): expected a non-empty mapping of shell patterns to regularizers, "
                'such as {"*.weight": L1(0.1)}'
            )
        for pattern, regularizer in self.regularizers.items():
            is_one = isinstance(regularizer, Regularizer) and not isinstance(regularizer, PerParameter)
            if not isinstance(pattern, str) or not is_one:
                raise ConfigurationError(
                    f"PerParameter: {pattern!r}: {regularizer!r}; expected a shell pattern and one array's regularizer"
                )
        if len(self.regularizers) > _MOST_PATTERNS:
            raise ConfigurationError(
                f"PerParameter: {len(self.regularizers)} patterns; expected at most {_MOST_PATTERNS}: every array is "
                "compared with every pattern. Write one pattern for many arrays"
            )
        object.__setattr__(self, "regularizers", MappingProxyType(dict(self.regularizers)))

    def __reduce__(self) -> tuple[type[PerParameter], tuple[dict[str, Regularizer]]]:
        """Pickle by constructor: a mapping proxy does not pickle (Ray copies strategies between processes)."""
        return type(self), (dict(self.regularizers),)

    @property
    def convex(self) -> bool:  # type: ignore[override]
        """Whether every psi is convex."""
        return all(regularizer.convex for regularizer in self.regularizers.values())

    def for_array(self, name: str) -> Regularizer | None:
        """Return the regularizer of the first pattern that matches, or None."""
        for pattern, regularizer in self.regularizers.items():
            if fnmatchcase(name, pattern):
                return regularizer.for_array(name)
        return None

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
        left_alone : sequence of str
            Names of the other arrays, for the error message.

        Raises
        ------
        ConfigurationError
            If a pattern is not the first match of any name.
        """
        unused = dict.fromkeys(self.regularizers)
        for name in names:
            unused.pop(next((pattern for pattern in self.regularizers if fnmatchcase(name, pattern)), ""), None)
        if unused:
            besides = f" ({list(left_alone)} are not regularized: name them in apply_to=)" if left_alone else ""
            raise ConfigurationError(
                f"PerParameter: the patterns {list(unused)} match no array that is still free; the arrays are "
                f"{list(names)}{besides} and the first pattern that matches wins"
            )

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise, because single-array operations require the regularizer of that array."""
        raise ConfigurationError(
            "PerParameter acts on named arrays, one by one: use psi.bind(layout) with scope='each', or "
            "psi.for_array(name) for the regularizer of one array"
        )

    value = prox = subgradient = check_shape = _refuse
