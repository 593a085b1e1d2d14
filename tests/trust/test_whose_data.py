"""Whose data a model is of: who is asked; a fit is of all its sites or ends in words; rows that change; who hangs."""

import re
import warnings
from importlib import import_module

import numpy as np
import pytest
from faulty import Faulty, changing, error, says, silent, start_on, strategy, with_metrics
from problems import app_of, clients, crossed, flat, foreign, optimum, paired, refused, run, start_arrays

from flwr_fco.callbacks import Checkpoint
from flwr_fco.core.computing import quiet
from flwr_fco.errors import ConfigurationError, NothingTrainedError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Bounds, FedDAGT, FedDR, FedDualAvg, FedNewton, Scaffold, Steps, Strengths
from flwr_fco.tables import FederatedLasso

SITES = clients((40, 40, 40, 40))
ODD = 2
TRAIN = {"client_lr": 0.02, "work": Steps(2, batch_size=None)}


def load(context):
    site = SITES[int(context.node_config["partition-id"])]
    return site.features, site.targets


def odd(app, fault, rounds=range(1, 999), kind="train", grid=Faulty):
    """Return a grid on which something happens to the replies of one site, of a kind, in some rounds."""
    return grid(app, len(SITES), fault, rounds, (ODD + 2,), kind)


def played(strategy, grid, rounds, **options):
    """Return the result of a run, and its warnings."""
    with grid.identity(), quiet(50), warnings.catch_warnings(record=True, action="always") as said:
        result = strategy.start(grid, start_arrays(), rounds, **options)
    return result, [f"{each.message}" for each in said]


def counts(change):
    """Return a fault: ``change(rows, round)`` is the number of rows that is reported."""

    def fault(message, reply):
        number = int(message.metadata.group_id)
        return with_metrics(lambda own: {**own, "num-examples": change(own["num-examples"], number)})(message, reply)

    return fault


def fitted(fault, since=1, options=(), **fit):
    """Fit a lasso at four sites; what happens at one of them is not said to the model."""
    model = FederatedLasso(alpha=0.05, num_clients=4, **dict(options))
    grid = odd(model.client_app(load), fault, range(since, 99))
    with grid.identity(), quiet(50):
        model.fit(grid, features=6, **fit)
    return model


CV = {"cv": Strengths(num=4, folds=3)}.items()


HAPPENS = [error(2, "RuntimeError: disk"), silent, changing("gradient", np.negative)]
FITS = {"plain": ((), {}), "cv": (CV, {}), "intervals": ((), {"intervals": True})}


@pytest.mark.parametrize(("happens", "since", "how"), paired(HAPPENS, [1, 3], FITS))
def test_a_fit_is_of_all_sites_or_names_the_one_that_it_is_without(happens, since, how):
    options, fit = FITS[how]
    try:
        model = fitted(happens, since, options=options, **fit)
    except ConfigurationError as error:
        said = r"^partition 2 gave no good reply in 3 rounds .*(disk|no reply|convex function)"
        assert re.search(said, f"{error}")  # noqa: PT017
    else:
        # Its last round was before.
        np.testing.assert_array_equal(model.coef_, fitted(says(), options=options, **fit).coef_)
        assert "160 rows, of 4 sites" in model.summary()


# --- rows that change -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda rows, n: rows + n % 2, lambda rows, n: 0 if n == 2 else rows])
@pytest.mark.parametrize("kind", [FedNewton, FedDAGT])
def test_who_changes_its_rows_is_left_out_and_the_run_goes_on(kind, change):
    """The first reply that counts may have another number too: it is that of its columns."""
    steps = {"client_lr": 0.2, "work": Steps(4, batch_size=None), "certificate_every": 60} if kind is FedDAGT else {}
    strategy = kind(regularizer=L1(0.05), fraction_evaluate=0.0, **steps)
    result, _ = played(strategy, odd(app_of(SITES), counts(change), range(60)), 60)
    assert result.train_metrics_clientapp[max(result.train_metrics_clientapp)]["duality-gap"] <= 1e-8
    said = r"reports \d+ examples, with its columns it was 4"
    assert {bool(re.search(said, row.reason)) for row in result.left_out} == {True}


def test_a_weight_of_another_name_is_the_first_replys_whatever_the_rows():
    def fault(message, reply):
        number = int(message.metadata.group_id)
        mine = message.metadata.dst_node_id == ODD + 2
        return says(num_examples=40 + mine * number, weight=2.0 if mine and number == 3 else 1.0)(message, reply)

    strategy = FedDAGT(weighted_by_key="weight", fraction_evaluate=0.0, **TRAIN)
    result, _ = played(strategy, Faulty(app_of(SITES), len(SITES), fault, range(9), range(2, 6)), 5)
    ((number, said),) = {(row.round, row.reason.partition(";")[0]) for row in result.left_out}
    assert (number, said) == (3, "it reports 2 examples, in its first reply that counted it was 1")


