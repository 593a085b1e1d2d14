"""The theorems' step sizes: each turns the bound that it was chosen for into the rate that the paper prints."""

import numpy as np
import pytest
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies import theorem_rate
from flwr_fco.topology import chain, complete, from_matrix

# The bound at a step size e, and the rate that the paper concludes from it. L, B, R, K, M, s (sigma), g, t (tau), D.
BOUNDS = {
    "fco-D.1": (
        lambda e, L, B, R, K, M, s, g, **_: B / (e * K * R) + e * s**2 / M + 4 * e**2 * L * (K - 1) ** 2 * g**2,
        lambda L, B, R, K, M, s, g, **_: (
            4 * L * B / (K * R) + 2 * s * (B / (M * K * R)) ** 0.5 + 5 * (L * B**2 * g**2 / R**2) ** (1 / 3)
        ),
    ),
    "fco-E.1": (
        lambda e, L, B, R, K, M, s, g, **_: (
            B / (e * K * R) + e * s**2 / M + 7 * e**2 * L * K * s**2 + 14 * e**2 * L * K**2 * g**2
        ),
        lambda L, B, R, K, M, s, g, **_: (
            4 * L * B / (K * R)
            + 2 * s * (B / (M * K * R)) ** 0.5
            + 8 * (L * B**2 * s**2 / (K * R**2)) ** (1 / 3)
            + 15 * (L * B**2 * g**2 / R**2) ** (1 / 3)
        ),
    ),
    "fco-F.1": (
        lambda e, B, R, K, M, s, **_: B / (e * K * R) + 3 * e * s**2 / M,
        lambda L, B, R, K, M, s, **_: 4 * L * B / R + 4 * s * (B / (M * K * R)) ** 0.5,
    ),
    "gt-B.1": (
        lambda e, L, B, R, K, s, g, t, D, **_: (
            B / (R * K * e) + t * np.log(D) ** 4 * s**2 * e + t**2 * L * K**2 * g**2 * e**2
        ),
        lambda L, B, R, K, s, g, t, D, **_: (
            2
            * (
                t * L * B / R
                + (t**2 * L * g**2 * B**2 / R**2) ** (1 / 3)
                + (t * B / (R * K)) ** 0.5 * np.log(D) ** 2 * s
            )
        ),
    ),
    "gt-B.2": (
        lambda e, B, R, K, s, t, D, **_: B / (R * K * e) + t**2 * np.log(D) ** 4 * s**2 * e,
        lambda L, B, R, K, s, t, D, **_: 2 * (t**2 * L * B / R + t * (B / (R * K)) ** 0.5 * np.log(D) ** 2 * s),
    ),
    "gt-C.1": (
        lambda e, B, R, K, s, D, **_: 6 * B * np.log(D) / (R * K * e) + 3 * e * s**2 * np.log(D) ** 4,
        lambda L, B, R, K, M, s, D, **_: (
            300
            * (
                L * B * np.log(D) / R
                + (B * s**2 * np.log(D)) ** 0.5
                * (np.log(D) ** 3 / (R * K) ** 0.5 + np.log(40 * D) ** 0.5 / (R * (M * K) ** 0.5))
            )
        ),
    ),
    "spp-1": (
        lambda e, L, B, R, K, M, s, g, **_: (
            B / (e * R * K) + 20 * L**2 * e**3 * K**2 * g**2 + 5 * s**2 * e / M + 2**1.5 * L * e * K * g * B**0.5
        ),
        lambda L, B, R, K, M, s, g, **_: (
            2
            * (
                5**0.5 * L * B / (R * K)
                + 20**0.25 * (L * g) ** 0.5 * B**0.75 / (K**0.25 * R**0.75)
                + 5**0.5 * s * (B / (M * R * K)) ** 0.5
                + 2**0.75 * (L * g) ** 0.5 * B**0.75 / R**0.5
            )
        ),
    ),
    "spp-2": (
        lambda e, L, B, R, K, M, s, g, **_: (
            B / (e * R * K) + 20 * L**2 * e**3 * K**2 * g**2 + 5 * s**2 * e / M + 2 * L * e**2 * K**2 * g**2
        ),
        lambda L, B, R, K, M, s, g, **_: (
            2
            * (
                5**0.5 * L * B / (R * K)
                + 20**0.25 * (L * g) ** 0.5 * B**0.75 / (K**0.25 * R**0.75)
                + 5**0.5 * s * (B / (M * R * K)) ** 0.5
                + (2 * L * g**2 * B**2 / R**2) ** (1 / 3)
            )
        ),
    ),
    "spp-3": (
        lambda e, B, R, K, s, **_: B / (e * R * K) + 3 * s**2 * e,
        lambda L, B, R, K, s, **_: 2 * (3**0.5 * L * B / (R * K) + 3**0.5 * s * (B / (R * K)) ** 0.5),
    ),
}
#: The largest step size of each theorem, which it takes without noise and drift.
LARGEST = {
    "fco-D.1": lambda L, **_: 1 / (4 * L),
    "fco-E.1": lambda L, **_: 1 / (4 * L),
    "fco-F.1": lambda L, K, **_: 1 / (4 * K * L),
    "gt-B.1": lambda L, K, t, **_: 1 / (t * L * K),
    "gt-B.2": lambda L, K, t, **_: 1 / (t**2 * L * K),
    "gt-C.1": lambda L, K, **_: 1 / (48 * L * K),
    "spp-1": lambda L, **_: 1 / (5**0.5 * L),
    "spp-2": lambda L, **_: 1 / (5**0.5 * L),
    "spp-3": lambda L, **_: 1 / (3**0.5 * L),
}


