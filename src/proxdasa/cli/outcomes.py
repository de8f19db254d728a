"""Runs that end too early: each says how to go on, and ends with the exit code of what has happened."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from proxdasa import engines
from proxdasa.cli.display import err, input_errors, say
from proxdasa.contracts import PeerError
from proxdasa.engines.launch.environment import RENDEZVOUS
from proxdasa.engines.launch.launcher import mark_reported
from proxdasa.exit_codes import Code
from proxdasa.runs.loop import CHECKPOINTS


@contextmanager
def outcomes(output: Path) -> Iterator[None]:
    """Whatever ends a run too early is told in here, and ends this process without waiting for the others."""
    try:
        with input_errors():
            yield
    except typer.Exit as ending:
        if not ending.exit_code:
            raise
        if ending.exit_code == Code.UNWRITTEN:
            _advise_alone(output)
        _end(Code(ending.exit_code))
    except KeyboardInterrupt:
        if engines.first():
            say_kept(output)
        _end(Code.INTERRUPTED)
    except PeerError as error:
        if error.noticed_here:  # the others just end
            say(f"error: {error}", err)
            _advise_alone(output)
        _end(Code.LOST, heard=not error.noticed_here)
    except Exception:
        traceback.print_exc()
        _advise_alone(output)
        _end(Code.CRASHED)


def _end(code: Code, heard: bool = False) -> NoReturn:
    if engines.several():
        engines.end(code, heard)
    raise typer.Exit(code)


def say_kept(output: Path) -> None:
    """What is left of a run that was interrupted before it could say it by itself."""
    newest = max((int(path.name) for path in _checkpoints(output)), default=None)
    if newest is None:
        say("interrupted before there was a checkpoint; nothing was kept", err)
    else:
        say(f"interrupted; the checkpoint after {newest} iterations is kept", err)
        say(f"proxdasa resume {output} goes on", err)
    mark_reported()


def advise(output: Path) -> None:
    """How to go on with a run that was lost."""
    advice = f"proxdasa resume {output} goes on from the last checkpoint"
    none = "there is no checkpoint to go on from; --checkpoint-every leaves some"
    say(advice if _checkpoints(output) else none, err)


def _advise_alone(output: Path) -> None:
    if RENDEZVOUS not in os.environ:  # else our launcher may know better
        advise(output)


def _checkpoints(output: Path) -> list[Path]:
    return [path for path in (output / CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()]
