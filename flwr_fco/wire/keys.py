"""Keys of Flower's records that several modules read or write; ``flwr_fco.wire`` documents their contents."""

from __future__ import annotations

from flwr.app import ConfigRecord, MetricRecord

ARRAYS, METRICS = "arrays", "metrics"
#: The metric, and the record, of what a client says of the names of its columns and classes.
SCHEMA = "fco-schema"
#: The number that asks a client with its first task for the units of its columns, and the metric that answers.
UNITS = "fco-units"
#: Prefixes of arrays that are not optimised, and of a method's numbers.
PASS, NUMBER = "pass:", "number:"
#: A method's number that says how many points its vectors hold, one after the other.
POINTS = "points"
#: Number of folds into which a client deals its rows.
FOLDS = "folds"
#: Prefix of the indices of a sparse vector; its values are stored under its own name.
INDICES = "places:"
#: Prefix of a vector sent by its non-zeros: all other entries are zero.
NONZEROS = "nonzeros:"
#: The record of a message that says its plan and its numbers.
FCO = "fco"
PLAN, RESTORED = "fco-plan", "fco-restored"
#: The ArrayRecords of a message that are not its vectors.
OWN_ARRAYS = (PLAN, RESTORED)
#: Types of records without arrays; a negative ``isinstance`` costs as much as reading the record.
NO_ARRAYS = frozenset((ConfigRecord, MetricRecord))
