"""How a site ends when it does not end with all others: lost in the last rounds, too late, or by divergence."""

import json
import math
import shutil

import pytest
import torch

import proxdasa
from proxdasa.runs.records import CHECKPOINTS
from proxdasa.sites.site import APART, IN_PART
from proxdasa.sites.site_agent import SiteAgent, measure
from tests.federation import Federation, Killed
from tests.processes import until

NAMES = ("aachen", "berlin")
FINAL = "final.safetensors"


def saved(federation, name):
    return proxdasa.load(federation.folder / name)


def test_a_site_killed_in_the_last_rounds_gets_the_model_when_it_returns(tmp_path, monkeypatch):
    """Its neighbour has saved its results by then, and stays for a while; nobody else could hand over the model."""
    bring_together, lost = SiteAgent.bring_together, []

    def die_once(self, x):
        if self.agents.start == 1 and not lost:
            lost.append(x)
            raise Killed
        return bring_together(self, x)

    monkeypatch.setattr(SiteAgent, "bring_together", die_once)
    names = ("aachen", "berlin", "celle")
    federation = Federation(tmp_path / "sites", iterations=20, names=names, patience=60.0, wait=60.0)
    federation.start()
    federation._threads["berlin"].join(60)
    assert lost
    for name in ("aachen", "celle"):
        until(lambda name=name: (federation.folder / name / FINAL).exists() or federation.errors)
    assert not federation.results, "they stay"
    shutil.rmtree(federation.folder / "berlin" / CHECKPOINTS, ignore_errors=True)  # one of the end would have their z
    federation.start("berlin")
    assert not federation.join(60)
    assert not federation.errors
    aachen, berlin, celle = (saved(federation, name) for name in names)
    torch.testing.assert_close(berlin.x, (aachen.x + celle.x) / 2, rtol=0, atol=1e-3)
    fact = berlin.config["facts"]["brought_together"]
    givers = fact.removeprefix("taken over from ").split(", ")  # it does not wait for the second
    assert {*givers} <= {"aachen", "celle"}
    z = sum(saved(federation, name).state["z"] for name in givers) / len(givers)
    γ, weight = 0.4, 0.01
    point = berlin.x - γ * z
    expected = point.sign() * (point.abs() - γ * weight).clamp(min=0)
    torch.testing.assert_close(berlin.solution, expected[:, 0], rtol=0, atol=1e-12)
    last = berlin.records[-1]
    assert (berlin.iterations, last["k"]) == (20, 20), "the model of the others is that of the end"
    site = federation.sites["berlin"]
    there = measure(site.agent, site._algorithm, site.study.metrics, site._algorithm.State(**berlin.state))
    assert last["loss"] == there["loss"]
    assert [result.config["facts"]["brought_together"] for result in (aachen, celle)] == [IN_PART, IN_PART]
    assert json.loads((federation.folder / "berlin" / "status.json").read_text())["doing"] == "finished"


def test_a_site_that_returns_when_all_have_left_keeps_what_it_has_and_says_so(tmp_path):
    federation = Federation(tmp_path / "sites", names=NAMES, wait=0.1)
    site = federation.make("berlin")
    site.connections.close()
    state = site._algorithm.init(site.agent, site._start)
    site._save(3, state._replace(x=state.x + 7.0))
    for _ in range(2):  # it can try again, because others may return as well
        with pytest.raises(
            TimeoutError, match=r"no neighbour of berlin connected .* iteration 3, not brought together"
        ):
            federation.make("berlin").run()
        kept = saved(federation, "berlin")
        assert torch.equal(kept.x, state.x + 7.0)
        assert (kept.stopped, kept.iterations) == ("interrupted", 3)
        assert kept.config["facts"]["brought_together"] == APART


class Diverging:
    """A method whose x is not finite after iteration 5."""

    def __init__(self, method):
        self._method = method

    def __getattr__(self, name):
        return getattr(self._method, name)

    def step(self, agents, k, state):
        found = self._method.step(agents, k, state)
        return found._replace(x=found.x * math.inf) if k == 5 else found


def test_a_site_that_diverges_says_so_and_keeps_its_records_and_the_others_go_on(tmp_path, monkeypatch):
    federation = Federation(tmp_path / "sites", iterations=20, names=NAMES, patience=0.3)
    federation.file.write_text(federation.file.read_text().replace("observe_every = 50", "observe_every = 1"))
    make = federation.make

    def make_diverging(name):
        site = make(name)
        if name == "berlin":
            site._algorithm = Diverging(site._algorithm)
        return site

    monkeypatch.setattr(federation, "make", make_diverging)
    assert not federation.start().join(60)
    assert [*federation.errors] == ["berlin"]
    assert isinstance(federation.errors["berlin"], ArithmeticError)
    assert str(federation.errors["berlin"]) == "berlin met a value that is not finite in iteration 5; try a smaller γ"
    berlin = saved(federation, "berlin")
    assert berlin.stopped == "diverged"
    assert [row["k"] for row in berlin.records] == [*range(6)]
    assert berlin.config["facts"]["brought_together"] == APART
    assert berlin.x.isfinite().all(), "the last state that was"
    assert json.loads((federation.folder / "berlin" / "status.json").read_text())["doing"] == "diverged"
    with pytest.raises(FileExistsError, match="which has diverged; to take part again, choose another --output"):
        make("berlin")
    aachen = saved(federation, "aachen")
    assert (aachen.stopped, aachen.iterations) == (None, 20)
    assert aachen.config["facts"]["brought_together"] == APART
