"""Sites whose columns or classes differ are refused before anything is trained on them, by name, on every way."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from problems import D, app_of, clients, run, start_arrays
from together import together

from flwr_fco import GaussianDP
from flwr_fco.callbacks import Callback, Checkpoint
from flwr_fco.client_apps import training
from flwr_fco.core.schema import Units, grades_of, names_of, schema_number
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective
from flwr_fco.regularizers import L1
from flwr_fco.server.clients.schemas import Schemas
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import DualFL, FedDAGT, FedDualAvg, FedNewton, Participation, Steps, run_of
from flwr_fco.wire import flower
from flwr_fco.wire.keys import SCHEMA, UNITS
from flwr_fco.wire.protocol import Node

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


WAYS = {"in process": {}, "messages": {"mods": [plain_mod]}, "error replies": {"raise_errors": False}, "processes": {}}
REVERSED = NAMES[::-1]


@pytest.fixture(params=WAYS)
def way(request):
    """Options of a run in each way."""
    return {"engine": request.getfixturevalue("workers")} if request.param == "processes" else WAYS[request.param]


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
        # Here a question comes before round 1.
        lambda: FedDualAvg(regularizer=L1(0.01), client_lr="auto"),
    ],
)
def test_whatever_the_strategy(strategy):
    with pytest.raises(ConfigurationError, match=r"partition 2\) lacks 'age' and has 'alter', compared with"):
        run(strategy(), losses(lambda table: table.rename(columns={"age": "alter"})), 2)


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
        # What a client says of its names is no metric.
        assert str(other.train_metrics_clientapp) == str(named.train_metrics_clientapp)
    assert SCHEMA not in named.train_metrics_clientapp[1]


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
    """Keeps the messages, as records of Flower's own grids."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.sent = []

    def _deliver(self, message):
        reply = super()._deliver(message)
        self.sent.append((message.metadata.message_type, flower.to_bytes(reply.content)))
        return reply


def start(strategy, grid, rounds, **options):
    with flower.identity(grid.run_id), flower.quiet(50):
        return strategy.start(grid, start_arrays(), rounds, **options)


def test_no_message_is_added_and_none_gets_longer_than_by_a_number():
    sent = []
    for objectives in (losses(), [Logistic(f.features, f.labels) for f in losses()]):
        for objective in objectives[: len(sent) * 4]:
            objective.class_names = None
        grid = Counted(app_of(objectives), 4)
        start(averaging(fraction_evaluate=0.0), grid, 3)
        sent.append(grid.sent)
    named, plain = sent
    assert [kind for kind, _ in named] == [kind for kind, _ in plain] == ["train"] * 12
    grown = [len(one) - len(other) for (_, one), (_, other) in zip(named, plain, strict=True)]
    assert min(grown) > 0
    assert max(grown) < 40


def test_names_are_asked_of_those_that_differ_alone():
    grid = Counted(app_of(losses(lambda table: table[REVERSED], number=6)), 6)
    with pytest.raises(ConfigurationError, match="another order"):
        start(averaging(fraction_evaluate=0.0), grid, 3)
    # The site, and one of the others.
    assert [kind for kind, _ in grid.sent].count("query.names") == 2
    assert not any(b"egfr" in content for kind, content in grid.sent if kind == "train")


def test_a_site_that_comes_late_is_compared_when_it_first_answers():
    asked = []

    def choose(server_round, nodes):
        asked.append(server_round)
        return [node for node in nodes if node.partition_id != 2 or server_round > 2]

    strategy = averaging(participation=Participation(choose_nodes=choose))
    with pytest.raises(ConfigurationError, match=r"partition 2\) has its columns in another order"):
        run(strategy, losses(lambda table: table[REVERSED]), 5)
    assert asked == [1, 2, 3]
    # The model of the rounds before is there.
    assert len(run_of(strategy).result.train_metrics_clientapp) == 2


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


def test_a_foreign_strategy_gets_no_digest():
    grid = Counted(app_of(losses()), 4)
    with flower.identity(grid.run_id), flower.quiet(50):
        FedAvg(fraction_train=0.0, min_train_nodes=0).start(grid, start_arrays(), 1)
    assert [kind for kind, _ in grid.sent] == ["evaluate"] * 4
    assert not any(SCHEMA.encode() in content for _, content in grid.sent)


def test_a_site_of_a_sampled_round_is_compared_before_its_answer_counts():
    """Whichever sites a round asks: the model is that of the rounds without it."""
    strategy = averaging(fraction_train=0.5, fraction_evaluate=0.0)
    with pytest.raises(ConfigurationError, match=r"partition 2\) has its columns in another order"):
        run(strategy, losses(lambda table: table[REVERSED], number=4), 20)
    done = run_of(strategy).result
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