@pytest.mark.parametrize("change", [lambda rows, _: rows + 1, lambda rows, _: 0, lambda rows, _: rows * 800])
def test_a_fit_is_of_the_rows_that_were_reported_first(change):
    said = r"partition 2 gave no good reply .* reports \d+ examples; expected 40, of Bounds\(rows"
    refused(said, fitted, counts(change))
    # Rows that come and go cost rounds.
    model = fitted(counts(lambda rows, number: rows + number % 2))
    np.testing.assert_allclose(model.coef_, fitted(says()).coef_, atol=1e-9)


STEP = {"client_lr": 0.2, "work": Steps(1, batch_size=None), "fraction_evaluate": 0.0}
KNOWN = {m: float(own.num_examples) for m, own in enumerate(SITES)}


def test_rows_that_are_known_bound_every_weight():
    grid = odd(app_of(SITES), counts(lambda rows, number: rows * 800))
    result, _ = played(FedDualAvg(bounds=Bounds(rows=KNOWN), **STEP | {"client_lr": 0.5}), grid, 80)
    said = {(row.partition_id, row.reason) for row in result.left_out}
    assert said == {(ODD, "it reports 32000 examples; expected 40, of Bounds(rows=...)")}
    others = [own for m, own in enumerate(SITES) if m != ODD]
    np.testing.assert_allclose(flat(result.arrays), optimum(others, [1 / 3] * 3), atol=1e-3)
    for wrong in ({0: 0.0}, {0: "40"}, {"0": 40.0}, {0: 40.0, 1: np.nan}):
        refused("expected numbers > 0 by partition id", Bounds, rows=wrong)


def test_a_site_whose_rows_are_not_among_the_known_ones_is_left_out():
    result = run(FedDualAvg(bounds=Bounds(rows={0: 40.0, 1: 40.0, 3: 40.0}), **STEP), SITES, 2)
    said = {(row.partition_id, row.reason.partition("expected ")[2]) for row in result.left_out}
    assert said == {(ODD, "none: it is not in Bounds(rows=...)")}


# --- sites that hang --------------------------------------------------------------------------------------------------


class Hung(Faulty):
    """Nothing here waits: the timeouts of exchanges without some reply are added up."""

    waited = takes = 0.0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        found = super().send_and_receive(messages, timeout=timeout) if timeout >= self.takes else []
        self.waited += timeout if len(found) < len(messages) else 0.0
        return found


@pytest.mark.parametrize(
    ("cls", "kind"), crossed([FedDualAvg, FedDAGT, FedDR], ["query.question", "train", "evaluate"])
)
def test_a_site_that_hangs_costs_two_timeouts(cls, kind):
    own = cls(certificate_every=1, **({} if cls is FedDR else TRAIN))
    grid = odd(app_of(SITES), silent, range(2, 99), kind, Hung)
    result, said = played(own, grid, 12)
    part = "data: of 3 of 4 clients; without partition 2: no reply"
    expected = [f"{cls.__name__}: the model is not of all {part}"] * (kind == "train")
    assert [each for each in said if "the model is not of all" in each] == expected
    assert 2 * 3600.0 <= grid.waited < 2.15 * 3600.0
    assert kind != "train" or f"{result}".splitlines()[1] == f"  {part}"
    # It is asked in every round.
    assert (len(result.train_metrics_clientapp), len(grid.injected) >= 11) == (12, True)


@pytest.mark.parametrize(("fraction", "back", "part"), [(1.0, False, True), (1.0, True, False), (0.5, False, False)])
def test_a_site_that_disconnects_is_said_if_all_sites_are_asked(fraction, back, part, tmp_path):
    """Also after a resumption."""
    away = (3, 4) if back else range(3, 9)

    class Leaving(InProcessGrid):
        def get_node_ids(self):
            gone = own.result is not None and len(own.result.train_metrics_clientapp) in away
            return [i for i in super().get_node_ids() if not (gone and self.partition_ids[i] == ODD)]

    for rounds, path in ((5, None), (8, tmp_path / "run.npz")):
        own = FedDualAvg(fraction_train=fraction, certificate_every=8, **TRAIN)
        saves = [Checkpoint(tmp_path / "run.npz")]
        result, said = played(own, Leaving(app_of(SITES), 4), rounds, callbacks=saves, resume=path)
    text = "data: of 3 of 4 clients; without partition 2: it is not connected any more"
    assert (said[-1:] == [f"FedDualAvg: the model is not of all {text}"]) == part
    assert (f"  {text}" in f"{result}".splitlines()) == part
    assert [row.round for row in result.left_out] == ([] if fraction < 1.0 else [4, 5] if back else [4, 5, 6, 7, 8])
    found = [result.train_metrics_clientapp[8][f"certificate-{name}"] for name in ("clients", "of")]
    assert found == [4.0 - (not back), 4.0 - (fraction < 1.0)]


