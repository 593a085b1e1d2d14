"""Hazard ratios of patients at several institutions, with intervals, from sums that their owners allow to leave."""
