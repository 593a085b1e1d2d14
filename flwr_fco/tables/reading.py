"""What users and sites give, read and checked: rows, labels, groups, weights, penalty factors and scales."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import Names, difference, is_missing, listed, names_of, plain_text, real
from flwr_fco.core.validation import of_type
from flwr_fco.errors import ConfigurationError, PublicError
from flwr_fco.objectives.design import is_sparse, refuse_text, refuse_unread
from flwr_fco.tables.codebook import Codebook


class Client(NamedTuple):
    """A client's rows, as they were given and then as they are read.

    Parameters
    ----------
    name : str
        What errors call it.
    site : Any
        Its name as it was given, or its place in the list; None of one X that is still to be dealt.
    features, y, weights : Any
        Its table, targets and weights of rows, None if none were given.
    clusters, rows : ndarray of int64, shape (n,), or None
        The cluster of each row, and its place in one X.
    values : dict of str to ndarray, or None
        The entries of all rows of that table, as a codebook reads them.
    """

    name: str
    site: Any
    features: Any
    y: Any
    weights: Any = None
    clusters: Any = None
    rows: Any = None
    values: Any = None

    def at(self, on: NDArray[np.bool_]) -> Client:
        """Return some of its rows."""
        rows = np.flatnonzero(on)
        # Brackets choose a frame's columns in pandas, by a mask in polars too.
        tables = [own if own is None or hasattr(own, "shape") else np.asarray(own) for own in self[2:-1]]
        chosen = [None if own is None else getattr(own, "iloc", own)[rows] for own in tables]
        return Client._make([*self[:2], *chosen, self.values])


def clients_of(X: Any, y: Any, sample_weight: Any, groups: Any = None) -> list[Client]:
    """Return each client's table as it was given; of one X those of `groups`, or it alone, without a site."""
    whole = Client("X", None, X, y, sample_weight)
    # A sparse matrix of keys is a dict.
    if isinstance(X, Mapping) and not is_sparse(X):
        # None is the site of one X that is still to be dealt.
        if not X or None in X:
            raise ConfigurationError("X is a dict without sites, or of one named None; expected each table by its name")
        sites = list(X)
        y, sample_weight = (own if own is None else in_order(own, sites) for own in (y, sample_weight))
        X = list(X.values())
    elif isinstance(X, list | tuple) and any(map(_is_table, X)):
        sites = list(range(len(X)))
    else:
        refuse_shuffled("X", X, {"y": y, "sample_weight": sample_weight, "groups": groups})
        if groups is None:
            return [whole]
        if isinstance(groups, str):
            raise ConfigurationError(f"groups={groups!r}; expected the site of each row, such as X[{groups!r}]")
        check_consistent_length(X, y, sample_weight, groups)
        given = column_or_1d(groups)
        if missing := [row for row, name in enumerate(given.tolist()) if is_missing(name)]:
            prefix = f"groups[{missing[0]}] is missing (NaN or None), as {len(missing)} of {len(given)} entries are"
            advice = "leave these out, or give them a group"
            raise ConfigurationError(f"{prefix}; expected the client of each row: {advice}")
        names, owner = np.unique(of_one_kind(given, "groups"), return_inverse=True)
        whole = whole._replace(features=X.tocsr() if hasattr(X, "tocsr") else X, rows=np.arange(owner.size))
        return _divided(whole, names.tolist(), owner) or [whole]
    if groups is not None:
        raise ConfigurationError("groups is for one X, y; here X is a list, whose parts are the clients already")
    beside = {"y": y, "sample_weight": sample_weight}
    for name, parts in beside.items():
        if parts is not None and (not isinstance(parts, list | tuple) or len(parts) != len(X)):
            size = f" of {len(parts)}" if hasattr(parts, "__len__") else ""
            raise ConfigurationError(f"X has {len(X)} parts, {name} is {of_type(parts)}{size}; expected a list as long")
    columns = ([None] * len(X) if own is None else own for own in beside.values())
    return [Client(f"site {own[0]}", *own) for own in zip(sites, X, *columns, strict=True)]


