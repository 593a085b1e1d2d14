"""The strategies, through `simulate`, against an implementation from the paper."""

import numpy as np
import pytest
from quadratics import quadratics

from flwr_fco import (
    DFedDA,
    DFedDAGT,
    DReFedDAGT,
    FedDAGT,
    MultistepReFedDAGT,
    PNorm,
    ReFedDAGT,
    Steps,
    client_app,
    simulate,
)
from flwr_fco.strategies import Reference, Stage
from flwr_fco.topology import chain

from . import gradient_tracking

COUNT = 4
SIZE = 6
RATES = {"client_lr": 0.02, "server_lr": 0.7}
WORK = {"steps": 5, "rounds": 12}
START = np.linspace(-1.0, 1.0, SIZE)


def run(strategy, objectives, start, rounds):
    """Return the strategy after its rounds, and the model."""
    sizes = np.cumsum([entry.size for entry in objectives[0].layout.optimized])[:-1]
    names = [entry.name for entry in objectives[0].layout.optimized]
    result = simulate(
        strategy,
        client_app(lambda context: objectives[int(context.node_config["partition-id"])]),
        num_nodes=len(objectives),
        num_rounds=rounds,
        initial_arrays=dict(zip(names, np.split(start, sizes), strict=True)),
        progress=False,
    )
    return strategy, np.concatenate([result.arrays[name].numpy() for name in names])


def agree(ours, oracle):
    assert np.abs(oracle).max() > 0.01
    np.testing.assert_allclose(ours, oracle, rtol=0, atol=1e-12 * np.abs(oracle).max())


def options(**more):
    return {**RATES, "work": Steps(WORK["steps"], batch_size=None), "fraction_evaluate": 0.0, **more}


@pytest.mark.parametrize(
    ("kind", "graph", "more"),
    [
        (DFedDA, True, {"tracking": False}),
        (DFedDAGT, True, {}),
        (FedDAGT, False, {}),
        (ReFedDAGT, False, {"radius_squared": 1.5}),
        (DReFedDAGT, True, {"radius_squared": 1.5}),
    ],
)
def test_gradient_tracking(kind, graph, more):
    objectives = quadratics(COUNT, SIZE)
    p = 4.0
    given = {"mirror_map": PNorm(p)}
    given |= {"mixing": "chain"} if graph else {}
    given |= {"radius_squared": 1.5} if "radius_squared" in more else {}
    given |= {} if more else {"tracker_start": "zero"}
    strategy, _ = run(kind(**options(**given)), objectives, START, WORK["rounds"])
    mixing = chain(COUNT).mixing if graph else np.full((COUNT, COUNT), 1.0 / COUNT)
    oracle = gradient_tracking.tracked([f.gradient for f in objectives], START, mixing, p=p, **RATES, **WORK, **more)
    agree(strategy.state.dual, oracle if graph else oracle[0])


@pytest.mark.parametrize(("kind", "graph"), [(MultistepReFedDAGT, False), (DReFedDAGT, True)])
@pytest.mark.parametrize(("window", "newest"), [(None, False), (3, True), (6, False), (9, True)])
def test_stages(kind, graph, window, newest):
    """Also with a window that is longer than the second stage, or than each of them."""
    objectives = quadratics(COUNT, SIZE)
    p = 4.0
    more = {"mixing": "chain"} if graph else {}
    strategy = kind(
        radius_squared=1.5,
        stages=[Stage(7), Stage(5), Stage(1)],
        reference=Reference(sparsity=4, window=window, newest=newest),
        **options(mirror_map=PNorm(p), **more),
    )
    run(strategy, objectives, START, 12)
    mixing = chain(COUNT).mixing if graph else np.full((COUNT, COUNT), 1.0 / COUNT)
    constants = {**RATES, "p": p, "steps": WORK["steps"], "radius_squared": 1.5}
    given = {"stages": (7, 5), "sparsity": 4, "window": window, "newest": newest, **constants}
    oracle = gradient_tracking.staged([f.gradient for f in objectives], START, mixing, **given)
    assert np.count_nonzero(oracle) == 4
    agree(strategy.state.reference, oracle)
    assert not strategy.state.dual.any()
