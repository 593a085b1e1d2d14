"""The first paper's regressions: variants, held-out examples, clients that are equal, apart or of other truths."""

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.data.regressions import EqualRegression, SyntheticRegression, lasso_data, low_rank_data


@pytest.mark.parametrize(
    ("variant", "ones", "rank", "clients", "examples"),
    [("I", 512, 16, 64, 128), ("II", 64, 4, 64, 128), ("III", 8, 1, 64, 128), ("IV", 512, 16, 256, 32)],
)
def test_the_variants_are_the_papers(variant, ones, rank, clients, examples):
    truths = np.append(np.ones(ones), np.zeros(1024 - ones)), np.diag(np.append(np.ones(rank), np.zeros(32 - rank)))
    for data, truth in zip((lasso_data(variant), low_rank_data(variant)), truths, strict=True):
        assert data.num_clients == clients
        assert np.array_equal(data.coefficients, truth)
        features, targets = data.client(clients - 1)
        assert (features.shape, targets.shape, features.dtype) == ((examples, *truth.shape), (examples,), np.float64)


def test_what_is_refused():
    with pytest.raises(ConfigurationError, match=r"index=64; expected 0 \.\. 63"):
        lasso_data().client(64)
    with pytest.raises(ConfigurationError, match="index=-1"):
        low_rank_data().held_out(-1)
    for wrong, name in (
        ({"num_clients": 0}, "num_clients"),
        ({"spread": -1.0}, "spread"),
        ({"spread": np.inf}, "spread"),
    ):
        with pytest.raises(ConfigurationError, match=f"{name}="):
            SyntheticRegression(np.ones(2), **{"num_clients": 2, "examples_per_client": 1, **wrong})


def test_equal_clients_have_the_first_ones_examples():
    truth = np.array([1.0, 0.0, 2.0])
    equal, own = EqualRegression(truth, 3, 4, seed=7), SyntheticRegression(truth, 3, 4, seed=7)
    for found, wanted in zip(equal.client(2), own.client(0), strict=True):
        assert np.array_equal(found, wanted)
    with pytest.raises(ConfigurationError, match="index=3"):
        equal.client(3)


def test_the_clients_disagree_only_on_the_support():
    truth = np.array([1.0, 2.0, 0.0])
    plain, apart = (SyntheticRegression(truth, 3, 4000, disagreement=size) for size in (0.0, 0.5))
    own = []
    for client in range(3):
        one, other = plain.client(client), apart.client(client)
        # The same features and the same noise: what differs is the truth.
        assert np.array_equal(one.features, other.features)
        difference = np.linalg.lstsq(one.features, other.targets - one.targets, rcond=None)[0]
        assert abs(difference[2]) < 1e-12
        held_out = apart.held_out(client).targets - plain.held_out(client).targets
        assert np.allclose(plain.held_out(client).features @ difference, held_out)
        own.append(difference)
    assert np.abs(own[0] - own[1])[:2].min() > 0.01