def dealt(whole: Client, count: int) -> list[Client]:
    """Return so many clients, to whom the rows of one X are dealt in turn."""
    rows = np.arange(np.shape(whole.features)[0]) if whole.rows is None else whole.rows
    # Rows of a cluster stay together: its errors and folds are of all of them.
    owner = (np.arange(rows.size) if whole.clusters is None else whole.clusters) % min(count, rows.size)
    return _divided(whole._replace(rows=rows), range(count), owner)


def _divided(whole: Client, sites: Iterable[Any], owner: NDArray[np.int64]) -> list[Client]:
    """Return the clients that have rows of one X."""
    return [whole.at(owner == m)._replace(name=f"site {site}", site=site) for m, site in enumerate(sites) if m in owner]


def aligned(clients: Sequence[Client]) -> list[Client]:
    """Return the clients with columns in the first one's order; nothing is pooled.

    Raises
    ------
    ConfigurationError
        If the tables do not fit together.
    """
    here = clients[0]
    first = columns_in(here.features)
    found = list[Client]()
    for own in clients:
        features = as_table(own.features, own.name)
        names = columns_in(features)
        _refuse_twice(names, own.name)
        there, each = (list(getattr(part, "columns", [])) for part in (here.features, features))
        known, texts = names_of(there), names_of(each)
        # Names that are no texts are not matched, but the same in the same order; one that is NaN is never the same.
        fits = there == each or known == texts is not None if there and each else not (names or first)
        if own is not here and not (sorted(names) == sorted(first) if names and first else fits):
            about = difference(own.name, texts, here.name, known, classes=False)
            has = f"{own.name} has the columns {listed(each) or 'of an array'}"
            other = f"{here.name} has {listed(there) or 'those of an array'}: {about}"
            advice = "in any order if they are texts: give all parts the columns that they have in common"
            raise ConfigurationError(f"{has}, {other}; expected the same names, {advice}")
        found.append(own._replace(features=features[first] if names and first and names != first else features))
    return found


def columns_in(features: Any) -> list[str]:
    """Return the names of a frame's columns; an empty list for an array or if a name is not a string."""
    names = list(getattr(features, "columns", []))
    return names if all(isinstance(name, str) for name in names) else []


def as_table(rows: Any, whose: str) -> Any:
    """Return rows of a list as an array, others as they are; refuse ragged ones, in an error without NumPy's text."""
    try:
        return rows if hasattr(rows, "shape") else np.asarray(rows)
    except (TypeError, ValueError) as error:
        raise PublicError(f"{whose} has rows of unequal length, or none; expected as many numbers in each") from error


def _refuse_twice(names: Iterable[str], whose: str) -> None:
    """Refuse several columns of one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise PublicError(f"{whose} has several columns of the name {listed(twice)}; expected one")


def taken(X: Any, name: str | None, *, needed: bool = True) -> tuple[Any, NDArray[np.int64] | None]:
    """Return features without the column of clusters, and the cluster of each row; None if sites are the clusters.

    Raises
    ------
    PublicError
        If the column is not there, and needed, or an entry of it is missing.
    """
    there = name in list(getattr(X, "columns", []))
    if name in (None, "site") or not (there or needed):
        return X, None
    if not there:
        raise PublicError(f"cluster={name!r} is no column of the rows; expected frames that have it, or 'site'")
    entries = np.asarray(X[name], dtype=object)
    if any(map(is_missing, entries.tolist())):
        raise PublicError(f"the column {name!r} of clusters has entries that are missing; leave such rows out")
    entries = of_one_kind(entries, f"{name!r}", alike=True).tolist()
    codes = {entry: code for code, entry in enumerate(dict.fromkeys(entries))}
    return X[[column for column in X.columns if column != name]], np.array([codes[entry] for entry in entries])


def _is_table(rows: Any) -> bool:
    """Whether an entry of a list is a client's table, also a list of rows."""
    if isinstance(rows, list | tuple):
        return bool(rows) and (isinstance(rows[0], list | tuple) or np.ndim(rows[0]) == 1)
    return isinstance(rows, Mapping) or hasattr(rows, "columns") or np.ndim(rows) == 2


def is_grid(X: Any) -> bool:
    """Whether `X` is a grid that connects sites, not rows."""
    return hasattr(X, "send_and_receive")


