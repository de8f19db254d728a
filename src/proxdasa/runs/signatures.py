"""A function with the parameters of a class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

from proxdasa.runs.results import Result

P = ParamSpec("P")


def with_parameters_of(kind: Callable[P, Any]) -> Callable[[Callable[..., Result]], Callable[P, Result]]:
    """Give a function the parameters of a class, for readers and type checkers, so that they are written once."""
    signature = inspect.signature(kind)

    def decorate(function: Callable[..., Result]) -> Callable[P, Result]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:  # the class itself would name its own constructor
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(*args, **kwargs)

        call.__signature__ = signature.replace(return_annotation=Result)  # type: ignore[attr-defined]
        return call

    return decorate
