"""What sites find out together without a server: means, and when to stop."""

import dataclasses
import json
import queue
import threading

import pytest
import torch

import proxdasa.sites.site
from proxdasa import configs, networks
from proxdasa.cli import site_commands
from proxdasa.sites import agreement
from proxdasa.sites.rounds import Combination
from tests.federation import Federation
from tests.test_site_results import PATIENT, bring_together

STOP = 'stop = { name = "Stationary", tolerance = 1e-2, patience = 2, every = 10 }'


class Sites:
    """Rounds between threads, over the links of a network, some of which are down."""

    def __init__(self, network, down=()):
        self.network, self.down = network, {frozenset(link) for link in down}
        self._boxes = {(i, j): queue.Queue() for a, b in network.edges.tolist() for i, j in ((a, b), (b, a))}

    def exchange(self, i, row):
        others = [b for a, b in self._boxes if a == i and frozenset((i, b)) not in self.down]
        for j in others:
            self._boxes[i, j].put(row.copy())
        return {str(j): self._boxes[j, i].get(timeout=20) for j in others}

    def mix(self, i, row):
        weights = {j: float(w) for j, w in enumerate(self.network.W[[i]].toarray()[0]) if w}
        own = row.numpy()
        rows = {int(j): values for j, values in self.exchange(i, own).items()}
        return torch.from_numpy(Combination(weights, i).end(own, rows))

    def ask(self, act):
        found = {}
        threads = [threading.Thread(target=lambda i=i: found.update({i: act(i)})) for i in range(self.network.n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return [found[i] for i in range(self.network.n)]


def asked(sites, answers):
    n = sites.network.n
    return sites.ask(lambda i: agreement.unanimous(lambda row: sites.exchange(i, row), answers[i], i, n))


def test_sites_know_when_all_say_yes():
    ring = networks.ring(5)
    assert asked(Sites(ring), [True] * 5) == [True] * 5
    assert asked(Sites(ring), [True, True, False, True, True]) == [False] * 5
    assert asked(Sites(ring, down=[(0, 1)]), [True] * 5) == [True] * 5, "a path of five, whose ends are four apart"
    assert asked(Sites(ring, down=[(0, 1), (2, 3)]), [True] * 5) == [False] * 5, "no part knows of the other"


def test_means_tell_whose_they_are():
    ring, numbers = networks.ring(5), [[float(i), 10.0 * i] for i in range(5)]
    rounds = agreement.mixing_rounds(ring.rho, 1e-6)
    assert ring.rho**rounds <= 1e-6 < ring.rho ** (rounds - 1)

    def means(sites):
        return sites.ask(lambda i: agreement.average(lambda row: sites.mix(i, row), numbers[i], i, 5, rounds))

    for found in means(Sites(ring)):
        assert found.values == pytest.approx([2.0, 20.0], abs=1e-3)
        assert found.over == pytest.approx(5.0)
    parts = means(Sites(ring, down=[(0, 1), (2, 3)]))
    assert parts[1].values == pytest.approx([1.5, 15.0], abs=1e-3)
    assert parts[4].values == pytest.approx([7 / 3, 70 / 3], abs=1e-3)
    assert [round(found.over) for found in parts] == [3, 2, 2, 3, 3]
    numbers[2] = [float("inf"), 1.0]
    found = means(Sites(ring))[2]
    assert found.values == pytest.approx([2.0, 20.0], abs=1e-3), "the mean of 0, 1, 3 and 4"
    assert found.over == pytest.approx(4.0)
    numbers[:] = [[float("nan")] * 2] * 5
    assert means(Sites(ring))[0].over == 0


@pytest.mark.parametrize("weight", [1e200, -1e200, 1e-200, 1.7e308, 2.0])
@pytest.mark.parametrize("own", [1.0, float("nan")])
def test_weights_that_mixing_cannot_give_make_no_mean(weight, own):
    """A neighbour that lies cannot end other sites by numbers whose squares are too large or too small."""

    def mix(row):
        row[..., 2] += weight
        return row

    found = agreement.average(mix, [own], 0, 3, 1)
    assert (found.over == 0.0) is (weight != 1e-200 or own != own)


def test_one_round_is_enough_on_a_complete_network():
    assert agreement.mixing_rounds(0.0, 1e-3) == agreement.mixing_rounds(1e-9, 1e-3) == 1


def test_undisturbed_sites_stop_where_the_simulator_does(tmp_path):
    """With the same bits; and by then they have averaged their losses, which changes nothing."""
    federation = Federation(tmp_path / "sites", iterations=4_000, more=STOP, **PATIENT)
    text = federation.file.read_text().replace("[sites]", '[sites]\nshare = ["loss", "certificate"]')
    federation.file.write_text(text)
    assert not federation.start().join(180)
    assert not federation.errors
    expected = dataclasses.replace(federation.study.setup, exact=True).run()
    assert expected.stopped == "stationary"
    K = expected.iterations
    assert 20 < K < 2_000
    for result in federation.results.values():
        assert (result.stopped, result.iterations, result.stationary) == ("stationary", K, {0: K})
        assert result.records[-1]["k"] == K
    assert torch.equal(federation.state("x"), bring_together(federation, expected.x)[0])
    for name in ("z", "u", "v"):
        assert torch.equal(federation.state(name), expected.state[name][0]), name
    assert not any(site.rounds.missed for site in federation.sites.values())
    check_means(federation)
    with pytest.raises(FileExistsError, match="which has finished"):
        federation.make("aachen")


def test_a_site_has_a_report_page_of_its_own(tmp_path):
    """From its own records alone, with how its links were."""
    federation = Federation(tmp_path / "sites", iterations=60, patience=2.0, wait=60.0)
    federation.start().wait_for(10)
    federation.slow_down()
    federation.cut(("aachen", "berlin"))
    federation.wait_for(14)
    federation.cut(("aachen", "berlin"), restore=True)
    federation.wait_for_links(("aachen", "berlin"))
    assert not federation.join(180)
    folder = federation.folder / "aachen"
    site_commands._write_page(folder, "aachen")
    page = (folder / "report.html").read_text()
    found = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    (run,) = found["runs"]
    rows = {row[0]: row[1:] for row in run["links"]}
    assert sorted(rows) == ["berlin", "dresden"]
    rounds, missed, sent, down = rows["berlin"]
    links = federation.results["aachen"].config["facts"]["links"]
    assert int(missed) == links["berlin"]["missed"] > 0
    assert int(rounds) == links["berlin"]["rounds"] > 0
    assert float(sent) == pytest.approx(links["berlin"]["sent"] / 1e6, abs=0.05)
    first, last = links["berlin"]["down"][0]
    assert 10 <= first < last
    assert f"{first} to {last}" in down
    assert sum(link["sent"] for link in links.values()) == federation.sites["aachen"].connections.spent["bytes"]
    assert run["unknown"] == "a site has its own x only"
    assert {"key": "loss", "name": "loss", "formula": "F_i(x_i)", "log": True, "alike": True} in found["measures"]
    assert not any(key.startswith("facts.links") for key in found["shared"])
    assert configs.read(folder / "config.json").network.n == 4, "the study can be simulated from it"


def check_means(federation):
    records = [result.records for result in federation.results.values()]
    assert "mean_loss" not in records[0][0], "before the first iteration nobody is asked"
    for rows in zip(*(own[1:] for own in records), strict=True):
        for name in ("loss", "certificate"):
            values = torch.tensor([row[name] for row in rows], dtype=torch.float64)
            spread = float(values.max() - values.min())
            for row in rows:
                assert row[f"mean_{name}"] == pytest.approx(float(values.mean()), abs=2e-3 * spread)
                assert row["mean_over"] == pytest.approx(4)


def test_sites_do_not_stop_while_one_is_away(tmp_path):
    """Nobody can know whether it is satisfied; when it is back, all stop, and their models agree."""
    federation = Federation(tmp_path / "sites", iterations=100_000, more=STOP, patience=4.0, wait=60.0)
    K = dataclasses.replace(federation.study.setup, exact=True).run().iterations
    federation.pauses = dict.fromkeys(federation.names, 0.1)  # so that it is away before they can stop
    federation.start().wait_for(5)
    federation.wait_for_checkpoint("celle")
    federation.kill("celle")
    federation.pauses = {}
    federation.wait_for(2 * K)
    assert not federation.results, "the others go on"
    federation.slow_down()  # so that both links count before they stop
    federation.start("celle").wait_for_links(("berlin", "celle"), ("dresden", "celle"))
    assert not federation.join(180)
    assert not federation.errors
    assert {result.stopped for result in federation.results.values()} == {"stationary"}
    ends = {result.stationary[0] for result in federation.results.values()}
    assert len(ends) == 1
    assert 2 * K <= ends.pop() < 100_000
    x = federation.state("x")
    torch.testing.assert_close(x, x.mean(dim=0).expand(4, -1), rtol=0, atol=1e-2)


def test_a_site_that_missed_the_decision_follows_the_others(tmp_path, monkeypatch):
    asked = threading.local()
    decide = agreement.unanimous

    def forget(exchange, yes, here, n):
        found = decide(exchange, yes, here, n)
        if found and here == 1 and not getattr(asked, "before", False):
            asked.before, found = True, False
        return found

    monkeypatch.setattr(proxdasa.sites.site, "unanimous", forget)
    federation = Federation(tmp_path / "sites", iterations=100_000, more=STOP, patience=5.0, wait=60.0)
    K = dataclasses.replace(federation.study.setup, exact=True).run().iterations
    assert not federation.start().join(180)
    assert not federation.errors
    found = {name: (result.stopped, result.stationary) for name, result in federation.results.items()}
    assert found == dict.fromkeys(federation.names, ("stationary", {0: K}))
    assert federation.results["berlin"].iterations <= K + 2
    x = federation.state("x")
    torch.testing.assert_close(x, x.mean(dim=0).expand(4, -1), rtol=0, atol=0.1)


def test_what_cannot_be_shared_is_refused(tmp_path):
    federation = Federation(tmp_path / "sites")
    text = federation.file.read_text()
    federation.file.write_text(text.replace("[sites]", '[sites]\nshare = ["accuracy"]'))
    with pytest.raises(
        ValueError, match=r"sites\.share: aachen does not measure 'accuracy'; accepted: loss, objective"
    ):
        federation.make("aachen")
    federation.file.write_text(text.replace("[sites]", '[sites]\nshare = "loss"'))
    with pytest.raises(ValueError, match=r"sites\.share must be a list of names, such as \[\"loss\"\]; got 'loss'"):
        federation.make("aachen")
