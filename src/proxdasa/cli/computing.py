"""What a command does before it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def computes(command: Callable[..., None]) -> Any:
    """The command with denormals flushed, before PyTorch starts its threads, which inherit the setting."""

    @functools.wraps(command)
    def ready(*arguments: Any, **options: Any) -> None:
        from proxdasa.runs.denormals import flushed_denormals  # noqa: PLC0415 - imports PyTorch

        with flushed_denormals():
            command(*arguments, **options)

    return ready
