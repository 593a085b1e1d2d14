"""Runs of named problems: settings, records, folders, sweeps."""
