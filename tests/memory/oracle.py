"""The paper's theorems and its bound, written out in NumPy with loops over frames and clusters, for one episode.

Nothing is shared with the library, and nothing is clever: covariances are full matrices, KL divergences are those of
vectorised Gaussians. Letters as in the paper: z [T, C], R [H, K, C], U [H, K, K], mu_b [H, C], Sigma_b [H, C, C],
theta [T, H], mu_w [T, H, K], Sigma_w [H, K, K], sigma2 = sigma_z^2; C.1 to C.3 have no H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.linalg import inv, slogdet


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


# --- Theorem C.1: Gaussian addresses, sigma_z = 1 -------------------------------------------------------------------


def c1_weights(z, R, U):
    K, C = R.shape
    Sigma_w = inv(R @ R.T + np.eye(K) + C * U)
    return np.array([Sigma_w @ R @ z_t for z_t in z]), Sigma_w


def c1_rows(z, mu_w, Sigma_w, R0, U0):
    precision, linear = inv(U0), inv(U0) @ R0
    for z_t, mu in zip(z, mu_w, strict=True):
        precision = precision + np.outer(mu, mu) + Sigma_w
        linear = linear + np.outer(mu, z_t)
    return inv(precision) @ linear, inv(precision)


# --- Theorem C.2: categorical addresses, sigma_z = 1 ----------------------------------------------------------------


def c2_assignments(z, R, U):
    C = R.shape[1]
    return np.array([softmax(-0.5 * np.diag(R @ R.T + C * U) + R @ z_t) for z_t in z])


def c2_rows(z, theta, R0, U0):
    precision, linear = inv(U0), inv(U0) @ R0
    for z_t, theta_t in zip(z, theta, strict=True):
        precision = precision + np.diag(theta_t)
        linear = linear + np.outer(theta_t, z_t)
    return inv(precision) @ linear, inv(precision)


# --- Theorem C.3: Gaussian addresses, mean-shifted ------------------------------------------------------------------


def c3_location(z, R, mu_w, mu_b0, Sigma_b0, sigma2):
    T, C = z.shape
    Sigma_b = inv(inv(Sigma_b0) + T / sigma2 * np.eye(C))
    residual = np.zeros(C)
    for z_t, mu in zip(z, mu_w, strict=True):
        residual = residual + z_t - R.T @ mu
    return Sigma_b @ (inv(Sigma_b0) @ mu_b0 + residual / sigma2), Sigma_b


def c3_weights(z, R, U, mu_b, sigma2):
    K, C = R.shape
    Sigma_w = inv(np.eye(K) + R @ R.T / sigma2 + C * U / sigma2)
    return np.array([Sigma_w @ R @ (z_t - mu_b) / sigma2 for z_t in z]), Sigma_w


def c3_rows(z, mu_w, Sigma_w, mu_b, R0, U0, sigma2):
    precision, linear = inv(U0), inv(U0) @ R0
    for z_t, mu in zip(z, mu_w, strict=True):
        precision = precision + (np.outer(mu, mu) + Sigma_w) / sigma2
        linear = linear + np.outer(mu, z_t - mu_b) / sigma2
    return inv(precision) @ linear, inv(precision)


# --- Theorem C.4: the scalable mixture; R0 [H, K, C], U0 [H, K, K], mu_b0 [H, C], Sigma_b0 [H, C, C] ----------------


def c4_logits(z, R, U, mu_b, Sigma_b, mu_w, Sigma_w, sigma2):
    """What the theorem puts into the softmax, [T, H], for any q(w|s)."""
    T, (H, _, C) = len(z), R.shape
    logits = np.zeros((T, H))
    for t in range(T):
        for h in range(H):
            gram, mu = R[h] @ R[h].T + C * U[h], mu_w[t, h]
            square = mu @ gram @ mu + np.trace(gram @ Sigma_w[h]) + mu_b[h] @ mu_b[h] + np.trace(Sigma_b[h])
            logits[t, h] = (
                -0.5 * square / sigma2
                + mu @ R[h] @ (z[t] - mu_b[h]) / sigma2
                + mu_b[h] @ z[t] / sigma2
                + 0.5 * slogdet(Sigma_w[h])[1]
                - 0.5 * (mu @ mu + np.trace(Sigma_w[h]))
            )
    return logits


def c4_assignments(*arguments):
    return np.array([softmax(logits) for logits in c4_logits(*arguments)])


def c4_locations(z, theta, R, mu_w, mu_b0, Sigma_b0, sigma2):
    (T, C), H = z.shape, len(R)
    mu_b, Sigma_b = np.zeros((H, C)), np.zeros((H, C, C))
    for h in range(H):
        precision, linear = inv(Sigma_b0[h]), inv(Sigma_b0[h]) @ mu_b0[h]
        for t in range(T):
            precision = precision + theta[t, h] * np.eye(C) / sigma2
            linear = linear + theta[t, h] * (z[t] - R[h].T @ mu_w[t, h]) / sigma2
        Sigma_b[h] = inv(precision)
        mu_b[h] = Sigma_b[h] @ linear
    return mu_b, Sigma_b


def c4_weights(z, R, U, mu_b, sigma2):
    T, (H, K, C) = len(z), R.shape
    mu_w, Sigma_w = np.zeros((T, H, K)), np.zeros((H, K, K))
    for h in range(H):
        Sigma_w[h] = inv(np.eye(K) + R[h] @ R[h].T / sigma2 + C * U[h] / sigma2)
        for t in range(T):
            mu_w[t, h] = Sigma_w[h] @ R[h] @ (z[t] - mu_b[h]) / sigma2
    return mu_w, Sigma_w


def c4_rows(z, theta, mu_w, Sigma_w, mu_b, R0, U0, sigma2):
    T, (H, K, C) = len(z), R0.shape
    R, U = np.zeros((H, K, C)), np.zeros((H, K, K))
    for h in range(H):
        precision, linear = inv(U0[h]), inv(U0[h]) @ R0[h]
        for t in range(T):
            precision = precision + theta[t, h] * (np.outer(mu_w[t, h], mu_w[t, h]) + Sigma_w[h]) / sigma2
            linear = linear + theta[t, h] * np.outer(mu_w[t, h], z[t] - mu_b[h]) / sigma2
        U[h] = inv(precision)
        R[h] = U[h] @ linear
    return R, U


# --- The bound (appendix A), for any q ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """The prior of every cluster. Sigma_b0 is None for a memory without locations."""

    sigma2: float
    R0: np.ndarray  # [H, K, C]
    U0: np.ndarray  # [H, K, K]
    mu_b0: np.ndarray  # [H, C]
    Sigma_b0: np.ndarray | None  # [H, C, C]


@dataclass(frozen=True)
class Factors:
    """q(M), q(b), q(s) and q(w|s)."""

    R: np.ndarray
    U: np.ndarray
    mu_b: np.ndarray
    Sigma_b: np.ndarray
    theta: np.ndarray
    mu_w: np.ndarray
    Sigma_w: np.ndarray


def gaussian_kl(mean, cov, mean_0, cov_0):
    shift = mean_0 - mean
    return 0.5 * (
        np.trace(inv(cov_0) @ cov) + shift @ inv(cov_0) @ shift - len(mean) + slogdet(cov_0)[1] - slogdet(cov)[1]
    )


def expected_square(q: Factors, z_t, t, h):
    """E |z - M_h'w - b_h|^2, coordinate by coordinate: squared mean plus variance of a product of Gaussians."""
    total, mu, Sigma, U = 0.0, q.mu_w[t, h], q.Sigma_w[h], q.U[h]
    for c in range(len(z_t)):
        row = q.R[h][:, c]
        mean = z_t[c] - row @ mu - q.mu_b[h, c]
        total += mean**2 + mu @ U @ mu + row @ Sigma @ row + np.trace(U @ Sigma) + q.Sigma_b[h][c, c]
    return total