def opened(own: Client, codebook: Codebook | None, cluster: str | None, *, needed: bool) -> Client:
    """Return a client's table without its column of clusters, and with a codebook's columns and outcome.

    Parameters
    ----------
    own : Client
        As it was given; its targets are None if they are in the table.
    codebook : Codebook, optional
        What the table is; of rows that lack an entry nothing is left, if it says so.
    cluster : str, optional
        The column of clusters, or ``"site"``.
    needed : bool
        Whether this column must be there.
    """
    refuse_shuffled(own.name, own.features, {"y": own.y, "sample_weight": own.weights})
    X, clusters = taken(own.features, cluster, needed=needed)
    own = own._replace(clusters=clusters)
    if codebook is None:
        return own._replace(features=X)
    if own.y is None and not codebook.outcome:
        prefix = f"{own.name} gives no y, and the codebook has no outcome"
        raise PublicError(f"{prefix}: name its columns, Codebook(..., outcome={{'death': Column(levels=[0, 1])}})")
    book = codebook if own.y is None else replace(codebook, outcome={})
    values = book.parsed(own.features, own.name)
    kept = book.complete(values, own.name)
    for name, given in (("y", own.y), ("sample_weight", own.weights)):
        if given is not None and len(given) != kept.size:
            raise PublicError(f"{own.name} has more rows, or fewer, than {name}; expected an entry for each row")
    complete = {name: entries[kept] for name, entries in values.items()}
    read = own._replace(features=None, rows=np.arange(kept.size) if own.site is None else own.rows).at(kept)
    y = book.target(complete) if own.y is None else read.y
    return read._replace(features=type(own.features)(book.made(complete)), y=y, values=values)


def refuse_shuffled(whose: str, X: Any, beside: Mapping[str, Any]) -> None:
    """Refuse what is not read, or has X's rows in another order, by pandas' labels: rows are taken by place."""
    refuse_unread(X, whose)
    here: Any = getattr(X, "index", None)
    for name, given in beside.items():
        if given is not None:
            refuse_unread(given, f"{whose}: {name}")
        there: Any = getattr(given, "index", None)
        known = hasattr(here, "equals") and hasattr(there, "equals") and len(here) == len(there)
        # Of another dtype or time zone they are not equal to pandas.
        if known and not here.equals(there) and [*here] != [*there] and {*here} == {*there}:
            prefix = f"{whose}: {name} has the labels of X's rows in another order"
            raise PublicError(f"{prefix}; give {name}.loc[X.index], or {name}.to_numpy() if its places are right")


def read_site(
    data: Any, order: Sequence[str] | None, codebook: Codebook | None, cluster: str | None, whose: str = "this site"
) -> tuple[Client, Names]:
    """Return what a site's `load` returns, its targets as they are, and the names of its columns.

    A frame's columns are those of `order`, if it is given, or are made by a codebook.
    """
    given = tuple(data) if isinstance(data, tuple | list) else (data,)
    if not (2 if codebook is None else 1) <= len(given) <= 3:
        of = f"{type(data).__name__}{f' of {len(given)}' * isinstance(data, tuple)}"
        raise PublicError(f"load returns a {of}, or y was not given; expected a tuple (X, y) or (X, y, sample_weight)")
    own = opened(Client(whose, None, *(*given, None, None)[:3]), codebook, cluster, needed=True)
    features = as_table(own.features, whose)
    names = names_of(getattr(features, "columns", None))
    _refuse_twice(names or (), whose)
    if order is not None and names is not None:
        # The frame's own may be whole numbers or tuples.
        own_names = dict(zip(names, features.columns, strict=True))
        if lacks := [name for name in order if name not in names]:
            raise PublicError(f"the rows lack the columns {lacks[:5]} of features=; give them, or drop them everywhere")
        features = features[[own_names[name] for name in order]]
        names = tuple(order)
    elif order is not None and (count := sum(np.shape(features)[-1:])) != len(order):
        raise PublicError(f"rows have {count} columns without names, and features= has {len(order)}")
    refuse_text(features, "X")
    try:
        return own._replace(features=features if is_sparse(features) else real(features)), names
    except (TypeError, ValueError) as error:
        raise PublicError(missing_in(features, own.y, names) or "X has entries that are no real numbers") from error


