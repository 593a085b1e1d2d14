"""From duals to parameters: mirror maps with psi on lists of tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from flwr_fco.errors import ConfigurationError, UnsupportedPairError
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, Product, SimplexEntropy
from flwr_fco.regularizers import Regularizer, Zero
from flwr_fco.regularizers.base import Scope
from flwr_fco.regularizers.validation import amount
from flwr_fco.torch.regularizers import scalar_terms, solve_terms, tensor_prox, tensor_terms

Tensors = list[Tensor]
Psis = Sequence[Regularizer | None]


class Geometry(ABC):
    """A mirror map h and psi on a list of tensors, each a block of one long vector."""

    @abstractmethod
    def gradient(self, points: Tensors) -> Tensors:
        """Return grad h, the duals of primal points, as new tensors.

        Parameters
        ----------
        points : list of Tensor
            In the dtype of the duals.
        """

    @abstractmethod
    def retrieve(self, duals: Tensors, t: float) -> Tensors:
        """Return argmin_w { -<z, w> + t psi(w) + h(w) }; a tensor of the result may be one of the duals.

        Parameters
        ----------
        t : float
            The weight of psi.
        """

    def write(self, duals: Tensors, t: float, out: Tensors) -> None:
        """Write the result of :meth:`retrieve` to other tensors, in their dtypes.

        Parameters
        ----------
        t : float
            The weight of psi.
        """
        torch._foreach_copy_(out, self.retrieve(duals, t))

    def write_sum(self, starts: Tensors, moved: Tensors, t: float, out: Tensors) -> None:
        """Write the result of :meth:`retrieve` for the duals starts + moved to other tensors, in their dtypes.

        Parameters
        ----------
        t : float
            The weight of psi.
        """
        self.write(list(torch._foreach_add(starts, moved)), t, out)


def geometry(
    mirror_map: MirrorMap, psis: Psis, names: list[str], like: Tensors, *, scope: Scope = "each", foreach: bool = True
) -> Geometry:
    """Return the geometry of a mirror map and psi on a list of tensors.

    Parameters
    ----------
    mirror_map : MirrorMap
        h, on all tensors as one vector.
    psis : sequence of Regularizer or None
        psi of each tensor; None where it does not act.
    names : list of str
        Names of the tensors, for a :class:`~flwr_fco.mirror_maps.Product` and for error messages.
    like : list of Tensor
        Tensors with the shapes, dtype and devices of the duals.
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each tensor separately or on all of them together.
    foreach : bool, default True
        Whether coordinate-wise maps are computed in one call for all tensors.

    Raises
    ------
    ConfigurationError
        If the map or a regularizer has no tensor version, or psi cannot act on a shape.
    UnsupportedPairError
        If the map and psi have no closed form together.
    """
    kind, joint = type(mirror_map), scope == "joint" and any(not isinstance(psi, Zero | None) for psi in psis)
    if kind is Euclidean:
        return _Euclidean(psis, like, scope, foreach)
    if not isinstance(mirror_map, Product) and kind not in _FLAT:
        kinds: tuple[type[MirrorMap], ...] = (Euclidean, Product, *_FLAT)
        supported = ", ".join(each.__name__ for each in kinds)
        wrong = f"{kind.__name__} has no form on tensors; {supported} have one. Train with an Objective"
        raise ConfigurationError(f"{wrong} (flwr_fco.torch.TorchObjective), whose mirror maps are NumPy's")
    if joint or (scope == "joint" and isinstance(mirror_map, Product)):
        what = f"scope='joint' with {kind.__name__} has no form on tensors"
        raise ConfigurationError(f"{what}; use scope='each', or Euclidean()")
    if isinstance(mirror_map, Product):
        return _Product(mirror_map, psis, names, like, foreach)
    return _FLAT[kind](mirror_map, psis, like)


# --- Euclidean -------------------------------------------------------------------------------------------------------


#: Number of elements from which CPU tensors are processed one by one: reusing memory saves more than fewer calls
#: (measured with 5e6 elements: 8 ms instead of 19).
_LARGE = 1 << 17
#: Number of elements processed at a time, where possible.
_PART = 1 << 16


class _Euclidean(Geometry):
    """prox(z, t): coordinate-wise psi in one call for all tensors, any other psi tensor by tensor."""

    def __init__(self, psis: Psis, like: Tensors, scope: Scope, foreach: bool) -> None:
        on_cpu = all(tensor.device.type == "cpu" for tensor in like)
        self._foreach = foreach and not (on_cpu and sum(tensor.numel() for tensor in like) >= _LARGE)
        hit = {i: psi for i, psi in enumerate(psis) if psi is not None and not isinstance(psi, Zero)}
        self._joint: list[int] = []
        if scope == "joint" and hit:
            self._joint = [*hit]
            self._joint_prox = tensor_prox(next(iter(hit.values())), _flat([like[i] for i in hit]))
            hit = {}
        terms = {i: scalar_terms(psi) for i, psi in hit.items()}
        self._separable = {i: scalars for i, scalars in terms.items() if scalars is not None}
        self._others = {i: tensor_prox(hit[i], like[i]) for i in hit if terms[i] is None}

    def gradient(self, points: Tensors) -> Tensors:
        return [point.clone() for point in points]

    def retrieve(self, duals: Tensors, t: float) -> Tensors:
        if not self._foreach:
            return list(self._one_by_one(duals, t))
        solved = _solve_all([duals[i] for i in self._separable], t, [*self._separable.values()])
        result = self._coupled(duals, t) | dict(zip(self._separable, solved, strict=True))
        return [result.get(i, dual) for i, dual in enumerate(duals)]

    def write(self, duals: Tensors, t: float, out: Tensors) -> None:
        if self._foreach:
            super().write(duals, t, out)
        else:
            for point, result in zip(out, self._one_by_one(duals, t), strict=True):
                point.copy_(result)

    def _one_by_one(self, duals: Tensors, t: float) -> Iterator[Tensor]:
        result = self._coupled(duals, t)
        for i, dual in enumerate(duals):
            separable = self._separable.get(i)
            yield result.get(i, dual) if separable is None else solve_terms(dual, t, separable)

    def write_sum(self, starts: Tensors, moved: Tensors, t: float, out: Tensors) -> None:
        whole = self._foreach or self._others or self._joint
        if whole or not all(tensor.is_contiguous() for tensor in (*starts, *moved, *out)):
            super().write_sum(starts, moved, t, out)
            return
        for i, tensors in enumerate(zip(starts, moved, out, strict=True)):
            # In chunks that stay in the cache.
            for start, change, point in zip(*(torch.split(tensor.view(-1), _PART) for tensor in tensors), strict=True):
                total = torch.add(start, change, out=point if point.dtype == start.dtype else None)
                if i in self._separable:
                    solve_terms(total, t, self._separable[i], out=total)
                if total is not point:
                    point.copy_(total)

    def _coupled(self, duals: Tensors, t: float) -> dict[int, Tensor]:
        """Return the results for tensors whose psi is not a sum over coordinates."""
        result = {i: prox(duals[i], t) for i, prox in self._others.items()}
        if self._joint:
            parts = [duals[i] for i in self._joint]
            result |= zip(self._joint, _split(self._joint_prox(_flat(parts), t), parts), strict=True)
        return result


def _solve_all(duals: Tensors, t: float, terms: Sequence[tuple[float, float, float, float]]) -> Tensors:
    """Return clip(soft(v, t * threshold) / (1 + t * shrinkage), lower, upper) for all tensors at once."""
    if not duals:
        return []
    thresholds = [amount(t, each[0]) for each in terms]
    result = duals
    if any(thresholds):
        cut = torch._foreach_clamp_max(torch._foreach_clamp_min(duals, [-x for x in thresholds]), thresholds)
        result = list(torch._foreach_sub(duals, cut))
    if any(each[1] for each in terms):
        result = list(torch._foreach_div(result, [1.0 + amount(t, each[1]) for each in terms]))
    if any(each[2] > -math.inf for each in terms):
        result = list(torch._foreach_clamp_min(result, [each[2] for each in terms]))
    if any(each[3] < math.inf for each in terms):
        result = list(torch._foreach_clamp_max(result, [each[3] for each in terms]))
    return result


def _flat(tensors: Tensors) -> Tensor:
    if len({tensor.device for tensor in tensors}) > 1:
        raise ConfigurationError(
            f"the parameters are on {', '.join(sorted({str(tensor.device) for tensor in tensors}))}; a mirror map or "
            "regularizer of all of them together needs them on one device"
        )
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _split(flat: Tensor, like: Tensors) -> Tensors:
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


# --- maps of the whole vector ----------------------------------------------------------------------------------------


class _Flat(Geometry):
    """A map of all tensors as one vector, with separable terms if these have a closed form."""

    def __init__(self, mirror_map: MirrorMap, psis: Psis, like: Tensors) -> None:
        full = []
        for psi, tensor in zip(psis, like, strict=True):
            separable = tensor_terms(psi, tensor)
            if separable is None:
                raise UnsupportedPairError(
                    f"{type(mirror_map).__name__} has no closed form on tensors with {psi!r}: only with sums over "
                    "coordinates. Euclidean() works with every regularizer"
                )
            terms = (torch.as_tensor(term, dtype=tensor.dtype, device=tensor.device) for term in separable)
            full.append([term.expand(tensor.shape).reshape(-1) for term in terms])
        self.threshold, self.shrinkage, self.lower, self.upper = map(torch.cat, zip(*full, strict=True))
        self.name = type(mirror_map).__name__
        self.check(mirror_map)

    @abstractmethod
    def check(self, mirror_map: Any) -> None:
        """Read the map's parameters; raise if there is no closed form with psi."""

    @abstractmethod
    def flat_gradient(self, w: Tensor) -> Tensor:
        """Return grad h(w)."""

    @abstractmethod
    def flat_retrieve(self, z: Tensor, t: float) -> Tensor:
        """Return the minimiser."""

    def gradient(self, points: Tensors) -> Tensors:
        return _split(self.flat_gradient(_flat(points)), points)

    def retrieve(self, duals: Tensors, t: float) -> Tensors:
        return _split(self.flat_retrieve(_flat(duals), t), duals)

    def soft(self, z: Tensor, t: float) -> Tensor:
        """Return z soft-thresholded by t * threshold."""
        cut = t * self.threshold
        return z - torch.clamp(z, -cut, cut)

    def require(self, condition: bool, mirror_map: MirrorMap, what: str) -> None:
        """Raise :class:`UnsupportedPairError` unless a condition holds."""
        if condition:
            return
        raise UnsupportedPairError(
            f"{type(mirror_map).__name__} has a closed form on tensors only with {what}. Use another regularizer, "
            "Euclidean(), or an Objective (flwr_fco.torch.TorchObjective), whose mirror maps are NumPy's"
        )

    def plain(self, tensor: Tensor, value: float) -> bool:
        """Whether all entries of a term are equal to one value."""
        return bool((tensor == value).all())


