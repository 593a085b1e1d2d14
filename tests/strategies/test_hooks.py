"""Hooks and strategies around ours get what they would of FedAvg, and so do clients that know nothing of duals.

A density: which entries stay, in which arrays, in which rounds.
"""

import logging
import math

import numpy as np
import problems
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FEATURES, Foreign, app_of, arrays_of, clients, flat, foreign_app, numpy_of, refused, run, simulated

from flwr_fco.algorithms.density import GAIN, erdos_renyi, keep_gain
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, NothingTrainedError
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, Box, ElasticNet, HardSparsity, L1Ball, L2Squared, PerParameter, Zero
from flwr_fco.regularizers.kinds import _LONG, kth_largest
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Average, Density, FedDAGT, FedDualAvg, FedMid, Steps, run_of

TARGET = np.random.default_rng(0).normal(size=(6, 5))
UNMODIFIED = {"client": "unmodified"}
DENSE = {**UNMODIFIED, "fraction_evaluate": 0.0}
SPARSE = {**DENSE, "density": 0.3}
FALLING = {**DENSE, "density": Density(0.3, rounds=3)}
OURS = {**DENSE, "client_lr": 0.25, "work": Steps(4)}
THRESHOLD, ELASTIC, BALL = ({**OURS, "regularizer": psi} for psi in (L1(0.05), ElasticNet(0.2, 0.25), L1Ball(3.0)))
#: The model is 0 until round 4, whatever its dual is.
SLOW = {**OURS, "regularizer": L1(1.25), "client_lr": lambda number: 0.25 / number}
NODES = 4


def moving_app(seen=None, metrics=None, far=1.0, **options):
    """Clients that move w by .3 of the way to the target, one of them `far` more; `seen` gets what they receive."""

    def trained(arrays, message, context):
        ([] if seen is None else seen).append(arrays["w"].copy())
        step = (1.0 if context.node_config["partition-id"] else far) * 0.3
        return {"w": (arrays["w"] + step * (TARGET - arrays["w"])).astype(arrays["w"].dtype)}

    return foreign_app(trained, metrics={"train_loss": 0.5, **(metrics or {})}, **options)


def go(kind, options=DENSE, *, rounds=6, dtype=np.float64, seen=None, app=None, **more):
    start = {"w": np.zeros((6, 5), dtype)}
    return simulated(kind(**options), app or moving_app(seen), rounds, initial_arrays=start, **more)


def w_of(result):
    return result.arrays["w"].numpy()


def answering(make, base=FedDualAvg):
    """A subclass whose `aggregate_train` returns what `make(round, arrays, metrics)` does."""

    class Own(base):
        def aggregate_train(self, server_round, replies):
            return make(server_round, *super().aggregate_train(server_round, replies))

    return Own


def changing(change, base=FedDualAvg):
    """A subclass that changes the model after each round."""

    def make(number, arrays, metrics):
        return changed(arrays, change, number), metrics

    return answering(make, base)


def changed(arrays, change, number):
    return arrays_of({name: np.asarray(change(w.copy(), number), w.dtype) for name, w in numpy_of(arrays).items()})


# --- what hooks return ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "kept"), [({"x": np.float32(0.5), "y": np.ones(1)}, {"x": 0.5, "y": [1.0]}), ({}, {}), (None, None)]
)
def test_metrics_of_a_hook_are_the_rounds(metrics, kept):
    result = go(answering(lambda number, arrays, _: (arrays, metrics)), SPARSE)
    np.testing.assert_array_equal(w_of(result), w_of(go(FedDualAvg, SPARSE)))
    assert result.train_metrics_clientapp.get(6) == (kept if kept is None else MetricRecord(kept))
    averaged = go(FedDualAvg, {**SPARSE, "train_metrics_aggr_fn": lambda *_: metrics or {}})
    assert (kept or {}).items() <= dict(averaged.train_metrics_clientapp[6]).items()


