"""Data sets and their files."""

import bz2
import dataclasses
import gzip
import hashlib
import lzma
import os
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from proxdasa import data
from proxdasa.data import sources
from proxdasa.descriptions import describe


@pytest.fixture(scope="module")
def real():
    """The data folder with the real files."""
    left_out = "left out: the tests on the real a9a and MNIST files"
    if not os.environ.get("PROXDASA_DATA"):
        pytest.skip(f"{left_out}, because PROXDASA_DATA does not name a folder that has them")
    if missing := [path for _, path, there in data.listing() if not there]:
        pytest.skip(f"{left_out}, because {missing[0]} is missing")
    return data.folder()


@pytest.fixture(scope="module")
def a9a(real):
    return data.a9a()


def svm(tmp_path, text, name="rows"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def idx(array):
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


# data sets of tensors


def test_whole_numbers_are_labels_and_floats_are_targets():
    labelled = data.from_tensors([[1, 2], [3, 4], [5, 6]], [0, 2, 1], np.zeros((1, 2)), np.array([4]))
    assert (labelled.x.dtype, labelled.y.dtype, labelled.classes) == (torch.float64, torch.int64, 5)
    assert labelled.test_x.dtype == torch.float64, "one type for both, in which nothing is lost"
    assert labelled.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert labelled.test_y.tolist() == [4]
    target = data.from_tensors(torch.ones(2, 3, 4, dtype=torch.float64), torch.tensor([0.5, -1.0], dtype=torch.float64))
    assert (target.x.dtype, target.y.dtype, target.classes, target.test_x) == (torch.float64, torch.float64, None, None)
    words = data.from_tensors(torch.ones(2, 3, dtype=torch.uint8), [0, 1])
    assert words.x.dtype == torch.int64
    assert data.from_tensors(torch.ones(2, 3, dtype=torch.bfloat16), [0, 1]).x.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], [0, 1]), r"one row per sample .* \[1, 1\] and \[2\]"),
        (([1.0], [0]), r"x must be float32, float64 or int64 of shape \[N, ...\]; got torch.float32 of shape \[1\]"),
        ((torch.ones(0, 2), torch.ones(0, dtype=torch.int64)), "at least one"),
        (([[1.0], [float("nan")]], [0, 1]), "x must be finite; got nan in row 1"),
        (([[1.0], [2.0]], [0, -1]), r"must lie in 0, ..., 0; row 1 has -1"),
        (([[1.0], [1.0]], [0.5, float("inf")]), "tensors: y must be finite; got inf in row 1"),
        (([[1.0]] * 3, [[0.0, 1.0], [0.0, 1.0], [2.0, float("nan")]]), "y must be finite; got nan in row 2"),
        (([[1.0]], [0.5], [[1.0]] * 2, [0.5, float("nan")]), "test_y must be finite; got nan in row 1"),
        (([[1.0]], [[1]]), r"labels y must be int64 of shape \[N\]"),
        (([[1.0]], [0], [[1.0]]), "test_x is given and test_y is not"),
        (([[1.0]], [0], None, [1]), "test_y is given and test_x is not"),
        (([[1.0]], [0], [[1.0, 2.0]], [0]), r"rows of x have shape \[1\], those of test_x \[2\]"),
        (([[1.0]], [0], [[1.0]], [0, 1]), r"test_x and test_y need one row"),
        (
            ([[2**24 + 1]], [0], [[0.5]], [0]),
            "x has whole numbers that float32 would round; give x and test_x in float",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.from_tensors(*arguments)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.uint32])
def test_labels_of_every_whole_number_type(dtype):
    dataset = data.from_tensors(np.zeros((3, 2)), np.array([0, 2, 1], dtype=dtype), np.zeros((1, 2)), [3])
    assert dataset.y.tolist() == [0, 2, 1]
    assert dataset.classes == 4


