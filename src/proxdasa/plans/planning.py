"""The plan of a run: what a network implies for m, α, the transient time and the messages."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxdasa.algorithms import ProxDASA, ProxDASAGT
from proxdasa.checks import check_count, check_positive_number
from proxdasa.contracts import Algorithm, Problem
from proxdasa.descriptions import describe
from proxdasa.engines.messages.halo import HEADER
from proxdasa.mixing import Chebyshev, Gossip
from proxdasa.mixing.gossip import ceil
from proxdasa.mixing.mixing_checks import count_rounds
from proxdasa.networks import Network
from proxdasa.networks.spectrum import DENSE_LIMIT
from proxdasa.plans.sequences import measure_rounds, messages_to_agree
from proxdasa.plans.smoothness import estimate_lipschitz
from proxdasa.plans.theory import bound, conditions, contraction, strictest, varrho

TRACKING: dict[Any, bool] = {ProxDASA: False, ProxDASAGT: True}
"""The methods that the paper's theory covers, and whether they track gradients."""

WORK = 30_000_000
"""The largest product of rows and rounds that is measured, which takes seconds."""


@dataclass(frozen=True)
class MixingPlan:
    """One way to mix, with its predictions.

    Examples:
        >>> one, *_, chebyshev = proxdasa.plan(networks.ring(16), d=100).mixings
        >>> f"{one.measured:.2f} after {one.m} round, {chebyshev.measured:.2f} after {chebyshev.m}"
        '0.95 after 1 round, 0.38 after 5'
        >>> one.vectors, one.megabytes
        (2, 0.001616)
    """

    mixing: str
    """The protocol: gossip or Chebyshev."""
    rule: str
    """The rule that gives m."""
    m: int
    """Communication rounds in an iteration."""
    predicted: float | None
    """The paper's bound on the share of a disagreement that is left: ρ^m (Lemma 3), or 2 (1 − √(1 − ρ))^m (Lemma 1).
    None if the graph changes, which the paper does not cover."""
    measured: float | None
    """The share of the worst disagreement that the protocol leaves: its largest value at the eigenvalues of W. On
    networks of more than 512 agents, the share of a random disagreement, which is less; None where that would take too
    long. If the graph changes, the largest share that the m rounds of any iteration leave."""
    varrho: float | None
    """ϱ(m) (Theorem 1); Chebyshev mixing has its exact contraction 1/T_m(1/ρ) in place of ρ^m. None if the graph
    changes."""
    alpha_limit: float | None
    """The largest α_k that meets the theory's conditions, as far as γ and L are known (Lemmas 7, 8 and 11)."""
    condition: str | None
    """The condition that gives this limit, and its place in the paper."""
    K_0: int | None
    """The number of iterations from which √(n/K) meets the conditions: n/α² for the largest α."""
    K_T: float | None
    """The transient time max{K_0, n³ ϱ(m)}, an order of magnitude: the paper leaves its constant open (Corollary)."""
    vectors: int
    """Vectors that an agent sends to each neighbour in an iteration that sends."""
    megabytes: float | None
    """Megabytes (10⁶ bytes) that an agent sends in such an iteration, on average, if each agent has its own process."""


