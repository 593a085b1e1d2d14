"""Whose data a model is of: a fit is of all its sites or ends in words; rows that change; sites that hang."""

import re
import warnings

import numpy as np
import pytest
from faulty import Faulty, changing, error, silent, with_metrics
from problems import app_of, clients, flat, optimum, run, start_arrays

from flwr_fco.core.logs import quiet
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Bounds, FedDAGT, FedDR, FedDualAvg, FedNewton, Steps, Strengths
from flwr_fco.tables import FederatedLasso

SITES = clients((40, 40, 40, 40))
ODD = 2


def load(context):
    site = SITES[int(context.node_config["partition-id"])]
    return site.features, site.targets


def odd(app, fault, rounds=range(1, 99), kind="train", grid=Faulty):
    """Return a grid on which something happens to the replies of one site, of a kind, in some rounds."""
    return grid(app, len(SITES), fault, rounds, (ODD + 2,), kind)


def counts(change):
    def fault(message, reply):
        number = int(message.metadata.group_id)
        return with_metrics(lambda own: {**own, "num-examples": change(own["num-examples"], number)})(message, reply)

    return fault


def unchanged(message, reply):
    return [reply]


def fitted(fault, since=1, options=(), **fit):
    """Fit a lasso at four sites; what happens at one of them is not said to the model."""
    model = FederatedLasso(alpha=0.05, num_clients=4, **dict(options))
    grid = odd(model.client_app(load), fault, range(since, 99))
    with grid.identity(), quiet(50):
        model.fit(grid, features=6, **fit)
    return model


CV = {"cv": Strengths(num=4, folds=3)}.items()


@pytest.mark.parametrize("happens", [error(2, "RuntimeError: disk"), silent, changing("gradient", np.negative)])
@pytest.mark.parametrize("since", [1, 3])
@pytest.mark.parametrize(("options", "fit"), [((), {}), (CV, {}), ((), {"intervals": True})])
def test_a_fit_is_of_all_sites_or_names_the_one_that_it_is_without(happens, since, options, fit):
    expected = fitted(unchanged, options=options, **fit)
    said = ""
    try:
        model = fitted(happens, since, options=options, **fit)
    except ConfigurationError as error:
        said = f"{error}"
    if said:
        assert re.search(r"^partition 2 gave no good reply in 3 rounds .*(disk|no reply|convex function)", said)
    else:
        # Its last round was before.
        np.testing.assert_array_equal(model.coef_, expected.coef_)
        assert "160 rows, of 4 sites" in model.summary()


# --- rows that change -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [lambda rows, number: rows + number % 2, lambda rows, number: 0 if number == 2 else rows]
)
def test_newton_leaves_out_who_changes_its_rows_and_goes_on(change):
    grid = odd(app_of(SITES), counts(change))
    strategy = FedNewton(regularizer=L1(0.05), fraction_evaluate=0.0)
    with grid.identity(), quiet(50):
        result = strategy.start(grid, start_arrays(), 40)
    assert result.train_metrics_clientapp[max(result.train_metrics_clientapp)]["duality-gap"] <= 1e-8
    reasons = {row.reason for row in result.left_out}
    assert all(re.search(r"reports \d+ examples, with its columns it was 4", own) for own in reasons)
    assert reasons


@pytest.mark.parametrize(
    "change", [lambda rows, number: rows + 1, lambda rows, number: 0, lambda rows, number: rows * 800]
)
def test_a_fit_is_of_the_rows_that_were_reported_first(change):
    said = r"partition 2 gave no good reply .* reports \d+ examples; expected 40, of Bounds\(rows"
    with pytest.raises(ConfigurationError, match=said):
        fitted(counts(change))
    # Rows that come and go cost rounds.
    model = fitted(counts(lambda rows, number: rows + number % 2))
    np.testing.assert_allclose(model.coef_, fitted(unchanged).coef_, atol=1e-9)


def test_rows_that_are_known_bound_every_weight():
    known = {m: float(own.num_examples) for m, own in enumerate(SITES)}
    options = {"bounds": Bounds(rows=known), "fraction_evaluate": 0.0}
    strategy = FedDualAvg(client_lr=0.2, work=Steps(1, batch_size=None), **options)
    grid = odd(app_of(SITES), counts(lambda rows, number: rows * 800), range(1, 999))
    with grid.identity(), quiet(50):
        result = strategy.start(grid, start_arrays(), 200)
    assert {(row.partition_id, row.reason) for row in result.left_out} == {
        (ODD, "it reports 32000 examples; expected 40, of Bounds(rows=...)")
    }
    others = [own for m, own in enumerate(SITES) if m != ODD]
    np.testing.assert_allclose(flat(result.arrays), optimum(others, [1 / 3] * 3), atol=1e-3)
    for wrong in ({0: 0.0}, {0: "40"}, {"0": 40.0}, {0: 40.0, 1: np.nan}):
        with pytest.raises(ConfigurationError, match="expected numbers > 0 by partition id"):
            Bounds(rows=wrong)


