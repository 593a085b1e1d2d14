"""FedNewton where sites limit the columns of Hessian blocks: the same optimum, with a valid certificate."""

import itertools
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from newton import numbers, objective_value, point, sites, solved
from problems import app_of
from representatives import crossed, nightly

from flwr_fco.algorithms.newton import model as sets
from flwr_fco.algorithms.newton.model import Penalty, working_set
from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import Disclosure, client_app
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Logistic
from flwr_fco.regularizers import L1, Box, ElasticNet, GroupLasso, L2Squared, PerParameter, SparseGroupLasso, Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Everyone, FedNewton, run_of
from flwr_fco.wire import flower
from flwr_fco.wire.client_state import read_disclosed
from reproduction.pooled import centralized_solution

GROUPS = np.arange(9) // 3
PENALTIES = {
    "l1": L1(0.05),
    "elastic net": ElasticNet(0.1, 0.7),
    "l1 in a box": L1(0.02, bound=0.4),
    "box": Box(-0.3, 0.6),
    "group lasso": GroupLasso(0.03, GROUPS),
    "sparse group lasso": SparseGroupLasso(0.05, GROUPS, 0.5),
    "by parameter": PerParameter({"coefficients": L1(0.05)}),
    "ridge": L2Squared(0.1),
}


def start_of(objectives):
    return ArrayRecord({name: Array(np.zeros(shape)) for name, shape in objectives[0].layout.shapes.items()})


def started(strategy, grid, objectives, rounds):
    with flower.identity(grid.run_id), flower.quiet(50):
        return strategy.start(grid, start_of(objectives), rounds)


def certified(result, objectives, psi, tolerance=1e-8):
    """The gap is valid in every round, no objective rises, and the last point is optimal by another solver."""
    w, best = point(result, objectives[0]), centralized_solution(objectives, psi, tol=1e-11)
    optimum = min(objective_value(objectives, psi, best), objective_value(objectives, psi, w))
    gaps, values = numbers(result, "duality-gap"), numbers(result, "objective")
    assert gaps[-1] <= tolerance
    assert len(gaps) == len(result.train_metrics_clientapp)
    assert all(gap >= value - optimum - 1e-12 for gap, value in zip(gaps, values, strict=True))
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))
    assert objective_value(objectives, psi, w) <= objective_value(objectives, psi, best) + tolerance
    return w


def state_of(strategy):
    return [np.asarray(value).tobytes() for value in strategy.state]


# --- limits of sites --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name", "share"), crossed(["squares", "logistic"], PENALTIES, [1.0, 0.4, 0.1, 0.0]))
def test_with_any_share_the_optimum_and_a_valid_gap(kind, name, share):
    objectives, psi = sites(kind, sizes=(40, 51, 35)), PENALTIES[name]
    result, _ = solved(objectives, psi, rounds=1500, disclosure=Disclosure(hessian_share=share))
    certified(result, objectives, psi)


@pytest.mark.parametrize("share", [2.0, 0.5, 0.0])
def test_several_classes(share):
    objectives, psi = sites("classes", sizes=(40, 51, 35)), L1(0.03)
    result, _ = solved(objectives, psi, rounds=1500, disclosure=Disclosure(hessian_share=share))
    certified(result, objectives, psi)


def test_without_psi_there_is_a_residual():
    objectives = sites("logistic", sizes=(60, 80))
    result, _ = solved(objectives, Zero(), rounds=1500, disclosure=Disclosure(hessian_share=0.2))
    assert numbers(result, "residual")[-1] <= 1e-8
    np.testing.assert_allclose(
        point(result, objectives[0]), centralized_solution(objectives, Zero(), tol=1e-11), atol=1e-6
    )


@pytest.mark.parametrize(("kind", "share"), crossed(["squares", "logistic", "classes"], [1.0, 1.0 / 3.0, 0.1]))
@pytest.mark.parametrize("p", [9, 300])
def test_what_leaves_with_a_block_is_at_most_the_share(kind, share, p):
    """Counted here from the messages, one weighted sum a column of a block and a vector of the model's length."""
    objectives, psi = sites(kind, p=p, sizes=(60, 81, 45)), L1(0.1)
    grid = Watched(app_of(objectives, disclosure=Disclosure(hessian_share=share)), 3)
    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0)
    started(strategy, grid, objectives, 60)
    outputs = 3 if kind == "classes" else 1
    for node, objective in zip((2, 3, 4), objectives, strict=True):
        total, with_block = 0, 0
        for vectors, columns in grid.seen[node]:
            total += outputs * (vectors + columns)
            with_block = total if columns else with_block
        assert with_block <= share * objective.num_examples
        assert read_disclosed(grid.contexts[node]).sums == total
    if share == 1.0:
        assert any(columns for _, columns in grid.seen[2])


