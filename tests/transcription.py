"""The papers' pseudo-code in plain NumPy, agent by agent, independent of the library.

Written from the papers' algorithms, line by line, in their order and with loops where the papers have loops. Nothing
here is fast, shared or clever; that is the point. ``grad(i, x, k, sample)`` is ∇G_i(x, ξ) at a named sample and
``grad.full(i, x)`` is ∇F_i(x). Each returns what it carries after K iterations, as far as the library carries the same.
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


def prox_dasa(W, mix, m, prox, grad, x0, K, gamma, alpha):
    """Algorithm 1; the sample named k is the paper's ξ^{k+1}."""
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


def prox_dasa_gt(W, mix, m, prox, grad, x0, K, gamma, alpha):
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


def dpsgd(W, mix, m, prox, grad, x0, K, gamma):
    n = len(x0)
    x = [np.array(row) for row in x0]
    for k in range(K):
        mixed = mix(W, x, m)
        x = [prox(mixed[i] - gamma * grad(i, x[i], k), gamma) for i in range(n)]
    return {"x": np.array(x)}


def dprox_sgt(W, mix, m, prox, grad, x0, K, gamma):
    """y⁰ = mix(g⁰); x⁺ = prox(mix(x) − γ y); y⁺ = mix(y + g⁺ − g)."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    g = [grad(i, x[i], 0) for i in range(n)]
    y = mix(W, g, m)
    for k in range(K):
        mixed = mix(W, x, m)
        x = [prox(mixed[i] - gamma * y[i], gamma) for i in range(n)]
        g_new = [grad(i, x[i], k + 1) for i in range(n)]
        y = mix(W, [y[i] + g_new[i] - g[i] for i in range(n)], m)
        g = g_new
    return {"x": np.array(x)}


def cdprox_sgt(W, mix, m, prox, grad, x0, K, gamma):
    """y = mix(y + g⁺ − g); x = mix(prox(x − γ y)), from y = g = 0."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    y, g = ([np.zeros_like(row) for row in x] for _ in range(2))
    for k in range(K):
        g_new = [grad(i, x[i], k) for i in range(n)]
        y = mix(W, [y[i] + g_new[i] - g[i] for i in range(n)], m)
        x = mix(W, [prox(x[i] - gamma * y[i], gamma) for i in range(n)], m)
        g = g_new
    return {"x": np.array(x), "y": np.array(y), "g": np.array(g)}


def cdprox_sgt_compressed(W, Q, prox, grad, x0, K, gamma, gamma_y, gamma_x):
    """CDProxSGT with its copies; ``Q(i, v, k, which)`` compresses what agent i sends of y (0) or x (1) in step k."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    y, g, y_hat, x_hat = ([np.zeros_like(row) for row in x] for _ in range(4))
    for k in range(K):
        for i in range(n):
            g_new = grad(i, x[i], k)
            y[i], g[i] = y[i] + g_new - g[i], g_new
        for i in range(n):
            y_hat[i] = y_hat[i] + Q(i, y[i] - y_hat[i], k, 0)
        for i in range(n):
            y[i] = y[i] + gamma_y * sum(W[i, j] * (y_hat[j] - y_hat[i]) for j in range(n))
            x[i] = prox(x[i] - gamma * y[i], gamma)
        for i in range(n):
            x_hat[i] = x_hat[i] + Q(i, x[i] - x_hat[i], k, 1)
        for i in range(n):
            x[i] = x[i] + gamma_x * sum(W[i, j] * (x_hat[j] - x_hat[i]) for j in range(n))
    return {"x": np.array(x), "y": np.array(y), "g": np.array(g)}


def pg_extra(W, mix, m, prox, grad, x0, K, gamma):
    """h = mix(x⁰) − γ g⁰, x¹ = prox(h); then h⁺ = mix(x⁺) + h − ½(x + mix(x)) − γ (g⁺ − g), x⁺⁺ = prox(h⁺)."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    g = [grad(i, x[i], 0) for i in range(n)]
    mixed = mix(W, x, m)
    half = [mixed[i] - gamma * g[i] for i in range(n)]
    x_new = [prox(half[i], gamma) for i in range(n)]
    for k in range(1, K):
        g_new = [grad(i, x_new[i], k) for i in range(n)]
        mixed_new = mix(W, x_new, m)
        half = [mixed_new[i] + half[i] - 0.5 * (x[i] + mixed[i]) - gamma * (g_new[i] - g[i]) for i in range(n)]
        x, g, mixed = x_new, g_new, mixed_new
        x_new = [prox(half[i], gamma) for i in range(n)]
    return {"x": np.array(x_new)}