def bound(z, q: Factors, model: Model, code_var=None) -> dict[str, float]:
    (T, C), (H, K, _), s2 = z.shape, q.R.shape, model.sigma2
    log_likelihood = kl_codes = kl_assignments = kl_weights = kl_rows = kl_locations = 0.0
    for t in range(T):
        for h in range(H):
            theta, square = q.theta[t, h], expected_square(q, z[t], t, h)
            log_likelihood += theta * (-0.5 * C * np.log(2 * np.pi * s2) - 0.5 * square / s2)
            if code_var is not None:
                v = code_var[t]
                kl_codes += theta * 0.5 * (v.sum() / s2 + square / s2 - C + C * np.log(s2) - np.log(v).sum())
            kl_assignments += theta * np.log(theta * H)
            kl_weights += theta * gaussian_kl(q.mu_w[t, h], q.Sigma_w[h], np.zeros(K), np.eye(K))
    for h in range(H):
        vec_0, vec_cov_0 = model.R0[h].T.ravel(), np.kron(np.eye(C), model.U0[h])
        kl_rows += gaussian_kl(q.R[h].T.ravel(), np.kron(np.eye(C), q.U[h]), vec_0, vec_cov_0)
        if model.Sigma_b0 is not None:
            kl_locations += gaussian_kl(q.mu_b[h], q.Sigma_b[h], model.mu_b0[h], model.Sigma_b0[h])
    first = {"log_likelihood": log_likelihood} if code_var is None else {"kl_codes": kl_codes}
    rest = {"kl_assignments": kl_assignments, "kl_weights": kl_weights, "kl_rows": kl_rows}
    return first | rest | {"kl_locations": kl_locations}


