"""Study files, and the commands of a site."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, networks, problems
from proxdasa.exit_codes import Code
from proxdasa.sites import keys, rehearsal
from proxdasa.sites.study import own_problem, read_study
from tests import forks
from tests.federation import HOST, free_ports, make_keys
from tests.processes import LINUX, with_tests

STUDY = """
iterations = {iterations}
algorithm = {{ name = "ProxDASAGT", gamma = 0.01, alpha = 0.3 }}
network = {{ name = "from_links", links = [["charite", "lmu"], ["lmu", "rwth"]] }}
[problem]
name = "PhaseRetrieval"
agents = 3
dim = 5
evaluation = 100
[sites]
patience = 5.0
[sites.addresses]
rwth = ""
charite = "{charite}"
lmu = "{lmu}"
"""


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def study(tmp_path):
    charite, lmu = (f"{HOST}:{port}" for port in free_ports(2))
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(iterations=40, charite=charite, lmu=lmu))
    return path


def test_sites_are_agents_in_alphabetical_order(study):
    known = read_study(study)
    assert known.names == ("charite", "lmu", "rwth")
    assert known.weights("lmu") == pytest.approx({"charite": 1 / 3, "rwth": 1 / 3})
    assert known.weights("charite") == pytest.approx({"lmu": 1 / 3})
    assert known.addresses["rwth"] == ""
    with pytest.raises(ValueError, match="there is no site 'berlin' in the study; it has charite, lmu, rwth"):
        known.number("berlin")


def test_the_same_file_can_be_simulated(study, tmp_path):
    result = call("run", study, "--output", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.output
    assert proxdasa.load(tmp_path / "out").iterations == 40


def test_sites_compare_what_the_study_file_only_names(study, tmp_path, monkeypatch):
    """With other networks the mean over sites would change, and with other code they would solve other problems."""
    monkeypatch.chdir(tmp_path)
    text = study.read_text().replace("[problem]", 'regularizer = { name = "own_terms_of_sites:Term" }\n[problem]')
    links = 'links = [["charite", "lmu"], ["lmu", "rwth"]]'
    study.write_text(text.replace(f'"from_links", {links}', '"from_file", path = "W.csv"'))
    term = "import dataclasses\nfrom proxdasa.regularizers import L1\n@dataclasses.dataclass(frozen=True)\n"
    code, W = tmp_path / "own_terms_of_sites.py", tmp_path / "W.csv"
    code.write_text(f"{term}class Term(L1):\n    weight: float = 0.1\n")
    found = []
    for change in (lambda: W.write_text("0.4,0.6,0\n0.6,0.1,0.3\n0,0.3,0.7\n"),
                   lambda: W.write_text("0.4,0.6,0\n0.6,0.2,0.2\n0,0.2,0.8\n"),
                   lambda: code.write_text(code.read_text().replace("0.1", "0.2"))):  # fmt: skip
        change()
        found.append(read_study(study).shared)
    changed = [[name for name in one if one[name] != other[name]] for one, other in itertools.pairwise(found)]
    assert changed == [["network"], ["code of your own"]]


def test_more_iterations_than_messages_can_number_are_refused(study):
    study.write_text(
        study.read_text().replace("iterations = 40", "iterations = 1_073_741_824\nobserve_every = 1_000_000")
    )
    with pytest.raises(ValueError, match=r"at most 1,073,741,824, with their last rounds; got"):
        read_study(study)


def test_conditions_in_a_study_are_for_its_simulation(study, tmp_path):
    before = read_study(study)
    text = study.read_text().replace(
        "iterations = 40", 'iterations = 40\nconditions = [{ name = "LinkLoss", probability = 0.5 }]'
    )
    study.write_text(text)
    assert read_study(study).setup.conditions == ()
    assert read_study(study).setup.config() == before.setup.config()
    result = call("run", study, "--output", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.output
    assert proxdasa.load(tmp_path / "out").config["conditions"][0]["name"] == "LinkLoss"


def test_a_site_must_say_which_it_is(study, tmp_path):
    result = call("site", "run", study, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "which site is this? --as NAME" in " ".join(result.stderr.replace("│", " ").split())
    result = call("site", "run", study, "--output", tmp_path / "out", "--rehearse", "--as", "lmu")
    assert result.exit_code == 2
    assert "--rehearse starts all sites" in " ".join(result.stderr.replace("│", " ").split())


@pytest.fixture
def forked(monkeypatch):
    """Rehearsals start stand-ins for the commands of the sites, which `make slow` starts as they are."""
    whole = rehearsal.Rehearsal.commands
    forks.share()
    monkeypatch.setenv("PYTHONPATH", with_tests())
    monkeypatch.setattr(
        rehearsal.Rehearsal,
        "commands",
        lambda *given: {name: [*forks.STAND_IN, *words[2:]] for name, words in whole(*given).items()},
    )


@LINUX
@pytest.mark.usefixtures("forked")
def test_a_rehearsal_from_the_command_line(study, tmp_path):
    text = study.read_text().replace("[sites]", '[sites]\nshare = ["loss"]')
    study.write_text(text.replace("iterations = 40", "iterations = 40\nobserve_every = 20"))
    result = call("site", "run", study, "--rehearse", "--output", tmp_path / "out")
    logs = {name: (tmp_path / "out" / f"{name}.log").read_text() for name in ("charite", "lmu", "rwth")}
    assert result.exit_code == 0, (result.output, logs)
    for name in logs:
        assert f"{name}: finished" in result.stdout
        assert "<!doctype html>" in (tmp_path / "out" / name / "report.html").read_text().lower()
        shown = call("site", "status", tmp_path / "out" / name).stdout
        assert f"{name}: finished, iteration 40 of 40" in shown
        assert "mean loss" in shown
        assert "means over sites: 3" in shown


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[sites.addresses]", "[elsewhere]", r"sites\.addresses is missing"),
        ("patience = 5.0", "patients = 5.0", r"sites\.patients: unknown key; accepted: addresses, agreement"),
        ("patience = 5.0", "patience = 0.0", r"sites\.patience must be a positive, finite number; got 0\.0"),
        ('rwth = ""', 'RWTH = ""', "the name of a site has 1 to 63 small letters"),
        ('rwth = ""', 'authority = ""', "authority is the name of the authority's files; choose another name"),
        ('rwth = ""', 'rwth = "somewhere"', r'sites\.addresses\.rwth must be "host:port"'),
        ('rwth = ""', "", r"sites\.addresses has 2 sites, but the network has 3 agents"),
        ("iterations = 40", "iterations = 40\ntrials = 2", "trials must be 1 for sites; got 2"),
        ("iterations = 40", 'iterations = 40\nmixing = "Chebyshev"', "cannot go on without a neighbour; choose Gossip"),
    ],
)
def test_studies_that_are_refused(study, old, new, words):
    assert old in study.read_text()
    study.write_text(study.read_text().replace(old, new))
    with pytest.raises(ValueError, match=words):
        read_study(study)


def test_data_of_a_site_take_the_place_of_the_files_of_all(tmp_path):
    (tmp_path / "mine.csv").write_text("age,sick\n1,0\n2,1\n3,1\n")
    problem = """
    [problem]
    name = "Supervised"
    agents = 2
    batch_size = 2
    model = { name = "mlp", inputs = 1, outputs = 2 }
    data = { name = "per_agent", files = "rows-{agent}.csv", target = "sick", labels = [0, 1] }
    [sites.addresses]
    a = ""
    b = "localhost:7443"
    """
    path = tmp_path / "study.toml"
    path.write_text(
        'algorithm = { name = "ProxDASA", gamma = 0.1 }\nnetwork = { name = "ring", agents = 2 }\n' + problem
    )
    own = read_study(path, tmp_path / "mine.csv").setup.problem.restrict(range(1, 2))
    assert own.examples.x.tolist() == [[1.0], [2.0], [3.0]]
    table = '{ name = "per_agent", files = "rows-{agent}.csv", target = "sick", labels = [0, 1] }'
    path.write_text(
        path.read_text().replace(table, '"digits"').replace("inputs = 1, outputs = 2", "inputs = 64, outputs = 10")
    )
    with pytest.raises(ValueError, match="--data needs a problem whose data are"):
        read_study(path, tmp_path / "mine.csv")


TABLES = """
iterations = 3
algorithm = { name = "ProxDASA", gamma = 0.1 }
network = { name = "from_links", links = [["rwth", "lmu"], ["lmu", "charite"]] }
[problem]
name = "Supervised"
agents = 3
model = { name = "mlp", inputs = 1, outputs = 2 }
data = { name = "per_agent", files = "rows/{site}.csv", target = "sick", labels = [0, 1] }
[sites.addresses]
rwth = ""
charite = "localhost:7443"
lmu = "localhost:7444"
"""


def test_files_named_by_sites(tmp_path, monkeypatch):
    """The same file names the data of a simulation, which needs all of them, and those of each site."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(TABLES)
    result = call("run", "study.toml", "--output", "out", "--quiet")
    missing = ", ".join(f"{name} ({tmp_path / 'rows' / name}.csv)" for name in ("charite", "lmu", "rwth"))
    assert result.exit_code == Code.REFUSED
    assert f"there is no file of {missing}" in result.stderr.replace("\n", "")
    (tmp_path / "rows").mkdir()
    ages = {"rwth": [1, 2], "charite": [3], "lmu": [4, 5, 6]}
    for name, column in ages.items():
        text = "age,sick\n" + "".join(f"{age},{age % 2}\n" for age in column)
        (tmp_path / "rows" / f"{name}.csv").write_text(text)
    study = read_study(tmp_path / "study.toml")
    for name, column in ages.items():
        assert own_problem(study, name).examples.x.flatten().tolist() == column
    result = call("run", "study.toml", "--output", "out", "--quiet")
    assert result.exit_code == 0, result.output
    read_again = proxdasa.load("out").config["problem"]["data"]
    assert (read_again["files"], read_again["names"]) == ("rows/{agent}.csv", ["charite", "lmu", "rwth"])
    (tmp_path / "rows" / "lmu.csv").rename(tmp_path / "rows" / "LMU.csv")
    with pytest.raises(FileNotFoundError, match=rf"there is no file of lmu \({tmp_path}/rows/lmu.csv\)$"):
        own_problem(study, "lmu")
    own_problem(study, "rwth")
    for old, new, why in (
        ("[sites.addresses]", '[sites.addresses]\naachen = ""', "names of 4 agents (aachen, charite, lmu, rwth), but"),
        ("{site}.csv", "{site}-{agent}.csv", "has both {site} and {agent}; leave one out"),
        ("target", 'names = ["a", "b", "c"], target', "problem.data.names is given beside {site}"),
        (
            "{site}.csv",
            '{agent}.csv", names = ["a", "b", "c", "d"], test = "a.csv',
            "names of 4 agents (a, b, c, d), but",
        ),
    ):
        (tmp_path / "study.toml").write_text(TABLES.replace(old, new))
        result = call("run", "study.toml", "--output", "other")
        assert result.exit_code == Code.REFUSED
        assert why in " ".join(result.stderr.split())
    (tmp_path / "study.toml").write_text(TABLES[: TABLES.index("[sites")])
    result = call("run", "study.toml", "--output", "other")
    assert "problem.data.files has {site}, which needs the names of sites" in " ".join(result.stderr.split())


