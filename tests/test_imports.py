"""What is imported, and what need not be there: programs of a user's own, in a fresh interpreter.

One interpreter, which has neither scikit-learn nor pytest, imports torch and proxdasa, which takes seconds, and forks
for each program. They end without taking torch down, which takes almost as long.
"""

import json
import subprocess
import sys

import pytest

from tests.processes import LIMIT, LINUX

pytestmark = LINUX

PROGRAMS = {
    "no scikit-learn": """
import proxdasa.estimators
""",
    "no pytest": """
print(proxdasa.testing.check_algorithm(proxdasa.DPSGD))
""",
    "no compiler": """
from proxdasa import data, problems
network = lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
problems.Supervised(network, data.from_tensors(torch.ones(4, 2), [0, 1, 0, 1]), 2, path="loop")
print("torch._dynamo" in sys.modules)
""",
}
FORKING = """
import json, os, sys, traceback
sys.modules["sklearn"] = sys.modules["pytest"] = None
import torch
import proxdasa
import proxdasa.problems
for name, program in json.loads(sys.argv[1]).items():
    if not (pid := os.fork()):
        os.dup2(os.open(f"{sys.argv[2]}/{name}", os.O_CREAT | os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            exec(program)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
os._exit(0)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each program writes."""
    folder = tmp_path_factory.mktemp("imports")
    words = [sys.executable, "-c", FORKING, json.dumps(PROGRAMS), str(folder)]
    subprocess.run(words, timeout=LIMIT, check=True)
    return {name: (folder / name).read_text(encoding="utf-8") for name in PROGRAMS}


def test_without_scikit_learn_a_sentence_says_what_is_missing(said):
    missing = "proxdasa.estimators needs scikit-learn, which is missing: pip install 'proxdasa[data]'"
    assert missing in said["no scikit-learn"], said


def test_the_laws_need_no_pytest(said):
    assert said["no pytest"].startswith("DPSGD keeps 25 laws"), said


def test_a_problem_is_made_without_torchs_compiler(said):
    """Importing it takes seconds."""
    assert said["no compiler"] == "False\n", said