class Watched(InProcessGrid):
    """A grid that sees what leaves, and may change it."""

    def __init__(self, app, nodes, change=None):
        super().__init__(app, nodes)
        self.seen, self.change = {}, change

    def _deliver(self, message):
        reply = super()._deliver(message)
        if message.metadata.message_type == "train" and reply.has_content():
            arrays = reply.content["arrays"]
            size = arrays["gradient"].shape[0] if "places:gradient" not in arrays else None
            vectors = sum(name in arrays for name in ("gradient", "columns", "targets"))
            assert size or vectors
            block = arrays.get("block")
            columns = 0 if block is None else int(np.sqrt(2 * block.shape[0]))
            self.seen.setdefault(message.metadata.dst_node_id, []).append((vectors, columns))
            if self.change is not None:
                self.change(reply, int(message.metadata.group_id))
        return reply


def test_a_small_share_is_divided_among_the_rounds():
    """96 columns of a set of 100 are not sent in one round: a run with a third ends as one without limits does."""
    rng = np.random.default_rng(0)
    truth = np.r_[1.5 * rng.normal(size=8), np.zeros(1992)]
    objectives = []
    for _ in range(4):
        features = rng.normal(size=(300, 2000))
        objectives.append(Logistic(features, features @ truth + rng.normal(size=300) > 0.0))
    psi = L1(0.3 * np.abs(np.mean([f.gradient(np.zeros(2001))[:2000] for f in objectives], axis=0)).max())
    free, _ = solved(objectives, psi)
    result, strategy = solved(objectives, psi, disclosure=Disclosure(hessian_share=1.0 / 3.0))
    assert len(result.train_metrics_clientapp) == len(free.train_metrics_clientapp)
    assert strategy.state.hessian == 1.0
    assert not result.left_out
    assert max(numbers(result, "working-set")) < 20
    np.testing.assert_allclose(point(result, objectives[0]), point(free, objectives[0]), atol=1e-6)


def test_a_site_of_one_row_and_one_of_many():
    one, two, three = sites("logistic", sizes=(30, 300, 200))
    single = Logistic(one.features[:1], one.labels[:1])
    objectives, psi = [single, two, three], L1(0.03)
    result, strategy = solved(objectives, psi, rounds=1500, disclosure=Disclosure(hessian_share=1.0 / 3.0))
    certified(result, objectives, psi)
    assert strategy.state.columns_left == 0.0
    assert [(row.round, row.partition_id) for row in result.left_out] == [(1, 0)]
    told = r"keeps back a Hessian block of 10 columns, and allows 0 now.*hessian_share=0.333"
    assert re.search(told, result.left_out[0].reason)


def test_a_step_that_is_shortened_asks_for_no_more_columns_than_are_left():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 1))
    objectives = [Logistic(features, features[:, 0] + 0.3 * rng.normal(size=40) > 0.0)]
    start = {"coefficients": np.array([-6.0]), "intercept": np.array([3.0])}
    for share in (0.25, 0.4, 1.0):
        limits = Disclosure(hessian_share=share)
        result, _ = solved(objectives, L1(0.01), rounds=900, start=start, disclosure=limits)
        assert numbers(result, "duality-gap")[-1] <= 1e-8
        assert min(numbers(result, "step")) < 1.0
        rounds = result.train_metrics_clientapp.values()
        assert all(m["working-set"] <= m["columns-left"] for m in rounds)


def test_the_switch_is_said_once_and_is_in_the_result(caplog):
    objectives = sites("logistic")
    with caplog.at_level("WARNING", logger="flwr"):
        result, strategy = solved(objectives, L1(0.05), rounds=900, disclosure=Disclosure(hessian_share=0.5))
    told = [record.getMessage() for record in caplog.records]
    assert sum("no block is asked for after round" in text for text in told) == 1
    sets_of_rounds = numbers(result, "working-set")
    switch = sets_of_rounds.index(0)
    assert all(size == 0 for size in sets_of_rounds[switch:])
    assert len(numbers(result, "smoothness")) == len(sets_of_rounds) - switch
    assert len(numbers(result, "columns-left")) == len(sets_of_rounds)
    assert "none is asked for any more" in dict(strategy.describe())["Hessian block"]
    total = sum(objective.num_examples for objective in objectives)
    largest = sum(objective.num_examples * objective.lipschitz() for objective in objectives) / total
    assert strategy.state.largest == pytest.approx(largest)
    assert numbers(result, "smoothness")[1] == strategy.state.largest


