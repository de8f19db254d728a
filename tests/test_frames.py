"""Data frames of pandas, polars and pyarrow: rows, sites, and what is not a number."""

import re
import sys
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

import proxdasa
from proxdasa import data, networks
from proxdasa.descriptions import describe
from proxdasa.problems import Supervised

MAKERS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}

COLUMNS = {
    "age": [71, 38, 64, 50, 29],
    "hospital": ["south", "north", "west", "south", "north"],
    "dose": [0.5, 0.25, 0.125, 1.0, 2.0],
    "smokes": [True, False, False, True, True],
    "sick": [1, 0, 1, 0, 2],
}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def test_rows_are_sorted_by_site_and_sites_are_agents(make):
    read = data.from_frame(make(COLUMNS), target="sick", site="hospital")
    assert read.columns == ("age", "dose", "smokes")
    assert read.x.tolist() == [[38, 0.25, 0], [29, 2, 1], [71, 0.5, 1], [50, 1, 1], [64, 0.125, 0]]
    assert (read.y.tolist(), read.classes, read.y.dtype) == ([0, 2, 1, 0, 1], 3, torch.int64)
    assert read.partition == data.Sites("hospital", {"north": 2, "south": 2, "west": 1})
    problem = Supervised(lambda: nn.Linear(3, 3), read, agents=3, batch_size=2)
    assert [part.tolist() for part in problem.parts] == [[0, 1], [2, 3], [4]]
    described = describe(problem)["partition"]
    assert described == {"name": "Sites", "column": "hospital", "sizes": {"north": 2, "south": 2, "west": 1}}
    result = proxdasa.run(proxdasa.ProxDASA(gamma=1e-3), problem, networks.ring(3), iterations=2)
    assert result.x.shape == (1, 3, 12)


def test_without_sites_a_partition_divides_the_rows(make):
    read = data.from_frame(make(COLUMNS), target="dose", features=["age", "sick"], name="patients")
    assert read.x.tolist() == [[71, 1], [38, 0], [64, 1], [50, 0], [29, 2]]
    assert (read.y.tolist(), read.classes, read.partition) == (COLUMNS["dose"], None, None)
    assert read.name == "patients"
    partition = data.Sizes([4, 1])
    labelled = data.from_frame(make(COLUMNS), target="smokes", features=["age"])
    assert labelled.y.tolist() == [1, 0, 0, 1, 1]
    problem = Supervised(lambda: nn.Linear(1, 2), labelled, agents=2, partition=partition)
    assert [len(part) for part in problem.parts] == [4, 1]


def test_a_test_frame_needs_the_same_columns_in_any_order(make):
    test = {name: values[:2] for name, values in reversed(COLUMNS.items()) if name != "hospital"}
    read = data.from_frame(make(COLUMNS), target="sick", site="hospital", test=make(test))
    assert read.test_x.tolist() == [[71, 0.5, 1], [38, 0.25, 0]]
    assert read.test_y.tolist() == [1, 0]
    del test["age"]
    with pytest.raises(ValueError, match="frame, test: there is no column 'age'; there are 'sick', 'smokes', 'dose'"):
        data.from_frame(make(COLUMNS), target="sick", site="hospital", test=make(test))


def test_numbers_of_sites_are_sorted_as_numbers(make):
    read = data.from_frame(make({"a": [1.0, 2.0, 3.0], "y": [0, 1, 0], "site": [10, 9, 10]}), "y", "site")
    assert read.partition.sizes == {"9": 1, "10": 2}
    assert read.x.flatten().tolist() == [2, 1, 3]


def test_a_site_that_is_not_a_number_is_missing(make):
    """NaN does not equal itself: each would be a site, all of one name, and rows would be lost."""
    sites = [1.0, float("nan"), 2.0, 1.0, float("nan")]
    with pytest.raises(ValueError, match="row 1 has no site in the column 'site'; name it, or drop the row, first"):
        data.from_frame(make({"a": [1.0, 2, 3, 4, 5], "y": [0, 1, 0, 1, 0], "site": sites}), "y", "site")


