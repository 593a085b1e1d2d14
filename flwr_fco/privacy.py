"""Differential privacy of the clients: the options of a private run, its noise, what it costs, and its mean.

Of a round all else sees the replies through one noisy mean.

The noise is that of the prefix sums of a stream of T vectors; Google's dp-accounting says what it costs.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from flwr_fco.algorithms.contract import Problem
from flwr_fco.core.computing import logger
from flwr_fco.core.layout import Vector, dense
from flwr_fco.core.validation import AT_LEAST_ONE, NATURAL, NON_NEGATIVE, PART, POSITIVE, Choice, checked
from flwr_fco.errors import ConfigurationError, installed
from flwr_fco.messages.protocol import Node, Uplink

__all__ = ["GaussianDP"]


@dataclass(frozen=True, kw_only=True)
class GaussianDP(Choice):
    """User-level differential privacy: clipped increments, a fixed denominator, Gaussian noise in the server's dual.

    Each client's increment is scaled down to the norm `clip`; their sum gets noise and is divided by the expected
    number of clients, however many reply. The model is the proximal map of the noisy dual, so it is as sparse
    (low-rank, feasible) as psi makes it, at no further privacy cost. For the exact guarantees see
    ``docs/tutorials/privacy.md``.

    Parameters
    ----------
    clip : float or mapping of str to float
        Required. Bound on the Euclidean norm of an increment, over all optimised arrays; or one bound for each array by
        name, combined as the root of their sum of squares. An increment is client_lr times a sum of gradients.
    delta : float
        Required. The delta of (epsilon, delta); less than one over the number of clients.
    noise_multiplier : float, optional
        sigma / clip, where sigma is the standard deviation of z; 0 gives no privacy (epsilon infinite).
    target_epsilon : float, optional
        Alternative: use the smallest noise multiplier for which the whole run stays within this epsilon.
    noise : {"banded", "independent"}, default "banded"
        ``"banded"``: correlated over the rounds by a square root of the prefix sums; clients are shuffled once, in
        secret, and take part in b = floor(1 / fraction_train) blocks in turn. It protects a client whose increments are
        replaced by zeros, and claims no amplification by sampling.
        ``"independent"``: fresh noise in every round; each client takes part with probability fraction_train (Poisson
        sampling), which amplifies the privacy; it protects a client that is added or removed.
    bands : int, optional
        p, for ``"banded"``; by default b. The server keeps p - 1 vectors.
    rounds : int, optional
        Number of rounds in the privacy accounting, which is also the maximum; by default the rounds given to ``start``.
    clients : int, optional
        Number of clients, which is assumed to be public: the denominator is fraction_train times this number. By
        default the number of clients connected in round 1.
    noise_seed : int, optional
        For tests: seed of noise and shuffle. Such a run is not private, and is reported as such.

    Raises
    ------
    ConfigurationError
        If an argument is out of range.

    References
    ----------
    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: Practical and private (deep) learning without sampling or shuffling
    (ICML 2021). Kalinin, Lampert: Banded square root matrix factorization for differentially private model training
    (NeurIPS 2024).

    Examples
    --------
    >>> GaussianDP(clip=1.0, target_epsilon=2.0, delta=1e-5).noise
    'banded'
    """

    # NaN: not given. One error then names all that is missing.
    clip: float | Mapping[str, float] = math.nan
    delta: float = field(default=math.nan, metadata=PART)
    noise_multiplier: float | None = field(default=None, metadata=NON_NEGATIVE)
    target_epsilon: float | None = field(default=None, metadata=POSITIVE)
    noise: Literal["banded", "independent"] = "banded"
    bands: int | None = field(default=None, metadata=AT_LEAST_ONE)
    rounds: int | None = field(default=None, metadata=AT_LEAST_ONE)
    clients: int | None = field(default=None, metadata=AT_LEAST_ONE)
    noise_seed: int | None = field(default=None, metadata=NATURAL)

    def __post_init__(self) -> None:
        missing = [name for name in ("clip", "delta") if getattr(self, name) is math.nan]
        if self.noise_multiplier is None and self.target_epsilon is None:
            missing.append("noise_multiplier or target_epsilon")
        if missing:
            example = "GaussianDP(clip=1.0, delta=1e-5, target_epsilon=2.0)"
            raise ConfigurationError(f"GaussianDP without {', '.join(missing)}; expected all three, such as {example}")
        super().__post_init__()
        clips = self.clips
        if not clips or not all(0.0 < bound < math.inf for bound in clips.values()):
            raise ConfigurationError(f"clip={self.clip!r}; expected a finite number > 0, or one for each array")
        if isinstance(self.clip, Mapping):
            object.__setattr__(self, "clip", clips)
        if None not in (self.noise_multiplier, self.target_epsilon):
            both = f"noise_multiplier={self.noise_multiplier!r}, target_epsilon={self.target_epsilon!r}"
            raise ConfigurationError(f"{both}; expected one of the two")
        if self.bands is not None and self.noise != "banded":
            raise ConfigurationError(f'bands={self.bands!r}: noise={self.noise!r} has none; leave it out, or "banded"')

    @property
    def clips(self) -> dict[str, float]:
        """Bounds by array name; the bound of all arrays together under ``""``."""
        if isinstance(self.clip, Mapping):
            return {name: checked(f"clip[{name!r}]", bound, float) for name, bound in self.clip.items()}
        return {"": self.clip}

    @property
    def total_clip(self) -> float:
        """Bound on the norm of a whole increment."""
        return math.hypot(*self.clips.values())


# --- noise, and what it costs -----------------------------------------------------------------------------------------


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
    takes_part = np.arange(rounds) % separation == 0
    sums = np.convolve(takes_part, square_root_coefficients(min(bands, rounds)))[:rounds]
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

    saved = ("last",)

    def __init__(self, bands: int) -> None:
        self._coefficients = square_root_coefficients(bands)
        self.last: list[Vector] = []

    def next(self, noise: Vector) -> Vector:
        """Return y_t; into z_t, independent N(0, 1), it is written."""
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


#: Losses with less noise than this do not fit into memory, and would guarantee nothing.
_LEAST_NOISE = 0.05


def library(name: str = "dp_accounting") -> Any:
    """Return dp-accounting, or a module of it.

    Raises
    ------
    NotInstalledError
        If it is not installed.
    """
    prefix = "privacy=GaussianDP(...) needs dp-accounting, which says what a run costs"
    return installed(name, f"{prefix}: pip install dp-accounting, or in a clone pip install -e '.[privacy]'")


class Accountant(NamedTuple):
    """The mechanism of a run, with the parameters that determine its cost.

    Independent noise is that of one band, where a client may take part in each round.

    Parameters
    ----------
    sampling : float, default 1.0
        Probability that a client takes part in a round; below 1 for independent noise alone.
    separation : int, default 1
        Rounds between two participations of a client.
    bands : int, default 1
        Number of bands.
    """

    sampling: float = 1.0
    separation: int = 1
    bands: int = 1

    def epsilon(self, noise_multiplier: float, rounds: int, delta: float) -> float:
        """Return epsilon after a number of rounds; infinite without noise. The noise multiplier is sigma / clip."""
        if rounds == 0 or noise_multiplier == 0.0:
            return math.inf if rounds else 0.0
        if self.sampling == 1.0:
            influence = banded_sensitivity(rounds, self.separation, self.bands)
            return float(library().get_epsilon_gaussian(noise_multiplier / influence, delta))
        if noise_multiplier < _LEAST_NOISE:
            return math.inf
        return float(_losses(noise_multiplier, self.sampling).self_compose(rounds).get_epsilon_for_delta(delta))

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
                prefix = f"target_epsilon={target_epsilon:g} at delta={delta:g} is out of reach in {rounds} rounds"
                raise ConfigurationError(f"{prefix}; expected a larger epsilon, a larger delta or fewer rounds")
        while high > low * 1.0001:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.epsilon(middle, rounds, delta) <= target_epsilon else (middle, high)
        return high


@lru_cache(maxsize=4)
def _losses(noise_multiplier: float, sampling: float) -> Any:
    """Return the distribution of privacy losses of one round with Poisson sampling."""
    of = library("dp_accounting.pld.privacy_loss_distribution").from_gaussian_mechanism
    # Losses are rounded up to this grid, so that epsilon is never too small.
    return of(noise_multiplier, sampling_prob=sampling, value_discretization_interval=1e-3)


# --- the mean of a private run ----------------------------------------------------------------------------------------


class PrivateMean:
    """Stands for the replies of each round: the sum of their clipped increments, with noise.

    Parameters
    ----------
    privacy : GaussianDP
        Clipping, noise and budget.
    options : Options
        Of the strategy.

    Attributes
    ----------
    stream : BandedNoise
        The noise.
    """

    saved = ("round", "rounds", "multiplier", "denominator", "order")

    def __init__(self, privacy: GaussianDP, options: Any) -> None:
        library()
        self.privacy = privacy
        share, self._sampled = options.fraction_train, privacy.noise == "independent"
        # 1e-9: a fraction of 1 / 49 gives 49 blocks, not 48.
        blocks = 1 if self._sampled else math.floor(1.0 / share + 1e-9)
        self.accountant = Accountant(share if self._sampled else 1.0, blocks, privacy.bands or blocks)
        self.round, self.rounds = 0, 0
        #: Whose `_released` is the rounds that it has released, in whichever run.
        self._options = options
        self.multiplier, self.denominator = 0.0, 1.0
        self.order: list[tuple[int, int]] = []
        self.stream = BandedNoise(self.accountant.bands)
        self._asked: set[tuple[int, int]] | None = None

    def begin_round(self, nodes: Sequence[Node], num_rounds: int | None, problem: Problem) -> list[Node]:
        """Return whom the secret schedule asks; before round 1 the noise is settled, for so many rounds.

        Parameters
        ----------
        nodes : sequence of Node
            All that are connected.
        num_rounds : int or None
            Of the run, if it is known.
        problem : Problem
            With the round's numbers.

        Raises
        ------
        ConfigurationError
            If the model, or the number of rounds, leaves no privacy to account for, or the round has been released.
        """
        privacy, layout = self.privacy, problem.layout
        if layout.passed_through:
            names = ", ".join(entry.name for entry in layout.passed_through)
            advice = "Keep them out of the model (use GroupNorm), or optimise them: arrays=Arrays(pass_through=())"
            raise ConfigurationError(f"the arrays {names} are averaged as they are, without noise. {advice}")
        if not self.order:
            self._settle(nodes, privacy.rounds or num_rounds)
        if self.round >= self.rounds:
            prefix = f"the privacy of this run is accounted for {self.rounds} rounds, and it has had them"
            raise ConfigurationError(f"{prefix}. Give GaussianDP more `rounds`, or `start` a larger num_rounds")
        if self.round < (released := self._options._released):
            prefix = f"round {self.round + 1} of this strategy has been released already, up to round {released}"
            advice = "Resume from the last state; another run, whose epsilon adds to this one's, takes another strategy"
            raise ConfigurationError(f"{prefix}; another one costs the clients' privacy again. {advice}")
        if self._sampled:
            seed: Any = privacy.noise_seed
            rng = secrets.SystemRandom() if seed is None else np.random.default_rng([seed, 3, self.round])
            self._asked = {node.key for node in nodes if rng.random() < self.accountant.sampling}
        else:
            blocks = self.accountant.separation
            self._asked = set(self.order[self.round % blocks :: blocks])
        named = {entry.name: entry.block for entry in layout.optimized}
        blocks_of = named if isinstance(privacy.clip, Mapping) else {"": slice(None)}
        if blocks_of.keys() != privacy.clips.keys():
            raise ConfigurationError(f"clip={privacy.clip!r}; expected a bound for each of {', '.join(blocks_of)}")
        self._bounds = [(blocks_of[name], bound) for name, bound in privacy.clips.items()]
        self._problem = problem
        return [node for node in nodes if node.key in self._asked]

    def _settle(self, nodes: Sequence[Node], rounds: int | None) -> None:
        privacy, accountant = self.privacy, self.accountant
        if not rounds:
            raise ConfigurationError("without `start` the number of rounds is not known; give GaussianDP(rounds=...)")
        order = [node.key for node in nodes]
        if privacy.delta * len(order) >= 1.0:
            text = "delta=%g is that of publishing one of %s clients' data whole; expected less than %g"
            logger.warning(text, privacy.delta, len(order), 1.0 / len(order))
        seed: Any = privacy.noise_seed
        (secrets.SystemRandom() if seed is None else np.random.default_rng([seed, 2])).shuffle(order)
        self.rounds, self.order, self.multiplier = rounds, order, self._multiplier_for(rounds)
        self.denominator = accountant.sampling / accountant.separation * (privacy.clients or len(order))

    def _multiplier_for(self, rounds: int) -> float:
        if (given := self.privacy.noise_multiplier) is not None:
            return given
        return self.accountant.noise_multiplier(float(self.privacy.target_epsilon or 0.0), rounds, self.privacy.delta)

    def _draw(self, size: int) -> Vector:
        seed: Any = self.privacy.noise_seed
        return secure_normal(size) if seed is None else np.random.default_rng([seed, 1, self.round]).normal(size=size)

    def clipped_sum(self, uplinks: Sequence[Uplink]) -> Vector:
        """Return the sum of the clipped increments of those who were asked, one of each: the basis of the privacy.

        A client that is added, removed or silent changes the sum by at most `clip`, a client that sends another
        increment by at most twice that.

        Parameters
        ----------
        uplinks : sequence of Uplink
            The replies that count.
        """
        if self._asked is None:
            raise ConfigurationError("the replies of a private round are aggregated once; call configure_train first")
        total = np.zeros(self._problem.layout.size)
        left = set(self._asked)
        for up in uplinks:
            key = None if up.node is None else up.node.key
            if key in left:
                left.remove(key)
                total += clipped(dense(up.vectors["increment"]), self._bounds)
        return total

    def release(self, uplinks: Sequence[Uplink]) -> Uplink:
        """Return the noisy mean of a round, which takes the place of its replies; without replies, it is pure noise.

        Parameters
        ----------
        uplinks : sequence of Uplink
            The replies that count.
        """
        mean = self.clipped_sum(uplinks)
        mean += self.multiplier * self.privacy.total_clip * self.stream.next(self._draw(mean.size))
        mean /= self.denominator
        self.round += 1
        self._options._released = max(self._options._released, self.round)
        self._asked = None
        steps = self._problem.plan.steps or 1
        return Uplink({"increment": mean}, self._problem.client_lr * steps, steps, weight=1.0, examples=1.0)

    def epsilon(self, multiplier: float, rounds: int) -> float:
        """Return epsilon after some rounds, at the privacy's delta; infinite if anybody can draw the noise."""
        if self.privacy.noise_seed is not None:
            return math.inf
        return self.accountant.epsilon(multiplier, rounds, self.privacy.delta)

    def metrics(self) -> dict[str, Any]:
        """Return what has been spent."""
        spent: dict[str, float] = {"epsilon": self.epsilon(self.multiplier, self.round), "delta": self.privacy.delta}
        return spent if self.privacy.noise_seed is None else {**spent, "not-private": 1}

    def describe(self, num_rounds: int | None) -> list[tuple[str, str]]:
        """Return the lines of the summary about the guarantee and its cost."""
        privacy, accountant = self.privacy, self.accountant
        who = f"a client's increments zeroed; each in 1 of {accountant.separation} rounds, in secret order"
        if self._sampled:
            who = f"a client added or removed; Poisson sampling with {accountant.sampling:g}"
        lines = [("Privacy", f"{privacy!r}, {who}")]
        if rounds := self.rounds or privacy.rounds or num_rounds:
            multiplier = self.multiplier or self._multiplier_for(rounds)
            cost = f"({self.epsilon(multiplier, rounds):.4g}, {privacy.delta:g}) after {rounds} rounds"
            lines.append(("Epsilon, delta", f"{cost}, noise multiplier {multiplier:.4g}"))
        if privacy.noise_seed is not None:
            logger.warning("noise_seed=%s: this run is NOT private, for anybody can draw its noise", privacy.noise_seed)
            lines.append(("NOT PRIVATE", f"noise_seed={privacy.noise_seed}"))
        return lines


