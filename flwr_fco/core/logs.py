"""Flower's log, without Flower: the logger is found by its name."""

from __future__ import annotations

import logging

log = logging.getLogger("flwr").log