def next_(W, mix, m, prox, grad, x0, K, gamma, alpha):
    """y⁰ = g⁰; x̃ = prox(x − γ y); x⁺ = mix(x + α (x̃ − x)); y⁺ = mix(y) + g⁺ − g."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    g = [grad(i, x[i], 0) for i in range(n)]
    y = [np.array(row) for row in g]
    for k in range(K):
        best = [prox(x[i] - gamma * y[i], gamma) for i in range(n)]
        x = mix(W, [x[i] + alpha(k) * (best[i] - x[i]) for i in range(n)], m)
        g_new = [grad(i, x[i], k + 1) for i in range(n)]
        mixed = mix(W, y, m)
        y = [mixed[i] + g_new[i] - g[i] for i in range(n)]
        g = g_new
    return {"x": np.array(x)}


def d2(W, mix, m, prox, grad, x0, K, gamma):
    """x¹ = mix(x⁰ − γ g⁰), then x⁺ = mix(2x − x_prev − γ (g − g_prev))."""
    n = len(x0)
    x_prev = [np.array(row) for row in x0]
    g_prev = [grad(i, x_prev[i], 0) for i in range(n)]
    x = mix(W, [x_prev[i] - gamma * g_prev[i] for i in range(n)], m)
    for k in range(1, K):
        g = [grad(i, x[i], k) for i in range(n)]
        x_next = mix(W, [2 * x[i] - x_prev[i] - gamma * (g[i] - g_prev[i]) for i in range(n)], m)
        x_prev, x, g_prev = x, x_next, g
    return {"x": np.array(x)}


def prox_gt(W, mix, m, prox, x0, K, gamma, estimate):
    """The framework: y⁰ = 0, v^{−1} = 0; ``estimate(i, k, x, x_prev, v_prev)`` is the estimator of one agent."""
    n = len(x0)
    x = x_prev = [np.array(row) for row in x0]
    y = [np.zeros_like(row) for row in x]
    v_prev = [np.zeros_like(row) for row in x]
    for k in range(K):
        v = [estimate(i, k, x[i], x_prev[i], v_prev[i]) for i in range(n)]
        y = mix(W, [y[i] + v[i] - v_prev[i] for i in range(n)], m)
        x_next = mix(W, [prox(x[i] - gamma * y[i], gamma) for i in range(n)], m)
        x_prev, x, v_prev = x, x_next, v
    return {"x": np.array(x)}


def prox_gt_sa(W, mix, m, prox, grad, x0, K, gamma, batch):
    def estimate(i, k, x, x_prev, v_prev):
        return np.mean([grad(i, x, k * batch + j) for j in range(batch)], axis=0)

    return prox_gt(W, mix, m, prox, x0, K, gamma, estimate)


def prox_gt_sr_o(W, mix, m, prox, grad, x0, K, gamma, period, restart_batch, batch):
    def estimate(i, k, x, x_prev, v_prev):
        if k % period == 0:
            return np.mean([grad(i, x, k * restart_batch + j, 1) for j in range(restart_batch)], axis=0)
        names = range(k * batch, k * batch + batch)
        return v_prev + sum(grad(i, x, name) - grad(i, x_prev, name) for name in names) / batch

    return prox_gt(W, mix, m, prox, x0, K, gamma, estimate)


def prox_gt_sr_e(W, mix, m, prox, grad, x0, K, gamma, period, batch):
    def estimate(i, k, x, x_prev, v_prev):
        if k % period == 0:
            return grad.full(i, x)
        names = range(k * batch, k * batch + batch)
        return v_prev + sum(grad(i, x, name) - grad(i, x_prev, name) for name in names) / batch

    return prox_gt(W, mix, m, prox, x0, K, gamma, estimate)


def deepstorm(W, mix, m, prox, x0, K, alpha, beta, grad, d0, fresh):
    """DEEPSTORM with β_k = 1 − α_{k+1}/α_k + b α_{k+1}²; ``fresh(i, k, x)`` is ṽ for the iterate number k."""
    n = len(x0)
    x = [np.array(row) for row in x0]
    d = [d0(i, x[i]) for i in range(n)]
    y = mix(W, d, m)
    for k in range(K):
        beta_k = 1 - alpha(k + 1) / alpha(k) + beta * alpha(k + 1) ** 2
        mixed = mix(W, x, m)
        x_new = [prox(mixed[i] - alpha(k) * y[i], alpha(k)) for i in range(n)]
        d_new = []
        for i in range(n):
            moved = d[i] + grad(i, x_new[i], k + 1) - grad(i, x[i], k + 1)
            d_new.append((1 - beta_k) * moved + beta_k * fresh(i, k + 1, x_new[i]))
        y = mix(W, [y[i] + d_new[i] - d[i] for i in range(n)], m)
        x, d = x_new, d_new
    return {"x": np.array(x), "d": np.array(d)}


def deepstorm_v2(W, mix, m, prox, grad, x0, K, alpha, beta, initial_batch):
    def d0(i, x):
        return np.mean([grad(i, x, j, 2) for j in range(initial_batch)], axis=0)

    def fresh(i, k, x):
        return grad(i, x, k)

    return deepstorm(W, mix, m, prox, x0, K, alpha, beta, grad, d0, fresh)


def deepstorm_v1(W, mix, m, prox, grad, x0, K, alpha, beta, initial_batch):
    def d0(i, x):
        return np.mean([grad(i, x, j, 2) for j in range(initial_batch)], axis=0)

    def fresh(i, k, x):
        return grad(i, x, k, 1)

    return deepstorm(W, mix, m, prox, x0, K, alpha, beta, grad, d0, fresh)


def deepstorm_v1_svrg(W, mix, m, prox, grad, x0, K, alpha, beta, snapshot):
    points = {}  # agent: x̂

    def d0(i, x):
        points[i] = x
        return grad.full(i, x)

    def fresh(i, k, x):
        if k % snapshot == 0:
            points[i] = x
        return grad(i, x, k, 1) - grad(i, points[i], k, 1) + grad.full(i, points[i])

    return deepstorm(W, mix, m, prox, x0, K, alpha, beta, grad, d0, fresh)


def sppdm(W, mix, m, prox, grad, x0, K, gamma, c, kappa, beta, alpha, momentum):
    """On the unweighted graph: neither ``mix`` nor the values of W are used."""
    n = len(x0)
    neighbours = [[j for j in range(n) if j != i and W[i, j] != 0] for i in range(n)]
    x = x_prev = z = [np.array(row) for row in x0]
    p = [np.zeros_like(row) for row in x]
    for k in range(K):
        x_next = []
        for i in range(n):
            degree, others = len(neighbours[i]), sum((x[j] for j in neighbours[i]), np.zeros_like(x[i]))
            phi = gamma + 2 * c * degree + kappa
            p[i] = p[i] + alpha * (degree * x[i] - others)
            s = x[i] + (momentum(k) if momentum else 0.0) * (x[i] - x_prev[i])
            point = gamma * s + c * (degree * x[i] + others) + kappa * z[i] - grad(i, s, k) - p[i]
            x_next.append(prox(point / phi, 1 / phi))
        z = [z[i] + beta * (x_next[i] - z[i]) for i in range(n)]
        x_prev, x = x, x_next
    return {"x": np.array(x), "p": np.array(p), "w": np.array(z)}


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
