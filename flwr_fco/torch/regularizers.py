"""Proximal maps of ``flwr_fco.regularizers`` on tensors, from what a regularizer says of itself.

Only the arithmetic uses PyTorch, on the tensors' device; in float64 the results agree with the NumPy maps to 1e-12. A
psi that says neither terms, groups, singular values nor a count goes through NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_fco.regularizers import NofM, Regularizer, Terms
from flwr_fco.regularizers.base import Groups
from flwr_fco.regularizers.spectral import noise_of

#: A proximal map on tensors of one shape, dtype and device: ``(v, step) -> argmin_w step * psi(w) + 1/2 ||w - v||^2``.
TensorProx = Callable[[Tensor, float], Tensor]

#: Number of elements of a CPU tensor that are processed at a time, where possible: they stay in the cache.
_PART = 1 << 16


def tensor_prox(regularizer: Regularizer, like: Tensor) -> TensorProx:
    """Return a regularizer's proximal map on tensors.

    Parameters
    ----------
    regularizer : Regularizer
        psi.
    like : Tensor
        A tensor with the shape, floating dtype and device of the map's inputs, so that constants are computed once.

    Returns
    -------
    callable
        ``(v, step) -> argmin_w step * psi(w) + 1/2 ||w - v||^2``, a new tensor or `v` itself.

    Raises
    ------
    ConfigurationError
        If psi cannot act on tensors of this shape.

    Examples
    --------
    >>> import torch
    >>> from flwr_fco.regularizers import L1
    >>> v = torch.tensor([3.0, -0.5, -2.0])
    >>> tensor_prox(L1(1.0), v)(v, 1.0)
    tensor([ 2.,  0., -1.])
    """
    shape = tuple(like.shape)
    regularizer.check_shape("the tensor", shape)
    terms = regularizer.terms()
    groups = regularizer.groups_of(shape)
    inner = regularizer.of_values()
    if terms is not None:
        return _termwise(terms, like)
    if groups is not None:
        return _grouped(groups, like)
    if inner is not None:
        return _spectral(regularizer, inner)
    if isinstance(regularizer, NofM):
        return _n_of_m(regularizer)
    count = regularizer.count_of(like.numel())
    return _through_numpy(regularizer) if count is None else _sparse(count)


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
        If a regularizer cannot act on a shape.
    """

    def __init__(self, regularizers: Sequence[Regularizer | None], like: list[Tensor]) -> None:
        self._maps: list[tuple[TensorProx | None, bool]] = []
        for psi, tensor in zip(regularizers, like, strict=True):
            terms = Terms() if psi is None else psi.terms()
            even = terms is not None and all(np.ndim(term) == 0 for term in terms)
            idle = terms is not None and terms.is_l1 and not np.any(terms.threshold)
            solve = None if psi is None or idle else tensor_prox(psi, tensor)
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


def widest_dtype(like: Tensor) -> torch.dtype:
    """Return the most precise real dtype on a tensor's device; Apple's GPUs have no float64."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def _exact(v: Tensor) -> Tensor:
    """Return the tensor in the most precise dtype, in which long sums are accurate."""
    return v.to(widest_dtype(v))


def _constant(array: Any, like: Tensor) -> Tensor:
    """Return an array of a regularizer (which is read-only) as a tensor of the dtype and device of `like`."""
    return torch.tensor(array, dtype=like.dtype, device=like.device)


def _soft(v: Tensor, cut: Any) -> Tensor:
    """Return sign(v) max(|v| - cut, 0)."""
    return v - torch.clamp(v, -cut, cut)


def _termwise(terms: Terms, like: Tensor) -> TensorProx:
    """Return the map clip(soft(v, step * threshold) / (1 + step * shrinkage), lower, upper)."""
    rows: list[Any] = [_constant(term, like) if np.ndim(term) else float(term) for term in terms]
    threshold, shrinkage, lower, upper = rows
    curved = bool(np.any(terms.shrinkage))
    bounded = terms.is_bounded

    def solve(v: Tensor, step: float) -> Tensor:
        # Adding 0.0 turns negative zeros into zeros, here and below.
        result = _soft(v, step * threshold).add_(0.0)
        if curved:
            result.div_(1.0 + step * shrinkage)
        # One after the other: `clamp` takes no tensor beside a number.
        return result.clamp_(min=lower).clamp_(max=upper).add_(0.0) if bounded else result

    return solve


def _grouped(given: Groups, like: Tensor) -> TensorProx:
    """Return the map w_g = u_g max(1 - step strengths_g / ||u_g||, 0) of the soft-thresholded u."""
    l1 = given[0]
    groups = torch.tensor(given[1], dtype=torch.int64, device=like.device)
    strengths = _constant(given[2], _exact(like))

    def solve(v: Tensor, step: float) -> Tensor:
        flat = _exact(_soft(v, step * l1) if l1 else v).reshape(-1)
        norms = torch.linalg.vector_norm(flat).reshape(1)
        if len(strengths) > 1:
            norms = torch.zeros_like(strengths).index_add_(0, groups, flat * flat).sqrt()
        cut = step * strengths
        # The quotient 0/0 is discarded: a group that is 0 stays 0.
        factors = torch.where(norms > cut, 1.0 - cut / norms, torch.where(norms.isnan(), norms, 0.0))
        return (flat * factors[groups] + 0.0).reshape(v.shape).to(v.dtype)

    return solve


def _spectral(psi: Regularizer, inner: Regularizer) -> TensorProx:
    def solve(v: Tensor, step: float) -> Tensor:
        if not v.numel():
            return v
        matrix: Any = psi.matrix(_exact(v))  # type: ignore[arg-type]
        if not bool(torch.isfinite(matrix).all()):
            return torch.full_like(v, math.nan)
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        changed = tensor_prox(inner, values)(values, step)
        # Values below the rounding of a product do not count for the rank, as in the NumPy map.
        changed = torch.where(changed > noise_of(1.0, tuple(matrix.shape)) * changed.max(), changed, 0.0)
        return ((left * changed) @ right + 0.0).reshape(v.shape).to(v.dtype)

    return solve


def _sparse(count: int) -> TensorProx:
    def solve(v: Tensor, step: float) -> Tensor:
        if count >= v.numel():
            return v + 0.0
        size = v.abs().reshape(-1)
        level = torch.topk(size, count, sorted=False).values.min()
        # NaN is kept, not hidden. Of equal ones the first stay, as in the NumPy map.
        kept = ~(size <= level)
        equal = size == level
        kept |= equal & (equal.cumsum(0) <= count - kept.sum())
        return torch.where(kept.reshape(v.shape), v, 0.0) + 0.0

    return solve


def _n_of_m(psi: NofM) -> TensorProx:
    def solve(v: Tensor, step: float) -> Tensor:
        if v.shape[1] < psi.m:
            return v + 0.0
        rows = v.movedim(1, -1)
        kept = psi.largest(rows.abs().reshape(-1, psi.m)).reshape(rows.shape).movedim(-1, 1)
        return torch.where(kept, v, 0.0) + 0.0

    return solve


def _through_numpy(psi: Regularizer) -> TensorProx:
    return lambda v, step: torch.from_numpy(psi.prox(_exact(v).numpy(force=True), step)).to(v)
