"""A formula over a codebook's columns: its functions take the codebook's numbers, none learns from a site's rows."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from scipy.interpolate import BSpline

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError, NotInstalledError

#: Functions of one number: a row's value depends on no other row.
_OF_ONE_ROW = ("abs", "exp", "log", "log10", "log1p", "log2", "sqrt")
#: Those that take numbers of the codebook, or its levels, and with how many arguments.
_OF_THE_CODEBOOK = {"scale": 1, "bs": 1, "poly": 2, "C": 1}


def columns(formula: str, codebook: Mapping[str, Any], values: Mapping[str, Vector]) -> dict[str, Vector]:
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
    try:
        formulaic, pandas = import_module("formulaic"), import_module("pandas")
    except ImportError as error:
        raise NotInstalledError("a formula needs formulaic: pip install formulaic (the extra [formulas])") from error
    try:
        terms = formulaic.Formula(f"{formula} + 1")
        for factor in {factor.expr for term in terms for factor in term.factors}:
            _check(ast.parse(factor, mode="eval").body, codebook)
    except (formulaic.errors.FormulaicError, SyntaxError, AttributeError) as error:
        raise ConfigurationError(f"formula={formula!r}; expected a right side such as 'age * stage'") from error
    rows = pandas.DataFrame({name: own for name, own in values.items() if name in codebook})
    for name, column in codebook.items():
        if column.levels:
            ordered = [level for level in column.levels if level not in column.shown] + column.shown
            names = [column.levels[int(code)] if code == code else None for code in values[name]]
            rows[name] = pandas.Categorical(names, categories=ordered)
    context: dict[str, Any] = {name: getattr(np, name) for name in _OF_ONE_ROW}
    context["scale"] = lambda x: codebook[x.name].scaled(x)
    context["bs"] = lambda x: _named(_b_spline(codebook[x.name], x.to_numpy()))
    context["poly"] = lambda x, degree: _named([codebook[x.name].scaled(x) ** power for power in range(1, degree + 1)])
    try:
        found = formulaic.model_matrix(terms, rows, context=context, na_action="ignore", output="pandas")
    except formulaic.errors.FormulaicError as error:
        prefix = f"formula={formula!r} cannot be computed ({type(error).__name__})"
        raise ConfigurationError(f"{prefix}; expected numbers where it has functions of numbers") from error
    return {name: found[name].to_numpy(np.float64) for name in found.columns if name != "Intercept"}


def _named(made: Any) -> dict[str, Vector]:
    return {f"{number}": np.asarray(own) for number, own in enumerate(made, start=1)}


def _b_spline(column: Any, values: Vector) -> Any:
    """Return cubic B-splines of a column, all but the first, with its knots between the ends of its range."""
    inner = [knot for knot in column.knots if column.range[0] < knot < column.range[1]]
    ends = np.repeat(np.asarray(column.range, dtype=np.float64), 4)
    x = column.scaled(values)
    knots = column.scaled(np.concatenate([ends[:4], inner, ends[4:]]))
    known = np.isfinite(x)
    made = np.full((len(knots) - 4, x.size), np.nan)
    made[:, known] = BSpline.design_matrix(x[known], knots, 3).toarray().T
    return made[1:]


def _check(node: Any, codebook: Mapping[str, Any]) -> None:
    """Refuse whatever is no function of a row's own entries and of the codebook's numbers."""
    own = ast.unparse(node)
    if isinstance(node, ast.Constant):
        return
    if isinstance(node, ast.Name):
        if node.id in codebook:
            return
        raise ConfigurationError(f"the formula has {own}, which is no column of the codebook: {', '.join(codebook)}")
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.expr):
                _check(each, codebook)
        return
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if name in _OF_ONE_ROW and len(node.args) == 1 and not node.keywords:
        _check(node.args[0], codebook)
        return
    if name in _OF_THE_CODEBOOK and len(node.args) == _OF_THE_CODEBOOK[name] and not node.keywords:
        column: Any = codebook.get(ast.unparse(node.args[0]))
        needs = {"C": "levels", "bs": "knots"}.get(name, "")
        fits = column is not None and (needs == "levels") == bool(column.levels)
        fits &= all(isinstance(each, ast.Constant) for each in node.args[1:])
        if fits and (not needs or getattr(column, needs)) and (name != "bs" or column.range):
            return
        raise ConfigurationError(
            f"the formula has {own}; expected the name of a column whose {needs or 'center and spread'}"
            f"{' and range' * (name == 'bs')} are in the codebook, as each site would find others in its own rows"
        )
    raise ConfigurationError(
        f"the formula has {own}, which may learn from a site's rows, and so be another column at each. Expected "
        f"{', '.join(_OF_ONE_ROW)} of a number, or {', '.join(_OF_THE_CODEBOOK)} of a column: these take the "
        "codebook's numbers, and no others"
    )
