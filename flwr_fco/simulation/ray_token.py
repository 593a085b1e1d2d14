"""Ray with a token: without one, whoever reaches its ports runs code as this user."""

from __future__ import annotations

import os
import re
import secrets
import sys
from importlib import import_module
from importlib.metadata import version
from logging import WARNING
from typing import Any

from flwr_fco.core.logs import log

#: The first release with token authentication.
_SINCE = (2, 52)


def import_ray(address: str | None = None) -> Any:
    """Import Ray, and demand a token of everybody who uses what is started here.

    Ray listens on all interfaces. From 2.52 on it demands a token if ``RAY_AUTH_MODE=token`` is set before it is
    imported; here it is set, with a token of this process's own, unless the environment says something else. Where that
    is too late, or Ray is older, or a cluster is without tokens, there is a warning.

    Parameters
    ----------
    address : str, optional
        Of a cluster, which has its own settings.

    Raises
    ------
    ImportError
        If Ray is not installed.
    """
    if not address and "ray" not in sys.modules:
        os.environ.update(token_settings())
    ray = import_module("ray")
    if not _demands_token():
        where = f"The Ray cluster at {address}" if address else "Ray, which is started on this machine,"
        log(
            WARNING,
            "%s demands no token: it listens on all interfaces, and whoever reaches its ports runs code as this user. "
            "Set RAY_AUTH_MODE=token before Ray is imported or started (Ray >= 2.52; docs/tutorials/ray-cluster.md), "
            "or close its ports; engine='processes' opens none",
            where,
        )
    return ray


def token_settings() -> dict[str, str]:
    """Return the variables with which a Ray that is started demands a token, beside those that are set already."""
    try:
        installed = tuple(map(int, re.findall(r"\d+", version("ray"))[:2]))
    except ImportError:
        return {}
    if installed < _SINCE or os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return {"RAY_AUTH_MODE": "token", **({} if given else {"RAY_AUTH_TOKEN": secrets.token_hex(32)})}


def _demands_token() -> bool:
    """Whether Ray in this process demands and gives a token, which it decides when it is imported."""
    try:
        raylet: Any = import_module("ray._raylet")
        return bool(raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN)
    except (ImportError, AttributeError):
        return False
