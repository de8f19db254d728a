"""CSV and parquet files, one for each agent: the same rows as in any other form, and errors with file, row, column."""

import functools
import gzip
import json
import re
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from torch import nn
from typer.testing import CliRunner

import proxdasa
from proxdasa import data, networks
from proxdasa.cli import app
from proxdasa.configs import read
from proxdasa.data.csv_parquet import read_csv, read_parquet
from proxdasa.problems import Supervised
from proxdasa.runs.setup import Setup
from tests.setups import digest, in_threads

SIZES, NAMES = (3, 9, 4), ("age", "dose", "sick")

CONFIG = """
iterations = 4
algorithm = { name = "ProxDASAGT", gamma = 0.5, alpha = 0.3 }
network = "complete"
[problem]
name = "Supervised"
agents = 3
batch_size = 4
weights = "examples"
model = { name = "mlp", inputs = 2, hidden = 3, outputs = 2 }
[problem.data]
name = "per_agent"
files = "site-{agent}.csv"
target = "sick"
features = ["age", "dose"]
labels = [0, 1]
test = "test.csv"
"""


def write(path, columns):
    """A table in the format that the suffix names."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
        return
    lines = [",".join(columns), *(",".join(map(repr, map(float, row))) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def drawn(size, seed):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(size, 2)).astype(np.float32)
    return {"age": numbers[:, 0], "dose": numbers[:, 1], "sick": rng.integers(0, 2, size)}


@pytest.fixture(params=[".csv", ".parquet"])
def suffix(request):
    return request.param


@pytest.fixture
def sites(tmp_path):
    for kind in (".csv", ".parquet"):
        for agent, size in enumerate(SIZES):
            write(tmp_path / f"site-{agent}{kind}", drawn(size, agent))
        write(tmp_path / f"test{kind}", drawn(5, 9))
    return tmp_path


def files(folder, suffix, **changes):
    settings = {"labels": [0, 1], "target": "sick", "test": folder / f"test{suffix}"} | changes
    return data.per_agent(folder / f"site-{{agent}}{suffix}", **settings)


def setup(examples, partition=None, **changes):
    # A function, so that processes that are threads do not share a network, as others never do.
    problem = Supervised(lambda: nn.Linear(2, 2), examples, 3, 4, partition, initial="zeros", **changes)
    method = proxdasa.ProxDASAGT(gamma=0.5, alpha=0.3)
    return Setup(method, problem, networks.complete(3), iterations=5, observe_every=5, exact=True)


@functools.cache
def run_pooled():
    """The run on all rows together; three rows, nine and four, weighted by examples."""
    tables = [drawn(size, seed) for size, seed in zip((*SIZES, 5), (0, 1, 2, 9), strict=True)]
    x = [np.stack([table["age"], table["dose"]], 1) for table in tables]
    y = [table["sick"] for table in tables]
    pooled = data.from_tensors(np.concatenate(x[:3]), np.concatenate(y[:3]), x[3], y[3])
    return setup(pooled, data.Sizes(SIZES), weights="examples").run()


@pytest.mark.parametrize(
    ("suffix", "size"),
    [(".csv", 1), (".parquet", 2), (".csv", 3), (".parquet", 3)]
    + [pytest.param(*case, marks=pytest.mark.slow) for case in ((".parquet", 1), (".csv", 2))],
)
def test_the_same_run_as_pooled_rows_in_any_number_of_processes(sites, suffix, size):
    """In batches of four."""
    expected = run_pooled()
    made = setup(files(sites, suffix), weights="examples")
    first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
    assert digest(first.x) == digest(expected.x)
    for name in ("loss", "test_loss", "accuracy", "epochs"):
        assert first.records[-1][name] == pytest.approx(expected.records[-1][name], rel=1e-5)


def test_columns_are_chosen_by_name(sites, suffix):
    for agent, order in enumerate((("sick", "id", "dose", "age"), ("age", "id", "dose", "sick"))):
        columns = {"id": np.arange(4), **drawn(4, agent)}
        write(sites / f"other-{agent}{suffix}", {name: columns[name] for name in order})
    made = data.per_agent(sites / f"other-{{agent}}{suffix}", ["dose", "age"], labels=[0, 1], target="sick")
    read_back, parts = made.load(range(2))
    expected = [np.stack([drawn(4, agent)[name] for name in ("dose", "age")], 1) for agent in range(2)]
    np.testing.assert_array_equal(read_back.x.numpy(), np.concatenate(expected))
    assert (read_back.columns, [len(part) for part in parts]) == (("dose", "age"), [4, 4])
    with pytest.raises(
        ValueError, match=r"other-1.*: column 1 of the features is 'age', but 'id' in .*other-0.*by name"
    ):
        data.per_agent(sites / f"other-{{agent}}{suffix}", labels=[0, 1], target="sick").load(range(2))
    alone = data.per_agent(sites / f"other-{{agent}}{suffix}", regression=True, target="sick")
    assert alone.load(range(1))[0].columns == ("id", "dose", "age")


def test_columns_of_the_test_file_must_match(sites, suffix):
    write(sites / f"test{suffix}", {"dose": np.ones(2), "age": np.ones(2), "sick": np.array([0, 1])})
    with pytest.raises(ValueError, match=r"test\..*: column 1 of the features is 'dose', but 'age' in .*site-0"):
        files(sites, suffix).load(range(3))
    by_name = files(sites, suffix, features=["age", "dose"], dtype="float64")
    assert by_name.load(range(3))[0].test_x.shape == (2, 2)


def test_processes_with_other_types_stop(sites):
    table = drawn(4, 2)
    parquet.write_table(
        pa.table({name: values.astype(np.float64) for name, values in table.items()}), sites / "site-2.parquet"
    )
    made = setup(files(sites, ".parquet", test=None))

    def act(transport):
        with pytest.raises(ValueError, match="do not have the same types of x and y, which dtype of per_agent would c"):
            made.run(processes=transport)

    in_threads(2, act)


def test_processes_with_other_columns_stop(sites, suffix):
    """No process sees the files of both."""
    table = drawn(4, 2)
    write(sites / f"site-2{suffix}", {"dose": table["dose"], "age": table["age"], "sick": table["sick"]})
    made = setup(files(sites, suffix, test=None))

    def act(transport):
        with pytest.raises(ValueError, match=r"do not have the same columns, which features = \[\.\.\.\] would choose"):
            made.run(processes=transport)
        return True

    assert in_threads(3, act) == [True] * 3


def test_from_a_configuration_file(sites, monkeypatch):
    monkeypatch.chdir(sites)
    (sites / "run.toml").write_text(CONFIG)
    result = CliRunner().invoke(app, ["run", "run.toml", "--output", "results"])
    assert result.exit_code == 0, result.output
    config = proxdasa.load("results").config
    assert config["problem"]["data"] == {
        "name": "per_agent",
        "files": "site-{agent}.csv",
        "features": ["age", "dose"],
        "labels": [0, 1],
        "test": "test.csv",
        "regression": False,
        "target": "sick",
    }
    assert config["problem"]["weights"] == "examples"
    (sites / "config.json").write_text(json.dumps(config))
    assert digest(read(sites / "config.json").run().x) == digest(proxdasa.load("results").x)
    (sites / "run.toml").write_text(CONFIG.replace(".csv", ".parquet"))
    assert digest(read(sites / "run.toml").run().x) == digest(proxdasa.load("results").x)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('target = "sick"', "", "target must be the name of the column with labels or targets for .csv files; got"),
        ('features = ["age", "dose"]', "features = 2", "features must be a list of names of columns, or left out, for"),
        ('["age", "dose"]', '["age", "weight"]', "site-0.csv: there is no column 'weight'; there are 'age', 'dos"),
        ('["age", "dose"]', '["age", 3]', "problem.data.features[1] must be a text; got 3"),
        ('"site-{agent}.csv"', '"{agent}.svm"', "target must be left out for {agent}.svm, which is not a table"),
        ('"test.csv"', '"test.svm"', "files and test must both be tables (.csv, .parquet) or neither; got test = "),
        ('"test.csv"', '"tests.csv"', "tests.csv cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_configurations_are_refused_in_one_line(sites, monkeypatch, old, new, words):
    monkeypatch.chdir(sites)
    (sites / "run.toml").write_text(CONFIG.replace(old, new))
    result = CliRunner().invoke(app, ["run", "run.toml", "--output", "results"])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


# CSV


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the first line must have the names of the columns"),
        ("a,y\n", ": it has no rows"),
        ("a,y\n\n\n", ": it has no rows"),
        ("a,b\n1,2\n", ": there is no column 'y'; there are 'a', 'b'"),
        ("a;y\n1;2\n", ": there is no column 'y'; there are 'a;y'"),
        ("1,2\n3,4\n", ": there is no column 'y'; there are '1', '2'"),
        ("y\n1\n", ": there is no column besides the target 'y'"),
        ("a,a,y\n1,2,3\n", ": there are two columns 'a'; give each a name of its own"),
        ("a,y\n1,2\n3\n", ", line 3: there are 1 columns, but 2 names in the first line"),
        ("a,y\n1,2\n3,4,5\n", ", line 3: there are 3 columns, but 2 names"),
        ("a,y\n1,2\nmale,4\n", ", line 3, column 'a': 'male' is not a number; encode categories as numbers first"),
        ("a,y\n1,yes\n", ", line 2, column 'y': 'yes' is not a number"),
        ("a,y\n1,2\n,4\n", ", line 3, column 'a': there is no value; drop such rows, or fill them in, first"),
        ("a,y\n1,2\nNA,4\n", ", line 3, column 'a': there is no value"),
        ("a,y\n\n1,2\n\nnan,4\n", ", line 5, column 'a': there is no value"),
        ("a,y\n1,nan\n", ", line 2, column 'y': there is no value"),
        ("a,y\n1,2\ninf,4\n", ", line 3, column 'a': inf is not a finite float32 number"),
        ("a,y\n1,2\n1e39,4\n", ", line 3, column 'a': 1e+39 is not a finite float32 number"),
        ("a,y\n1_0,2\n", ", line 2, column 'a': '1_0' is not a number"),
        ("a,y\nTrue,2\n", ", line 2, column 'a': 'True' is not a number"),
        ('a,y\n1,2\n"3,4\n', ", line 3: not CSV: unexpected end of data"),
        (b"a,y\n1,\xff\n", ": not a text file in UTF-8: invalid start byte at byte"),
        (b"a,y\n1,2\0\n", ", line 2"),
    ],
)
def test_malformed_csv(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        read_csv(path, "y")


def test_what_spreadsheets_write(tmp_path):
    """A byte order mark, carriage returns, quotes, spaces, signs and exponents."""
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeff"age_1", dose ,y\r\n"1.5", +2e1 ,-3\r\n.5,-0,4.'.encode())
    table = read_csv(path, "y")
    assert table.columns == ("age_1", "dose")
    assert table.features.tolist() == [[1.5, 20], [0.5, 0]]
    assert table.target.tolist() == [-3, 4]
    (tmp_path / "site-0.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = data.per_agent(tmp_path / "site-{agent}.csv.gz", regression=True, target="y")
    assert packed.load(range(1))[0].x.tolist() == [[1.5, 20], [0.5, 0]]


def test_labels_and_columns_that_are_not_chosen(tmp_path):
    (tmp_path / "0.csv").write_text("name,a,y\nAnn,1,0\nBob,2,7\n")
    made = data.per_agent(tmp_path / "{agent}.csv", ["a"], labels=[0, 1], target="y")
    with pytest.raises(ValueError, match=r"0\.csv: the label 7 does not occur in labels = \[0, 1\]"):
        made.load(range(1))
    kept = data.per_agent(tmp_path / "{agent}.csv", ["a"], labels=[0, 7], target="y").load(range(1))[0]
    assert (kept.x.tolist(), kept.y.tolist()) == ([[1], [2]], [0, 1])


# parquet


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2], "b": [1, 2]}, ": there is no column 'y'; there are 'a', 'b'"),
        ({"a": ["u", "v"], "y": [1, 2]}, ": the column 'a' holds String, not numbers; encode categories as numbers"),
        ({"a": pa.array(["u", "v"]).dictionary_encode(), "y": [1, 2]}, ": the column 'a' holds Categorical, not numb"),
        ({"a": [1, None], "y": [1, 2]}, ": the column 'a' has no value in row 1, 1 of 2 in all; drop such rows"),
        ({"a": [1.0, float("nan")], "y": [1, 2]}, ": the column 'a' has nan in row 1"),
        ({"a": [[1], [2]], "y": [1, 2]}, ": the column 'a' holds List(Int64), not numbers"),
        ({"a": [1, 2], "y": [0, -(2**53) - 1]}, ": the column 'y' has -9007199254740993 in row 1, but beyond 2"),
        ({"a": pa.array([], pa.int8()), "y": pa.array([], pa.int8())}, ": it has no rows"),
    ],
)
def test_parquet_files_that_are_not_numbers(tmp_path, columns, message):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        read_parquet(path, "y")


@pytest.mark.parametrize("damage", ["nothing", "text", "end", "start", "middle"])
def test_damaged_parquet(tmp_path, damage):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"a": np.random.default_rng(0).normal(size=500), "y": np.zeros(500)}), path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "nothing": b"",
            "text": b"a,y\n1,2\n",
            "end": whole[:-20],
            "start": whole[40:],
            "middle": whole[:20] + b"\xff" * 60 + whole[80:],
        }[damage]
    )
    with pytest.raises(ValueError, match=re.escape(f"{path}: not a whole parquet file: ")):
        read_parquet(path, "y")


def test_files_larger_than_memory_are_refused(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("a,y\n" + "1,2\n" * 100_000)
    parquet.write_table(pa.table({"a": np.zeros(100_000), "y": np.zeros(100_000)}), tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size < 1e4
    monkeypatch.setenv("PROXDASA_MEMORY", "1MB")
    with pytest.raises(
        ValueError, match=r"rows\.csv holds more than 100 KB, which would take more than the limit of 1 "
    ):
        read_csv(tmp_path / "rows.csv", "y")
    with pytest.raises(ValueError, match=r"rows\.parquet: 100,000 rows of 2 columns would take about 4.8 MB of memory"):
        read_parquet(tmp_path / "rows.parquet", "y")


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match="pyarrow, which is missing: pip install pyarrow"):
        read_parquet(tmp_path / "rows.parquet", "y")


def test_parquet_keeps_its_type_and_large_numbers_need_float64(tmp_path):
    """Columns of float32 stay float32; whole numbers, and float64, are float64."""
    path, pattern = tmp_path / "rows-0.parquet", tmp_path / "rows-{agent}.parquet"
    for a, kind in ((pa.array([1.5, 2], pa.float32()), np.float32), ([1, 2], np.float64), ([1.0, 1e39], np.float64)):
        parquet.write_table(pa.table({"a": a, "y": [1, 2]}), path)
        table = read_parquet(path, "y")
        assert (table.features.dtype, table.target.dtype) == (kind, np.int64)
    with pytest.raises(ValueError, match=re.escape(", row 1, column 'a': 1e+39 is not a finite float32 number")):
        read_parquet(path, "y", dtype=np.float32)

    def made(**own):
        return Supervised(lambda: nn.Linear(1, 2), data.per_agent(pattern, labels=[1, 2], target="y", **own), 1)

    with pytest.raises(
        ValueError, match=r"x has 1e\+39, which is too large for float32, .*dtype=\"float64\"\) compute"
    ):
        _ = made().parts
    assert made(dtype="float64").examples.x[1, 0] == 1e39
