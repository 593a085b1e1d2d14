"""A mirror map for each named array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

import numpy as np

from flwr_fco.core.layout import Layout, Vector, checked_patterns, first_match, require_matches
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps.base import MirrorMap
from flwr_fco.regularizers.base import BoundRegularizer, Psi


@dataclass(frozen=True)
class Product(MirrorMap):
    """h(w) = sum over arrays of h_array(w_array): a map for each array, chosen by its name.

    For example, a matrix game uses entropy x entropy, and a model with an intercept p-norm x Euclidean. The map acts on
    named arrays only: ``bind`` it to a layout, as strategies and clients do. Every array has a separate map, even if
    one pattern matches several: two arrays under ``"*": SimplexEntropy()`` lie on two simplices.

    Parameters
    ----------
    maps : mapping of str to MirrorMap
        Shell patterns (``"*.weight"``) and the map of the matching arrays. The first match wins.

    Raises
    ------
    ConfigurationError
        If the mapping is empty, a key is not a string or a value is not a map. At :meth:`bind`, if an array matches no
        pattern or a pattern matches no array.

    Notes
    -----
    Section C of the algorithms: a saddle point is one vector (x, y) with h separable over x and y.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.mirror_maps import Euclidean, SimplexEntropy
    >>> from flwr_fco.core.layout import Layout
    >>> layout = Layout.from_arrays({"row": np.zeros(2), "column": np.zeros(2)})
    >>> game = Product({"row": SimplexEntropy(), "*": Euclidean()}).bind(layout)
    >>> game.conjugate_gradient(np.array([0.0, 0.0, 2.0, -1.0]))
    array([ 0.5,  0.5,  2. , -1. ])
    """

    kind: ClassVar[str] = "product"
    maps: Mapping[str, MirrorMap]

    def __post_init__(self) -> None:
        own = lambda h: isinstance(h, MirrorMap) and not isinstance(h, Product)  # noqa: E731
        object.__setattr__(self, "maps", checked_patterns("Product", self.maps, "mirror map", own))

    def bind(self, layout: Layout) -> BoundProduct:
        return BoundProduct(self, layout)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise, because the map cannot act on a vector without the names of its arrays."""
        prefix = "Product acts on named arrays: use Product(...).bind(layout)"
        raise ConfigurationError(f"{prefix}, and psi.bind(layout) of the same layout")

    value = gradient = conjugate_gradient = supports = objection = retrieve = _refuse


@dataclass(init=False)
class BoundProduct(MirrorMap):
    """A :class:`Product` on the flat vectors of a model.

    Parameters
    ----------
    product : Product
        The maps.
    layout : Layout
        The model's arrays.

    Raises
    ------
    ConfigurationError
        If an array matches no pattern, a pattern matches no array, or a map cannot act on its array.
    """

    product: Product
    layout: Layout

    def __init__(self, product: Product, layout: Layout) -> None:
        self.product, self.layout = product, layout
        #: Each array's place in the vector, its own layout and its map.
        self.parts: list[tuple[slice, Layout, MirrorMap]] = []
        for entry in layout.optimized:
            pattern, alone = first_match(product.maps, entry.name), Layout((replace(entry, offset=0),))
            if pattern is None:
                prefix = f"Product has no map for the array {entry.name!r}; its patterns are {list(product.maps)}"
                raise ConfigurationError(f'{prefix}. Add one, or "*": Euclidean() for all the others')
            self.parts.append((entry.block, alone, product.maps[pattern].bind(alone)))
        require_matches("Product", product.maps, layout.shapes)
        #: The psi of the last point, which is supported, and what it is on each array.
        self._last: tuple[Any, list[BoundRegularizer]] = None, []

    def value(self, w: Vector) -> float:
        return sum(h.value(w[place]) for place, _, h in self.parts)

    def gradient(self, w: Vector) -> Vector:
        return np.concatenate([h.gradient(w[place]) for place, _, h in self.parts])

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        out = np.empty_like(z) if out is None else out
        for place, _, h in self.parts:
            h.conjugate_gradient(z[place], out[place])
        return out

    def modulus(self) -> float:
        """Return the smallest of the arrays'."""
        return min((h.modulus() for _, _, h in self.parts), default=1.0)

    def supports(self, regularizer: Psi) -> bool:
        """Whether psi is bound to this layout with scope="each", and every array's map supports its psi."""
        return not self.objection(regularizer)

    def objection(self, regularizer: Psi) -> str:
        """Return why psi is not supported, with the first array whose pair is not; an empty string if it is."""
        if not isinstance(regularizer, BoundRegularizer):
            prefix, why = regularizer, "it does not know the arrays' names; use psi.bind(layout) of the same layout"
        elif regularizer.layout != self.layout:
            prefix, why = regularizer.regularizer, f"bound to {regularizer.layout!r}; bind both to the same layout"
        elif regularizer.scope == "joint":
            prefix, why = regularizer.regularizer, "over all arrays together (scope='joint'): it treats one at a time"
        else:
            pairs = zip(self.parts, self._own(regularizer), strict=True)
            objections = ((alone, h.objection(own)) for (_, alone, h), own in pairs)
            found = next(((alone, objection) for alone, objection in objections if objection), None)
            if found is None:
                return ""
            prefix, why = regularizer.regularizer, f"array {found[0].names[0]!r}: {found[1]}"
        return f"Product cannot be combined with {prefix!r}: {why}"

    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
        """Return the minimiser array by array; see :meth:`MirrorMap.retrieve`."""
        if regularizer is not self._last[0]:
            self.require(regularizer)
            self._last = regularizer, self._own(regularizer)
        out = np.empty_like(z) if out is None else out
        for (place, _, h), own in zip(self.parts, self._last[1], strict=True):
            h.retrieve(z[place], t, own, out[place])
        return out

    def _own(self, regularizer: Any) -> list[BoundRegularizer]:
        """Return psi on each array."""
        found = []
        for _, alone, _ in self.parts:
            (entry,) = alone.entries
            psi = regularizer.regularizer.for_array(entry.name) if entry.regularized else None
            # There is no psi on this array: bind any regularizer to a layout without regularized arrays.
            none = alone.regularizing(())
            found.append(BoundRegularizer(regularizer.regularizer, none) if psi is None else psi.bind(alone))
        return found

    def bind(self, layout: Layout) -> BoundProduct:
        if layout != self.layout:
            raise ConfigurationError(f"this Product is bound to {self.layout!r}, not to {layout!r}; bind it again")
        return self
