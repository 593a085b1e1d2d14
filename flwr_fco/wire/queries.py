"""Questions and answers as records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ProtocolError
from flwr_fco.wire import flower as _flower
from flwr_fco.wire.arrays import finite, from_array, read_pass_through, vectors_of
from flwr_fco.wire.downlink import parsed
from flwr_fco.wire.keys import ARRAYS, METRICS, NUMBER, PASS, SCHEMA
from flwr_fco.wire.metrics import metrics_of, number_of
from flwr_fco.wire.protocol import ReceivedNumbers, ReceivedVectors
from flwr_fco.wire.questions import Answer, Question

_QUESTION = "fco-question"


def question_records(question: Question) -> RecordDict:
    """Return a question as records."""
    arrays: dict[str, Any] = dict(question.vectors)
    arrays.update({PASS + name: array for name, array in question.pass_through.items()})
    asked: dict[str, str | float] = {"kind": question.kind, "layout": json.dumps(question.layout.to_header())}
    asked.update({NUMBER + name: float(number) for name, number in question.numbers.items()})
    return _flower.packed({ARRAYS: (ArrayRecord, arrays), _QUESTION: (ConfigRecord, asked)})


def read_question(content: RecordDict) -> Question:
    """Return the question of a server.

    Parameters
    ----------
    content : RecordDict
        The message's content.

    Raises
    ------
    ProtocolError
        If it is not a question from this package.
    """
    record = content.get(_QUESTION)
    if not isinstance(record, ConfigRecord):
        raise ProtocolError("this query is not a question of flwr_fco (it lacks the 'fco-question' record)")
    layout = Layout.from_header(parsed(str(record.get("layout"))))
    entries = {PASS + entry.name: entry for entry in layout.passed_through}
    vectors, numbers = ReceivedVectors(), ReceivedNumbers()
    passed: dict[str, NDArray[Any]] = {}
    for name, array in vectors_of(content).items():
        if name in entries:
            passed[entries[name].name] = read_pass_through(entries[name], array)
        else:
            vectors[name] = finite(name, from_array(name, array, ("float64",), (layout.size,)), "the server's vector")
    for key, number in record.items():
        if key.startswith(NUMBER):
            numbers[key.removeprefix(NUMBER)] = number_of(key, number)
    return Question(str(record.get("kind")), layout, vectors, numbers, passed)


def answer_records(answer: Answer, *, num_examples: int) -> RecordDict:
    """Return an answer as records, with the number of examples behind it."""
    metrics: dict[str, int | float] = {name: float(number) for name, number in answer.numbers.items()}
    metrics["num-examples"] = int(num_examples)
    if answer.schema:
        metrics[SCHEMA] = answer.schema
    return _flower.packed({ARRAYS: (ArrayRecord, dict(answer.vectors)), METRICS: (MetricRecord, metrics)})


def read_answer(content: RecordDict, *, numbers: Iterable[str], shapes: Mapping[str, tuple[int, ...]]) -> Answer:
    """Read and check an answer.

    Parameters
    ----------
    numbers : iterable of str
        Names of the required numbers; no others are allowed.
    shapes : mapping of str to tuple of int
        Name and shape of each required vector; no others are allowed.

    Raises
    ------
    ProtocolError
        With the reason, if anything is missing, extra, of another shape or dtype, NaN or infinite.
    """
    arrays = vectors_of(content)
    if arrays.keys() != shapes.keys():
        raise ProtocolError(f"the arrays are {sorted(arrays)}, expected {sorted(shapes)}")
    vectors = {
        name: finite(name, from_array(name, arrays[name], ("float64",), shape)) for name, shape in shapes.items()
    }
    metrics, examples = metrics_of(content, "num-examples")
    wanted = set(numbers)
    given = metrics.keys() - {"num-examples", SCHEMA}
    if given != wanted:
        raise ProtocolError(f"the numbers are {sorted(given)}, expected {sorted(wanted)}")
    schema = number_of(SCHEMA, metrics.get(SCHEMA, 0.0))
    return Answer({name: number_of(name, metrics[name]) for name in wanted}, vectors, examples, schema=schema)
