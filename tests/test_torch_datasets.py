"""PyTorch's data sets as ours: the same rows, items that do not fit together, and rows that do not fit into memory."""

import re
import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import proxdasa
from proxdasa import data, networks, problems
from proxdasa.data import torch_datasets
from proxdasa.descriptions import describe


class Items(Dataset):
    """Items made by a function of their index."""

    def __init__(self, item, count=70):
        self.item, self.count = item, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.item(i)


def image(i):
    """An image as torchvision's transforms give it, and a label of Python."""
    return torch.full((1, 4, 4), i / 100), i % 3


def array(i):
    return np.full((5,), i, dtype=np.float64), np.float32(i / 8)


def listed(i):
    return [np.array([i, 2 * i], dtype=np.uint8), np.int64(i % 2)]


@pytest.mark.parametrize(
    ("item", "workers", "classes"), [(image, 0, 3), (image, 2, 3), (array, 0, None), (listed, 1, 2)]
)
def test_the_same_rows_in_the_same_order(item, workers, classes):
    before = torch.get_rng_state()
    read = data.from_dataset(Items(item), test=Items(item, 5), workers=workers)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    stacked = [np.stack([np.asarray(item(i)[part]) for i in range(70)]) for part in range(2)]
    assert (read.classes, read.name) == (classes, "Items")
    np.testing.assert_array_equal(read.x.numpy(), stacked[0])
    np.testing.assert_array_equal(read.y.numpy(), stacked[1])
    assert torch.equal(read.test_x, read.x[:5])
    assert torch.equal(read.test_y, read.y[:5])


def test_torchs_own_data_sets_and_subsets():
    x, y = torch.randn(200, 3), torch.arange(200) % 4
    read = data.from_dataset(torch.utils.data.Subset(TensorDataset(x, y), range(100, 200)), name="second half")
    same = data.from_tensors(x[100:], y[100:], name="second half")
    assert describe(read) == describe(same)


def at(number, other, usual=image):
    return lambda i: other if i == number else usual(i)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("number", [3, 64, 66])
def test_items_that_do_not_fit_are_named(number, workers):
    """Also the first of a batch."""
    other = Items(at(number, (torch.zeros(1, 4, 5), 0)))
    message = f"Items: x of item {number} has shape [1, 4, 5] and type torch.float32, that of item 0 [1, 4, 4]"
    with pytest.raises(ValueError, match=re.escape(message)):
        data.from_dataset(other, workers=workers)


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (lambda i: torch.zeros(3), TypeError, "item 0 must be a pair (x, y); got a Tensor"),
        (lambda i: {"x": 1}, TypeError, "item 0 must be a pair (x, y); got a dict"),
        (lambda i: (1, 2, 3), TypeError, "item 0 must be a pair (x, y); got a tuple of 3"),
        (at(9, ("nine", 1)), TypeError, "x of item 9 must be a tensor, an array or a number; got a str; transforms"),
        (at(9, (torch.zeros(1, 4, 4), None)), TypeError, "y of item 9 must be a tensor, an array or a number; got a N"),
        (at(9, (np.array(["a"]), 1)), TypeError, "x of item 9 must be a tensor, an array or a number; got a ndarray"),
        (at(9, (torch.zeros(1, 4, 4), 0.5)), ValueError, "y of item 9 has shape [] and type torch.float32, that of it"),
        (at(65, (torch.zeros(1, 4, 4, dtype=torch.float64), 1)), ValueError, "x of item 65 has shape [1, 4, 4] and t"),
        (at(69, (torch.full((1, 4, 4), torch.nan), 1)), ValueError, "Items: x must be finite; got nan in row 69"),
        (at(0, (torch.full((1, 4, 4), torch.nan), 1)), ValueError, "Items: x must be finite; got nan in row 0"),
        (at(9, (torch.zeros(1, 4, 4), -1)), ValueError, "labels y must lie in 0, ..., 2; row 9 has -1"),
        (lambda i: (torch.rand(2), 1), ValueError, "item 0 differs when it is read again; runs name their samples"),
        (lambda i: (1.0, 1), ValueError, "of shape [N, ...]; got torch.float32 of shape [1]"),
        (lambda i: (torch.zeros(2) + 1j, 1), TypeError, "Items: x must hold real numbers; got torch.complex64"),
    ],
)  # fmt: skip
def test_what_is_no_data_set_of_numbers_is_refused(item, error, message):
    with pytest.raises(error, match=re.escape(message)):
        data.from_dataset(Items(item))


def test_only_map_style_data_sets():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([image(0)])

    with pytest.raises(TypeError, match=r"must be map-style, with len\(dataset\) and dataset\[i\]; got <"):
        data.from_dataset(Stream())
    with pytest.raises(TypeError, match="must be map-style"):
        data.from_dataset(range)
    with pytest.raises(ValueError, match="the data set has no items"):
        data.from_dataset(Items(image, 0))
    with pytest.raises(ValueError, match="workers must be a whole number of at least 0; got -1"):
        data.from_dataset(Items(image), workers=-1)


def large(i):
    return torch.full((50, 50), float(i)), i % 2


def test_rows_that_do_not_fit_into_memory_are_kept_in_a_file(tmp_path, monkeypatch):
    plain = data.from_dataset(Items(large, 300))
    monkeypatch.setenv("PROXDASA_MEMORY", "2MB")
    message = (
        r"Items: 300 items with x of shape \[50, 50\] would take about 4.5 MB of memory, but the limit is 2 MB; give"
    )
    with pytest.raises(ValueError, match=message):
        data.from_dataset(Items(large, 300))
    made, mapped = [], torch_datasets._map
    monkeypatch.setattr(torch_datasets, "_map", lambda *given: made.append(given) or mapped(*given))
    kept = data.from_dataset(Items(large, 300), folder=tmp_path)
    assert len(made) == 2
    assert not list(tmp_path.iterdir()), "the file goes with the tensor"
    monkeypatch.delenv("PROXDASA_MEMORY")
    assert torch.equal(kept.x, plain.x)
    assert describe(kept) == describe(plain)
    runs = []
    for dataset in (plain, kept):
        problem = problems.Supervised(lambda: nn.Sequential(nn.Flatten(), nn.Linear(2500, 2)), dataset, agents=3)
        assert problem._x.data_ptr() == dataset.x.data_ptr(), "no copy"
        runs.append(proxdasa.run(proxdasa.ProxDASA(gamma=1e-4), problem, networks.ring(3), iterations=5))
    assert torch.equal(runs[0].x, runs[1].x)


def test_no_room_for_the_file_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PROXDASA_MEMORY", "1MB")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_datasets.os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device"):
        data.from_dataset(Items(large, 300), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_checking_rows_takes_little_memory():
    """NumPy's memory is traced, torch's is not: what counts is that the fingerprint makes no copy."""
    dataset = data.from_tensors(torch.zeros(1_000, 1_000), torch.zeros(1_000))
    tracemalloc.start()
    dataset.describe()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


@pytest.mark.parametrize("memory", [torch.zeros(2), np.zeros(2)], ids=["tensor", "array"])
def test_items_that_are_read_into_the_same_memory(memory):
    def read(i):
        memory[:] = i
        return memory, i % 2

    assert data.from_dataset(Items(read, count=3)).x.tolist() == [[0, 0], [1, 1], [2, 2]]
