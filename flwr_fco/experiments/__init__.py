"""The experiments of the papers, as functions that return what was measured and a verdict for each claim."""

from flwr_fco.experiments.gradient_tracking import Curve, Verdict, gt_fig1, gt_fig2, verdict_table

__all__ = ["Curve", "Verdict", "gt_fig1", "gt_fig2", "verdict_table"]