def test_a_site_that_comes_back_counts_again_and_is_waited_for(monkeypatch):
    """Also one that is slower than all others, which have taken no time."""
    seconds = []
    monkeypatch.setattr("flwr_fco.strategies.nodes.time.monotonic", lambda: sum(seconds))

    def slowly(message, context, call_next):
        seconds.append(40.0 * (context.node_config["partition-id"] == ODD))
        return call_next(message, context)

    grid = odd(app_of(SITES, [slowly]), silent, (4, 5, 6, 7, 9), grid=Hung)
    grid.takes = 30.0
    result, _ = played(FedDualAvg(fraction_evaluate=0.0, **TRAIN), grid, 9)
    assert [row.round for row in result.left_out] == [4, 5, 6, 7, 9]
    assert 3 * 3600.0 <= grid.waited < 3.5 * 3600.0


def test_sites_that_have_all_been_silent_have_the_whole_timeout():
    """Not a moment: nobody else waits, and in a deployment an answer takes longer."""
    grid = Hung(app_of(SITES), len(SITES), silent, (1, 2), range(2, 6))
    grid.takes = 10.0
    result, _ = played(FedDualAvg(fraction_evaluate=0.0, **TRAIN), grid, 4)
    assert [own["num-replies"] for own in result.train_metrics_clientapp.values()] == [0, 0, 4, 4]


def test_a_fit_waits_minutes_for_a_site_that_hangs():
    model = FederatedLasso(alpha=0.05, num_clients=4)
    for options, least in (({}, 600.0), ({"timeout": 30.0}, 30.0)):
        grid = odd(model.client_app(load), silent, range(2, 99), grid=Hung)
        with grid.identity(), quiet(50), pytest.raises(ConfigurationError, match=r"partition 2 .* no reply"):
            model.fit(grid, features=6, **options)
        assert 2 * least <= grid.waited < 4 * least


# --- who is asked: partition ids, samples, nodes that come and go -----------------------------------------------------


class Recording(InProcessGrid):
    """A grid that writes down whom a round asks."""

    def __init__(self, app, num_nodes):
        super().__init__(app, num_nodes)
        self.asked = []

    def uplinks(self, number, tasks):
        self.asked.append([node.partition_id for node, _ in tasks])
        return super().uplinks(number, tasks)


def test_the_handshake_makes_the_order_of_nodes_irrelevant():
    grid = foreign(app_of(clients()), 4)
    asked = start_on(grid, strategy(fraction_train=0.5), rounds=6)
    assert flat(asked.arrays).tobytes() == flat(run(strategy(fraction_train=0.5), clients(), 6).arrays).tobytes()
    start_on(grid, strategy(), rounds=1)
    assert grid.questions == 4


def test_an_app_that_cannot_be_loaded_is_not_taken_for_one_of_fedavg():
    app = app_of(clients(), [lambda *about: import_module("not_installed")])
    with pytest.raises(NothingTrainedError, match=r"in 2 rounds .* named 'not_installed'\n"):
        start_on(foreign(app, 4, raise_errors=False), strategy())


def test_of_two_nodes_with_one_partition_the_first_takes_part():
    for chosen in (strategy(), FedDAGT(fraction_evaluate=0.0), Scaffold(fraction_evaluate=0.0)):
        grid = InProcessGrid(app_of(clients()), 4)
        grid.partition_ids[5] = grid.partition_ids[4]
        result = start_on(grid, chosen, rounds=1)
        (said,) = [row[1:4] for row in result.left_out if row.round == 1]
        assert said == (5, 2, "it claims the partition id 2, which node 4 had first")
        assert result.train_metrics_clientapp[1]["num-left-out"] == 1


def test_nodes_may_come_and_go():
    class Coming(Recording):
        def get_node_ids(self):
            everybody = list(self.partition_ids)
            return [everybody[:2], everybody, everybody[1:]][len(self.asked)]

    grid = Coming(app_of(clients()), 4)
    assert start_on(grid, strategy()).train_metrics_clientapp[3]["skipped"] == 0
    assert grid.asked == [[0, 1], [0, 1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize(("fraction", "size"), [(0.29, 29), (0.001, 1)])
def test_fractions_are_not_rounded_down_by_binary_arithmetic_nor_to_0(fraction, size):
    """int(0.29 * 100) is 28."""
    grid = Recording(app_of(clients(sizes=(3,) * 100)), 100)
    start_on(grid, strategy(fraction_train=fraction, min_train_nodes=0), rounds=1)
    assert len(grid.asked[0]) == size


def test_the_sample_is_uniform():
    """Each of 10 nodes is in 3 of 10 samples, up to five standard deviations of a binomial over 600 rounds."""
    grid = Recording(app_of(clients(sizes=(3,) * 10)), 10)
    start_on(grid, strategy(fraction_train=0.3), rounds=600)
    counts = np.bincount(np.concatenate(grid.asked))
    assert np.abs(counts - 180).max() < 5 * np.sqrt(600 * 0.3 * 0.7)
