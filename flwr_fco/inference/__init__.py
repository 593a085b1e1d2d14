"""How sure a federated model is: intervals, tests, and whether sites agree.

===================  ==============================================================
:mod:`.federated`    what is asked of the sites, and the table of it
:mod:`.estimates`    estimates and standard errors, from sums of derivatives
:mod:`.quality`      order, calibration and bins of a fitted model
:mod:`.proportional` whether hazard ratios change over time
:mod:`.between`      meta-analysis of the sites' own estimates, false discovery rates
:mod:`.forest`       a picture of the table
===================  ==============================================================
"""

from flwr_fco.inference.federated import Intervals

__all__ = ["Intervals"]
