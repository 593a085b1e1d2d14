"""Options for whatever strategy comes: those that it has, with the work and the participation of its kind."""

from typing import Any


def fitting(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that a strategy has.

    Parameters
    ----------
    kind : type of CompositeStrategy
        The strategy's class.
    options : dict of str to value
        Options of any strategy. A tuple under ``work`` or ``participation`` lists objects of several kinds, of which
        the strategy gets its own.
    """
    known = kind.__dataclass_fields__
    found = {name: value for name, value in options.items() if name in known and known[name].init}
    for name in found.keys() & {"work", "participation"}:
        given = found.pop(name)
        given = given if isinstance(given, tuple) else (given,)
        mine = [value for value in given if type(value) is type(known[name].default)]
        if mine:
            found[name] = mine[0]
    return found
