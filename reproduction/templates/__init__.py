"""Templates of the pages that runs and experiments are shown on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(name: str, /, **values: Any) -> str:
    """Return a page: the template of this name, filled in; what goes into HTML is escaped.

    Parameters
    ----------
    name : str
        Name of a file in this folder, without its last ending, such as ``"report.html"``.
    **values
        What the template names.
    """
    return _environment().get_template(f"{name}.j2").render(**values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
