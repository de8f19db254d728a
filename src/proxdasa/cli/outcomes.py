"""Runs that end early: messages on how to continue, and the exit code for what has happened."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from proxdasa import contracts, engines
from proxdasa.cli.display import err, input_errors, say
from proxdasa.cli.progress_display import note, print_end, progress
from proxdasa.cli.shared_options import Device
from proxdasa.engines.launch.environment import RENDEZVOUS
from proxdasa.engines.launch.launcher import mark_reported
from proxdasa.exit_codes import Code
from proxdasa.runs import records

if TYPE_CHECKING:
    from proxdasa.runs.results import Result
    from proxdasa.runs.setup import Setup


@contextmanager
def outcomes(output: Path) -> Iterator[None]:
    """Report whatever ends the run early, and end this process without waiting for the others."""
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
    except contracts.PeerError as error:
        if error.noticed_here:  # other processes end without a message
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
    """Say what is left of a run that was interrupted before it could report this itself."""
    newest = max((int(path.name) for path in _checkpoints(output)), default=None)
    if newest is None:
        say("interrupted before there was a checkpoint; nothing was kept", err)
    else:
        say(f"interrupted; the checkpoint after {newest} iterations is kept", err)
        say(f"proxdasa resume {output} continues the run", err)
    mark_reported()


def advise(output: Path) -> None:
    """Say how to continue a run of which a process was lost."""
    advice = f"proxdasa resume {output} continues from the last checkpoint"
    none = "there is no checkpoint to continue from; --checkpoint-every writes some"
    say(advice if _checkpoints(output) else none, err)


def _advise_alone(output: Path) -> None:
    if RENDEZVOUS not in os.environ:  # otherwise the launcher gives the advice
        advise(output)


def _checkpoints(output: Path) -> list[Path]:
    """The checkpoints of a run or, if it is computed in parts, of the part whose last checkpoint is the earliest."""
    folder = output / records.CHECKPOINTS
    places = records.part_folders(folder) or [folder]
    found = [[path for path in place.glob("[0-9]*") if path.name.isdecimal()] for place in places]
    return min(found, key=lambda paths: max((int(path.name) for path in paths), default=0))


def run_all(
    setups: Mapping[str, Setup], output: Path, overwrite: bool, jobs: int | None = 1, device: Device = None
) -> dict[str, Result]:
    """Run a series into folders of ``output``, on a device; exit if it is interrupted, or a process is lost."""
    from proxdasa import experiments  # noqa: PLC0415 - imports PyTorch

    with input_errors():
        setups = {name: replace(setup, device=device) if device else setup for name, setup in setups.items()}
    again = f"the same command{' without --overwrite' if overwrite else ''} continues"
    try:
        with input_errors(), records.claim(output), progress(list(setups), output) as announce:
            results = experiments.run_series(setups, output, announce, overwrite, note, print_end, jobs)
    except contracts.PeerError as error:
        say(f"error: {error}", err)
        say(f"what was computed so far is kept; {again}", err)
        raise typer.Exit(Code.LOST) from None
    if stopped := {name: result for name, result in results.items() if result.stopped == "interrupted"}:
        where = [
            f"{name} at iteration {result.iterations} of {setups[name].iterations} "
            f"({'its records are saved' if result.records else 'it has no records'})"
            for name, result in stopped.items()
        ]
        finished = f"{len(results) - len(stopped)} of {len(setups)} runs are finished"
        say(f"interrupted: {', '.join(where)}; {finished}; {again}", err)
        raise typer.Exit(Code.INTERRUPTED)
    return results


def exit_if_diverged(results: Mapping[str, Result]) -> None:
    """Exit with the code for divergence if every trial of one of the runs diverged."""
    if any(result.stopped == "diverged" for result in results.values()):
        raise typer.Exit(Code.DIVERGED)
