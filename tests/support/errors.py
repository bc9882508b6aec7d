"""Assertions about errors by their code, which stays when sentences are reworded."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orderone.core.codes import EXPLANATIONS
from orderone.core.errors import InputError


@contextmanager
def refuses(
    code: str, *, argument: str | None = None
) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Assert that the block raises an InputError with this code (and this argument)."""
    assert code in EXPLANATIONS, f"no explanation of the code {code!r}"
    with pytest.raises(InputError) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    if argument is not None:
        assert caught.value.argument == argument, str(caught.value)
