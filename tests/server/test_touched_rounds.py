"""Rounds of sparse replies: the numbers of whole vectors, and nothing that anybody holds changes under him."""

import copy
import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from flwr_fco import FedDualAvg
from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import client_app
from flwr_fco.mirror_maps import DiagonalMetric
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, NonNegative
from flwr_fco.server.rounds.touched import Touched
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, Scaffold

D = 12_000


def clients():
    rng = np.random.default_rng(0)
    rows = [sparse.random_array((6 + 3 * m, D), density=0.001, rng=rng, format="csr") for m in range(6)]
    return [Logistic(own, np.arange(own.shape[0]) % 2, intercept=False) for own in rows]


def initial(scale=0.0):
    start = np.zeros(D)
    start[::100] = scale
    return ArrayRecord({"coefficients": Array(start)})


def run(rounds=5, start=0.0, callbacks=(), resume=None, regularizer=None, cls=FedDualAvg, **options):
    objectives = clients()
    options = {"client_lr": 0.5, "batch_size": 4, "fraction_evaluate": 0.0, **options}
    strategy = cls(regularizer=regularizer or L1(0.001), **options)
    app = client_app(lambda context: objectives[context.node_config["partition-id"]])
    grid = InProcessGrid(app, 6)
    more = {} if resume is None else {"resume": resume}
    return strategy, strategy.start(grid, initial(start), rounds, callbacks=list(callbacks), **more)


@pytest.fixture
def steps(monkeypatch):
    """Whether each round was one of touched places, and whether its dual was written in place."""
    found, plain = [], Touched.step

    def step(self, algorithm, problem, before, uplinks, *, lent):
        result = plain(self, algorithm, problem, before, uplinks, lent=lent)
        found.append((result is not None, result is not None and result[0].dual is before.dual))
        return result

    monkeypatch.setattr(Touched, "step", step)
    return found


def whole(monkeypatch):
    monkeypatch.setattr(Touched, "step", lambda *arguments, **options: None)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start": 0.3},
        {"regularizer": ElasticNet(0.001, 0.01)},
        {"regularizer": Box(-0.01, 0.02)},
        {"regularizer": NonNegative()},
        {"mirror_map": DiagonalMetric(np.linspace(0.5, 2.0, D))},
        {"fraction_train": 0.5, "server_lr": lambda number: 1.0 / number},
        {"normalize_local_work": False, "weighting": "uniform"},
        {"cls": FedDAGT},
        {"cls": FedDAGT, "fraction_train": 0.5, "client_state": "reset"},
        {"cls": FedDAGT, "start": 0.3, "normalize_local_work": False, "server_lr": 0.5},
        {"cls": Scaffold, "variate": "gradient", "fraction_train": 0.5, "server_lr": 0.1},
    ],
    ids=str,
)
def test_numbers_are_those_of_whole_vectors(options, steps, monkeypatch):
    strategy, result = run(**options)
    assert all(touched for touched, _ in steps)
    assert any(in_place for _, in_place in steps)
    point = strategy.h.retrieve(strategy.state.dual, strategy.state.elapsed, strategy.psi)
    assert_allclose(strategy._touched.primal, point, rtol=1e-12, atol=0)
    whole(monkeypatch)
    other, expected = run(**options)
    assert_allclose(strategy.state.dual, other.state.dual, rtol=1e-12, atol=0)
    for value, expected_value in zip(strategy.state[1:], other.state[1:], strict=True):
        assert_allclose(value, expected_value, rtol=1e-12, atol=1e-18)
    assert_allclose(result.arrays["coefficients"].numpy(), expected.arrays["coefficients"].numpy(), rtol=1e-12, atol=0)
    for number, metrics in expected.train_metrics_clientapp.items():
        assert dict(result.train_metrics_clientapp[number]) == pytest.approx(dict(metrics), rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"regularizer": Box(0.01, 0.02)},
        {"regularizer": GroupLasso(0.001, groups=np.arange(D) // 10)},
        {"aggregation": "median"},
        {"server_momentum": 0.5},
        {"output": "average"},
        {"server_lr": "auto"},
        {"sparse_wire": False},
    ],
    ids=str,
)
def test_others_take_whole_vectors(options, steps):
    run(rounds=2, **options)
    assert not any(touched for touched, _ in steps)