def test_labels_and_targets_do_not_mix():
    with pytest.raises(TypeError, match="both be labels"):
        data.from_tensors([[1.0]], [0], [[1.0]], [0.5])
    with pytest.raises(TypeError, match="x is uint64, whose numbers need not fit into int64; give int64"):
        data.from_tensors(np.array([[2**63]], dtype=np.uint64), [0])
    with pytest.raises(TypeError, match="real numbers"):
        data.from_tensors([[1j]], [0])
    with pytest.raises(ValueError, match="classes must be at least 1"):
        data.Dataset("mine", torch.ones(1, 1), torch.zeros(1, dtype=torch.int64), classes=0)


def test_a_data_set_describes_how_to_get_it_again(tmp_path):
    path = svm(tmp_path, "1 1:2\n")
    described = describe(data.libsvm(path, features=3))
    assert described == {"name": "libsvm", "path": str(path), "features": 3, "test": None, "regression": False}
    again = data.libsvm(**{key: value for key, value in described.items() if key != "name"})
    assert again.x.tolist() == [[2, 0, 0]]
    one, same, other = (describe(data.from_tensors([[1.0]], [y])) for y in (0, 0, 1))
    assert one == same != other


# LIBSVM text


def test_libsvm_rows_labels_and_comments(tmp_path):
    text = "+3 1:0.5 4:-2e1 # a_comment\n\n# another\r\n-1\t2:1 \r\n10 3:+7\n-1.0"
    read = data.libsvm(svm(tmp_path, text))
    assert read.x.tolist() == [[0.5, 0, 0, -20], [0, 1, 0, 0], [0, 0, 7, 0], [0, 0, 0, 0]]
    assert read.y.tolist() == [1, 0, 2, 0]
    assert (read.classes, read.test_x) == (3, None)


def test_libsvm_widths_and_labels_of_the_test_file(tmp_path):
    train, test = svm(tmp_path, "5 1:1\n7 2:1\n"), svm(tmp_path, "7 4:1\n", "test")
    both = data.libsvm(train, test=test)
    assert (both.x.shape, both.test_x.shape, both.test_y.tolist()) == ((2, 4), (1, 4), [1])
    assert data.libsvm(train, features=9, test=test).test_x.shape == (1, 9)
    assert data.libsvm(test, regression=True).y.tolist() == [7.0]
    with pytest.raises(ValueError, match=f"{re.escape(str(train))}: the label 5 does not occur in"):
        data.libsvm(test, test=train)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".bz2", bz2.compress), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_compressed_files_and_truncated_ones(tmp_path, suffix, compress):
    packed = compress(b"1 1:1\n" * 500 + bytes(np.random.default_rng(0).integers(97, 123, 5000, dtype=np.uint8)))
    whole = svm(tmp_path, compress(b"1 1:1\n-1 2:1\n"), f"whole{suffix}")
    assert data.libsvm(whole).y.tolist() == [1, 0]
    for name, damaged in {
        "cut": packed[:-20],
        "text": b"1 1:1\n1 1:1\n1 1:1\n",
        "flip": packed[:300] + bytes(50) + packed[350:],
    }.items():
        path = svm(tmp_path, damaged, f"{name}{suffix}")
        with pytest.raises(ValueError, match=f"{re.escape(str(path))}: damaged or incomplete {suffix}"):
            data.libsvm(path)
    with pytest.raises(FileNotFoundError, match="absent"):
        data.libsvm(tmp_path / f"absent{suffix}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2", "'2' is not index:value"),
        ("1 2:", "'2:' is not index:value"),
        ("1 :2", "':2' is not index:value"),
        ("1 2:3:4", "'2:3:4' is not index:value"),
        ("1 2:3:4 5", "'2:3:4' is not index:value"),
        ("1 1.5:2", "'1.5:2' is not index:value"),
        ("1 1:x", "'1:x' is not index:value"),
        ("1 1:nan", "'1:nan' is not index:value"),
        ("1 1:-inf", "'1:-inf' is not index:value"),
        ("1 1:1e39", "'1:1e39' is not index:value"),
        ("1 1:1_0", "'1:1_0' is not index:value"),
        ("1 1_0:1", "'1_0:1' is not index:value"),
        ("1 99999999999999999999:1", "is not index:value"),
        ("1 qid:3 1:1", "'qid:3' is not index:value"),
        ("1 0:1", "index of '0:1' must be in 1, ..., 9"),
        ("1 -1:1", "index of '-1:1' must be in 1, ..., 9"),
        ("1 10:1", "index of '10:1' must be in 1, ..., 9"),
        ("1 2:1 2:1", "indices must increase, but '2:1' follows '2:1'"),
        ("1 3:1 2:5", "indices must increase, but '2:5' follows '3:1'"),
        ("1:1 2:1", "label '1:1' is not a finite number"),
        ("nan 2:1", "label 'nan' is not a finite number"),
        ("1,2 2:1", "label '1,2' is not a finite number"),
        ("1_0 2:1", "label '1_0' is not a finite number"),
        (b"\xff 2:1", "label '.*' is not a finite number"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, message):
    line = line if isinstance(line, bytes) else line.encode()
    path = svm(tmp_path, b"1 1:1 9:1\n\n" + line + b"\n1 1:1\nworse 0:0 x\n")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}, line 3: .*{message}"):
        data.libsvm(path, features=9)


