"""Sites of a study as processes, each with a folder of its own, for tests and benchmarks that disturb them.

The program is the user's, `proxdasa site run`, but slower, so that there is time to disturb it: a site pauses in each
iteration, and pauses longer from a certain one on, until it is told that it may end (`SiteProcesses.end`). It writes no
report page.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
import time

import torch

import proxdasa
from proxdasa.exit_codes import Code
from proxdasa.sites.site_status import STATUS
from proxdasa.sites.study import read_study
from tests.federation import make_keys, write_study
from tests.processes import trouble, until

NAMES = ("aachen", "berlin", "celle", "dresden")
RING = (("aachen", "berlin"), ("berlin", "celle"), ("celle", "dresden"), ("aachen", "dresden"))
PAUSE = 0.04
"""Seconds that an iteration takes at least; five times as many once sites wait for a test to let them end."""
SLOWER = """
import time
from pathlib import Path
from proxdasa.cli import site_commands
from proxdasa.sites import site
site_commands._write_page = lambda *_: None
site.PACE = 0.2
enter = site.SiteAgent.enter
def slow(self, k):
    if not Path({go!r}).exists():
        time.sleep({pause} if k < {hold} else 5 * {pause})
    enter(self, k)
site.SiteAgent.enter = slow
"""


class SiteProcesses:
    """The processes of the sites of a ring; ``start`` is a function of `tests.processes.commands`."""

    def __init__(
        self, folder, start, addresses, *, iterations=400, hold=200, patience=4.0, wait=20.0, pause=PAUSE, listen=None,
        networks=None, fork=True, checkpoint_every=0.4, observe_every=50,
    ):  # fmt: skip
        self.folder, self.names, self._start = folder, tuple(addresses), start
        self.running, self._listen, self._networks = {}, listen or {}, networks or {}
        self._fork, self._every, self._numbers = fork, checkpoint_every, itertools.count()
        make_keys(folder, self.names)
        self.file = write_study(
            folder / "study.toml", addresses, iterations, patience, wait, observe_every=observe_every
        )
        self.study, self._go = read_study(self.file), folder / "go"
        self.places = {name: folder / name for name in self.names}
        """Where the sites' results are in the end."""
        self._slower = SLOWER.format(go=str(self._go), pause=pause, hold=hold)

    def start(self, *names, file=None, more="", fork=None, env=None):
        """Start sites, or start them again; ``more`` is Python that they run before anything else."""
        for name in names or self.names:
            hook = trouble(self.folder / f"trouble-{next(self._numbers)}", self._slower + more)
            words = ["site", "run", file or self.file, "--as", name, "--keys", self.folder]
            words += ["--output", self.folder / name, "--checkpoint-every", self._every]
            words += ["--listen", self._listen[name]] if name in self._listen else []
            network, fork = self._networks.get(name), self._fork if fork is None else fork
            outside = ["ip", "netns", "exec", network, sys.executable, "-m"] if network and not fork else []
            where = {"network": network} if network and fork else {}
            command = (*outside, "proxdasa", *words)
            self.running[name] = self._start(*command, env=hook | (env or {}), fork=fork, **where)
        return self

    def kill(self, *names):
        """Kill sites at the same time, without warning."""
        for name in names:
            os.kill(self.running[name].pid, signal.SIGKILL)
        for name in names:
            self.running[name].wait()

    def terminate(self, name):
        """Ask a site to stop, which it does with a checkpoint."""
        os.kill(self.running[name].pid, signal.SIGTERM)
        self.running[name].ended(Code.INTERRUPTED, -signal.SIGTERM)  # the latter while it is just starting

    @contextlib.contextmanager
    def freeze(self, name):
        """Stop a process within the context."""
        os.kill(self.running[name].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.running[name].pid, signal.SIGCONT)

    def status(self, name):
        """The status that a site has written last; empty if there is none yet."""
        path = self.folder / name / STATUS
        return json.loads(path.read_bytes()) if path.exists() else {}

    def iteration(self, name):
        """How far a site is."""
        return self.status(name).get("iteration", -1)

    def go_on(self, *names, steps=5):
        """Wait until these sites have made further iterations, according to their status."""
        before = {name: self.iteration(name) for name in names}
        until(lambda: all(self._lives(name) and self.iteration(name) >= before[name] + steps for name in names))

    def together(self, *names):
        """Wait until these sites, by default all, count the links between them."""
        names, began = names or self.names, time.time()

        def all_count():
            for name in names:
                assert self._lives(name)
                path = self.folder / name / STATUS
                if not path.exists() or path.stat().st_mtime < began:
                    return False  # what an earlier process has left
                neighbours = self.status(name)["neighbours"]
                if any(state != "counts" for other, state in neighbours.items() if other in names):
                    return False
            return True

        until(all_count, pause=0.05)

    def let_end(self):
        """Let sites make their last iterations without pauses."""
        self._go.touch()

    def end(self, *names):
        """Let sites make their last iterations; the exit codes of all, or of these."""
        self.let_end()
        return {name: self.running[name].wait() for name in names or self.running}

    def text(self, name):
        """What a site has logged since it was last started."""
        return self.running[name].text()

    def results(self, *names):
        """What sites, by default all, have saved at the end."""
        return [proxdasa.load(self.places[name]) for name in names or self.names]

    def state(self, variable, *names):
        """A variable of sites at the end, ``[sites, d]``."""
        return torch.cat([result.state[variable][:, 0] for result in self.results(*names)])

    def _lives(self, name):
        code = self.running[name].poll()
        assert code is None, f"{name} ended with {code}:\n{self.text(name)}"
        return True


def tracking_error(sites, *names):
    """How far the mean of u is from that of v, relative to their size."""
    u, v = sites.state("u", *names), sites.state("v", *names)
    return float((u.mean(dim=0) - v.mean(dim=0)).abs().max() / torch.cat([u, v]).abs().max())


def solution(sites, *names):
    """What minimises the objective of the sites, by default all, by plain steps of the proximal gradient method."""
    A, b, weight = _mean(sites, *names)
    x, step = torch.zeros_like(b), 0.3
    for _ in range(2_000):
        y = x - step * (A @ x - b)
        x = y.sign() * (y.abs() - step * weight).clamp(min=0)
    return x


def objective(sites, x, *names):
    """(1/n) Σ ½ xᵀA_i x − b_iᵀx + λ‖x‖₁ over the sites, by default all."""
    A, b, weight = _mean(sites, *names)
    return float(0.5 * x @ A @ x - b @ x + weight * x.abs().sum())


def _mean(sites, *names):
    """The means of A_i and b_i, and λ."""
    setup, here = sites.study.setup, [sites.names.index(name) for name in names or sites.names]
    return setup.problem.A[here].mean(dim=0), setup.problem.b[here].mean(dim=0), setup.regularizer.weight
