"""Checks for users' own regularizers, mirror maps, objectives and strategies."""

from flwr_fco.testing.functions import check_mirror_map, check_objective, check_pair, check_regularizer
from flwr_fco.testing.functions import check_saddle_objective as check_saddle_objective
from flwr_fco.testing.strategies import check_strategy

__all__ = ["check_mirror_map", "check_objective", "check_pair", "check_regularizer", "check_saddle_objective"]
__all__ += ["check_strategy"]
