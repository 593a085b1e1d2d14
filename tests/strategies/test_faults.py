"""One reply is worth one reply: every strategy under faults, beside a run in which the same replies are missing."""

from itertools import cycle

import pytest
from fault_bars import KINDS, ROUNDS, SOAK, hold_the_bar
from problems import REPRESENTATIVES, by_class

from flwr_fco.strategies import STRATEGIES

#: Each representative with one kind of what is wrong. Where everybody must answer, a round with a bad reply is skipped.
SAMPLE = list(zip(REPRESENTATIVES, cycle(["absurd numbers", "bytes", "malformed"]), strict=False))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_wrong_counts_as_if_it_were_missing(name, kind):
    hold_the_bar(name, kind, ROUNDS)


@pytest.mark.parametrize(("name", "kind"), SAMPLE)
def test_what_is_wrong_counts_as_if_it_were_missing_in_short(name, kind):
    hold_the_bar(name, kind, 24)


@pytest.mark.nightly
@pytest.mark.parametrize("number", [6, 12])
@pytest.mark.parametrize("kind", SOAK)
@pytest.mark.parametrize("name", STRATEGIES)
def test_nothing_ends_and_errors_are_those_without_the_bad_replies(name, kind, number):
    hold_the_bar(name, kind, ROUNDS, kinds=SOAK, clients=number)


@pytest.mark.parametrize("name", ["FedDualAvg", "FedDR", "DFedDAGT"])
@pytest.mark.parametrize("kind", ["absurd numbers", "no examples"])
def test_six_clients_hold_it_in_short(name, kind):
    hold_the_bar(name, kind, 25, kinds=SOAK, clients=6)


@pytest.mark.parametrize("name", by_class(["FedDAGT", "DualFL"]))
def test_a_memory_forgets_one_altered_reply(name):
    hold_the_bar(name, "one altered reply", ROUNDS // 2)