class _Diagonal(_Flat):
    def check(self, mirror_map: Any) -> None:
        mirror_map.check_size(self.threshold.numel())
        self._weights = torch.tensor(mirror_map.weights, dtype=self.threshold.dtype, device=self.threshold.device)

    def flat_gradient(self, w: Tensor) -> Tensor:
        return self._weights * w

    def flat_retrieve(self, z: Tensor, t: float) -> Tensor:
        return torch.clamp(self.soft(z, t) / (self._weights + t * self.shrinkage), self.lower, self.upper)


class _PNorm(_Flat):
    def check(self, mirror_map: Any) -> None:
        mirror_map.check_size(self.threshold.numel())
        self._p, self._radius = mirror_map.p, math.inf if mirror_map.radius is None else mirror_map.radius
        free = self.plain(self.lower, -math.inf) and self.plain(self.upper, math.inf)
        self.require(free and self.plain(self.shrinkage, 0.0), mirror_map, "Zero and L1")
        self._center: Tensor | None = None
        if mirror_map.center is not None:
            self.require(self.plain(self.threshold, 0.0), mirror_map, "no regularizer, because it has a center,")
            like = self.threshold
            self._center = torch.tensor(mirror_map.center, dtype=like.dtype, device=like.device)

    def flat_gradient(self, w: Tensor) -> Tensor:
        u = w if self._center is None else w - self._center
        scale = u.abs().max()
        if not bool(scale != 0.0):
            return u.clone()
        q = self._p / (self._p - 1.0)
        y = u / scale
        root = y.sign() * y.abs() ** (1.0 / (self._p - 1.0))
        return root * (((root * y).sum() ** ((2.0 - q) / q)) * (self._p - 1.0)) * scale

    def flat_retrieve(self, z: Tensor, t: float) -> Tensor:
        z = self.soft(z, t)
        scale = z.abs().max()
        if not bool(scale == 0.0):
            x = z / scale
            powers = x.sign() * x.abs() ** (self._p - 1.0)
            total = (x * powers).sum()
            length = scale / (self._p - 1.0) * total ** (1.0 / self._p)
            z = powers * (length.clamp(max=self._radius) * total ** ((1.0 - self._p) / self._p))
        return z if self._center is None else z + self._center


