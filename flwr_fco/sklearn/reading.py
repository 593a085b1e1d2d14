"""The rows of clients: tables, groups, weights and folds, checked and aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import Names, is_missing, names_of
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.design import is_sparse, refuse_text


class Parts(NamedTuple):
    """Each client's features, targets and weights of rows, whether these were given, rows of one X, and its name."""

    features: list[Any]
    y: list[NDArray[Any]]
    weights: list[Vector]
    weighted: bool
    rows: list[NDArray[np.int64]] | None
    sites: list[str]

    @property
    def rows_of_clients(self) -> tuple[list[Any], list[NDArray[Any]], list[Any]]:
        """The arguments of each client's loss, whose weights are None if none were given."""
        return self.features, self.y, list(self.weights) if self.weighted else [None] * len(self.y)


def aligned_frames(X: Any, y: Any, sample_weight: Any) -> list[Any]:
    """Return the clients' features, with columns in the first frame's order; nothing is pooled.

    Raises
    ------
    ConfigurationError
        If the parts do not fit together.
    """
    beside = {"y": y} if sample_weight is None else {"y": y, "sample_weight": sample_weight}
    for name, parts in beside.items():
        if not isinstance(parts, list | tuple) or len(parts) != len(X):
            raise ConfigurationError(
                f"X has {len(X)} parts, {name} is {type(parts).__name__} of {0 if parts is None else len(parts)}; "
                "expected a list of as many parts"
            )
    aligned: list[Any] = list(X)
    first = columns_in(X[0])
    for number, features in enumerate(X):
        width, expected, names = np.shape(features)[-1], np.shape(X[0])[-1], columns_in(features)
        if width != expected:
            raise ConfigurationError(
                f"part {number} has {width} columns in X and part 0 has {expected}; expected the same features of "
                "every client"
            )
        numbered = [list(getattr(part, "columns", [])) for part in (X[0], features)]
        if not names and not first and all(numbered) and numbered[0] != numbered[1]:
            raise ConfigurationError(
                f"part {number} and part 0 have other columns, and their names are no texts, by which they could be "
                "ordered; expected the same columns in the same order"
            )
        if names != first:
            if sorted(names) != sorted(first) or len(set(names)) < len(names):
                raise ConfigurationError(
                    f"part {number} has the columns {names or 'of an array'}, part 0 has {first or 'those of an array'}"
                    "; expected the same names, in any order"
                )
            aligned[number] = features[first]
        for name, parts in beside.items():
            if features.shape[0] != len(parts[number]):
                raise ConfigurationError(
                    f"part {number} has {features.shape[0]} rows in X and {len(parts[number])} in {name}; expected as "
                    "many"
                )
        if not features.shape[0]:
            raise ConfigurationError(f"part {number} has no rows; leave it out")
        if isinstance(np.asarray(y[number]).flat[0], str) != isinstance(np.asarray(y[0]).flat[0], str):
            raise ConfigurationError(
                f"part {number} has other labels than part 0: texts and numbers; expected one kind"
            )
    return aligned


def columns_in(features: Any) -> list[str]:
    """Return the names of a frame's columns; an empty list for an array or if a name is not a string."""
    names = list(getattr(features, "columns", []))
    return names if all(isinstance(name, str) for name in names) else []


def are_parts(X: Any) -> bool:
    """Whether `X` is a list of tables, each a client's."""
    return isinstance(X, list | tuple) and bool(X) and np.ndim(X[0]) == 2


def is_grid(X: Any) -> bool:
    """Whether `X` is a grid that connects sites, not rows."""
    return hasattr(X, "send_and_receive")


def read_site(data: Any, order: Sequence[str] | None) -> tuple[Any, Any, Names]:
    """Return a site's features, of an array or of a frame, the targets as they are, and the names of the columns.

    A frame's columns are those of `order`, if it is given.
    """
    features, targets = data
    names = names_of(getattr(features, "columns", None))
    if order is not None and names is not None:
        lacks = [name for name in order if name not in names]
        if lacks:
            raise ConfigurationError(
                f"this site's rows lack the columns {lacks[:5]} of features=; give them, or leave them out everywhere"
            )
        features, names = features[list(order)], tuple(order)
    elif order is not None and np.shape(features)[-1] != len(order):
        raise ConfigurationError(
            f"this site's rows have {np.shape(features)[-1]} columns without names, and features= has {len(order)}"
        )
    refuse_text(features, "X")
    return features if is_sparse(features) else np.asarray(features, dtype=np.float64), targets, names


def refuse_two_codings(labels: Mapping[str, NDArray[Any]]) -> None:
    """Refuse clients of which some code two classes as 0 and 1, and others as -1 and 1.

    Raises
    ------
    ConfigurationError
        If there would be a third class that no client has beside the other two.
    """
    held = {site: set(own.tolist()) for site, own in labels.items()}
    if set[Any]().union(*held.values()) == {-1, 0, 1} and not any({-1, 0} <= own for own in held.values()):
        first, second = (next(site for site, own in held.items() if label in own) for label in (0, -1))
        raise ConfigurationError(
            f"{first} has labels 0, {second} has labels -1, and none has both: these are two codings of two classes. "
            "Code them in the same way at every client; three classes need names, such as 'low'"
        )


def owners_of(groups: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the clients that `groups` names, and which of them has each row."""
    given = column_or_1d(groups)
    missing = [row for row, name in enumerate(given.tolist()) if is_missing(name)]
    if missing:
        raise ConfigurationError(
            f"groups[{missing[0]}] is missing (NaN or None), as {len(missing)} of {len(given)} entries are; expected "
            "the client of each row: leave such rows out, or give them a group"
        )
    return np.unique(given, return_inverse=True)


def fold_of_rows(splits: Any, rows: list[NDArray[np.int64]] | None) -> NDArray[np.int64]:
    """Return the fold of each row of one X, of scikit-learn's pairs of training and test rows."""
    if rows is None:
        raise ConfigurationError(
            "cv is a list of splits, whose numbers are rows of one X; with clients' parts, or over a grid, give a "
            "number of folds"
        )
    tests = [np.asarray(test, dtype=np.int64) for _, test in splits]
    tested = np.concatenate(tests)
    fold = np.full(1 + max(int(own.max()) for own in (*rows, tested)), -1, dtype=np.int64)
    for number, test in enumerate(tests):
        fold[test] = number
    if np.unique(tested).size != tested.size or (fold[np.concatenate(rows)] < 0).any():
        raise ConfigurationError(
            "cv is a list of splits whose test rows overlap or leave rows out; expected a partition"
        )
    return fold


def row_weights(weights: Any, features: Any) -> Vector:
    """Return the weights of rows; 1 by default."""
    if weights is None:
        return np.ones(features.shape[0])
    checked = column_or_1d(check_array(weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight"))
    check_consistent_length(features, checked)
    return np.asarray(checked)