@dataclass(frozen=True)
class Plan:
    """The plan for a network and a method, with a `MixingPlan` for each way to mix.

    Examples:
        >>> plan = proxdasa.plan(networks.ring(16), K=10_000)
        >>> plan.n, plan.edges, plan.method
        (16, 16, 'Prox-DASA')
        >>> sorted(plan.describe())[:4]
        ['K', 'L', 'L_estimated', 'alpha']
    """

    network: str
    method: str
    n: int
    """The number of agents."""
    edges: int
    degrees: tuple[int, float, int]
    """The smallest, mean and largest number of neighbours of an agent."""
    period: int
    """The number of rounds after which the graph repeats itself; 1 if it does not change."""
    rho: float
    """ρ = max(|λ₂|, |λ_n|) of W (Assumption 1); if the graph changes, the mean rate over a period."""
    gap: float
    """The spectral gap 1 − ρ."""
    messages_to_agree: float
    """Messages that an agent sends, on average, until gossip has reduced the worst disagreement to a tenth; this number
    compares graphs that change with those that do not. Changing graphs of more than 512 agents count whole periods."""
    K: int | None
    """The number of iterations."""
    alpha: float | None
    """min{√(n/K), 1}, the theory's step size for K iterations (Theorem 1); None if the graph changes."""
    gamma: float | None
    """γ as given, or 1/L (Theorem 1), unless the graph changes."""
    L: float | None
    """The Lipschitz constant of the gradients: given, or estimated."""
    L_estimated: bool
    """Whether L is estimated: a lower bound (`estimate_lipschitz`), so that the limits on α may be too large."""
    d: int | None
    """The dimension of x."""
    every: int
    """The number of iterations from one in which agents send to the next."""
    mixings: tuple[MixingPlan, ...]

    def describe(self) -> dict[str, Any]:
        """The plan as plain values, ready for JSON."""
        plain: dict[str, Any] = describe(dataclasses.asdict(self))
        return plain


def plan(
    network: Network,
    method: type[Algorithm] = ProxDASA,
    *,
    K: int | None = None,
    gamma: float | None = None,
    L: float | None = None,
    d: int | None = None,
    dtype: torch.dtype = torch.float32,
    problem: Problem | None = None,
    mixing: Gossip | Chebyshev | None = None,
    every: int = 1,
) -> Plan:
    """Predict how a method behaves on a network, before anything runs.

    The paper's theory is for a graph that does not change. For a graph that changes, a plan contains only what follows
    from its matrices: how fast agents agree and how many messages that takes, but no step sizes or transient times.

    Args:
        network: the graph and its weights, for example ``networks.ring(16)``.
        method: the class of the method; step sizes and transient times are known for Prox-DASA and Prox-DASA-GT.
        K: iterations, for α = √(n/K).
        gamma: γ; if L is known, 1/L by default.
        L: the Lipschitz constant of the gradients. Without it, conditions that need it are ignored.
        d: the dimension, for the size of messages.
        dtype: the floating-point type of the messages.
        problem: gives d and the type, and an estimate of L unless that is given. The estimate is a lower bound and
            takes some full gradients: see `estimate_lipschitz`.
        mixing: a protocol to plan for besides those of the paper's rules.
        every: the number of iterations from one in which agents send to the next, if `Every` or local steps skip some.
            The theory covers only 1.

    Examples:
        >>> plan = proxdasa.plan(networks.ring(16), proxdasa.ProxDASAGT, K=10_000, gamma=0.01)
        >>> plan.alpha, f"{plan.rho:.3f}"
        (0.04, '0.949')
        >>> [(way.mixing, way.m) for way in plan.mixings]
        [('gossip', 1), ('gossip', 11), ('gossip', 20), ('Chebyshev', 5)]
    """
    for name, value in {"gamma": gamma, "L": L}.items():
        if value is not None:
            check_positive_number(value, name)
    for name, count in {"K": K, "d": d, "every": every}.items():
        if count is not None:
            check_count(count, name)
    if problem is not None and problem.agents != network.n:
        raise ValueError(
            f"{network.label} has {network.n} agents, but the problem has {problem.agents}; they must match"
        )
    estimated = problem is not None and L is None
    if problem is not None:
        d, dtype = problem.dim, problem.dtype
        L = estimate_lipschitz(problem) if L is None else L
    changes = bool(network.rounds)
    if gamma is None and L is not None and not changes:
        gamma = 1 / L
    if changes and isinstance(mixing, Chebyshev):
        raise ValueError(
            f"{mixing} is a polynomial of one W, but {network.label} has a different W in each round; use Gossip"
        )
    ways = rules(network)
    if mixing and _protocol(mixing, network) not in (_protocol(way, network) for way in ways.values()):
        count_rounds(mixing, network)
        ways["as given"] = mixing
    covered = method in TRACKING and every == 1
    rows = tuple(_mixing_plan(network, method, rule, way, gamma, L, d, dtype, covered) for rule, way in ways.items())
    degrees = network.degrees
    return Plan(
        network=network.label,
        method=method.facts.title,
        n=network.n,
        edges=len(network.edges),
        degrees=(int(degrees.min()), float(degrees.mean()), int(degrees.max())),
        period=max(len(network.rounds), 1),
        rho=network.rho,
        gap=1 - network.rho,
        messages_to_agree=messages_to_agree(network),
        K=K,
        alpha=None if K is None or changes else min(math.sqrt(network.n / K), 1.0),
        gamma=gamma,
        L=L,
        L_estimated=estimated,
        d=d,
        every=every,
        mixings=rows,
    )