class _Simplex(_Flat):
    def check(self, mirror_map: Any) -> None:
        self._radius = mirror_map.radius
        inside = not ((self.lower > 0.0).any() or (self.upper < self._radius).any())
        self.require(inside and self.plain(self.shrinkage, 0.0), mirror_map, "Zero, L1 and NonNegative")

    def flat_gradient(self, w: Tensor) -> Tensor:
        if not bool((w > 0.0).all()):
            what = f"{self.name}: the gradient does not exist at a point with a coordinate of {float(w.min())}"
            raise ConfigurationError(f"{what}; the parameters must start positive, every coordinate > 0")
        return torch.log(w)

    def flat_retrieve(self, z: Tensor, t: float) -> Tensor:
        return (self._radius * torch.softmax(z - t * self.threshold, 0)).clamp(min=torch.finfo(z.dtype).tiny)


_FLAT: dict[type[MirrorMap], type[_Flat]] = {
    DiagonalMetric: _Diagonal,
    PNorm: _PNorm,
    SimplexEntropy: _Simplex,
}


class _Product(Geometry):
    """A separate map for each tensor, by name."""

    def __init__(self, product: Product, psis: Psis, names: list[str], like: Tensors, foreach: bool) -> None:
        groups: dict[int | None, tuple[MirrorMap, list[int]]] = {}
        for i, name in enumerate(names):
            mirror_map = next((one for pattern, one in product.maps.items() if fnmatchcase(name, pattern)), None)
            if mirror_map is None:
                what = f"the Product has no map for the parameter {name!r}; its patterns are {sorted(product.maps)}"
                raise ConfigurationError(f"{what}. Add one, such as '*': Euclidean()")
            # Those of Euclidean maps go together.
            groups.setdefault(None if type(mirror_map) is Euclidean else i, (mirror_map, []))[1].append(i)
        self._parts: list[tuple[list[int], Geometry]] = []
        for one, on in groups.values():
            part = geometry(one, [psis[i] for i in on], names, [like[i] for i in on], foreach=foreach)
            self._parts.append((on, part))

    def gradient(self, points: Tensors) -> Tensors:
        return self._gather(points, lambda part, own: part.gradient(own))

    def retrieve(self, duals: Tensors, t: float) -> Tensors:
        return self._gather(duals, lambda part, own: part.retrieve(own, t))

    def _gather(self, tensors: Tensors, of: Callable[[Geometry, Tensors], Tensors]) -> Tensors:
        gathered = list(tensors)
        for on, part in self._parts:
            for i, tensor in zip(on, of(part, [tensors[i] for i in on]), strict=True):
                gathered[i] = tensor
        return gathered
