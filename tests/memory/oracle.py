"""The paper's theorems and its bound, written out in NumPy with loops over frames and clusters, for one episode.

Nothing is shared with the library, and nothing is clever: covariances are full matrices, KL divergences are those of
vectorised Gaussians. Letters as in the paper: z [T, C], R [H, K, C], U [H, K, K], mu_b [H, C], Sigma_b [H, C, C],
theta [T, H], mu_w [T, H, K], Sigma_w [H, K, K], sigma2 = sigma_z^2; C.1 to C.3 have no H.

What the paper has not, rows and location as one matrix and noise by feature, comes after its theorems: there
R [H, J, C] and U [H, J, J] hold the location last, psi [H, C] is the noise, and every feature is a linear regression
of its own.
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


# --- Rows and location as one matrix, noise by cluster and feature -------------------------------------------------


@dataclass(frozen=True)
class Model:
    """The prior of every cluster: feature c of the rows is N(R0[:, c], psi_c / s U0), of a code N(., psi_c)."""

    psi: np.ndarray  # [H, C]
    s: float
    R0: np.ndarray  # [H, J, C]
    U0: np.ndarray  # [H, J, J]
    located: bool

    @property
    def sigma2(self) -> float:
        """The one noise of the paper."""
        np.testing.assert_allclose(self.psi, self.s, rtol=1e-14)
        return float(self.psi[0, 0])


@dataclass(frozen=True)
class Factors:
    """q(M, b), feature c of which is N(R[:, c], psi_c / s U), q(s) and q(w|s)."""

    R: np.ndarray  # [H, J, C]
    U: np.ndarray  # [H, J, J]
    theta: np.ndarray
    mu_w: np.ndarray
    Sigma_w: np.ndarray


def apart(R, U):
    """R, U of the factors, and mu_b, Sigma_b of the locations that are the last rows."""
    Sigma_b = np.array([v * np.eye(R.shape[-1]) for v in U[:, -1, -1]])
    return R[:, :-1], U[:, :-1, :-1], R[:, -1], Sigma_b


def extended(q: Factors, t, h, model: Model):
    """Mean and covariance of w~ = (w, 1)."""
    mu, Sigma = q.mu_w[t, h], q.Sigma_w[h]
    if not model.located:
        return mu, Sigma
    return np.append(mu, 1.0), np.pad(Sigma, (0, 1))


def weights(z, q: Factors, model: Model):
    """q(w|s): of all features together, E log p(z_c | w, m_c) is quadratic in w~."""
    T, H, K = q.mu_w.shape
    mu_w, Sigma_w = np.zeros((T, H, K)), np.zeros((H, K, K))
    for h in range(H):
        square = np.zeros_like(q.U[h])
        for c, psi in enumerate(model.psi[h]):
            square = square + (np.outer(q.R[h][:, c], q.R[h][:, c]) + psi / model.s * q.U[h]) / psi
        Sigma_w[h] = inv(np.eye(K) + square[:K, :K])
        for t in range(T):
            linear = sum(q.R[h][:K, c] * z[t, c] / psi for c, psi in enumerate(model.psi[h]))
            mu_w[t, h] = Sigma_w[h] @ (linear - square[:K, K] if model.located else linear)
    return mu_w, Sigma_w


def assignments(z, q: Factors, model: Model):
    """q(s) for any q(w|s)."""
    T, H, K = q.mu_w.shape
    logits = np.zeros((T, H))
    for t in range(T):
        for h in range(H):
            divergence = gaussian_kl(q.mu_w[t, h], q.Sigma_w[h], np.zeros(K), np.eye(K))
            logits[t, h] = expected_log_density(z[t], q, t, h, model) - divergence
    return np.array([softmax(row) for row in logits])


def rows(z, q: Factors, model: Model):
    """q(M, b): a Bayesian linear regression of every feature on w~. Their covariances differ by psi_c / s alone."""
    (T, C), (H, J, _) = z.shape, model.R0.shape
    R, U = np.zeros((H, J, C)), np.zeros((H, J, J))
    for h in range(H):
        for c, psi in enumerate(model.psi[h]):
            prior_precision = inv(psi / model.s * model.U0[h])
            precision, linear = prior_precision, prior_precision @ model.R0[h][:, c]
            for t in range(T):
                mu, Sigma = extended(q, t, h, model)
                precision = precision + q.theta[t, h] * (np.outer(mu, mu) + Sigma) / psi
                linear = linear + q.theta[t, h] * mu * z[t, c] / psi
            R[h, :, c] = inv(precision) @ linear
            scaled = inv(precision) * model.s / psi
            np.testing.assert_allclose(scaled, U[h] if c else scaled, rtol=1e-9, atol=1e-12)
            U[h] = scaled
    return R, U


# --- The bound (appendix A), for any q; the first term of codes that are known, and of codes with a variance --------


def gaussian_kl(mean, cov, mean_0, cov_0):
    shift = mean_0 - mean
    return 0.5 * (
        np.trace(inv(cov_0) @ cov) + shift @ inv(cov_0) @ shift - len(mean) + slogdet(cov_0)[1] - slogdet(cov)[1]
    )


def expected_squares(z_t, q: Factors, t, h, model: Model):
    """E (z_c - m_c'w~)^2 of every feature: squared mean plus variance of a product of Gaussians."""
    mu, Sigma = extended(q, t, h, model)
    squares = np.zeros(len(z_t))
    for c, psi in enumerate(model.psi[h]):
        m, V = q.R[h][:, c], psi / model.s * q.U[h]
        squares[c] = (z_t[c] - m @ mu) ** 2 + mu @ V @ mu + m @ Sigma @ m + np.trace(V @ Sigma)
    return squares


def expected_log_density(z_t, q: Factors, t, h, model: Model):
    squares = expected_squares(z_t, q, t, h, model)
    return -0.5 * sum(np.log(2 * np.pi * psi) + square / psi for psi, square in zip(model.psi[h], squares, strict=True))


def bound(z, q: Factors, model: Model, code_var) -> dict[str, float]:
    T, H, K = q.mu_w.shape
    log_likelihood = kl_codes = kl_assignments = kl_weights = kl_rows = kl_locations = 0.0
    for t in range(T):
        for h in range(H):
            theta, psi = q.theta[t, h], model.psi[h]
            log_likelihood += theta * expected_log_density(z[t], q, t, h, model)
            squares = expected_squares(z[t], q, t, h, model) + code_var[t]
            kl_codes += theta * 0.5 * (squares / psi - 1 + np.log(psi / code_var[t])).sum()
            kl_assignments += theta * np.log(theta * H)
            kl_weights += theta * gaussian_kl(q.mu_w[t, h], q.Sigma_w[h], np.zeros(K), np.eye(K))
    for h in range(H):
        noise = np.diag(model.psi[h]) / model.s
        whole = gaussian_kl(
            q.R[h].T.ravel(), np.kron(noise, q.U[h]), model.R0[h].T.ravel(), np.kron(noise, model.U0[h])
        )
        of_location = 0.0
        if model.located:
            v, v_0 = q.U[h][-1, -1], model.U0[h][-1, -1]
            of_location = gaussian_kl(q.R[h][-1], v * noise, model.R0[h][-1], v_0 * noise)
        kl_rows, kl_locations = kl_rows + whole - of_location, kl_locations + of_location
    first = {"log_likelihood": log_likelihood, "kl_codes": kl_codes}
    rest = {"kl_assignments": kl_assignments, "kl_weights": kl_weights, "kl_rows": kl_rows}
    return first | rest | {"kl_locations": kl_locations}


# --- From a library object to the letters above ---------------------------------------------------------------------


def models(memory) -> list[Model]:
    """The prior of each partition, from the memory's constructor arguments."""
    config, G = memory.config(), memory.partitions
    C, (H, K) = memory.code_size // G, memory.layout
    psi = np.broadcast_to(np.asarray(config["noise_var"]), (H, G * C))
    row_mean, row_var = np.asarray(config["row_mean"]), np.asarray(config["row_var"])
    R0, U0 = np.zeros((H, 0, G * C)), np.zeros((H, 0, 0))
    if memory.kind == "categorical":
        mu_b0, v_b0 = np.broadcast_to(row_mean, (H, C)), np.broadcast_to(row_var, (H,))
    else:
        R0 = np.broadcast_to(row_mean, (H, K, G * C))
        U0 = np.broadcast_to(row_var if row_var.ndim == 2 else row_var * np.eye(K), (H, K, K))
        mu_b0 = np.broadcast_to(np.asarray(config.get("loc_mean", 0.0)), (H, G * C))
        v_b0 = np.broadcast_to(np.asarray(config.get("loc_var", 1.0)), (H,))
    if memory.located:
        R0 = np.concatenate([R0, mu_b0[:, None]], axis=1)
        U0 = np.pad(U0, ((0, 0), (0, 1), (0, 1)))
        U0[:, -1, -1] = v_b0
    pieces = [slice(g * C, (g + 1) * C) for g in range(G)]
    return [Model(psi[:, piece], float(psi.mean()), R0[..., piece], U0, memory.located) for piece in pieces]


def episodes(problem) -> Iterator[tuple[tuple[int, ...], np.ndarray, Factors, Model]]:
    """Index, codes, q and prior of every episode, and of every partition of a tree, in a `zoo.Problem`."""
    memory, state, addresses = problem.memory, problem.state, problem.addresses
    tree = memory.kind == "tree"
    C, priors = memory.code_size // memory.partitions, models(memory)
    for index in np.ndindex(*state.row_mean.shape[:-3]):
        g = index[-1] if tree else 0
        codes = problem.codes[index[:-1] if tree else index].numpy()
        q = Factors(
            R=state.row_mean[index].numpy(),
            U=state.row_cov[index].numpy(),
            theta=addresses.assignment[index].numpy(),
            mu_w=addresses.weight_mean[index].numpy(),
            Sigma_w=addresses.weight_cov[index].numpy(),
        )
        yield index, codes[:, g * C : (g + 1) * C], q, priors[g]
