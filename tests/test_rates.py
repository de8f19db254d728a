"""The study of rates: its set-ups, fits with known answers, and a small version of the command."""

import csv
import importlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from proxdasa import ProxDASAGT, cli
from proxdasa.experiments.rates import RateCase, lengths, opposed_quadratics, rates, slow_ring
from proxdasa.networks import complete, ring
from proxdasa.plans.theory import varrho
from proxdasa.regularizers import L1
from proxdasa.reports.curves import Run, spread
from proxdasa.reports.rates_figures import (
    Rates,
    RingRun,
    fit_power,
    jackknife,
    mean_stationarity,
    rates_sheet,
    transient_length,
    transients,
    transients_sheet,
)
from proxdasa.runs.saving import Saving

# Set-ups ------------------------------------------------------------------------------------------------------


def test_the_settings_are_the_theorems():
    setups = rates()
    assert len({case.name for case in setups}) == len(setups) == 113
    for case, setup in setups.items():
        assert setup.algorithm.facts.title == {"prox-dasa": "Prox-DASA", "prox-dasa-gt": "Prox-DASA-GT"}[case.method]
        assert (setup.algorithm.gamma, setup.iterations, setup.network.n) == (1.0, case.K, case.n)
        alpha = setup.bound().alpha
        assert alpha(0) == alpha(case.K - 1) == pytest.approx(math.sqrt(case.n / case.K))
        assert setup.observe_every <= max(1, 0.6 / alpha(0)), "the time in which the method changes is resolved"
        rho = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / case.n) if case.gap is None else 1 - case.gap
        assert setup.network.rho == pytest.approx(rho, abs=1e-12)
        assert setup.mixing.rounds_for(rho) == (math.ceil(1 / (1 - rho)) if case.mixing == "many" else 1)
        assert setup.problem.agents == case.n


def test_lengths_are_divided_down_to_64():
    assert lengths(16_384, 4) == [64, 256, 1_024, 4_096, 16_384]
    assert lengths(1_000, 2) == [125, 250, 500, 1_000]
    cases = rates((5, 7), 1_024)
    assert {case.K for case in cases if case.gap == 0.2} == {64, 128, 256, 512, 1_024}
    assert {case.n for case in cases if case.K == 256 and case.gap is None} == {5, 7, 8}


@pytest.mark.parametrize(
    ("arguments", "words"), [({"agents": (2, 4)}, "three agents or more"), ({"longest": 255}, "256 iterations or more")]
)
def test_refused_sizes(arguments, words):
    with pytest.raises(ValueError, match=words):
        rates(**arguments)


@pytest.mark.parametrize("n", [3, 4, 8, 31])
def test_agents_disagree_along_the_slowest_eigenvector_and_f_does_not_depend_on_n(n):
    problem = opposed_quadratics(n)
    b = torch.tensor([1.2] * 5 + [1.0] * 5, dtype=torch.float64)
    torch.testing.assert_close(problem.b.mean(0), b)
    apart = (problem.b - b).numpy()
    assert np.square(apart).sum(1).mean() == pytest.approx(10), "ν² = d"
    W = ring(n).W.toarray()
    np.testing.assert_allclose(W @ apart, ring(n).rho * apart, atol=1e-8)
    np.testing.assert_allclose(slow_ring(n, 0.01).W.toarray() @ apart, 0.99 * apart, atol=1e-8)
    # The solution: its gradient is −1 everywhere, which is the weight of the norm, also where it is 0.
    x = torch.tensor([0.2] * 5 + [0.0] * 5, dtype=torch.float64)
    gradient = problem.evaluate(x.expand(1, n, 10)).grad.mean(1)
    torch.testing.assert_close(gradient, -torch.ones(1, 10, dtype=torch.float64))
    torch.testing.assert_close(L1(1.0).prox(x - gradient, 1.0)[0], x)


def test_on_a_slow_ring_only_prox_dasa_has_a_transient():
    """With one round and K = 256 on a ring with 1 − ρ = 1/8, against the complete graph."""
    slow = rates(longest=256, trials=4)[RateCase("prox-dasa", 4, "one", 0.125, 256)]
    tracked = replace(slow, algorithm=ProxDASAGT(gamma=1.0))
    whole = replace(slow, network=complete(4))
    own, tracker, reference = (
        np.mean([row["stationarity"] for row in setup.run().records]) for setup in (slow, tracked, whole)
    )
    assert own > 2 * reference
    assert tracker < 1.3 * reference


# Fits ---------------------------------------------------------------------------------------------------------