@pytest.mark.parametrize("line", ["1 1:1_0", "1 1_0:1", "1_0 1:1"])
def test_pythons_own_notation_of_numbers_is_refused(tmp_path, line):
    """Alone in the file, where nothing else makes the reader look closer."""
    with pytest.raises(ValueError, match=r"line 1: .*1_0"):
        data.libsvm(svm(tmp_path, line))


def test_other_libsvm_files_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rows: it has no rows"):
        data.libsvm(svm(tmp_path, " \n# nothing\n"))
    with pytest.raises(ValueError, match="line 1: the index of '0:1' must be at least 1"):
        data.libsvm(svm(tmp_path, "1 0:1\n"))
    with pytest.raises(ValueError, match=r"rows: the label 0\.5 of row 1 is not a whole number; with regression=True"):
        data.libsvm(svm(tmp_path, "1 1:1\n0.5 1:1\n"))
    with pytest.raises(ValueError, match="features must be at least 1"):
        data.libsvm(svm(tmp_path, "1 1:1\n"), features=0)
    with pytest.raises(ValueError, match=r"2 rows of 4000000000000 features as a dense array would take about 64 TB"):
        data.libsvm(svm(tmp_path, "1 4000000000000:1\n1 1:1\n"))


@given(
    x=hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-1e6, 1e6, width=32)),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read_back(tmp_path_factory, x, seed):
    y = np.random.default_rng(seed).integers(-2, 3, len(x))
    lines = [
        " ".join([str(label), *(f"{i + 1}:{v!r}" for i, v in enumerate(row.tolist()) if v)])
        for label, row in zip(y, x, strict=True)
    ]
    read = data.libsvm(svm(tmp_path_factory.getbasetemp(), "\n".join(lines)), features=x.shape[1])
    np.testing.assert_array_equal(read.x.numpy(), x)
    np.testing.assert_array_equal(np.unique(y)[read.y.numpy()], y)


