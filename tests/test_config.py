"""Configuration files: what they build is what Python builds, and what they get wrong is said in one line."""

import copy
import functools
import inspect
import json
import math
import runpy
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import algorithms, data, metrics, networks, problems, regularizers, schedules
from proxdasa.cli import app
from proxdasa.configs import ConfigError, read
from proxdasa.configs.objects import ROOMS, VALUES
from proxdasa.configs.reading import build
from proxdasa.runs.setup import Setup

EXAMPLES = Path(__file__).parents[1] / "examples"

BASE = {
    "iterations": 4,
    "algorithm": {"name": "ProxDASA", "gamma": 0.01},
    "problem": {"name": "PhaseRetrieval", "agents": 4, "dim": 10, "evaluation": "population"},
    "network": "ring",
}


class Without:
    """Marks a key that is to be left out."""


def changed(**changes):
    """The base configuration with other values; ``a__b`` is key b of table a."""
    settings = copy.deepcopy(BASE)
    for path, value in changes.items():
        *tables, name = path.split("__")
        table = settings
        for key in tables:
            table = table.setdefault(key, {})
        if value is Without:
            del table[name]
        else:
            table[name] = value
    return settings


def again(config):
    """A configuration as it is after being saved and read, without what `save` adds."""
    return {key: value for key, value in json.loads(json.dumps(config)).items() if key != "facts"}


