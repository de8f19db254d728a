"""The paper's pseudo-code in plain NumPy, agent by agent, independent of the library.

Written from Algorithms 1, 2 and 3 of the paper, line by line and with loops where the paper has loops. Nothing here
is fast, shared or clever; that is the point.
"""

import numpy as np


def gossip(W, rows, m):
    for _ in range(m):
        stacked = np.array(rows)
        rows = [W[i] @ stacked for i in range(len(rows))]
    return rows


def chebyshev(W, rows, m):
    """Algorithm 3 with its own μ_t, which may overflow for large m; the tests use small m."""
    eigenvalues = np.sort(np.linalg.eigvalsh(W))
    rho = max(abs(eigenvalues[0]), abs(eigenvalues[-2]))
    A = [rows, gossip(W, rows, 1)]
    mu = [1.0, 1.0 / rho]
    for t in range(1, m):
        mu.append(2.0 / rho * mu[t] - mu[t - 1])
        WA = gossip(W, A[t], 1)
        A.append(
            [2 * mu[t] / (rho * mu[t + 1]) * wa - mu[t - 1] / mu[t + 1] * a for wa, a in zip(WA, A[t - 1], strict=True)]
        )
    return A[m]


def prox_dasa(W, mix, m, prox, grad, gamma, alpha, x0, K):
    """Algorithm 1. ``grad(i, x, k)`` is ∇G_i(x, ξ_i^{k+1}); returns the rows x and z after K iterations."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    z = [np.zeros_like(row) for row in x]
    for k in range(K):
        x_tilde, z_tilde = [], []
        for i in range(n):
            y = prox(x[i] - gamma * z[i], gamma)
            x_tilde.append((1 - alpha(k)) * x[i] + alpha(k) * y)
            v = grad(i, x[i], k)
            z_tilde.append((1 - alpha(k)) * z[i] + alpha(k) * v)
        x, z = mix(W, x_tilde, m), mix(W, z_tilde, m)
    return {"x": np.array(x), "z": np.array(z)}


def prox_dasa_gt(W, mix, m, prox, grad, gamma, alpha, x0, K):
    """Algorithm 2, with v⁰ = 0."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    z, u, v = ([np.zeros_like(row) for row in x] for _ in range(3))
    for k in range(K):
        x_tilde, u_tilde, z_tilde = [], [], []
        for i in range(n):
            y = prox(x[i] - gamma * z[i], gamma)
            x_tilde.append((1 - alpha(k)) * x[i] + alpha(k) * y)
            v_new = grad(i, x[i], k)
            u_tilde.append(u[i] + v_new - v[i])
            v[i] = v_new
            z_tilde.append((1 - alpha(k)) * z[i] + alpha(k) * u_tilde[i])
        x, u, z = mix(W, x_tilde, m), mix(W, u_tilde, m), mix(W, z_tilde, m)
    return {"x": np.array(x), "z": np.array(z), "u": np.array(u), "v": np.array(v)}


def prox_l1(weight):
    def prox(x, gamma):
        return np.sign(x) * np.maximum(np.abs(x) - gamma * weight, 0.0)

    return prox


def prox_box(lower, upper):
    return lambda x, gamma: np.minimum(np.maximum(x, lower), upper)


def prox_group(weight, size):
    def prox(x, gamma):
        blocks = []
        for start in range(0, len(x), size):
            block = x[start : start + size]
            norm = np.linalg.norm(block)
            blocks.append(max(0.0, 1.0 - gamma * weight / norm) * block if norm > 0 else block)
        return np.concatenate(blocks)

    return prox


def prox_zero(x, gamma):
    return x