def test_what_is_held_does_not_change(steps):
    held, strategy = [], None

    def hold(number, arrays, metrics):
        held.append((strategy.state, copy.deepcopy(strategy.state), arrays))
        return False

    objectives = clients()
    strategy = FedDualAvg(regularizer=L1(0.001), client_lr=0.5, batch_size=4, fraction_evaluate=0.0)
    app = client_app(lambda context: objectives[context.node_config["partition-id"]])
    strategy.start(InProcessGrid(app, 6), initial(), 4, callbacks=[hold])
    assert [touched for touched, _ in steps] == [True] * 4
    assert not any(in_place for _, in_place in steps)
    for state, then, arrays in held:
        assert_array_equal(state.dual, then.dual)
        # Read late, and still that round's.
        w = strategy.h.retrieve(then.dual, then.elapsed, strategy.psi)
        assert_array_equal(arrays["coefficients"].numpy(), w)


def test_models_are_those_of_their_rounds_though_they_are_made_late(steps, monkeypatch):
    def models():
        kept = []
        run(callbacks=[lambda number, arrays, metrics: kept.append(arrays)])
        return [arrays["coefficients"].numpy() for arrays in kept]

    found = models()
    assert steps[-1] == (True, True)
    whole(monkeypatch)
    assert_array_equal(found, models())


def test_an_array_that_is_made_late_is_an_array():
    def later():
        kept = []
        run(rounds=2, callbacks=[lambda number, arrays, metrics: kept.append(arrays["coefficients"])])
        return kept[-1]

    plain = Array(later().numpy())
    assert later() == plain
    assert plain == later()
    assert copy.deepcopy(later()) == plain
    assert pickle.loads(pickle.dumps(later())) == plain
    assert later().object_id == plain.object_id
    assert (later().dtype, later().shape, later().stype) == (plain.dtype, plain.shape, plain.stype)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(later(), "nothing")  # noqa: B009


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("cls", [FedDualAvg, FedDAGT])
def test_a_run_goes_on_from_a_file(tmp_path, every, cls, steps):
    expected, one = run(rounds=6, cls=cls)
    run(rounds=4, cls=cls, callbacks=[Checkpoint(tmp_path / "state.npz", every=every)])
    found, other = run(rounds=6, cls=cls, resume=tmp_path / "state.npz")
    assert all(touched for touched, _ in steps)
    assert_array_equal(found.state.dual, expected.state.dual)
    assert other.arrays == one.arrays


@pytest.mark.parametrize("psi", [L1(0.001), Box(-0.01, 0.02)], ids=repr)
def test_what_overflows_leaves_the_state_as_it_was(psi):
    """A box has a finite point for an infinite dual too."""
    strategy, _ = run(rounds=3, regularizer=psi)
    touched, state = strategy._touched, strategy._state
    before = state.dual.copy()
    places = np.flatnonzero(before)[:3].astype(np.int32)
    from flwr_fco.core.sparse import SparseVector
    from flwr_fco.wire.protocol import Uplink

    def uplink(values):
        return Uplink({"increment": SparseVector(places, np.array(values), D)}, 1.0, 1, weight=0.5)

    with np.errstate(over="ignore", invalid="ignore"):
        bad = [uplink([1.0, 2.0, 1e308]), uplink([1.0, 2.0, 1e308])]
        problem = strategy.problem._replace(server_lr=1e10)
        assert touched.step(strategy, problem, state, bad, lent=False) is None
    assert_array_equal(state.dual, before)
    following, _ = touched.step(strategy, strategy.problem, state, [uplink([1.0, 0.0, 0.0])] * 2, lent=False)
    assert following.dual is state.dual
    expected = before.copy()
    expected[places[0]] += strategy.problem.server_lr * 1.0
    assert_allclose(following.dual, expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("rollback", ["rollback", "raise"])
def test_a_run_that_diverges_ends_where_whole_vectors_do(rollback, steps, monkeypatch):
    def outcome():
        objectives = clients()
        strategy = FedDualAvg(
            regularizer=L1(0.001), client_lr=0.5, batch_size=4, fraction_evaluate=0.0, on_divergence=rollback,
            server_lr=lambda number: 1e12 if number in (4, 5, 6) else 1.0,
        )  # fmt: skip
        app = client_app(lambda context: objectives[context.node_config["partition-id"]])
        try:
            arrays = strategy.start(InProcessGrid(app, 6), initial(), 7).arrays
        except Exception as error:
            return str(error)[:120], error.arrays["coefficients"].numpy()
        return "", arrays["coefficients"].numpy()

    found = outcome()
    assert any(touched for touched, _ in steps)
    whole(monkeypatch)
    expected = outcome()
    assert found[0] == expected[0]
    assert_array_equal(found[1], expected[1])
