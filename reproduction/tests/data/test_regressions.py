"""The first paper's regressions: variants, held-out examples, clients that are equal, apart or of other truths."""

import numpy as np
import pytest

from flwr_fco import datasets
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, TraceRegression
from reproduction.data.regressions import EqualRegression, SyntheticRegression, lasso, low_rank


def test_data_set_i_is_the_librarys():
    ours, theirs = lasso("I", seed=3).client(40), datasets.lasso(seed=3).client(40)
    for one, other in zip(ours, theirs, strict=True):
        assert one.tobytes() == other.tobytes()


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


def test_held_out_examples_are_new_but_of_the_same_client():
    data = SyntheticRegression(np.ones(400), num_clients=2, examples_per_client=300)
    train, validation, other = data.client(0), data.held_out(0), data.held_out(1)
    assert validation.features.shape == train.features.shape
    assert not np.isin(validation.features, train.features).any()
    between = np.abs(train.features.mean(axis=0) - validation.features.mean(axis=0)).mean()
    assert between < 0.1
    assert np.abs(other.features.mean(axis=0) - train.features.mean(axis=0)).mean() > 0.5
    assert data.held_out(0, 7).features.shape == (7, 400)


def test_objectives_and_the_truth():
    data = lasso("III")
    objective = data.objective(0, scale=0.5)
    assert isinstance(objective, LeastSquares)
    assert objective.scale == 0.5
    # At the truth the residuals are the noise: mean square 1, standard error 0.125.
    assert 0.6 < data.objective(0).value(data.truth) < 1.4
    matrices = low_rank("III")
    assert isinstance(matrices.objective(3), TraceRegression)
    assert 0.6 < matrices.objective(3).value(matrices.truth) < 1.4
    assert len(SyntheticRegression(np.ones(2), 3, 4).objectives()) == 3


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


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_spread_scales_the_means_of_the_features(spread):
    plain, other = (SyntheticRegression(np.ones(3), 2, 4000, spread=s) for s in (1.0, spread))
    means = [data.client(1).features.mean(axis=0) for data in (plain, other)]
    noise = (plain.client(1).features - other.client(1).features).std(axis=0)
    assert np.allclose(means[1] - means[0], (spread - 1.0) * (means[0] - other_noise(plain)), atol=1e-9)
    assert np.allclose(noise, 0.0, atol=1e-9)


def other_noise(data):
    """The mean of what is added to a client's mean."""
    return SyntheticRegression(data.coefficients, 2, 4000, spread=0.0).client(1).features.mean(axis=0)
