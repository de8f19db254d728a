"""The data sets by name, as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa.data.dataset import Dataset
from proxdasa.data.formats import read_idx, read_svm
from proxdasa.data.permutations import SPLIT, permutation
from proxdasa.data.sources import SOURCES, File, Source

MEAN, STD = 0.1307, 0.3081
"""Mean and standard deviation of the pixels of MNIST's training images, scaled to [0, 1] and rounded as usual."""


def a9a() -> Dataset:
    """The a9a data set: census rows of 123 binary features; does a person earn more than 50,000 dollars (1) or not (0).

    32,561 rows for training and 16,281 for testing. The last feature never occurs in the test file, so the width is
    fixed rather than taken from the files.

    Examples:
        >>> dataset = data.a9a()  # after `proxdasa data fetch a9a`
        >>> dataset.x.shape, dataset.test_x.shape
        (torch.Size([32561, 123]), torch.Size([16281, 123]))
    """
    source = SOURCES["a9a"]
    x, y, test_x, test_y = (part for file in source.files for part in _a9a_part(source, file))
    return Dataset("a9a", x, y, test_x, test_y, classes=2, origin={})


def _a9a_part(source: Source, file: File) -> tuple[Tensor, Tensor]:
    path = source.find(file)
    labels, x = read_svm(path, features=123)
    _check_rows(source, file, path, len(labels))
    if wrong := set(labels) - {-1.0, 1.0}:
        raise source.damage_error(path, f"it has the label {min(wrong):g}, but those of {source.name} are -1 and +1")
    return torch.from_numpy(x), torch.from_numpy((labels > 0).astype(np.int64))


def mnist(normalise: bool = True) -> Dataset:
    """The MNIST data set: images ``[1, 28, 28]`` of ten handwritten digits, 60,000 for training, 10,000 for testing.

    Pixels are scaled to [0, 1] and, if ``normalise``, to (pixel − 0.1307)/0.3081, which has mean 0 and variance 1.

    Examples:
        >>> dataset = data.mnist()  # after `proxdasa data fetch mnist`
        >>> dataset.x.shape, dataset.classes
        (torch.Size([60000, 1, 28, 28]), 10)
    """
    source = SOURCES["mnist"]
    parts: list[Tensor] = []
    for file in source.files:
        path = source.find(file)
        array = read_idx(path)
        _check_rows(source, file, path, len(array))
        shape, kind = ((28, 28), "images") if "images" in file.name else ((), "labels")
        if array.shape[1:] != shape:
            raise source.damage_error(path, f"its {kind} have shape {list(array.shape[1:])}, not {list(shape)}")
        if kind == "labels" and array.max(initial=0) > 9:
            raise source.damage_error(path, f"it has the label {array.max()}, but those of {source.name} are 0, ..., 9")
        parts.append(_pixels(array, normalise) if kind == "images" else torch.from_numpy(array.astype(np.int64)))
    x, y, test_x, test_y = parts
    return Dataset("mnist", x, y, test_x, test_y, classes=10, origin={"normalise": normalise})


def _pixels(array: NDArray[np.uint8], normalise: bool) -> Tensor:
    x = torch.from_numpy(array.astype(np.float32)).unsqueeze(1).div_(255)
    return x.sub_(MEAN).div_(STD) if normalise else x


def _check_rows(source: Source, file: File, path: Path, rows: int) -> None:
    if rows != file.rows:
        raise source.damage_error(path, f"it has {rows} rows instead of {file.rows}")


def digits(seed: int = 0) -> Dataset:
    """Scikit-learn's digits: 1,797 images of 8 × 8 pixels as rows of 64 numbers in [0, 1], ten classes.

    A fifth of the rows, chosen by ``seed``, is for testing. Needs scikit-learn, but no download.

    Examples:
        >>> dataset = data.digits()
        >>> dataset.x.shape, dataset.test_x.shape
        (torch.Size([1438, 64]), torch.Size([359, 64]))
    """
    x, y = _from_sklearn("load_digits")
    return _split("digits", torch.from_numpy(x / 16).to(torch.float32), y, seed)


