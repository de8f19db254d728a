"""The study of imperfect networks: its set-ups, the rules for lost messages, and a small version of its command."""

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from proxdasa import DPSGD, ProxDASAGT, cli, conditions, schedules
from proxdasa.experiments import lost_messages, robustness
from proxdasa.experiments.lost_messages import RULES, LossyAgents, distances
from proxdasa.mixing import CompressedGossip, Gossip
from proxdasa.networks import ring
from proxdasa.problems import Quadratic
from proxdasa.regularizers import Zero
from proxdasa.runs.saving import Saving

TRACKING = ProxDASAGT(gamma=0.3, alpha=schedules.constant(0.2))


@pytest.fixture(scope="module")
def cases():
    return robustness()


def test_every_method_meets_everything(cases):
    kinds = {(case.kind, case.level) for case in cases}
    assert kinds >= {("perfect", ""), ("loss", "0.5"), ("out", "0.3"), ("bytes", "tenth")}
    for method in {case.method for case in cases}:
        met = [(case.split, case.kind, case.level) for case in cases if case.method == method]
        assert len(set(met)) == len(met) == 2 * len([kind for kind in kinds if method != "sppdm" or kind[0] != "bytes"])
    assert len({case.name for case in cases}) == len(cases)


def test_levels_are_what_they_are_called(cases):
    for case, setup in cases.items():
        if case.kind == "loss":
            assert setup.conditions == (conditions.LinkLoss(float(case.level)),)
        elif case.kind == "out":
            (outages,) = setup.conditions
            assert outages.mean_down / (outages.mean_up + outages.mean_down) == pytest.approx(float(case.level))
        else:
            assert not setup.conditions
        assert isinstance(setup.mixing, CompressedGossip if case.kind == "bytes" else Gossip)


def test_only_one_rule_keeps_the_solution_where_agents_differ():
    for rule in RULES:
        ends = distances(TRACKING, rule, 0.3, agree=False, iterations=540, every=540, trials=2)[-1]
        assert bool((ends < 1e-10).all()) == (rule == "both ends keep the weight"), rule


def test_dropping_the_weight_pulls_even_equal_agents_away():
    for rule in RULES:
        ends = distances(DPSGD(0.2), rule, 0.1, agree=True, iterations=100, every=100, trials=2)[-1]
        assert bool((ends < 1e-6).all()) == (rule != "the weight is dropped"), rule


def test_without_losses_all_rules_are_gossip():
    x = torch.randn(2, 8, 5, dtype=torch.float64)
    problem = Quadratic(torch.eye(5, dtype=torch.float64).expand(8, 5, 5), torch.zeros(8, 5, dtype=torch.float64))
    for rule in RULES.values():
        agents = LossyAgents(problem, Zero(), rule, loss=0.0, trials=2, seed=0)
        torch.testing.assert_close(agents.mix(x), torch.from_numpy(ring(8).W.toarray()) @ x)


def test_the_last_value_that_came_is_used():
    """Nothing arrives after the first message of each sender: the receivers go on with what they have."""
    x = torch.randn(1, 8, 5, dtype=torch.float64)
    problem = Quadratic(torch.eye(5, dtype=torch.float64).expand(8, 5, 5), torch.zeros(8, 5, dtype=torch.float64))
    agents = LossyAgents(problem, Zero(), None, loss=0.0, trials=1, seed=0)
    first = agents.mix(x)
    agents._loss = 1.0
    W = torch.from_numpy(ring(8).W.toarray())
    torch.testing.assert_close(agents.mix(x + 1), first + W.diagonal().unsqueeze(-1))


def test_reproduce_robustness(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(cli.out, "width", 200)
    room = robustness.__globals__
    for name, kept in (("METHODS", ("prox-dasa-gt", "sppdm")), ("COMPRESSORS", ("tenth",))):
        monkeypatch.setitem(room, name, {key: room[name][key] for key in kept})
    monkeypatch.setattr("proxdasa.cli.reproduce_commands.RULES_LENGTH", 100)
    monkeypatch.setattr("proxdasa.experiments.series.Saving", lambda place, every: Saving(place, 10 * every))
    monkeypatch.setattr(lost_messages, "RULES", {rule: RULES[rule] for rule in [*RULES][:2]})
    options = ["--losses", "0.3", "--out", "0.1", "--iterations", "2", "--trials", "2"]
    result = CliRunner().invoke(cli.app, ["reproduce", "robustness", *options, "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (4 + 3)
    sent = {row["run"]: float(row["bytes"]) for row in rows if row["method"] == "Prox-DASA-GT"}
    assert sent["agents alike, messages as tenth"] < 0.2 * sent["agents alike, perfect network"]
    assert sent["agents alike, 30% of messages lost"] < sent["agents alike, perfect network"]
    imperfect, small, rules = drawn
    assert [ax.get_title() for ax in imperfect.axes[:4]] == ["agents alike", "one class per agent"] * 2
    assert imperfect.axes[4].get_xlabel() == "share of messages lost"
    (line, other) = imperfect.axes[0].lines
    assert (line.get_label(), other.get_label()) == ("Prox-DASA-GT", "SPPDM")
    assert list(line.get_xdata()) == [0.0, 0.3]
    assert [line.get_label() for line in small.axes[0].lines] == ["full", "tenth"]
    assert len(small.axes) == 2, "SPPDM's messages are not compressed"
    assert len(rules.axes) == 2
    assert np.isfinite(rules.axes[1].lines[0].get_ydata()).all()
