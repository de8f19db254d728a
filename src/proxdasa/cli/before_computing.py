"""What the commands of ``proxdasa reproduce`` do before they compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from proxdasa.cli.display import input_errors


def computes(command: Callable[..., None]) -> Any:
    """Decorator: the command first refuses a device that this machine lacks, and then computes with denormals flushed.

    The setting must be made before PyTorch starts its threads, which inherit it.
    """

    @functools.wraps(command)
    def ready(*arguments: Any, **options: Any) -> None:
        from proxdasa.devices import check_device  # noqa: PLC0415 - imports PyTorch
        from proxdasa.runs.denormals import flushed_denormals  # noqa: PLC0415

        with input_errors():
            check_device(options.get("device") or "cpu")
        with flushed_denormals():
            command(*arguments, **options)

    return ready