def without_time(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


# What files build


def test_the_quickstart_file_and_script_are_the_same_run(monkeypatch):
    setups = []
    monkeypatch.setattr(proxdasa, "run", lambda *args, **kwargs: setups.append(Setup(*args, **kwargs)) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runpy.run_path(str(EXAMPLES / "quickstart.py"))
    assert read(EXAMPLES / "quickstart.toml").config() == setups[0].config()


def test_a_file_builds_what_python_builds(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("""
        iterations = 7
        trials = 2
        seed = 3
        observe_every = 2
        dtype = "float64"
        random_iterate = true
        x0 = [1, 2.0, 0.5]
        metrics = ["loss", { name = "per_agent", lipschitz = 2.0 }, { name = "consensus" }, "density"]
        algorithm = { name = "ProxDASAGT", gamma = [0.01, 0.02], alpha = { name = "diminishing", alpha = 0.5 } }
        problem = { name = "SingleIndex", agents = 6, dim = 3, sparsity = 1, link = "identity", evaluation = 5 }
        network = { name = "torus", rows = 2, columns = 3, weights = "max_degree" }
        mixing = { name = "Chebyshev", rounds = 2 }
        [regularizer]
        name = "Scaled"
        factor = 2
        regularizer = { name = "Blocks", parts = [[0, 1, "NonNegative"], [2, 3, { name = "L1", weight = 0.1 }]] }
    """)
    expected = Setup(
        proxdasa.ProxDASAGT(proxdasa.per_trial([0.01, 0.02]), schedules.diminishing(0.5)),
        problems.SingleIndex(6, 3, problems.IDENTITY, sparsity=1, evaluation=5),
        networks.torus(2, 3, weights=networks.max_degree),
        regularizer=regularizers.Scaled(
            regularizers.Blocks([(0, 1, regularizers.NonNegative()), (2, 3, regularizers.L1(0.1))]), 2.0
        ),
        mixing=proxdasa.Chebyshev(2),
        iterations=7,
        trials=2,
        seed=3,
        observe_every=2,
        x0=[1.0, 2.0, 0.5],
        dtype=torch.float64,
        metrics=(metrics.loss, metrics.per_agent(2.0), metrics.consensus, metrics.density),
        random_iterate=True,
    )
    setup = read(file)
    assert setup.config() == expected.config()
    ours, theirs = setup.run(), expected.run()
    assert without_time(ours.records) == without_time(theirs.records)
    assert all(torch.equal(ours.state[name], theirs.state[name]) for name in theirs.state)


REQUIRED = {
    "A": [[[2.0, 0.0], [0.0, 1.0]]] * 4,
    "a": 0.1,
    "age": 3,
    "agents": 4,
    "alpha": 0.01,
    "b": [[1.0, 2.0]] * 4,
    "beta": 0.5,
    "bits": 4,
    "c": 1,
    "columns": 2,
    "compressor": {"name": "TopK", "share": 0.5},
    "data": "digits",
    "degree": 2,
    "dimension": 2,
    "factor": 2,
    "gamma": 0.01,
    "groups": 5,
    "intervals": [[0, 1, 2]],
    "kappa": 1,
    "l1": 0.1,
    "l2": 0.1,
    "lower": 0,
    "mean_down": 5,
    "mean_up": 20,
    "model": {"name": "mlp", "inputs": 64, "outputs": 10},
    "parts": [[0, 5, "NonNegative"]],
    "period": 3,
    "periods": [[0, 2]],
    "probability": 1,
    "problem": {"name": "PhaseRetrieval", "agents": 4, "dim": 5},
    "radius": 1,
    "regularizer": {"name": "L1", "weight": 0.1},
    "restart_batch": 5,
    "rows": 2,
    "rungs": 2,
    "shape": [2, 5],
    "links": [["a", "b"], ["b", "c"], ["c", "d"]],
    "share": 0.5,
    "sizes": [30, 20, 10, 40],
    "snapshot": 3,
    "step": 0.5,
    "std": 0.1,
    "tolerance": 1e-9,
    "trials": 2,
    "upper": 1,
    "value": 0.1,
    "weight": 0.1,
}
"""Values for parameters without a default, by name; a new class with a new parameter needs a line here."""


OUTSIDE = (data.a9a, data.mnist, data.libsvm, data.per_agent, networks.from_file, problems.models.lenet)
"""What needs files that are not here, or images; test_data.py, test_sites.py, test_plans.py and others have them."""


@pytest.fixture
def read_once(monkeypatch):
    """scikit-learn's data are read from their files once for all tests."""
    monkeypatch.setattr(data.loaders, "_from_sklearn", FROM_SKLEARN)


FROM_SKLEARN = functools.cache(data.loaders._from_sklearn)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(
    ("kind", "thing"), [(kind, thing) for kind, room in ROOMS.items() for thing in room if thing not in OUTSIDE]
)
def test_everything_in_the_rooms_can_be_built_from_a_table_and_again_from_its_description(kind, thing):
    needed = [name for name, p in inspect.signature(thing).parameters.items() if p.default is p.empty]
    table = {"name": thing.__name__, **{name: REQUIRED[name] for name in needed}}
    settings = changed(iterations=1, problem__agents=8 if thing is networks.paper else 4)
    learning = {"name": "Supervised", "agents": 4, "model": REQUIRED["model"], "data": "digits"}
    if kind == "schedule":
        settings["algorithm"]["alpha"] = table
    elif kind in ("data", "partition", "model"):
        inputs = {"breast_cancer": 30}.get(thing.__name__, 64)
        table |= {"inputs": 64, "outputs": 10} if kind == "model" else {}
        settings["problem"] = learning | {"model": {"name": "mlp", "inputs": inputs, "outputs": 10}, kind: table}
    elif kind == "condition":
        settings["conditions"] = [table]
    elif kind == "compressor":
        settings["mixing"] = {"name": "CompressedGossip", "compressor": table, "step": 0.5}
    else:
        settings[kind] = table
    if thing in (algorithms.ProxGTSRE, algorithms.DeepStormV1SVRG):  # they need full gradients
        settings["problem"] = {"name": "Quadratic", "A": REQUIRED["A"], "b": REQUIRED["b"]}
    if settings["problem"]["name"] in ("Quadratic", "Repeated"):
        settings["network"] = {"name": "ring", "agents": 4}
    if thing is algorithms.D2:  # on an even ring it needs an even number of rounds
        settings["mixing"] = {"name": "Gossip", "rounds": 2}
    setup = build(settings)
    config = setup.config()
    described = (
        config["algorithm"]["alpha"] if kind == "schedule" else (config.get(kind) or config["problem"].get(kind))
    )
    described = config["conditions"][0] if kind == "condition" else described
    described = config["mixing"]["compressor"] if kind == "compressor" else described
    assert described["name"] == ("SingleIndex" if thing is problems.PhaseRetrieval else thing.__name__)
    assert build(again(config)).config() == config
    assert len(setup.run().records) == 2


@pytest.mark.parametrize(
    "name", [name for name in VALUES["metric"] if name not in ("per_agent", "merit", "lowest_accuracy")]
)
def test_metrics_by_name(name):
    assert list(build(changed(metrics=[name])).run().records[0])[2] == name
    assert build(changed(metrics=name)).config()["metrics"] == [name]


def test_a_metric_of_another_regulariser():
    entry = {"name": "table_stationarity", "regularizer": {"name": "L1", "weight": 0.5}}
    setup = build(changed(metrics=[entry]))
    assert setup.config()["metrics"] == [entry]
    assert setup.run().records[0]["table_stationarity"] > 0


def test_metrics_with_parameters():
    def first(*entries):
        return build(changed(metrics=list(entries), x0=[[[i / 10] * 10 for i in range(4)]])).run().records[0]

    row = first(
        "consensus", {"name": "per_agent", "lipschitz": 0.0}, {"name": "merit", "lipschitz": 12.0, "optimum": 0.5}
    )
    more = first({"name": "per_agent", "lipschitz": 3.0}, {"name": "merit", "lipschitz": 12.0})
    assert row["consensus"] > 0
    assert more["per_agent"] == pytest.approx(row["per_agent"] + 9 * row["consensus"], rel=1e-4)
    assert more["merit"] == pytest.approx(row["merit"] + 0.5, rel=1e-4)


def test_a_number_for_a_step_size_is_a_constant_schedule():
    alpha = build(changed(algorithm__alpha=0.25)).algorithm.alpha
    assert alpha.describe() == {"name": "constant", "value": 0.25}
    assert build(changed(algorithm__alpha="horizon")).algorithm.alpha.name == "horizon"


def test_lists_are_one_value_per_trial():
    setup = build(changed(trials=3, algorithm__gamma=[1e-3, 1e-2, 1e-1], algorithm__alpha=[0.1, 0.2, 0.3]))
    assert torch.equal(setup.algorithm.gamma, proxdasa.per_trial([1e-3, 1e-2, 1e-1]))
    assert torch.equal(setup.algorithm.alpha.parameters["value"], proxdasa.per_trial([0.1, 0.2, 0.3]))
    alone = build(changed(trials=3, algorithm__gamma=1e-2, algorithm__alpha=0.2)).run()
    assert torch.equal(setup.run().x[1], alone.x[1])


def test_a_network_is_as_large_as_its_problem_unless_it_says():
    for network in ("ring", {"name": "ring"}, {"name": "erdos_renyi", "probability": 1.0}):
        assert build(changed(network=network)).network.n == 4
    # Where the network comes first in the file, too.
    assert build({"network": "path", **{k: v for k, v in BASE.items() if k != "network"}}).network.label == "path(4)"
    assert build(changed(network={"name": "hypercube", "dimension": 2})).network.n == 4


def test_building_does_not_change_the_settings():
    settings = changed(network={"name": "ring"})
    build(settings)
    assert settings == changed(network={"name": "ring"})


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 2, "algorithm__gamma": [0.01, 0.02], "random_iterate": True, "dtype": "float64"},
        {"problem__evaluation": 20, "x0": [0.1] * 10, "mixing": "Chebyshev", "seed": 5},
        {
            "problem": {"name": "Quadratic", "A": [[[1.0]], [[2.0]]], "b": [[1.0], [0.1]], "noise": 0.5},
            "network": {"name": "path", "agents": 2},
            "regularizer": {"name": "Box", "lower": 0.0, "upper": math.inf},
        },
        {"algorithm__name": "ProxDASAGT", "regularizer": {"name": "Blocks", "parts": [[2, None, "NonNegative"]]}},
        {"network": {"name": "erdos_renyi", "probability": 0.9, "seed": 7, "weights": "best_constant"}},
    ],
)
def test_a_saved_configuration_runs_again_to_identical_records(tmp_path, changes):
    setup = build(changed(**changes))
    first = setup.run()
    first.save(tmp_path)
    second = read(tmp_path / "config.json")
    assert second.config() == setup.config()
    repeated = second.run()
    assert without_time(repeated.records) == without_time(first.records)
    assert all(torch.equal(repeated.state[name], first.state[name]) for name in first.state)


