"""The proximal maps of ``flwr_fco.regularizers`` on tensors, computed on the tensors' device.

The classes and their specifications are those in ``flwr_fco.regularizers``; only the arithmetic uses PyTorch. In
float64 the results agree with the NumPy maps to 1e-12.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
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
    return (*_TERMWISE, *_MAKERS)


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
    kind = type(regularizer)
    if kind in _MAKERS:
        regularizer.check_shape("the tensor", tuple(like.shape))
        solve: TensorProx = _MAKERS[kind](regularizer, like)
    else:
        terms = tensor_terms(regularizer, like)
        if terms is None:
            names = ", ".join(sorted(each.__name__ for each in supported_regularizers()))
            raise ConfigurationError(
                f"{kind.__name__} has no proximal map on tensors; {names} have one. Use another regularizer, register "
                "a map of your own with flwr_fco.torch.register_tensor_prox, or train with an Objective "
                "(flwr_fco.torch.TorchObjective), whose proximal maps are NumPy's"
            )

        def solve(v: Tensor, step: float) -> Tensor:
            # Adding 0.0 makes the sign of zero definite: clamp may return either -0.0 or 0.0.
            return solve_terms(v, step, terms).add_(0.0)

    return lambda v, step: solve(v, check_step(regularizer, step))


# --- sums over coordinates -------------------------------------------------------------------------------------------

_TERMWISE = (psis.Zero, psis.L1, psis.L2Squared, psis.ElasticNet, psis.Box, psis.NonNegative, psis.LInfinityBall)


def scalar_terms(regularizer: Regularizer) -> tuple[float, float, float, float] | None:
    """Return threshold, shrinkage, lower and upper bound if they are the same for all coordinates; else None."""
    terms = regularizer.separable_terms(()) if type(regularizer) in _TERMWISE else None
    if terms is None or not all(isinstance(term, float) for term in terms):
        return None
    threshold, shrinkage, lower, upper = (float(term) for term in terms)
    return threshold, shrinkage, lower, upper


def tensor_terms(regularizer: Regularizer | None, like: Tensor) -> tuple[Tensor | float, ...] | None:
    """Return threshold, shrinkage, lower and upper bound as numbers or tensors that broadcast to `like`.

    Parameters
    ----------
    regularizer : Regularizer or None
        psi; None if there is none.
    like : Tensor
        A tensor with the required shape, dtype and device.

    Returns
    -------
    tuple, or None
        The terms; None if psi is not a sum over coordinates.
    """
    if regularizer is None:
        return (0.0, 0.0, -math.inf, math.inf)
    if type(regularizer) not in _TERMWISE:
        return None
    regularizer.check_shape("the tensor", tuple(like.shape))
    terms = regularizer.separable_terms(tuple(like.shape))
    assert terms is not None
    return tuple(term if isinstance(term, float) else _constant(term, like) for term in terms)


def _constant(array: Any, like: Tensor) -> Tensor:
    """Return an array of a regularizer (which is read-only) as a tensor of the dtype and device of `like`."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def solve_terms(v: Tensor, step: float, terms: Sequence[Tensor | float], out: Tensor | None = None) -> Tensor:
    """Return clip(soft(v, step * threshold) / (1 + step * shrinkage), lower, upper) in one new tensor, or in `out`."""
    threshold, shrinkage, lower, upper = terms
    result = _clip(v, _times(step, threshold))
    if out is None and not torch.is_grad_enabled():
        out = result  # Saves a tensor; autograd refuses a given one.
    result = torch.sub(v, result, out=out)
    if isinstance(shrinkage, Tensor) or shrinkage > 0.0:
        result.div_(1.0 + _times(step, shrinkage))
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        # One after the other: `clamp` takes no tensor beside a number.
        return result.clamp_(min=lower).clamp_(max=upper)  # type: ignore[arg-type,unused-ignore]
    return result.clamp_(lower, upper) if lower > -math.inf or upper < math.inf else result


def _times(step: float, term: Tensor | float) -> Tensor | float:
    return step * term if isinstance(term, Tensor) else amount(step, term)


