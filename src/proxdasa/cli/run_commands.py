"""The commands run and resume: alone, as the launcher of several processes, or as one of those that were launched."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from proxdasa import configs, engines, plans
from proxdasa.cli import progress_display
from proxdasa.cli.display import err, input_errors, output_option, say, show_final
from proxdasa.cli.outcomes import advise, outcomes, say_kept
from proxdasa.cli.process_advice import Worth
from proxdasa.cli.progress_display import ended, note, progress, watched
from proxdasa.contracts import PeerError
from proxdasa.engines.launch import signals
from proxdasa.engines.launch.environment import RENDEZVOUS
from proxdasa.engines.launch.launcher import launch, mark_reported
from proxdasa.engines.messages.transport import TIMEOUT, Transport
from proxdasa.exit_codes import FINAL, Code
from proxdasa.runs import records
from proxdasa.runs.loop import CHECKPOINTS, Saving
from proxdasa.runs.progress import Progress
from proxdasa.runs.setup import Setup
from proxdasa.runs.tensorboard import TensorBoard

Processes = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Spread the agents over so many processes of this machine.")
]
Restarts = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="With --processes: if one dies, start again from the last checkpoint, so often."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="S",
        help="Seconds after which a silent process is an error. A cut network is survived for half as long: TCP tries "
        "again at intervals that double.",
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Under torchrun on several machines: the network interface for messages, such as eth0. They are neither "
        "encrypted nor authenticated, so it must be that of a private network. By default nothing but the loopback "
        "interface is used.",
    ),
]
Every = Annotated[
    int | None,
    typer.Option(min=1, metavar="K", help="Leave a checkpoint every K iterations, from which [b]resume[/] goes on."),
]
Curves = Annotated[
    bool,
    typer.Option(
        "--tensorboard", help="Write curves for TensorBoard while it runs, into [b]tensorboard[/] in the folder."
    ),
]

BOARD = "tensorboard"
"""The folder of curves within a results folder."""
ENDINGS = {"interrupted": Code.INTERRUPTED, "diverged": Code.DIVERGED}
"""Exit codes of runs that ended too early."""


@watched
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file; see examples/quickstart.toml.")],
    output: Annotated[Path, output_option("Folder for the results.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace results that are in the folder already.")
    ] = False,
    checkpoint_every: Every = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="The same bits whatever the number of processes; slower.")
    ] = False,
    processes: Processes = None,
    max_restarts: Restarts = 0,
    timeout: Timeout = TIMEOUT,
    interface: Interface = None,
    tensorboard: Curves = False,
) -> None:
    """Run the set-up of a configuration file and save its results.

    With --processes the agents live in several processes of this machine. For clusters, start the same command by
    [b]torchrun ... -m proxdasa run FILE[/] or [b]mpiexec -n 4 proxdasa run FILE[/].
    """
    board = _board(output, tensorboard)
    read = partial(_read, file, exact)
    make_room = partial(_make_room, output, overwrite)
    if processes is not None:
        options = ["--checkpoint-every", str(checkpoint_every)] if checkpoint_every else []
        options += ["--exact"] * exact + ["--overwrite"] * overwrite + _again(timeout, interface, tensorboard)
        words = ["run", str(file), "--output", str(output), *options]
        _launch(words, output, read, make_room, processes, max_restarts)
    _run(read, output, checkpoint_every, partial(_connect, interface, timeout, max_restarts), make_room, board)


@watched
def resume(
    folder: Annotated[Path, typer.Argument(help="The results folder of a run that was stopped.")],
    processes: Processes = None,
    max_restarts: Restarts = 0,
    timeout: Timeout = TIMEOUT,
    interface: Interface = None,
    tensorboard: Curves = False,
) -> None:
    """Go on with a run from its last checkpoint, with as many processes as you like."""
    with outcomes(folder):
        told = folder / CHECKPOINTS / records.CONFIG
        if not told.is_file():
            raise FileNotFoundError(
                f"{folder} has no checkpoints; accepted: the --output of a run that was interrupted, or that leaves "
                "checkpoints by itself (--checkpoint-every)"
            )
        every = _every(told)
    board = _board(folder, tensorboard)
    read = partial(_read, told, False)
    if processes is not None:
        words = ["resume", str(folder), *_again(timeout, interface, tensorboard)]
        _launch(words, folder, read, lambda: None, processes, max_restarts)
    _run(read, folder, every, partial(_connect, interface, timeout, max_restarts), lambda: None, board)


def _every(told: Path) -> int | None:
    """After how many iterations the run that is to go on leaves a checkpoint."""
    ending = records.read_config(told.parent)["ending"]
    try:
        return Saving(told.parent, ending.get("checkpoint_every")).every
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{told}: not the configuration of a run with checkpoints: ending: {error}") from error


def _again(timeout: float, interface: str | None, tensorboard: bool) -> list[str]:
    """The options that run and resume have in common, for processes that are started."""
    with input_errors():
        if interface is not None:
            raise ValueError("--interface is for several machines under torchrun; --processes live on this one")
    return ["--timeout", str(timeout)] + ["--tensorboard"] * tensorboard


def _connect(interface: str | None, timeout: float, restarts: int) -> Transport | None:
    """The other processes, if any."""
    if restarts:
        raise ValueError("--max-restarts needs --processes; under torchrun give it to torchrun")
    return engines.connect(interface, timeout)


def _read(file: Path, exact: bool, try_step: bool) -> Setup:
    setup = configs.read(file, try_step)
    return dataclasses.replace(setup, exact=True) if exact else setup


def _board(output: Path, asked: bool) -> TensorBoard | None:
    """What writes curves; refused before anything runs if it cannot."""
    with input_errors():
        return TensorBoard(output / BOARD) if asked else None


def _make_room(output: Path, overwrite: bool) -> None:
    """Refuse a folder that holds something, or clear it."""
    checkpoints = output / CHECKPOINTS
    if not overwrite:
        if (output / records.RECORDS).exists():
            raise FileExistsError(f"{output} holds results already; choose another --output or add --overwrite")
        if (checkpoints / records.CONFIG).is_file():
            raise FileExistsError(
                f"{output} holds a run that was stopped; proxdasa resume {output} goes on with it, "
                "--overwrite begins anew"
            )
    elif engines.first():
        for old in (checkpoints, output / BOARD):
            if old.exists():
                shutil.rmtree(old)
    output.mkdir(parents=True, exist_ok=True)


def _launch(
    words: list[str],
    output: Path,
    read: Callable[[bool], Setup],
    make_room: Callable[[], None],
    processes: int,
    restarts: int,
) -> NoReturn:
    """Become the launcher, and end with the code of what was launched."""
    with outcomes(output):
        engines.blocks(read(True).network.n, processes)
        with records.claim(output):  # and then left to the process that writes
            make_room()
        if os.environ.get("RANK"):
            raise ValueError("--processes is for one machine without torchrun; leave it out here")
    command = [sys.executable, "-m", "proxdasa", *words, *progress_display.audience.words()]
    code = launch(command, processes, restarts, lambda text: say(text, err), lambda: say_kept(output))
    if code not in (Code.DONE, *FINAL):
        advise(output)
    raise typer.Exit(code)


def _run(
    read: Callable[[bool], Setup],
    output: Path,
    every: int | None,
    connect: Callable[[], Transport | None],
    make_room: Callable[[], None],
    board: TensorBoard | None,
) -> None:
    """Run in this process, perhaps with others, and save the results."""
    with outcomes(output), ExitStack() as held:
        setup = read(not engines.several())
        transport = connect()
        leads = transport is None or transport.rank == 0
        with _told(transport):
            if leads:
                held.enter_context(records.claim(output))  # other runs are kept out from now on
            if not (transport and transport.restarted):
                make_room()
                if leads and (broken := plans.departure(setup)):
                    note(f"note: {broken}")
            title, saving = setup.algorithm.facts.title, Saving(output / CHECKPOINTS, every)
            with board or nullcontext():
                with progress(output=output) if leads else nullcontext() as announce:
                    told: list[Progress] = [announce(title, setup)] if announce else []
                    told += [board] if announce and board else []
                    told += [Worth(transport.size)] if announce and transport and RENDEZVOUS in os.environ else []
                    loop = setup.loop(transport)
                    del setup  # and with it the data of other processes' agents
                    result = loop.run(told, saving)
                if leads:
                    with signals.ignored():
                        result.save(output, overwrite=True)
                    ended(title, output, result)
                    show_final(result)
                    say(f"results: {output}   (picture and table: proxdasa report {output})")
    if transport:
        transport.close()
    if result.stopped == "interrupted" and leads:
        say(f"interrupted after {result.iterations} iterations; the records so far are saved", err)
        say(f"proxdasa resume {output} goes on", err)
        mark_reported()
    if result.stopped in ENDINGS:
        raise typer.Exit(ENDINGS[result.stopped])


@contextmanager
def _told(transport: Transport | None) -> Iterator[None]:
    """The others, who would miss this process and not know why, are told why it stops."""
    try:
        yield
    except PeerError:  # which they know
        raise
    except BaseException as error:
        if transport:
            transport.fail(f"{type(error).__name__}: {error}")
        raise
