"""A mirror map for each named array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from flwr_fco.core.layout import Entry, Layout, Vector
from flwr_fco.errors import ConfigurationError, UnsupportedPairError
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
        if not isinstance(self.maps, Mapping) or not self.maps:
            raise ConfigurationError(
                f"Product({self.maps!r}): expected a non-empty mapping of shell patterns to mirror maps, such as "
                '{"x": SimplexEntropy(), "y": SimplexEntropy()}'
            )
        for pattern, mirror_map in self.maps.items():
            if not isinstance(pattern, str) or not isinstance(mirror_map, MirrorMap) or isinstance(mirror_map, Product):
                raise ConfigurationError(
                    f"Product: {pattern!r}: {mirror_map!r}; expected a shell pattern and the mirror map of one array"
                )
        object.__setattr__(self, "maps", MappingProxyType(dict(self.maps)))

    def __reduce__(self) -> tuple[type[Product], tuple[dict[str, MirrorMap]]]:
        """Pickle by constructor: a mapping proxy does not pickle (Ray copies strategies between processes)."""
        return type(self), (dict(self.maps),)

    def bind(self, layout: Layout) -> BoundProduct:
        return BoundProduct(self, layout)

    def check_layout(self, layout: Layout) -> None:
        """Raise unless every array has a map that can act on it and every pattern matches an array."""
        self.bind(layout)

    def require_names(self, names: Iterable[str]) -> None:
        """Raise unless every pattern is the first match of at least one array name.

        Parameters
        ----------
        names : iterable of str
            Names of the arrays.

        Raises
        ------
        ConfigurationError
            If a pattern is not the first match of any name.
        """
        arrays = list(names)
        used = {next((pattern for pattern in self.maps if fnmatchcase(name, pattern)), "") for name in arrays}
        if unused := set(self.maps) - used:
            raise ConfigurationError(
                f"Product: the patterns {sorted(unused)} match no array that is still free; the arrays are {arrays} "
                "and the first pattern that matches wins"
            )

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise, because the map cannot act on a vector without the names of its arrays."""
        raise ConfigurationError(
            "Product acts on named arrays: use Product(...).bind(layout), and psi.bind(layout) of the same layout"
        )

    value = gradient = conjugate_gradient = _refuse

    def _bound_as(self, regularizer: Psi) -> BoundProduct:
        """Return the product on the layout that psi is bound to."""
        return self.bind(regularizer.layout) if isinstance(regularizer, BoundRegularizer) else self._refuse()

    def supports(self, regularizer: Psi) -> bool:
        """Whether the bound map supports psi, on the layout that psi is bound to."""
        return self._bound_as(regularizer).supports(regularizer)

    def require(self, regularizer: Psi) -> None:
        self._bound_as(regularizer).require(regularizer)

    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
        """Return the bound map's result, for the layout that psi is bound to; binding once beforehand is faster."""
        return self._bound_as(regularizer).retrieve(z, t, regularizer, out)


