"""A codebook: what each column of every site's table is, in one object or TOML file that sites and server share.

A transformation that a site learns from its own rows, such as a mean to subtract or the knots of a spline, makes
columns of one name and several meanings. Here the numbers are in the codebook: a column means the same at every site.
A formula's functions take the codebook's numbers too, and one that would learn from a site's rows is refused.
"""

from __future__ import annotations

import ast
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.computing import logger
from flwr_fco.core.files import read_text
from flwr_fco.core.layout import Vector
from flwr_fco.core.schema import is_missing, listed, plain_text, undated
from flwr_fco.core.validation import POSITIVE, Choice, of_type, printable, refusing
from flwr_fco.errors import ConfigurationError, PublicError, installed
from flwr_fco.objectives.design import refuse_unread

#: Transformations of a number, and the smallest one of which each is known.
_TRANSFORMS: dict[str, Any] = {"none": (np.asarray, -math.inf), "log": (np.log, np.finfo(np.float64).tiny)}
_TRANSFORMS |= {"log1p": (np.log1p, 0.0), "sqrt": (np.sqrt, 0.0)}
#: Rows that the log shows of each thing that is wrong, and characters of an entry.
_SHOWN, _LETTERS = 5, 40
#: Operators and functions of one number: a row's value depends on no other row.
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.UAdd, ast.USub)
_OF_ONE_ROW = ("abs", "exp", "log", "log10", "log1p", "log2", "sqrt")
#: Those that take numbers of the codebook, or its levels, and with how many arguments.
_OF_THE_CODEBOOK = {"scale": 1, "bs": 1, "poly": 2, "C": 1}


