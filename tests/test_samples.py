"""Samples have names: the same name gives the same sample, other names give independent ones."""

import hashlib
import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from proxdasa import samples
from proxdasa.data import permutations
from proxdasa.problems import PhaseRetrieval
from proxdasa.samples import BLOCK, Samples, Words, normals, uniforms, words


def drawn(n=3, trials=2, seed=7, k=0, stream=0, agents=None):
    problem = PhaseRetrieval(agents=n, dim=5, evaluation="population")
    return Samples(problem, seed, trials, agents or range(n))(k, stream)


@pytest.mark.parametrize("k", [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 3])
def test_a_name_means_one_sample_wherever_it_is_asked_for(k):
    base = drawn(k=k)
    assert torch.equal(drawn(n=8, trials=5, k=k)[:2, :3], base), "independent of how many agents and trials there are"
    assert torch.equal(drawn(n=8, k=k, agents=range(1, 3)), base[:, 1:3]), "independent of which agents live here"


def test_order_of_asking_does_not_matter():
    problem = PhaseRetrieval(agents=3, dim=5, evaluation="population")
    ahead, back = Samples(problem, 0, 2, range(3)), Samples(problem, 0, 2, range(3))
    ks = [0, 40, 3, 17, 16, 15]
    forwards = {k: ahead(k).clone() for k in sorted(ks)}
    for k in reversed(ks):
        assert torch.equal(back(k), forwards[k])


def test_different_names_give_different_samples():
    base = drawn()
    for other in (drawn(seed=8), drawn(k=1), drawn(k=BLOCK), drawn(stream=1)):
        assert not torch.any(other == base)
    flat = drawn(n=5, trials=6).flatten(0, 1)
    assert len({tuple(row.tolist()) for row in flat}) == len(flat), "trials and agents have samples of their own"


def test_names_are_pinned():
    """Changing the naming changes every published result; this notices."""
    samples = Samples(PhaseRetrieval(agents=3, dim=5, evaluation="population"), 1, 2, range(3))
    words = np.stack([samples._fetch(k // BLOCK, 0)[k % BLOCK].numpy() for k in (0, 7, 8, 100)])
    digest = hashlib.sha256(words.tobytes()).hexdigest()
    assert digest == "7513adab9bf51b664cbb60f0430849fb1167a21cc541344437c81cfebf5d924b"


def test_normals_are_normal():
    draws = [normals(words(seed, 0, 0, 0, 2**16)).double().numpy() for seed in range(30)]
    pvalues = [stats.kstest(draw, "norm").pvalue for draw in draws]
    assert stats.kstest(pvalues, "uniform").pvalue > 0.001, "one small p-value proves nothing, their distribution does"
    x = np.concatenate(draws)
    assert abs(x.mean()) < 4e-3
    np.testing.assert_allclose([np.mean(x**p) for p in (2, 4, 6, 8)], [1, 3, 15, 105], rtol=0.08)
    for lag in (1, 2, 4, 101):
        assert abs(np.corrcoef(x[lag:], x[:-lag])[0, 1]) < 4e-3
        assert abs(np.corrcoef(x[lag:] ** 2, x[:-lag] ** 2)[0, 1]) < 4e-3


def test_normals_survive_extreme_words():
    extreme = torch.tensor([0, -1, 1, 2**31 - 1, -(2**31), 5], dtype=torch.int32)
    drawn = normals(extreme)
    assert bool(torch.isfinite(drawn).all())
    assert 5 < drawn.abs().max() < 6
    assert drawn[1] < 0 == drawn[0] < drawn[2] < drawn[5] < drawn[3]


def test_uniforms_are_inside_the_unit_interval():
    u = uniforms(torch.tensor([-(2**31), 0, 2**31 - 1], dtype=torch.int32))
    assert 0 < u[0] < u[1] < u[2] < 1


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_refuses_a_seed_out_of_range(seed):
    with pytest.raises(ValueError, match="seed must be a whole number"):
        words(seed, 0, 0, 0, 8)


def test_words_come_in_eights():
    with pytest.raises(ValueError, match="eight at a time"):
        Words()(0, 0, 0, 0, range(1), 12)
    assert torch.equal(words(0, 0, 0, 3, 5), words(0, 0, 0, 3, 8)[:5])


def test_special_streams_are_apart_from_samples():
    streams = {samples.START, samples.EVALUATION, samples.GROUND_TRUTH, samples.RANDOM_ITERATE}
    assert len(streams) == 4
    assert min(streams) >= 2**32


def test_streams_are_apart():
    """Each use of randomness has streams of its own: equal words would tie events to data, or messages to samples."""
    first = [0, samples.START, samples.DATA, samples.COMPRESSION, samples.EVENTS]
    assert all(later - earlier >= 2**32 for earlier, later in itertools.pairwise(first))
    assert samples.DATA <= permutations.SPLIT < permutations.PROPORTIONS < samples.COMPRESSION
