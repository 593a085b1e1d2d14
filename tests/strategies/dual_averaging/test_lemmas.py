"""Section 4.3 of Yuan, Zaheer, Reddi (2021): what averaged duals keep."""

import numpy as np
from problems import run
from quadratics import Quadratic, quadratics

from flwr_fco import L1, FedDualAvg, Steps
from flwr_fco.algorithms import DualAveraging


class Recording(Quadratic):
    """It keeps the gradients that it has given."""

    given = ()

    def gradient(self, w, batch=None, out=None):
        self.given = [*self.given, super().gradient(w)]
        return super().gradient(w, batch, out)


def test_the_shadow_takes_the_mean_of_the_gradients_as_in_equation_45(monkeypatch):
    """Of each round: the clients' z_{r,k} for k = 1 .. K."""
    duals, aggregate = [], DualAveraging.aggregate

    def record(self, problem, state, replies):
        duals.append(np.array([state.dual + uplink.vectors["trajectory"] for uplink in replies]))
        return aggregate(self, problem, state, replies)

    monkeypatch.setattr(DualAveraging, "aggregate", record)
    objectives = [Recording(own.matrix, own.vector) for own in quadratics(4, 12)]
    strategy = FedDualAvg(regularizer=L1(0.2), client_lr=0.1, output="shadow", work=Steps(6, batch_size=None))
    run(strategy, objectives, 5, start={"x": np.zeros(12)})
    gradients = np.mean([own.given for own in objectives], axis=0)
    shadow = np.concatenate([z.mean(axis=0) for z in duals])
    np.testing.assert_allclose(np.diff(shadow, axis=0, prepend=0.0), -0.1 * gradients, rtol=0, atol=1e-12)
