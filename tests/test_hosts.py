"""Two machines: network namespaces with a link between them, which the tests make, cut and remove again."""

import contextlib
import re
import time

import pytest
from typer.testing import CliRunner

from proxdasa.cli import app
from tests.namespaces import ADDRESSES, ip, machines
from tests.processes import LINUX, check_same, commands, here, listeners, newest, trouble, write_config
from tests.test_faults import SLOW

pytestmark = LINUX
TIMEOUT = 14
CUT = 6.0
"""Seconds, which is what is tested here: almost half the timeout, with room for a busy machine."""
AS_WRITTEN = ("01004D0A", "02004D0A")
"""The addresses as the kernel writes them."""


@pytest.fixture
def hosts():
    """The names of two namespaces that are joined by the interfaces veth0."""
    with contextlib.ExitStack() as stack:
        try:
            names = stack.enter_context(machines())
        except OSError as error:
            pytest.skip(str(error))
        yield names


@pytest.mark.parametrize("command", ["run", "resume"])
def test_help_says_how_long_a_cut_is_survived(command):
    done = CliRunner().invoke(app, [command, "--help"], terminal_width=160, color=False)
    text = " ".join(done.stdout.replace("│", " ").split())
    assert "cut for less than half as long does no harm" in text, text


def test_a_run_on_two_machines_survives_a_link_that_is_cut_for_almost_half_the_timeout(hosts, tmp_path):
    file, results = write_config(tmp_path / "run.toml", iterations=100), tmp_path / "results"
    slow = trouble(tmp_path / "slow", SLOW)

    def link(state):
        ip("-n", hosts[0], "link", "set", "veth0", state)

    with commands(tmp_path) as start:
        here("run", file, "-o", tmp_path / "undisturbed", "--exact")
        torchrun = ("torchrun", "--nnodes", 2, "--master-addr", ADDRESSES[0], "--master-port", 29500)
        run = ("-m", "proxdasa", "run", file, "-o", results, "--exact", "--checkpoint-every", 1)
        options = ("--interface", "veth0", "--timeout", TIMEOUT)
        both = [
            start(*torchrun, "--node-rank", number, *run, *options, env=slow, network=host)
            for number, host in enumerate(hosts)
        ]
        both[1].until(lambda: both[0].poll() is not None or newest(results) >= 5)
        heard = [listeners(pid) for command in both for pid in command.workers()]
        assert heard == [{address} for address in AS_WRITTEN]

        # TCP sends again after intervals that double, so at the latest as long after the cut as that has lasted.
        link("down")
        time.sleep(CUT)
        k = newest(results)
        link("up")
        both[0].until(lambda: newest(results) > k + 2)

        link("down")
        for command in both:
            command.until(lambda command=command: "silent for" in command.text())
        link("up")  # for torchrun, whose two halves would wait for each other
        first, second = [command.ended(1) for command in both]
        told = rf"error: agent {{}} has no message from agent {{}} in iteration \d+: silent for {TIMEOUT} s\n"
        assert re.search(told.format("[0-2]", "[3-5]"), first), first
        assert re.search(told.format("[3-5]", "[0-2]"), second), second
        assert newest(results) < 100

        here("resume", results)
    check_same(results, tmp_path / "undisturbed")