def missing_in(X: Any, y: Any, names: Names = None, *, counted: bool = False) -> str:
    """Return in words which columns and targets lack entries or have infinite ones; an empty text if none does.

    It is asked after an error, as it looks at each entry.

    Parameters
    ----------
    X, y : Any
        A site's table and its targets.
    names : tuple of str, optional
        Of the table's columns, if it has none itself.
    counted : bool, default False
        Whether to say in how many rows, which is not for a server.
    """
    advice = "Leave such rows out, fill them in in the same way at every site, or give a codebook that leaves them out"
    columns = {**_columns("X", X, names), **_columns("y", y, None)}
    # What is missing may not be compared, so it comes first.
    for kind, is_one in (("missing (NaN)", is_missing), ("infinite", (-math.inf, math.inf).__contains__)):
        if lacking := {name: n for name, entries in columns.items() if (n := sum(map(is_one, entries)))}:
            found = [f"{name}{f' in {n} of {len(columns[name])} rows' * counted}" for name, n in lacking.items()]
            return f"entries are {kind}: {', '.join(found[:5])}. {advice}"
    return ""


def _columns(prefix: str, table: Any, names: Names) -> dict[str, list[Any]]:
    """Return the entries of each column by name; none of what is sparse or has no rows of equal length."""
    try:
        array: Any = np.zeros(()) if is_sparse(table) else np.asarray(table)
    except (TypeError, ValueError):
        return {}
    own = [*table.columns] if hasattr(table, "columns") else [*(array.dtype.names or ())]
    if own and array.ndim:
        return {f"{prefix}[{name!r}]": np.asarray(table[name]).tolist() for name in own}
    if array.ndim == 2:
        return {f"{prefix}[{names[j] if names else j!r}]": column.tolist() for j, column in enumerate(array.T)}
    return {prefix: array.tolist()} if array.ndim else {}


def refuse_two_codings(labels: Mapping[str, NDArray[Any]]) -> None:
    """Refuse clients that code classes in two ways: 0 and 1, and -1 and 1; texts, and numbers; or by other names.

    Raises
    ------
    ConfigurationError
        If there would be a class more because of it: of labels that no client has beside each other, and that are -1
        and 0 beside 1, or differ in case or spaces only.
    """
    held = {site: dict.fromkeys(own.tolist()) for site, own in labels.items()}
    texts = {site: any(isinstance(label, str) for label in own) for site, own in held.items()}
    here = next(iter(held))
    if odd := [site for site in held if texts[site] != texts[here]]:
        raise ConfigurationError(f"{odd[0]} has other labels than {here}: texts and numbers; expected one kind")
    signs = set[Any]().union(*held.values()) == {-1, 0, 1}
    known = dict[Any, tuple[str, Any]]()
    for second, other in ((site, label) for site, own in held.items() for label in own):
        key = plain_text(other).removesuffix(".0") if isinstance(other, str) else max(other, 0) if signs else other
        first, one = known.setdefault(key, (second, other))
        if one != other and not any({one, other} <= own.keys() for own in held.values()):
            prefix = f"{first} has labels {one!r}, {second} has labels {other!r}, and none has both"
            advice = "Write it in the same way at every client; three classes need names, such as 'low'"
            raise ConfigurationError(f"{prefix}: these are two codings of one class. {advice}")


def of_one_kind(given: NDArray[Any], name: str, *, alike: bool = False) -> NDArray[Any]:
    """Return entries as they are; raise PublicError if texts are among numbers, or if `alike` some that are the same.

    '2' beside 2 is what pandas reads of a large file whose column has a text further down.
    """
    held = given.tolist() if given.dtype == object else []
    mixed = len({isinstance(own, str) for own in held}) > 1
    if mixed and not (alike and len({str(own).removesuffix(".0") for own in held}) == len({*held})):
        prefix = f"{name} holds texts and numbers, such as '2' beside 1, which are not the same"
        raise PublicError(f"{prefix}; expected one kind: {name}.astype(str) makes all of them texts")
    return given