def test_a_site_whose_rows_are_not_among_the_known_ones_is_left_out():
    known = {m: float(own.num_examples) for m, own in enumerate(SITES) if m != ODD}
    options = {"client_lr": 0.2, "work": Steps(1, batch_size=None), "fraction_evaluate": 0.0}
    result = run(FedDualAvg(bounds=Bounds(rows=known), **options), SITES, 2)
    said = {(row.partition_id, row.reason.partition("expected ")[2]) for row in result.left_out}
    assert said == {(ODD, "none: it is not in Bounds(rows=...)")}


# --- sites that hang --------------------------------------------------------------------------------------------------


class Hung(Faulty):
    """Nothing here waits: the timeouts of exchanges without some reply are added up."""

    waited = 0.0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        found = super().send_and_receive(messages, timeout=timeout)
        self.waited += timeout if len(found) < len(messages) else 0.0
        return found


@pytest.mark.parametrize("kind", ["train", "evaluate", "query.question"])
@pytest.mark.parametrize("strategy", [FedDualAvg, FedDAGT, FedDR])
def test_a_site_that_hangs_costs_two_timeouts(strategy, kind):
    options = {} if strategy is FedDR else {"client_lr": 0.02, "work": Steps(2, batch_size=None)}
    own = strategy(certificate_every=1, **options)
    grid = odd(app_of(SITES), silent, range(2, 99), kind, Hung)
    with grid.identity(), quiet(50), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = own.start(grid, start_arrays(), 30)
    of_a_part = [f"{each.message}" for each in said if "the model is not of all clients" in f"{each.message}"]
    part = "data: of 3 of 4 clients; without partition 2: no reply"
    expected = f"{strategy.__name__}: the model is not of all clients. {part}"
    assert of_a_part == ([expected] if kind == "train" else [])
    assert len(result.train_metrics_clientapp) == 30
    assert 2 * 3600.0 <= grid.waited < 2.5 * 3600.0
    if kind == "train":
        assert f"{result}".splitlines()[1] == f"  {part}"
    # It is asked in every round.
    assert len(grid.injected) >= 29


@pytest.mark.parametrize(("fraction", "back", "part"), [(1.0, False, True), (1.0, True, False), (0.5, False, False)])
def test_a_site_that_disconnects_is_said_if_all_sites_are_asked(fraction, back, part):
    class Leaving(InProcessGrid):
        def get_node_ids(self):
            away = own.result is not None and len(own.result.train_metrics_clientapp) in (
                (3, 4) if back else range(3, 9)
            )
            return [i for i in super().get_node_ids() if not (away and self.partition_ids[i] == 2)]

    own = FedDualAvg(client_lr=0.02, work=Steps(2, batch_size=None), fraction_train=fraction, certificate_every=8)
    grid = Leaving(app_of(SITES), 4)
    with grid.identity(), quiet(50), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = own.start(grid, start_arrays(), 8)
    text = "data: of 3 of 4 clients; without partition 2: it is not connected any more"
    assert (
        [f"{each.message}" for each in said][-1:] == [f"FedDualAvg: the model is not of all clients. {text}"]
    ) == part
    assert (f"  {text}" in f"{result}".splitlines()) == part
    assert [row.round for row in result.left_out] == ([] if fraction < 1.0 else [4, 5] if back else [4, 5, 6, 7, 8])
    last = result.train_metrics_clientapp[8]
    assert last["certificate-clients"] == 4.0 - (not back)
    assert last["certificate-of"] == 4.0 - (fraction < 1.0)


def test_a_site_that_comes_back_counts_again_and_is_waited_for():
    grid = odd(app_of(SITES), silent, (4, 5, 6, 7, 9), grid=Hung)
    own = FedDualAvg(client_lr=0.02, work=Steps(2, batch_size=None), fraction_evaluate=0.0)
    with grid.identity(), quiet(50):
        result = own.start(grid, start_arrays(), 9)
    assert [row.round for row in result.left_out] == [4, 5, 6, 7, 9]
    assert 3 * 3600.0 <= grid.waited < 3.5 * 3600.0


def test_a_fit_waits_minutes_for_a_site_that_hangs():
    model = FederatedLasso(alpha=0.05, num_clients=4)
    for options, least in (({}, 600.0), ({"timeout": 30.0}, 30.0)):
        grid = odd(model.client_app(load), silent, range(2, 99), grid=Hung)
        with grid.identity(), quiet(50), pytest.raises(ConfigurationError, match=r"partition 2 .* no reply"):
            model.fit(grid, features=6, **options)
        assert 2 * least <= grid.waited < 4 * least
