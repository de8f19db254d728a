"""``make soak``: the sites of a study run for an hour with a fault every few seconds, and must not grow, hang or fail.

Four sites run on this machine, each in a process and behind a relay. Two of them are killed with SIGKILL, or asked to
stop, and started again; all of them are frozen for some seconds, or cut off from others. The two that are never ended
are watched for the whole time: memory, open files and threads must be flat after a warm-up. In the end all links count,
all sites have the model of an undisturbed run, and the mean of their trackers is that of their gradients.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.federation import HOST, Relay, free_ports
from tests.processes import commands
from tests.site_processes import NAMES, SiteProcesses, objective, tracking_error

LASTING = ("aachen", "celle")
"""The sites that are not killed."""
PATIENCE, PAUSE = 3.0, 0.02
LAST = 300
"""Iterations without a fault at the end."""
WARM_UP = 0.25
"""The share of the time in which sites may grow."""
SHORT = 180.0
"""Growth is only judged if measurements span at least this many seconds."""
ROOM = {"memory": 3.0, "files": 3.0, "threads": 3.0}
"""By how much the fit may rise from its beginning to its end: in megabytes, and in numbers of files and threads.

The server keeps about 3 kB for a lost connection for some minutes, so memory depends a little on the latest faults.
"""
HANG = 60.0
"""Seconds without an iteration after which a site counts as hanging. They start anew when the site is restarted: a site
that is killed time and again before it has begun does not hang. No fault lasts a quarter as long."""
TRACKING, MARGIN = 1e-12, 1e-6
"""The largest errors allowed at the end: of the trackers' mean, and of the objective, both relative."""


class Sample(NamedTuple):
    """What a process uses at one moment."""

    at: float
    memory: float
    files: float
    threads: float


