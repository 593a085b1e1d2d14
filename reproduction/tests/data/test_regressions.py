"""The first paper's regressions: variants, held-out examples, clients that are equal, apart or of other truths."""

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.data.regressions import EqualRegression, SyntheticRegression, lasso, low_rank


@pytest.mark.parametrize(
    ("variant", "ones", "clients", "examples"),
    [("I", 512, 64, 128), ("II", 64, 64, 128), ("III", 8, 64, 128), ("IV", 512, 256, 32)],
)
def test_lasso_is_as_in_the_paper(variant, ones, clients, examples):
    data = lasso(variant)
    assert data.num_clients == clients
    assert np.array_equal(data.coefficients, np.append(np.ones(ones), np.zeros(1024 - ones)))
    features, targets = data.client(clients - 1)
    assert features.shape == (examples, 1024)
    assert targets.shape == (examples,)
    assert features.dtype == np.float64


@pytest.mark.parametrize(
    ("variant", "rank", "clients", "examples"),
    [("I", 16, 64, 128), ("II", 4, 64, 128), ("III", 1, 64, 128), ("IV", 16, 256, 32)],
)
def test_low_rank_is_as_in_the_paper(variant, rank, clients, examples):
    data = low_rank(variant)
    assert data.num_clients == clients
    expected = np.zeros((32, 32))
    expected[:rank, :rank] = np.eye(rank)
    assert np.array_equal(data.coefficients, expected)
    features, targets = data.client(0)
    assert features.shape == (examples, 32, 32)
    assert targets.shape == (examples,)


def test_what_is_refused():
    with pytest.raises(ConfigurationError, match="variant='V'"):
        lasso("V")
    with pytest.raises(ConfigurationError, match=r"no client 64; expected 0 \.\. 63"):
        lasso().client(64)
    with pytest.raises(ConfigurationError, match="no client -1"):
        low_rank().held_out(-1)
    with pytest.raises(ConfigurationError, match="num_clients=0"):
        SyntheticRegression(np.ones(2), 0, 1)
    for name, value in (("spread", -1.0), ("disagreement", np.nan), ("spread", np.inf)):
        with pytest.raises(ConfigurationError, match=name):
            SyntheticRegression(np.ones(3), 2, 5, **{name: value})
    with pytest.raises(ConfigurationError, match="vector or a matrix"):
        SyntheticRegression(np.ones((1, 1, 1)), 1, 1)


def test_equal_clients_have_the_first_ones_examples():
    truth = np.array([1.0, 0.0, 2.0])
    equal, own = EqualRegression(truth, 3, 4, seed=7), SyntheticRegression(truth, 3, 4, seed=7)
    for index in range(3):
        for found, wanted in zip(equal.client(index), own.client(0), strict=True):
            assert np.array_equal(found, wanted)
    with pytest.raises(ConfigurationError, match="no client 3"):
        equal.client(3)


def test_the_clients_disagree_only_where_they_are_told_to():
    truth = np.array([1.0, 2.0, 0.0])
    plain = SyntheticRegression(truth, 3, 4000)
    apart = SyntheticRegression(truth, 3, 4000, disagreement=0.5)
    own = []
    for client in range(3):
        one, other = plain.client(client), apart.client(client)
        # The same features and the same noise: what differs is the truth.
        assert np.array_equal(one.features, other.features)
        difference = np.linalg.lstsq(one.features, other.targets - one.targets, rcond=None)[0]
        assert abs(difference[2]) < 1e-12
        assert np.abs(difference[:2]).max() > 0.01
        held_out = apart.held_out(client).targets - plain.held_out(client).targets
        assert np.allclose(plain.held_out(client).features @ difference, held_out)
        own.append(difference)
    assert not np.allclose(own[0], own[1])
