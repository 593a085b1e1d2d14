"""Mirror maps h: the geometry in which duals are averaged.

A mirror map is a strictly convex function h. ``gradient`` maps a primal point to its dual, ``conjugate_gradient`` maps
a dual back, and ``retrieve`` maps a dual to the primal point that takes psi into account:

    retrieve(z, t, psi) = argmin_w { -<z, w> + t psi(w) + h(w) } = gradient of (h + t psi)*
"""

from flwr_fco.mirror_maps.base import DiagonalMetric, Euclidean, MirrorMap, PNorm, SimplexEntropy
from flwr_fco.mirror_maps.product import Product

__all__ = ["DiagonalMetric", "Euclidean", "MirrorMap", "PNorm", "Product", "SimplexEntropy"]
