"""Checks for users' own regularizers, mirror maps, objectives and strategies."""

from flwr_fco.testing.mirror_maps import check_mirror_map, check_pair
from flwr_fco.testing.objectives import check_objective, check_saddle_objective
from flwr_fco.testing.regularizers import check_regularizer
from flwr_fco.testing.strategies import check_strategy

__all__ = [
    "check_mirror_map",
    "check_objective",
    "check_pair",
    "check_regularizer",
    "check_saddle_objective",
    "check_strategy",
]
