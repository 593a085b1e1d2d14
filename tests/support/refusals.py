"""What is refused, and in which words."""

import pytest

from flwr_fco.errors import ConfigurationError


def refused(message, call, *given, kind=ConfigurationError, **options):
    """Expect an error whose text matches from a call; return the text."""
    with pytest.raises(kind, match=message) as error:
        call(*given, **options)
    return str(error.value)