@pytest.mark.parametrize("options", [DENSE, SPARSE, THRESHOLD, ELASTIC, SLOW], ids="dstes")
def test_a_round_of_which_nothing_is_kept_is_taken_back(options):
    """As with FedAvg, `None` leaves the model as it was: the clients get it again, as after a round without replies."""
    seen = []
    result = go(answering(lambda number, *found: (None if number == 3 else found[0], found[1])), options, seen=seen)
    skips = lambda own, number, found: FedDualAvg.aggregate_train(own, number, found if number != 3 else [])  # noqa: E731
    np.testing.assert_array_equal(seen[3 * NODES], seen[2 * NODES])
    expected = go(type("Skips", (FedDualAvg,), {"aggregate_train": skips}), options)
    np.testing.assert_array_equal(w_of(result), w_of(expected))


# --- models that a subclass changes -----------------------------------------------------------------------------------


def clipped(w, number):
    return w * min(1.0, 1.0 / np.linalg.norm(w))


def without_a_row(w, number):
    w[0] = 0.0
    return w


def turned_and_rounded(w, number):
    return np.round(-0.5 * w, 2)


def back_to_the_start(w, number):
    return np.zeros_like(w) if number == 3 else w


CHANGES = [clipped, without_a_row, turned_and_rounded, back_to_the_start]
SETTINGS = [DENSE, SPARSE, FALLING, THRESHOLD, ELASTIC, BALL]


