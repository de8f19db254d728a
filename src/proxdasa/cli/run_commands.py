"""The commands run and resume: in one process, as the launcher of several, or as one of those it has launched."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from proxdasa import configs, contracts, engines, plans, tuning
from proxdasa.cli import progress_display
from proxdasa.cli.auto_gamma import settle
from proxdasa.cli.display import err, input_errors, output_option, say, show_final
from proxdasa.cli.outcomes import advise, outcomes, say_kept
from proxdasa.cli.process_advice import ProcessAdvice
from proxdasa.cli.progress_display import add_audience_options, note, print_end, progress
from proxdasa.cli.shared_options import Device, Jobs, NetworkOptions, add_network_options, add_options
from proxdasa.engines.launch import signals
from proxdasa.engines.launch.environment import RENDEZVOUS, TIMEOUT
from proxdasa.engines.launch.launcher import launch, mark_reported
from proxdasa.exit_codes import FINAL, Code
from proxdasa.runs import records
from proxdasa.runs.progress import Progress
from proxdasa.runs.tensorboard_curves import TensorBoard

if TYPE_CHECKING:
    from proxdasa.engines import Transport
    from proxdasa.runs.setup import Setup

BOARD = "tensorboard"
"""The folder of curves within a results folder."""
ENDINGS = {"interrupted": Code.INTERRUPTED, "diverged": Code.DIVERGED}
"""Exit codes of runs that ended too early."""


@dataclass(frozen=True)
class ProcessOptions:
    """The options that run and resume share."""

    jobs: Jobs = None
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Divide the agents among N processes on this machine.")
    ] = None
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="With --processes: if a process dies, restart from the last checkpoint, up to N times.",
        ),
    ] = 0
    timeout: Annotated[
        float,
        typer.Option(
            metavar="S",
            help="Seconds after which a process that sends nothing counts as lost. A network that is cut for less "
            "than half as long does no harm: TCP retries at intervals that double.",
        ),
    ] = TIMEOUT
    interface: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Under torchrun on several machines: the network interface for messages, such as eth0. Messages are "
            "neither encrypted nor authenticated, so it must belong to a private network. By default only the "
            "loopback interface is used.",
        ),
    ] = None
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard", help="Write curves for TensorBoard during the run, to [b]tensorboard[/] in the folder."
        ),
    ] = False


def _add_process_options(command: Callable[..., None]) -> Any:
    return add_options(command, ProcessOptions, lambda options, given: command(options=options, **given))


@add_audience_options
@add_network_options
@_add_process_options
def run(
    options: ProcessOptions,
    network: NetworkOptions,
    file: Annotated[Path, typer.Argument(help="A TOML file; see examples/quickstart.toml.")],
    output: Annotated[Path, output_option("Folder for the results.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace results that are in the folder already.")
    ] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Write a checkpoint every K iterations, for [b]resume[/]."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Get the same bits for any number of processes; slower.")
    ] = False,
    device: Device = None,
) -> None:
    """Run the set-up of a configuration file and save its results.

    If the file has [b]gamma = "auto"[/], a quick search finds a value first; the results hold the number.
    With --processes the agents are divided among processes of this machine. On clusters, start the same command with
    [b]torchrun ... -m proxdasa run FILE[/] or [b]mpiexec -n 4 proxdasa run FILE[/].
    """
    make_room = partial(_make_room, output, overwrite)
    file = settle(file, output, make_room, network.apply, device)
    arguments = ["run", str(file), "--output", str(output)]
    arguments += ["--checkpoint-every", str(checkpoint_every)] if checkpoint_every else []
    arguments += ["--exact"] * exact + ["--overwrite"] * overwrite
    arguments += network.arguments()
    arguments += ["--device", device] if device else []
    read = partial(_read, file, exact, network, device)
    _start(options, arguments, read, output, checkpoint_every, make_room)


@add_audience_options
@_add_process_options
def resume(
    options: ProcessOptions,
    folder: Annotated[Path, typer.Argument(help="The results folder of a run that was stopped.")],
) -> None:
    """Resume a run from its last checkpoint, with as many processes as you like."""
    with outcomes(folder):
        config = folder / records.CHECKPOINTS / records.CONFIG
        if not config.is_file():
            raise FileNotFoundError(
                f"{folder} has no checkpoints; accepted: the --output of a run that was interrupted, or that writes "
                "checkpoints regularly (--checkpoint-every)"
            )
        every = _read_every(config)
    read = partial(_read, config, False, NetworkOptions(), None)
    _start(options, ["resume", str(folder)], read, folder, every, lambda: None)


def _start(
    options: ProcessOptions,
    arguments: list[str],
    read: Callable[[bool], Setup],
    output: Path,
    every: int | None,
    make_room: Callable[[], None],
) -> None:
    """Run in this process, or launch processes with these arguments."""
    with input_errors():  # if TensorBoard is missing, say so before anything runs
        board = TensorBoard(output / BOARD) if options.tensorboard else None
    if options.processes is None:
        _run(read, output, every, partial(_connect, options), make_room, board, options.jobs)
    else:
        _launch(options, arguments, output, read, make_room)


def _read_every(config: Path) -> int | None:
    """After how many iterations the run to resume writes a checkpoint."""
    from proxdasa.runs.saving import Saving  # noqa: PLC0415 - imports PyTorch

    ending = records.read_config(config.parent)["ending"]
    try:
        return Saving(config.parent, ending.get("checkpoint_every")).every
    except ValueError as error:
        raise ValueError(f"{config}: not the configuration of a run with checkpoints: ending: {error}") from error


def _connect(options: ProcessOptions) -> Transport | None:
    """The connection to the other processes, if there are any."""
    if options.max_restarts:
        raise ValueError("--max-restarts needs --processes; under torchrun give it to torchrun")
    if options.interface is not None and not engines.several():
        raise ValueError(
            "--interface is for several machines under torchrun, and this run has one process; leave it out"
        )
    transport = engines.connect(options.interface, options.timeout)
    if transport and options.jobs:
        raise ValueError("--jobs is for runs in one process, but this one has its agents in several; leave it out")
    return transport


def _read(file: Path, exact: bool, network: NetworkOptions, device: Device, try_step: bool) -> Setup:
    """The set-up of a file, with what the command line adds to it."""
    setup = network.apply(configs.read(file, try_step, device=device))
    return dataclasses.replace(setup, exact=True) if exact else setup


def _make_room(output: Path, overwrite: bool) -> None:
    """Refuse a folder that holds a run, or clear it."""
    checkpoints = output / records.CHECKPOINTS
    if not overwrite:
        if (output / records.RECORDS).exists():
            raise FileExistsError(f"{output} holds results already; choose another --output or add --overwrite")
        if (checkpoints / records.CONFIG).is_file():
            raise FileExistsError(
                f"{output} holds a run that was stopped; proxdasa resume {output} continues it, --overwrite starts over"
            )
    elif engines.first():
        for old in (checkpoints, output / tuning.RUNGS, output / BOARD):
            if old.exists():
                shutil.rmtree(old)
    output.mkdir(parents=True, exist_ok=True)


def _launch(
    options: ProcessOptions,
    arguments: list[str],
    output: Path,
    read: Callable[[bool], Setup],
    make_room: Callable[[], None],
) -> NoReturn:
    """Launch the processes, and exit with their code."""
    from proxdasa.runs.setup_checks import check_processes  # noqa: PLC0415 - imports PyTorch

    assert options.processes is not None
    with input_errors():
        if options.interface is not None:
            raise ValueError("--interface is for several machines under torchrun; --processes live on this one")
        if options.jobs is not None:
            raise ValueError("--jobs divides trials among processes, --processes divides agents; leave one of them out")
    with outcomes(output):
        setup = read(True)
        check_processes(setup.device)
        engines.blocks(setup.network.n, options.processes)
        with records.claim(output):  # only while the folder is cleared; then the process that writes claims it
            make_room()
        if os.environ.get("RANK"):
            raise ValueError("--processes is for one machine without torchrun; leave it out here")
    arguments = [*arguments, "--timeout", str(options.timeout), *["--tensorboard"] * options.tensorboard]
    command = [sys.executable, "-m", "proxdasa", *arguments, *progress_display.audience.arguments()]
    restarts = options.max_restarts
    code = launch(command, options.processes, restarts, lambda text: say(text, err), lambda: say_kept(output))
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
    jobs: int | None,
) -> None:
    """Run in this process, perhaps with others, and save the results."""
    from proxdasa.runs.jobs import choose_jobs, run_setup  # noqa: PLC0415 - imports PyTorch
    from proxdasa.runs.saving import Saving  # noqa: PLC0415

    with outcomes(output), ExitStack() as held:
        setup = read(not engines.several())
        transport = connect()
        leads = transport is None or transport.rank == 0
        with _failing_together(transport):
            if leads:
                held.enter_context(records.claim(output))  # other runs are kept out from now on
            if not (transport and transport.restarted):
                make_room()
                if leads and (broken := plans.departure(setup)):
                    note(f"note: {broken}")
            title, saving = setup.algorithm.facts.title, Saving(output / records.CHECKPOINTS, every)
            with board or nullcontext():
                with progress(output=output) if leads else nullcontext() as announce:
                    listeners: list[Progress] = [announce(title, setup)] if announce else []
                    listeners += [board] if announce and board else []
                    if announce and transport and RENDEZVOUS in os.environ:
                        listeners.append(ProcessAdvice(transport.size))
                    if transport is None:
                        result = run_setup(setup, listeners, saving, choose_jobs([setup], jobs, own_code=True))
                    else:
                        loop = setup.loop(transport)
                        del setup  # frees the data of agents that live in other processes
                        result = loop.run(listeners, saving)
                if leads:
                    with signals.ignored():
                        result.save(output, overwrite=True)
                    print_end(title, output, result)
                    show_final(result)
                    say(f"results: {output}   (picture and table: proxdasa report {output})")
    if transport:
        transport.close()
    if result.stopped == "interrupted" and leads:
        say(f"interrupted after {result.iterations} iterations; the records so far are saved", err)
        say(f"proxdasa resume {output} continues the run", err)
        mark_reported()
    if result.stopped in ENDINGS:
        raise typer.Exit(ENDINGS[result.stopped])


@contextmanager
def _failing_together(transport: Transport | None) -> Iterator[None]:
    """If this process fails, tell the others why, so that they do not wait for it."""
    try:
        yield
    except contracts.PeerError:  # another process has failed, and everyone knows
        raise
    except BaseException as error:
        if transport:
            transport.fail(f"{type(error).__name__}: {error}")
        raise