def measure(pid: int) -> Sample:
    """What a process uses now."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(lines["VmRSS"].split()[0]) / 1024
    return Sample(time.monotonic(), memory, len(os.listdir(f"/proc/{pid}/fd")), int(lines["Threads"]))


def rise(samples: list[Sample], what: str) -> float:
    """By how much the straight line through the samples rises from the first to the last."""
    at = np.array([sample.at for sample in samples])
    slope = np.polyfit(at - at[0], [getattr(sample, what) for sample in samples], 1)[0]
    return float(slope * (at[-1] - at[0]))


class Watch(threading.Thread):
    """Takes a sample of each site every second, and notices sites that have made no iteration for long."""

    def __init__(self, sites: SiteProcesses) -> None:
        super().__init__(daemon=True)
        self.sites, self.samples = sites, {name: list[Sample]() for name in NAMES}
        self.hanging: dict[str, int] = {}
        self.sampling = True
        self._ended, self._last = threading.Event(), {name: ((-1, -1), time.monotonic()) for name in NAMES}

    def run(self) -> None:
        """Watch until the end."""
        while not self._ended.wait(1.0):
            for name in NAMES:
                try:
                    pid = self.sites.running[name].pid
                    sample = measure(pid)
                except (OSError, KeyError):
                    continue  # the site is just being restarted, or has ended
                if self.sampling:
                    self.samples[name].append(sample)
                k, now = self.sites.iteration(name), time.monotonic()
                before, since = self._last[name]
                if (pid, k) != before:
                    self._last[name] = (pid, k), now
                elif now - since > HANG:
                    self.hanging[name] = k

    def end(self) -> None:
        """Take no more samples."""
        self._ended.set()
        self.join()


def disturb(rng: random.Random, sites: SiteProcesses, relays: dict[str, Relay]) -> str:
    """Disturb a site; returns the name of the fault."""

    def kill(name: str) -> None:
        sites.kill(name)
        time.sleep(rng.uniform(0.0, 2.0))
        sites.start(name)

    def restart(name: str) -> None:
        sites.terminate(name)
        sites.start(name)

    def freeze(name: str) -> None:
        with sites.freeze(name):
            time.sleep(rng.uniform(0.2, 6.0))

    def cut(name: str) -> None:
        relays[name].cut = True
        time.sleep(rng.uniform(0.2, 12.0))
        relays[name].cut = False

    others = [name for name in NAMES if name not in LASTING]
    deeds: list[tuple[Callable[[str], None], Any]] = [(kill, others), (restart, others), (freeze, NAMES), (cut, NAMES)]
    deed, names = rng.choice(deeds)
    deed(rng.choice(names))
    return deed.__name__


def soak(minutes: float, seed: int, folder: Path, fork: bool = False) -> int:
    """Run the sites; returns 0 if all is well, or prints why not and returns 1. ``fork`` saves start-up time."""
    rng, seconds, began = random.Random(seed), 60 * minutes, time.monotonic()
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    relays = {name: Relay(port, remember=False) for name, port in ports.items()}
    hold = round(seconds / (2 * PAUSE))  # sites make fewer iterations than one in each pause
    iterations = hold + round(seconds / (5 * PAUSE)) + LAST
    done, faults = Counter[str](), list[str]()
    with commands(folder) as start:
        sites = SiteProcesses(
            folder, start, {name: f"{HOST}:{relay.port}" for name, relay in relays.items()}, iterations=iterations,
            hold=hold, patience=PATIENCE, wait=60.0, pause=PAUSE, fork=fork, checkpoint_every=2.0, observe_every=5_000,
            listen={name: f"{HOST}:{port}" for name, port in ports.items()},
        )  # fmt: skip
        watch = Watch(sites)
        try:
            sites.start().together()
            watch.start()
            told = begun = time.monotonic()
            while time.monotonic() - begun < seconds and not watch.hanging:
                time.sleep(rng.uniform(1.0, 4.0))
                done[disturb(rng, sites, relays)] += 1
                if time.monotonic() - told > max(10.0, seconds / 60):
                    told = time.monotonic()
                    print(progress(told - begun, seconds, sites, watch, done), flush=True)
            sites.together()
            watch.sampling = False  # saving the results and a page takes memory of its own
            sites.let_end()  # takes minutes after an hour: a site that makes iterations does not hang
            while not watch.hanging and any(site.poll() is None for site in sites.running.values()):
                time.sleep(0.1)
            watch.end()
            codes = {} if watch.hanging else sites.end()
            faults += [f"{name} ended with {code}" for name, code in codes.items() if code]
        except AssertionError as error:
            faults.append(f"a site ended or hung: {error}")
        faults += [
            f"{name} hung in iteration {k}; the end of its log:\n{sites.text(name)[-2_000:]}"
            for name, k in watch.hanging.items()
        ]
        if not faults:
            faults += judge_end(sites)
    faults += report(watch, time.monotonic() - began)
    print(f"{sum(done.values())} faults: {', '.join(f'{count} × {name}' for name, count in sorted(done.items()))}")
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


def progress(elapsed: float, seconds: float, sites: SiteProcesses, watch: Watch, done: Counter[str]) -> str:
    """A line about the progress of the soak."""
    where = ", ".join(f"{name} {sites.iteration(name)}" for name in NAMES)
    memory = ", ".join(f"{name} {watch.samples[name][-1].memory:.0f} MB" for name in LASTING if watch.samples[name])
    return (
        f"{elapsed / 60:5.1f} of {seconds / 60:g} minutes, {sum(done.values())} faults; iterations: {where}; {memory}"
    )


def judge_end(sites: SiteProcesses) -> list[str]:
    """What is wrong with the models and trackers at the end."""
    undisturbed = dataclasses.replace(sites.study.setup, iterations=2_000).run()  # more iterations change nothing
    best = objective(sites, undisturbed.mean[0])
    reached = max(objective(sites, x) for x in sites.state("x"))
    error, excess = tracking_error(sites), (reached - best) / abs(best)
    epochs = max(sites.status(name)["epoch"] for name in NAMES)
    print(
        f"in the end: |mean u − mean v| = {error:.1e} of their size; objective {excess:.1e} above that of the "
        f"undisturbed run, relative; trackers were reset {epochs} times"
    )
    found = [f"the means of u and v differ by {error:.1e}"] if error > TRACKING else []
    return found + ([f"the objective is {excess:.1e} too large"] if abs(excess) > MARGIN else [])


def report(watch: Watch, elapsed: float) -> list[str]:
    """Print what the sites used; returns what grew."""
    faults = []
    print(f"{elapsed / 60:.1f} minutes; what sites used: at the beginning, at the end, and by how much the fit rose")
    for name in LASTING:
        samples = watch.samples[name]
        samples = samples[int(WARM_UP * len(samples)) :]
        if len(samples) < 2:
            print(f"  {name}: no measurements")
            continue
        cells = []
        for what, room in ROOM.items():
            rose = rise(samples, what)
            unit = " MB" if what == "memory" else ""
            values = [getattr(sample, what) for sample in samples]
            cells.append(f"{what} {values[0]:.0f} → {values[-1]:.0f}{unit} ({rose:+.2f}, at most {max(values):.0f})")
            if rose > room and samples[-1].at - samples[0].at >= SHORT:
                faults.append(f"{what} of {name} grew by {rose:.1f}{unit}")
        print(f"  {name}: {'; '.join(cells)}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no site may outlive this process
    with tempfile.TemporaryDirectory(prefix="proxdasa-soak-") as name:
        return soak(given.minutes, given.seed, Path(name))


if __name__ == "__main__":
    sys.exit(main())
