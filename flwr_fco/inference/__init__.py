"""How sure a federated model is: intervals, tests, and whether sites agree.

================== =====================================================================================
:mod:`.federated`  what is asked of the sites, and the table of it
:mod:`.estimates`  estimates and standard errors from sums of derivatives; meta-analysis; false discovery
:mod:`.quality`    order, calibration and bins of a fitted model
================== =====================================================================================
"""

from flwr_fco.inference.federated import Intervals

__all__ = ["Intervals"]