def rules(network: Network) -> dict[str, Gossip | Chebyshev]:
    """The paper's rules for m: one round, ϱ(m) ≤ 1 (Section 4.3), and those of the remark on transient time.

    They are for one W. If the graph changes: one round, and all rounds of a period.
    """
    if network.rounds:
        return {"1": Gossip(1), "a period": Gossip(len(network.rounds))}
    return {
        "1": Gossip(1),
        "⌈log 3/(2(1 − ρ))⌉": Gossip(ceil(math.log(3) / (2 * (1 - network.rho)))),
        "⌈1/(1 − ρ)⌉": Gossip("auto"),
        "⌈1/√(1 − ρ)⌉": Chebyshev("auto"),
    }


def measure(network: Network, mixing: Gossip | Chebyshev) -> float | None:
    """The share of a disagreement that the protocol leaves: the worst one in small networks, a random one in large.

    Mixing is a polynomial in W, so the worst case is its largest value at the eigenvalues of W other than λ₁ = 1.
    """
    if network.n == 1:
        return 0.0
    if network.rounds:
        return measure_rounds(network, mixing.rounds_for(network.rho))
    if mixing.rounds_for(network.rho) * max(network.n, DENSE_LIMIT) > WORK:
        return None
    if network.n <= DENSE_LIMIT:
        λ = torch.from_numpy(np.linalg.eigvalsh(network.W.toarray())[:-1])
        return float(mixing(lambda x: λ * x, torch.ones_like(λ), network.rho).abs().max())
    X = np.random.default_rng(0).standard_normal((network.n, 4))
    x = torch.from_numpy(X - X.mean(axis=0))

    def apply(x: Tensor) -> Tensor:
        return torch.from_numpy(network.W @ x.numpy())

    return float(mixing(apply, x, network.rho).norm() / x.norm())


def _protocol(mixing: Gossip | Chebyshev, network: Network) -> tuple[str, int]:
    """The name of a protocol, and its m."""
    return "Chebyshev" if isinstance(mixing, Chebyshev) else "gossip", mixing.rounds_for(network.rho)


def _mixing_plan(
    network: Network,
    method: type[Algorithm],
    rule: str,
    mixing: Gossip | Chebyshev,
    gamma: float | None,
    L: float | None,
    d: int | None,
    dtype: torch.dtype,
    covered: bool,
) -> MixingPlan:
    rho, facts, (name, m) = network.rho, method.facts, _protocol(mixing, network)
    ϱ = None if network.rounds else varrho(contraction(mixing, rho))
    decisive = strictest(conditions(TRACKING[method], ϱ, gamma, L)) if covered and ϱ is not None else None
    K_0 = None if decisive is None else ceil(network.n / decisive.limit**2)
    rounds = m if facts.mixes else 1
    # Where the graph changes, agents without a link in a round still exchange headers.
    rows, headers = network.messages_per_round * facts.vectors, float(network.degrees.mean()) * HEADER
    return MixingPlan(
        mixing=name,
        rule=rule,
        m=m,
        predicted=None if network.rounds else bound(mixing, rho),
        measured=measure(network, mixing),
        varrho=ϱ,
        alpha_limit=None if decisive is None else decisive.limit,
        condition=None if decisive is None else f"{decisive.text} ({decisive.place})",
        K_0=K_0,
        K_T=None if K_0 is None or ϱ is None else max(K_0, network.n**3 * ϱ),
        vectors=facts.vectors * rounds,
        megabytes=None if d is None else rounds * (rows * d + headers) * dtype.itemsize / 1e6,
    )
