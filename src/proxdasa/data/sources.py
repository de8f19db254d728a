"""The data sets that are downloaded: their files, the servers that have them, and their checksums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proxdasa.data import data_folder


@dataclass(frozen=True)
class File:
    """One file: its name, number of rows and SHA-256, all uncompressed, and what servers send.

    Servers send ``name + suffix``, which has ``size`` bytes and, where it is compressed, its own checksum ``md5``.
    """

    name: str
    rows: int
    sha256: str
    size: int
    suffix: str = ""
    md5: str | None = None

    @property
    def served(self) -> str:
        """The name under which the file is downloaded and stored."""
        return self.name + self.suffix


@dataclass(frozen=True)
class Source:
    """A data set: its name, the addresses of its mirrors in the order in which they are tried, and its files."""

    name: str
    mirrors: tuple[str, ...]
    files: tuple[File, ...]

    def path(self, file: File, folder: Path | None = None) -> Path:
        """Where a file is expected, uncompressed."""
        return (folder or data_folder.folder()) / self.name / file.name

    def find(self, file: File) -> Path:
        """The path of a file, compressed or not; the error for a missing one says what is expected where."""
        place = self.path(file)
        if found := data_folder.candidates(place):
            return found[0]
        raise FileNotFoundError(
            f"{place} is missing (.bz2, .gz or .xz would do too); `proxdasa data fetch {self.name}` downloads it, "
            f"or put it there by hand, or set {data_folder.VARIABLE} to the folder that has {self.name}/{file.name}"
        )

    def damage_error(self, path: Path, what: str) -> ValueError:
        """The error for a damaged file."""
        return ValueError(f"{path}: {what}: the file is damaged; `proxdasa data fetch {self.name}` replaces it")


A9A = Source(
    "a9a",
    ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/",),
    (
        File("a9a", 32_561, "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", 2_329_875),
        File("a9a.t", 16_281, "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", 1_164_628),
    ),
)

MNIST = Source(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    (
        File(
            name="train-images-idx3-ubyte",
            rows=60_000,
            sha256="ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            size=9_912_422,
            suffix=".gz",
            md5="f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        File(
            name="train-labels-idx1-ubyte",
            rows=60_000,
            sha256="65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            size=28_881,
            suffix=".gz",
            md5="d53e105ee54ea40749a09fcbcd1e9432",
        ),
        File(
            name="t10k-images-idx3-ubyte",
            rows=10_000,
            sha256="0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            size=1_648_877,
            suffix=".gz",
            md5="9fb629c4189551a2d022fa330f9573f3",
        ),
        File(
            name="t10k-labels-idx1-ubyte",
            rows=10_000,
            sha256="ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            size=4_542,
            suffix=".gz",
            md5="ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
)

SOURCES = {source.name: source for source in (A9A, MNIST)}
"""The data sets that can be downloaded, by name."""


def listing(folder: Path | None = None) -> list[tuple[str, Path, bool]]:
    """Every file of every source: the data set, where the file is or is expected, and whether it is there.

    Examples:
        >>> sorted({name for name, path, present in data.listing()})
        ['a9a', 'mnist']
    """
    rows = []
    for source in SOURCES.values():
        for file in source.files:
            place = source.path(file, folder)
            found = data_folder.candidates(place)
            rows.append((source.name, found[0] if found else place.with_name(file.served), bool(found)))
    return rows
