"""The command tune: tries many settings of a run's method as one run, and ranks them."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from proxdasa import configs, reports, tuning
from proxdasa.cli.auto_gamma import ANY, forget_rungs, search
from proxdasa.cli.display import err, input_errors, output_option, parse_numbers, say, show_table, show_written
from proxdasa.cli.outcomes import outcomes, run_all
from proxdasa.cli.progress_display import add_audience_options, note, print_event
from proxdasa.cli.shared_options import Device, Jobs, NetworkOptions, add_network_options
from proxdasa.exit_codes import Code
from proxdasa.runs import records

if TYPE_CHECKING:
    from proxdasa.runs.setup import Setup

RANKING = "ranking.csv"
"""A file that every search writes."""
FIGURE = "figure.png"
"""A file that a search over values or ranges writes."""
SHOWN = 20
"""The most settings to show in the terminal."""
T = TypeVar("T")


@add_audience_options
@add_network_options
def tune(
    network: NetworkOptions,
    file: Annotated[Path, typer.Argument(help="The TOML file of a run; see examples/quickstart.toml.")],
    output: Annotated[Path, output_option("Folder for the run, the ranking and the figure.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,...", help="Values of a parameter; given several times, all combinations are tried."
        ),
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=LOW..HIGH", help="Instead of a grid: draw a parameter from a range, log-uniformly."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="No range: search the step sizes over decades, by successive halving, at the cost of about two runs.",
        ),
    ] = False,
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many settings --random draws; default: 20.")
    ] = None,
    measure: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The final measure to rank by: objective, loss, table_stationarity, consensus, accuracy, test_loss or "
            "anything else that the run records; stationarity only if all settings have the same γ.",
        ),
    ] = "objective",
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="R", help="Repetitions of each setting; default: the file's trials.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, metavar="K", help="K; default: the file's.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of all random samples and of --random; default: the file's.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove an earlier search in the folder.")] = False,
    jobs: Jobs = None,
    device: Device = None,
) -> None:
    """Search for a method's parameters: stack all settings into one run, and rank them.

    NAME is a parameter of the file's algorithm that takes numbers, such as [b]gamma[/], or one of its schedule, such as
    [b]alpha.scale[/]; [b]alpha[/] alone is the schedule's first. [b]regularizer.weight[/] is λ, to be ranked by a
    measure without Ψ, such as [b]--measure test_loss[/]. Settings that diverge are marked, the others continue.
    After Ctrl-C the same command resumes the run. A finished run is ranked again, by another measure if you like.

    [b]--quick[/] needs no range; it finds good step sizes at the cost of about two runs, and resumes too.

    For example [b]proxdasa tune run.toml -o tuned --grid gamma=0.01,0.03,0.1 --grid alpha=0.3,1,3[/].
    """
    with input_errors():
        asked = {"trials": trials, "iterations": iterations, "seed": seed}
        changes: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        automatic = configs.asks_auto(configs.load(file))
        base = dataclasses.replace(network.apply(configs.read(file, auto=ANY, device=device)), **changes)
        values = _pairs("--grid", grid, lambda text: parse_numbers("--grid", text, float))
        ranges = _pairs("--random", random, _range)
        if [bool(values), bool(ranges), quick].count(True) != 1:
            raise ValueError(
                "give either --grid, such as gamma=0.01,0.03,0.1, or --random, such as gamma=0.001..1, or --quick"
            )
        if samples is not None and not ranges:
            raise ValueError("--samples is the number of settings that --random draws; leave it out")
        if quick:
            if jobs is not None:
                raise ValueError("--jobs: a quick search makes short runs in one process; leave it out")
            _tune_quickly(file, base, measure, output, overwrite)
            return
        if automatic and "gamma" not in (values or ranges):
            raise ValueError(f'{file} has gamma = "auto": search over gamma too, or use --quick')
        stack = tuning.Search(base, tuning.choose(values, ranges, samples, base.seed))
        setup = stack.setup
        stack.check(measure)
    note(stack.size)
    with tuning.expect_divergence():
        result = run_all({tuning.SWEEP: setup}, output, overwrite, jobs)[tuning.SWEEP]
    with input_errors():
        tuned = stack.rank(result, measure)
        title = f"{tuned.measure} after {result.iterations} iterations"
        _show(file, base, tuned, title, output)


def _tune_quickly(file: Path, base: Setup, measure: str, output: Path, overwrite: bool) -> None:
    """Search by successive halving, or continue the search of these settings that was interrupted."""
    with outcomes(output), records.claim(output):
        settings = tuning.default_settings(base)
        stack = tuning.Search(base, settings)
        stack.check(measure)
        if overwrite:  # the ranking too, so that the next command continues if this one is interrupted
            for name in (RANKING, FIGURE):
                (output / name).unlink(missing_ok=True)
            shutil.rmtree(output / tuning.SWEEP, ignore_errors=True)
            forget_rungs(output)
        elif any((output / name).exists() for name in (RANKING, tuning.SWEEP)):
            raise FileExistsError(f"{output} holds a search already; choose another --output or add --overwrite")
        note(stack.size)
        found = search(base, settings, output, measure)
        try:
            _show(file, base, found, f"{measure} of a quick search", output)
        finally:
            if (output / RANKING).exists():
                forget_rungs(output)


def _show(file: Path, base: Setup, tuned: tuning.Tuning | tuning.Halving, title: str, output: Path) -> None:
    """Show the best settings, write the ranking, and say what to write into the file."""
    _show_ranking(base, tuned, title)
    show_written(tuned.write(output))
    tried = [{**dataclasses.asdict(outcome), "mean": outcome.mean} for outcome in tuned.ranking]
    print_event("ranking", tuning.SWEEP, {"measure": tuned.measure, "output": str(output), "settings": tried})
    if tuned.ranking[0].fault:
        say(f"no setting is left: every one {tuned.ranking[0].fault}; smaller step sizes may help", err)
        raise typer.Exit(Code.DIVERGED)
    tables = [toml("algorithm", tuned.algorithm)]
    if isinstance(tuned, tuning.Tuning) and any(name.startswith("regularizer.") for name in tuned.best):
        tables.append(toml("regularizer", tuned.regularizer))
    say("\n\n".join([f"the best setting, for {file}:", *tables]))


def _pairs(option: str, given: Sequence[str] | None, read: Callable[[str], T]) -> dict[str, T]:
    """The values of an option that is given once for each parameter, by parameter."""
    found: dict[str, T] = {}
    for text in given or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise ValueError(f"{option} takes a parameter and its values, such as gamma=0.01,0.1; got {text!r}")
        if name in found:
            raise ValueError(f"{option}: {name} is given twice")
        found[name] = read(value)
    return found


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        return float(low), float(high)
    except ValueError:
        hint = "" if dots else "; a list of values is for --grid"
        raise ValueError(f"--random takes a range, such as gamma=0.001..1; got {text!r}{hint}") from None


def _show_ranking(base: Setup, tuned: tuning.Tuning | tuning.Halving, title: str) -> None:
    """Show the best settings."""
    sheet = reports.tuning_results.ranking(tuned.ranking, tuned.measure, tuned.notes)
    trials = f"{base.trials} trial{'s' * (base.trials > 1)}"
    notes = [f"note: {note}" for note in sheet.notes]
    if len(sheet.rows) > SHOWN:
        notes.insert(0, f"and {len(sheet.rows) - SHOWN} more in ranking.csv")
    title = f"{base.algorithm.facts.title}: {title}, {trials} of each setting"
    show_table(title, reports.Sheet(sheet.columns, sheet.texts(brief=True)[:SHOWN], notes))


def toml(name: str, thing: Any) -> str:
    """A method or regularizer as a table of a configuration file."""
    from proxdasa.descriptions import describe  # noqa: PLC0415 - imports PyTorch

    described: Mapping[str, Any] = describe(thing)
    lines = [f"{key} = {_value(value)}" for key, value in described.items() if value is not None]
    return "\n".join([f"[{name}]", *lines])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)  # TOML writes numbers, strings, true and false as JSON does
