"""What a run costs: epsilon at a delta, by Google's dp-accounting (extra ``privacy``)."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.privacy.noise import banded_sensitivity, tree_sensitivity

#: Of privacy losses on a grid; rounded up, so that epsilon is never too small.
_INTERVAL = 1e-3
#: Losses of less noise than this do not fit into the memory, and would guarantee nothing.
_LEAST_NOISE = 0.05


def library(name: str = "dp_accounting") -> Any:
    """Return dp-accounting, or a module of it.

    Raises
    ------
    NotInstalledError
        If it is not there.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalledError(
            f"privacy=GaussianDP(...) needs dp-accounting, which says what a run costs ({error}); install it by "
            "pip install -e '.[privacy]'"
        ) from error


class Accountant(NamedTuple):
    """The mechanism of a run, as far as its cost depends on it.

    Parameters
    ----------
    noise : {"independent", "tree", "banded"}
    sampling : float
        Probability with which a client takes part in a round, for ``"independent"``.
    separation : int
        Rounds between two participations of a client, for the others.
    bands : int
        Of ``"banded"``.
    """

    noise: str
    sampling: float = 1.0
    separation: int = 1
    bands: int = 1

    def sensitivity(self, rounds: int) -> float:
        """Return the largest influence of a client on what the noise is added to, per unit of the clip.

        Parameters
        ----------
        rounds : int
            That have been run.
        """
        if self.noise == "tree":
            return tree_sensitivity(rounds, self.separation)
        if self.noise == "banded":
            return banded_sensitivity(rounds, self.separation, self.bands)
        # A round by itself; that there are many is for the composition to say.
        return 1.0

    def event(self, noise_multiplier: float, rounds: int) -> Any:
        """Return what dp-accounting calls such a run.

        Parameters
        ----------
        noise_multiplier : float
            sigma / clip.
        rounds : int
        """
        dp = library()
        gaussian = dp.GaussianDpEvent(noise_multiplier / self.sensitivity(rounds))
        if self.noise != "independent":
            return gaussian
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(self.sampling, gaussian), rounds)

    def epsilon(self, noise_multiplier: float, rounds: int, delta: float) -> float:
        """Return epsilon after so many rounds; infinite without noise.

        Parameters
        ----------
        noise_multiplier : float
        rounds : int
        delta : float
        """
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
        own = noise_multiplier / (self.sensitivity(rounds) * math.sqrt(times))
        return float(library().get_epsilon_gaussian(own, delta))

    def noise_multiplier(self, target_epsilon: float, rounds: int, delta: float) -> float:
        """Return the smallest noise multiplier with which a run costs no more than an epsilon, to 4 digits.

        Parameters
        ----------
        target_epsilon : float
        rounds : int
        delta : float

        Raises
        ------
        ConfigurationError
            If none is large enough.
        """
        # Little noise takes long to account for.
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
