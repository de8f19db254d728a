"""Warnings that point at the caller's line of code, not at one of this library."""

from __future__ import annotations

import sys
import warnings

BETWEEN = ("proxdasa", "torch", "functools", "contextlib")
"""Packages whose frames are skipped: ours, and those of decorators and context managers in between."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about a call of this library, at the line of the first frame outside it.

    The number of frames in between varies, so it cannot be given to `warnings.warn`; from Python 3.12 on that function
    can skip the files of a package instead.
    """
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in BETWEEN:
        frame = frame.f_back
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=names.get("__name__", "<unknown>"),  # None would silently drop the warning
        registry=names.setdefault("__warningregistry__", {}),
    )  # without module_globals: the loader of a module that runs as python -m refuses to find __main__'s source
