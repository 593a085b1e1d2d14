"""Mappings of shell patterns: something for each named array, of the first pattern that matches its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from flwr_fco.errors import ConfigurationError

_MOST_PATTERNS = 1_000


def checked_patterns(owner: str, given: Any, what: str, fits: Any) -> dict[str, Any]:
    """Return a copy of a user's mapping.

    Parameters
    ----------
    owner : str
        Name of the class, for error messages.
    what : str
        What the patterns are mapped to.
    fits : callable
        Whether something is that.

    Raises
    ------
    ConfigurationError
        If it is no mapping of shell patterns to such things, or one of too many.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(f"{owner}({given!r}): expected a non-empty mapping of shell patterns to {what}s")
    for pattern, own in given.items():
        if not isinstance(pattern, str) or not fits(own):
            raise ConfigurationError(f"{owner}: {pattern!r}: {own!r}; expected a shell pattern and one array's {what}")
    if len(given) > _MOST_PATTERNS:
        raise ConfigurationError(
            f"{owner}: {len(given)} patterns; expected at most {_MOST_PATTERNS}: every array is compared with every "
            "pattern. Write one pattern for many arrays"
        )
    return dict(given)


def first_match(patterns: Iterable[str], name: str) -> str | None:
    """Return the first pattern that matches a name, or None.

    Examples
    --------
    >>> first_match(["b*", "*"], "bias"), first_match(["b*"], "weight")
    ('b*', None)
    """
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def require_matches(owner: str, patterns: Iterable[str], names: Iterable[str], besides: str = "") -> None:
    """Raise :class:`ConfigurationError` unless every pattern is the first match of at least one name."""
    arrays, all_patterns = list(names), list(patterns)
    used = {first_match(all_patterns, name) for name in arrays}
    if unused := [pattern for pattern in all_patterns if pattern not in used]:
        raise ConfigurationError(
            f"{owner}: the patterns {unused} match no array that is still free; the arrays are {arrays}{besides} and "
            "the first pattern that matches wins"
        )
