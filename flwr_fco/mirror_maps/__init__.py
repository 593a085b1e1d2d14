"""Mirror maps h: the geometry in which duals are averaged.

A mirror map is a strictly convex function h. ``gradient`` maps a primal point to its dual, ``conjugate_gradient`` maps
a dual back, and ``retrieve`` maps a dual to the primal point that takes psi into account:

    retrieve(z, t, psi) = argmin_w { -<z, w> + t psi(w) + h(w) } = gradient of (h + t psi)*
"""

from flwr_fco.mirror_maps.base import Euclidean, MirrorMap, RetrievalMethod, TermwiseMap
from flwr_fco.mirror_maps.product import Product
from flwr_fco.mirror_maps.termwise import DiagonalMetric, OrthantEntropy, PNorm, SimplexEntropy
from flwr_fco.regularizers.base import Terms

__all__ = [
    "DiagonalMetric",
    "Euclidean",
    "MirrorMap",
    "OrthantEntropy",
    "PNorm",
    "Product",
    "RetrievalMethod",
    "SimplexEntropy",
    "Terms",
    "TermwiseMap",
]