class _Part:
    """One array of a product: its slice of the vector, its own layout, and its map."""

    def __init__(self, entry: Entry, mirror_map: MirrorMap) -> None:
        self.entry = entry
        self.place = entry.block
        self.layout = Layout([replace(entry, offset=0)])
        self.mirror_map = mirror_map.bind(self.layout)

    def regularizer(self, regularizer: BoundRegularizer) -> BoundRegularizer:
        """Return psi on this array."""
        psi = regularizer.regularizer.for_array(self.entry.name) if self.entry.regularized else None
        if psi is None:
            # There is no psi on this array: bind any regularizer to a layout without regularized arrays.
            none = Layout([replace(self.entry, offset=0, regularized=False)])
            return BoundRegularizer(regularizer.regularizer, none)
        return psi.bind(self.layout)


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

    def __init__(self, product: Product, layout: Layout) -> None:
        self.product = product
        self.layout = layout
        self.parts: list[_Part] = []
        for entry in layout.optimized:
            pattern = next((pattern for pattern in product.maps if fnmatchcase(entry.name, pattern)), None)
            if pattern is None:
                raise ConfigurationError(
                    f"Product has no map for the array {entry.name!r}; its patterns are {list(product.maps)}. Add one, "
                    'or "*": Euclidean() for all the others.'
                )
            self.parts.append(_Part(entry, product.maps[pattern]))
        product.require_names(entry.name for entry in layout.optimized)
        self._split: WeakKeyDictionary[BoundRegularizer, list[BoundRegularizer]] = WeakKeyDictionary()
        self._accepted: WeakSet[Psi] = WeakSet()

    def value(self, w: Vector) -> float:
        return sum(part.mirror_map.value(w[part.place]) for part in self.parts)

    def gradient(self, w: Vector) -> Vector:
        return np.concatenate([part.mirror_map.gradient(w[part.place]) for part in self.parts])

    def conjugate_gradient(self, z: Vector, out: Vector | None = None) -> Vector:
        out = np.empty_like(z) if out is None else out
        for part in self.parts:
            part.mirror_map.conjugate_gradient(z[part.place], out[part.place])
        return out

    def conjugate(self, z: Vector) -> float:
        return sum(part.mirror_map.conjugate(z[part.place]) for part in self.parts)

    def supports(self, regularizer: Psi) -> bool:
        """Whether psi is bound to this layout with scope="each", and every array's map supports its psi."""
        if not isinstance(regularizer, BoundRegularizer) or regularizer.layout != self.layout:
            return False
        if regularizer.scope == "joint":
            return False
        return all(part.mirror_map.supports(bound) for part, bound in self._pairs(regularizer))

    def require(self, regularizer: Psi) -> None:
        """Raise :class:`UnsupportedPairError` naming the first array whose pair is not supported."""
        if not isinstance(regularizer, BoundRegularizer):
            raise UnsupportedPairError(
                f"Product cannot be combined with {regularizer!r} itself, which does not know the arrays' names; use "
                "psi.bind(layout), with the layout that the Product is bound to"
            )
        psi = regularizer.regularizer
        if regularizer.layout != self.layout:
            raise UnsupportedPairError(
                f"Product is bound to {self.layout!r}, {psi!r} to {regularizer.layout!r}; bind both to the same layout"
            )
        if regularizer.scope == "joint":
            raise UnsupportedPairError(
                f"Product cannot be combined with {psi!r} over all arrays together (scope='joint'): it treats one "
                "array at a time. Use scope='each', or one map for the whole vector."
            )
        for part, bound in self._pairs(regularizer):
            try:
                part.mirror_map.require(bound)
            except UnsupportedPairError as error:
                raise UnsupportedPairError(
                    f"Product cannot be combined with {psi!r}: array {part.entry.name!r}: {error}"
                ) from None

    def retrieve(self, z: Vector, t: float, regularizer: Psi, out: Vector | None = None) -> Vector:
        """Return the minimiser array by array; see :meth:`MirrorMap.retrieve`.

        Raises
        ------
        UnsupportedPairError
            If psi is not bound to this layout with scope="each", or a map does not support its array's psi.
        """
        if regularizer not in self._accepted:
            self.require(regularizer)
            self._accepted.add(regularizer)
        assert isinstance(regularizer, BoundRegularizer)  # `require` has made sure of this
        out = np.empty_like(z) if out is None else out
        for part, bound in self._pairs(regularizer):
            part.mirror_map.retrieve(z[part.place], t, bound, out[part.place])
        return out

    def check_layout(self, layout: Layout) -> None:
        if layout != self.layout:
            raise ConfigurationError(f"this Product is bound to {self.layout!r}, not to {layout!r}; bind it again")

    def _pairs(self, regularizer: BoundRegularizer) -> Iterator[tuple[_Part, BoundRegularizer]]:
        """Return each array's map and psi."""
        if regularizer not in self._split:
            self._split[regularizer] = [part.regularizer(regularizer) for part in self.parts]
        return zip(self.parts, self._split[regularizer], strict=True)

    def __repr__(self) -> str:
        return f"{self.product!r} on {self.layout!r}"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, BoundProduct) and (self.product, self.layout) == (other.product, other.layout)

    def __hash__(self) -> int:
        return hash((self.product, self.layout))
