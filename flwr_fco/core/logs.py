"""Flower's log, without Flower: its logger is known by name."""

from __future__ import annotations

import logging

__all__ = ["log"]

log = logging.getLogger("flwr").log