def check_private(options: Any) -> None:
    """Raise a ConfigurationError that lists what a private run cannot have.

    Parameters
    ----------
    options : Options
        Of the strategy.
    """
    needed = {
        'weighting="uniform"': options.weighting == "uniform",
        "normalize_local_work=False": not options.normalize_local_work,
        "work=Steps(...)": options.work.steps is not None,
        "fraction_evaluate=0.0": options.fraction_evaluate == 0.0,
        "fraction_train > 0": options.fraction_train > 0.0,
        "client_lr as a number": isinstance(options.client_lr, float),
        "server_lr as a number": isinstance(options.server_lr, float),
        "certificate_every=None": options.certificate_every is None,
        'aggregation="mean"': options.aggregation == "mean",
        "no choose_nodes": options.participation.choose_nodes is None,
        "min_replies=1": options.participation.min_replies == 1,
        'output="last" or Average()': options.output not in ("shadow", "ergodic"),
        'client="composite"': not options._unmodified,
        "train_metrics_aggr_fn=None": options.train_metrics_aggr_fn in options._means,
    }
    if missing := [text for text, there in needed.items() if not there]:
        why = "otherwise numbers of clients leave without noise, or one client counts for more than `clip`"
        raise ConfigurationError(f"privacy={options.privacy!r} needs {'; '.join(missing)}: {why}")