@refusing
@dataclass(frozen=True)
class Column(Choice):
    """What a column holds, and what becomes of it in a model.

    A number is transformed, `center` is subtracted, and the result divided by `spread`. With `knots` a natural cubic
    spline of it has a column for each of them but one. Each level but the reference has a column of 0 and 1; the levels
    0 and 1 have one of the column's own name.

    Parameters
    ----------
    type : {"number", "integer", "levels"}, default "number"
        What an entry is; ``"levels"`` if there are any.
    levels : sequence, default ()
        All entries that there may be at any site: texts or numbers.
    reference : Any, optional
        The level without a column; by default the first.
    unit : str, default ""
        The unit of a number, which tables and errors show.
    range : pair of float, default ()
        The smallest and the largest plausible number.
    missing : sequence, default ()
        Entries that stand for a missing one, such as -9 or "unknown", besides NaN and None.
    transform : {"none", "log", "log1p", "sqrt"}, default "none"
        What is done with a number first; it must be known in all of `range`.
    center, spread : float, default 0.0 and 1.0
        Numbers that all sites subtract and divide by, after the transformation.
    knots : sequence of float, default ()
        Of a spline, three or more, in the column's unit, rising; it is linear before the first and after the last.

    Raises
    ------
    ConfigurationError
        If these do not fit together.

    Examples
    --------
    >>> Column(levels=["I", "II", "III"], reference="II").names("stage")
    ['stage=I', 'stage=III']
    >>> Column(center=60.0, spread=10.0).columns("age", np.array([60.0, 75.0]))
    {'age': array([0. , 1.5])}
    """

    type: Literal["number", "integer", "levels"] = "number"
    levels: Sequence[Any] = ()
    reference: Any = None
    unit: str = ""
    range: Sequence[float] = ()
    missing: Sequence[Any] = ()
    transform: Literal["none", "log", "log1p", "sqrt"] = "none"
    center: float = field(default=0.0, metadata={"range": (math.isfinite, "a finite number")})
    spread: float = field(default=1.0, metadata=POSITIVE)
    knots: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("levels", "range", "missing", "knots"):
            # NumPy's numbers, of a table's column, are no words of a file; and 1.0 is 1, for the digest too.
            given = [each.item() if isinstance(each, np.generic) else each for each in getattr(self, name)]
            own = tuple(int(each) if isinstance(each, float) and each.is_integer() else each for each in given)
            if not all(isinstance(each, str | Real) and (each == each or name != "levels") for each in own):
                raise ConfigurationError(f"{name}={list(own)}; expected texts and numbers")
            object.__setattr__(self, name, own)
        if self.levels and self.type == "number":
            object.__setattr__(self, "type", "levels")
        least = _TRANSFORMS[self.transform][1]
        levels = list(self.levels)
        limits = list(self.range)
        if (self.type == "levels") != bool(levels):
            raise ConfigurationError(f"type={self.type!r} with levels={levels}; expected levels of 'levels', else none")
        if levels and not 1 < len(set(levels)) == len(levels):
            raise ConfigurationError(f"levels={levels}; expected two or more, each once")
        if self.reference is not None and self.reference not in levels:
            raise ConfigurationError(f"reference={self.reference!r}; expected one of levels={levels}")
        if limits and (len(limits) != 2 or not limits[0] < limits[1]):
            raise ConfigurationError(f"range={limits}; expected the smallest and the largest plausible number")
        if self.knots and not (len(self.knots) >= 3 and (np.diff(self.knots) > 0.0).all()):
            raise ConfigurationError(f"knots={list(self.knots)}; expected three or more, rising, or none")
        if not min([*self.knots, *(limits or [-math.inf])]) >= least:
            prefix = f"transform={self.transform!r} with range={limits}, knots={list(self.knots)}"
            raise ConfigurationError(f"{prefix}; expected a range, and knots, of numbers {'> 0' if least else '>= 0'}")

    @property
    def shown(self) -> list[Any]:
        """The levels that have a column of the model: all but the reference."""
        return [own for own in self.levels if own != (self.levels[0] if self.reference is None else self.reference)]

    def names(self, name: str) -> list[str]:
        """Return the names of the model's columns that it becomes."""
        if not self.levels:
            return [name + "'" * number for number in range(max(1, len(self.knots) - 1))]
        return [name] if set(self.levels) == {0, 1} and self.shown == [1] else [f"{name}={own}" for own in self.shown]

    def parsed(self, name: str, given: Any, whose: str = "this site") -> tuple[Vector, list[str]]:
        """Return a site's entries as numbers, of levels their places, NaN where missing; and what is wrong with them.

        That is in words without any of them; which rows these are, and what they hold, is in the site's own log.

        Parameters
        ----------
        name : str
            Of the column.
        given : array-like, shape (n,)
            The entries.
        whose : str, default "this site"
            Begins a line of the log.
        """
        # Nanoseconds would be whole numbers.
        entries = undated(given)
        if entries.dtype.kind == "f" and entries.itemsize < 8:
            # In single precision a code such as -99.9 is another number; its digits are the same.
            entries = entries.astype(str).astype(np.float64)
        if entries.dtype.kind in "fiub" and not self.levels:
            values = entries.astype(np.float64)
            values[np.isin(values, [float(own) for own in self.missing if isinstance(own, Real)])] = np.nan
            lacking = np.isnan(values)
        else:
            entries = np.asarray(entries if entries.dtype.kind in "fmM" else given, dtype=object)
            # A Decimal of a database is not equal to the same digits of a code.
            each = [float(own) if isinstance(own, Decimal) else own for own in entries.tolist()]
            each = [None if is_missing(own) or own in self.missing else own for own in each]
            lacking = np.array([own is None for own in each], dtype=bool)
            # 1, 1.0 and True are one level.
            known = self.levels.__contains__ if self.levels else lambda entry: isinstance(entry, Real)
            number = self.levels.index if self.levels else float
            values = np.array([float(number(own)) if known(own) else math.nan for own in each])
        # Under a mask NumPy would take the numbers that it hides.
        lacking |= np.ma.getmask(given)
        values[lacking] = np.nan
        unknown = np.isnan(values) & ~lacking
        # The places of levels have no range.
        low, high = (not self.levels and self.range) or (-math.inf, math.inf)
        checks = {
            f"none of the levels {listed(self.levels)}" if self.levels else "no number": unknown,
            "infinite": np.isinf(values),
            f"outside {low:g} to {high:g}{' ' * bool(self.unit)}{self.unit}": (values < low) | (values > high),
            "no whole number": np.isfinite(values) & (self.type == "integer") & (values != np.round(values)),
        }
        wrong = {prefix: np.flatnonzero(rows) for prefix, rows in checks.items() if rows.any()}
        for prefix, rows in wrong.items():
            first = zip(rows[:_SHOWN].tolist(), entries[rows[:_SHOWN]].tolist(), strict=True)
            about = ", ".join(f"row {row} ({printable(repr(entry))[:_LETTERS]})" for row, entry in first)
            text = f"{name}: {len(rows)} rows are {prefix}: {about}{', ...' * (len(rows) > _SHOWN)}"
            logger.error("%s does not fit the codebook: %s", whose, text)
        return values, [f"{printable(name)} has rows that are {prefix}" for prefix in wrong]

    def columns(self, name: str, values: Vector) -> dict[str, Vector]:
        """Return the model's columns by name, of entries as :meth:`parsed` returns them."""
        if self.levels:
            made = [np.where(np.isnan(values), np.nan, values == self.levels.index(level)) for level in self.shown]
        else:
            made = list(self.spline(values)) if self.knots else [self.scaled(values)]
        return dict(zip(self.names(name), made, strict=True))

    def scaled(self, values: Vector) -> Vector:
        """Return numbers transformed, less the centre, divided by the spread."""
        return np.asarray((_TRANSFORMS[self.transform][0](values) - self.center) / self.spread)

    def spline(self, values: Vector) -> NDArray[np.float64]:
        """Return the columns of a natural cubic spline, shape (k - 1, n): the number itself and k - 2 cubic ones.

        References
        ----------
        Harrell: Regression modeling strategies (2001), 2.4.5: truncated cubes, over the square of the knots' span.
        """
        x = self.scaled(values)
        knots = self.scaled(np.asarray(self.knots, dtype=np.float64))
        # Of NaN the larger of both is NaN.
        cubes = np.maximum(x - knots[:, None], 0.0) ** 3
        inner, gap = knots[:-2, None], knots[-1] - knots[-2]
        curved = cubes[:-2] - cubes[-2] * (knots[-1] - inner) / gap + cubes[-1] * (knots[-2] - inner) / gap
        return np.vstack([x, curved / (knots[-1] - knots[0]) ** 2])


