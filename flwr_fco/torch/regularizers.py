"""Proximal maps of ``flwr_fco.regularizers`` on tensors: sums over coordinates, groups, Nuclear, HardSparsity.

The classes are those in ``flwr_fco.regularizers``; only the arithmetic uses PyTorch, on the tensors' device. In float64
the results agree with the NumPy maps to 1e-12. Every psi has a NumPy map, which a TorchObjective uses.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from flwr_fco import regularizers as psis
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import Regularizer
from flwr_fco.regularizers.spectral import noise_of
from flwr_fco.regularizers.validation import amount, check_step

#: A proximal map on tensors of one shape, dtype and device: ``(v, step) -> argmin_w step * psi(w) + 1/2 ||w - v||^2``.
TensorProx = Callable[[Tensor, float], Tensor]
#: Builds the map for a regularizer, given a tensor like the map's inputs.
_Make = Callable[[Any, Tensor], TensorProx]
_Maker = TypeVar("_Maker", bound=_Make)


def register_tensor_prox(kind: type[Regularizer]) -> Callable[[_Maker], _Maker]:
    """Register a class's proximal map on tensors.

    Parameters
    ----------
    kind : type
        A subclass of :class:`~flwr_fco.regularizers.Regularizer`.

    Returns
    -------
    callable
        A decorator for a function ``(regularizer, like) -> map``: `like` is a tensor with the shape, dtype and device
        of the map's inputs, so that constants are computed once.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from flwr_fco.regularizers import L1, Regularizer
    >>> @dataclass(frozen=True)
    ... class TwiceL1(L1):
    ...     kind = "twice-l1"
    >>> @register_tensor_prox(TwiceL1)
    ... def _(psi, like):
    ...     return lambda v, step: v - v.clamp(-2 * step * psi.strength, 2 * step * psi.strength)
    >>> tensor_prox(TwiceL1(1.0), torch.tensor([3.0, -0.5]))(torch.tensor([3.0, -0.5]), 1.0)
    tensor([1., 0.])
    """

    def register(make: _Maker) -> _Maker:
        _MAKERS[kind] = make
        return make

    return register


def supported_regularizers() -> tuple[type[Regularizer], ...]:
    """Return the classes that have a proximal map on tensors.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> L1 in supported_regularizers()
    True
    """
    return tuple(_MAKERS)


def tensor_prox(regularizer: Regularizer, like: Tensor) -> TensorProx:
    """Return a regularizer's proximal map on tensors.

    Parameters
    ----------
    regularizer : Regularizer
        psi.
    like : Tensor
        A tensor with the shape, floating dtype and device of the map's inputs.

    Returns
    -------
    callable
        ``(v, step) -> argmin_w step * psi(w) + 1/2 ||w - v||^2``, a new tensor or `v` itself.

    Raises
    ------
    ConfigurationError
        If this class has no such map, or psi cannot act on tensors of this shape.

    Examples
    --------
    >>> import torch
    >>> from flwr_fco.regularizers import L1
    >>> v = torch.tensor([3.0, -0.5, -2.0])
    >>> tensor_prox(L1(1.0), v)(v, 1.0)
    tensor([ 2.,  0., -1.])
    """
    make = _MAKERS.get(type(regularizer))
    if make is None:
        names = ", ".join(sorted(each.__name__ for each in supported_regularizers()))
        raise ConfigurationError(
            f"{type(regularizer).__name__} has no proximal map on tensors; {names} have one. Use another regularizer, "
            "register a map of your own with flwr_fco.torch.register_tensor_prox, or train with a "
            "flwr_fco.torch.TorchObjective, which takes every regularizer"
        )
    regularizer.check_shape("the tensor", tuple(like.shape))
    solve = make(regularizer, like)
    return lambda v, step: solve(v, check_step(regularizer, step))


class ListedProx:
    """The proximal maps of a list of tensors, each with a regularizer of its own.

    Parameters
    ----------
    regularizers : sequence of Regularizer or None
        psi of each tensor; None where it does not act.
    like : list of Tensor
        Tensors with the shapes, dtype and devices of the maps' inputs.

    Raises
    ------
    ConfigurationError
        If a regularizer has no map on tensors, or cannot act on a shape.
    """

    def __init__(self, regularizers: Sequence[Regularizer | None], like: list[Tensor]) -> None:
        self._maps: list[tuple[TensorProx | None, bool]] = []
        for psi, tensor in zip(regularizers, like, strict=True):
            solve, even = None, True
            if psi is not None and not isinstance(psi, psis.Zero):
                solve, terms = tensor_prox(psi, tensor), psi.separable_terms(())
                even = _MAKERS[type(psi)] is _termwise and all(isinstance(term, float) for term in terms or ())
            self._maps.append((solve, even and tensor.device.type == "cpu" and tensor.numel() > _PART))

    def write(self, vectors: list[Tensor], step: float, out: list[Tensor], moved: list[Tensor] | None = None) -> None:
        """Write the maps of vectors, or of vectors + moved, to other tensors, in their dtypes.

        Parameters
        ----------
        step : float
            The weight of psi.
        """
        for i, (solve, in_parts) in enumerate(self._maps):
            given = (out[i], vectors[i]) if moved is None else (out[i], vectors[i], moved[i])
            parts: Iterable[tuple[Tensor, ...]] = [given]
            if in_parts and all(tensor.is_contiguous() for tensor in given):
                parts = zip(*(torch.split(tensor.view(-1), _PART) for tensor in given), strict=True)
            for point, vector, *change in parts:
                v = torch.add(vector, change[0]) if change else vector
                point.copy_(v if solve is None else solve(v, step))


# --- sums over coordinates -------------------------------------------------------------------------------------------

#: Number of elements of a CPU tensor that are processed at a time, where possible: they stay in the cache.
_PART = 1 << 16


def _constant(array: Any, like: Tensor) -> Tensor:
    """Return an array of a regularizer (which is read-only) as a tensor of the dtype and device of `like`."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def _termwise(regularizer: Regularizer, like: Tensor) -> TensorProx:
    """Return the map clip(soft(v, step * threshold) / (1 + step * shrinkage), lower, upper)."""
    terms = regularizer.separable_terms(tuple(like.shape))
    assert terms is not None
    threshold, shrinkage, lower, upper = (term if isinstance(term, float) else _constant(term, like) for term in terms)

    def solve(v: Tensor, step: float) -> Tensor:
        cut = _times(step, threshold)
        result = v - torch.clamp(v, -cut, cut)  # type: ignore[call-overload,arg-type,unused-ignore]
        if isinstance(shrinkage, Tensor) or shrinkage > 0.0:
            result.div_(1.0 + _times(step, shrinkage))
        if isinstance(lower, Tensor) or isinstance(upper, Tensor):
            # One after the other: `clamp` takes no tensor beside a number.
            result.clamp_(min=lower).clamp_(max=upper)  # type: ignore[arg-type,unused-ignore]
        elif lower > -math.inf or upper < math.inf:
            result.clamp_(lower, upper)
        return result

    return solve


