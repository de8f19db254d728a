"""``proxdasa keys``: the certificates of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxdasa.cli.display import input_errors, say

app = typer.Typer(no_args_is_help=True, help="Make the keys and certificates of a study's sites.")


@app.command()
def authority(
    folder: Annotated[Path, typer.Argument(help="A folder for the authority; the coordinator keeps it.")],
) -> None:
    """Make a certificate authority: once for a study, by whoever coordinates it."""
    with input_errors():
        from proxdasa.sites import keys  # noqa: PLC0415 - cryptography is an extra

        certificate = keys.make_authority(folder)
    say(f"{certificate}: the authority's certificate; send it to all sites")
    say(f"{folder / keys.KEY}: its private key, which signs requests; keep it to yourself")


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="The name of this site in the study file.")],
    folder: Annotated[Path, typer.Option(help="Where to write the key and the request.")] = Path(),
) -> None:
    """Make this site's private key, which never leaves it, and a request for its certificate."""
    with input_errors():
        from proxdasa.sites import keys  # noqa: PLC0415

        private, asked = keys.make_request(name, folder)
    say(f"{private}: the private key of {name}; it must not leave this site")
    say(f"{asked}: send it to the coordinator, who signs it: proxdasa keys sign AUTHORITY {asked.name}")


@app.command()
def sign(
    authority: Annotated[Path, typer.Argument(help="The folder of the authority.")],
    request: Annotated[Path, typer.Argument(help="The request of a site, NAME.csr.")],
    days: Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")] = 365,
) -> None:
    """Sign a site's request. Make sure by other means, such as a call, that it is really from that site."""
    with input_errors():
        from proxdasa.sites import keys  # noqa: PLC0415

        certificate = keys.sign(authority, request, days)
        card = keys.read_card(certificate)
    say(f"{certificate}: the certificate of {card.name}, valid until {card.expires:%Y-%m-%d}; send it to the site")


@app.command()
def show(certificates: Annotated[list[Path], typer.Argument(help="Certificates, .crt.")]) -> None:
    """Show whose certificates these are, who signed them, and when they expire."""
    with input_errors():
        from proxdasa.sites import keys  # noqa: PLC0415

        for path in certificates:
            card = keys.read_card(path)
            state = "EXPIRED" if card.expired else "expires soon" if card.due else "valid"
            say(f"{path}: {card.name}, signed by {card.issuer}, until {card.expires:%Y-%m-%d}: {state}")