@refusing
@dataclass(frozen=True)
class Codebook(Choice):
    """What the columns of every site's table are: the same object at all sites and at the server.

    ``FederatedLogisticRegression(codebook=codebook)`` reads each site's raw table by it. A row that does not fit is an
    error that names the column, and the site's own log says which rows and what they hold.

    Parameters
    ----------
    columns : mapping of str to Column
        By name, in the order of the model's columns. A table may have more, in any order.
    outcome : mapping of str to Column, default {}
        What is explained, if it is in the same table: one column; of survival times the time, the event, and where
        there are any ``"entry"`` and ``"strata"``.
    incomplete : {"refuse", "leave out"}, default "refuse"
        What is done with rows that lack an entry.
    sites : sequence of str, default ()
        The sites' names, by partition id.
    formula : str, default ""
        The model's columns as a formula such as ``"scale(age) * stage + bs(bmi)"`` (``pip install formulaic``); by
        default each column by itself (docs/how-to/codebook.md).

    Raises
    ------
    ConfigurationError
        If a column or a site is named twice, or the formula learns something from a site's rows.

    Examples
    --------
    >>> book = Codebook({"age": Column(range=(18, 110), center=60, spread=10), "stage": Column(levels=["I", "II"])})
    >>> book.features
    ('age', 'stage=II')
    >>> read = book.read({"stage": ["I", "II"], "age": [70, 50]})
    >>> read["age"].tolist(), read["stage=II"].tolist()
    ([1.0, -1.0], [0.0, 1.0])
    """

    columns: Mapping[str, Column]
    outcome: Mapping[str, Column] = field(default_factory=dict)
    incomplete: Literal["refuse", "leave out"] = "refuse"
    sites: Sequence[str] = ()
    formula: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, column in (*self.columns.items(), *self.outcome.items()):
            if not (isinstance(name, str) and isinstance(column, Column)):
                raise ConfigurationError(f"{name!r} is {column!r:.200}; expected a text, and a Column that it names")
        for name, column in self.outcome.items():
            if column != replace(column, transform="none", center=0.0, spread=1.0, knots=()):
                raise ConfigurationError(f"outcome {name!r} has a transform, center, spread or knots; expected none")
        each = [*self.columns, *self.outcome], self.features if self.columns else (), self.sites or [""]
        if any(len({*names}) < max(len(names), 1) for names in each):
            prefix = f"columns={list(self.columns)}, outcome={list(self.outcome)}, sites={list(self.sites)}"
            raise ConfigurationError(f"{prefix}; expected a column or more, each name once, and none as an outcome")

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the model's columns."""
        if self.formula:
            # A possible row, as no site's rows change which columns there are; of levels the first, whose place is 0.
            rows = {name: np.array([np.mean(own.range or float(not own.levels))]) for name, own in self.columns.items()}
            return tuple(_columns_of(self.formula, self.columns, rows))
        return tuple(own for name, column in self.columns.items() for own in column.names(name))

    @cached_property
    def digest(self) -> float:
        """A number by which sites compare their codebooks."""
        return float(int.from_bytes(blake2b(self.to_toml().encode(), digest_size=6).digest(), "big"))

    def by_feature(self, given: Any) -> Any:
        """Return a mapping of names, or a Series, with those of the model's columns instead of a column's own."""
        if self.formula or not hasattr(given, "items"):
            return given
        own = {name: given[key] for key in self.columns if key in given for name in self.columns[key].names(key)}
        # A name of its own goes before that of all its levels.
        return own | {key: each for key, each in given.items() if key not in self.columns}

    # --- at a site ------------------------------------------------------------------------------------------------

    def parsed(self, frame: Any, whose: str = "this site") -> dict[str, Vector]:
        """Return the entries of a table as numbers, of levels their places, NaN where missing, once all are checked.

        Parameters
        ----------
        frame : data frame, or mapping of str to array-like
            The table.
        whose : str, default "this site"
            Begins an error.

        Raises
        ------
        PublicError
            If a column is not there, or a row does not fit. The rows are in the log, at the site.
        """
        expected = {**self.columns, **self.outcome}
        if not isinstance(frame, Mapping):
            refuse_unread(frame, whose)
        has = list(getattr(frame, "columns", frame if isinstance(frame, Mapping) else ()))
        if lacks := [name for name in expected if name not in has]:
            kind = "" if has else f": it is no table with names of columns but {of_type(frame)}"
            near = [f"{own!a} for {name!r}" for name in lacks for own in has if plain_text(own) == plain_text(name)]
            kind += f": it has {', '.join(near)}" * bool(near)
            advice = "Read the file with sep=';'" if len(has) == 1 and ";" in f"{has[0]}" else "Give them their names"
            raise PublicError(f"{whose} lacks the columns {listed(lacks)} of the codebook{kind}. {advice}")
        if several := [name for name in expected if has.count(name) > 1]:
            raise PublicError(f"{whose} has several columns of the name {listed(several)}; expected one of each")
        read = {name: column.parsed(name, frame[name], whose) for name, column in expected.items()}
        if wrong := [text for _, found in read.values() for text in found]:
            advice = "Which rows these are is in this site's own log: mend them there, or the codebook at all sites"
            raise PublicError(f"{whose} does not fit the codebook: {'; '.join(wrong)}. {advice}")
        return {name: values for name, (values, _) in read.items()}

    def complete(self, values: Mapping[str, Vector], whose: str = "this site") -> NDArray[np.bool_]:
        """Return which rows lack no entry; an error if some do, unless they are to be left out.

        Parameters
        ----------
        values : mapping of str to ndarray
            As :meth:`parsed` returns them.
        whose : str, default "this site"
            Begins an error.
        """
        lacking = {name: rows for name, own in values.items() if (rows := np.flatnonzero(np.isnan(own))).size}
        for name, rows in lacking.items():
            more = ", ..." if rows.size > _SHOWN else ""
            logger.warning("%s: %s is missing in %d rows: %s%s", whose, name, rows.size, rows[:_SHOWN].tolist(), more)
        kept = np.asarray(~np.isnan(list(values.values())).any(axis=0))
        if lacking and (self.incomplete == "refuse" or not kept.any()):
            prefix = f"{whose} has missing entries of {listed(list(lacking))}"
            advice = "leave out such rows (incomplete='leave out') or an empty column, at all sites, or fill them in"
            raise PublicError(f"{prefix}; expected none{', at least in one row' * (not kept.any())}: {advice}")
        return kept

    def made(self, values: Mapping[str, Vector]) -> dict[str, Vector]:
        """Return the model's columns by name, of entries as :meth:`parsed` returns them."""
        if self.formula:
            return _columns_of(self.formula, self.columns, values)
        each = [column.columns(name, values[name]) for name, column in self.columns.items()]
        return {name: own for made in each for name, own in made.items()}

    def read(self, frame: Any) -> Any:
        """Return the model's columns of a table, without outcomes: a frame of the same kind, missing entries as NaN.

        Parameters
        ----------
        frame : data frame, or mapping of str to array-like
            The table. It need not have the outcome.

        Raises
        ------
        PublicError
            If a column is not there, or a row does not fit.
        """
        made = self.made(replace(self, outcome={}).parsed(frame))
        # Rows of pandas have labels.
        return type(frame)(made, index=frame.index) if hasattr(frame, "index") else type(frame)(made)

    def target(self, values: Mapping[str, Vector]) -> Any:
        """Return the outcome of parsed entries: one array, or of several columns an array of them by name."""
        own = dict[str, Any]()
        for name, column in self.outcome.items():
            own[name] = np.asarray(column.levels)[values[name].astype(np.int64)] if column.levels else values[name]
            if len(self.outcome) == 1:
                return own[name]
            if len(column.levels) == 2:
                own[name] = own[name] == column.shown[0]
        return np.array([*zip(*own.values(), strict=True)], dtype=[(name, each.dtype) for name, each in own.items()])

    # --- as a file ------------------------------------------------------------------------------------------------

    @classmethod
    def from_toml(cls, path: str | Path) -> Codebook:
        """Read a codebook from a TOML file, which :meth:`to_toml` shows.

        Raises
        ------
        ConfigurationError
            If it is not one; it names the file and the column.
        """
        where = ""
        try:
            tables = tomllib.loads(read_text(path).removeprefix("\ufeff"))
            for part in ("columns", "outcome"):
                for name, about in tables.get(part, {}).items():
                    where = f" [{part}.{name}]"
                    tables[part][name] = Column(**about)
            where = ""
            return cls(**{"columns": {}, **tables})
        except (OSError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"{path}{where} is no codebook as to_toml() writes one: {error}") from error

    def to_toml(self) -> str:
        """Return the codebook as the text of a TOML file.

        Examples
        --------
        >>> print(Codebook({"age": Column(unit="years", range=[18, 110])}, sites=["Oslo", "Bergen"]).to_toml())
        sites = ["Oslo", "Bergen"]
        [columns."age"]
        unit = "years"
        range = [18, 110]
        """
        lines = _settings(self)
        for part in ("columns", "outcome"):
            for name, column in getattr(self, part).items():
                lines += [f"[{part}.{_written(name)}]", *_settings(column)]
        return "\n".join(lines)


