"""Sites whose columns or classes differ are refused before anything is trained on them, by name, on every way."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord
from problems import clients, run

import flwr_fco as fco
from flwr_fco.core.schema import Scales
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.records import NAMES_ONLY, TABLE

NAMES = ["age", "bmi", "crp", "dose", "egfr", "fev"]


def losses(change=lambda table: table, *, code=lambda labels: labels, site=2, number=4):
    """Logistic losses of some sites whose columns are not alike; one has other columns, or another coding."""
    found = []
    for m in range(number):
        table = pd.DataFrame(np.random.default_rng(m).standard_normal((20, len(NAMES))), columns=NAMES)
        # Two classes that follow from the columns by name, whatever their order.
        labels = (table["age"] - table["bmi"] + np.sin(np.arange(20)) > 0.0).to_numpy().astype(int)
        found.append(fco.Logistic(change(table), code(labels)) if m == site else fco.Logistic(table, labels))
    return found


def reordered(table):
    return table[NAMES[::-1]]


def other_units(table):
    return table.assign(crp=1000.0 * table["crp"])


def averaging(**options):
    return fco.FedDualAvg(regularizer=fco.L1(0.01), client_lr=0.1, work=fco.Steps(2, batch_size=5), **options)


def plain_mod(message, context, call_next):
    return call_next(message, context)


WAYS = {"in process": {}, "messages": {"mods": [plain_mod]}}


def long_names(table):
    return table.set_axis([f"{j}\n" * 1000 for j in range(6)], axis=1)


AVERAGING = {
    "order": ({"change": reordered}, r"2\) has its columns in another order than .* 2 more: .*'fev', there 'age'"),
    "no column": ({"change": lambda table: table.drop(columns="bmi")}, r"2\) lacks 'bmi', compared with .*partition 0"),
    "coding": ({"code": lambda y: 2 * y - 1}, r"2\) has the classes '-1', '1', .* 2 more '0', '1'\. Code the classes"),
    "first": ({"change": reordered, "site": 0, "number": 3}, r"0\) has its columns in another .* node 3 .* 1 more"),
    "long names": ({"change": long_names}, r"partition 2\) lacks 'age', .* \(6 in all\) and has '0"),
}
RENAMED = {"change": lambda table: table.rename(columns={"age": "alter"})}
STRATEGIES = [
    averaging,
    lambda: fco.FedNewton(regularizer=fco.L1(0.01)),
    # And here a round 0.
    lambda: fco.FedDAGT(regularizer=fco.L1(0.01), client_lr=0.1, fraction_train=0.25, tracker_start="gradient"),
    lambda: fco.DualFL(nu=0.5, smoothness=1.0),
    # Here other questions come before round 1.
    lambda: fco.FedDualAvg(regularizer=fco.L1(0.01), client_lr="auto"),
]
CASES = [(averaging, *case) for case in AVERAGING.values()]
CASES += [(kind, RENAMED, r"partition 2\) lacks 'age' and has 'alter', compared with") for kind in STRATEGIES]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("make", "sites", "reported"), CASES)
def test_a_site_with_another_table_is_named_before_anything_is_trained(make, sites, reported, way):
    strategy = make()
    with pytest.raises(ConfigurationError, match=reported) as caught:
        run(strategy, losses(**sites), 2, **WAYS[way])
    assert strategy.state is None or not strategy.state[0].any()
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def messages_of(strategy, objectives, rounds):
    """Return the messages of a run in order: kind, partition and the content of the reply."""
    sent = []

    def spy(message, context, call_next):
        reply = call_next(message, context)
        sent.append((message.metadata.message_type, context.node_config["partition-id"], reply.content))
        return reply

    run(strategy, objectives, rounds, mods=[spy], fraction_evaluate=strategy.fraction_evaluate)
    return sent


@pytest.mark.parametrize("objectives", [losses(), clients()], ids=["named", "arrays"])
def test_each_site_is_asked_once_in_a_run_and_first(objectives):
    strategy = averaging(fraction_train=0.5, fraction_evaluate=0.5, certificate_every=2)
    sent = messages_of(strategy, objectives, 6)
    assert sorted(node for kind, node, _ in sent if kind == TABLE) == [0, 1, 2, 3]
    first = {}
    for kind, node, _ in sent:
        first.setdefault(node, kind)
    assert set(first.values()) == {TABLE}


def test_a_site_that_comes_late_is_compared_before_its_first_answer():
    late = fco.Participation(choose_nodes=lambda number, nodes: nodes if number > 2 else nodes[:2] + nodes[3:])
    strategy = averaging(participation=late)
    with pytest.raises(ConfigurationError, match=r"partition 2\) has its columns in another order"):
        run(strategy, losses(reordered), 5)
    # The model of the rounds before is there.
    assert len(strategy.result.train_metrics_clientapp) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_site_that_only_evaluates_is_compared_too(way):
    for site in range(4):
        # One of them trains in the round.
        with pytest.raises(ConfigurationError, match=rf"partition {site}\).*in another order|another order.*{site}\)"):
            run(averaging(fraction_train=0.25), losses(reordered, site=site), 1, fraction_evaluate=1.0, **WAYS[way])
    # And those that are alike say nothing of it in the numbers.
    result = run(averaging(fraction_train=0.25), losses(), 2, fraction_evaluate=1.0, **WAYS[way])
    assert set(result.evaluate_metrics_clientapp[2]) == {"loss", "accuracy", "num-replies", "num-left-out"}
    assert result.evaluate_metrics_clientapp[2]["num-replies"] == 4


# --- units ------------------------------------------------------------------------------------------------------------


def reported_of_units(strategy, objectives, rounds=1, **options):
    """Return the warnings about units of a run."""
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        run(strategy, objectives, rounds, **options)
    return [text for text in (f"{warning.message}" for warning in reported) if "standard deviations differ" in text]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", [averaging, lambda: fco.FedNewton(regularizer=fco.L1(0.01), min_train_nodes=1)])
def test_units_are_compared_with_the_first_answers_of_any_strategy(way, strategy):
    (reported,) = reported_of_units(strategy(), losses(other_units), 3, **WAYS[way])
    assert re.search(r": crp \(.* at partition \d, .* at partition 2\)\. If the units", reported)
    assert not reported_of_units(strategy(), losses(), **WAYS[way])


def test_a_private_run_receives_names_only():
    """No noise is added to deviations."""

    def private():
        noise = fco.GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3, noise_seed=0)
        exact = {"weighting": "uniform", "normalize_local_work": False}
        return fco.FedDualAvg(fraction_evaluate=0.0, work=fco.Steps(1), privacy=noise, **exact)

    sent = messages_of(private(), losses(other_units), 1)
    assert [len(content["arrays"]) for kind, _, content in sent if kind == NAMES_ONLY] == [0] * 4
    assert TABLE not in [kind for kind, _, _ in sent]
    assert not reported_of_units(private(), losses(other_units))
    with pytest.raises(ConfigurationError, match="another order"):
        run(private(), losses(reordered), 1)


def altered(alter):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 2 and message.metadata.message_type == TABLE:
            alter(reply.content)
        return reply

    return mod


@pytest.mark.parametrize(
    "alter",
    [
        lambda content: content["arrays"].clear(),
        *(
            lambda content, array=array: content["arrays"].update(deviations=Array(array))
            for array in (np.array([5.0]), np.full(6, np.nan), np.full(6, -1.0))
        ),
        lambda content: content.pop("fco-names"),
        lambda content: content["fco-names"].update(columns=[0, 1]),
        lambda content: content.update({"more": ArrayRecord()}),
    ],
)
def test_nonsense_about_a_table_is_not_compared_and_ends_no_run(alter):
    strategy = averaging()
    assert not reported_of_units(strategy, losses(other_units), mods=[altered(alter)])
    assert not strategy.result.left_out
    assert strategy.state.dual.any()


@pytest.mark.parametrize("factor", [4.7, 5.0, 5.5, 6.0, 1e-9, 1e300])
def test_factors_above_5_are_reported_and_no_smaller_ones(factor):
    here = np.random.default_rng(0).uniform(0.1, 10.0, 50)
    scales = Scales(50)
    for site, own in (("a", here), ("b", factor * here), ("c", np.zeros(50)), ("d", np.ones(3))):
        scales.add(site, own)
    text = scales.differing([f"x{j}" for j in range(50)])
    assert ("and 45 more" in text) == (factor > 5.0 or factor < 0.1)
    assert not scales.differing([f"x{j}" for j in range(50)])
