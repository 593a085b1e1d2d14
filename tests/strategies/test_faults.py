"""One reply is worth one reply: every strategy under faults, beside a run in which the same replies are missing."""

import pytest
from fault_bars import KINDS, ROUNDS, hold_the_bar

from flwr_fco.strategies import STRATEGIES

SAMPLE = [("FedDualAvg", "absurd numbers"), ("FedMid", "bytes"), ("DFedDAGT", "malformed"), ("FastFedDA", "bytes")]
#: Nobody may be missing: a round with a bad reply is skipped, and an altered one is forgotten.
SAMPLE += [("DualFL", "absurd numbers"), ("Scaffnew", "bytes"), ("FedPD", "malformed"), ("FedDR", "absurd numbers")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_wrong_counts_as_if_it_were_missing(name, kind):
    hold_the_bar(name, kind, ROUNDS)


@pytest.mark.parametrize(("name", "kind"), SAMPLE)
def test_what_is_wrong_counts_as_if_it_were_missing_in_short(name, kind):
    hold_the_bar(name, kind, 40)


@pytest.mark.parametrize("name", ["FedDAGT", "DualFL", "APDAInexact"])
def test_a_memory_forgets_one_altered_reply(name):
    hold_the_bar(name, "one altered reply", ROUNDS // 2)