def test_reading_measures_nothing(monkeypatch):
    """The step that a configuration is tried with costs no evaluation, which is the expensive part."""
    monkeypatch.setattr(problems.SingleIndex, "evaluate", lambda *_: pytest.fail("evaluated"))
    build(changed(problem__evaluation=10**6, iterations=10**9, algorithm__gamma=1e30, problem__dim=5))


# What files get wrong: the change, and what the line has to say besides the file.

TOP = (
    "accepted: algorithm, compile, conditions, device, dtype, exact, iterations, metrics, mixing, network, note, "
    "observe_every, problem, "
)
NUMBER = "a number, or a list with one number per trial"
QUADRATIC = {"name": "Quadratic", "A": [[[1.0]]] * 4, "b": [[1.0]] * 4}

BAD = {
    # keys
    "unknown key": ({"itertions": 3}, "itertions: unknown key", TOP),
    "argument of run but not of files": ({"progress": 1}, "progress: unknown key", TOP),
    "underscore": ({"_": 1}, "_: unknown key", TOP),
    "sites that are no table": ({"sites": 3}, "sites must be a table", "got 3"),
    "nested unknown key": ({"algorithm__gama": 1}, "algorithm.gama: unknown key", "accepted: alpha, gamma"),
    "unknown key of a problem": ({"problem__dims": 1}, "problem.dims: unknown key", "agents, dim, evaluation, noise"),
    "unknown key of a network": ({"network": {"name": "paper", "agents": 8}}, "network.agents: unknown key", "none"),
    "unknown key of a schedule": (
        {"algorithm__alpha": {"name": "horizon", "scal": 1}},
        "algorithm.alpha.scal: unknown key",
        "accepted: scale",
    ),
    "unknown key twice nested": (
        {"regularizer": {"name": "Scaled", "factor": 2, "regularizer": {"name": "L1", "wait": 1}}},
        "regularizer.regularizer.wait: unknown key",
        "accepted: weight",
    ),
    "unknown key of a metric": ({"metrics": [{"name": "loss", "x": 1}]}, "metrics.x: unknown key", "loss: none"),
    "unknown key of a metric that has some": (
        {"metrics": [{"name": "per_agent", "lipshitz": 1}]},
        "metrics.lipshitz: unknown key",
        "accepted: lipschitz",
    ),
    "no algorithm": ({"algorithm": Without}, "algorithm is missing; every run needs it", "one of ProxDASA, ProxDASAGT"),
    "no problem": ({"problem": Without}, "problem is missing", "one of PhaseRetrieval, SingleIndex, Quadratic"),
    "no network": ({"network": Without}, "network is missing", "one of ring, path"),
    "no gamma": ({"algorithm": "ProxDASA"}, "algorithm.gamma is missing; ProxDASA needs it", NUMBER),
    "no rows": ({"network": "torus"}, "network.rows is missing; torus needs it", "a whole number"),
    "no size": ({"problem": QUADRATIC}, "network.agents is missing; ring needs it", "a whole number"),
    "no weight": ({"regularizer": "L1"}, "regularizer.weight is missing", "a number or a list of numbers"),
    "no parameter of a metric": ({"metrics": ["merit"]}, "metrics.lipschitz is missing; merit", "a number"),
    # names
    "misspelt algorithm": (
        {"algorithm__name": "ProxDasa"},
        "algorithm.name: there is no algorithm 'ProxDasa'",
        "DASAGT",
    ),
    "misspelt problem": ({"problem__name": "phase"}, "problem.name: there is no problem 'phase'", "PhaseRetrieval"),
    "misspelt network": ({"network": "rng"}, "network.name: there is no network 'rng'", "accepted: ring, path"),
    "misspelt regulariser": ({"regularizer": "L7"}, "regularizer.name: there is no regularizer 'L7'", "Zero, L1"),
    "misspelt mixing": ({"mixing": "gossip"}, "mixing.name: there is no mixing 'gossip'", "accepted: Gossip, Cheb"),
    "misspelt schedule": (
        {"algorithm__alpha": "horizn"},
        "algorithm.alpha.name: there is no schedule 'horizn'",
        "constant, horizon",
    ),
    "misspelt metric": ({"metrics": ["los"]}, "metrics must be", "one of loss, objective"),
    "misspelt weights": (
        {"network": {"name": "path", "weights": "metro"}},
        "network.weights must be",
        "metropolis, max",
    ),
    "misspelt link": (
        {"problem": {"name": "SingleIndex", "agents": 4, "link": "cube"}},
        "problem.link must be",
        "square",
    ),
    "misspelt type": ({"dtype": "float16"}, "dtype must be", "one of float32, float64; got 'float16'"),
    "misspelt rounds": (
        {"mixing": {"name": "Gossip", "rounds": "aut"}},
        "mixing.rounds must be",
        "a whole number or 'auto'",
    ),
    "misspelt population": (
        {"problem__evaluation": "popul"},
        "problem.evaluation must be",
        "a whole number or 'population'",
    ),
    "no name": ({"network": {"agents": 4}}, "network.name is missing", "accepted: ring"),
    "a metric without a name": ({"metrics": [{"lipschitz": 1}]}, "metrics: {'lipschitz': 1} needs a name", "loss"),
    "a list for a name": ({"algorithm__name": ["ProxDASA"]}, "algorithm.name: there is no algorithm", "ProxDASA"),
    "a list for an object": ({"algorithm": ["ProxDASA"]}, "algorithm must be one of ProxDASA", "got ['ProxDASA']"),
    "a number for an object": ({"problem": 3}, "problem must be one of PhaseRetrieval", "got 3"),
    "a list for a link": (
        {"problem": {"name": "SingleIndex", "agents": 4, "link": ["x"]}},
        "problem.link must be one of square",
        "tanh",
    ),
    "a list for a metric": ({"metrics": [["loss"]]}, "metrics must be", "one of loss"),
    "a number for metrics": ({"metrics": 3}, "metrics must be", "one of loss"),
    # types
    "text for a whole number": ({"iterations": "many"}, "iterations must be", "a whole number; got 'many'"),
    "a decimal for a whole number": ({"iterations": 1e3}, "iterations must be", "a whole number"),
    "true for a whole number": ({"trials": True}, "trials must be", "a whole number"),
    "true for agents": ({"problem__agents": True}, "problem.agents must be", "a whole number"),
    "true for a number": ({"algorithm__gamma": True}, "algorithm.gamma must be", NUMBER),
    "true in a list": ({"algorithm__gamma": [0.1, True]}, "algorithm.gamma must be", NUMBER),
    "true for a step size": (
        {"algorithm__alpha": True},
        "algorithm.alpha must be",
        "constant, horizon",
    ),
    "text for a number": ({"problem__noise": "low"}, "problem.noise must be", "a number"),
    "text for a parameter": ({"algorithm__gamma": "0.1"}, "algorithm.gamma must be", NUMBER),
    "no values per trial": ({"algorithm__gamma": []}, "algorithm.gamma must be", NUMBER),
    "text per trial": ({"algorithm__alpha": ["a"]}, "algorithm.alpha must be a number, a list", "got ['a']"),
    "a number that no float can hold": ({"algorithm__gamma": 10**400}, "algorithm.gamma must be", NUMBER),
    "a number for true": ({"random_iterate": 1}, "random_iterate must be", "true or false"),
    "a table for a step size": (
        {"algorithm__alpha": {"scale": 1}},
        "algorithm.alpha.name is missing",
        "horizon",
    ),
    "a list for rounds": ({"mixing": {"name": "Gossip", "rounds": [1]}}, "mixing.rounds must be", "'auto'"),
    "text in weights": (
        {"regularizer": {"name": "L1", "weight": [0.1, "a"]}},
        "regularizer.weight[1] must be a number; got 'a'",
    ),
    "text in an array": ({"x0": ["a"]}, "x0[0] must be a number; got 'a'"),
    "text for an array": ({"x0": "zero"}, "x0 must be", "a list of numbers"),
    "true in an array": ({"x0": [True] * 10}, "x0[0] must be a number; got True"),
    "a table for an array": ({"problem": QUADRATIC | {"A": {"a": 1}}}, "problem.A must be", "a list of numbers"),
    "a row among numbers": ({"x0": [0.5, []]}, "x0 must be an array whose rows have the same length"),
    "rows of two lengths": ({"x0": [[1, 2], [3]]}, "x0 must be an array whose rows have the same length"),
    "a fingerprint": (
        {"x0": {"shape": [1], "sha256": "0"}},
        "x0 was too large to be saved",
        "repeat this run from Python",
    ),
    "a short part": (
        {"regularizer": {"name": "Blocks", "parts": [[0, 5]]}},
        "regularizer.parts[0] must be a list of 3 values",
        "got [0, 5]",
    ),
    "a part with text": (
        {"regularizer": {"name": "Blocks", "parts": [["a", 5, "Zero"]]}},
        "regularizer.parts[0][0] must be",
        "a whole number",
    ),
    "a part within a part": (
        {"regularizer": {"name": "Blocks", "parts": [[0, 5, {"name": "L1", "weight": "x"}]]}},
        "regularizer.parts[0][2].weight must be",
        "a number or a list of numbers",
    ),
    "no list of parts": ({"regularizer": {"name": "Blocks", "parts": 3}}, "regularizer.parts must be a list", "got 3"),
    "a short shape": (
        {"regularizer": {"name": "NuclearNorm", "weight": 1, "shape": [3]}},
        "regularizer.shape must be a list of 2 values",
        "got [3]",
    ),
    # values
    "negative gamma": ({"algorithm__gamma": -0.1}, "algorithm: gamma must be a positive number", "got -0.1"),
    "gamma that is no number": ({"algorithm__gamma": math.nan}, "algorithm: gamma must be a positive", "got nan"),
    "infinite gamma": ({"algorithm__gamma": math.inf}, "algorithm: gamma must be a positive", "got inf"),
    "one negative gamma": (
        {"trials": 2, "algorithm__gamma": [1, -1]},
        "algorithm: gamma must be a positive",
        "per_trial",
    ),
    "negative step size": ({"algorithm__alpha": -1}, "algorithm.alpha: value must be a positive number", "got -1"),
    "no iterations": ({"iterations": 0}, "iterations must be a whole number of at least 1", "got 0"),
    "too many iterations": ({"iterations": 10**23}, "iterations must be at most 1,000,000,000,000;", "got 100,000,"),
    "no trials": ({"trials": 0}, "trials must be a whole number of at least 1", "got 0"),
    "no observations": ({"observe_every": 0}, "observe_every must be a whole number of at least 1", "got 0"),
    "negative agents": ({"problem__agents": -3}, "problem: agents must be a whole number of at least 1", "got -3"),
    "too many entries": (
        {"problem__sparsity": 11},
        "problem: sparsity must be a whole number from 1 to dim = 10",
        "got 11",
    ),
    "negative noise": ({"problem__noise": -1}, "problem: noise must be a finite number of at least 0", "got -1"),
    "no points": ({"problem__evaluation": 0}, "problem: evaluation must be a number of points", "got 0"),
    "unknown population": (
        {"problem": {"name": "SingleIndex", "agents": 4, "link": "tanh", "evaluation": "population"}},
        "problem: the population loss of the link 'tanh'",
        "give evaluation a number",
    ),
    "wrong shape": (
        {"problem": QUADRATIC | {"A": [[1.0]]}, "network": {"name": "ring", "agents": 4}},
        "problem:",
        "[n, d, d]",
    ),
    "rounds without an end": (
        {"mixing": {"name": "Chebyshev", "rounds": 10**9}},
        "mixing: the rounds of an iteration must be a whole number of at most 100,000",
        "asks for 1,000,000,000 on",
    ),
    "no rounds": (
        {"mixing": {"name": "Gossip", "rounds": 0}},
        "mixing: rounds must be",
        'at least 1, or "auto"; got 0',
    ),
    "negative weight": ({"regularizer": {"name": "L1", "weight": -1}}, "regularizer: L1.weight must be", "got -1"),
    "empty box": ({"regularizer": {"name": "Box", "lower": 2, "upper": 1}}, "regularizer: Box:", "lower = 2.0"),
    "not connected": ({"network": {"name": "erdos_renyi", "probability": 0}}, "network: erdos_renyi:", "not connected"),
    "no probability": ({"network": {"name": "erdos_renyi", "probability": 2}}, "network: erdos_renyi: prob", "0 and 1"),
    "no such graph": ({"network": {"name": "regular", "degree": 9}}, "network: regular: there is no graph", "degree"),
    "negative self weight": ({"network": {"name": "star", "weights": "best_constant"}}, "network: star:", "metropolis"),
    "negative seed": ({"seed": -1}, "seed must be a whole number from 0 to 2^64 - 1", "got -1"),
    "huge seed": ({"seed": 2**64}, "seed must be a whole number from 0 to 2^64 - 1", "got 18446744073709551616"),
    # what does not fit together
    "two sizes": ({"network": {"name": "ring", "agents": 5}}, "network: ring(5) has 5 agents", "the problem has 4"),
    "too few gammas": (
        {"trials": 3, "algorithm__gamma": [1, 2]},
        "algorithm: gamma has 2 per-trial values",
        "3 trials",
    ),
    "too many step sizes": ({"algorithm__alpha": [0.1, 0.2]}, "algorithm: alpha has 2 per-trial values", "1 trials"),
    "short start": ({"x0": [1, 2]}, "x0 of shape [2] does not broadcast", "[trials, agents, d] = [1, 4, 10]"),
    "long start": ({"x0": list(range(5000))}, "x0 of shape [5000] does not broadcast", "[1, 4, 10]"),
    "start that is no number": ({"x0": [math.nan] * 10}, "x0: the starting point is not finite"),
    "too few weights": (
        {"regularizer": {"name": "L1", "weight": [1, 2]}},
        "regularizer: L1 is over 2 coordinates",
        "x has 10",
    ),
    "a part beyond x": (
        {"regularizer": {"name": "Blocks", "parts": [[0, 50, "Zero"]]}},
        "regularizer: Blocks: the part 0:50 is beyond x",
        "10",
    ),
    "wrong matrix": (
        {"regularizer": {"name": "NuclearNorm", "weight": 1, "shape": [3, 3]}},
        "regularizer: NuclearNorm of a 3 × 3 matrix",
        "10",
    ),
}


