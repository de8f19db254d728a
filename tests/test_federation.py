"""Sites under faults: nobody hangs, the rest go on, and trackers agree in the end."""

import dataclasses
import math
import threading

import pytest
import torch

from proxdasa.engines.products import ExactProduct
from tests.federation import Federation


def undisturbed(federation):
    federation.start()


def killed_and_back(federation):
    federation.start().wait_for(40)
    federation.kill("celle")
    federation.wait_for(60)
    federation.start("celle")


def cut_and_restored(federation):
    federation.start().wait_for(40)
    federation.cut(("aachen", "berlin"))
    federation.wait_for(60)
    federation.cut(("aachen", "berlin"), restore=True)


def halves(federation):
    federation.start().wait_for(40)
    between = ("aachen", "berlin"), ("celle", "dresden")
    federation.cut(*between)
    federation.wait_for(60)
    federation.cut(*between, restore=True)


def late(federation):
    federation.start("aachen", "berlin", "dresden").wait_for(40)
    federation.start("celle")


def never_back(federation):
    federation.start().wait_for(40)
    federation.kill("celle")


def slow(federation):
    federation.start().wait_for(40)
    federation.pauses["berlin"] = 2.0
    federation.wait_for(60)
    del federation.pauses["berlin"]


STORIES = {
    undisturbed: {"iterations": 60, "patience": 60.0},
    killed_and_back: {"iterations": 240},
    halves: {"iterations": 240},
}
"""What is always tested."""
MORE = {
    cut_and_restored: {"iterations": 300},
    late: {"iterations": 300, "wait": 1.0},
    never_back: {"iterations": 600, "patience": 0.3},
    slow: {"iterations": 400},
}
"""Stories for ``make slow``."""


def tell(stories, folder):
    """All stories at once: they mostly wait."""
    found = {story: Federation(folder / story.__name__, **settings) for story, settings in stories.items()}
    threads = [threading.Thread(target=story, args=(federation,)) for story, federation in found.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    hanging = {story.__name__: federation.join(90) for story, federation in found.items()}
    assert not any(hanging.values()), hanging
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return tell(STORIES, tmp_path_factory.mktemp("stories"))


@pytest.fixture(scope="module")
def told_more(tmp_path_factory):
    return tell(MORE, tmp_path_factory.mktemp("more-stories"))


def simulate(federation):
    return dataclasses.replace(federation.study.setup, exact=True).run()


def test_undisturbed_sites_have_the_bits_of_the_simulator(told):
    federation, setup = told[undisturbed], told[undisturbed].study.setup
    expected = simulate(federation).state
    x, W = expected["x"], ExactProduct(setup.network.W, torch.float64)
    for _ in range(math.ceil(math.log(federation.study.agreement) / math.log(setup.network.rho))):
        x = W(x)  # the last rounds
    assert not federation.errors
    assert torch.equal(federation.state("x"), x[0])
    for name in ("z", "u", "v"):
        assert torch.equal(federation.state(name), expected[name][0]), name
    assert [site.rounds.missed for site in federation.sites.values()] == [0] * 4


def check_agreement(federation):
    """All sites end after the last iteration, at the undisturbed solution, with the mean of u that of v."""
    K = federation.study.setup.iterations
    assert not federation.errors
    assert {name: result.iterations for name, result in federation.results.items()} == dict.fromkeys(
        federation.names, K
    )
    assert any(site.rounds.missed for site in federation.sites.values()), "the story must have done something"
    check_trackers(federation)
    x = simulate(federation).mean
    torch.testing.assert_close(federation.state("x"), x.expand(4, -1), rtol=0, atol=1e-3)


def check_trackers(federation):
    torch.testing.assert_close(federation.state("u").mean(dim=0), federation.state("v").mean(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("story", [killed_and_back, halves])
def test_trackers_and_models_agree_in_the_end(told, story):
    check_agreement(told[story])


@pytest.mark.slow
@pytest.mark.parametrize("story", [cut_and_restored, late, slow])
def test_more_stories_end_in_agreement(told_more, story):
    check_agreement(told_more[story])


@pytest.mark.slow
def test_without_one_site_the_others_solve_their_own_problem(told_more):
    federation = told_more[never_back]
    assert sorted(federation.results) == ["aachen", "berlin", "dresden"]
    check_trackers(federation)
    assert federation.sites["aachen"].links.epoch > 0, "trackers were set anew when it had been away for long"
