"""A dense numpy transcription of the paper, for checking the package against. It shares no code with it.

Matrices are inverted, points are left out one at a time, and the paper's own w (not the normalised w̃) is used:
β = σ/√2 as in the section "Choice of Weighting Function". Where paper and errata disagree, the errata are followed.
"""

from __future__ import annotations

import numpy as np
from numpy.linalg import inv, slogdet


def se_kernel(A, B, lengthscale, variance):
    A, B = np.asarray(A) / lengthscale, np.asarray(B) / lengthscale
    return variance * np.exp(-0.5 * ((A[:, None, :] - B[None, :, :]) ** 2).sum(-1))


def imq(e, c, noise):
    """w and ∂_y log w² of the inverse multiquadric."""
    return np.sqrt(noise / 2) * (1 + e**2 / c**2) ** -0.5, -2 * e / (c**2 + e**2)


def se(e, c, noise):
    """w and ∂_y log w² of the squared exponential."""
    return np.sqrt(noise / 2) * np.exp(-(e**2) / (2 * c**2)), -2 * e / c**2


def constant(e, c, noise):
    return np.full_like(e, np.sqrt(noise / 2)), np.zeros_like(e)


def quantile_c(e, epsilon=0.05):
    return np.quantile(np.abs(e), 1 - epsilon)


def noise_and_shrinkage(w, slope, m, noise):
    """σ² J_w and m_w of Prop. 3.1."""
    J = np.diag(noise / 2 * w**-2.0)
    return noise * J, m + noise * slope


def posterior(K, y, m, w, slope, noise):
    """μ^R and Σ^R at the training points (Prop. 3.1)."""
    R, m_w = noise_and_shrinkage(w, slope, m, noise)
    H = inv(K + R)
    return m + K @ H @ (y - m_w), K @ H @ R


def predict(K, K_star, K_star_star, m_star, y, m, w, slope, noise):
    """μ*^R and Σ*^R (Prop. 3.1); K_star is n x q."""
    R, m_w = noise_and_shrinkage(w, slope, m, noise)
    H = inv(K + R)
    return m_star + K_star.T @ H @ (y - m_w), K_star_star - K_star.T @ H @ K_star


def leave_one_out_by_refits(K, y, m, w, slope, noise):
    """Mean and variance of y_i predicted by the model without point i, by n refits."""
    n = len(y)
    mean, variance = np.empty(n), np.empty(n)
    for i in range(n):
        rest = np.delete(np.arange(n), i)
        mu, S = predict(
            K[np.ix_(rest, rest)],
            K[rest][:, [i]],
            K[[i]][:, [i]],
            m[[i]],
            y[rest],
            m[rest],
            w[rest],
            slope[rest],
            noise,
        )
        mean[i], variance[i] = mu[0], S[0, 0] + noise
    return mean, variance


def leave_one_out_closed_form(K, y, m, w, slope, noise):
    """The paper's closed form of the same."""
    R, m_w = noise_and_shrinkage(w, slope, m, noise)
    A, z = inv(K + R), y - m_w
    return z + m - (A @ z) / np.diag(A), 1 / np.diag(A) - noise**2 / 2 * w**-2.0 + noise


def log_normal(x, mean, variance):
    return -0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance)


def log_marginal(K, y, m, noise):
    H, e = K + noise * np.eye(len(y)), y - m
    return -0.5 * (e @ inv(H) @ e + slogdet(H)[1] + len(y) * np.log(2 * np.pi))


def log_pseudo_marginal(K, e, w, slope, noise):
    """The appendix's closed form with ½C (erratum 4), for residuals e and prior mean zero; C by the product rule."""
    R, m_w = noise_and_shrinkage(w, slope, np.zeros_like(e), noise)
    R_inv, w_tilde2 = inv(R), 2 * w**2 / noise
    z = e - m_w
    C = e @ R_inv @ e - 2 * np.sum(w_tilde2 + e * w_tilde2 * slope)
    inner = inv(K) + R_inv
    return -0.5 * (slogdet(K)[1] + slogdet(inner)[1]) + 0.5 * z @ R_inv @ inv(inner) @ R_inv @ z - 0.5 * C


def loss(f, e, w_of_e, noise, step=1e-6):
    """n L_n^w(f) straight from its definition, the derivative by central differences; f may be a grid."""

    def w2_score(y):
        return w_of_e(y) ** 2 * (f - y) / noise

    derivative = (w2_score(e + step) - w2_score(e - step)) / (2 * step)
    return (w_of_e(e) * (f - e) / noise) ** 2 + 2 * derivative


def gaussian_kl(mean0, cov0, mean1, cov1):
    """KL( N(mean0, cov0) ‖ N(mean1, cov1) )."""
    P, d = inv(cov1), mean1 - mean0
    return 0.5 * (np.trace(P @ cov0) - len(d) + d @ P @ d + slogdet(cov1)[1] - slogdet(cov0)[1])


def sparse_predict(K_uu, K_u, K_u_star, k_star, m_star, y, m, w, slope, noise):
    """μ̃ and the diagonal of Σ̃ of the RCSVGP posterior (errata 5 and 6); K_u is m x n, K_u_star m x q."""
    R, m_w = noise_and_shrinkage(w, slope, m, noise)
    P_inv = inv(K_uu + K_u @ inv(R) @ K_u.T)
    mean = m_star + K_u_star.T @ P_inv @ K_u @ inv(R) @ (y - m_w)
    seen = np.einsum("ij,ij->j", K_u_star, (inv(K_uu) - P_inv) @ K_u_star)
    return mean, k_star - seen


def sparse_leave_one_out_by_refits(K_uu, K_u, k, y, m, w, slope, noise):
    """Mean and variance of y_i predicted by the sparse model without row i, by n refits."""
    n = len(y)
    mean, variance = np.empty(n), np.empty(n)
    for i in range(n):
        o = np.arange(n) != i
        mean[i], variance[i] = (
            value[0]
            for value in sparse_predict(K_uu, K_u[:, o], K_u[:, [i]], k[[i]], m[[i]], y[o], m[o], w[o], slope[o], noise)
        )
    return mean, variance + noise


def sparse_bound(K_uu, K_u, k, e, w, slope, noise):
    """The paper's bound with errata 2 to 4: that of log ∫ p(f) exp(−n L(f)) df, for residuals e and prior mean zero."""
    R, m_w = noise_and_shrinkage(w, slope, np.zeros_like(e), noise)
    R_inv, w_tilde2 = inv(R), 2 * w**2 / noise
    nu, Q = R_inv @ (e - m_w), K_uu + K_u @ R_inv @ K_u.T
    C = e @ R_inv @ e - 2 * np.sum(w_tilde2 + e * w_tilde2 * slope)
    trace = np.sum(R_inv.diagonal() * (k - np.einsum("ij,ij->j", K_u, inv(K_uu) @ K_u)))
    determinants = slogdet(K_uu)[1] - slogdet(Q)[1]
    return 0.5 * nu @ K_u.T @ inv(Q) @ K_u @ nu + 0.5 * determinants - 0.5 * C - 0.5 * trace


def titsias_bound(K_uu, K_u, k, e, noise):
    """log N(e; 0, Q + σ²I) − ½ tr(K − Q)/σ², Q = K_uᵀ K_uu⁻¹ K_u (Titsias 2009)."""
    Q = K_u.T @ inv(K_uu) @ K_u
    return log_marginal(Q, e, 0.0, noise) - 0.5 * np.sum(k - Q.diagonal()) / noise
