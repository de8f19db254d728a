"""Sentences on what did not go as planned in a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from proxdasa.reports.axis_quantities import value
from proxdasa.reports.curves import Run

SPENT = ("computation", "communication", "waiting")


def differences(run: Run) -> list[str]:
    """How a run ended if not as planned, where its trials diverged, and what its records lack."""
    ending, last = run.config["ending"], run.rows[-1]["k"]
    found = [run.ending] if run.ending else []
    broken = divergences(run)
    found += [
        f"trial {trial} diverged in iteration {where['iteration']}, first at agent {where['agent']}"
        for trial, where in broken.items()
    ]
    if broken and ending["stopped"] not in (None, "diverged"):
        found.append(f"{ending['stopped']} after {ending['iterations']} of {run.config['iterations']} iterations")
    if not broken and last + run.config.get("observe_every", 1) <= ending["iterations"]:
        found.append(f"the records end at iteration {last}, though {ending['iterations']} were made")
    lost = set(run.began) - set(broken) - {row["trial"] for row in run.rows if row["k"] == last}
    if lost:
        found.append(f"{len(lost)} of {len(run.began)} trials have no record at iteration {last}")
    return found


def divergences(run: Run) -> dict[int, Mapping[str, int]]:
    """The trials that diverged, and where."""
    found: Mapping[str, Mapping[str, int]] = run.config["ending"]["diverged"] if run.began else {}
    return {int(trial): where for trial, where in found.items() if int(trial) in run.began}


def loss_of(run: Run) -> str:
    """A text that takes the place of a result if trials diverged; empty if none did."""
    lost = divergences(run)
    return f"{len(lost)} of {len(run.began)} diverged" if lost else ""


def times(run: Run) -> dict[str, float]:
    """The seconds of computation, communication and waiting, where agents lived in several processes."""
    spent = {kind: value(run.rows[-1], kind) for kind in SPENT}
    return spent if all(map(math.isfinite, spent.values())) else {}


def links(run: Run) -> list[list[str]]:
    """A row for each link of a site: neighbour, rounds, those missed, megabytes sent, and when the link was down."""
    return [
        [
            neighbour, f"{link['rounds']:,}", f"{link['missed']:,}", f"{link['sent'] / 1e6:,.1f}",
            ", ".join(_span(*span) for span in link["down"]) or "never",
        ]
        for neighbour, link in run.config["facts"].get("links", {}).items()
    ]  # fmt: skip


def _span(first: int, last: int | None = None) -> str:
    return f"from {first:,} on" if last is None else f"{first:,} to {last:,}"
