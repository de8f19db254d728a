"""The command ``proxdasa`` while its modules are imported, which takes seconds: Ctrl-C ends it without a traceback.

It stands beside the package because whatever is in there is imported after all the rest.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def main() -> None:
    """Entry point."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
    from proxdasa import cli  # noqa: PLC0415 - that is what takes the time

    cli.main()
