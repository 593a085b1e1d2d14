"""Fast-FedDA, C-FedDA and MC-FedDA take the steps of their boxes."""

import numpy as np
import pytest
from problems import app_of, simulated

from flwr_fco import topology
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, Steps
from reproduction.rivals import CFedDA, FastFedDA, MCFedDA
from reproduction.rivals.fast_fed_da import ModelStage
from reproduction.tests.rivals import boxes

MU, GAMMA, L, STRENGTH = 4.0, 12.0, 15.0, 0.3
STAGES = [(2, 2.0, 1.0), (3, 1.0, 0.5), (1, 0.5, 0.25)]


def run(kind, fs, **options):
    """Return the strategy after the rounds, and its model."""
    given = {"work": Steps(boxes.STEPS, batch_size=None), **options}
    strategy = kind(regularizer=L1(STRENGTH), convexity=MU, fraction_evaluate=0.0, **given)
    result = simulated(strategy, app_of(fs), boxes.ROUNDS, initial_arrays={"x": boxes.START})
    return strategy, result.arrays["x"].numpy()


@pytest.mark.parametrize(
    ("kind", "options", "stages"),
    [
        (FastFedDA, {}, None),
        (FastFedDA, {"work": Epochs(1, batch_size=1)}, None),
        (CFedDA, {}, None),
        (CFedDA, {"radius": 0.5}, [(boxes.ROUNDS, 0.5, 1.0)]),
        (MCFedDA, {"stages": [ModelStage(*stage) for stage in STAGES]}, STAGES),
    ],
)
def test_baos_variant(kind, options, stages):
    fs, p = boxes.clients()
    strategy, model = run(kind, fs, anchor_weight=GAMMA, **options)
    counts = np.arange(1, 5) if "work" in options else np.full(4, boxes.STEPS)
    given = {"constrained": kind is not FastFedDA, "convexity": MU, "anchor_weight": GAMMA, "strength": STRENGTH}
    expected = boxes.bao(fs, p, stages or [(boxes.ROUNDS, None, 1.0)], counts, **given)
    np.testing.assert_allclose(model, expected, rtol=1e-10, atol=1e-12)
    if kind is CFedDA and stages:
        assert np.abs(model - boxes.START).sum() == pytest.approx(0.5)
    if kind is MCFedDA:
        assert (strategy.state.stage, strategy.state.stage_round) == (2, 1)


@pytest.mark.parametrize("mixing", [None, "complete", "chain"])
@pytest.mark.parametrize("constrained", [{}, {"smoothness": L}, {"smoothness": L, "radius": 0.5}])
def test_liangs_variant(mixing, constrained):
    fs, p = boxes.clients()
    rows = {None: np.tile(p, (4, 1)), "complete": np.full((4, 4), 0.25), "chain": topology.chain(4).mixing}[mixing]
    strategy, model = run(CFedDA if constrained else FastFedDA, fs, variant="liang", mixing=mixing, **constrained)
    expected = boxes.liang(fs, rows, MU, STRENGTH, **constrained)
    np.testing.assert_allclose(model, expected.mean(axis=0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(strategy.state.primal, expected[: len(strategy.state.primal)], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastFedDA(variant="fast"), "variant='fast'"),
        (lambda: FastFedDA(mixing="ring"), "no form on a graph"),
        (lambda: FastFedDA(variant="liang"), "work=Steps"),
        (lambda: FastFedDA(convexity=0.0), "convexity=0.0"),
        (lambda: CFedDA(radius=-1.0), "radius=-1.0"),
        (lambda: MCFedDA(stages=[ModelStage(0, 1.0)]), r"ModelStage\(rounds=0, .* expected finite numbers > 0"),
    ],
)
def test_refusals_name_the_value(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
