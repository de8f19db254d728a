"""Every law of `check_algorithm` against methods that break it: a check that cannot fail is worth nothing."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import pytest
import torch

from proxdasa.algorithms import DPSGD, PGExtra, ProxDASA, ProxDASAGT
from proxdasa.contracts import Averaging, Facts, Tracking
from proxdasa.schedules import Alpha, Number, constant
from proxdasa.testing import LawError, check, check_algorithm, laws
from proxdasa.testing.case import Case, Verbs
from tests.setups import LocalSteps


@dataclass(frozen=True, eq=False)
class Sound:
    """DProxSGT with its parts as methods of their own, so that each can be broken alone."""

    facts: ClassVar[Facts] = Facts("sound", vectors=2, gradients=1, tracking=Tracking("y", "g"))

    gamma: Number = 0.3

    class State(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor
        g: torch.Tensor

    @property
    def mapping_gamma(self):
        return self.gamma

    def init(self, agents, x):
        return self.State(x, torch.zeros_like(x), torch.zeros_like(x))

    def gradient(self, agents, k, x):
        return agents.grad(x, k)

    def mixed(self, agents, x, y):
        return agents.mix(x, y)

    def moved(self, agents, k, x, y):
        return agents.prox(x - self.gamma * y, self.gamma)

    def step(self, agents, k, state):
        x, y, g = state[:3]
        g_new = self.gradient(agents, k, x)
        x, y = self.mixed(agents, x, y + g_new - g)
        return self.State(self.moved(agents, k, x, y), y, g_new)


# what a method is


class NoDataclass:
    facts = Sound.facts


@dataclass
class Unfrozen:
    facts: ClassVar[Facts] = Sound.facts
    gamma: Number = 0.3


class NoFacts(Sound):
    facts = "two vectors"


class XIsNotFirst(Sound):
    class State(NamedTuple):
        y: torch.Tensor
        x: torch.Tensor


class NoMappingGamma(Sound):
    mapping_gamma = None


class SinglePrecision(Sound):
    def init(self, agents, x):
        return self.State(x, torch.zeros(x.shape), torch.zeros(x.shape))


class OneRow(Sound):
    def init(self, agents, x):
        return self.State(x, torch.zeros_like(x), torch.zeros_like(x[:, :1]))


class BareTuple(Sound):
    def step(self, agents, k, state):
        return tuple(super().step(agents, k, state))


class WrongSign(Sound):
    def moved(self, agents, k, x, y):
        return agents.prox(x + self.gamma * y, self.gamma)


class AsksForN(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y * agents.n / agents.n)


class LooksForN(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y * getattr(agents, "n", 5) / 5)


# what a step may touch


class WritesIntoX(Sound):
    def init(self, agents, x):
        return super().init(agents, x.add_(1.0))


class WritesIntoTracker(Sound):
    def step(self, agents, k, state):
        g_new = agents.grad(state.x, k)
        x, y = agents.mix(state.x, state.y.add_(g_new - state.g))
        return self.State(self.moved(agents, k, x, y), y, g_new)


@dataclass(frozen=True, eq=False)
class Counts(Sound):
    calls: list = field(default_factory=list, init=False, repr=False)

    def moved(self, agents, k, x, y):
        self.calls.append(k)
        return super().moved(agents, k, x, y if len(self.calls) < 20 else 0.9 * y)


class Noisy(Sound):
    def gradient(self, agents, k, x):
        return agents.grad(x, k) + 1e-6 * torch.randn_like(x)


class TracksWithoutNeighbours(Sound):
    def mixed(self, agents, x, y):
        x, _ = agents.mix(x, y)
        return x, y


class MeanOverAgents(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y / (1 + 0.1 * x.mean(1, keepdim=True).tanh()))


# what it says of itself


class Dead(Sound):
    class State(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor
        g: torch.Tensor
        w: torch.Tensor

    def init(self, agents, x):
        return self.State(x, torch.zeros_like(x), torch.zeros_like(x), x)

    def step(self, agents, k, state):
        x, y, g, w = state
        g_new = agents.grad(x, k)
        mixed, y = agents.mix(x, y + g_new - g)
        return self.State(self.moved(agents, k, mixed, y), y, g_new, 0.5 * (w + x))


class OneVector(Sound):
    facts = Sound.facts._replace(vectors=1)


class TwoGradients(Sound):
    facts = Sound.facts._replace(gradients=2)


class SaysItDoesNotMix(Sound):
    facts = Sound.facts._replace(mixes=False)


class SendsSometimes(LocalSteps):
    facts = LocalSteps.facts._replace(sends_every=None)


class SaysItSendsSometimes(LocalSteps):
    def sends(self, k):
        return True


class SendsAtOtherTimes(LocalSteps):
    def sends(self, k):
        return k % self.local_steps == 0


class NoSuchParameter(LocalSteps):
    facts = LocalSteps.facts._replace(sends_every="period")


class OneSample(Sound):
    def gradient(self, agents, k, x):
        return agents.grad(x, 0)


class NeverBegun(Sound):
    def init(self, agents, x):
        return self.State(x, torch.full_like(x, 0.1), torch.zeros_like(x))


class TracksByIteration(Sound):
    """Computes the last gradient again in some steps, by k: an agent that was out had another."""

    class State(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor
        g: torch.Tensor
        last: torch.Tensor

    def init(self, agents, x):
        return self.State(x, torch.zeros_like(x), torch.zeros_like(x), x)

    def step(self, agents, k, state):
        x, y, g, last = state
        g_new = agents.grad(x, k)
        g = (g + agents.grad(last, k - 1)) / 2 if k % 3 == 1 else g
        mixed, y = agents.mix(x, y + g_new - g)
        return self.State(self.moved(agents, k, mixed, y), y, g_new, x)


# what agents and trials are to each other


class Leader(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x - 0.01 * (x - x[:, :1]), y)


class Numbered(Sound):
    def moved(self, agents, k, x, y):
        speed = 1 - 0.1 * torch.arange(x.shape[1], dtype=x.dtype).view(-1, 1) / 5
        return super().moved(agents, k, x, speed * y)


class KnowsHowMany(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y * (1.0 if x.shape[1] > 1 else 0.9))


class Branches(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y if self.gamma > 0 else -y)


class TrialsMeet(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y / (1 + 0.1 * y.abs().amax((0, 2), keepdim=True)))


# where it ends


class Biased(Sound):
    def gradient(self, agents, k, x):
        return agents.grad(x, k) + 0.1


class NoProx(Sound):
    def moved(self, agents, k, x, y):
        return x - self.gamma * y


class OtherProx(Sound):
    def moved(self, agents, k, x, y):
        return agents.prox(x - self.gamma * y, 2 * self.gamma)


class SlightlyOtherProx(Sound):
    def moved(self, agents, k, x, y):
        return agents.prox(x - self.gamma * y, 0.9 * self.gamma)


class MixesForNothing(Sound):
    def mixed(self, agents, x, y):
        agents.mix(x, y)
        return x, y


class AveragesX(ProxDASA):
    facts = ProxDASA.facts._replace(averaging=Averaging("x", "alpha"))


class AveragesTheTracker(ProxDASAGT):
    facts = ProxDASAGT.facts._replace(averaging=Averaging("u", "alpha"))


class AveragesSlower(ProxDASA):
    def step(self, agents, k, state):
        new = super().step(agents, k, state)
        return new._replace(z=torch.lerp(new.z, state.z, 0.1))


# where it runs


class CountsRowsHere(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y * (1.0 if x.shape[1] in (1, 5) else 0.9))


class SameTensor(Sound):
    """Remembers by identity what a checkpoint cannot: that g and w are one tensor."""

    class State(NamedTuple):
        x: torch.Tensor
        y: torch.Tensor
        g: torch.Tensor
        w: torch.Tensor

    def init(self, agents, x):
        zero = torch.zeros_like(x)
        return self.State(x, torch.zeros_like(x), zero, zero)

    def step(self, agents, k, state):
        x, y, g, w = state
        g_new = agents.grad(x, k)
        x, y = agents.mix(x, y + g_new - g)
        return self.State(self.moved(agents, k, x, y if w is g else y + 0.1 * w), y, g_new, g_new)


class HalfInSingle(Sound):
    def moved(self, agents, k, x, y):
        return super().moved(agents, k, x, y if x.dtype == torch.float64 else 0.5 * y)


class LateFullGradient(Sound):
    def gradient(self, agents, k, x):
        return agents.grad(x, k) + (0.0 * agents.full_grad(x) if k == 10 else 0.0)


class Swallows(Sound):
    def gradient(self, agents, k, x):
        return agents.grad(x, k).nan_to_num(0.0)


BROKEN = [
    (NoDataclass(), {"contract"}),
    (Unfrozen(), {"contract"}),
    (NoFacts(), {"contract"}),
    (XIsNotFirst(), {"contract"}),
    (NoMappingGamma(), {"contract"}),
    (SinglePrecision(), {"shapes"}),
    (OneRow(), {"shapes"}),
    (BareTuple(), {"shapes"}),
    (WrongSign(), {"stable"}),
    (Sound(gamma=100.0), {"stable"}),
    (AsksForN(), {"verbs"}),
    (LooksForN(), {"verbs"}),
    (WritesIntoX(), {"inputs"}),
    (WritesIntoTracker(), {"inputs"}),
    (Counts(), {"replay"}),
    (Noisy(), {"replay"}),
    (TracksWithoutNeighbours(), {"heard"}),
    (MeanOverAgents(), {"alone", "processes"}),
    (Dead(), {"alive"}),
    (OneVector(), {"costs"}),
    (TwoGradients(), {"costs"}),
    (SaysItDoesNotMix(), {"costs"}),
    (SendsSometimes(), {"costs"}),
    (SaysItSendsSometimes(), {"costs"}),
    (SendsAtOtherTimes(), {"costs"}),
    (NoSuchParameter(), {"contract"}),
    (LocalSteps(local_steps=0), {"contract"}),
    (LocalSteps(local_steps=11), {"contract"}),
    (OneSample(), {"samples"}),
    (TracksByIteration(), {"pausing"}),
    (NeverBegun(), {"tracking", "pausing", "solution", "sparsity"}),
    (Leader(), {"alone", "relabelling", "processes"}),
    (Numbered(), {"relabelling", "consensus", "single", "sparsity", "processes"}),
    (KnowsHowMany(), {"single", "processes"}),
    (Branches(), {"trials"}),
    (TrialsMeet(), {"trials", "sparsity"}),
    (Biased(), {"solution", "sparsity"}),
    (NoProx(), {"sparsity", "together"}),
    (OtherProx(), {"sparsity"}),
    (SlightlyOtherProx(), {"sparsity"}),
    (MixesForNothing(), {"heard", "together"}),
    (CountsRowsHere(), {"processes"}),
    (SameTensor(), {"resuming"}),
    (HalfInSingle(), {"precision"}),
    (LateFullGradient(), {"streams"}),
    (Swallows(), {"divergence"}),
]
"""Methods and all the laws that each breaks."""


@pytest.fixture(autouse=True)
def shorter(monkeypatch):
    """At γ = 0.3 sixty iterations are enough."""
    monkeypatch.setattr(check, "Case", partial(Case, long=60))


@pytest.fixture
def only(monkeypatch):
    """Checks the foundations and some laws."""
    return lambda *names: monkeypatch.setattr(check, "LAWS", [law for law in laws.LAWS if law.name in names])


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "broken"), BROKEN, ids=lambda value: type(value).__name__)
def test_a_broken_method_is_caught_by_the_right_laws(method, broken, others, only):
    """And by no ``others``; that a sound method breaks none is tested with all methods of the library."""
    if not others:
        only(*broken)
    with pytest.raises(LawError) as caught:
        check_algorithm(method, tracks={"y": "g"})
    assert set(caught.value.laws) == broken, str(caught.value)


def test_every_law_has_been_seen_to_fail():
    seen = {name for _, broken in BROKEN for name in broken} | {
        "averaging",
        "late",
        "slices",
    }  # which have tests of their own
    assert seen == {law.name for law in (*laws.FOUNDATIONS, *laws.LAWS)}


def test_a_sound_method_keeps_all_laws():
    report = check_algorithm(Sound(), tracks={"y": "g"})
    assert len(report.checked) == len(laws.FOUNDATIONS) + len(laws.LAWS) - 3
    assert set(report.left_out) == {"averaging", "late", "slices"}
    assert str(report).startswith(f"Sound keeps {len(report.checked)} laws: contract, shapes, ")


def test_a_sound_method_with_local_steps_keeps_all_laws(monkeypatch):
    monkeypatch.setattr(check, "Case", partial(Case, long=200))
    report = check_algorithm(LocalSteps(), tracks={"y": "g"})
    assert set(report.left_out) == {"averaging", "late", "slices"}


class HearsNothing(LocalSteps):
    """Its messages come after the steps in which a law once looked for them."""

    def step(self, agents, k, state):
        if self.sends(k):
            agents.mix(state.x, state.y)
        return super().step(Verbs(agents, apart=True), k, state)


def test_what_is_sent_seldom_must_be_heard_too(only):
    only("heard")
    with pytest.raises(LawError) as caught:
        check_algorithm(HearsNothing())
    assert "heard" in caught.value.laws


def test_what_does_not_apply_is_left_out_with_the_reason():
    """No tracker was named, no averaged gradient is declared, and Ψ = 0 is."""

    class Plain(Sound):
        facts = Sound.facts._replace(composite=False, tracking=None, keeps_errors=True)

    report = check_algorithm(Plain())
    assert set(report.left_out) == {"tracking", "pausing", "averaging", "slices", "sparsity"}
    assert "left out: sparsity (it declares that it handles only Ψ = 0)" in str(report)
    assert set(report.checked).isdisjoint(report.left_out)


@pytest.mark.parametrize(("method", "keeps"), [(PGExtra(0.2), False), (DPSGD(0.2), True)], ids=str)
def test_what_a_method_says_of_late_messages_must_be_true(method, keeps, only):
    only("late")

    class Claims(type(method)):
        facts = method.facts._replace(keeps_errors=keeps)

    with pytest.raises(LawError, match=rf"facts\s+have\s+keeps_errors={keeps}") as caught:
        check_algorithm(Claims(method.gamma))
    assert set(caught.value.laws) == {"late"}


def test_a_claim_to_take_each_coordinate_by_itself_must_be_true(only):
    only("slices")

    class Claims(Sound):
        facts = Sound.facts._replace(coordinatewise=True)

    class Normalised(Claims):
        def step(self, agents, k, state):
            new = super().step(agents, k, state)
            return new._replace(x=new.x * (1 + 1e-3 * new.x.norm(dim=-1, keepdim=True)))

    assert "slices" in check_algorithm(Claims(), tracks={"y": "g"}).checked
    with pytest.raises(LawError) as caught:
        check_algorithm(Normalised(), tracks={"y": "g"})
    assert "slices" in caught.value.laws


def test_a_bound_on_eigenvalues_is_respected(only):
    """On both networks, with one round and with three; a run with lower eigenvalues is refused."""
    only("costs", "consensus")

    class Careful(Sound):
        facts = Sound.facts._replace(eigenvalues_above=0.3)

    assert {"costs", "consensus"} <= {*check_algorithm(Careful()).checked}


@dataclass(frozen=True, eq=False)
class Needy(Sound):
    gamma: Number = field(kw_only=True)
    alpha: Alpha = field(kw_only=True)
    batch: int = field(kw_only=True)
    used: ClassVar[list] = []

    def __post_init__(self):
        self.used.append((self.gamma, self.alpha, self.batch))

    def gradient(self, agents, k, x):
        return sum(agents.grad(x, 3 * k + j) for j in range(self.batch)) / self.batch


def test_a_class_gets_suitable_parameters(only):
    only("solution", "sparsity", "trials")
    check_algorithm(Needy)
    gamma, alpha, batch = Needy.used[0]
    assert (gamma, alpha.describe(), batch) == (0.2, {"name": "constant", "value": 0.2}, 3)


def test_a_class_with_other_parameters_asks_for_an_instance():
    @dataclass(frozen=True, eq=False)
    class Odd(Sound):
        names: tuple[str, ...] = field(kw_only=True)

    with pytest.raises(TypeError, match=r"Odd.names is annotated as .*give an instance in place of the class"):
        check_algorithm(Odd)


def test_the_message_has_demand_observation_and_cause(only):
    only("costs")
    with pytest.raises(LawError) as caught:
        check_algorithm(OneVector())
    title, *lines = str(caught.value).splitlines()
    assert title == "OneVector breaks a law:"
    assert lines[:2] == ["", "costs"]
    assert " ".join(" ".join(lines[2:]).split()) == (
        "The counts agree with facts: steps that send, vectors per round, gradients of an ordinary step, mixes. "
        "observed: step 0 sent 2 vectors to each neighbour in 1 rounds; facts have vectors=1, mixes=True, and mixing "
        "takes 1 usually: two calls of mix where one message could carry both, a gradient that is evaluated and not "
        "used, local steps that facts.sends_every does not declare, or facts copied from another method"
    )
    assert max(map(len, lines)) <= 120


def test_an_error_of_the_method_is_told_and_kept(only):
    only("trials")
    with pytest.raises(
        LawError, match="observed: RuntimeError: Boolean value of Tensor with more than one value"
    ) as caught:
        check_algorithm(Branches())
    assert caught.traceback
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("method", [AveragesX, AveragesTheTracker, AveragesSlower])
def test_a_false_claim_of_averaged_gradients_is_caught(method, only):
    only("averaging")
    with pytest.raises(LawError, match=r"(?s)averaging.*after step 0 the mean of [xuz] was not what averaging by α"):
        check_algorithm(method(0.3, constant(0.5)))
