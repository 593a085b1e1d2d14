"""One test for all cases of a rule."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def together(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each case, as `pytest.mark.parametrize` does, but as one item that names all violations.

    For rules with many cheap cases: an item costs a report and a place in the list, whatever it checks. Fixtures are
    made once for all cases. A case may skip itself.
    """
    keys = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    rows = [row if len(keys) > 1 else (row,) for row in cases]
    assert rows, f"no cases of {keys}"

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures, skipped = list[Exception](), list[str]()
            for row in rows:
                case = dict(zip(keys, row, strict=True))
                try:
                    test(**fixtures, **case)
                except pytest.skip.Exception as skip:
                    skipped.append(str(skip))
                except (Exception, pytest.fail.Exception) as error:
                    # What `pytest.raises` says where nothing was raised is no Exception.
                    failure = error if isinstance(error, Exception) else AssertionError(str(error))
                    failure.add_note(", ".join(f"{key}={value!r}" for key, value in case.items()))
                    failures.append(failure.with_traceback(error.__traceback__))
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(rows)} cases", failures)
            if len(skipped) == len(rows):
                pytest.skip(skipped[0])

        whole = inspect.signature(test)
        rest = [parameter for name, parameter in whole.parameters.items() if name not in keys]
        run.__signature__ = whole.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate
