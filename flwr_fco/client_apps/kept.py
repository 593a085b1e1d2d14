"""A process's cache of objectives: the most recently used ones."""

from __future__ import annotations

from collections import OrderedDict

from flwr_fco.objectives.base import Objective

#: App, role, run, partition.
Key = tuple[str, str, int, int]


class KeptObjectives:
    """Objectives by key; the least recently used is evicted first.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> kept = KeptObjectives()
    >>> for partition in range(3):
    ...     kept.keep(("app", "train", 1, partition), LeastSquares(np.ones((10, 2)), np.ones(10)), limit=2)
    >>> [kept.find(("app", "train", 1, partition)) is not None for partition in range(3)]
    [False, True, True]
    """

    def __init__(self) -> None:
        self._all: OrderedDict[Key, Objective] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of objectives."""
        return len(self._all)

    def find(self, key: Key) -> Objective | None:
        """Return the objective for a key, or None."""
        if key in self._all:
            self._all.move_to_end(key)
        return self._all.get(key)

    def keep(self, key: Key, objective: Objective, limit: int | None) -> None:
        """Store an objective and evict others until there are at most `limit`; None for no limit."""
        self._all[key] = objective
        while limit is not None and len(self._all) > limit:
            self._all.popitem(last=False)

    def forget(self, run_id: int) -> None:
        """Drop the objectives of a run."""
        for key in [key for key in self._all if key[2] == run_id]:
            del self._all[key]