def breast_cancer(seed: int = 0) -> Dataset:
    """Scikit-learn's breast cancer data: 569 rows of 30 measurements, malignant (0) or benign (1).

    A fifth of the rows, chosen by ``seed``, is for testing. Each measurement is shifted and scaled to mean 0 and
    variance 1 over the training rows. Needs scikit-learn, but no download.

    Examples:
        >>> dataset = data.breast_cancer()
        >>> dataset.x.shape, dataset.test_x.shape
        (torch.Size([456, 30]), torch.Size([113, 30]))
    """
    x, y = _from_sklearn("load_breast_cancer")
    features = torch.from_numpy(x)
    train, _ = _rows(len(x), seed)
    std, mean = torch.std_mean(features[train], dim=0, correction=0)
    return _split("breast_cancer", ((features - mean) / std).to(torch.float32), y, seed)


def _from_sklearn(loader: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    try:
        from sklearn import datasets  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as error:
        name = loader.removeprefix("load_")
        raise ModuleNotFoundError(
            f"{name} comes with scikit-learn, which is missing: pip install scikit-learn"
        ) from error
    loaded: Any = getattr(datasets, loader)()
    return np.asarray(loaded.data, dtype=np.float64), np.asarray(loaded.target, dtype=np.int64)


def _rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The rows for training and for testing, each in the order of the data."""
    order = permutation(count, seed, SPLIT)
    test = count // 5
    return order[test:].sort().values, order[:test].sort().values


def _split(name: str, x: Tensor, y: NDArray[np.int64], seed: int) -> Dataset:
    train, test = _rows(len(x), seed)
    labels = torch.from_numpy(y)
    classes = int(labels.max()) + 1
    return Dataset(name, x[train], labels[train], x[test], labels[test], classes, origin={"seed": seed})


def libsvm(
    path: str | Path, features: int | None = None, test: str | Path | None = None, regression: bool = False
) -> Dataset:
    r"""Any file in LIBSVM's format, plain or .bz2, .gz, .xz, and perhaps one for testing.

    The labels, in ascending order, become 0, ..., C − 1; with ``regression`` they are targets and stay as they are.
    ``features`` fixes the width; without it the largest index of both files does. Numbers are read as float32.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("train.svm").write_text("-1 1:0.5 3:2\n+1 2:1\n")
        >>> dataset = data.libsvm("train.svm")
        >>> dataset.x, dataset.y
        (tensor([[0.5000, 0.0000, 2.0000],
                [0.0000, 1.0000, 0.0000]]), tensor([0, 1]))
    """
    paths = [Path(file) for file in (path, test) if file is not None]
    read = [read_svm(file, features) for file in paths]
    width = max(x.shape[1] for _, x in read)
    xs = [torch.from_numpy(np.pad(x, ((0, 0), (0, width - x.shape[1])))) for _, x in read]
    known = None if regression else np.unique(read[0][0])
    ys = [targets(file, labels, known, str(path)) for file, (labels, _) in zip(paths, read, strict=True)]
    return Dataset(
        "libsvm",
        xs[0],
        ys[0],
        test_x=xs[1] if test is not None else None,
        test_y=ys[1] if test is not None else None,
        classes=None if known is None else len(known),
        origin={
            "path": str(path),
            "features": features,
            "test": None if test is None else str(test),
            "regression": regression,
        },
    )


def targets(file: Path, labels: NDArray[np.float64], known: NDArray[np.float64] | None, where: str) -> Tensor:
    """The labels of a file as class numbers: their positions among the known labels, which are sorted.

    For regression ``known`` is None, and the labels stay as they are, in float32.
    """
    if known is None:
        return torch.from_numpy(labels).to(torch.float32)
    if fractions := np.argwhere(np.atleast_1d(labels != np.floor(labels))).tolist():
        row = fractions[0][0]
        raise ValueError(
            f"{file}: the label {np.atleast_1d(labels)[tuple(fractions[0])]:g} of row {row} is not a whole number; "
            "with regression=True labels are targets"
        )
    if unknown := np.setdiff1d(labels, known).tolist():
        raise ValueError(f"{file}: the label {unknown[0]:g} does not occur in {where}")
    return torch.from_numpy(np.searchsorted(known, labels).astype(np.int64))
