"""Results folders: what is written is read back, any tool can read it, and nothing is lost by a failure."""

import contextlib
import errno
import functools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

import proxdasa
from proxdasa import disk, networks, problems, regularizers, schedules
from proxdasa.descriptions import describe
from proxdasa.runs import records
from proxdasa.runs.results import Divergence, Result

FILES = ["config.json", "final.safetensors", "records.jsonl"]


class Killed(BaseException):
    """Nothing happens after it."""


def result(**changes):
    """A result with values that are easily lost: NaN, infinity, -0.0, integers beside floats, several types."""
    x = torch.tensor([[[1.0, -0.0, math.nan], [1e-310, math.inf, 0.1]]], dtype=torch.float64)
    settings = {
        "config": {"trials": 1, "iterations": 9, "alpha": {"name": "horizon"}, "facts": {"agents": 2, "title": "M"}},
        "records": [
            {"trial": 0, "k": 0, "loss": 0.1, "samples": 0},
            {"trial": 0, "k": 5, "loss": 1e-300, "samples": 5},
        ],
        "state": {"x": x, "z": x.to(torch.float32).mT},
        "iterations": 7,
        "stopped": "diverged",
        "diverged": {0: Divergence(agent=1, iteration=6)},
    }
    return Result(**settings | changes)


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes()


@pytest.fixture
def folder(tmp_path):
    return result().save(tmp_path / "deep" / "results")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_result_is_read_back_as_it_was(folder):
    saved, read = result(), proxdasa.load(folder)
    assert read.config == saved.config
    assert read.records == saved.records
    assert [type(value) for value in read.records[0].values()] == [int, int, float, int]
    assert {name: bits(tensor) for name, tensor in read.state.items()} == {
        name: bits(tensor) for name, tensor in saved.state.items()
    }
    assert (read.iterations, read.stopped, read.diverged) == (saved.iterations, saved.stopped, saved.diverged)
    assert isinstance(read.diverged[0], Divergence)


@pytest.mark.parametrize("stopped", [None, "interrupted"])
def test_how_a_run_ended_is_read_back(tmp_path, stopped):
    read = proxdasa.load(result(stopped=stopped, diverged={}, records=[]).save(tmp_path))
    assert (read.stopped, read.diverged, read.records) == (stopped, {}, [])


def test_a_real_run_is_read_back_as_it_was(tmp_path):
    run = proxdasa.run(
        proxdasa.ProxDASAGT(gamma=proxdasa.per_trial([0.01, 0.02])),
        problems.PhaseRetrieval(agents=3, dim=10, evaluation="population"),
        networks.ring(3),
        regularizer=regularizers.Box(0.0, math.inf),
        iterations=6,
        trials=2,
        random_iterate=True,
    )
    read = proxdasa.load(run.save(tmp_path))
    assert read.config == json.loads(json.dumps(run.config))
    # The objective is infinite wherever the mean is not in the box; records say null, and so NaN, for that.
    for row, written in zip(read.records, run.records, strict=True):
        assert row.keys() == written.keys()
        expected = [value if math.isfinite(value) else math.nan for value in written.values()]
        assert np.array_equal(list(row.values()), expected, equal_nan=True)
    assert list(read.state) == ["random_iterate", "u", "v", "x", "z"]
    for name in read.state:
        assert bits(read.state[name]) == bits(run.state[name])
    assert torch.equal(read.random_iterate, run.random_iterate)
    assert torch.equal(read.mean, run.x.mean(dim=1))


def test_state_variables_that_are_one_tensor_are_written(tmp_path):
    """After a last step that takes a snapshot, x̂ is x."""
    problem = problems.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    method = proxdasa.DeepStormV1SVRG(schedules.constant(0.1), beta=1.0, snapshot=4)
    run = proxdasa.run(method, problem, networks.ring(3), iterations=4)
    assert run.state["x_hat"] is run.state["x"]
    assert torch.equal(proxdasa.load(run.save(tmp_path)).state["x_hat"], run.x)


def test_the_folder_holds_the_three_files_and_nothing_else(folder):
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_every_line_is_standard_json(tmp_path):
    rows = [{"trial": 0, "k": k, "loss": loss} for k, loss in enumerate([1.0, math.nan, math.inf, -math.inf, 5e-324])]

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    folder = result(records=rows).save(tmp_path)
    text = (folder / "records.jsonl").read_text(encoding="ascii")
    assert text.endswith("\n")
    read = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert [row["loss"] for row in read] == [1.0, None, None, None, 5e-324]
    json.loads((folder / "config.json").read_text(encoding="ascii"), parse_constant=refuse)
    assert [math.isnan(row["loss"]) for row in records.read_rows(folder)] == [False, True, True, True, False]


def test_earlier_results_are_not_overwritten_unless_told(folder):
    before = contents(folder)
    with pytest.raises(FileExistsError, match=r"results holds results already; .* overwrite=True"):
        result(records=[]).save(folder)
    assert contents(folder) == before
    result(records=[]).save(folder, overwrite=True)
    assert proxdasa.load(folder).records == []


