"""Sites whose columns or classes differ are refused before anything is trained on them, by name, on every way."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from problems import D, app_of, clients, run, start_arrays
from together import together

from flwr_fco import GaussianDP
from flwr_fco.callbacks import Callback, Checkpoint
from flwr_fco.core.logs import quiet
from flwr_fco.core.schema import Scales, names_of
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.messages.protocol import Described
from flwr_fco.messages.records import NAMES_ONLY, TABLE
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import DualFL, FedDAGT, FedDualAvg, FedNewton, Participation, Steps
from flwr_fco.strategies.nodes import Tables

NAMES = ["age", "bmi", "crp", "dose", "egfr", "fev"]


def frames(number=4, rows=20):
    """Rows of some sites, whose columns are not alike."""
    tables = [np.random.default_rng(m).standard_normal((rows, len(NAMES))) for m in range(number)]
    return [pd.DataFrame(table, columns=NAMES) for table in tables]


def labels_of(table):
    """Two classes that follow from the columns by name, whatever their order."""
    score = table["age"] - table["bmi"] + np.sin(np.arange(len(table)))
    return (score > 0.0).to_numpy().astype(int)


def losses(change=None, *, code=None, site=2, number=4):
    """Logistic losses of some sites, one of which has other columns, or another coding."""
    tables = frames(number)
    found = [Logistic(table, labels_of(table)) for table in tables]
    labels = labels_of(tables[site])
    features = tables[site] if change is None else change(tables[site])
    found[site] = Logistic(features, labels if code is None else code(labels))
    return found


def averaging(**options):
    return FedDualAvg(regularizer=L1(0.01), client_lr=0.1, work=Steps(2, batch_size=5), **options)


def plain_mod(message, context, call_next):
    return call_next(message, context)


WAYS = {"in process": {}, "messages": {"mods": [plain_mod]}, "error replies": {"raise_errors": False}}
REVERSED = NAMES[::-1]


@pytest.fixture(params=WAYS)
def way(request):
    """Options of a run in each way."""
    return WAYS[request.param]


def test_columns_in_another_order_are_refused(way):
    told = (
        r"partition 2\) has its columns in another order than .*partition 0\) and 2 more: .*'fev', there 'age'.*X\[\["
    )
    with pytest.raises(ConfigurationError, match=told):
        run(averaging(), losses(lambda table: table[REVERSED]), 2, **way)


def test_a_site_that_lacks_a_column_is_named(way):
    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'bmi', compared with .*partition 0"):
        run(averaging(), losses(lambda table: table.drop(columns="bmi")), 2, **way)


def test_classes_of_another_coding_are_refused(way):
    told = r"partition 2\) has the classes '-1', '1', .*partition 0\) and 2 more '0', '1'\. Code the classes"
    with pytest.raises(ConfigurationError, match=told):
        run(averaging(), losses(code=lambda labels: 2 * labels - 1), 2, **way)


@pytest.mark.parametrize(
    "strategy",
    [
        lambda: FedNewton(regularizer=L1(0.01)),
        lambda: FedDAGT(regularizer=L1(0.01), client_lr=0.1),
        lambda: DualFL(nu=0.5, smoothness=1.0),
        # Here other questions come before round 1, and one in round 0.
        lambda: FedDualAvg(regularizer=L1(0.01), client_lr="auto"),
        lambda: FedDAGT(regularizer=L1(0.01), client_lr=0.1, fraction_train=0.25, tracker_start="gradient"),
    ],
)
def test_whatever_the_strategy(strategy):
    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'age' and has 'alter', compared with"):
        run(strategy(), losses(lambda table: table.rename(columns={"age": "alter"})), 2)
    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'age', compared with"):
        run(strategy(), losses(lambda table: table.drop(columns="age")), 2)


@pytest.mark.parametrize("kind", [LeastSquares, Logistic, lambda *data: MultinomialLogistic(*data, num_classes=2)])
def test_whatever_the_loss(kind):
    tables = frames()
    tables[1] = tables[1][REVERSED]
    objectives = [kind(table, labels_of(table)) for table in tables]
    start = objectives[0].layout.unflatten(np.zeros(objectives[0].layout.size))
    with pytest.raises(ConfigurationError, match=r"partition 1\) has its columns in another order"):
        run(averaging(), objectives, 1, start=start)


def test_nothing_is_aggregated_of_what_does_not_fit():
    strategy = averaging()
    with pytest.raises(ConfigurationError, match="another order"):
        run(strategy, losses(lambda table: table[REVERSED]), 2)
    assert not strategy.state.dual.any()


@pytest.mark.parametrize("way", ["in process", "messages"])
def test_names_change_no_bit_and_arrays_are_taken_on_trust_beside_frames(way):
    named = run(averaging(), losses(), 4, **WAYS[way])
    mixed = run(averaging(), losses(lambda table: table.to_numpy()), 4, **WAYS[way])
    plain = run(averaging(), [Logistic(f.features, f.labels) for f in losses()], 4, **WAYS[way])
    for other in (mixed, plain):
        assert all(np.array_equal(other.arrays[n].numpy(), named.arrays[n].numpy()) for n in named.arrays)
        assert str(other.train_metrics_clientapp) == str(named.train_metrics_clientapp)


def test_labels_of_one_class_fit_where_they_can():
    """All 1 may be of either coding; all 0 is 0 and 1."""
    run(averaging(), losses(code=np.ones_like), 1)
    signed = [Logistic(f.features, 2 * f.labels - 1) for f in losses()]
    run(averaging(), [*signed[:3], Logistic(signed[3].features, np.ones(20))], 1)
    objectives = losses(code=np.zeros_like)
    objectives[0] = Logistic(objectives[0].features, 2 * objectives[0].labels - 1)
    with pytest.raises(ConfigurationError, match=r"'-1', '1'"):
        run(averaging(), objectives, 1)


class Counted(InProcessGrid):
    """Keeps the messages."""

    direct = None

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sent = []

    def reply(self, message):
        reply = super().reply(message)
        self.sent.append((message.metadata.message_type, message.metadata.dst_node_id, reply.content))
        return reply


def start(strategy, grid, rounds, **options):
    with grid.identity(), quiet(50):
        return strategy.start(grid, start_arrays(), rounds, **options)


@pytest.mark.parametrize("named", [True, False])
def test_each_site_is_asked_once_in_a_run(named):
    objectives = losses() if named else clients()
    grid = Counted(app_of(objectives), 4)
    start(averaging(fraction_train=0.5, fraction_evaluate=0.5, certificate_every=2), grid, 6)
    assert sorted(node for kind, node, _ in grid.sent if kind == TABLE) == [2, 3, 4, 5]
    first = {}
    for kind, node, _ in grid.sent:
        first.setdefault(node, kind)
    assert set(first.values()) == {TABLE}


def test_a_site_that_comes_late_is_compared_before_its_first_answer():
    asked = []

    def choose(server_round, nodes):
        asked.append(server_round)
        return [node for node in nodes if node.partition_id != 2 or server_round > 2]

    strategy = averaging(participation=Participation(choose_nodes=choose))
    with pytest.raises(ConfigurationError, match=r"partition 2\) has its columns in another order"):
        run(strategy, losses(lambda table: table[REVERSED]), 5)
    assert asked == [1, 2, 3]
    # The model of the rounds before is there.
    assert len(strategy.result.train_metrics_clientapp) == 2


@pytest.mark.parametrize("way", ["in process", "messages", "error replies"])
def test_a_site_that_only_evaluates_is_compared_too(way):
    for site in range(4):
        # Two of them train in the round.
        objectives = losses(lambda table: table[REVERSED], site=site)
        with pytest.raises(ConfigurationError, match=rf"partition {site}\).*in another order|another order.*{site}\)"):
            run(averaging(fraction_train=0.25), objectives, 1, fraction_evaluate=1.0, **WAYS[way])
    # And those that are alike say nothing of it in the numbers.
    result = run(averaging(fraction_train=0.25), losses(), 2, fraction_evaluate=1.0, **WAYS[way])
    (plain,) = {frozenset(metrics) for metrics in result.evaluate_metrics_clientapp.values()}
    assert plain == {"loss", "accuracy", "num-replies", "num-left-out"}
    assert result.evaluate_metrics_clientapp[2]["num-replies"] == 4


def test_a_foreign_strategy_asks_nothing():
    grid = Counted(app_of(losses()), 4)
    with grid.identity(), quiet(50):
        FedAvg(fraction_train=0.0, min_train_nodes=0).start(grid, start_arrays(), 1)
    assert [kind for kind, _, _ in grid.sent] == ["evaluate"] * 4


def test_a_site_of_a_sampled_round_is_compared_before_its_answer_counts():
    """Whichever sites a round asks: the model is that of the rounds without it."""
    strategy = averaging(fraction_train=0.5, fraction_evaluate=0.0)
    with pytest.raises(ConfigurationError, match=r"partition 2\) has its columns in another order"):
        run(strategy, losses(lambda table: table[REVERSED], number=4), 20)
    done = strategy.result
    again = averaging(fraction_train=0.5, fraction_evaluate=0.0)
    rounds = max(done.train_metrics_clientapp, default=0)
    if rounds:
        expected = run(again, losses(number=4), rounds).arrays
        for name, array in done.arrays.items():
            np.testing.assert_array_equal(array.numpy(), expected[name].numpy())


def told_of_units(strategy, objectives, rounds=1, **options):
    """Return the warnings about units of a run."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(strategy, objectives, rounds, **options)
    return [text for text in (f"{warning.message}" for warning in told) if "standard deviations differ" in text]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", [averaging, lambda: FedNewton(regularizer=L1(0.01), min_train_nodes=1)])
