"""Objectives F_m: a client's loss, its stochastic gradients and its metrics."""

from flwr_fco.objectives.base import Batch, Objective

__all__ = ["Batch", "Objective"]
