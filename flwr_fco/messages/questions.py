"""Questions that a server asks its clients outside of training and evaluation, and their answers, without Flower.

A question is about the client's loss at a point: nothing is trained, and nothing at the client changes. Its kind names
one of the functions in ``flwr_fco/client_apps/answers.py``:

==================  ==================================================  ===========================================
kind                what is sent                                        what is answered
==================  ==================================================  ===========================================
``"smoothness"``    a point, where a constant that is not known in      Lipschitz constants of the gradient in the
                    closed form is probed; the batch size               l2 and the l1 norm, strong convexity
``"gradient"``      a point; whether moments are wanted                 loss and full gradient there, and the columns'
                                                                        means and variances
``"duality"``       a point, and what makes the dual point feasible     sums over the examples that a duality gap is
                                                                        made of; see :mod:`flwr_fco.certificates`
``"validation"``    a point                                             the loss on held-out data
``"estimates"``     nothing                                             the site's own unpenalised estimates and their
                                                                        standard errors, if it has rows enough
``"quality"``       a point                                             pairs in the order of the events, events, mean
                                                                        and square of the scores, Brier's score
``"calibration"``   a point; a slope and an intercept                   the loss of the scores changed by them, and
                                                                        its derivatives by these two numbers
``"bins"``          a point; edges of the scores                        rows, expected and observed events between
                                                                        them, if its owner allows so few rows
``"trend"``         a point                                             the trend of a Cox model's residuals over time
==================  ==================================================  ===========================================

"""

from __future__ import annotations

from flwr_fco.messages.protocol import Answer as Answer
from flwr_fco.messages.protocol import Question as Question

#: Stages of ``"duality"``: facts about the loss; mean class probabilities, or references; sums of slopes; the entropy.
FACTS, BALANCE, SLOPES, ENTROPY = range(4)
#: Links of losses by their number in messages; 0 means that there is no duality gap for this loss.
LINKS = ("none", "identity", "logistic", "softmax", "convex", "poisson", "cox", "profiled")
#: Links of losses of which no more is known than that they are convex and not below a number.
CONVEX = LINKS[4:]

#: The kind of question about a site's own estimates, whose standard errors are second derivatives.
ESTIMATES = "estimates"

#: The kinds of questions about how good a model is, and the numbers of one that are edges of bins.
QUALITY, CALIBRATION, BINS, TREND = "quality", "calibration", "bins", "trend"
EDGE = "edge-"
