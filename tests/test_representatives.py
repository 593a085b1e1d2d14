"""Every strategy is of a class that a representative stands for."""

from collections import Counter

from representatives import REPRESENTATIVES, class_of

from flwr_fco.strategies import STRATEGIES


def test_each_class_has_one_representative():
    assert {class_of(cls) for cls in STRATEGIES.values()} == {class_of(STRATEGIES[name]) for name in REPRESENTATIVES}
    assert max(Counter(class_of(STRATEGIES[name]) for name in REPRESENTATIVES).values()) == 1