def test_a_run_that_is_over_when_nothing_is_left_does_not_speak_of_what_follows(caplog):
    with caplog.at_level("WARNING", logger="flwr"):
        result, strategy = solved(sites("squares"), L1(0.05), disclosure=Disclosure(hessian_share=0.8))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert (strategy.state.columns_left, strategy.state.hessian) == (0.0, 1.0)
    assert not caplog.records


def test_stop_ends_the_run_with_its_best_point(caplog):
    objectives, psi, limits = sites("logistic"), L1(0.05), Disclosure(hessian_share=0.6)
    with caplog.at_level("WARNING", logger="flwr"):
        result, strategy = solved(objectives, psi, on_refusal="stop", disclosure=limits)
    gaps, values = numbers(result, "duality-gap"), numbers(result, "objective")
    assert 1 <= len(gaps) < 12
    assert gaps[-1] > 1e-8
    assert "on_refusal='stop'" in run_of(strategy).finished()
    assert values[-1] == min(values)
    assert values[-1] == pytest.approx(objective_value(objectives, psi, point(result, objectives[0])), rel=1e-13)
    assert any("the run ends (on_refusal='stop')" in record.getMessage() for record in caplog.records)


def test_another_word_for_the_option_is_refused():
    with pytest.raises(ConfigurationError, match="on_refusal='error'"):
        FedNewton(on_refusal="error")


# --- the same bits however it runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "share"),
    [
        (80, 2.0),
        (150, 0.5),
        pytest.param(150, 1.2, marks=pytest.mark.nightly),
        pytest.param(150, 0.0, marks=pytest.mark.nightly),
    ],
)
def test_in_process_over_messages_and_in_processes_the_bits_are_the_same(p, share, workers):
    """Of 80 features 66 are needed, and 40 are allowed in one round: the point travels apart from the set."""
    objectives, psi = sites("logistic", p=p, sizes=(40, 30, 35)), L1(0.06)
    if p == 80:
        objectives, psi = sites("logistic", p=p, sizes=(100, 120, 110)), ElasticNet(0.02, 0.5)
    limits = Disclosure(hessian_share=share)
    result, strategy = solved(objectives, psi, rounds=60, disclosure=limits)
    if p == 80:
        assert any(0 < size < 66 for size in numbers(result, "working-set")[3:])
    other = FedNewton(regularizer=psi, fraction_evaluate=0.0)
    grid = Watched(app_of(objectives, disclosure=limits), 3)
    told = started(other, grid, objectives, 60)
    assert state_of(other) == state_of(strategy)
    assert told.left_out == result.left_out
    assert numbers(told, "duality-gap") == numbers(result, "duality-gap")
    _, third = solved(objectives, psi, rounds=60, disclosure=limits, engine=workers)
    assert state_of(third) == state_of(strategy)


@pytest.mark.parametrize("stop", [2, 5, 9, *nightly(1, 3, 4)])
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, stop):
    """Before, at and after the switch; the sites' counts go on."""
    objectives, psi = sites("logistic", p=150, sizes=(40, 30, 35)), L1(0.06)
    options = {"disclosure": Disclosure(hessian_share=1.2), "rounds": 40}
    whole, strategy = solved(objectives, psi, **options)
    switch = numbers(whole, "working-set").index(0)
    assert 2 < switch < 9
    path = tmp_path / "run.npz"
    solved(objectives, psi, callbacks=[Checkpoint(path)], **{**options, "rounds": stop})
    rest, resumed = solved(objectives, psi, resume=path, **options)
    assert state_of(resumed) == state_of(strategy)
    assert numbers(rest, "columns-left") == numbers(whole, "columns-left")


# --- sites with a will of their own -----------------------------------------------------------------------------------


def _claims(told, rounds=range(1, 10**6), *, keep_back=False):
    """Return a change of replies: what a site says that it allows, by round, and whether it keeps its block back."""

    def change(reply, number):
        if number not in rounds or reply.metadata.src_node_id != 2:
            return
        metrics = reply.content["metrics"]
        metrics["columns-left"] = told(number) if callable(told) else told
        arrays = reply.content["arrays"]
        if keep_back and "block" in arrays and arrays["block"].shape[0]:
            size = arrays["block"].shape[0]
            arrays["block"] = Array(np.zeros(size))
        reply.content["metrics"] = MetricRecord(dict(metrics))

    return change