def rate(theorem, *, L, B, R, K, M, s, g, t, D):
    return theorem_rate(
        theorem,
        smoothness=L,
        distance=B,
        rounds=R,
        steps=K,
        clients=M,
        noise=s,
        gradients=g,
        mixing_time=t,
        dimension=D,
    )


@together("theorem", BOUNDS)
def test_the_step_size_gives_the_printed_rate_and_no_term_is_missing(theorem):
    bound, printed = BOUNDS[theorem]
    rng = np.random.default_rng(0)
    for _ in range(300):
        real = np.exp(rng.normal(size=5, scale=3.0))
        values = dict(zip("LBsgt", real.tolist(), strict=True))
        values |= {"t": 1.0 + values["t"], "D": 64, "K": int(rng.integers(1, 100)), "R": int(rng.integers(1, 10_000))}
        values["M"] = int(rng.integers(1, 1000))
        step = rate(theorem, **values)
        assert bound(step, **values) <= printed(**values) * (1 + 1e-12)
        quiet = {**values, "s": 0.0, "g": 0.0}
        assert step <= rate(theorem, **quiet) == pytest.approx(LARGEST[theorem](**values))


def test_the_mixing_time_of_the_theorems():
    sigma = (1 + 2 * np.cos(np.pi / 16)) / 3
    for factor in (4, 8):
        assert chain(16).theorem_time(factor) == pytest.approx(np.log(factor * 16) / (2 * np.log(1 / sigma)))
    assert complete(16).theorem_time(8) == 1.0
    with pytest.raises(ConfigurationError, match="never agree"):
        from_matrix([[0.0, 1.0], [1.0, 0.0]]).theorem_time(4)
    with pytest.raises(ConfigurationError, match="factor=0; expected a number >= 1"):
        chain(16).theorem_time(0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"theorem": "D.1"}, "expected one of fco-D.1"),
        ({"smoothness": 0.0}, "smoothness=0.0; expected a finite number > 0"),
        ({"smoothness": None}, "smoothness=None is a NoneType; expected a number"),
        ({"noise": "0.1"}, "noise='0.1' is a str; expected a number"),
        ({"noise": -1.0}, "noise=-1.0; expected a finite number >= 0"),
        ({"gradients": float("nan")}, "gradients=nan"),
        ({"mixing_time": 0.5}, "mixing_time=0.5; expected a finite number >= 1"),
        ({"rounds": 2.5}, "rounds=2.5 is a float"),
        ({"clients": 0}, "clients=0; expected a whole number >= 1"),
        ({"noise": None}, "noise=None"),
        # Neither an overflow nor a rate of 0 comes out.
        ({"theorem": "gt-B.1", "gradients": 1e300}, "too large or too small"),
        ({"theorem": "gt-C.1", "noise": 1.0, "distance": 5e-324}, "too large or too small"),
        ({"smoothness": 1e-320}, "too large or too small"),
    ],
)
def test_wrong_constants_are_refused(options, match):
    given = {"theorem": "fco-D.1", "smoothness": 1.0, "distance": 1.0, "rounds": 10, **options}
    with pytest.raises(ConfigurationError, match=match):
        theorem_rate(**given)