def _written(value: Any) -> str:
    """Return a value as TOML, in which a text of JSON is one, but for a control character."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, float):
        return f"{value}".removesuffix(".0")
    # A reference may be one of NumPy's numbers.
    return json.dumps(value, ensure_ascii=False, default=np.generic.item).replace("\x7f", "\\u007f")


def _settings(own: Any) -> list[str]:
    """Return the fields that have not their defaults, as lines of TOML."""
    given = {each.name: getattr(own, each.name) for each in fields(own) if getattr(own, each.name) != each.default}
    return [f"{name} = {_written(value)}" for name, value in given.items() if not isinstance(value, Mapping)]


# --- a formula over its columns ---------------------------------------------------------------------------------------


def _columns_of(formula: str, codebook: Mapping[str, Column], values: Mapping[str, Vector]) -> dict[str, Vector]:
    """Return the columns of a formula by name, without an intercept, which the models have.

    Parameters
    ----------
    formula : str
        The right side of a formula. ``scale(x)`` is the column as the codebook scales it, ``bs(x)`` a B-spline with its
        knots and range, ``poly(x, 3)`` are powers of ``scale(x)``.
    codebook : mapping of str to Column
        What the columns are.
    values : mapping of str to ndarray
        A site's entries as numbers, of levels their places.

    Raises
    ------
    ConfigurationError
        If formulaic is not installed, the formula cannot be read, or a function in it would learn from the rows.
    """
    advice = "a formula needs formulaic: pip install formulaic (the extra [formulas])"
    formulaic, pandas = (installed(name, advice) for name in ("formulaic", "pandas"))
    try:
        tokens = [own.token for own in formulaic.parser.DefaultFormulaParser().get_tokens(formula)]
        if any(sign in ("**", "^") and power not in {*"1234"} for sign, power in pairwise(tokens)):
            # It would be written out.
            raise ConfigurationError(f"formula={formula!r}; expected at most the 4th power of a sum: all interactions")
        terms = formulaic.Formula(f"{formula} + 1")
        for factor in (factor for term in terms for factor in term.factors):
            # A name in backticks, which may be none of Python's, is looked up and nothing is computed.
            if factor.eval_method.name != "LOOKUP" or factor.expr not in codebook:
                _check_factor(ast.parse(factor.expr, mode="eval").body, codebook)
    except (formulaic.errors.FormulaicError, SyntaxError, AttributeError) as error:
        raise ConfigurationError(f"formula={formula!r}; expected a right side such as 'age * `body mass`'") from error
    rows = pandas.DataFrame({name: own for name, own in values.items() if name in codebook})
    for name, column in codebook.items():
        if column.levels:
            ordered = [level for level in column.levels if level not in column.shown] + column.shown
            # A missing one is a level here, as formulaic would make it the reference.
            names = [column.levels[int(code)] for code in np.nan_to_num(values[name])]
            rows[name] = pandas.Categorical(names, categories=ordered)
    context: dict[str, Any] = {name: getattr(np, name) for name in _OF_ONE_ROW}
    context["scale"] = lambda x: codebook[x.name].scaled(x)
    context["bs"] = lambda x: _b_spline(codebook[x.name], x, formulaic.transforms.basis_spline)
    context["poly"] = lambda x, degree: {f"{k}": codebook[x.name].scaled(x) ** k for k in range(1, degree + 1)}
    try:
        found = formulaic.model_matrix(terms, rows, context=context, na_action="ignore", output="numpy")
    except formulaic.errors.FormulaicError as error:
        raise ConfigurationError(f"formula={formula!r} cannot be computed; expected numbers in functions") from error
    made = dict[str, Vector]()
    spec = found.model_spec
    for term, indices in spec.term_indices.items():
        own = [values[name] for name in spec.term_variables[term] if name in codebook]
        # Nothing but the intercept is of no column. A column may have its name.
        made |= {spec.column_names[j]: np.where(np.isnan(own).any(axis=0), np.nan, found[:, j]) for j in indices if own}
    return made


def _b_spline(column: Any, values: Any, splines: Any) -> Any:
    """Return formulaic's cubic splines of a column, with its knots between the ends of its range."""
    inner = [knot for knot in column.knots if column.range[0] < knot < column.range[1]]
    low, *knots, high = column.scaled(np.array([column.range[0], *inner, column.range[1]], dtype=np.float64)).tolist()
    return splines(column.scaled(values), knots=knots, lower_bound=low, upper_bound=high)