# the data folder, a9a and MNIST from small files


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PROXDASA_DATA", "~/somewhere")
    assert data.folder() == Path.home() / "somewhere"
    monkeypatch.setenv("PROXDASA_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.folder() == tmp_path / "proxdasa"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert data.folder() == Path.home() / ".cache" / "proxdasa"


def shortened(monkeypatch, name, rows):
    """A source whose files have few rows."""
    source = sources.SOURCES[name]
    short = [dataclasses.replace(file, rows=count) for file, count in zip(source.files, rows, strict=True)]
    monkeypatch.setitem(sources.SOURCES, name, dataclasses.replace(source, files=tuple(short)))


def test_a9a_from_plain_and_compressed_files(store, monkeypatch):
    shortened(monkeypatch, "a9a", (3, 1))
    with pytest.raises(FileNotFoundError, match=f"{re.escape(str(store / 'a9a' / 'a9a'))} is missing.*data fetch a9a"):
        data.a9a()
    (store / "a9a").mkdir()
    (store / "a9a" / "a9a").write_text("-1 3:1\n+1 123:1\n-1 1:1\n")
    with pytest.raises(FileNotFoundError, match=r"a9a.t is missing"):
        data.a9a()
    (store / "a9a" / "a9a.t.bz2").write_bytes(bz2.compress(b"+1 122:1\n"))
    read = data.a9a()
    assert (read.y.tolist(), read.test_y.tolist(), read.classes) == ([0, 1, 0], [1], 2)
    assert read.x.nonzero().tolist() == [[0, 2], [1, 122], [2, 0]]
    assert read.test_x.shape == (1, 123)
    for text, message in (
        ("-1 3:1\n", "it has 1 rows instead of 3: the file is damaged; `proxdasa data fetch a9a` replaces it"),
        ("-1 3:1\n0 4:1\n1 1:1\n", r"it has the label 0, but those of a9a are -1 and \+1"),
        ("-1 3:1\n1 124:1\n1 1:1\n", "line 2: the index of '124:1' must be in 1, ..., 123"),
    ):
        (store / "a9a" / "a9a").write_text(text)
        with pytest.raises(ValueError, match=f"{re.escape(str(store / 'a9a' / 'a9a'))}.*{message}"):
            data.a9a()


IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = (file.name for file in sources.MNIST.files)


@pytest.fixture
def small_mnist(store, monkeypatch):
    shortened(monkeypatch, "mnist", (3, 3, 2, 2))
    (store / "mnist").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    for name, array in ((IMAGES, pixels[:3]), (TEST_IMAGES, pixels[3:]), (LABELS, np.array([9, 0, 4]))):
        (store / "mnist" / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    (store / "mnist" / TEST_LABELS).write_bytes(idx(np.array([1, 2])))
    return store / "mnist", pixels


def test_mnist_from_plain_and_compressed_files(small_mnist):
    _, pixels = small_mnist
    read, raw = data.mnist(), data.mnist(normalise=False)
    assert (read.x.shape, read.test_x.shape, read.classes) == ((3, 1, 28, 28), (2, 1, 28, 28), 10)
    assert (read.y.tolist(), read.test_y.tolist()) == ([9, 0, 4], [1, 2])
    np.testing.assert_allclose(raw.x[:, 0], pixels[:3] / 255, rtol=1e-6)
    np.testing.assert_allclose(read.test_x[:, 0], (pixels[3:] / 255 - 0.1307) / 0.3081, atol=1e-6)
    assert describe(raw) == {"name": "mnist", "normalise": False}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, idx(np.zeros((3, 28, 28)))[:-1], r"shape \[3, 28, 28\] takes 2368 bytes; the file has 2367"),
        (IMAGES, idx(np.zeros((3, 28, 28))) + b"x", "the file has 2369"),
        (
            IMAGES,
            idx(np.zeros((2, 28, 28))),
            "it has 2 rows instead of 3: the file is damaged; `proxdasa data fetch mnist`",
        ),
        (IMAGES, idx(np.zeros((3, 28, 27))), r"its images have shape \[28, 27\], not \[28, 28\]"),
        (IMAGES, idx(np.zeros((3, 28, 28)))[:10], "ends within its header, after 10 of 16 bytes"),
        (IMAGES, b"<html>not found</html>", "not an idx file of unsigned bytes; it begins with 3c 68 74 6d"),
        (IMAGES, b"", "it begins with nothing"),
        (LABELS, b"\0\0\x0d\x01" + bytes(8), "not an idx file of unsigned bytes"),
        (LABELS, idx(np.array([1, 2, 10])), "it has the label 10, but those of mnist are 0, ..., 9"),
        (TEST_LABELS, idx(np.zeros((2, 1))), r"its labels have shape \[1\], not \[\]"),
    ],
)
def test_damaged_mnist_files_are_named(small_mnist, name, content, message):
    folder, _ = small_mnist
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(folder / name))}: .*{message}"):
        data.mnist()


def test_a_truncated_archive_and_a_missing_file_of_mnist(small_mnist):
    folder, _ = small_mnist
    path = folder / f"{TEST_IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: damaged or incomplete .gz"):
        data.mnist()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{TEST_IMAGES} is missing.*proxdasa data fetch mnist"):
        data.mnist()


