"""Partitions of examples over agents."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxdasa import data, samples
from proxdasa.data import partitions, permutations
from proxdasa.descriptions import describe

SEEDS = st.integers(0, 2**64 - 1)
PARTITIONS = {
    partitions.Contiguous: st.just(partitions.Contiguous()),
    partitions.Shuffled: st.builds(partitions.Shuffled, seed=SEEDS),
    partitions.Shards: st.builds(partitions.Shards, per_agent=st.integers(1, 3), seed=SEEDS),
    partitions.Dirichlet: st.builds(partitions.Dirichlet, beta=st.sampled_from([1e-4, 0.1, 1.0, 1e4]), seed=SEEDS),
}


@pytest.mark.parametrize("kind", PARTITIONS, ids=lambda kind: kind.__name__)
@given(case=st.data())
def test_partitions_are_disjoint_and_cover(kind, case):
    partition = case.draw(PARTITIONS[kind])
    agents = case.draw(st.integers(1, 12))
    least = agents * getattr(partition, "per_agent", 1)
    y = [byte % 5 for byte in case.draw(st.binary(min_size=least, max_size=least + 20))]  # drawn at once
    labels = torch.tensor(y)
    parts = partition(labels, agents)
    sizes = [len(part) for part in parts]
    assert len(parts) == agents
    assert min(sizes) >= 1
    assert all(part.dtype == torch.int64 and torch.equal(part, part.sort().values) for part in parts)
    rows = torch.cat(parts).sort().values.tolist()
    covered = len(y) // agents * agents if isinstance(partition, partitions.Contiguous) else len(y)
    assert rows == list(range(covered))
    if isinstance(partition, partitions.Contiguous | partitions.Shuffled):
        assert max(sizes) - min(sizes) <= (0 if covered < len(y) else 1)
    assert all(torch.equal(a, b) for a, b in zip(parts, partition(labels, agents), strict=True))


@pytest.mark.parametrize("agents", [2, 5, 12])
def test_dirichlet_moves_a_row_to_an_agent_without_any_and_leaves_no_copy(agents):
    """A tiny β gives the only class to one agent, who hands a row to each of the others."""
    parts = data.Dirichlet(1e-4)(torch.zeros(12, dtype=torch.int64), agents)
    assert sorted(len(part) for part in parts) == [*[1] * (agents - 1), 13 - agents]
    assert sorted(torch.cat(parts).tolist()) == list(range(12))


def test_every_partition_is_listed_and_describes_itself():
    assert {*PARTITIONS, data.Sizes} == set(partitions.ALL)
    some = (data.Contiguous(), data.Shuffled(), data.Shards(), data.Dirichlet(1.0), data.Sizes([1]))
    assert {type(partition) for partition in some} == set(partitions.ALL)
    assert describe(data.Dirichlet(0.5, seed=3)) == {"name": "Dirichlet", "beta": 0.5, "seed": 3}
    assert describe(data.Contiguous()) == {"name": "Contiguous"}


def test_given_sizes():
    parts = data.Sizes([2, 3])(torch.zeros(6, dtype=torch.int64), 2)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4]]
    assert [len(part) for part in data.Sizes([2, 4])(torch.zeros(6, dtype=torch.int64), 2)] == [2, 4]
    for sizes in ([2], [2, 5], [0, 3]):
        with pytest.raises(ValueError, match=r"sizes must be 2 positive numbers.* at most 6 rows; got"):
            data.Sizes(sizes)(torch.zeros(6, dtype=torch.int64), 2)


def test_random_orders_have_streams_of_their_own():
    streams = [
        permutations.SPLIT,
        permutations.SHUFFLE,
        permutations.SHARDS,
        permutations.ROWS_OF_CLASSES,
        permutations.PROPORTIONS,
    ]
    named = {name: value for name, value in vars(samples).items() if name.isupper() and isinstance(value, int)}
    taken = {value for name, value in named.items() if name != "DATA"}  # the first of them
    assert len({*streams, *taken}) == len(streams) + len(taken)
    assert len({tuple(permutations.permutation(50, 0, stream).tolist()) for stream in streams}) == len(streams)


def test_contiguous_blocks_drop_the_rest():
    parts = data.Contiguous()(torch.zeros(11, 2), 3)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_shuffled_rows_are_not_in_order_and_depend_on_the_seed():
    y = torch.zeros(1000)
    first, second = (data.Shuffled(seed)(y, 2)[0] for seed in (0, 1))
    assert not torch.equal(first, second)
    assert 220 < int((first < 500).sum()) < 280


def test_shards_give_few_classes():
    y = torch.arange(1000) % 10
    parts = data.Shards(per_agent=2)(y, 5)
    assert all(len(y[part].unique()) == 2 for part in parts)
    assert [len(part) for part in parts] == [200] * 5
    assert all(len(y[part].unique()) == 1 for part in data.Shards(per_agent=1)(y, 10))
    assert not torch.equal(parts[0], data.Shards(per_agent=2, seed=1)(y, 5)[0])
    # Targets are sorted by value.
    held = data.Shards(per_agent=1)(torch.tensor([0.3, -1.0, 0.2, 5.0]), 2)
    assert sorted(part.tolist() for part in held) == [[0, 3], [1, 2]]


def shares(beta, seed=0):
    """The share of each class that each agent holds, [agents, classes]."""
    y = torch.arange(20_000) % 10
    return torch.stack([y[part].bincount(minlength=10) for part in data.Dirichlet(beta, seed)(y, 8)]) / 2000


def test_dirichlet_goes_from_even_to_one_agent_per_class():
    assert (shares(1e5) - 1 / 8).abs().max() < 0.01
    concentrated = shares(1e-6)
    assert concentrated.max(dim=0).values.min() > 0.99
    assert not torch.equal(shares(1.0), shares(1.0, seed=1))
    # For one coordinate of Dirichlet(β, ..., β) over n agents the variance is (1/n)(1 − 1/n)/(nβ + 1).
    variance = torch.cat([shares(0.5, seed) for seed in range(20)]).var(correction=0)
    assert variance == pytest.approx(1 / 8 * 7 / 8 / (8 * 0.5 + 1), rel=0.1)


def test_dirichlet_deals_the_rows_of_a_class_at_random():
    """With shares that are nearly equal, agents and seeds differ by which rows of the class they get."""
    y = torch.zeros(1000, dtype=torch.int64)
    first, other = (set(data.Dirichlet(1e6, seed)(y, 2)[0].tolist()) for seed in (0, 1))
    assert 200 < sum(row < 500 for row in first) < 300
    assert 200 < len(first & other) < 300


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.Shuffled()(torch.zeros(3), 4), "4 agents need at least one row each"),
        (lambda: data.Contiguous()(torch.zeros(3), 0), "agents must be a whole number of at least 1"),
        (lambda: data.Contiguous()(torch.tensor(3), 1), r"y has shape \[\]"),
        (lambda: data.Shards(per_agent=2)(torch.zeros(5), 3), "3 agents with 2 shards each need 6 rows; there are 5"),
        (lambda: data.Shards()(torch.zeros(5, 2), 1), r"Shards needs one label per row.*got \[5, 2\]"),
        (lambda: data.Shards(per_agent=0), "per_agent must be a whole number of at least 1"),
        (lambda: data.Dirichlet(0.0), "beta must be a positive, finite number"),
        (lambda: data.Dirichlet(float("nan")), "beta must be a positive, finite number"),
        (lambda: data.Dirichlet(float("inf")), "beta must be a positive, finite number"),
        (lambda: data.Dirichlet(1.0)(torch.zeros(5), 2), "Dirichlet needs class labels"),
        (lambda: data.Shuffled(seed=-1), "seed must be a whole number"),
        (lambda: data.Shards(seed=2**64), "seed must be a whole number"),
        (lambda: data.Dirichlet(1.0, seed=-1), "seed must be a whole number"),
    ],
)
def test_partitions_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
