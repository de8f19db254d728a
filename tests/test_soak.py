"""The short form of ``make soak``, and what it would find."""

import types

import pytest
from benchmarks import soak

from tests.processes import LINUX

pytestmark = LINUX


def test_a_soak_of_seconds(tmp_path, capsys):
    assert soak.soak(minutes=0.1, seed=83, folder=tmp_path, fork=True) == 0, capsys.readouterr().out
    told = capsys.readouterr().out
    assert "in the end: |mean u − mean v| = " in told
    assert "  aachen: memory " in told


def watch(**growing):
    """Measurements over an hour, with a rise of some of them by so much, and spikes."""
    flat = {"memory": 300.0, "files": 11.0, "threads": 14.0}
    line = [
        soak.Sample(
            float(at), **{name: flat[name] + growing.get(name, 0.0) * at / 3600 + (at % 7 == 0) for name in flat}
        )
        for at in range(3600)
    ]
    return types.SimpleNamespace(samples=dict.fromkeys(soak.NAMES, line))


def test_what_is_flat_is_no_fault():
    assert soak.report(watch(), 3600.0) == []


@pytest.mark.parametrize("what", soak.ROOM)
def test_what_grows_is_a_fault(what):
    faults = soak.report(watch(**{what: 20.0}), 3600.0)
    assert [fault.partition(" grew by 15.0")[0] for fault in faults] == [f"{what} of {name}" for name in soak.LASTING]
