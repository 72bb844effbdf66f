"""Stacks on regression in plain NumPy: the limit and its slopes, backwards and by hand."""

import functools
import math

import numpy as np

import promptlimit as pl

HEADS = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}


def stack_of(residuals, key_query, value, kernel="softmax"):
    layers = zip(residuals, key_query, value, strict=True)
    return pl.Stack([pl.Layer(HEADS[kernel](u, v), r) for r, u, v in layers])


def tokens_covariance(task, weights):
    lift = np.vstack([np.eye(weights.size), weights])
    gamma = lift @ task.covariance @ lift.T
    gamma[-1, -1] += task.noise_variance
    return gamma


def adjoint(task, weights, residuals, key_query, value):
    """Return the limit risk at w, noise apart, and its slopes in R, U and V: backwards, by hand."""
    dim = weights.size
    G, P = [tokens_covariance(task, weights)], [np.eye(dim + 1)]
    M = []
    for R, U, V in zip(residuals, key_query, value, strict=True):
        M.append(R + V @ G[-1] @ U)
        G.append(M[-1] @ G[-1] @ M[-1].T)
        P.append(M[-1] @ P[-1])
    missed = P[-1][-1, :dim] - weights
    slope = np.zeros((dim + 1, dim + 1))
    slope[-1, :dim] = task.query_covariance @ missed
    by_G, by_R, by_U, by_V = np.zeros_like(slope), [], [], []
    for layer in reversed(range(len(M))):
        U, V = key_query[layer], value[layer]
        by_M = slope @ P[layer].T + (by_G + by_G.T) @ M[layer] @ G[layer]
        by_R.insert(0, by_M)
        by_U.insert(0, G[layer] @ V.T @ by_M)
        by_V.insert(0, by_M @ U.T @ G[layer])
        by_G = M[layer].T @ by_G @ M[layer] + V.T @ by_M @ U.T
        slope = M[layer].T @ slope
    value = missed @ task.query_covariance @ missed / 2
    return value, np.array(by_R), np.array(by_U), np.array(by_V)


def limit_slopes(task, residuals, key_query, value, count=20):
    """Return the mean of `adjoint` over w in one dimension, by Gauss-Hermite nodes."""
    nodes, masses = np.polynomial.hermite_e.hermegauss(count)
    scale = math.sqrt(task.prior_variance)
    parts = [adjoint(task, scale * np.array([x]), residuals, key_query, value) for x in nodes]
    weighed = zip(masses / masses.sum(), parts, strict=True)
    sums = [[mass * one for one in part] for mass, part in weighed]
    return [functools.reduce(np.add, column) for column in zip(*sums, strict=True)]
