"""A round whose update fails leaves everything as it was, whatever the update raises, and where."""

import numpy as np
import pytest
from faulty import Faulty, start_on
from problems import app_of, clients, flat

from flwr_fco.errors import MagnitudeError
from flwr_fco.strategies import FedDualAvg


class Failing(FedDualAvg):
    """Raises in round 3, in the update or among the points of the average."""

    error, where = MagnitudeError, "aggregate"

    def aggregate(self, problem, state, replies):
        if problem.round == 3 and self.where == "aggregate":
            raise self.error("too large")
        return super().aggregate(problem, state, replies)

    def averaged_points(self, problem, before, after, uplinks):
        yield from super().averaged_points(problem, before, after, uplinks)
        if problem.round == 3 and self.where == "points":
            raise self.error("too large")


def run(rounds, error=MagnitudeError, where="nowhere", **options):
    strategy = Failing(client_lr=0.02, local_steps=2, batch_size=None, fraction_evaluate=0.0, **options)
    strategy.error, strategy.where = error, where
    grid = Faulty(app_of(clients()), 4, None, rounds=())
    try:
        result = start_on(grid, strategy, rounds=rounds)
    except RuntimeError:
        result = None
    return strategy, result


@pytest.mark.parametrize("output", ["average", "moving-average"])
@pytest.mark.parametrize("where", ["aggregate", "points"])
def test_the_average_keeps_the_rounds_before(where, output):
    options = {"output": output, "window": 2, "on_divergence": "warn"}
    _, failed = run(3, where=where, **options)
    _, plain = run(2, **options)
    assert failed.train_metrics_clientapp[3]["skipped"] == 1
    np.testing.assert_array_equal(flat(failed.arrays), flat(plain.arrays))


@pytest.mark.parametrize("where", ["aggregate", "points"])
def test_any_other_error_does_too(where):
    strategy, _ = run(3, RuntimeError, where, output="moving-average", window=2)
    plain, _ = run(2, output="moving-average", window=2)
    np.testing.assert_array_equal(strategy._assembly.average.mean(), plain._assembly.average.mean())


def test_an_extrapolated_rate_counts_once_the_round_does():
    strategy, _ = run(3, where="aggregate", server_lr="auto", on_divergence="warn")
    plain, _ = run(2, server_lr="auto")
    assert strategy.chosen == plain.chosen
