"""Warnings point at the line that made the call which they are about."""

import re
import runpy
from pathlib import Path
from unittest import mock

import pytest
import torch

import proxdasa
from proxdasa import caller_warnings, networks, problems
from proxdasa.networks import spectrum
from proxdasa.runs.checkpoints import Checkpoints, CheckpointWarning
from proxdasa.runs.progress import ProgressWarning

PACKAGE = Path(proxdasa.__file__).parent
QUADRATIC = problems.Quadratic(torch.eye(2).expand(2, 2, 2), torch.ones(2, 2))


def run(gamma=1.0, **settings):
    return proxdasa.run(proxdasa.DPSGD(gamma=gamma), QUADRATIC, networks.complete(2), iterations=40, **settings)


def diverge(_):
    run(gamma=1e30)


def diverge_in_a_search(_):
    tuned = proxdasa.tuning.Search(
        proxdasa.runs.setup.Setup(proxdasa.DPSGD(gamma=1.0), QUADRATIC, networks.complete(2), iterations=40),
        [{"gamma": 1e30}, {"gamma": 1.0}],
    )
    tuned.setup.run()


def fail_to_tell(_):
    def progress(*_):
        raise RuntimeError("no screen")

    run(progress=progress)


def pass_over_a_checkpoint(folder):
    run(checkpoints=folder, checkpoint_every=20)
    (folder / "000000040" / "state.safetensors").write_text("", encoding="utf-8")
    run(checkpoints=folder)


def leave_no_checkpoint(folder):
    with mock.patch.object(Checkpoints, "write", side_effect=OSError("the disk is full")):
        run(checkpoints=folder, checkpoint_every=20)


def load_what_is_cut_short(folder):
    records = run().save(folder) / "records.jsonl"
    records.write_text(records.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    proxdasa.load(folder)


def measure_roughly(_):
    _ = networks.path(600).rho  # by way of a cached property


CALLS = {
    diverge: proxdasa.DivergenceWarning,
    diverge_in_a_search: proxdasa.DivergenceWarning,
    fail_to_tell: ProgressWarning,
    pass_over_a_checkpoint: CheckpointWarning,
    leave_no_checkpoint: CheckpointWarning,
    load_what_is_cut_short: UserWarning,
    measure_roughly: UserWarning,
}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_warning_names_the_line_of_the_caller(call, tmp_path, monkeypatch):
    monkeypatch.setattr(spectrum, "_lanczos", lambda *_, **__: (0.5, False))
    with pytest.warns(CALLS[call]) as told:
        call(tmp_path / "folder")
    assert {warning.filename for warning in told} == {__file__}
    here = Path(__file__).read_text(encoding="utf-8").splitlines()
    for warning in told:
        assert any(words in here[warning.lineno - 1] for words in ("proxdasa.", "setup.run()", ".rho"))


def test_a_program_that_is_nothing_but_ours_still_warns():
    with pytest.warns(UserWarning, match="nobody called"):
        exec(
            "from proxdasa import caller_warnings; caller_warnings.warn('nobody called')",
            {"__name__": "proxdasa.experiment"},
        )


def test_frames_are_counted_in_one_place():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "stacklevel" not in text, path
        assert path.name == "caller_warnings.py" or not re.search(r"(?<!caller_)warnings\.warn\b", text), path


def test_a_caller_without_a_name_is_warned_too():
    """Code that is executed without a module, as templates and notebooks may do."""
    code = "caller_warnings.warn('look here')"
    with pytest.warns(UserWarning, match="look here"):
        exec(compile(code, "nowhere", "exec"), {"caller_warnings": caller_warnings})


def test_a_module_that_runs_as_python_m_is_warned_like_any_other(tmp_path, monkeypatch):
    """Its loader knows the source of package.module, and fails for __main__."""
    (tmp_path / "mine.py").write_text("from proxdasa import caller_warnings\ncaller_warnings.warn('look')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="look"):
        runpy.run_module("mine", run_name="__main__", alter_sys=True)
