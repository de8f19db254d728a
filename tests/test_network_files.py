"""Networks from files: lists of edges and matrices, and refusals that name the line; the fastest weights."""

import sys

import networkx as nx
import numpy as np
import pytest

from proxdasa import networks
from proxdasa.networks import best_constant, fastest, from_file, from_graph, from_matrix, max_degree, paper, path, ring


@pytest.fixture
def write(tmp_path):
    def write(text, name="graph.txt"):
        place = tmp_path / name
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        return place

    return write


def same(network, other):
    np.testing.assert_allclose(network.W.toarray(), other.W.toarray(), rtol=0, atol=1e-15)


def test_a_list_of_edges(write):
    text = "# a cycle\n0 1\n1,2\n\n2\t3  # with a comment\n3 0\n0 3\n"
    same(from_file(write(text)), from_graph(nx.cycle_graph(4)))
    same(from_file(write(text), weights=max_degree), from_graph(nx.cycle_graph(4), weights=max_degree))


def test_agents_may_be_counted_from_one(write):
    edges = "\n".join(f"{i + 1} {j + 1}" for i, j in paper().edges)
    assert from_file(write(edges)).edges.tolist() == paper().edges.tolist()


def test_weights_of_the_file(write):
    text = "\n".join(f"{i} {j} {1 / 8}" for i, j in paper().edges)
    same(from_file(write(text)), paper())
    same(from_file(write(text), weights=max_degree), from_graph(paper().graph, weights=max_degree))


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
def test_matrices(write, tmp_path, suffix):
    W, place = paper().W.toarray(), tmp_path / f"W{suffix}"
    if suffix == ".npy":
        np.save(place, W)
    else:
        np.savetxt(place, W, delimiter=",", header="W", fmt="%.17g")
    same(from_file(place), from_matrix(W))
    same(from_file(str(place), weights=max_degree), from_graph(paper().graph, weights=max_degree))


def test_recipes_name_the_file(write):
    place = write("0 1\n1 2\n")
    network = from_file(place)
    assert network.describe() == {"name": "from_file", "path": str(place), "weights": None}
    assert network.label == f"from_file({place})"
    recipe = from_file(place, weights=max_degree).describe()
    assert recipe["weights"] == "max_degree"
    same(from_file(recipe["path"]), network)
    assert from_file in networks.ALL


EDGE = "a line must have the numbers of two agents and perhaps a weight, such as 0 1 or 0 1 0.25"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("g.txt", "", ["it has no edges", "one in each line, such as 0 1"]),
        ("g.txt", "# nothing\n", ["it has no edges"]),
        ("g.txt", "0 1\n1 two\n", ["line 2, '1 two': " + EDGE]),
        ("g.txt", "0 1\n\n1\n", ["line 3, '1': " + EDGE]),
        ("g.txt", "0 1 0.5 7\n", ["line 1, '0 1 0.5 7': " + EDGE]),
        ("g.txt", "0 -1\n", ["line 1, '0 -1': " + EDGE]),
        ("g.txt", "0 1\n1 1\n", ["line 2, '1 1': agent 1 cannot be its own neighbour"]),
        ("g.txt", "0 1 0\n", ["the weight must be a number above 0 and at most 1; got 0"]),
        ("g.txt", "0 1 nan\n", ["at most 1; got nan"]),
        ("g.txt", "0 1 x\n", ["at most 1; got x"]),
        ("g.txt", "0 1 0.5\n1 2\n", ["line 2, '1 2': give every edge a weight, or none"]),
        ("g.txt", "0 1 0.5\n1 0 0.4\n", ["line 2, '1 0 0.4': line 1 has another weight for the same edge"]),
        ("g.txt", "0 1\n1 4\n", ["agent 2 has no edge, though there is an agent 4", "without gaps"]),
        ("g.txt", "5 6\n", ["agent 1 has no edge, though there is an agent 6"]),
        ("g.txt", "1 2\n3 4\n", ["not connected", "agents are counted from 0 here, and from 1 in the file"]),
        ("g.txt", "0 1 0.7\n1 2 0.7\n", ["negative weights", "self weight of agent 1 is -0.4"]),
        ("g.txt", b"\xff\xfe0 1", ["not a text file"]),
        ("W.csv", "0.5,0.5\n0.5,x\n", ["line 2: '0.5,x' is not a row of numbers and commas"]),
        ("W.csv", "0.5,0.5\n0.5\n", ["line 2 has 1 numbers, the first row 2"]),
        ("W.csv", "0,1\n1,2\n2,3\n", ["W must be square, but there are 3 rows of 2", "list of edges"]),
        ("W.csv", "", ["W must be a square matrix"]),
        ("W.csv", "0.5,0.5\n0.4,0.6\n", ["W must be symmetric", "agent 0 takes 0.5 of agent 1"]),
        ("W.npy", b"no array", ["not an array of numbers as numpy.save writes it"]),
        ("W.npy", b"", ["not an array of numbers as numpy.save writes it"]),
    ],
)
def test_refusals_name_file_and_line(write, name, content, words):
    place = write(content, name)
    with pytest.raises(ValueError, match="from_file: ") as refusal:
        from_file(place)
    assert str(refusal.value).startswith(f"from_file: {place}: ")
    for word in words:
        assert word in str(refusal.value)


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "W.npy", np.array([[object()]]), allow_pickle=True)
    with pytest.raises(ValueError, match="not an array of numbers"):
        from_file(tmp_path / "W.npy")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.txt cannot be read: No such file"):
        from_file(tmp_path / "nowhere.txt")
    with pytest.raises(IsADirectoryError, match="cannot be read"):
        from_file(tmp_path)


# Fastest weights: the smallest ρ is known where symmetry leaves one weight, and for paths


@pytest.mark.parametrize("network", [ring(7), path(6), networks.star(6), networks.hypercube(3), path(1), path(2)])
def test_fastest_weights_where_the_answer_is_known(network):
    pytest.importorskip("cvxpy")
    found = from_graph(network.graph, weights=fastest)
    known = {"path": lambda: np.cos(np.pi / network.n), "star": lambda: 1 - 1 / (network.n - 1)}
    expected = known.get(network.recipe["name"], lambda: from_graph(network.graph, weights=best_constant).rho)()
    assert found.rho == pytest.approx(0.0 if network.n <= 2 else expected, abs=1e-6)


def test_fastest_weights_are_fastest():
    pytest.importorskip("cvxpy")
    graph = networks.erdos_renyi(12, 0.4, seed=2).graph
    others = [from_graph(graph).rho, from_graph(graph, weights=max_degree).rho]
    assert from_graph(graph, weights=fastest).rho < min(others) - 0.05


def test_fastest_weights_without_cvxpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'proxdasa\[weights\]'"):
        from_graph(nx.path_graph(3), weights=fastest)
