"""Density and rank in the metrics are those of the model that the user gets; a model that is not the clients'."""

import numpy as np
import pytest
from faulty import strategy
from numpy.linalg import matrix_rank as numerical_rank
from problems import changed, clients, run, simulated

import flwr_fco as fco
from flwr_fco.errors import ClientError


@pytest.mark.parametrize("cls", [fco.FedDualAvg, fco.FedMid])
@pytest.mark.parametrize("strength", [0.0, 0.05, 0.5, 2.0])
def test_density_is_that_of_each_rounds_model(cls, strength):
    seen = []
    strategy = cls(regularizer=fco.L1(strength), client_lr=0.05)
    result = run(strategy, clients(), 20, callbacks=[lambda n, arrays, m: seen.append(arrays["coefficients"].numpy())])
    for number, w in enumerate(seen, start=1):
        assert result.train_metrics_clientapp[number]["density"] == np.count_nonzero(w) / w.size


@pytest.mark.parametrize("psi", [fco.Nuclear(2.0), fco.NuclearBall(1.0)], ids=str)
def test_rank_is_that_of_each_rounds_model(psi):
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((8, 1)) @ rng.standard_normal((1, 5))
    objectives = []
    for _ in range(3):
        features = rng.standard_normal((60, 8, 5))
        objectives.append(fco.TraceRegression(features, np.einsum("nij,ij->n", features, truth), intercept=False))
    ranks = []
    look = lambda n, arrays, m: ranks.append(numerical_rank(arrays["coefficients"].numpy(), 1e-9))  # noqa: E731
    own = fco.FedDualAvg(regularizer=psi, client_lr=0.02, work=fco.Epochs(1, batch_size=None))
    result = run(own, objectives, 15, start={"coefficients": np.zeros((8, 5))}, callbacks=[look])
    assert [metrics["rank"] for metrics in result.train_metrics_clientapp.values()] == ranks
    assert 0 < min(ranks[1:]) < 5


def test_a_methods_numbers_replace_none_of_the_rounds_own():
    own = changed(fco.FedDualAvg, metrics=lambda own, self, problem, state: {"skipped": 7, "num-replies": 7, "mine": 7})
    metrics = run(own(client_lr=0.05), clients(), 1).train_metrics_clientapp[1]
    assert (metrics["skipped"], metrics["num-replies"], metrics["mine"]) == (0, 4, 7)


@pytest.mark.parametrize(
    ("objective", "start", "said"),
    [
        (fco.LeastSquares(np.ones((4, 2)), np.ones(4)), {"coefficients": np.zeros(3)}, "the server's model is"),
        (
            fco.LeastSquares(np.ones((4, 3)), np.ones(4)),
            {"coefficients": np.zeros(3, int)},
            "here coefficients. Give float",
        ),
        (
            fco.MultinomialLogistic(np.ones((4, 3)), [0, 1, 0, 1]),
            {"coefficients": np.zeros((3, 4)), "intercept": np.zeros(4)},
            "give all of them the same num_classes=",
        ),
    ],
    ids=["another shape", "whole numbers", "fewer classes"],
)
def test_a_model_that_is_not_the_clients_is_an_error_that_says_so(objective, start, said):
    start = {"intercept": np.zeros(1), **start}
    with pytest.raises(ClientError, match=said):
        simulated(strategy(), fco.client_app(lambda context: objective), 1, initial_arrays=start)