def test_a_last_line_cut_short_is_left_out_with_a_warning(folder):
    path = folder / "records.jsonl"
    path.write_text(path.read_text()[:-9])
    with pytest.warns(UserWarning, match=r"records\.jsonl: the last line is cut short"):
        read = proxdasa.load(folder)
    assert read.records == result().records[:1]


def test_a_whole_last_line_without_its_newline_is_kept(folder):
    path = folder / "records.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    assert proxdasa.load(folder).records == result().records


@pytest.mark.parametrize("broken", ['{"trial": 0, "k"', "", "[1, 2]", "7"])
def test_a_broken_line_in_the_middle_is_an_error_with_file_and_line(folder, broken):
    path = folder / "records.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{broken}\n{second}\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 2: not a JSON object"):
        proxdasa.load(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"results is not a results folder: it has no {name}"):
        proxdasa.load(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "{", r"config\.json: not valid JSON"),
        ("config.json", "[]", r"config\.json: not the configuration of saved results: it has no ending and no facts"),
        ("config.json", '{"facts": {}}', r"config\.json: .* it has no ending$"),
        ("config.json", '{"facts": {}, "ending": null}', r"config\.json: .* it has no ending$"),
        ("config.json", '{"facts": {}, "ending": {"iterations": "9"}}', r"config\.json: how the run ended cannot be"),
        ("final.safetensors", "short", r"final\.safetensors: not a whole safetensors file"),
    ],
)
def test_a_spoilt_file_is_named(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        proxdasa.load(folder)


def test_a_tensor_file_cut_short_is_named(folder):
    path = folder / "final.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"final\.safetensors: not a whole"):
        proxdasa.load(folder)


def test_results_are_found_at_and_below_a_folder(tmp_path):
    for name in ("b", "a/x", "."):
        result().save(tmp_path / name)
    assert records.find_results(tmp_path) == [tmp_path, tmp_path / "a" / "x", tmp_path / "b"]


def test_looking_for_results_where_there_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there are no results in .* \(no records.jsonl at or below it\)"):
        records.find_results(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere"):
        records.find_results(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"facts": {}, "oops": object()}},
        {"config": {"facts": {}, "oops": math.nan}},
        {"records": [{"trial": 0, "k": 0, "oops": object()}]},
    ],
)
def test_what_cannot_be_written_changes_nothing(folder, changes):
    before = contents(folder)
    with pytest.raises((TypeError, ValueError)):
        result(**{"state": {"x": torch.zeros(1, 1, 1)}} | changes).save(folder, overwrite=True)
    assert contents(folder) == before


def test_who_reads_while_it_is_overwritten_reads_the_old_file_whole(folder):
    whole = (folder / "records.jsonl").read_text()
    with (folder / "records.jsonl").open() as file:
        result(records=[{"trial": 0, "k": 0}]).save(folder, overwrite=True)
        assert file.read() == whole


@pytest.mark.parametrize("earlier", [True, False])
def test_a_folder_that_has_a_configuration_is_complete_however_the_writing_ended(tmp_path, monkeypatch, earlier):
    """Killed at any step, it leaves the old results, or none that look whole, or the new."""
    seen = set()
    for at in range(100):
        folder, steps = tmp_path / str(at), []
        if earlier:
            result(iterations=1).save(folder)

        def killed(original, at=at, steps=steps):
            def step(*args, **options):
                steps.append(original)
                if len(steps) > at:
                    raise Killed
                return original(*args, **options)

            return step

        with monkeypatch.context() as patch:
            for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "fsync"), (os, "write")):
                patch.setattr(owner, name, killed(getattr(owner, name)))
            with contextlib.suppress(Killed):
                result(iterations=2).save(folder, overwrite=True)
        if (folder / "config.json").exists():
            seen.add(proxdasa.load(folder).iterations)
        if len(steps) <= at:
            break
    assert seen == ({1, 2} if earlier else {2})
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_others_may_read_the_files(folder):
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in folder.iterdir())


@dataclass(frozen=True)
class Pair:
    left: object
    right: object = None