@pytest.mark.parametrize(("change", "dtype", "setting"), problems.paired(CHANGES, [np.float64, np.float32], range(6)))
def test_the_clients_get_what_the_hook_returns(change, setting, dtype):
    seen, returned = [], []

    def remembered(w, number):
        return returned.append(own := change(w, number).astype(dtype)) or own

    result = go(changing(remembered), SETTINGS[setting], dtype=dtype, seen=seen)
    for model, own in zip([*seen[::NODES][1:], w_of(result)], returned, strict=True):
        np.testing.assert_allclose(model, own, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(model[1:] == 0.0, own[1:] == 0.0)


def noisy(w, number):
    return w + 0.01 * np.random.default_rng(number).normal(size=w.shape)


class AggregatesItself(FedDualAvg):
    """Without ours."""

    def aggregate_train(self, server_round, replies):
        return arrays_of({"w": np.mean([own.content["arrays"]["w"].numpy() for own in replies], 0)}), MetricRecord()


class AggregatesTwice(FedDualAvg):
    """Such as for the contribution of each client, from the models without it: two steps."""

    def aggregate_train(self, server_round, replies):
        super().aggregate_train(server_round, list(replies)[1:])
        return super().aggregate_train(server_round, replies)


def hooked(hook, change):
    """A subclass whose hook returns what ``change(what ours returns)`` does."""
    name = {hook: lambda self, *given: change(getattr(super(type(self), self), hook)(*given))}
    return type("Odd", (FedDualAvg,), name)


REFUSED = {
    "sparse": (changing(noisy), SPARSE, r"Own.configure_train got .* must stay 0.*privacy claim"),
    "threshold": (changing(noisy), THRESHOLD, r"Own.configure_train got .* must stay 0.*privacy claim"),
    "reset": (changing(lambda w, n: TARGET if n == 5 else w), SPARSE, r"in 'w' an entry would be 0.*\{'w': Zero\(\)\}"),
    "constraint": (changing(lambda w, number: w + 1.0), {**DENSE, "regularizer": Box(-0.5, 0.5)}, "must hold"),
    "average": (changing(noisy), {**DENSE, "output": Average()}, "configure_train got another model .*average"),
    "shape": (changing(lambda w, number: w[:-1]), DENSE, "configure_train got arrays that are no model: .*w"),
    "without super": (AggregatesItself, DENSE, r"without calling super\(\).aggregate_train.*aggregate\(self, prob"),
    "two steps": (AggregatesTwice, DENSE, "round 1, which configure_train has not opened.*choose_nodes="),
    "another name": (answering(lambda n, a, m: (ArrayRecord({"v": a["w"]}), m)), DENSE, r"no model: .*missing \['w'\]"),
    "None": (hooked("configure_train", lambda _: None), DENSE, "Odd.configure_train returned None.*; expected "),
    "no answer": (hooked("aggregate_train", lambda _: None), DENSE, "Odd.aggregate_train returned .*None.*; expected "),
    "a text": (hooked("aggregate_train", lambda _: ("m", {})), DENSE, "Odd.aggregate_train returned .*; expected "),
    "a number": (hooked("configure_train", lambda _: [1]), DENSE, "Odd.configure_train returned 1 among its messages"),
    "a metric": (FedDualAvg, {**DENSE, "train_metrics_aggr_fn": lambda *_: {"x": "a"}}, "averages .* are no numbers"),
    "evaluate": (hooked("configure_evaluate", lambda _: [1]), UNMODIFIED, "evaluate returned 1 among its messages"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hooks_that_return_what_no_state_holds_or_do_our_work_are_refused(name):
    kind, options, said = REFUSED[name]
    refused(said, go, kind, options, app=moving_app(evaluated={"loss": 0.5}))


def test_methods_that_average_models_take_changes_too():
    end = lambda kind: flat(run(kind(regularizer=L1(0.01), client_lr=0.02), clients(), 20).arrays)  # noqa: E731
    assert 0.0 < np.linalg.norm(end(changing(turned_and_rounded, FedMid))) < 0.6 * np.linalg.norm(end(FedMid))
    refused("what its clients remember", end, changing(turned_and_rounded, FedDAGT))


def test_messages_that_a_hook_leaves_out_are_not_missed():
    said = (result := go(hooked("configure_train", lambda messages: list(messages)[:2]))).train_metrics_clientapp[6]
    assert (said["num-replies"], said["num-left-out"], result.left_out) == (2, 0, [])


@pytest.mark.parametrize("mods", [[], [lambda *given: given[2](*given[:2])]], ids=["in process", "in messages"])
def test_replies_that_a_hook_leaves_out_have_come(mods):
    some = {"aggregate_train": lambda self, number, replies: FedDualAvg.aggregate_train(self, number, replies[1:])}
    result = run(type("Some", (FedDualAvg,), some)(), clients(), 1, mods=mods)
    assert [row.reason for row in result.left_out] == ["a hook of the strategy has left it out"]


# --- strategies around ours, of Flower -------------------------------------------------------------------------------

WRAPPERS = {
    "DifferentialPrivacyServerSideFixedClipping": (0.1, 1.0, NODES),
    "DifferentialPrivacyServerSideAdaptiveClipping": (0.1, NODES),
    "DifferentialPrivacyClientSideFixedClipping": (0.1, 1.0, NODES),
    "DifferentialPrivacyClientSideAdaptiveClipping": (0.1, NODES),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_flowers_privacy_wrappers_do_as_around_fed_avg_or_are_refused(name):
    """Their noise is in the model that the next round sends, and no reply counts for what the others are."""

    def models(inner):
        np.random.seed(0)  # noqa: NPY002 (Flower's noise is drawn from it)
        seen = []
        own = getattr(flowers, name)(inner, *WRAPPERS[name])
        result = simulated(own, moving_app(seen, {"norm_bit": 1.0}, 99.0), 3, initial_arrays={"w": np.zeros((6, 5))})
        return [*seen[::NODES], w_of(result)]

    ours, theirs = map(models, (FedDualAvg(**DENSE), FedAvg(fraction_evaluate=0.0)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    wrong = {"density": Density(0.3, rounds=2), "server_lr": 2.0, "server_momentum": 0.5, "aggregation": "median"}
    for option, value in wrong.items():
        refused("privacy claim", models, FedDualAvg(**DENSE, **{option: value}))


class Hooked(FedDualAvg):
    def configure_train(self, server_round, arrays, config, grid):
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("inner", [FedDualAvg, Hooked, FedDAGT])
def test_they_are_refused_around_clients_of_ours_on_any_grid(inner, again):
    """In a ServerApp nobody but the strategy itself sees what is around it, in its first run or a later one."""
    name = "DifferentialPrivacyClientSideFixedClipping"
    grid = InProcessGrid(moving_app(), NODES)
    inside = inner(fraction_evaluate=0.0)
    if again:
        run(inside, clients(), 2)
    with grid.identity(), pytest.raises(ConfigurationError, match=r"DifferentialPrivacy\w+ clips"):
        getattr(flowers, name)(inside, *WRAPPERS[name]).start(grid, arrays_of({"w": np.zeros(6)}), 2)


def passed_on(name):
    return lambda self, *given: getattr(self.inner, name)(*given)


class Around(flowers.Strategy):
    """A project's own strategy around another one, of which it changes the model."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def aggregate_train(self, server_round, replies):
        arrays, metrics = self.inner.aggregate_train(server_round, replies)
        return changed(arrays, self.change, server_round), metrics

    hooks = ("configure_train", "configure_evaluate", "aggregate_evaluate", "summary")
    configure_train, configure_evaluate, aggregate_evaluate, summary = map(passed_on, hooks)


@pytest.mark.parametrize("change", [clipped, without_a_row, back_to_the_start])
@pytest.mark.parametrize("theirs", [False, True])
def test_a_strategy_around_ours_does_what_a_subclass_does(change, theirs):
    """Around clients of ours and of theirs; it does not know that there is something to prepare."""
    app = moving_app() if theirs else app_of([LeastSquares(np.eye(30), TARGET.ravel(), intercept=False)] * NODES)
    options = DENSE if theirs else {"client_lr": 0.1, "fraction_evaluate": 0.0}
    start = {"w": np.zeros((6, 5))} if theirs else {"coefficients": np.zeros(30)}

    both = [Around(FedDualAvg(**options), change), changing(change)(**options)]
    around, inherited = (simulated(own, app, 6, initial_arrays=start, timeout=None).arrays for own in both)
    np.testing.assert_equal(numpy_of(around), numpy_of(inherited))
    refused("server_round=0: FedDualAvg counts rounds from 1", FedDualAvg().configure_train, 0, around, {}, None)


# --- the same class body over FedAvg, and over FedDualAvg without psi -------------------------------------------------


class Momentum:
    """It moves entries that psi would have made exactly 0, which no state could hold."""

    before = velocity = 0.0

    def configure_train(self, server_round, arrays, config, grid):
        self.before = arrays["w"].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        ours = sorted(replies, key=lambda message: message.metadata.src_node_id)
        # One reply is lost.
        arrays, metrics = super().aggregate_train(server_round, ours[1:] if server_round == 3 else ours)
        self.velocity = 0.5 * self.velocity + arrays["w"].numpy() - self.before
        return arrays_of({"w": self.before + self.velocity}), metrics

    def aggregate_evaluate(self, server_round, replies):
        return self.evaluate_metrics_aggr_fn([each.content for each in replies], self.weighted_by_key)


@pytest.mark.parametrize("key", ["num-examples", "rows"])
def test_a_subclass_of_fed_avg_is_a_subclass_of_ours(key):
    def trained(arrays, message, context):
        return {"w": arrays["w"] + 0.3 * (TARGET * context.node_config["partition-id"] - arrays["w"])}

    def reported(message, context):
        return {"loss": float(np.abs(message.content["arrays"]["w"].numpy()).sum())}

    def weighed(message, context, call_next):
        metrics = (reply := call_next(message, context)).content["metrics"]
        rows = metrics.pop("num-examples") + context.node_config["partition-id"]
        metrics.update(dict.fromkeys((key, "elapsed", "local-steps"), rows))
        return reply

    app = foreign_app(trained, metrics=reported, evaluated={"accuracy": 0.5}, mods=[weighed])
    ours, theirs = (
        simulated(type("", (Momentum, base), {})(weighted_by_key=key, **own), app, 12, initial_arrays={"w": TARGET})
        for base, own in ((FedDualAvg, UNMODIFIED), (FedAvg, {}))
    )
    np.testing.assert_allclose(w_of(ours), w_of(theirs), rtol=1e-12, atol=1e-13)
    for kept in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        rounds, own = getattr(theirs, kept), getattr(ours, kept)
        assert rounds.keys() == own.keys()
        for number, metrics in rounds.items():
            assert {key: own[number][key] for key in metrics} == pytest.approx(dict(metrics), rel=1e-12)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state", "memories", "result", "saved", "_run", "_saved"])
def test_what_a_user_reads_of_a_run_is_no_attribute_of_ones_own(name):
    strategy = FedDualAvg(**DENSE)
    refused(rf"self.{name} = \[\].*take another name", setattr, strategy, name, [])
    go(lambda **_: strategy)


def test_a_subclass_without_super_init_is_refused_in_words():
    class Own(FedDualAvg):
        def __init__(self, speed=1.0, **_):
            self.speed = speed

    refused(r"Own.__init__ does not call super\(\).__init__\(...\)", go, Own)
    assert "Own" in repr(Own())


# --- clients that know nothing of duals: as with ours; what nobody trains; who forgets the option ---------------------


def unmodified(rounds=20, *, steps=4, rate=0.05, extra=None, **options):
    """Return the strategy and the model of a run over FedAvg's clients, who take gradient steps on their own losses."""
    objectives = clients()

    def trained(arrays, message, context):
        w = np.concatenate([arrays["coefficients"], arrays["intercept"]])
        for _ in range(steps):
            w = w - rate * objectives[context.node_config["partition-id"]].gradient(w)
        return {"coefficients": w[:FEATURES], "intercept": w[FEATURES:]}

    def reported(message, context):
        return {"num-examples": objectives[context.node_config["partition-id"]].num_examples, **(extra or {})}

    strategy = FedDualAvg(**DENSE | options)
    return strategy, flat(simulated(strategy, foreign_app(trained, metrics=reported), rounds).arrays)


KNOWN = {"client_lr": 0.05, "work": Steps(1)}
ALIKE = [(1, KNOWN, {"regularizer": L1(0.3), "output": Average()}), (3, {}, {"density": Density(0.5, rounds=3)})]


@pytest.mark.parametrize(("steps", "known", "more"), [*ALIKE, (1, {}, {"regularizer": L1Ball(2.0)})])
def test_clients_of_every_kind_take_the_same_steps(steps, known, more):
    """A density belongs to the server: who knows psi does what those do who do not."""
    _, ordinary = unmodified(steps=steps, **known, **more)
    ours = run(FedDualAvg(client_lr=0.05, work=Steps(steps, batch_size=None), **more), clients(), 20)
    np.testing.assert_allclose(ordinary, flat(ours.arrays), rtol=0, atol=1e-13)


def test_the_clients_metrics_win_over_what_the_user_said():
    options = {"steps": 3, "work": Steps(3), "regularizer": L1(0.3), "client_lr": 0.05}
    for extra, expected in (({"local-steps": 4}, 0.05 * 4), ({"elapsed": 0.125}, 0.125), ({}, 0.05 * 3)):
        strategy, _ = unmodified(1, extra=extra, **options)
        assert strategy.state.elapsed == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(("held", "trained"), [("float32",) * 2, ("float64", "float32"), ("float32", "float16")])
def test_rounding_of_the_users_dtype_is_not_taken_for_a_gradient(held, trained):
    """The increment is what came back minus what was sent, in the client's precision, not minus the float64 primal."""
    same = lambda arrays, *_: {name: array.astype(trained) for name, array in arrays.items()}  # noqa: E731
    unmoved = foreign_app(same, metrics={"num-examples": 1, "local-steps": 1})
    # The ridge makes primal points that float32 cannot hold.
    strategy = FedDualAvg(**DENSE, regularizer=L2Squared(0.3), client_lr=0.1, work=Steps(1))
    start = np.full((4, 2), 1 / 3, held)
    simulated(strategy, unmoved, 3, initial_arrays={"w": start})
    np.testing.assert_array_equal(strategy.state.dual, start.ravel())


# --- what nobody trains: frozen layers, buffers of a `state_dict` --------------------------------------------------

RNG = np.random.default_rng(3)
SHAPES = {"backbone.weight": (30, 10), "pe": (12, 8), "embedding.weight": (20, 8), "fc.weight": (10, 10)}
NETWORK, ENDS = ({name: RNG.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(2))


def train_network(options, *, frozen=("pe", "backbone.weight"), until=1_000, rounds=10, kind=FedDualAvg, **more):
    def trained(arrays, message, context):
        still = frozen if message.content["config"]["server-round"] < until else ("pe",)
        return {n: w if n in still else (w + 0.3 * (ENDS[n] - w)).astype(np.float32) for n, w in arrays.items()}

    result = simulated(kind(**options), foreign_app(trained), rounds, num_nodes=3, initial_arrays=NETWORK, **more)
    return numpy_of(result.arrays)


#: What a psi for each array says of those that nobody trains, or of all the others.
SAID = [{**THRESHOLD, "regularizer": PerParameter({"pe": Zero(), "*.weight": L1(0.05)})}]
SAID += [{**SPARSE, "regularizer": PerParameter({"pe": Zero(), "[ef]*": HardSparsity(30)})}]


@pytest.mark.parametrize("options", [SPARSE, THRESHOLD, *SAID])
def test_what_nobody_trains_stays_whole(options):
    model = train_network(options)
    for name in ("backbone.weight", "pe"):
        np.testing.assert_array_equal(model[name], NETWORK[name])
    assert np.count_nonzero(model["fc.weight"]) < model["fc.weight"].size


@pytest.mark.parametrize("options", [DENSE, SPARSE, THRESHOLD])
def test_clients_that_return_what_they_received_are_reported(options, caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        model = train_network(options, frozen=tuple(NETWORK))
    assert sum("return the model that they were sent" in line for line in caplog.messages) == 1
    for name, array in NETWORK.items():
        np.testing.assert_array_equal(model[name], array)


@pytest.mark.parametrize(("frozen", "until"), [(("pe", "backbone.weight"), 6), (tuple(NETWORK), 2)])
def test_what_is_trained_later_gets_its_share_and_frozen_rest_stays_whole(frozen, until):
    """Also where nobody trains in the first round, as of a rate that grows from 0."""
    model = train_network(SPARSE, frozen=frozen, until=until, rounds=14)
    np.testing.assert_array_equal(model["pe"], NETWORK["pe"])
    others = [array for name, array in model.items() if name != "pe"]
    assert sum(map(np.count_nonzero, others)) == round(0.3 * sum(array.size for array in others))


@pytest.mark.parametrize("options", [SPARSE, THRESHOLD, {**DENSE, "density": Density(0.3, scope="global")}])
def test_weights_that_a_state_dict_holds_twice_move_together(options):
    """A client that loads both has the second one under both names, as PyTorch's tied weights."""

    def trained(arrays, message, context):
        both = arrays["embedding.weight"] + 0.3 * (ENDS["embedding.weight"] - arrays["embedding.weight"])
        other = arrays["fc.weight"] + 0.3 * (ENDS["fc.weight"] - arrays["fc.weight"])
        return {"decoder.weight": both, "embedding.weight": both, "fc.weight": other}

    begin = {name: NETWORK[name.replace("decoder", "embedding")] for name in ("decoder.weight", "embedding.weight")}
    begin["fc.weight"] = NETWORK["fc.weight"]
    model = simulated(FedDualAvg(**options), foreign_app(trained), 20, num_nodes=3, initial_arrays=begin)
    found = numpy_of(model.arrays)
    np.testing.assert_allclose(found["decoder.weight"], found["embedding.weight"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["decoder.weight"] == 0.0, found["embedding.weight"] == 0.0)
    assert 0 < np.count_nonzero(found["decoder.weight"]) < found["decoder.weight"].size


# --- where the option is forgotten, on every way there ---------------------------------------------------------------

NETWORK_OF_TWO = {"0.weight": np.ones((3, 2), np.float32), "0.bias": np.zeros(3, np.float32)}


def pytorch(arrays, *_):
    """As `load_state_dict`, which refuses other names."""
    if set(arrays) != set(NETWORK_OF_TWO):
        raise RuntimeError(f"Error(s) in loading state_dict for Net: Unexpected key(s) in state_dict: {set(arrays)}")
    return arrays


#: With `strict=False`, and a loop that takes arrays as they come.
LOADERS = [pytorch, lambda *_: NETWORK_OF_TWO, lambda arrays, *_: ArrayRecord([0.7 * a + 0.3 for a in arrays.values()])]


@pytest.mark.parametrize("trained", LOADERS)
@pytest.mark.parametrize("elsewhere", [lambda grid: grid, Foreign], ids=["here", "elsewhere"])
def test_the_reason_of_a_reply_that_does_not_count_says_what_to_do(trained, elsewhere):
    grid = InProcessGrid(foreign_app(trained), 2, raise_errors=False)
    with grid.identity(), pytest.raises(NothingTrainedError) as caught:
        FedDualAvg(fraction_evaluate=0.0).start(elsewhere(grid), arrays_of(NETWORK_OF_TWO), 1)
    reasons = [row.reason for row in caught.value.result.left_out]
    assert ['give the strategy client="unmodified"' in reason for reason in reasons] == [True, True]


# --- a density --------------------------------------------------------------------------------------------------------

LAYERS = {"conv": (4, 2, 3, 3), "hidden": (20, 36), "bias": (20,), "head": (5, 20)}
WEIGHTS = ("conv", "hidden", "head")


def walking(arrays, message, context):
    """A client that goes to a fixed place of its own."""
    rng = np.random.default_rng(context.node_config["partition-id"])
    return {name: a + 0.1 * (2.0 * rng.standard_normal(a.shape) - a) for name, a in arrays.items()}


def walked(rounds=24, **options):
    own = FedDualAvg(**{"client": "unmodified", "density": 0.1, "fraction_evaluate": 0.0} | options)
    rng = np.random.default_rng(0)
    start = {name: rng.standard_normal(shape) for name, shape in LAYERS.items()}
    result = simulated(own, foreign_app(walking), rounds, num_nodes=3, initial_arrays=start)
    return numpy_of(result.arrays), own, result


shapes = st.lists(st.lists(st.integers(1, 30), min_size=2, max_size=4).map(tuple), min_size=1, max_size=8)


@given(shapes, st.floats(0.01, 1.0))
@settings(max_examples=200)
def test_the_share_is_allotted_to_the_entry(shapes, density):
    sizes = [math.prod(shape) for shape in shapes]
    counts = erdos_renyi(shapes, density)
    total = round(density * sum(sizes))
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sum(counts) == total or (sum(counts) > total and all(count == 1 for count in counts))
    if density == 1.0:
        assert counts == sizes


@pytest.mark.parametrize("scope", ["layers", "global"])
def test_what_stays_is_the_largest_of_the_dual_as_it_is(scope):
    """Nothing is shrunk: the model is the dual itself at the entries that stay."""
    found, own, result = walked(density=Density(0.1, scope))
    layout = run_of(own).problem.layout
    duals = {name: own.state.dual[layout[name].block].reshape(shape) for name, shape in LAYERS.items()}
    np.testing.assert_array_equal(found["bias"], duals["bias"])
    total = sum(math.prod(LAYERS[name]) for name in WEIGHTS)
    assert sum(np.count_nonzero(found[name]) for name in WEIGHTS) == round(0.1 * total)
    assert result.train_metrics_clientapp[24]["density"] == pytest.approx(0.1, abs=1 / total)
    groups = [WEIGHTS] if scope == "global" else [(name,) for name in WEIGHTS]
    for names in groups:
        w, z = (np.concatenate([arrays[name].ravel() for name in names]) for arrays in (found, duals))
        kept = w != 0
        np.testing.assert_array_equal(w[kept], z[kept])
        assert np.abs(z[kept]).min() >= np.abs(z[~kept]).max()


def test_single_arrays_have_a_density_of_their_own_or_none():
    found, _, _ = walked(regularizer=PerParameter({"head": Zero(), "conv": HardSparsity(density=0.5)}))
    assert [np.count_nonzero(found[name]) for name in ("head", "conv")] == [100, 36]
    assert np.count_nonzero(found["hidden"]) == 72  # alone in the rest
    # A constraint is kept as it is.
    found, _, _ = walked(regularizer=PerParameter({"head": L1Ball(1.0)}))
    assert np.abs(found["head"]).sum() == pytest.approx(1.0)
    assert np.count_nonzero(found["conv"]) + np.count_nonzero(found["hidden"]) == round(0.1 * (72 + 720))


SCHEDULES = [(24, None, 18), (3, None, 3), (10, None, 8), (9, 6, 6), (1, None, 1)]


@pytest.mark.parametrize(("rounds", "falling", "reached"), SCHEDULES)
def test_the_schedule_fits_the_number_of_rounds(rounds, falling, reached, caplog):
    _, _, result = walked(rounds, density=Density(0.1, rounds=falling))
    densities = [result.train_metrics_clientapp[number]["density"] for number in range(1, rounds + 1)]
    assert ("often need 14 rounds" in caplog.text) == (rounds < 14)
    assert densities == sorted(densities, reverse=True)
    assert densities[reached - 1 :] == [densities[-1]] * (rounds - reached + 1)
    assert reached == 1 or densities[reached - 2] > densities[-1]
    assert densities[-1] == pytest.approx(0.1, abs=2e-3)


# --- the largest entries without sorting, and the step of a model that becomes sparse ---------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@given(values=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=40), share=st.floats(0.0, 1.0))
@settings(max_examples=40)
def test_the_kth_largest_is_that_of_a_sort(dtype, values, share):
    """With ties, where the values are repeated up to the size from which on it is found otherwise."""
    for size in (len(values), _LONG + 11):
        v = np.resize(values, size).astype(dtype)
        count = min(size, 1 + int(share * size))
        assert kth_largest(np.abs(v), count) == np.sort(np.abs(v))[size - count]


LAYOUT = Layout.from_arrays({"a": np.zeros((3, 4)), "b": np.zeros((2, 5)), "c": np.zeros((2, 2)), "bias": np.zeros(3)})


def rms_singular_value(w):
    return np.sqrt((np.linalg.svd(w, compute_uv=False) ** 2).mean())


@given(st.lists(st.sampled_from([1e-6, 0.1, 0.3, 1.0, 10.0]), min_size=3, max_size=3), st.integers(1, 3))
@settings(max_examples=50)
def test_cutting_weakens_no_array_below_the_gain_of_initial_weights(scale, count):
    rng = np.random.default_rng(5)
    dual = rng.standard_normal(LAYOUT.size)
    for name, factor in zip("abc", scale, strict=True):
        dual[LAYOUT[name].block] *= factor
    primal = np.where(rng.random(LAYOUT.size) < 0.8, dual, 0.0)
    bound = HardSparsity(count).bind(LAYOUT)
    following = dual.copy()
    keep_gain(bound, primal.copy(), following)
    plain, kept = bound.prox(dual, 1.0), bound.prox(following, 1.0)
    for name in "abc":
        block, shape = LAYOUT[name].block, LAYOUT[name].shape
        before = rms_singular_value(np.where(primal[block] != 0, dual[block], 0.0).reshape(shape))
        without, found = (rms_singular_value(w[block].reshape(shape)) for w in (plain, kept))
        assert found == pytest.approx(max(without, min(before, GAIN)))
        # One factor, no less than 1, for all that stays; all else is as it was.
        on = plain[block] != 0
        assert (on == (kept[block] != 0)).all()
        assert np.ptp(following[block][on] / dual[block][on]) < 1e-12
        np.testing.assert_array_equal(following[block][~on], dual[block][~on])
    np.testing.assert_array_equal(following[LAYOUT["bias"].block], dual[LAYOUT["bias"].block])
