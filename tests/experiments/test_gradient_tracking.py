"""The experiments run, and their verdicts say what the numbers say."""

import numpy as np
import pytest

from flwr_fco.datasets import sparse_linear_graph
from flwr_fco.experiments import gradient_tracking as module
from flwr_fco.experiments.gradient_tracking import Curve, gt_fig1, verdict_table


def curves(**last):
    return [Curve(name.replace("_", "-"), (5,), (value,), (0.0,), (0.0,), (0.0,)) for name, value in last.items()]


def test_the_order_is_judged_by_the_l1_errors():
    right = {"MReFedDA_GT": 1.0, "DFedDA_GT": 2.0, "DFedDA": 3.0, "DFedMid": 5.0, "Fast_FedDA": 4.0}
    assert module._order(curves(**right)).holds
    assert module._tracking(curves(**right)).holds
    assert not module._order(curves(**{**right, "Fast_FedDA": 2.5})).holds
    assert not module._order(curves(**{**right, "MReFedDA_GT": 2.5})).holds
    assert not module._tracking(curves(**{**right, "DFedDA_GT": 3.5})).holds
    text = verdict_table(curves(**right), [module._order(curves(**{**right, "DFedMid": 0.1}))])
    assert "| DFedDA-GT | 5 | 2 (0) | 0 | 0 |" in text
    assert text.endswith("| no |")


def test_errors_are_means_over_nodes_and_seeds():
    problems = [sparse_linear_graph(dimension=30, sparsity=3, scale=2.0, seed=seed) for seed in (0, 1)]
    methods = module._linear_methods(6)
    found = module._curves({"DFedDA-GT": methods["DFedDA-GT"]}, problems, 6, (2, 6))[0]
    single = [module._measure(methods["DFedDA-GT"], p, 6, (2, 6), p.seed) for p in problems]
    np.testing.assert_allclose(found.l1, np.mean(single, axis=0)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found.gap, np.mean(single, axis=0)[:, 2], rtol=1e-12)
    assert found.l1_spread[0] == pytest.approx(abs(single[0][0][0] - single[1][0][0]))
    assert found.l1[1] < found.l1[0]


@pytest.mark.slow
def test_the_quick_figure_runs_every_method():
    found, verdicts = gt_fig1(quick=True)
    assert [curve.method for curve in found] == ["MReFedDA-GT", "DFedDA-GT", "DFedDA", "DFedMid", "Fast-FedDA"]
    assert all(curve.l1[-1] < curve.l1[0] for curve in found)
    assert len(verdicts) == 2
