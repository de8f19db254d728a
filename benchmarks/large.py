"""Rings of many agents: seconds in all, seconds of iterating, and the peak of memory, each in a process of its own.

``python -m benchmarks.large``; a part of ``make bench``. Phase retrieval with d = 100 and ten evaluation points per
agent, eight iterations of Prox-DASA, observed after each of them.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.timing import show

AGENTS = (64, 1_024, 16_384, 131_072)
PROGRAM = """
import json, resource, sys, time
began = time.perf_counter()
import proxdasa
from proxdasa import networks, problems
n = int(sys.argv[1])
problem = problems.PhaseRetrieval(agents=n, dim=100, evaluation=10)
result = proxdasa.run(proxdasa.ProxDASA(gamma=1e-3, alpha=0.1), problem, networks.ring(n), iterations=8)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
print(json.dumps([time.perf_counter() - began, result.records[-1]["seconds"], peak, result.records[-1]["loss"]]))
"""


def large() -> None:
    rows = []
    for n in AGENTS:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(n)], capture_output=True, text=True, check=True)
        seconds, iterating, peak, _ = json.loads(done.stdout)
        rows.append([f"{n:,}", f"{seconds:.1f}", f"{iterating:.2f}", f"{peak:.0f}"])
    title = "rings of many agents, 8 iterations; aims for the last: ≤ 20 s in all, ≤ 2,000 MB"
    show(title, ["agents", "seconds in all", "of iterating", "peak, MB"], rows)


if __name__ == "__main__":
    large()
