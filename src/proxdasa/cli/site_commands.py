"""``proxdasa site``: this organisation's part of a study."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from proxdasa import reports
from proxdasa.cli.display import err, input_errors, output_option, say, sentence, show_warning
from proxdasa.cli.doctor import ROOM, Finding, show_findings
from proxdasa.engines.launch import signals
from proxdasa.exit_codes import Code, foremost
from proxdasa.sites.failed_handshakes import report_failed_handshakes

CLOCK = 600.0
"""Seconds by which clocks may differ, as for certificates."""

app = typer.Typer(no_args_is_help=True, help="Take part in a study as one of several sites.")

StudyFile = Annotated[Path, typer.Argument(help="The study, a TOML file that is the same at all sites.")]
Name = Annotated[str, typer.Option("--as", metavar="NAME", help="The name of this site in the study.")]
Data = Annotated[Path | None, typer.Option(help="The file with this site's examples; it does not leave the site.")]
Keys = Annotated[
    Path, typer.Option(help="The folder with NAME.key, NAME.crt and authority.crt; see [b]proxdasa keys[/].")
]
Listen = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where to listen; default: on all interfaces, at the port of the address."),
]


@app.command()
def run(
    study: StudyFile,
    output: Annotated[Path, output_option("Folder for this site's checkpoints, records, model and page.")],
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="The name of this site in the study; needed.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The file with this site's examples; it does not leave the site. With --rehearse a pattern such as "
            "[b]rows-{site}.csv[/]."
        ),
    ] = None,
    keys: Keys = Path(),
    listen: Listen = None,
    checkpoint_every: Annotated[float, typer.Option(min=0.0, help="Seconds between two checkpoints.")] = 60.0,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Start all sites as processes on this machine, with throw-away keys and ports of this machine; each "
            "has a folder and a log in the output. [b]--as[/], [b]--keys[/] and [b]--listen[/] are left out.",
        ),
    ] = False,
) -> None:
    """Run this site's part of the study; after an interruption the same command continues.

    Sites start in any order. A site that does not answer in time is left out until it is there again.
    """
    if rehearse:
        if name or listen or keys != Path():
            raise typer.BadParameter(
                "--rehearse starts all sites with their own keys; leave --as, --keys, --listen out"
            )
        _rehearse(study, output, data, checkpoint_every)
        return
    if name is None:
        raise typer.BadParameter("which site is this? --as NAME, or --rehearse for all of them on this machine")
    with input_errors(), report_failed_handshakes() as report_to:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
        from proxdasa.sites.heap import share_one_heap  # noqa: PLC0415
        from proxdasa.sites.site import Site  # noqa: PLC0415 - grpc is an extra

        share_one_heap()
        known, credentials, address = _prepare(study, name, data, keys, listen)
        site = Site(known, name, credentials, output, address, checkpoint_every)
        report_to(site.connections)
        try:
            with signals.handle(lambda _: site.halt(), once=True):
                result = site.run()
        except ArithmeticError as error:
            say(f"error: {error}", err)
            raise typer.Exit(Code.DIVERGED) from None
    if result.stopped == "interrupted":
        say(f"stopped after iteration {result.iterations}; the same command continues from there", err)
        raise typer.Exit(Code.INTERRUPTED)
    _write_page(output, name)
    say(f"{output}: the model, records, checkpoints and page of {name} after {result.iterations} iterations")


@app.command()
def check(study: StudyFile, name: Name, data: Data = None, keys: Keys = Path(), listen: Listen = None) -> None:
    """Check what this site needs before the study starts; every problem comes with a cure."""
    looks = (
        _look_at_study, _look_at_versions, _look_at_keys, _look_at_clock, _look_at_port, _look_at_neighbours,
        _look_at_disk,
    )  # fmt: skip
    show_findings(look(study, name, data, keys, listen) for look in looks)


@app.command()
def status(folder: Annotated[Path, typer.Argument(help="The --output of a site.")]) -> None:
    """Show how far a site is: iteration, neighbours, bytes, its own loss, and its own measure of stationarity."""
    with input_errors():
        from proxdasa.sites.site_status import STATUS  # noqa: PLC0415

        try:
            found: dict[str, Any] = json.loads((folder / STATUS).read_bytes())
            lines = _status_lines(found)
        except FileNotFoundError:
            raise ValueError(
                f"no site has written its status into {folder}; is it the --output of a site that has begun?"
            ) from None
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise ValueError(f"{folder / STATUS} is not the status of a site, which would rewrite it") from None
    for line in lines:
        say(line)


def _status_lines(found: Mapping[str, Any]) -> list[str]:
    age = time.time() - found["at"]
    titles = {"loss": "own loss", "certificate": "‖G(x_i, z_i, γ)‖²", "mean_over": "means over sites:"}
    shown = [f"{titles.get(name, name.replace('_', ' '))} {value:.4g}" for name, value in found["measured"].items()]
    sent = f"{found['bytes'] / 1e6:,.1f} MB sent, {found['refused']} refusals"
    return [
        f"{found['site']}: {found['doing']}, iteration {found['iteration']:,} of {found['of']:,}, {age:.0f} s ago",
        *(f"  {neighbour}: {state}" for neighbour, state in found["neighbours"].items()),
        f"  {sent}, trackers reset {found['epoch']} times",
        f"  {', '.join(shown)}",
    ]


def _rehearse(study: Path, output: Path, data: Path | None, checkpoint_every: float) -> None:
    """Start all sites of a study, and wait for them."""
    with input_errors():
        from proxdasa.sites.rehearsal import Rehearsal  # noqa: PLC0415

        rehearsal = Rehearsal.of(study, output)
        commands = rehearsal.commands(None if data is None else str(data), checkpoint_every)
    say(f"{len(commands)} sites, each with its log and results in {output}")
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (output / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        codes = {name: process.wait() for name, process in running.items()}
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
                process.wait()
    for name, code in codes.items():
        say(f"{name}: {'finished' if code == 0 else f'ended with code {code}; see {output / name}.log'}")
    if any(codes.values()):
        raise typer.Exit(foremost(codes.values()))


def _write_page(folder: Path, name: str) -> None:
    """Write the report page of a site; the results are there without it."""
    try:
        runs, faults = reports.salvage([folder])
        reports.write_page(folder / "report.html", name, runs, reports.summarise(runs), faults)
    except (OSError, ValueError) as error:
        show_warning(f"there is no report page: {error}")


def _prepare(study: Path, name: str, data: Path | None, keys: Path, listen: str | None) -> tuple[Any, Any, str | None]:
    """The study, the credentials and the address to listen at."""
    from proxdasa.sites.connections import Credentials  # noqa: PLC0415
    from proxdasa.sites.keys import CERTIFICATE, check_pair  # noqa: PLC0415
    from proxdasa.sites.study import read_study  # noqa: PLC0415

    known = read_study(study, data)
    known.number(name)
    credentials = Credentials(keys / f"{name}.crt", keys / f"{name}.key", keys / CERTIFICATE)
    card = check_pair(*credentials)
    if card.name != name:
        raise ValueError(f"{credentials.certificate} is the certificate of {card.name}, but this site is {name}")
    port = known.addresses[name].rpartition(":")[2]
    return known, credentials, listen or (f"[::]:{port}" if port else None)


def _look(act: Callable[[], str], cure: str, needed: bool = True) -> Finding:
    try:
        return Finding(act())
    except (OSError, ValueError, ModuleNotFoundError) as error:
        return Finding(sentence(error), cure, needed)


def _study_or_none(study: Path, name: str, data: Path | None) -> Any:
    """The study; None if it cannot be read or does not have this site, which `_look_at_study` reports."""
    try:
        from proxdasa.sites.study import read_study  # noqa: PLC0415

        known = read_study(study, data)
        known.number(name)
    except (OSError, ValueError, ModuleNotFoundError):
        return None
    return known


def _look_at_study(study: Path, name: str, data: Path | None, *_: Any) -> Finding:
    def act() -> str:
        from proxdasa.sites.study import own_problem, read_study  # noqa: PLC0415

        known = read_study(study, data)
        own_problem(known, name)
        neighbours = ", ".join(known.weights(name))
        return f"study {known.digest[:12]} with {len(known.names)} sites; neighbours of {name}: {neighbours}"

    return _look(act, "correct the file or the data; all sites need the same study file")


def _look_at_keys(_study: Path, name: str, _data: Path | None, keys: Path, *_: Any) -> Finding:
    def act() -> str:
        from proxdasa.sites.keys import CERTIFICATE, check_pair  # noqa: PLC0415

        card = check_pair(keys / f"{name}.crt", keys / f"{name}.key", keys / CERTIFICATE)
        if card.name != name:
            raise ValueError(f"the certificate is that of {card.name}")
        return f"certificate of {card.name}, valid until {card.expires:%Y-%m-%d}"

    return _look(act, f"proxdasa keys request {name}, have it signed, and put the files into {keys.resolve()}")


def _look_at_versions(*_: Any) -> Finding:
    names = ("proxdasa", "torch", "numpy", "grpcio", "cryptography")
    return _look(
        lambda: f"{', '.join(f'{name} {version(name)}' for name in names)}; all sites need this version of proxdasa",
        "pip install 'proxdasa[sites]'",
    )


def _look_at_clock(study: Path, name: str, _data: Path | None, keys: Path, *_: Any) -> Finding:
    """Check that the clock is not slow: no file may have been written in the future.

    A clock that is fast makes certificates expire.
    """
    files = [path for path in (study, keys / f"{name}.crt", keys / "authority.crt") if path.exists()]
    newest = max(files, key=lambda path: path.stat().st_mtime, default=None)
    found = f"the clock says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if newest and newest.stat().st_mtime > time.time() + CLOCK:
        return Finding(f"{found}, but {newest} was written later", "set the clock, preferably by NTP")
    return Finding(found)


def _look_at_port(study: Path, name: str, data: Path | None, _keys: Path, listen: str | None) -> Finding:
    known = _study_or_none(study, name, data)
    if not listen and not known:
        return Finding("the port is unknown without a study", "see above", needed=False)
    address = listen or known.addresses[name]
    if not address:
        return Finding("no open port: this site calls its neighbours")

    def act() -> str:
        host, port = address.rsplit(":", 1)
        with socket.create_server((host.strip("[]") if listen else "", int(port))):
            return f"port {port} is free to listen at"

    return _look(act, "end the program that has the port, or choose another with --listen")


def _look_at_neighbours(study: Path, name: str, data: Path | None, *_: Any) -> Finding:
    if not (known := _study_or_none(study, name, data)):
        return Finding("neighbours are unknown without a study", "see above", needed=False)
    addresses = {other: known.addresses[other] for other in known.weights(name) if known.addresses[other]}
    silent = []
    for other, address in addresses.items():
        host, port = address.rsplit(":", 1)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
        except OSError:
            silent.append(f"{other} ({address})")
    if silent:
        cure = "they may not have started yet; otherwise ask your network administrator about outgoing connections"
        return Finding(f"no answer from {', '.join(silent)}", cure, needed=False)
    return Finding(f"{len(addresses)} neighbours answer")


def _look_at_disk(*_: Any) -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    return Finding(f"{free / 2**30:.1f} GB free", "make room, or choose another --output" if free < ROOM else "")
