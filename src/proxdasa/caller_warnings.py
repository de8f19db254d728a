"""Warnings that point at the line of the caller, not at one of ours."""

from __future__ import annotations

import sys
import warnings

BETWEEN = ("proxdasa", "torch", "functools", "contextlib")
"""Packages whose frames are no caller's: ours, and the decorators and context managers that stand between ours."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of something in the call that has led here, which the first frame outside of this library has made.

    How many frames that are depends on the way; from Python 3.12 on `warnings.warn` can skip those of some files.
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
        module=names.get("__name__"),
        registry=names.setdefault("__warningregistry__", {}),
        module_globals=names,
    )