def _check_factor(node: Any, codebook: Mapping[str, Column]) -> None:
    """Refuse whatever is no function of a row's own entries and of the codebook's numbers."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords
    name, given = (node.func.id, node.args) if called else ("", [])
    # A power of numbers alone may have more digits than fit into the memory.
    grows = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and "Name(" not in ast.dump(node.left)
    of_numbers = isinstance(node, ast.BinOp | ast.UnaryOp) and isinstance(node.op, _OPERATORS) and not grows
    if of_numbers or (name in _OF_ONE_ROW and len(given) == 1):
        for each in given or [own for own in ast.iter_child_nodes(node) if isinstance(own, ast.expr)]:
            _check_factor(each, codebook)
    elif len(given) == _OF_THE_CODEBOOK.get(name):
        column: Any = codebook.get(ast.unparse(given[0]))
        fits = column is not None and all(isinstance(each, ast.Constant) for each in given[1:])
        if not (fits and (name == "C") == bool(column.levels) and (name != "bs" or (column.knots and column.range))):
            needs = {"C": "levels", "bs": "knots and range"}.get(name, "center and spread")
            prefix = f"the formula has {ast.unparse(node)}; expected the name of a column whose {needs} are in the"
            raise ConfigurationError(f"{prefix} codebook, as each site would find others in its own rows")
    elif getattr(node, "id", None) not in codebook and type(getattr(node, "value", None)) not in (int, float):
        prefix = f"the formula has {ast.unparse(node)}, which is no column, or may learn from a site's rows. Expected"
        of = f"{', '.join(_OF_ONE_ROW)} of a number, or with the codebook's numbers {', '.join(_OF_THE_CODEBOOK)}"
        raise ConfigurationError(f"{prefix} columns of the codebook, arithmetic of them, {of} of a column")
