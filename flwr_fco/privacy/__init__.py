"""Differential privacy of dual averaging: noise that is correlated over the rounds, and its privacy cost."""

from flwr_fco.privacy.gaussian_dp import GaussianDP

__all__ = ["GaussianDP"]