def refusal(file, tmp_path):
    """The one line that `proxdasa run` has to say about a file, after the file's name."""
    result = CliRunner().invoke(app, ["run", str(file), "--output", str(tmp_path / "results")])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert not (tmp_path / "results").exists()
    start = f"error: {file}: "
    assert lines[0].startswith(start)
    return lines[0].removeprefix(start)


@pytest.mark.parametrize("case", BAD)
def test_bad_configurations_are_refused_in_one_line(tmp_path, case):
    changes, key, *accepted = BAD[case]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(changed(**changes)))
    line = refusal(file, tmp_path)
    assert line.startswith(key), line
    assert all(words in line for words in accepted), line
    assert len(line) < 300


def test_a_problem_of_no_size_is_not_blamed_on_the_network(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"network": "ring", **changed(problem__agents=0)}))
    assert refusal(file, tmp_path).startswith("problem: agents must be a whole number of at least 1; got 0")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.toml", b"iterations = ", "not a valid TOML file: Invalid value (at end of document)"),
        ("run.toml", b"iterations = 1\niterations = 2", "not a valid TOML file: Cannot overwrite a value"),
        ("run.toml", b"\xff\xfe", "not a valid TOML file: 'utf-8' codec can't decode"),
        ("run.toml", b"", "algorithm is missing; every run needs it: one of ProxDASA, ProxDASAGT"),
        ("run.toml", b"[algoritm]\nname = 'ProxDASA'", "algoritm: unknown key; accepted: algorithm, "),
        ("run.toml", b"site = 'a'", "site: unknown key; accepted: algorithm, "),  # which only results have
        ("run.toml", b'"two\\nlines" = 1', "two lines: unknown key"),
        ("run.txt", b"{}", "not a valid TOML file"),
        ("run.toml", b"x = " + b"[" * 10**4, "not a valid TOML file: maximum recursion depth exceeded"),
        ("config.json", b"[" * 10**5, "not a valid JSON file: maximum recursion depth exceeded"),
        ("run.json", b"iterations = 3", "not a valid JSON file: Expecting value"),
        ("run.json", b"[1, 2]", "not a table of settings; give a TOML file, or the config.json of saved results"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, name, content, words):
    file = tmp_path / name
    file.write_bytes(content)
    assert refusal(file, tmp_path).startswith(words)


