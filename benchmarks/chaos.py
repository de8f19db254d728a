"""``make chaos``: runs that are disturbed at random moments must end with the bits of an undisturbed one.

torchrun restarts every tenth run, and ``--max-restarts`` the others. Each writes a checkpoint in every iteration and
suffers up to two faults: a process is killed, often while it writes a checkpoint, or its terminal is closed (SIGHUP),
after which the run is resumed. For every fifth run the disk then seems full the first time that it saves its results.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.processes import check_same, commands, disturb, newest, trouble, write_config

from proxdasa.exit_codes import Code

ITERATIONS, FAULTS = 60, 2
FULL = """
from pathlib import Path
from proxdasa.runs.results import Result
right = Result.save
def save(self, *words, **options):
    if not Path({mark!r}).exists():
        Path({mark!r}).touch()
        raise OSError(28, "No space left on device")
    return right(self, *words, **options)
Result.save = save
"""
"""A script that makes the disk seem full when results are first written."""


def disturbed(seed: int, file: Path, folder: Path, undisturbed: Path) -> tuple[bool, list[str]]:
    """Whether the disturbed run ended with the same bits, its faults, and its output if the bits differ."""
    rng, results = random.Random(seed), folder / "results"
    run = ("run", file, "-o", results, "--exact", "--checkpoint-every", 1)
    size, deeds = rng.choice([2, 3, 4]), []
    full = seed % 5 == 3
    env = trouble(folder / "trouble", FULL.format(mark=str(folder / "full"))) if full else {}
    restarts = ("--max-restarts", FAULTS + full)
    with commands(folder) as start:
        if seed % 10 == 9:
            options = ("--standalone", "--nproc-per-node", size, *restarts)
            command = start("torchrun", *options, "-m", "proxdasa", *run, env=env)
        else:
            command = start("proxdasa", *run, "--processes", size, *restarts, env=env)
        try:
            number = signal.SIGKILL
            while len(deeds) < FAULTS and number == signal.SIGKILL and command.poll() is None:
                number = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGHUP])
                deeds.append(disturb(command, results, rng, ITERATIONS, number))
            if command.wait() == Code.INTERRUPTED:
                words = ("resume", results) if newest(results) >= 0 else (*run, "--overwrite")
                command = start("proxdasa", *words, "--processes", size, *restarts, env=env)
            command.ended()
            check_same(results, undisturbed)
        except (AssertionError, OSError) as error:
            return False, [*deeds, f"{type(error).__name__}: {error}", command.text()]
    return True, [*deeds, *["full disk"] * full]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="that of the first run; the others follow it")
    given = parser.parse_args()
    began, failed = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="proxdasa-chaos-") as name:
        folder = Path(name)
        file = write_config(folder / "run.toml", iterations=ITERATIONS, observe_every=20)
        with commands(folder) as start:
            start("proxdasa", "run", file, "-o", folder / "undisturbed", "--exact").ended()
        for seed in range(given.seed, given.seed + given.runs):
            (folder / str(seed)).mkdir()
            same, told = disturbed(seed, file, folder / str(seed), folder / "undisturbed")
            failed += [] if same else [seed]
            print(f"seed {seed}: {'same bits' if same else 'FAILED'}; {'; '.join(told)}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{given.runs - len(failed)} of {given.runs} runs ended with the same bits, in {minutes:.1f} minutes")
    if failed:
        print(
            f"failed: seeds {', '.join(map(str, failed))}; to repeat one: python -m benchmarks.chaos --runs 1 --seed N"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