def test_units_leave_once_and_not_where_they_may_not():
    def grades(objectives, strategy=None, **options):
        grid = Counted(app_of(objectives, **options), len(objectives))
        start(strategy or averaging(fraction_evaluate=0.0), grid, 3)
        return [UNITS.encode() in content for kind, content in grid.sent if kind == "train"]

    plain = losses(lambda table: table.assign(crp=1000.0 * table["crp"]), number=4)
    with pytest.warns(UserWarning, match="at partition 2"):
        assert grades(plain) == 4 * [True] + 8 * [False]
    sparse = [Logistic(scipy.sparse.csr_array(f.features), f.labels) for f in plain]
    assert not any(grades(sparse))
    private = FedDualAvg(
        weighting="uniform",
        normalize_local_work=False,
        fraction_evaluate=0.0,
        work=Steps(1),
        privacy=GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3, noise_seed=0),
    )
    assert not any(grades(plain, private))


@pytest.mark.parametrize("said", [[], [5], [10**9] * 6, [0.5] * 6, ["x"], None])
def test_nonsense_about_units_is_not_compared(said):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 2 and said is not None:
            reply.content["metrics"].pop(UNITS, None)
            if said and not isinstance(said[0], str):
                reply.content["metrics"][UNITS] = said
        return reply

    strategy = averaging()
    objectives = losses(lambda table: table.assign(crp=1000.0 * table["crp"]))
    assert bool(told_of_units(strategy, objectives, mods=[mod])) == (said is None)
    assert not run_of(strategy).left_out
    assert UNITS not in run_of(strategy).result.train_metrics_clientapp[1]


@together("factor", [4.7, 5.0, 5.5, 6.0, 1e-9, 1e300])
def test_grades_tell_factors_above_5_and_no_smaller_ones(factor):
    here = np.random.default_rng(0).uniform(0.1, 10.0, 50)
    units = Units(50)
    units.add({"a": grades_of(here)})
    units.add({"b": grades_of(factor * here), "c": grades_of(np.zeros(50)) or [0] * 50})
    assert units.differing().size == (50 if factor > 5.43 or factor < 0.1 else 0)


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


def lying(number, names=None):
    """Return a mod by which partition 2 claims another digest; and lists other names, if it is asked."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 2:
            if message.metadata.message_type == "train":
                reply.content["metrics"][SCHEMA] = number
            elif names is not None:
                reply.content[SCHEMA] = ConfigRecord({"columns": names, "classes": []})
        return reply

    return mod


@pytest.mark.parametrize("number", [5.0 * 2**26, -3.0, 1e300])
@pytest.mark.parametrize("names", [None, ["x\n" * 1000] * 1000])
def test_a_liar_is_left_out_by_name_and_stops_no_run(number, names):
    """It is asked for the names once, and what it says does not prove its digest."""
    asked = []

    def counted(message, context, call_next):
        asked.append(message.metadata.message_type)
        return call_next(message, context)

    strategy = averaging()
    run(strategy, losses(), 3, mods=[counted, lying(number, names)])
    rows = run_of(strategy).left_out
    assert [(row.round, row.partition_id) for row in rows] == [(1, 2), (2, 2), (3, 2)]
    for row in rows:
        assert re.search(r"partition 2\) has other .* than .*partition 0\), and .*2\) has not said which", row.reason)
        assert len(row.reason) < 500
    assert asked.count("query.names") == 2  # the liar, and one of the others
    alone = averaging(
        participation=Participation(choose_nodes=lambda _, nodes: [n for n in nodes if n.partition_id != 2])
    )
    run(alone, losses(), 3)
    np.testing.assert_array_equal(run_of(strategy).state.dual, run_of(alone).state.dual)


def test_who_was_wrong_once_counts_again_with_the_right_digest():
    strategy = averaging()

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if message.metadata.group_id == "1" and context.node_config["partition-id"] == 2:
            reply.content["metrics"][SCHEMA] = 7.0
        return reply

    run(strategy, losses(), 3, mods=[mod])
    assert [row.round for row in run_of(strategy).left_out] == [1]


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


def test_a_liar_who_is_the_first_site_is_still_the_one_that_is_named():
    schemas = Schemas()
    number = schema_number(("a", "b"), None)
    with pytest.raises(ConfigurationError, match=r"node 2 \(partition 0\) has other columns than node 3 .* 1 more"):
        schemas.compare(None, {Node(2, 0): number + 2.0**26, Node(3, 1): number, Node(4, 2): number})


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


def test_the_names_of_an_objective_are_read_once(monkeypatch):
    """Of 100,000 columns the names took longer than a step, in each round again."""
    read = []
    names = training.names_of_objective
    monkeypatch.setattr(training, "names_of_objective", lambda own: read.append(own) or names(own))
    objectives = clients()
    run(FedDualAvg(regularizer=L1(0.1), client_lr=0.01, work=Steps(1)), objectives, 3)
    assert read == objectives
