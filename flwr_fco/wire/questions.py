"""Questions that a server asks its clients outside of training and evaluation, and their answers, without Flower.

A question is about the client's loss at a point: nothing is trained, and nothing at the client changes. Its kind names
one of the functions in ``flwr_fco/client_apps/answers.py``:

==================  ==================================================  ===========================================
kind                what is sent                                        what is answered
==================  ==================================================  ===========================================
``"smoothness"``    a point, where a constant that is not known in      Lipschitz constants of the gradient in the
                    closed form is probed; the batch size               l2 and the l1 norm, strong convexity
``"gradient"``      a point; whether deviations are wanted             loss and full gradient there, and the columns'
                                                                        standard deviations
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

``queries.py`` turns questions and answers into Flower records and back; they travel in messages of type ``query``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector

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

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Question(NamedTuple):
    """A question to a client.

    Parameters
    ----------
    kind : str
        Name of the function that answers.
    layout : Layout
        The model's arrays, which must be the client's.
    vectors : mapping of str to ndarray of float64, shape (d,)
        Vectors such as ``"primal"``, the point of the question.
    numbers : mapping of str to float
        Further numbers for the function.
    pass_through : mapping of str to ndarray
        Arrays of the model that are not optimised; the client uses them for this answer only.
    """

    kind: str
    layout: Layout
    vectors: Mapping[str, Vector] = _NOTHING
    numbers: Mapping[str, float] = _NOTHING
    pass_through: Mapping[str, NDArray[Any]] = _NOTHING


class Answer(NamedTuple):
    """A client's answer.

    Parameters
    ----------
    vectors : mapping of str to ndarray of float64
        In the shapes that the server expects.
    examples : float
        Number of examples behind the answer.
    weight : float
        p_m of the client among the clients that answered; set by the server, the weights sum to 1.
    partition : int or None
        Partition of the client, if known; set by the server.
    node_id : int or None
        Node id of the client; set by the server.
    schema : float
        What the client says of its columns and classes (:func:`flwr_fco.core.schema.schema_number`).

    Examples
    --------
    >>> Answer({"loss": 0.5}).numbers["loss"]
    0.5
    """

    numbers: Mapping[str, float]
    vectors: Mapping[str, NDArray[Any]] = _NOTHING
    examples: float = math.nan
    weight: float = math.nan
    partition: int | None = None
    node_id: int | None = None
    schema: float = 0.0