def synthetic(title, agents, K, values, label="one round", began=None):
    """A run whose ‖G‖² falls linearly from twice its mean to 0, observed unevenly."""
    ks = [0, 1, K // 3, K]
    rows = [
        {"trial": trial, "k": k, "stationarity": 2 * value * (1 - k / K)}
        for k in ks
        for trial, value in enumerate(values)
    ]
    config = {"iterations": K}
    return Run(title, label, agents, config, rows, began=tuple(range(len(values) if began is None else began)))


def test_the_mean_over_iterations_is_an_integral():
    np.testing.assert_allclose(mean_stationarity(synthetic("m", 4, 300, [1.0, 3.0])), [1.0, 3.0])


def test_a_run_with_diverged_trials_has_no_mean():
    with pytest.raises(ValueError, match="1 trials diverged"):
        mean_stationarity(synthetic("m", 4, 300, [1.0, 3.0], began=3))


def test_the_jackknife_of_a_mean_is_students_interval():
    values = np.array([1.0, 4.0, 2.0, 7.0])
    found, known = jackknife(lambda weights: float(values @ weights), 4), spread(list(values))
    assert (found.value, found.half) == pytest.approx((known.mean, known.half))
    assert math.isnan(jackknife(lambda weights: float(values[:1] @ weights), 1).half)


def test_a_power_law_gives_its_exponent_and_an_interval_that_covers():
    x, random = [64.0, 256.0, 1024.0, 4096.0], np.random.default_rng(0)
    law = 3 * np.array(x)[:, None] ** -0.5
    exact = fit_power(x, np.repeat(law, 5, axis=1))
    assert exact == pytest.approx((-0.5, 0), abs=1e-12)
    covered, halves = 0, []
    for _ in range(300):
        # Trials differ for all x together, as those of a study do, and at each x.
        noise = np.exp(0.2 * random.normal(size=10) + 0.1 * random.normal(size=(4, 10)))
        fit = fit_power(x, law * noise)
        covered += abs(fit.value + 0.5) < fit.half
        halves.append(fit.half)
    assert 0.91 < covered / 300 < 0.99
    assert 0 < np.mean(halves) < 0.05


def test_the_transient_ends_where_the_ratio_stays_below_two():
    K = [2.0**j for j in range(5, 15)]
    for known in (100, 1_000, 5_000):
        assert transient_length(K, 1 + np.sqrt(known / np.array(K))) == pytest.approx(known, rel=0.02)
    assert transient_length([1.0, 2.0, 4.0, 8.0], np.array([4.0, 1.0, 4.0, 1.0])) == pytest.approx(4 * 2**0.5)
    assert math.isnan(transient_length(K, np.full(10, 1.9)))
    assert math.isnan(transient_length(K, np.full(10, 2.1)))


def made_up(slowest=0.1):
    """A study whose means are exactly (nK)^-1/2, with a transient of 10 ϱ² on rings; trials differ by a factor."""
    factors = np.array([0.9, 1.0, 1.1])
    K = [2**j for j in range(6, 16)]

    def run(n, K, more=0.0, label="one round"):
        return synthetic("Prox-DASA", n, K, (n * K) ** -0.5 * (1 + more) * factors, label)

    rings = [
        RingRun(run(4, k, math.sqrt(10 * varrho(1 - gap) ** 2 / k)), gap, varrho(1 - gap))
        for gap in (0.25, 0.2, 0.16, slowest)
        for k in K
    ]
    return Rates([run(8, k) for k in K], [run(n, 1_024) for n in (4, 8, 16)], rings, [run(4, k) for k in K])


def test_the_table_has_the_exponents_of_the_study():
    sheet = rates_sheet(made_up())
    rows = {row[0]: dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows}
    assert list(rows) == ["‖G‖² against K", "‖G‖² against n", "K_T against 1 − ρ", "K_T against ϱ"]
    for name, exponent in (("‖G‖² against K", -0.5), ("‖G‖² against n", -0.5), ("K_T against ϱ", 2)):
        assert rows[name]["exponent"] == pytest.approx(exponent, abs=0.01)
        assert rows[name]["half"] == pytest.approx(0, abs=1e-9), "a factor for a whole trial changes no exponent"
        assert rows[name]["departure"] < 2


def test_a_transient_beyond_the_longest_run_has_no_length():
    study = made_up(slowest=0.01)
    assert [each.why for each in transients(study)] == ["", "", "", "longer than 32768"]
    assert transients_sheet(study).rows[-1][3] == "longer than 32768"
    assert rates_sheet(study).rows[-1][3] == pytest.approx(2, abs=0.01), "fitted to the other three"


# The command --------------------------------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(cli.app, ["reproduce", "rates", *map(str, arguments)])


def test_reproduce_rates(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(cli.out, "width", 200)
    module = importlib.import_module("proxdasa.experiments.rates")  # not the function of that name
    monkeypatch.setattr(module, "GAPS", {"prox-dasa": (0.01, 0.002), "prox-dasa-gt": (0.01,)})
    monkeypatch.setattr(module, "SHORTEST", 8)
    monkeypatch.setattr("proxdasa.experiments.series.Saving", lambda place, every: Saving(place, 10 * every))
    chosen = ("--agents", "3,8", "--longest", 32, "--trials", 2, "-o", tmp_path)
    result = call(*chosen)
    assert result.exit_code == 0, result.output
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["measure"], row["method"], row["mixing"]) for row in rows] == [
        (f"‖G‖² against {x}", method, mixing)
        for x in ("K", "n")
        for method in ("Prox-DASA", "Prox-DASA-GT")
        for mixing in ("one round", "⌈1/(1 − ρ)⌉ rounds")
    ]
    assert "longer than 32" in (tmp_path / "transients.csv").read_text(encoding="utf-8")
    against_k, against_n, *_ = drawn[0].axes
    assert [ax.get_title() for ax in (against_k, against_n)] == ["n = 8", "K = 8"]
    assert len(against_k.lines) == len(against_n.lines) == 5
    assert "24 finished runs reused" in call(*chosen, "--agents", "3").stderr
    assert {tuple(line.get_xdata()) for line in drawn[-1].axes[1].lines} == {(3,)}, "no other sizes, though 8 were run"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--agents", "4,x"), "--agents takes numbers separated by commas"),
        (("--agents", "2"), "a ring needs three agents or more here; got 2"),
        (("--longest", 100), "the longest run must have 256 iterations or more; got 100"),
    ],
)
def test_bad_options(arguments, words, tmp_path):
    result = call(*arguments, "-o", tmp_path)
    assert result.exit_code == 2
    assert words in result.stderr
