"""Networks from files: a list of edges, or W itself.

A list of edges has a line "i j" or "i j w" for each edge, with spaces or commas between, and agents numbered from 0 or
from 1. What follows # is a comment, and an edge may be listed in both directions. A file whose name ends in .csv or
.npy holds a matrix.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, diags_array

from proxdasa import memory_budget
from proxdasa.networks.matrix_checks import check_dense, check_matrix
from proxdasa.networks.recipes import builder
from proxdasa.networks.weights import Weights, metropolis

CSV, EDGES = 25, 100
"""Bytes of memory for each byte of such a file while it is made into a network (measured)."""

Edges = dict[tuple[int, int], float | None]
"""Pairs (i, j) with i < j and their weights, if the file has any."""


@builder
def from_file(path: str | Path, weights: Weights | None = None) -> csr_array:
    r"""A file with an edge "i j" or "i j w" in each line, or with W (.csv, .npy).

    By default the weights are those of the file, or Metropolis weights if it has none; the self weight of an agent is
    one minus the weights of its edges. With ``weights`` given, only the graph of the file is used.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("sites.txt").write_text("0 1\n1 2\n2 3\n")
        >>> networks.from_file("sites.txt").edges.tolist()
        [[0, 1], [1, 2], [2, 3]]
    """
    path = Path(path)
    try:
        if path.suffix == ".npy":
            return _reweight(check_matrix(_array(path)), weights)
        matrix = path.suffix == ".csv"
        with path.open("rb") as stream:
            lines = memory_budget.read(stream, "it", CSV if matrix else EDGES).decode().splitlines()
        if matrix:
            return _reweight(check_matrix(_matrix(lines)), weights)
        return _network(_edges(lines), weights)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not a text file; give an edge i j or i j w in each line, or W in a .csv or .npy file"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except OSError as error:
        raise type(error)(f"{path.absolute()} cannot be read: {error.strerror or error}") from error


def _array(path: Path) -> NDArray[Any]:
    try:
        # Memory-mapped, so that a damaged header that claims a huge array allocates nothing.
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # NumPy raises whatever its header parser does, and its message is about pickles
        raise ValueError("not an array of numbers as numpy.save writes it") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"not an array of real numbers, but of {array.dtype}")
    check_dense(array.size)
    return array


def _matrix(lines: list[str]) -> list[list[float]]:
    rows: list[list[float]] = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.partition("#")[0].split(",")]
        if cells == [""]:
            continue
        try:
            rows.append([float(cell) for cell in cells])
        except ValueError:
            raise ValueError(f"line {number}: {line.strip()[:60]!r} is not a row of numbers and commas") from None
        if len(cells) != len(rows[0]):
            raise ValueError(f"line {number} has {len(cells)} numbers, the first row {len(rows[0])}")
    if rows and len(rows) != len(rows[0]):
        raise ValueError(
            f"W must be square, but there are {len(rows)} rows of {len(rows[0])}; "
            "a list of edges needs a name that does not end in .csv"
        )
    return rows


def _edges(lines: list[str]) -> Edges:
    edges: Edges = {}
    places: dict[tuple[int, int], int] = {}
    for number, line in enumerate(lines, start=1):
        entries = line.partition("#")[0].replace(",", " ").split()
        if not entries:
            continue
        try:
            i, j, weight = _edge(entries)
            edge = (min(i, j), max(i, j))
            if edges.setdefault(edge, weight) != weight:
                raise ValueError(f"line {places[edge]} has another weight for the same edge")
            if (weight is None) != (next(iter(edges.values())) is None):
                raise ValueError("give every edge a weight, or none")
        except ValueError as error:
            raise ValueError(f"line {number}, {line.strip()[:60]!r}: {error}") from None
        places.setdefault(edge, number)
    return edges


def _edge(entries: list[str]) -> tuple[int, int, float | None]:
    if len(entries) not in (2, 3) or not all(entry.isascii() and entry.isdecimal() for entry in entries[:2]):
        raise ValueError("a line must have the numbers of two agents and perhaps a weight, such as 0 1 or 0 1 0.25")
    i, j = int(entries[0]), int(entries[1])
    if i == j:
        raise ValueError(f"agent {i} cannot be its own neighbour; its self weight follows from those of its edges")
    if len(entries) == 2:
        return i, j, None
    try:
        weight = float(entries[2])
    except ValueError:
        weight = math.nan
    if not 0 < weight <= 1:
        raise ValueError(f"the weight must be a number above 0 and at most 1; got {entries[2]}")
    return i, j, weight


def _network(edges: Edges, weights: Weights | None) -> csr_array:
    if not edges:
        raise ValueError("it has no edges; give one in each line, such as 0 1, or W in a .csv or .npy file")
    numbers = {agent for edge in edges for agent in edge}
    first, last = min(numbers), max(numbers)
    start = min(first, 1)
    if last - start + 1 > len(numbers):
        missing = next(agent for agent in itertools.count(start) if agent not in numbers)
        raise ValueError(
            f"agent {missing} has no edge, though there is an agent {last}; number agents from 0 or 1 on, without gaps"
        )
    i, j = (np.array(ends) - first for ends in zip(*edges, strict=True))
    A = coo_array((np.ones(len(edges)), (i, j)), shape=(len(numbers), len(numbers)))
    try:
        if weights is None and None not in edges.values():
            A.data = np.array([*edges.values()], dtype=np.float64)
            A = coo_array(A + A.T)
            return check_matrix(A + diags_array(1 - A.sum(axis=1)))
        return check_matrix((weights or metropolis)(nx.from_scipy_sparse_array(A)))
    except ValueError as error:
        numbering = "; agents are counted from 0 here, and from 1 in the file" if first else ""
        raise ValueError(f"{error}{numbering}") from None


def _reweight(W: csr_array, weights: Weights | None) -> csr_array:
    return W if weights is None else weights(nx.from_scipy_sparse_array(W))