class Named:
    def describe(self):
        return {"name": "mine", "inner": Pair(1)}


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.1, 0.1),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        ("text", "text"),
        (np.float64(0.5), 0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([[1.0, 2.0]]), [[1.0, 2.0]]),
        ((1, [2.0, None]), [1, [2.0, None]]),
        ({"a": (1,), 2: math.inf}, {"a": [1], "2": "inf"}),
        (torch.float32, "float32"),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor([1.0, math.inf]), [1.0, "inf"]),
        (torch.tensor([1.0], requires_grad=True), [1.0]),
        (torch.ones(2, 1, 1), [[[1.0]], [[1.0]]]),
        (Pair(Pair(1), (2,)), {"name": "Pair", "left": {"name": "Pair", "left": 1, "right": None}, "right": [2]}),
        (Named(), {"name": "mine", "inner": {"name": "Pair", "left": 1, "right": None}}),
        (describe, "describe"),
        (Pair, "Pair"),
        (regularizers.L1(0.1), {"name": "L1", "weight": 0.1}),
        (regularizers.Box(0, math.inf), {"name": "Box", "lower": 0.0, "upper": "inf"}),
        (
            regularizers.Blocks([(0, None, regularizers.Zero())]),
            {"name": "Blocks", "parts": [[0, None, {"name": "Zero"}]]},
        ),
        (schedules.horizon(2.0), {"name": "horizon", "scale": 2.0}),
        (schedules.constant(schedules.per_trial([0.1, 0.2])), {"name": "constant", "value": [0.1, 0.2]}),
        (
            proxdasa.ProxDASA(schedules.per_trial([0.1, 0.2])),
            {"name": "ProxDASA", "gamma": [0.1, 0.2], "alpha": {"name": "horizon", "scale": 1.0}},
        ),
        (networks.torus(2, 3), {"name": "torus", "rows": 2, "columns": 3, "weights": "metropolis"}),
        (proxdasa.Gossip("auto"), {"name": "Gossip", "rounds": "auto"}),
    ],
)
def test_describe(thing, expected):
    described = describe(thing)
    assert described == expected
    assert json.loads(json.dumps(described, allow_nan=False)) == described


def test_data_keep_their_shape_where_a_parameter_becomes_a_plain_list():
    """A quadratic in one dimension has an A of shape [n, 1, 1], as one number per trial has; they are not confused."""
    problem = problems.Quadratic(torch.ones(3, 1, 1), torch.ones(3, 1))
    assert describe(problem)["A"] == [[[1.0]], [[1.0]], [[1.0]]]


def test_one_number_per_trial_is_written_out_however_many_trials():
    gammas = [0.001 * (i + 1) for i in range(100)]
    assert describe(proxdasa.ProxDASA(schedules.per_trial(gammas)))["gamma"] == gammas


def test_large_tensors_are_described_by_a_fingerprint():
    x = torch.arange(65, dtype=torch.float32)
    described = describe(x)
    assert described == {"shape": [65], "dtype": "torch.float32", "sha256": described["sha256"]}
    assert describe(x.clone()) == described
    assert describe(torch.stack([x, x], dim=1)[:, 0]) == described, "strides do not matter"
    assert describe(x + 1e-3) != described
    assert describe(x.reshape(5, 13)) != described
    assert isinstance(describe(x[:64]), list)


def test_a_network_without_a_recipe_is_described_by_a_fingerprint():
    described = describe(networks.from_graph(nx.cycle_graph(5)))
    assert described["name"] == "from_graph"
    assert described["graph"].keys() == {"agents", "edges", "sha256"}
    assert describe(networks.from_graph(nx.cycle_graph(6))) != described
    json.dumps(described, allow_nan=False)


def test_functions_are_described_by_their_name():
    assert describe(functools.partial(max, default=1)) == {"name": "max", "default": 1}
    assert describe(lambda k: 0.1) == "<lambda>"


# one run at a time


def test_a_claimed_folder_is_refused_until_it_is_free(tmp_path):
    folder = tmp_path / "deep" / "results"
    with records.claim(folder):
        with pytest.raises(BlockingIOError, match=f"another run is writing to {folder}"), records.claim(folder):
            pass
        with records.claim(tmp_path / "other"):
            pass
    with records.claim(folder):
        pass


def test_what_a_killed_run_left_unfinished_is_removed_and_nothing_else(folder):
    ours = [".config.json.a1b2_3cd", ".records.jsonl.zzzzzzzz", ".final.safetensors.00000000"]
    theirs = [".config.json.backup", ".config.json", "config.json.a1b2_3cd", ".other.json.a1b2_3cd", "notes.txt"]
    for name in (*ours, *theirs):
        (folder / name).write_text("half")
    with records.claim(folder):
        assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, *theirs, ".lock"])


def test_what_a_run_that_is_going_on_has_unfinished_is_left_to_it(folder):
    (folder / ".config.json.a1b2_3cd").write_text("half")
    with records.claim(tmp := folder / "held"):
        (tmp / ".config.json.a1b2_3cd").write_text("half")
        with pytest.raises(BlockingIOError), records.claim(tmp):
            pass
        assert (tmp / ".config.json.a1b2_3cd").exists()


def test_names_of_unfinished_files_are_those_that_are_removed(tmp_path, monkeypatch):
    """What a kill really leaves, at the time when most is there."""
    left = []

    def look(path, target):
        left.extend(name for name in os.listdir(path.parent) if name not in left)
        return os.replace(path, target)

    monkeypatch.setattr(Path, "replace", look)
    result().save(tmp_path)
    assert len(left) >= 3
    for name in left:
        (tmp_path / name).write_text("half")
    disk.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def without_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("lock", [None, SimpleNamespace(LOCK_EX=2, LOCK_NB=4, flock=without_locks)])
def test_where_there_are_no_locks_runs_go_without(tmp_path, monkeypatch, lock):
    monkeypatch.setattr(records, "fcntl", lock)
    with records.claim(tmp_path), records.claim(tmp_path):
        pass
