"""The papers' experiments as data (one TOML each), rules that decide their claims, and what runs them."""

from flwr_fco.experiments.definition import EXPERIMENTS, Claim, Definition, RunLine, load_definition, select_experiments
from flwr_fco.experiments.reproduction import Report, Verdict, judge, reproduce
from flwr_fco.experiments.rules import RULES, Measurement, Outcome, Outcomes

__all__ = [
    "EXPERIMENTS",
    "RULES",
    "Claim",
    "Definition",
    "Measurement",
    "Outcome",
    "Outcomes",
    "Report",
    "RunLine",
    "Verdict",
    "judge",
    "load_definition",
    "reproduce",
    "select_experiments",
]
