"""Privacy cost of a run: epsilon at a given delta, by Google's dp-accounting (extra ``privacy``)."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.privacy.noise import banded_sensitivity, tree_sensitivity

#: Grid spacing of privacy losses, which are rounded up so that epsilon is never too small.
_INTERVAL = 1e-3
#: Losses with less noise than this do not fit into memory, and would guarantee nothing.
_LEAST_NOISE = 0.05


def library(name: str = "dp_accounting") -> Any:
    """Return dp-accounting, or a module of it.

    Raises
    ------
    NotInstalledError
        If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalledError(
            f"privacy=GaussianDP(...) needs dp-accounting, which says what a run costs ({error}); install it by "
            "pip install -e '.[privacy]'"
        ) from error


class Accountant(NamedTuple):
    """The mechanism of a run, with the parameters that determine its cost.

    Parameters
    ----------
    noise : {"independent", "tree", "banded"}
        The noise of :class:`GaussianDP`.
    sampling : float
        Probability that a client takes part in a round, for ``"independent"``.
    separation : int
        Rounds between two participations of a client, for the other kinds of noise.
    bands : int
        Number of bands, for ``"banded"``.
    """

    noise: str
    sampling: float = 1.0
    separation: int = 1
    bands: int = 1

    def sensitivity(self, rounds: int) -> float:
        """Return the largest influence of a client on the noisy quantity after some rounds, per unit of the clip."""
        if self.noise == "tree":
            return tree_sensitivity(rounds, self.separation)
        if self.noise == "banded":
            return banded_sensitivity(rounds, self.separation, self.bands)
        # The sensitivity of a single round; the composition accounts for several rounds.
        return 1.0

    def event(self, noise_multiplier: float, rounds: int) -> Any:
        """Return the dp-accounting event of such a run; the noise multiplier is sigma / clip."""
        dp = library()
        gaussian = dp.GaussianDpEvent(noise_multiplier / self.sensitivity(rounds))
        if self.noise != "independent":
            return gaussian
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(self.sampling, gaussian), rounds)

    def epsilon(self, noise_multiplier: float, rounds: int, delta: float) -> float:
        """Return epsilon after a number of rounds; infinite without noise."""
        if rounds == 0:
            return 0.0
        if noise_multiplier == 0.0:
            return math.inf
        if self.noise == "independent" and self.sampling < 1.0:
            if noise_multiplier < _LEAST_NOISE:
                return math.inf
            one = _losses(noise_multiplier, self.sampling)
            return float(one.self_compose(rounds).get_epsilon_for_delta(delta))
        times = rounds if self.noise == "independent" else 1
        multiplier = noise_multiplier / (self.sensitivity(rounds) * math.sqrt(times))
        return float(library().get_epsilon_gaussian(multiplier, delta))

    def noise_multiplier(self, target_epsilon: float, rounds: int, delta: float) -> float:
        """Return the smallest noise multiplier for which a run stays within a target epsilon, to 4 digits.

        Raises
        ------
        ConfigurationError
            If no multiplier is large enough.
        """
        # With little noise the accounting is slow.
        low = high = 1.0
        while low > _LEAST_NOISE and self.epsilon(low, rounds, delta) <= target_epsilon:
            low, high = 0.5 * low, low
        while self.epsilon(high, rounds, delta) > target_epsilon:
            low, high = high, 2.0 * high
            if high > 1e7:
                raise ConfigurationError(
                    f"target_epsilon={target_epsilon:g} at delta={delta:g} is out of reach in {rounds} rounds; "
                    "expected a larger epsilon, a larger delta or fewer rounds"
                )
        while high > low * 1.0001:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.epsilon(middle, rounds, delta) <= target_epsilon else (middle, high)
        return high


@lru_cache(maxsize=4)
def _losses(noise_multiplier: float, sampling: float) -> Any:
    """Return the distribution of privacy losses of one round with Poisson sampling."""
    return library("dp_accounting.pld.privacy_loss_distribution").from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sampling, value_discretization_interval=_INTERVAL
    )
