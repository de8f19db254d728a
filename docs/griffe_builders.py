"""Show builders of networks in the reference with what they return.

The source of a builder returns W; a decorator turns that into a `Network`. Documentation is read from the source, so it
would name the wrong type.
"""

from __future__ import annotations

from typing import Any

import griffe

DECORATORS = "proxdasa.networks.recipes."


class Builders(griffe.Extension):
    """Correct the return type of functions whose decorator builds a network."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the annotation of one function."""
        if any(decorator.callable_path.startswith(DECORATORS) for decorator in func.decorators):
            func.returns = "Network"
