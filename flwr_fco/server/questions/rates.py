"""Information on the clients' losses for theoretical rates, bounded so that no single client can set them."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_fco.algorithms.contract.problem import LARGEST_CLAIM
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, SimplexEntropy
from flwr_fco.mirror_maps.product import BoundProduct

#: Lower bound on a claim of strong convexity, as a fraction of the clients' median.
SMALLEST_CLAIM = 0.01


def bounded_largest(claims: Sequence[float]) -> tuple[float, int]:
    """Return the largest claim, clipped to ten times the lower median, and the number of clipped claims.

    Parameters
    ----------
    claims : sequence of float
        At least one; negative claims count as 0.

    Examples
    --------
    >>> bounded_largest([1.0, 2.0, 4.0]), bounded_largest([1.0, 2.0, 1e9])
    ((4.0, 0), (20.0, 1))
    """
    ordered = sorted(max(0.0, claim) for claim in claims)
    median = ordered[(len(ordered) - 1) // 2]
    if median == 0.0:
        return ordered[-1], 0
    limit = LARGEST_CLAIM * median
    return min(ordered[-1], limit), sum(claim > limit for claim in ordered)


def bounded_smallest(claims: Sequence[float]) -> float:
    """Return the smallest claim, raised to at least a hundredth of the upper median.

    Parameters
    ----------
    claims : sequence of float
        At least one; negative claims count as 0.

    Examples
    --------
    >>> bounded_smallest([1.0, 2.0, 4.0]), bounded_smallest([0.0, 2.0, 4.0])
    (1.0, 0.02)
    """
    ordered = sorted(max(0.0, claim) for claim in claims)
    return max(ordered[0], SMALLEST_CLAIM * ordered[len(ordered) // 2])


def smoothness_for(mirror_map: MirrorMap, l2: float, l1: float) -> tuple[float, str]:
    """Return the Lipschitz constant in the norm in which the mirror map is 1-strongly convex, and the norm's name.

    Euclidean: L_2. DiagonalMetric: L_2 / min weight. SimplexEntropy: radius L_1. PNorm, in its q-norm:
    L_1^(1 - 2/p) L_2^(2/p), by the Riesz-Thorin theorem between l1 -> linf and l2 -> l2. A product: L_2, because each
    of these maps is 1-strongly convex in the l2 norm too (up to its weights or radius).

    Parameters
    ----------
    mirror_map : MirrorMap
        Mirror map, bound to the layout or not.
    l2, l1 : float
        ||grad(u) - grad(v)||_2 <= l2 ||u - v||_2, and with the norms linf and l1.

    Raises
    ------
    ConfigurationError
        If the map is not strongly convex on its domain.

    Examples
    --------
    >>> smoothness_for(PNorm(4.0), 9.0, 1.0)
    (3.0, '1.333')
    """
    if isinstance(mirror_map, Euclidean):
        return l2, "l2"
    if isinstance(mirror_map, PNorm):
        p = mirror_map.p
        return l1 ** (1.0 - 2.0 / p) * l2 ** (2.0 / p), f"{p / (p - 1.0):.4g}"
    if isinstance(mirror_map, DiagonalMetric):
        return l2 / float(mirror_map.weights.min()), "weighted l2"
    if isinstance(mirror_map, SimplexEntropy):
        return mirror_map.radius * l1, "l1"
    if isinstance(mirror_map, BoundProduct):
        modulus = min((_modulus(part.mirror_map) for part in mirror_map.parts), default=1.0)
        if modulus > 0.0:
            return l2 / modulus, "l2"
    raise ConfigurationError(
        f"no rate follows from theory for mirror_map={mirror_map!r}, which is not strongly convex everywhere; give "
        "client_lr by hand"
    )


def _modulus(mirror_map: MirrorMap) -> float:
    """Return a modulus of strong convexity in the l2 norm; 0 if there is none."""
    if isinstance(mirror_map, Euclidean | PNorm):
        return 1.0
    if isinstance(mirror_map, DiagonalMetric):
        return float(mirror_map.weights.min())
    if isinstance(mirror_map, SimplexEntropy):
        return 1.0 / mirror_map.radius
    return 0.0
