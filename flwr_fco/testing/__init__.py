"""Checks that users run on their own regularizers, mirror maps, objectives and strategies."""
