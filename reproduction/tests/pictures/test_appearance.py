from itertools import combinations

from reproduction.pictures.appearance import APPEARANCES, appearance, appearances, variant
from reproduction.problems.baselines import BASELINES
from reproduction.runs.methods import STRATEGIES


def brightness(color):
    """Relative luminance of WCAG 2."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_no_two_methods_look_alike():
    for one, other in combinations(APPEARANCES, 2):
        assert APPEARANCES[one] != APPEARANCES[other], (one, other)


def test_every_method_has_a_look_that_is_dark_enough_for_a_line_on_white():
    for name in (*STRATEGIES, *BASELINES, "MyOwn"):
        contrast = 1.05 / (brightness(appearance(name).color) + 0.05)
        assert contrast > 2.0, (name, contrast)


def test_the_look_of_a_method_of_ones_own_is_not_that_of_another():
    assert appearance("MyOwn") not in APPEARANCES.values()


def test_curves_of_one_method_differ_in_marker_and_shade_alone():
    looks = [variant("FedDualAvg", number) for number in range(4)]
    assert len({look.color for look in looks[:3]}) == 3
    assert len({look.marker for look in looks}) == 4
    assert {look.line for look in looks} == {"solid"}


def test_no_two_curves_of_a_figure_share_a_colour():
    methods = ["DFedDA", "DFedMid", "DFedDAGT", "DReFedDAGT", "MultistepReFedDAGT", "FastFedDA", "CFedDA", "MCFedDA"]
    methods += ["DualFL", "APDAInexact", "FiveGCS", "FedMid", "FedMid", "FedMid"]
    looks = appearances({f"{method} {number}": method for number, method in enumerate(methods)})
    assert len({look.color for look in looks.values()}) == len(methods)
