"""Mirror maps given as text, for command lines and TOML files."""

from __future__ import annotations

import re

from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean, MirrorMap, PNorm, Product, SimplexEntropy


def named_map(text: str, dimension: int) -> MirrorMap:
    """Return the mirror map described by a string.

    Parameters
    ----------
    text : str
        ``"euclidean"``, ``"p-norm(12)"`` with any p, ``"p-norm(2 log d)"`` with the theory's p, or
        ``"simplex-entropy"`` with a simplex for each array.
    dimension : int
        d.

    Returns
    -------
    MirrorMap

    Raises
    ------
    ConfigurationError
        If the text is none of these, or p is out of range.

    Examples
    --------
    >>> named_map("p-norm(12)", 1024).p
    12.0
    >>> round(named_map("p-norm(2 log d)", 1024).p, 2)
    13.86
    """
    if text == "euclidean":
        return Euclidean()
    if text == "simplex-entropy":
        return Product({"*": SimplexEntropy()})
    found = re.fullmatch(r"p-norm\(\s*([^)]*?)\s*\)", text)
    if found is not None and found[1] == "2 log d":
        return PNorm.for_dimension(dimension)
    try:
        return PNorm(float(found[1] if found is not None else ""))
    except ValueError as error:
        # For a p out of range the map itself raises a ConfigurationError.
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(
            f"mirror-map={text!r}; expected 'euclidean', 'simplex-entropy', 'p-norm(P)' with a number, such as "
            "'p-norm(12)', or 'p-norm(2 log d)'"
        ) from None
