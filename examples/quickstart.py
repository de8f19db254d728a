"""The run of quickstart.toml, written in Python.

python examples/quickstart.py
"""

import proxdasa
from proxdasa import networks, problems, regularizers, schedules

result = proxdasa.run(
    proxdasa.ProxDASAGT(gamma=0.1, alpha=schedules.horizon(0.3)),
    problems.PhaseRetrieval(agents=8, dim=50, evaluation=2_000),
    networks.ring(8),
    regularizer=regularizers.L1(0.05),
    mixing=proxdasa.Chebyshev(rounds="auto"),
    iterations=2_500,
    trials=4,
    seed=0,
    observe_every=50,
)

print("iterate of every trial and agent:", list(result.x.shape))
for row in result.last:
    print(f"trial {row['trial']}: loss {row['loss']:.4f}, stationarity {row['stationarity']:.2e}, k = {row['k']}")
    print("    nonzeros of the solution:", result.solution[row["trial"]].nonzero().flatten().tolist())