def in_order(given: Any, sites: Sequence[Any]) -> Any:
    """Return what a dict has for each site, in their order."""
    if not isinstance(given, Mapping) or set(given) != set(sites):
        reported = sorted(map(str, given)) if isinstance(given, Mapping) else of_type(given)
        prefix = f"X is a dict of the sites {listed(list(map(str, sites)))}, and beside it is {reported}"
        raise ConfigurationError(f"{prefix}; expected a dict of the same sites")
    return [given[site] for site in sites]


def place_of(without: Any, sites: Sequence[Any]) -> int:
    """Return the place of the site that is left out.

    Raises
    ------
    ConfigurationError
        If there is no such site, or no other one.
    """
    if without not in sites:
        raise ConfigurationError(f"without={without!r} is none of the sites: {', '.join(map(repr, sites[:20]))}")
    if len(sites) < 2:
        raise ConfigurationError(f"without={without!r}: there is no other site, so nothing is left to fit to")
    return list(sites).index(without)


def fold_of_rows(splits: Any, rows: Sequence[Any]) -> NDArray[np.int64]:
    """Return the fold of each row of one X, of scikit-learn's pairs of training and test rows."""
    if not rows or any(own is None for own in rows):
        raise ConfigurationError("cv: the numbers are rows of one X; of parts, or over a grid, give a number of folds")
    tests = [np.asarray(test, dtype=np.int64) for _, test in splits]
    tested = np.concatenate(tests)
    fold = np.full(1 + max(int(own.max()) for own in (*rows, tested)), -1, dtype=np.int64)
    fold[tested] = np.repeat(np.arange(len(tests)), [own.size for own in tests])
    if np.unique(tested).size != tested.size or (fold[np.concatenate(rows)] < 0).any():
        raise ConfigurationError("cv: the splits' test rows overlap or leave rows out; expected a partition")
    return fold


def row_weights(weights: Any, features: Any) -> Vector:
    """Return the weights of rows; 1 by default."""
    given = np.ones(np.shape(features)[0]) if weights is None else weights
    refuse_text(given, "sample_weight")
    checked = column_or_1d(check_array(given, ensure_2d=False, dtype=np.float64, input_name="sample_weight"))
    check_consistent_length(features, checked)
    return np.asarray(checked)


def factors_of(given: Any, names: Any, d: int) -> Vector | None:
    """Return each feature's factor of the penalty, shape (d,), of a mapping of names or of an array.

    Raises
    ------
    ConfigurationError
        If a name is unknown, or the factors are not d finite numbers >= 0.
    """
    if given is None:
        return None
    # A Series goes by its index, whose order may be another one than the features'.
    given = given.to_dict() if hasattr(given, "to_dict") else given
    if isinstance(given, Mapping):
        if not len(names):
            prefix = f"penalty_factor={given!r} names features, but those of X have no names; give a data frame"
            raise ConfigurationError(f"{prefix}, features=[...] with a grid, or an array of {d} factors")
        # That of the name itself, or of the first pattern that fits it.
        known = {*names}
        patterns = {key: [own for own in names if fnmatchcase(own, str(key))] for key in given if key not in known}
        if unknown := [key for key, fitting in patterns.items() if not fitting]:
            prefix = f"penalty_factor names {unknown[:5]}, which X does not have"
            raise ConfigurationError(f"{prefix}; its features are {', '.join(names[:10])}{', ...' * (len(names) > 10)}")
        found = {name: given[key] for key in reversed(patterns) for name in patterns[key]}
        given = [given.get(name, found.get(name, 1.0)) for name in names]
    factors = np.asarray(given)
    if factors.shape != (d,) or factors.dtype.kind not in "fiu":
        prefix = f"penalty_factor has shape {factors.shape} and dtype {factors.dtype}; expected a number for each of"
        raise ConfigurationError(f"{prefix} the {d} features, or a mapping of names to numbers")
    if (wrong := np.flatnonzero(~(np.isfinite(factors) & (factors >= 0.0)))).size:
        where = names[wrong[0]] if len(names) else wrong[0]
        prefix = f"penalty_factor={factors[wrong[0]]:g} of feature {where}"
        raise ConfigurationError(f"{prefix}; expected finite numbers >= 0, where 0 leaves a feature without a penalty")
    return factors.astype(np.float64)
