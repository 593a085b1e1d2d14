"""Figures, tables and reports of runs."""