def _clip(v: Tensor, cut: Tensor | float) -> Tensor:
    return torch.clamp(v, -cut, cut)  # type: ignore[call-overload,arg-type,unused-ignore]


# --- norms and balls of whole arrays ---------------------------------------------------------------------------------


def widest_dtype(like: Tensor) -> torch.dtype:
    """Return the most precise real dtype on a tensor's device; Apple's GPUs have no float64."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def _exact(v: Tensor) -> Tensor:
    """Return the tensor in float64, in which long sums are accurate (float32 if the device has no float64)."""
    return v if v.device.type == "mps" else v.double()


def _whole(solve: TensorProx) -> TensorProx:
    """Return a map of an accurate vector as one of arrays, in their shape and dtype; an empty array stays."""
    return lambda v, step: solve(_exact(v).reshape(-1), step).reshape(v.shape).to(v.dtype) if v.numel() else v


def _l2(psi: psis.L2, v: Tensor, step: float) -> Tensor:
    norm = torch.linalg.vector_norm(_exact(v))
    shrunk = v * (1.0 - amount(step, psi.strength) / norm)
    # At norm = 0 the quotient is inf or NaN; `where` does not look at it.
    return torch.where(norm > amount(step, psi.strength), shrunk, torch.where(norm.isnan(), v, 0.0)).to(v.dtype)


def _l2_ball(psi: psis.L2Ball, v: Tensor, step: float) -> Tensor:
    norm = torch.linalg.vector_norm(_exact(v))
    return torch.where(norm <= psi.radius, v, v * (psi.radius / norm)).to(v.dtype)


def _level(size: Tensor, radius: float) -> Tensor:
    """Return (top, tau) with sum max(size - top - tau, 0) = radius; subtracting the largest avoids cancellation."""
    top = size.max()
    below = torch.sort(size - top, descending=True).values
    count = torch.arange(1, size.numel() + 1, dtype=size.dtype, device=size.device)
    taus = (torch.cumsum(below, 0) - radius) / count
    active = (below > taus).sum().clamp_min(1)
    return torch.stack((top, taus[active - 1]))


def _l1_ball(psi: psis.L1Ball, like: Tensor) -> TensorProx:
    if psi.weights is not None:
        return _weighted_l1_ball(psi, like)

    @_whole
    def solve(v: Tensor, step: float) -> Tensor:
        size = v.abs()
        top, tau = _level(size, psi.radius)
        # Adding 0.0 turns -0.0 into 0.0.
        projected = torch.sign(v) * torch.clamp(size - top - tau, min=0.0) + 0.0
        return torch.where(size.sum() <= psi.radius, v, projected)

    return solve


def _weighted_l1_ball(psi: psis.L1Ball, like: Tensor) -> TensorProx:
    """Return the projection onto {sum weights |w| <= radius}: soft(v, theta * weights) for one theta."""
    weights = _constant(psi.weights, _exact(like)).expand(like.shape).reshape(-1)
    heavy = weights > 0.0

    @_whole
    def solve(v: Tensor, step: float) -> Tensor:
        size, slopes = v.abs()[heavy], weights[heavy]
        if not size.numel():
            return v
        ratios, order = torch.sort(size / slopes, descending=True)
        # theta = (sum over the active w_i |v_i| - radius) / (sum over the active w_i^2), relative to the largest ratio.
        squares = slopes[order] * slopes[order]
        thetas = (torch.cumsum(squares * (ratios - ratios[0]), 0) - psi.radius) / torch.cumsum(squares, 0)
        active = (ratios - ratios[0] > thetas).sum().clamp_min(1)
        theta = ratios[0] + thetas[active - 1]
        projected = v.clone()
        projected[heavy] = torch.sign(v[heavy]) * torch.clamp(size - theta * slopes, min=0.0) + 0.0
        return torch.where((slopes * size).sum() <= psi.radius, v, projected)

    return solve


def _simplex(psi: psis.Simplex, like: Tensor) -> TensorProx:
    @_whole
    def solve(v: Tensor, step: float) -> Tensor:
        top, tau = _level(v, psi.radius)
        return torch.clamp(v - top - tau, min=0.0)

    return solve


def _hard_sparsity(psi: psis.HardSparsity, v: Tensor, step: float) -> Tensor:
    count = psi.count_of(v.numel())
    if count >= v.numel():
        return v
    flat = v.reshape(-1)
    # Stable: of equal ones the first stay, as in the NumPy map.
    kept = torch.sort(flat.abs(), descending=True, stable=True).indices[:count]
    result = torch.zeros_like(flat)
    result[kept] = flat[kept]
    return result.reshape(v.shape)


# --- groups ----------------------------------------------------------------------------------------------------------


def _groups(psi: psis.GroupLasso | psis.SparseGroupLasso, like: Tensor) -> TensorProx:
    """Return the map w_g = u_g max(1 - cut * weights_g / ||u_g||, 0), with v or v soft-thresholded as u."""
    groups_array, weights_array = psi._resolve(tuple(like.shape))
    groups = torch.tensor(groups_array, dtype=torch.int64, device=like.device)
    weights = _constant(weights_array, _exact(like))
    ratio = psi.l1_ratio if isinstance(psi, psis.SparseGroupLasso) else 0.0

    def solve(v: Tensor, step: float) -> Tensor:
        u = v - _clip(v, amount(step, psi.strength * ratio)) if ratio else v
        flat = _exact(u).reshape(-1)
        norms = torch.zeros_like(weights).index_add_(0, groups, flat * flat).sqrt()
        cut = amount(step, psi.strength * (1.0 - ratio)) * weights
        # The quotient 0/0 is discarded: a group that is 0 stays 0.
        factors = torch.where(norms > cut, 1.0 - cut / norms, torch.where(norms.isnan(), norms, 0.0))
        return (flat * factors[groups] + 0.0).reshape(v.shape).to(v.dtype)

    return solve


# --- singular values -------------------------------------------------------------------------------------------------


def _singular_values(psi: psis.Nuclear | psis.NuclearBall | psis.SpectralBall, v: Tensor, step: float) -> Tensor:
    """Return the map of a psi of the singular values alone."""
    if not v.numel():
        return v
    matrix: Any = psi.matrix(_exact(v))  # type: ignore[arg-type]
    if not bool(torch.isfinite(matrix).all()):
        return torch.full_like(v, math.nan)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    if isinstance(psi, psis.Nuclear):
        bound = sys.float_info.max if psi.bound is None else psi.bound
        changed = torch.clamp(values - amount(step, psi.strength), min=0.0, max=bound)
    elif float(values.sum() if isinstance(psi, psis.NuclearBall) else values[0]) <= psi.radius:
        return v
    elif isinstance(psi, psis.NuclearBall):
        top, tau = _level(values, psi.radius)
        changed = torch.clamp(values - top - tau, min=0.0)
    else:
        changed = torch.clamp(values, max=psi.radius)
    # Values below the rounding of a product do not count for the rank, as in the NumPy map.
    rank = int((changed > noise_of(float(changed.max()), tuple(matrix.shape))).sum())
    # Adding 0.0 turns the negative zeros of a product with zeros into zeros.
    product: Tensor = (left[:, :rank] * changed[:rank]) @ right[:rank] + 0.0
    return product.reshape(v.shape).to(v.dtype)


def _direct(solve: Callable[..., Tensor]) -> _Make:
    """Return what makes a map ``(psi, v, step) -> tensor``, which has no constants."""
    return lambda psi, like: partial(solve, psi)


# By class, not by isinstance: a subclass may have another proximal map.
_MAKERS: dict[type[Regularizer], _Make] = {
    psis.L2: _direct(_l2),
    psis.L2Ball: _direct(_l2_ball),
    psis.L1Ball: _l1_ball,
    psis.Simplex: _simplex,
    psis.HardSparsity: _direct(_hard_sparsity),
    **dict.fromkeys((psis.GroupLasso, psis.SparseGroupLasso), _groups),
    **dict.fromkeys((psis.Nuclear, psis.NuclearBall, psis.SpectralBall), _direct(_singular_values)),
}