# --- From a library object to the letters above ---------------------------------------------------------------------


def models(memory) -> list[Model]:
    """The prior of each partition, from the memory's constructor arguments."""
    config, G = memory.config(), memory.partitions
    C, K, H = memory.code_size // G, memory.rows, memory.clusters
    sigma2 = float(config["noise_var"])
    R0 = np.broadcast_to(np.asarray(config["row_mean"]), (K, G * C))
    if memory.kind == "categorical":
        u0 = np.broadcast_to(np.asarray(config["row_var"]), (K,))
        return [Model(sigma2, np.zeros((K, 0, C)), np.zeros((K, 0, 0)), R0, np.array([u * np.eye(C) for u in u0]))]
    U0 = np.asarray(config["row_var"]) * (np.eye(K) if np.ndim(config["row_var"]) == 0 else 1.0)
    mu_b0 = np.broadcast_to(np.asarray(config.get("loc_mean", 0.0)), (G * C,))
    Sigma_b0 = np.array([float(config["loc_var"]) * np.eye(C)] * H) if "loc_var" in config else None
    pieces = [slice(g * C, (g + 1) * C) for g in range(G)]
    return [
        Model(sigma2, np.array([R0[:, piece]] * H), np.array([U0] * H), np.array([mu_b0[piece]] * H), Sigma_b0)
        for piece in pieces
    ]


def episodes(problem) -> Iterator[tuple[tuple[int, ...], np.ndarray, Factors, Model]]:
    """Index, codes, q and prior of every episode, and of every partition of a tree, in a `zoo.Problem`."""
    memory, state, addresses = problem.memory, problem.state, problem.addresses
    tree = memory.kind == "tree"
    C = memory.code_size // memory.partitions
    for index in np.ndindex(*state.loc_var.shape[:-1]):
        g = index[-1] if tree else 0
        codes = problem.codes[index[:-1] if tree else index].numpy()
        q = Factors(
            R=state.row_mean[index].numpy(),
            U=state.row_cov[index].numpy(),
            mu_b=state.loc_mean[index].numpy(),
            Sigma_b=np.array([v * np.eye(C) for v in state.loc_var[index].numpy()]),
            theta=addresses.assignment[index].numpy(),
            mu_w=addresses.weight_mean[index].numpy(),
            Sigma_w=addresses.weight_cov[index].numpy(),
        )
        yield index, codes[:, g * C : (g + 1) * C], q, models(memory)[g]
