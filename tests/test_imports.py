"""What need not be there: proxdasa is imported, and works, without scikit-learn and without pytest.

Each program runs in a forked process, which imports proxdasa again; `test_distribution` has a fresh interpreter.
"""

import sys

from tests.processes import LINUX, fork_together

pytestmark = LINUX

ESTIMATORS = """
import proxdasa.estimators
"""
LAWS = """
import proxdasa
import proxdasa.problems
print(proxdasa.testing.check_algorithm(proxdasa.DPSGD))
"""


def run_bare(program):
    """Run a program as if scikit-learn and pytest were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("proxdasa", "tests", "sklearn", "pytest")]:
        del sys.modules[name]
    sys.modules["sklearn"] = sys.modules["pytest"] = None
    exec(program, {"__name__": "__main__"})


def test_without_scikit_learn_a_sentence_says_what_is_missing(tmp_path):
    _, said = fork_together(tmp_path, 1, run_bare, ESTIMATORS)
    assert "proxdasa.estimators needs scikit-learn, which is missing: pip install 'proxdasa[data]'" in said


def test_the_laws_need_no_pytest(tmp_path):
    _, said = fork_together(tmp_path, 1, run_bare, LAWS)
    assert said.startswith("DPSGD keeps 25 laws"), said