LIES = {
    "0": _claims(0.0),
    "-1": _claims(-1.0),
    "one": _claims(1),
    "1e18": _claims(1e18),
    "1e300": _claims(1e300),
    "a fraction": _claims(7.9),
    "alternating": _claims(lambda number: 50.0 if number % 2 else 3.0),
    "growing": _claims(lambda number: 2.0**number),
    "kept back though it is allowed": _claims(1e18, keep_back=True),
    "kept back from round 3 on": _claims(10.0, range(3, 10**6), keep_back=True),
    "kept back in round 3 alone": _claims(9.0, (3,), keep_back=True),
    "from round 3 on": _claims(0.0, range(3, 10**6)),
}


@pytest.mark.parametrize(("lie", "p"), crossed(LIES, [9, 150]))
def test_what_a_site_says_of_its_limit_does_no_harm(lie, p):
    """The optimum of all data with a valid gap, in rounds of Newton's method or of gradient steps."""
    objectives, psi = sites("logistic", p=p, sizes=(60, 41, 55)), L1(0.06)
    grid = Watched(app_of(objectives), 3, LIES[lie])
    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0)
    result = started(strategy, grid, objectives, 700)
    certified(result, objectives, psi)
    assert not any(metrics["skipped"] for metrics in result.train_metrics_clientapp.values())
    if lie in ("1e18", "1e300"):
        assert strategy.state.hessian == 1.0
        assert max(numbers(result, "working-set")) == (10 if p == 9 else 100)
        assert numbers(result, "columns-left")[-1] <= 1e18
    if lie in ("0", "-1"):
        assert strategy.state.hessian == 0.0


@pytest.mark.parametrize("told", [np.nan, np.inf, [1.0, 2.0]])
def test_a_limit_that_is_no_number_leaves_the_site_out_by_name(told):
    objectives = sites("logistic")
    ends = Everyone(on_missing="error")
    strategy = FedNewton(regularizer=L1(0.05), fraction_evaluate=0.0, participation=ends)
    grid = Watched(app_of(objectives), 3, _claims(told, range(3, 10**6)))
    with pytest.raises(ConfigurationError, match=r"partition 0 did not give a good answer.*columns-left"):
        started(strategy, grid, objectives, 30)
    strategy = FedNewton(regularizer=L1(0.05), fraction_evaluate=0.0)
    result = started(strategy, Watched(app_of(objectives), 3, _claims(told, (3,))), objectives, 60)
    assert any(row.round == 3 and "columns-left" in row.reason for row in result.left_out)
    certified_last = numbers(result, "duality-gap")[-1]
    assert certified_last <= 1e-8


def test_blocks_in_turn_reach_the_optimum_without_gradient_steps():
    """A limit for each block, below the number of coordinates that are needed."""
    objectives, psi = sites("logistic", p=80, sizes=(100, 120, 110)), ElasticNet(0.02, 0.5)
    free, _ = solved(objectives, psi)
    needed = np.count_nonzero(point(free, objectives[0]))
    limit = needed // 2
    grid = Watched(app_of(objectives), 3, _claims(float(limit)))
    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0)
    masks = []

    def remember(server_round, arrays, metrics):
        masks.append(strategy.state.mask.copy())

    with flower.identity(grid.run_id), flower.quiet(50):
        result = strategy.start(grid, start_of(objectives), 300, callbacks=[remember])
    certified(result, objectives, psi)
    assert strategy.state.hessian == 1.0
    assert max(mask.sum() for mask in masks) <= limit
    assert np.array(masks).any(axis=0).sum() >= needed


@pytest.mark.parametrize("limit", [4.0, 6.0, 8.0, 9.0])
def test_where_a_group_does_not_fit_the_run_does_not_end_short_of_the_optimum(limit):
    """A step on a set without the group that violates optimality changes nothing, and says nothing of the optimum."""
    objectives, psi = sites("logistic", sizes=(60, 81, 75)), GroupLasso(0.02, np.r_[0, np.ones(8, dtype=int)])
    grid = Watched(app_of(objectives), 3, _claims(limit))
    result = started(FedNewton(regularizer=psi, fraction_evaluate=0.0), grid, objectives, 900)
    certified(result, objectives, psi)