def test_as_many_names_as_agents():
    data = proxdasa.data.per_agent("{agent}.csv", names=["a", "b", "c"], labels=[0, 1], target="sick")
    problem = problems.Supervised(lambda: torch.nn.Linear(1, 2), data, agents=2)
    with pytest.raises(ValueError, match=r"names of 3 agents \(a, b, c\), but there are 2; give as many"):
        proxdasa.run(proxdasa.DPSGD(0.1), problem, networks.complete(2), iterations=1)


@pytest.mark.parametrize("names", ["abc", [1, 2], ["a", ""], ["a", "a"]])
def test_names_of_agents_are_a_list_of_different_texts(names):
    with pytest.raises(ValueError, match="names must be a list of texts, a different one for each agent"):
        proxdasa.data.per_agent("{agent}.csv", names=names, labels=[0, 1], target="sick")


@pytest.mark.parametrize("text", [None, "", '{"site": "lmu", "doi', "[]", "{}", '{"at": "now"}', "\udcff"])
def test_a_status_that_is_missing_or_broken(tmp_path, text):
    if text is not None:
        (tmp_path / "status.json").write_text(text, errors="surrogateescape")
    result = call("site", "status", tmp_path)
    assert result.exit_code == Code.REFUSED
    said = " ".join(result.stderr.split())
    words = "no site has written its status into" if text is None else "is not the status of a site"
    assert words in said
    assert "Traceback" not in said