def _times(step: float, term: Tensor | float) -> Tensor | float:
    return step * term if isinstance(term, Tensor) else amount(step, term)


# --- whole arrays, groups, singular values ---------------------------------------------------------------------------


def widest_dtype(like: Tensor) -> torch.dtype:
    """Return the most precise real dtype on a tensor's device; Apple's GPUs have no float64."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def _exact(v: Tensor) -> Tensor:
    """Return the tensor in the most precise dtype, in which long sums are accurate."""
    return v.to(widest_dtype(v))


def _hard_sparsity(psi: psis.HardSparsity, like: Tensor) -> TensorProx:
    count = psi.count_of(like.numel())

    def solve(v: Tensor, step: float) -> Tensor:
        if count >= v.numel():
            return v
        flat = v.reshape(-1)
        # Stable: of equal ones the first stay, as in the NumPy map.
        kept = torch.sort(flat.abs(), descending=True, stable=True).indices[:count]
        result = torch.zeros_like(flat)
        result[kept] = flat[kept]
        return result.reshape(v.shape)

    return solve


def _groups(psi: psis.GroupLasso | psis.SparseGroupLasso, like: Tensor) -> TensorProx:
    """Return the map w_g = u_g max(1 - cut * weights_g / ||u_g||, 0), with v or v soft-thresholded as u."""
    groups_array, weights_array = psi._resolve(tuple(like.shape))
    groups = torch.tensor(groups_array, dtype=torch.int64, device=like.device)
    weights = _constant(weights_array, _exact(like))
    ratio = psi.l1_ratio if isinstance(psi, psis.SparseGroupLasso) else 0.0

    def solve(v: Tensor, step: float) -> Tensor:
        shrink = amount(step, psi.strength * ratio)
        u = v - torch.clamp(v, -shrink, shrink) if ratio else v
        flat = _exact(u).reshape(-1)
        norms = torch.zeros_like(weights).index_add_(0, groups, flat * flat).sqrt()
        cut = amount(step, psi.strength * (1.0 - ratio)) * weights
        # The quotient 0/0 is discarded: a group that is 0 stays 0.
        factors = torch.where(norms > cut, 1.0 - cut / norms, torch.where(norms.isnan(), norms, 0.0))
        return (flat * factors[groups] + 0.0).reshape(v.shape).to(v.dtype)

    return solve


def _nuclear(psi: psis.Nuclear, like: Tensor) -> TensorProx:
    bound = sys.float_info.max if psi.bound is None else psi.bound

    def solve(v: Tensor, step: float) -> Tensor:
        if not v.numel():
            return v
        matrix: Any = psi.matrix(_exact(v))  # type: ignore[arg-type]
        if not bool(torch.isfinite(matrix).all()):
            return torch.full_like(v, math.nan)
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        changed = torch.clamp(values - amount(step, psi.strength), min=0.0, max=bound)
        # Values below the rounding of a product do not count for the rank, as in the NumPy map.
        rank = int((changed > noise_of(changed.max().item(), tuple(matrix.shape))).sum())
        # Adding 0.0 turns the negative zeros of a product with zeros into zeros.
        product: Tensor = (left[:, :rank] * changed[:rank]) @ right[:rank] + 0.0
        return product.reshape(v.shape).to(v.dtype)

    return solve


# By class, not by isinstance: a subclass may have another proximal map.
_MAKERS: dict[type[Regularizer], _Make] = {
    **dict.fromkeys((psis.Zero, psis.L1, psis.L2Squared, psis.ElasticNet), _termwise),
    **dict.fromkeys((psis.Box, psis.NonNegative, psis.LInfinityBall), _termwise),
    psis.HardSparsity: _hard_sparsity,
    psis.GroupLasso: _groups,
    psis.SparseGroupLasso: _groups,
    psis.Nuclear: _nuclear,
}