def test_a_site_that_leaves_does_not_give_the_others_limits_back():
    objectives, psi = sites("logistic", sizes=(60, 41, 55)), L1(0.05)

    def change(reply, number):
        _claims(6.0, (2,))(reply, number)
        if number >= 4 and reply.metadata.src_node_id == 2:
            reply.content["arrays"] = ArrayRecord({"other": Array(np.zeros(2))})

    grid = Watched(app_of(objectives), 3, change)
    strategy = FedNewton(regularizer=psi, fraction_evaluate=0.0, participation=Everyone(on_missing="reset"))
    result = started(strategy, grid, objectives, 900)
    rest = objectives[1:]
    w = point(result, objectives[0])
    best = centralized_solution(rest, psi, tol=1e-11)
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert objective_value(rest, psi, w) <= objective_value(rest, psi, best) + 1e-8
    assert strategy.state.columns_left <= 6.0


# --- working sets of a limited size -----------------------------------------------------------------------------------


def test_a_limited_set_holds_whole_groups_and_never_more():
    rng = np.random.default_rng(0)
    for _ in range(300):
        d = int(rng.integers(1, 60))
        layout = Layout.from_arrays({"w": np.zeros(d)})
        groups = rng.integers(0, max(1, d // 3), d)
        psi = GroupLasso(1.0, groups) if rng.random() < 0.7 else L1(1.0)
        penalty, most = Penalty.of(psi.bind(layout)), int(rng.integers(0, 70))
        x, gradient = rng.normal(size=d) * (rng.random(d) < rng.choice([0.0, 0.3])), 2.0 * rng.normal(size=d)
        mask = working_set(x, gradient, penalty, most=most)
        assert mask.sum() <= most
        if isinstance(psi, GroupLasso):
            assert all(len(set(mask[groups == group])) == 1 for group in set(groups.tolist()))
            pulls = [max(np.linalg.norm(gradient[groups == group]), 0.0) for group in range(groups.max() + 1)]
            sizes = np.bincount(groups)
            if not x.any() and sizes.max() <= most:
                # psi weighs a group by the root of its size.
                worst = int(np.argmax(np.array(pulls) / np.sqrt(np.maximum(sizes, 1))))
                assert mask[groups == worst].all()
        else:
            assert mask.any() == (most > 0)
            assert mask[x != 0.0].all() or (x != 0.0).sum() >= most


@pytest.mark.parametrize("name", PENALTIES)
def test_how_far_a_coordinate_is_from_optimal_is_by_the_proximal_map_of_psi(name):
    layout = sites()[0].layout
    psi, rng = PENALTIES[name].bind(layout), np.random.default_rng(0)
    for _ in range(20):
        v = rng.normal(size=layout.size) * rng.choice([0.01, 0.1, 1.0])
        np.testing.assert_allclose(Penalty.of(psi).prox(v), psi.prox(v, 1.0), atol=1e-15)


def test_more_coordinates_than_the_largest_block_are_solved_in_turns(monkeypatch):
    """The point travels with all of its coordinates, not only with those of the block."""
    monkeypatch.setattr(sets, "_MOST", 70)
    objectives, psi = sites("logistic", p=100, sizes=(60, 80, 70)), L2Squared(0.1)
    result, _ = solved(objectives, psi, rounds=60)
    assert not result.left_out
    certified(result, objectives, psi)
    assert max(numbers(result, "working-set")) == 70


def test_classes_are_not_called_separable_because_a_set_is_limited():
    """The smallest eigenvalue of some unpenalised coordinates is not that of others, whose features are small."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 8)) * np.geomspace(1.0, 1e-7, 8)
    objectives = [Logistic(part, part[:, 0] + rng.normal(size=100) > 0.0) for part in np.split(features, 2)]
    free = L1(1e-3, weights=np.r_[np.zeros(7), 1.0])
    keeps_back, limits = _claims(3.0, (1,), keep_back=True), _claims(3.0)
    grid = Watched(app_of(objectives), 2, lambda reply, number: (keeps_back(reply, number), limits(reply, number)))
    result = started(FedNewton(regularizer=free, fraction_evaluate=0.0), grid, objectives, 60)
    assert set(numbers(result, "working-set")) == {3}
    assert numbers(result, "objective")[-1] < numbers(result, "objective")[0]


def test_an_app_takes_a_disclosure_only():
    with pytest.raises(ConfigurationError, match=r"disclosure=0\.3 .*; expected a Disclosure"):
        client_app(lambda context: None, disclosure=0.3)