def test_units_are_compared_with_the_first_answers_of_any_strategy(way, strategy):
    objectives = losses(lambda table: table.assign(crp=1000.0 * table["crp"]))
    (told,) = told_of_units(strategy(), objectives, 3, **WAYS[way])
    assert re.search(r": crp \(.* at partition \d, .* at partition 2\)\. If the units", told)
    assert not told_of_units(strategy(), losses(), **WAYS[way])


def test_units_of_columns_without_names_and_of_a_site_that_comes_late():
    tables = [np.random.default_rng(m).standard_normal((20, D - 1)) for m in range(3)]
    tables[2][:, 2] *= 10.0
    objectives = [LeastSquares(table, table[:, 0]) for table in tables]
    late = Participation(choose_nodes=lambda number, nodes: [n for n in nodes if n.partition_id != 2 or number > 1])
    (told,) = told_of_units(averaging(participation=late), objectives, 3)
    assert re.search(r"column 2 \(.* at partition [01], .* at partition 2\)", told)
    for table, rows in zip(tables, (19, 12, 11), strict=True):  # mostly zero at each site, as pixels at an edge are
        table[:rows] = 0.0
    assert not told_of_units(averaging(), [LeastSquares(table, table[:, 0]) for table in tables])


def test_a_private_run_hears_names_only():
    """No noise is added to deviations."""

    def private():
        noise = GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3, noise_seed=0)
        exact = {"weighting": "uniform", "normalize_local_work": False}
        return FedDualAvg(fraction_evaluate=0.0, work=Steps(1), privacy=noise, **exact)

    plain = losses(lambda table: table.assign(crp=1000.0 * table["crp"]))
    grid = Counted(app_of(plain), 4)
    start(private(), grid, 1)
    said = [content["arrays"] for kind, _, content in grid.sent if kind == NAMES_ONLY]
    assert [len(arrays) for arrays in said] == [0] * 4
    assert TABLE not in [kind for kind, _, _ in grid.sent]
    assert not told_of_units(private(), plain)
    with pytest.raises(ConfigurationError, match="another order"):
        run(private(), losses(lambda table: table[REVERSED]), 1)


