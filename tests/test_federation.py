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
    federation.start().wait_for(10)
    federation.wait_for_checkpoint("celle")
    federation.slow_down()
    federation.kill("celle")
    federation.wait_for(20)
    federation.start("celle").wait_for_links(("berlin", "celle"), ("dresden", "celle"))


def cut_and_restored(federation):
    federation.start().wait_for(40)
    federation.cut(("aachen", "berlin"))
    federation.wait_for(60)
    federation.cut(("aachen", "berlin"), restore=True)


def halves(federation):
    federation.start().wait_for(10)
    between = ("aachen", "berlin"), ("celle", "dresden")
    federation.slow_down()
    federation.cut(*between)
    federation.wait_for(14)
    federation.cut(*between, restore=True)
    federation.wait_for_links(*between)


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


def back_over_long_links(federation):
    """The site that comes back computes much faster than the others, who wait for each other's messages."""
    federation.start().wait_for(10)
    federation.wait_for_checkpoint("celle")
    federation.kill("celle")
    federation.wait_for(25)
    federation.start("celle")


STORIES = {
    undisturbed: {"iterations": 20, "patience": 60.0},
    killed_and_back: {"iterations": 100, "patience": 2.0},
    halves: {"iterations": 100, "patience": 2.0},
    back_over_long_links: {"iterations": 90, "delay": 0.03, "patience": 2.0},
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
        thread.join(180)
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


def test_a_site_that_has_finished_does_not_begin_again(told):
    """Alone, it would end with another model, and overwrite the one of all."""
    federation = told[undisturbed]
    before = (federation.folder / "aachen" / "final.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="holds the results of this site, which has finished"):
        federation.make("aachen")
    assert (federation.folder / "aachen" / "final.safetensors").read_bytes() == before


def test_sums_over_neighbours_are_refused(told):
    with pytest.raises(ValueError, match="methods that sum over neighbours cannot go on without one"):
        told[undisturbed].sites["aachen"].agent.neighbour_sum(torch.zeros(1, 1, 2))


def test_a_site_does_not_begin_alone(tmp_path):
    federation = Federation(tmp_path / "alone", wait=0.2)
    federation.start("aachen")
    assert not federation.join(20)
    assert "no neighbour of aachen connected within 0.2 seconds" in str(federation.errors["aachen"])
    assert not federation.results


def test_the_last_rounds_are_made_whatever_the_method_sends(tmp_path):
    """K is no multiple of the period, so the last iteration sends nothing; the rounds after it do."""
    federation = Federation(
        tmp_path / "seldom", iterations=22, patience=60.0, more='mixing = { name = "Every", period = 5 }'
    )
    assert not federation.start().join(180)
    x = simulate(federation).x[0]
    apart, before = (rows - rows.mean(dim=0) for rows in (federation.state("x"), x))
    assert apart.norm() < 10 * federation.study.agreement * before.norm()
    record = federation.sites["aachen"].rows[-1]
    assert 0 < record["wire_bytes"] <= federation.sites["aachen"].connections.spent["bytes"]
    assert "bytes" not in record


def test_sites_whose_columns_differ_are_refused(tmp_path):
    """The second site has the features in another order: x would mean different things."""
    names = ("aachen", "berlin")
    for name, head in zip(names, ("age,dose,sick", "dose,age,sick"), strict=True):
        (tmp_path / f"{name}.csv").write_text(f"{head}\n1,2,0\n3,4,1\n5,6,1\n")
    federation = Federation(tmp_path / "columns", names=names, wait=1.0)
    text = federation.file.read_text()
    data = 'data = { name = "per_agent", files = "rows-{agent}.csv", target = "sick", labels = [0, 1] }'
    problem = (
        f'[problem]\nname = "Supervised"\nagents = 2\nbatch_size = 2\nmodel = {{ name = "mlp", inputs = 2 }}\n{data}\n'
    )
    federation.file.write_text(text[: text.index("[problem]")] + problem + text[text.index("[sites]") :])
    federation.data = {name: tmp_path / f"{name}.csv" for name in names}
    federation.start()
    assert not federation.join(30)
    assert sorted(federation.errors) == [*names], "neither finds a neighbour"
    assert sum(site.connections.spent["refused"] for site in federation.sites.values()) > 0


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


@pytest.mark.parametrize("story", [killed_and_back, halves, back_over_long_links])
def test_trackers_and_models_agree_in_the_end(told, story):
    check_agreement(told[story])


def test_nobody_jumps_after_a_site_that_comes_back(told):
    """The others make their iterations, of which they would otherwise skip more than half; load may cost a few."""
    sites = told[back_over_long_links].sites
    made = {name: sites[name].agent.counts()["samples"] for name in ("aachen", "berlin", "dresden")}
    assert min(made.values()) > 60, made


@pytest.mark.slow
@pytest.mark.parametrize("story", [cut_and_restored, late, slow])
def test_more_stories_end_in_agreement(told_more, story):
    check_agreement(told_more[story])


@pytest.mark.slow
def test_without_one_site_the_others_solve_their_own_problem(told_more):
    federation = told_more[never_back]
    assert sorted(federation.results) == ["aachen", "berlin", "dresden"]
    check_trackers(federation)
    assert federation.sites["aachen"].links.epoch > 0, "trackers were reset when it had been away for long"
