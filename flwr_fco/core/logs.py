"""Flower's log, without Flower: its logger is known by name."""

from __future__ import annotations

import logging

log = logging.getLogger("flwr").log
