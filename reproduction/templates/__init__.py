"""Templates of the pages that runs and experiments are shown on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from flwr_fco.models import printable


def render(name: str, /, **values: Any) -> str:
    """Return a page: the template of this name, filled in; what goes into HTML is escaped.

    Parameters
    ----------
    name : str
        Name of a file in this folder, without its last ending, such as ``"report.html"``.
    **values
        What the template names.
    """
    return _environment(name.endswith(".html")).get_template(f"{name}.j2").render(**values)


def _shown(value: Any) -> Any:
    """Return what goes into a page of HTML without characters that turn the direction of writing, or are none."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment(html: bool) -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=html,
        finalize=_shown if html else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