def test_the_number_of_agents_is_that_of_sites():
    read = data.from_frame(pd.DataFrame(COLUMNS), target="sick", site="hospital")
    message = (
        "the column 'hospital' names 3 sites ('north' with 2 rows, 'south' with 2 rows, 'west' with 1 rows), and each "
        "is one agent: agents must be 3; got 2"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        Supervised(lambda: nn.Linear(3, 3), read, agents=2)


def column(**changes):
    return COLUMNS | changes


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (column(sex=["f", "m", "f", "f", "m"]), "frame: the column 'sex' holds String, not numbers; encode categories"),
        (column(age=[71, None, 64, None, 29]), "the column 'age' has no value in row 1, 2 of 5 in all; drop such rows"),
        (column(dose=[0.5, 1.0, None, 1.0, 2.0]), "the column 'dose' has no value in row 2, 1 of 5 in all; drop such"),
        (column(dose=[0.5, 1.0, 2.0, float("inf"), 2.0]), "the column 'dose' has inf in row 3; drop such rows"),
        (column(sick=["yes", "no"] * 2 + ["no"]), "the column 'sick' holds String, not numbers; encode categories as"),
        (column(sick=[1, 0, None, 0, 1]), "the column 'sick' has no value in row 2, 1 of 5 in all"),
        (column(hospital=["a", None, "b", "a", "a"]), "row 1 has no site in the column 'hospital'; name it, or drop"),
        (column(age=[71, 2**53, 64, 2**53 + 1, 29]), "the column 'age' has 9007199254740993 in row 3, but beyond 2"),
        (column(sick=[1, 0, -3, 0, 1]), "labels y must lie in 0, ..., 1; row 4 has -3"),
        ({"sick": [0, 1], "hospital": ["a", "b"]}, "there is no column besides the target 'sick', so there are no fe"),
        ({"ill": [0, 1], "hospital": ["a", "b"]}, "frame: there is no column 'sick'; there are 'ill'"),
        ({"sick": [0, 1], "a": [1, 2]}, "site must be a column besides target and features; got 'hospital'; there are"),
    ],
)  # fmt: skip
def test_what_is_not_a_number_is_refused_by_column(make, columns, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        data.from_frame(make(columns), target="sick", site="hospital")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"a": pd.Categorical([1, 2]), "y": [0, 1]}), "the column 'a' holds Categorical, not numb"),
        (pd.DataFrame({"a": pd.array([1, None], "Int64"), "y": [0, 1]}), "the column 'a' has no value in row 1, 1 o"),
        (pd.DataFrame({"a": [np.nan, 1], "y": [0, 1]}), "the column 'a' has no value in row 0, 1 of 2 in all"),
        (pd.DataFrame({"a": [1, "x"], "y": [0, 1]}), "the column 'a' holds "),
        (pd.DataFrame({"a": pd.to_datetime(["2020", "2021"]), "y": [0, 1]}), "the column 'a' holds Datetime("),
        (pd.DataFrame([[1, 2, 0]], columns=["a", "a", "y"]), "frame: Expected unique column names, got: - 'a' 2 t"),
        (pl.DataFrame({"a": [1.0, float("nan")], "y": [0, 1]}), "the column 'a' has nan in row 1; drop such rows"),
        (pl.DataFrame({"a": pl.Series(["1", "2"]).cast(pl.Decimal(9, 2)), "y": [0, 1]}), "turn it into whole or floa"),
        (pl.DataFrame({"a": pl.Series(["u", "v"], dtype=pl.Enum(["u", "v"])), "y": [0, 1]}), "holds Enum("),
        (pl.DataFrame({"a": [[1], [2]], "y": [0, 1]}), "the column 'a' holds List(Int64), not numbers; turn it into"),
        (pl.DataFrame({"a": [], "y": []}, schema={"a": pl.Int8, "y": pl.Int8}), "one row per sample and at least one"),
    ],
)  # fmt: skip
def test_types_of_one_library(frame, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        data.from_frame(frame, target="y")


def test_large_numbers_without_a_sign_and_names_that_are_no_texts():
    large = pd.DataFrame({"a": [1, 2], "y": np.array([0, 2**63], dtype=np.uint64)})
    with pytest.raises(ValueError, match="the column 'y' has 9223372036854775808 in row 1"):
        data.from_frame(large, target="y")
    with pytest.raises(TypeError, match="frame: names of columns must be texts; there is 0"):
        data.from_frame(pd.DataFrame([[1.0, 0], [2.0, 1]]), target=1)


def test_nullable_numbers_without_gaps_are_numbers():
    frame = pd.DataFrame({"a": pd.array([1, 2], "Int64"), "b": pd.array([True, False], "boolean"), "y": [0, 1]})
    assert data.from_frame(frame, "y").x.tolist() == [[1, 1], [2, 0]]


def test_sites_that_cannot_be_sorted():
    frame = pd.DataFrame({"a": [1, 2], "y": [0, 1], "site": [1, "b"]})
    with pytest.raises(ValueError, match=r"the sites of the column 'site' cannot be sorted, .* of the types int, str"):
        data.from_frame(frame, "y", "site")


@pytest.mark.parametrize("frame", [pl.LazyFrame({"a": [1], "y": [0]}), {"a": [1]}, np.ones((2, 2)), None])
def test_what_is_no_frame(frame):
    with pytest.raises(TypeError, match=r"frame must be a data frame of pandas or polars, or a pyarrow\.Table"):
        data.from_frame(frame, "y")


def test_features_are_a_list_of_other_columns():
    frame = pd.DataFrame(COLUMNS)
    for features, message in (
        (["age", "age"], "different columns"),
        (["sick"], "different columns, and not the target"),
    ):
        with pytest.raises(ValueError, match=message):
            data.from_frame(frame, "sick", features=features)
    with pytest.raises(TypeError, match="features must be a list of names of columns; got the text 'age'"):
        data.from_frame(frame, "sick", features="age")


@pytest.mark.parametrize("files", ["{agent}.csv", "{agent}.parquet"])
def test_an_index_that_pandas_saved_is_no_feature(tmp_path, files):
    frame = pd.DataFrame({"age": [71.0, 38.0], "sick": [1, 0]}, index=[5, 2])
    assert data.from_frame(frame, "sick").columns == ("age",)
    frame.to_csv(tmp_path / "0.csv")
    frame.to_parquet(tmp_path / "0.parquet")
    sites = partial(data.per_agent, tmp_path / files, labels=[0, 1], target="sick")
    with pytest.raises(ValueError, match=r"the column '.*' looks like the index that pandas saves .* with index="):
        sites().load(range(1))
    assert sites(["age"]).load(range(1))[0].x.tolist() == [[71.0], [38.0]]
    with pytest.raises(ValueError, match="the column 'Unnamed: 0' looks like the index"):
        data.from_frame(pd.read_csv(tmp_path / "0.csv"), "sick")


def test_without_narwhals(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "narwhals"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="narwhals, which is missing: pip install narwhals"):
        data.from_frame(pd.DataFrame(COLUMNS), "sick")


def test_a_large_frame_is_refused_by_the_limit_of_memory(monkeypatch):
    frame = pl.DataFrame({"a": np.zeros(100_000), "y": np.zeros(100_000, dtype=np.int64)})
    monkeypatch.setenv("PROXDASA_MEMORY", "1MB")
    with pytest.raises(
        ValueError, match=r"frame: 100,000 rows of 1 columns would take about 2.4 MB of memory, but the"
    ):
        data.from_frame(frame, "y")
