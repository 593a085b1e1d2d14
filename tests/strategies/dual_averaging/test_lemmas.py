"""Section 4.3 of Yuan, Zaheer, Reddi (2021): what averaged duals keep."""

import numpy as np
import pytest
from quadratics import Quadratic

from flwr_fco import L1, FedDualAvg, Steps, client_app, simulate
from flwr_fco.algorithms import DualAveraging

COUNT, SIZE, STEPS, NOISE = 4, 12, 6, 0.3


class Noisy(Quadratic):
    """A quadratic whose gradients have noise of variance `noise`^2; it keeps the gradients that it has given."""

    def __init__(self, matrix, vector, seed, noise):
        super().__init__(matrix, vector)
        self.rng, self.noise, self.given = np.random.default_rng(seed), noise, []

    def gradient(self, w, batch=None, out=None):
        result = super().gradient(w) + self.noise / np.sqrt(w.size) * self.rng.standard_normal(w.size)
        self.given.append(result)
        if out is None:
            return result
        out[:] = result
        return out


def clients():
    """Assumption 2: one Hessian, so that the gradients differ by the same at every point."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0]
    matrix = basis @ np.diag(np.linspace(0.0, 2.0, SIZE)) @ basis.T
    vectors = rng.standard_normal((COUNT, SIZE))
    return [Noisy((matrix + matrix.T) / 2, b, m, NOISE) for m, b in enumerate(vectors)]


def run(strategy, objectives, rounds):
    result = simulate(
        strategy,
        client_app(lambda context: objectives[int(context.node_config["partition-id"])]),
        num_nodes=len(objectives),
        num_rounds=rounds,
        initial_arrays={"x": np.zeros(SIZE)},
        progress=False,
    )
    return result.arrays["x"].numpy()


def options(**more):
    return {"work": Steps(STEPS, batch_size=None), "fraction_evaluate": 0.0, **more}


@pytest.fixture
def duals(monkeypatch):
    """Of each round: the clients' z_{r,k} for k = 1 .. K, shape (clients, K, d)."""
    seen, aggregate = [], DualAveraging.aggregate

    def record(self, problem, state, replies):
        seen.append(np.array([state.dual + uplink.vectors["trajectory"] for uplink in replies]))
        return aggregate(self, problem, state, replies)

    monkeypatch.setattr(DualAveraging, "aggregate", record)
    return seen


def test_the_shadow_takes_the_mean_of_the_gradients_as_in_equation_45(duals):
    objectives = clients()
    run(FedDualAvg(regularizer=L1(0.2), client_lr=0.1, output="shadow", **options()), objectives, 5)
    gradients = np.mean([f.given for f in objectives], axis=0)
    shadow = np.concatenate([z.mean(axis=0) for z in duals])
    np.testing.assert_allclose(np.diff(shadow, axis=0, prepend=0.0), -0.1 * gradients, rtol=0, atol=1e-13)
