"""A process's cache of objectives: the most recently used ones, up to a number of bytes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from mmap import mmap
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from flwr_fco.core.layout import Layout
from flwr_fco.objectives.base import Objective

#: App, role, run, partition.
Key = tuple[str, str, int, int]
#: Maximum number of an objective's objects that are inspected, because data may be lists of millions.
_LOOKS = 1000
#: Common types that hold no arrays.
_WITHOUT = frozenset({int, float, str, bool, bytes, type(None), Layout})
#: Types that several objectives share.
_SHARED = (type, FunctionType, ModuleType)
_MAPS = (np.memmap, mmap)


def half_of_the_memory() -> int:
    """Return half of this machine's memory in bytes; one terabyte if the system does not report it.

    Examples
    --------
    >>> half_of_the_memory() > 2**20
    True
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 2**40


def bytes_held(thing: Any) -> int:
    """Return the bytes of the arrays and tensors in an object, including nested attributes.

    Memory maps do not count, because the system can reclaim their pages.

    Parameters
    ----------
    thing : object

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> bytes_held(LeastSquares(np.ones((10, 2)), np.ones(10), intercept=False)) >= 240
    True
    """
    total, left = 0, [thing]
    # Holds references, so that no new object gets the id of an inspected one.
    seen: dict[int, Any] = {}
    while left and len(seen) < _LOOKS:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        parts: Iterable[Any] = ()
        if isinstance(each, np.ndarray):
            total += 0 if _mapped(each) else each.nbytes
        elif isinstance(each, dict):
            parts = islice(each.values(), _LOOKS)
        elif isinstance(each, (list, tuple)):
            parts = each[:_LOOKS]
        elif type(each).__module__.startswith("torch") and hasattr(each, "nbytes"):
            total += int(each.nbytes)  # a tensor, a parameter
        elif not isinstance(each, _SHARED):
            parts = getattr(each, "__dict__", {}).values()
        left += [part for part in parts if type(part) not in _WITHOUT]
    return total


def _mapped(array: Any) -> bool:
    """Whether an array is a memory map, or a view of one."""
    while array is not None and not isinstance(array, _MAPS):
        array = getattr(array, "base", None)
    return array is not None


class KeptObjectives:
    """Objectives by key; the least recently used is evicted first.

    Examples
    --------
    >>> from flwr_fco.objectives import LeastSquares
    >>> kept = KeptObjectives()
    >>> objective = LeastSquares(np.ones((10, 2)), np.ones(10))
    >>> for partition in range(3):
    ...     kept.keep(("app", "train", 1, partition), objective, limit=2 * bytes_held(objective))
    >>> [kept.find(("app", "train", 1, partition)) is not None for partition in range(3)]
    [False, True, True]
    """

    def __init__(self) -> None:
        self._all: OrderedDict[Key, tuple[Objective, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Return the number of objectives."""
        return len(self._all)

    def find(self, key: Key) -> Objective | None:
        """Return the objective for a key, or None.

        Parameters
        ----------
        key : tuple
        """
        found = self._all.get(key)
        if found is None:
            return None
        self._all.move_to_end(key)
        return found[0]

    def keep(self, key: Key, objective: Objective, limit: int) -> None:
        """Store an objective and evict others until the limit holds.

        Parameters
        ----------
        key : tuple
        objective : Objective
        limit : int
            Maximum bytes of all objectives.
        """
        size = bytes_held(objective)
        self._all[key] = objective, size
        self._bytes += size
        while self._bytes > limit and len(self._all) > 1:
            _, (_, gone) = self._all.popitem(last=False)
            self._bytes -= gone

    def forget(self, run_id: int) -> None:
        """Drop the objectives of a run.

        Parameters
        ----------
        run_id : int
        """
        for key in [key for key in self._all if key[2] == run_id]:
            self._bytes -= self._all.pop(key)[1]