# scikit-learn's


def test_digits_and_breast_cancer():
    loaders = pytest.importorskip("sklearn.datasets")
    digits, cancer = data.digits(), data.breast_cancer()
    assert (digits.x.shape, digits.test_x.shape, digits.classes) == ((1438, 64), (359, 64), 10)
    assert (cancer.x.shape, cancer.test_x.shape, cancer.classes) == ((456, 30), (113, 30), 2)
    both = torch.cat([digits.x, digits.test_x]).mul(16).numpy()
    theirs = loaders.load_digits()
    for mine, reference in (
        (both, theirs.data),
        (torch.cat([digits.y, digits.test_y]).numpy()[:, None], theirs.target[:, None]),
    ):
        np.testing.assert_array_equal(np.sort(mine, axis=0), np.sort(reference, axis=0))
    # Each image still has its own label.
    labels = {image.tobytes(): label for image, label in zip(theirs.data, theirs.target, strict=True)}
    assert [labels[image.astype(np.float64).tobytes()] for image in both[:1438]] == digits.y.tolist()
    std, mean = torch.std_mean(cancer.x, dim=0, correction=0)
    torch.testing.assert_close(mean, torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(std, torch.ones(30), atol=1e-5, rtol=0)
    assert torch.cat([cancer.y, cancer.test_y]).bincount().tolist() == [212, 357]
    assert cancer.test_x.abs().max() > 0.5


def test_splits_are_named_by_their_seed():
    pytest.importorskip("sklearn.datasets")
    assert torch.equal(data.digits(seed=1).test_x, data.digits(seed=1).test_x)
    assert not torch.equal(data.digits(seed=1).test_x, data.digits(seed=2).test_x)
    assert describe(data.digits(seed=1)) == {"name": "digits", "seed": 1}


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ModuleNotFoundError, match=r"digits comes with scikit-learn.*pip install scikit-learn"):
        data.digits()


# the real files


def test_real_a9a(a9a):
    assert (a9a.x.shape, a9a.test_x.shape) == ((32_561, 123), (16_281, 123))
    # Of the census data 7,841 and 3,846 persons earn more.
    assert a9a.y.bincount().tolist() == [24_720, 7_841]
    assert a9a.test_y.bincount().tolist() == [12_435, 3_846]
    assert int(a9a.y[0]) == 0
    # `bzcat a9a.bz2 | head -1`
    assert (a9a.x[0].nonzero().flatten() + 1).tolist() == [3, 11, 14, 19, 39, 42, 55, 64, 67, 73, 75, 76, 80, 83]
    assert bool(((a9a.x == 0) | (a9a.x == 1)).all())
    assert a9a.x[:, 122].sum() > 0
    assert a9a.test_x[:, 122].sum() == 0


def test_real_a9a_as_scikit_learn_reads_it(a9a):
    datasets = pytest.importorskip("sklearn.datasets")
    for file, x, y in zip(sources.A9A.files, (a9a.x, a9a.test_x), (a9a.y, a9a.test_y), strict=True):
        theirs, labels = datasets.load_svmlight_file(str(sources.A9A.find(file)), n_features=123)
        np.testing.assert_array_equal(x.numpy(), theirs.toarray().astype(np.float32))
        np.testing.assert_array_equal(2 * y.numpy() - 1, labels)


def test_real_mnist(real):
    read = data.mnist()
    assert (read.x.shape, read.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert read.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert read.test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert read.y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert read.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    std, mean = torch.std_mean(read.x)
    assert abs(float(mean)) < 1e-3
    assert abs(float(std) - 1) < 1e-3


def test_real_files_have_the_checksums(real):
    """Nothing is asked of the network: every file is there and right."""
    for name in ("a9a", "mnist"):
        assert [path.is_relative_to(real) for path in data.fetch(name)] == [True] * len(sources.SOURCES[name].files)
    for file in sources.MNIST.files:
        served = real / "mnist" / file.served
        if served.is_file():
            assert (hashlib.md5(served.read_bytes()).hexdigest(), served.stat().st_size) == (file.md5, file.size)
