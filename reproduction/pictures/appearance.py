"""Appearance of methods: one colour and one line style for each, the same in all figures of the package."""

from __future__ import annotations

import colorsys
import zlib
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Appearance(NamedTuple):
    """How the curve of a method is drawn.

    Parameters
    ----------
    color : str
        As ``#rrggbb``.
    line : str
        One of matplotlib's names of line styles.
    marker : str, default ""
        One of matplotlib's markers; none for the first curve of a method in a figure.
    """

    color: str
    line: str
    marker: str = ""


#: Colours that people with the common kinds of colour blindness can tell apart (Okabe and Ito), without their yellow,
#: which is too pale for a line on white.
_BLUE, _RED, _GREEN, _PINK = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
_ORANGE, _SKY, _VIOLET, _BROWN, _GREY, _BLACK = "#e69f00", "#56b4e9", "#6a3d9a", "#8c510a", "#7f7f7f", "#222222"
_COLORS = (_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _VIOLET, _BROWN, _GREY, _BLACK)
_LINES = ("solid", "dashed", "dashdot", "dotted")

#: A colour is a family, a line style a member of it, in the order of the styles: solid as the papers recommend it, then
#: its variants (the server alone applies psi; on a graph; restricted) and relatives.
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    _BLUE: ("FedDualAvg", "FedDualAvgOSP", "FedDA", "DFedDA"),
    _RED: ("FedMid", "FedMidOSP", "FedMiP", "DFedMid"),
    _GREEN: ("FedDAGT", "DFedDAGT", "FedDyn", "FedPD"),
    _PINK: ("ReFedDAGT", "DReFedDAGT", "MultistepReFedDAGT", "FedDR"),
    _GREY: ("FedAvgSubgradient", "FedAvgS", "LocalSGD", "FedSAM"),
    _ORANGE: ("FastFedDA", "CFedDA", "MCFedDA", "FedProx"),
    _SKY: ("FeDualEx", "ExtraStepLocalSGD", "", "FedCM"),
    _VIOLET: ("Scaffold", "ScaffoldS", "Scaffnew", "DScaffold"),
    _BROWN: ("DualFL", "APDAInexact", "FiveGCS"),
    _BLACK: ("DistributedPGDA", "centralized", "bound", "local"),
}
#: Appearances by the name of a strategy or baseline.
APPEARANCES: Mapping[str, Appearance] = MappingProxyType(
    {
        name: Appearance(color, line)
        for color, names in _FAMILIES.items()
        for name, line in zip(names, _LINES, strict=False)
        if name
    }
)

#: Markers of the second, third, ... curve of a method in one figure.
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")


def appearance(method: str) -> Appearance:
    """Return how the curve of a method looks.

    Parameters
    ----------
    method : str
        A name in :data:`APPEARANCES`; any other name (your own strategy) always gets the same one of the combinations
        that the table does not use.

    Returns
    -------
    Appearance

    Examples
    --------
    >>> appearance("FedDualAvg")
    Appearance(color='#0072b2', line='solid', marker='')
    >>> appearance("MyOwn") == appearance("MyOwn")
    True
    """
    if method in APPEARANCES:
        return APPEARANCES[method]
    taken = set(APPEARANCES.values())
    left = [own for line in _LINES for color in _COLORS if (own := Appearance(color, line)) not in taken]
    return left[zlib.crc32(method.encode()) % len(left)]


def variant(method: str, number: int) -> Appearance:
    """Return how the n-th curve of a method in one figure looks: its colour, paler, with a marker.

    Parameters
    ----------
    method : str
    number : int
        0: the same as :func:`appearance`.

    Returns
    -------
    Appearance

    Examples
    --------
    >>> variant("FedDualAvg", 1).line, variant("FedDualAvg", 1).marker
    ('solid', 'o')
    """
    own = appearance(method)
    if number == 0:
        return own
    # Paler for odd numbers, darker for even ones: neighbours in a legend differ most.
    color = own.color
    for _ in range((number + 1) // 2):
        color = _shade(color, lighter=number % 2 == 1)
    return Appearance(color, own.line, MARKERS[1 + (number - 1) % (len(MARKERS) - 1)])


def _shade(color: str, lighter: bool) -> str:
    """Return a paler or a darker shade of a colour."""
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    light = light + (0.78 - light) * 0.55 if lighter else light * 0.55
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, saturation))


def appearances(methods: Mapping[str, str]) -> dict[str, Appearance]:
    """Return how the curves of one figure look: like their methods, and no two in one colour.

    Further curves of a method have a shade of its colour and a marker. A method whose colour another one has already
    takes the first colour that is left, with its own line style. If all curves are of one method, up to ten of them
    have their own colours.

    Parameters
    ----------
    methods : mapping of str to str
        Name of the method by label of the curve; ``"bound"`` stands for a theorem's bound.

    Examples
    --------
    >>> [look.marker for look in appearances({"a": "FedMid", "b": "FedDA", "c": "FedMid"}).values()]
    ['', '', 'o']
    >>> len({look.color for look in appearances({"a": "FastFedDA", "b": "CFedDA", "c": "MCFedDA"}).values()})
    3
    """
    own = [label for label, method in methods.items() if method != "bound"]
    seen: Counter[str] = Counter()
    found = {}
    for label, method in methods.items():
        found[label] = variant(method, seen[method])
        seen[method] += 1
    if 2 < len(own) <= len(_COLORS) and len({methods[label] for label in own}) == 1:
        for number, (label, color) in enumerate(zip(own, _COLORS, strict=False)):
            found[label] = Appearance(color, _LINES[number % len(_LINES)])
    return _apart(found)


def _apart(looks: Mapping[str, Appearance]) -> dict[str, Appearance]:
    """Return looks without a colour that comes twice."""
    shades = [_shade(color, lighter) for lighter in (True, False) for color in _COLORS]
    left = [color for color in (*_COLORS, *shades) if color not in {look.color for look in looks.values()}]
    taken: set[str] = set()
    found = {}
    for label, look in looks.items():
        color = left.pop(0) if look.color in taken and left else look.color
        taken.add(color)
        found[label] = look._replace(color=color)
    return found