def altered(alter):
    """Return a mod by which partition 2 says something else of its table."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 2 and message.metadata.message_type == TABLE:
            alter(reply.content)
        return reply

    return mod


@together(
    "alter",
    [
        lambda content: content["arrays"].clear(),
        lambda content: content["arrays"].update(deviations=Array(np.array([5.0]))),
        lambda content: content["arrays"].update(deviations=Array(np.full(6, np.nan))),
        lambda content: content["arrays"].update(deviations=Array(np.full(6, -1.0))),
        lambda content: content["arrays"].update(deviations=Array(np.ones(6, np.float32))),
        lambda content: content.pop("fco-names"),
        lambda content: content["fco-names"].update(columns=[0, 1]),
        lambda content: content.update({"more": ArrayRecord()}),
    ],
)
def test_nonsense_about_a_table_is_not_compared_and_ends_no_run(alter):
    strategy = averaging()
    objectives = losses(lambda table: table.assign(crp=1000.0 * table["crp"]))
    assert not told_of_units(strategy, objectives, mods=[altered(alter)])
    assert not strategy.result.left_out
    assert strategy.state.dual.any()


@together("factor", [4.7, 5.0, 5.5, 6.0, 1e-9, 1e300])
def test_factors_above_5_are_told_of_and_no_smaller_ones(factor):
    here = np.random.default_rng(0).uniform(0.1, 10.0, 50)
    scales = Scales(50)
    for site, own in (("a", here), ("b", factor * here), ("c", np.zeros(50)), ("d", np.ones(3))):
        scales.add(site, own)
    text = scales.differing([f"x{j}" for j in range(50)])
    assert ("and 45 more" in text) == (factor > 5.0 or factor < 0.1)
    assert not scales.differing([f"x{j}" for j in range(50)])


TEXTS = {
    "strings": lambda table: table.assign(sex=np.resize(["m", "secret"], len(table))),
    "objects": lambda table: table.assign(sex=np.array([*["m"] * (len(table) - 1), "secret"], dtype=object)),
    "categories": lambda table: table.assign(sex=pd.Categorical(np.resize(["m", "secret"], len(table)))),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_column_of_text_is_refused_with_a_recipe_that_shows_none_of_its_values(kind):
    table = TEXTS[kind](frames(1)[0])
    told = r"columns \['sex'\] hold texts or categories; expected numbers\. Agree .*get_dummies\(X\['sex'\]"
    with pytest.raises(ConfigurationError, match=told) as error:
        Logistic(table, labels_of(table))
    assert "secret" not in str(error.value)
    agreed = pd.CategoricalDtype(["m", "f", "secret"])
    coded = [pd.get_dummies(own.astype({"sex": agreed}), columns=["sex"], dtype=float) for own in (table, table[:3])]
    assert Logistic(coded[0], labels_of(table)).feature_names == Logistic(coded[1], labels_of(table[:3])).feature_names


class Stop(Callback):
    def on_round_end(self, server_round, arrays, metrics, numbers=None):
        if server_round == 2:
            raise RuntimeError("killed")


def test_a_resumed_run_goes_on_and_compares_again(tmp_path):
    path = tmp_path / "run.npz"
    whole = run(averaging(), losses(), 4)
    with pytest.raises(RuntimeError, match="killed"):
        run(averaging(), losses(), 4, callbacks=[Checkpoint(path), Stop()])
    resumed = run(averaging(), losses(), 4, resume=path)
    assert all(np.array_equal(resumed.arrays[n].numpy(), whole.arrays[n].numpy()) for n in whole.arrays)
    with pytest.raises(ConfigurationError, match="another order"):
        run(averaging(), losses(lambda table: table[REVERSED]), 4, resume=path)


def test_long_and_many_names_are_cut_in_the_error():
    def change(table):
        more = pd.DataFrame(0.5, table.index, [f"{j}\n" * 1000 for j in range(100)])
        return more.iloc[:, : len(NAMES)]

    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'age', .* \(6 in all\) and has '0") as caught:
        run(averaging(), losses(change), 1)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def test_a_column_that_is_lacking_is_named_beside_sites_without_names():
    objectives = losses(lambda table: table.drop(columns="bmi"))
    objectives[0] = Logistic(objectives[0].features, objectives[0].labels)
    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'bmi', compared with .*partition 1"):
        run(averaging(), objectives, 1)
    # Of arrays no name is known.
    arrays = [Logistic(f.features, f.labels) for f in objectives]
    with pytest.raises(ClientError, match=r"partition 2\) raised .*the server's model is"):
        run(averaging(), arrays, 1)


def test_a_site_alone_is_the_one_that_is_named_although_it_is_the_first():
    with pytest.raises(ConfigurationError, match=r"partition 0\) has its columns in another .* than node 3 .* 1 more"):
        run(averaging(), losses(lambda table: table[REVERSED], site=0, number=3), 1)


def test_the_servers_own_names_decide():
    objectives = [Logistic(table[REVERSED], labels_of(table)) for table in frames()]
    strategy = averaging()
    strategy.tables = Tables(Described(tuple(NAMES)))
    with pytest.raises(ConfigurationError, match=r"partition 0\) has its columns in another order than the ServerApp"):
        run(strategy, objectives, 1)


def test_a_loss_of_ones_own_is_compared_if_it_says_its_names():
    class Own(Objective):
        """Half the squared distance of the mean."""

        def __init__(self, objective, **names):
            self.layout, self.num_examples, self.inner = objective.layout, objective.num_examples, objective
            self.__dict__.update(names)

        def value(self, w):
            return self.inner.value(w)

        def gradient(self, w, batch=None, out=None):
            return self.inner.gradient(w, batch, out)

    run(averaging(), [Own(f) for f in clients()], 1)
    # Neither is what happens to have this name compared if it cannot be names.
    run(averaging(), [Own(f, feature_names={"m": m}, class_names=f.targets) for m, f in enumerate(clients())], 1)
    run(averaging(), [Own(f, feature_names=pd.Index(NAMES)) for f in clients()], 1)
    with pytest.raises(ConfigurationError, match=r"partition 1\) has its columns in another order"):
        run(averaging(), [Own(f, feature_names=NAMES if m != 1 else REVERSED) for m, f in enumerate(clients())], 1)


@together(
    ("columns", "names"),
    [
        (["b", "a"], ("b", "a")),
        ([2, 0], ("2", "0")),
        (pd.MultiIndex.from_tuples([("a", 1), ("a", 2)]), ("('a', 1)", "('a', 2)")),
        # Of which a table of another kind is made: its columns are the data.
        ([np.array([1.0]), np.array([2.0])], None),
        ([1.5], None),
        ([], None),
        ("ab", None),
    ],
)
def test_what_are_names(columns, names):
    assert names_of(columns) == names


def test_objectives_keep_the_names_of_frames_dense_and_sparse():
    table = frames(1)[0]
    sparse = table.astype(pd.SparseDtype("float64", 0.0))
    for given in (table, sparse):
        objective = LeastSquares(given, np.ones(len(table)))
        assert objective.feature_names == tuple(NAMES)
    assert LeastSquares(table.to_numpy(), np.ones(len(table))).feature_names is None
    assert Logistic(table, labels_of(table)).class_names == ("0", "1")
    assert len(NAMES) + 1 == D
