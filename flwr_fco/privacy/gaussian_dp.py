"""Options of a private run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from flwr_fco.core.validation import AT_LEAST_ONE, NATURAL, NON_NEGATIVE, POSITIVE, Choice
from flwr_fco.errors import ConfigurationError

_CHANCE = {"range": (lambda delta: not (delta <= 0.0 or delta >= 1.0), "a number between 0 and 1, such as 1e-5")}


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
        Bound on the Euclidean norm of an increment, over all optimised arrays; or one bound for each array by name,
        combined as the root of their sum of squares. An increment is client_lr times a sum of gradients.
    delta : float
        delta of (epsilon, delta); less than one over the number of clients.
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
    delta: float = field(default=math.nan, metadata=_CHANCE)
    noise_multiplier: float | None = field(default=None, metadata=NON_NEGATIVE)
    target_epsilon: float | None = field(default=None, metadata=POSITIVE)
    noise: Literal["banded", "independent"] = "banded"
    bands: int | None = field(default=None, metadata=AT_LEAST_ONE)
    rounds: int | None = field(default=None, metadata=AT_LEAST_ONE)
    clients: int | None = field(default=None, metadata=AT_LEAST_ONE)
    noise_seed: int | None = field(default=None, metadata=NATURAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in ("clip", "delta") if getattr(self, name) != getattr(self, name)]
        if self.noise_multiplier is None and self.target_epsilon is None:
            missing.append("noise_multiplier or target_epsilon")
        if missing:
            raise ConfigurationError(
                f"GaussianDP without {', '.join(missing)}; expected a bound on increments, the delta of (epsilon, "
                "delta), and how much noise, such as GaussianDP(clip=1.0, delta=1e-5, target_epsilon=2.0)"
            )
        clips = self.clips
        if not clips or not all(0.0 < bound < math.inf for bound in clips.values()):
            raise ConfigurationError(f"clip={self.clip!r}; expected a finite number > 0, or one for each array")
        if isinstance(self.clip, Mapping):
            object.__setattr__(self, "clip", clips)
        if self.noise_multiplier is not None and self.target_epsilon is not None:
            raise ConfigurationError(
                f"noise_multiplier={self.noise_multiplier!r}, target_epsilon={self.target_epsilon!r}; expected one of "
                "the two"
            )
        if self.bands is not None and self.noise != "banded":
            raise ConfigurationError(f'bands={self.bands!r}: noise={self.noise!r} has none; leave it out, or "banded"')

    @property
    def clips(self) -> dict[str, float]:
        """Bounds by array name; the bound of all arrays together under ``""``."""
        if isinstance(self.clip, Mapping):
            return {name: float(bound) for name, bound in self.clip.items()}
        return {"": self.clip}

    @property
    def total_clip(self) -> float:
        """Bound on the norm of a whole increment."""
        return math.hypot(*self.clips.values())
