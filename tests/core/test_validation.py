"""Types of options, also those that are aliases: NumPy's NDArray is one from release 2.5 on."""

from types import GenericAlias
from typing import Any

import numpy as np
import pytest

from flwr_fco.core.validation import checked, describe
from flwr_fco.errors import ConfigurationError


class Alias:
    """What `type Vector[T] = np.ndarray[tuple[Any, ...], np.dtype[T]]` makes, which older Pythons cannot say."""

    __value__ = np.ndarray[tuple[Any, ...], np.dtype[Any]]


def test_an_alias_is_what_it_stands_for():
    kind: Any = GenericAlias(Alias(), (np.float64,))
    given = np.ones(2)
    assert checked("weights", given, kind | None) is given
    assert checked("weights", None, kind | None) is None
    assert describe(kind) == "an array"
    with pytest.raises(ConfigurationError, match="an array"):
        checked("weights", "many", kind)