def test_a_file_that_is_not_there(tmp_path):
    assert refusal(tmp_path / "nowhere.toml", tmp_path) == "No such file or directory"


def test_files_that_a_file_names_begin_at_the_folder_of_the_command(tmp_path, monkeypatch):
    file = tmp_path / "deep" / "run.json"
    file.parent.mkdir()
    file.write_text(json.dumps(changed(network={"name": "from_file", "path": "edges.txt"})))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        read(file)
    assert str(caught.value) == f"{tmp_path / 'edges.txt'} cannot be read: No such file or directory"
    Path("edges.txt").write_text("0 1\n1 2\n2 3\n")
    assert len(read(file).network.edges) == 3
    rows = {"name": "libsvm", "path": "rows.svm"}
    file.write_text(json.dumps(changed(problem={"name": "Supervised", "model": "mlp", "agents": 2, "data": rows})))
    result = CliRunner().invoke(app, ["run", str(file), "--output", "results"])
    assert result.stderr == f"error: {tmp_path / 'rows.svm'}: No such file or directory\n"


def test_a_folder_is_no_file(tmp_path):
    assert refusal(tmp_path, tmp_path) == "Is a directory"


def test_brackets_in_names_are_shown_as_they_are(tmp_path):
    file = tmp_path / "[bold]run :smile:.toml"
    file.write_text('"[red]key[/]" = 1')
    assert refusal(file, tmp_path).startswith("[red]key[/]: unknown key")


def test_python_gets_the_same_line_as_an_exception(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("itertions = 3")
    with pytest.raises(ConfigError, match=r"run\.toml: itertions: unknown key; accepted: algorithm"):
        read(file)
    assert issubclass(ConfigError, ValueError)
