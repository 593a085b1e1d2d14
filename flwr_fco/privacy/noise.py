"""Gaussian noise for the prefix sums of a stream of T vectors, and what it costs, by Google's dp-accounting.

A factorisation A = B C of the lower triangular matrix of ones releases A x + B z = B (C x + z), z ~ N(0, sigma^2 I),
with C lower triangular: all outputs are a function of C x + z, whose privacy is that of one Gaussian mechanism, even
where x_t depends on what was released before round t. (Denisov, McMahan, Rush, Smith, Thakurta: Improved differential
privacy for SGD via optimal private linear operators on adaptive streams, NeurIPS 2022.)

- banded: C is the Toeplitz matrix of the square root of A, c_i = binom(2 i, i) / 4^i, cut off at p bands; B = A C^-1.
  The noise that is added in round t is y = C^-1 z: y_t = z_t - sum_{0 < i < p} c_i y_{t-i}. (Kalinin, Lampert: Banded
  square root matrix factorization for differentially private model training, NeurIPS 2024.)
- independent: C = I.

A client takes part at most every b rounds. The entries of C are not negative, so its influence on C x, with |x_t| <= 1,
is largest when all of its x_t are equal and it takes part as often as possible, beginning with the first round.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from flwr_fco.errors import ConfigurationError, NotInstalledError

Vector = NDArray[np.float64]
#: Draws a vector of independent N(0, 1).
Draw = Callable[[], Vector]


def square_root_coefficients(bands: int) -> Vector:
    """Return c_0, ..., c_{p-1}: c_0 = 1, c_i = c_{i-1} (2 i - 1) / (2 i).

    Parameters
    ----------
    bands : int
        p.

    Examples
    --------
    >>> square_root_coefficients(4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    i = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * i - 1) / (2 * i))])


def banded_sensitivity(rounds: int, separation: int, bands: int) -> float:
    """Return the largest |C x| of a client: the root of sum over t < T of (sum over j < k, j b <= t, of c_{t - j b})^2.

    Parameters
    ----------
    rounds : int
        T.
    separation : int
        b: a client that takes part in round t takes part again in round t + b at the earliest,
        so at most k = 1 + (T - 1) // b times.
    bands : int
        p; c_i = 0 from i = p on.

    Examples
    --------
    >>> banded_sensitivity(5, 5, 1), banded_sensitivity(4, 1, 1)
    (1.0, 2.0)
    """
    sums = np.zeros(rounds)
    c = square_root_coefficients(min(bands, rounds))
    for begin in range(0, rounds, separation):
        part = c[: rounds - begin]
        sums[begin : begin + part.size] += part
    return math.sqrt(math.fsum((sums * sums).tolist()))


class BandedNoise:
    """y_t = z_t - sum_{0 < i < p} c_i y_{t-i}: keeps p - 1 vectors.

    Parameters
    ----------
    bands : int
        p; 1: independent noise.

    Attributes
    ----------
    last : list of ndarray
        The last p - 1 vectors, on which the noise of later rounds depends.
    """

    def __init__(self, bands: int) -> None:
        self._coefficients = square_root_coefficients(bands)
        self.last: list[Vector] = []

    def next(self, draw: Draw) -> Vector:
        """Return y_t."""
        noise = draw()
        for c, earlier in zip(self._coefficients[1:], self.last, strict=False):
            noise -= c * earlier
        self.last = [noise, *self.last][: self._coefficients.size - 1]
        return noise.copy()


def secure_normal(size: int) -> Vector:
    """Return independent N(0, 1) draws from the operating system's entropy, unpredictable from other draws.

    Each is a quantile of 52 random bits with a random sign: at most 8.3 in absolute value.
    """
    words = np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64)
    tail = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(np.where(words & np.uint64(1), -1.0, 1.0) * ndtri(tail))


def clipped(vector: Vector, bounds: Sequence[tuple[slice, float]]) -> Vector:
    """Return a vector with the Euclidean norm of each block scaled down to a bound; NaN and infinity become 0.

    Examples
    --------
    >>> clipped(np.array([3.0, 4.0, 0.5]), [(slice(0, 2), 1.0), (slice(2, 3), 1.0)]).round(6).tolist()
    [0.6, 0.8, 0.5]
    """
    result = np.array(vector, dtype=np.float64)
    for block, bound in bounds:
        part = result[block]
        largest = float(np.max(np.abs(part), initial=0.0))
        if not math.isfinite(largest):
            part[:] = 0.0
        elif largest > 0.0:
            # Divided first: the squares of large numbers overflow, and those of small numbers underflow.
            shape = part / largest
            norm = float(np.linalg.norm(shape))
            if norm > bound / largest:
                # 1e-12: rounding must not push the norm above the bound again.
                part[:] = shape * (bound * (1.0 - 1e-12) / norm)
    return result


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
    noise : {"independent", "banded"}
        The noise of :class:`GaussianDP`.
    sampling : float
        Probability that a client takes part in a round, for ``"independent"``.
    separation : int
        Rounds between two participations of a client, for ``"banded"``.
    bands : int
        Number of bands, for ``"banded"``.
    """

    noise: str
    sampling: float = 1.0
    separation: int = 1
    bands: int = 1

    def sensitivity(self, rounds: int) -> float:
        """Return the largest influence of a client on the noisy quantity after some rounds, per unit of the clip."""
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
            low = high
            high = 2.0 * high
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
