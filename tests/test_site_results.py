"""What a site computes beside the iterates: measures of its own, and running statistics."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import tests.federation
from proxdasa import data, metrics, problems
from proxdasa.engines.products import ExactProduct
from proxdasa.sites.wire_format import Kind, Message
from tests.federation import Federation

PATIENT = {"patience": 60.0, "wait": 60.0}
"""Settings under which nothing is missed on a busy machine."""


def norm_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


def with_statistics(folder, monkeypatch, policy):
    """A federation that trains a network with BatchNorm."""
    federation = Federation(folder, iterations=8, **PATIENT)
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(80, 5))).float()
    examples = data.from_tensors(rows, torch.from_numpy(rng.integers(3, size=80)))
    problem = problems.Supervised(norm_model, examples, agents=4, batch_size=8, buffers=policy)
    setup = dataclasses.replace(federation.study.setup, problem=problem, dtype=torch.float32, exact=True)
    federation.study = dataclasses.replace(federation.study, setup=setup)
    monkeypatch.setattr(tests.federation, "read_study", lambda *_: federation.study)
    return federation


def bring_together(federation, rows):
    """The last rounds, of rows of all sites."""
    network = federation.study.setup.network
    W = ExactProduct(network.W, rows.dtype)
    for _ in range(math.ceil(math.log(federation.study.agreement) / math.log(network.rho))):
        rows = W(rows)
    return rows


@pytest.mark.parametrize("policy", ["average", "local"])
def test_running_statistics_have_the_bits_of_the_simulator(tmp_path, monkeypatch, policy):
    federation = with_statistics(tmp_path / "sites", monkeypatch, policy)
    assert not federation.start().join(180)
    assert not federation.errors
    assert not any(site.rounds.missed for site in federation.sites.values())
    expected, problem = federation.study.setup.run(), federation.study.setup.problem
    averages = problem.running.mixed_buffers
    assert (averages > 0) == (policy == "average")
    both = torch.cat([expected.x, expected.buffers[..., :averages]], dim=-1)
    x, r = torch.split(bring_together(federation, both), [problem.dim, averages], dim=-1)
    assert torch.equal(federation.state("x"), x[0])
    buffers = federation.state("beside.buffers")
    assert torch.equal(buffers, torch.cat([r, expected.buffers[..., averages:]], dim=-1)[0])
    assert not torch.equal(buffers[0], problem.first_buffers(1)[0, 0]), "batches have changed them"


def test_running_statistics_survive_a_restart_and_are_taken_over_with_x(tmp_path, monkeypatch):
    """One that was too far behind ends with the x of the others, which is nothing without their statistics."""
    federation = with_statistics(tmp_path / "sites", monkeypatch, "average")
    site = federation.make("berlin")
    site.connections.close()
    state = site._algorithm.init(site.agent, site._start)
    held = site.agent.extra_rows["buffers"] = torch.arange(9.0).view(1, 1, 9)
    site._save(3, state)
    again = federation.make("berlin")
    again.connections.close()
    again.rounds.assemble = lambda everybody: None
    k, found = again._begin()
    assert k == 3
    assert torch.equal(again.agent.buffers, held)
    assert all(torch.equal(rows, getattr(found, name)) for name, rows in state._asdict().items())
    row = torch.arange(state.x.shape[-1] + 8.0).view(1, 1, -1)  # the ninth number counts batches, which is our own
    x = again.agent.unpack(row)
    assert torch.equal(x, row[..., :-8])
    assert torch.equal(again.agent.buffers, torch.cat([row[..., -8:], held[..., 8:]], dim=-1))
    assert torch.equal(again.agent.pack(x), row)


def test_a_site_measures_what_it_can_by_itself(tmp_path):
    federation = Federation(tmp_path / "sites", iterations=4, **PATIENT)
    setup = federation.study.setup
    assert [metric.name for metric in federation.study.metrics] == [
        "loss", "objective", "density", "solution_density", "certificate",
    ]  # fmt: skip
    site = federation.make("berlin")
    site.connections.close()
    x, z = torch.tensor([[[1.0, -2.0]]]).double(), torch.tensor([[[0.5, 3.0]]]).double()
    zero = torch.zeros_like(x)
    site._observe(1, site._algorithm.State(**dict.fromkeys(site._algorithm.State._fields, zero) | {"x": x, "z": z}))
    A, b = setup.problem.A[1], setup.problem.b[1]
    loss = float(x[0, 0] @ A @ x[0, 0] / 2 - b @ x[0, 0])
    shrunk = x - 0.4 * z  # γ = 0.4, and the weight of L1 is 0.01
    y = shrunk.sign() * (shrunk.abs() - 0.4 * 0.01).clamp(min=0)
    row = site.rows[-1]
    assert row["loss"] == pytest.approx(loss)
    assert row["objective"] == pytest.approx(loss + 0.01 * 3)
    assert row["certificate"] == pytest.approx(float(((x - y) / 0.4).square().sum()))
    assert row["density"] == row["solution_density"] == 1


def test_measures_can_be_chosen(tmp_path):
    federation = Federation(tmp_path / "sites", iterations=4, more='metrics = ["certificate", "loss"]')
    assert federation.study.metrics == (metrics.certificate, metrics.loss)
    with pytest.raises(ValueError, match="metrics: a site cannot measure consensus by itself; accepted: loss, objec"):
        Federation(tmp_path / "more", iterations=4, more='metrics = ["loss", "consensus"]')


def test_the_last_row_of_a_neighbour_counts_though_it_has_finished(tmp_path):
    """The word that it has finished may be read together with the row."""
    federation = Federation(tmp_path / "sites", iterations=4, **PATIENT)
    site = federation.make("berlin")
    site.connections.close()
    site.links.begin(3)
    mine, theirs = np.zeros((1, 1, 2)), np.ones((1, 1, 2))
    for name in site.links.all:
        messages = (
            Message(Kind.ROWS, 0, 3, 0, 0, 0, payload=theirs.tobytes()),
            Message(Kind.DONE, 0, 3, payload=b"x"),
        )
        site.connections.boxes[name].extend(messages)
    site.connections.send = lambda *_: True
    assert all(np.array_equal(row, theirs) for row in site.rounds.exchange(mine).values())
    assert site.rounds.missed == 0
    assert site.rounds.exchange(mine) == {}, "there is no other, and nobody waits for it"