def test_a_rehearsal_in_which_a_site_fails_has_its_exit_code(study, tmp_path, monkeypatch):
    codes = {"charite": Code.LOST, "lmu": Code.DIVERGED, "rwth": Code.DONE}
    commands = {name: [sys.executable, "-Sc", f"raise SystemExit({code:d})"] for name, code in codes.items()}
    monkeypatch.setattr(rehearsal.Rehearsal, "commands", lambda *_: commands)
    result = call("site", "run", study, "--rehearse", "--output", tmp_path / "out")
    assert result.exit_code == Code.DIVERGED
    said = result.stdout.replace("\n", "")
    assert "rwth: finished" in said
    assert f"lmu: ended with code 4; see {tmp_path / 'out' / 'lmu'}.log" in said


def test_check_names_every_problem_and_its_cure(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("site", "check", study, "--as", "lmu")
    assert result.exit_code == Code.UNWELL
    assert "FAILED" in result.stdout
    assert "cure: proxdasa keys request lmu" in result.stdout
    make_keys(tmp_path, ["charite", "lmu", "rwth"])
    result = call("site", "check", study, "--as", "lmu")
    assert result.exit_code == 0, result.output
    assert "neighbours of lmu: charite, rwth" in result.stdout
    assert "certificate of lmu, valid until" in result.stdout
    assert "no answer from charite" in result.stdout
    result = call("site", "check", study, "--as", "nobody")
    assert result.exit_code == Code.UNWELL
    assert "there is no site 'nobody' in the study; it has charite, lmu, rwth" in result.stdout
    os.utime(study, (time.time() + 3600,) * 2)
    result = call("site", "check", study, "--as", "rwth")
    assert result.exit_code == Code.UNWELL
    assert f"but {study} was written later" in result.stdout.replace("\n", " ")
    assert "cure: set the clock" in result.stdout
    assert "all sites need this version of proxdasa" in " ".join(result.stdout.split())
    assert "no open port: this site calls its neighbours" in result.stdout


def test_a_certificate_of_another_site_is_refused(study, tmp_path):
    make_keys(tmp_path, ["charite", "lmu"])
    for ending in ("crt", "key"):
        (tmp_path / f"lmu.{ending}").write_bytes((tmp_path / f"charite.{ending}").read_bytes())
    result = call("site", "run", study, "--as", "lmu", "--keys", tmp_path, "--output", tmp_path / "out")
    assert result.exit_code == 2
    assert "is the certificate of charite, but this site is lmu" in result.stderr


@pytest.mark.slow
def test_a_rehearsal_in_which_a_site_is_killed(study, tmp_path):
    """Real processes: one is killed with SIGKILL and started again by the same command; all end with one model."""
    from proxdasa.sites.rehearsal import Rehearsal  # noqa: PLC0415

    study.write_text(study.read_text().replace("iterations = 40", "iterations = 15000"))
    rehearsal = Rehearsal.of(study, tmp_path / "rehearsal")
    commands = {name: [*command, "--checkpoint-every", "0.2"] for name, command in rehearsal.commands().items()}
    running = {name: subprocess.Popen(command, stderr=subprocess.DEVNULL) for name, command in commands.items()}
    try:
        status, until = tmp_path / "rehearsal" / "rwth" / "status.json", time.monotonic() + 60
        while not (status.exists() and json.loads(status.read_bytes())["iteration"] > 200):
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(running["rwth"].pid, signal.SIGKILL)
        running["rwth"].wait()
        running["rwth"] = subprocess.Popen(commands["rwth"], stderr=subprocess.DEVNULL)
        assert {name: process.wait(timeout=600) for name, process in running.items()} == dict.fromkeys(commands, 0)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    results = {name: proxdasa.load(tmp_path / "rehearsal" / name) for name in commands}
    shown = call("site", "status", tmp_path / "rehearsal" / "rwth").stdout
    assert "rwth: finished, iteration 15,000 of 15,000" in shown
    x = torch.cat([result.x[0] for result in results.values()])
    torch.testing.assert_close(x, x.mean(dim=0).expand(3, -1), rtol=0, atol=1e-2)


def test_keys_and_results_of_sites_stay_apart(study, tmp_path):
    from proxdasa.sites.rehearsal import Rehearsal  # noqa: PLC0415

    rehearsal = Rehearsal.of(study, tmp_path / "rehearsal")
    assert rehearsal.study.addresses["rwth"] == ""
    assert rehearsal.study.addresses["lmu"] != read_study(study).addresses["lmu"]
    commands = rehearsal.commands("rows-{site}.csv")
    assert commands["lmu"][:5] == [sys.executable, "-m", "proxdasa", "site", "run"]
    assert commands["lmu"][-1] == "rows-lmu.csv"
    assert (tmp_path / "rehearsal" / keys.CERTIFICATE).exists()
    again = Rehearsal.of(study, tmp_path / "rehearsal")
    assert again.study.digest == rehearsal.study.digest, "a rehearsal that goes on has the same addresses"
    study.write_text(study.read_text().replace("iterations = 40", "iterations = 41"))
    with pytest.raises(ValueError, match="is the rehearsal of another study, or of an earlier version"):
        Rehearsal.of(study, tmp_path / "rehearsal")
