"""Seconds and peak memory of runs with many agents and with large models, each in a process of its own.

``python -m benchmarks.large``; a part of ``make bench``. Many agents: phase retrieval on rings with d = 100 and ten
evaluation points per agent, eight iterations of Prox-DASA, observed after each of them. Large models: a linear layer of
up to 11 million parameters, eight agents, four iterations; the peak is compared with the state of all agents.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

from benchmarks.timing import show

AGENTS = (64, 1_024, 16_384, 131_072)
MEMORY = """
def memory(kind):
    # Not what getrusage says, which begins with the peak of the process that started this one.
    return int(open("/proc/self/status").read().partition(kind + ":")[2].split()[0]) * 2**10
"""
PROGRAM = f"""{MEMORY}
import json, sys, time
began = time.perf_counter()
import proxdasa
from proxdasa import networks, problems
n = int(sys.argv[1])
problem = problems.PhaseRetrieval(agents=n, dim=100, evaluation=10)
result = proxdasa.run(proxdasa.ProxDASA(gamma=1e-3, alpha=0.1), problem, networks.ring(n), iterations=8)
peak = memory("VmHWM") / 2**20
print(json.dumps([time.perf_counter() - began, result.records[-1]["seconds"], peak, result.records[-1]["loss"]]))
"""

PARAMETERS = (1_100_000, 11_000_000)
LARGE_MODEL = f"""{MEMORY}
import json, sys, time
import torch
import proxdasa
from proxdasa import data, networks, problems, regularizers
outputs = int(sys.argv[1]) // 1_001
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(64, 1_000, generator=generator), torch.randint(0, outputs, (64,), generator=generator)
model = lambda *_: torch.nn.Sequential(torch.nn.Linear(1_000, outputs))
problem = problems.Supervised(model, data.from_tensors(x, y), agents=8, batch_size=1)
before = memory("VmRSS")
method = getattr(proxdasa, sys.argv[2])(gamma=1e-3, alpha=0.1)
result = proxdasa.run(method, problem, networks.ring(8), regularizer=regularizers.L1(1e-5), iterations=4, compile=False)
peak = memory("VmHWM")
state = sum(rows.nbytes for rows in result.state.values())
print(json.dumps([state / 2**20, (peak - before) / 2**20, result.records[-1]["seconds"]]))
"""


def large() -> None:
    many_agents()
    large_models()


def many_agents() -> None:
    rows = []
    for n in AGENTS:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(n)], capture_output=True, text=True, check=True)
        seconds, iterating, peak, _ = json.loads(done.stdout)
        rows.append([f"{n:,}", f"{seconds:.1f}", f"{iterating:.2f}", f"{peak:.0f}"])
    title = "rings of many agents, 8 iterations; aims for the last: ≤ 20 s in all, ≤ 2,000 MB"
    show(title, ["agents", "seconds in all", "of iterating", "peak, MB"], rows)


def large_models() -> None:
    rows = []
    for method, d in itertools.product(("ProxDASA", "ProxDASAGT"), PARAMETERS):
        program = [sys.executable, "-c", LARGE_MODEL, str(d), method]
        state, peak, seconds = json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout)
        rows.append([method, f"{d:,}", f"{seconds:.1f}", f"{state:.0f}", f"{peak:.0f}", f"{peak / state:.2f}"])
    title = "large models, 8 agents, 4 iterations; aim for the last: peak ≤ 1.3 × state"
    show(title, ["method", "parameters", "seconds of iterating", "state, MB", "peak, MB", "ratio"], rows)


if __name__ == "__main__":
    large()
