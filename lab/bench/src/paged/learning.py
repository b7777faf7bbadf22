"""Machine learning with numpy on made-up data: learning.py ALGORITHM MIB.

Makes so much data, trains, and prints a line of JSON: the seconds that training took, a digest of what was learnt, to
the last bit, and the most memory that was resident. Everything is seeded by what stands here, and sums are made in one
order: the digest is a matter of ALGORITHM and MIB alone.
"""

import hashlib
import json
import os
import resource
import sys
import time

# Sums of floating-point numbers come out the same only in one order.
for library in ("OPENBLAS", "MKL", "OMP", "BLIS"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import numpy as np

algorithm, data_bytes = sys.argv[1], int(sys.argv[2]) << 20
random = np.random.default_rng(1)
# Rows that are worked on at once: what is made meanwhile is small.
ROWS = 4096


def chunks(count):
    return (slice(at, min(at + ROWS, count)) for at in range(0, count, ROWS))


def samples(features):
    """Rows of 4-byte numbers, made piece by piece, and for each whether it is above a plane, with noise."""
    count = data_bytes // (4 * features)
    x, labels = np.empty((count, features), "f4"), np.empty(count, "f4")
    plane = random.standard_normal(features, "f4")
    for rows in chunks(count):
        x[rows] = random.standard_normal((len(x[rows]), features), "f4")
        labels[rows] = x[rows] @ plane + random.standard_normal(len(x[rows]), "f4") > 0
    return x, labels


def logistic_regression():
    x, labels = samples(64)
    yield
    weights = np.zeros(x.shape[1], "f4")
    for _ in range(4):
        gradient = np.zeros_like(weights)
        for rows in chunks(len(x)):
            guessed = 1 / (1 + np.exp(-(x[rows] @ weights)))
            gradient += x[rows].T @ (guessed - labels[rows])
        weights -= gradient / len(x)
    yield weights


def k_means():
    x, _ = samples(32)
    yield
    centres = x[:16].copy()
    for _ in range(3):
        sums, counts = np.zeros_like(centres), np.zeros(len(centres), "i8")
        for rows in chunks(len(x)):
            distances = (centres**2).sum(axis=1) - 2 * (x[rows] @ centres.T)
            nearest = distances.argmin(axis=1)
            np.add.at(sums, nearest, x[rows])
            counts += np.bincount(nearest, minlength=len(centres))
        centres = sums / np.maximum(counts, 1)[:, None].astype("f4")
    yield centres


def gradient_boosting():
    """Stumps over histograms of features, as large libraries build their trees."""
    x, labels = samples(16)
    edges = np.linspace(-2, 2, 15).astype("f4")
    guessed = np.zeros(len(x), "f4")
    yield
    learnt = []
    for _ in range(2):
        sums, counts = np.zeros((x.shape[1], 16)), np.zeros((x.shape[1], 16))
        for rows in chunks(len(x)):
            residuals = labels[rows] - 1 / (1 + np.exp(-guessed[rows]))
            for feature, column in enumerate(x[rows].T):
                bins = np.searchsorted(edges, column)
                sums[feature] += np.bincount(bins, residuals, 16)
                counts[feature] += np.bincount(bins, minlength=16)
        left, below = sums.cumsum(axis=1)[:, :-1], counts.cumsum(axis=1)[:, :-1]
        right, above = sums.sum(axis=1)[:, None] - left, len(x) - below
        gains = left**2 / np.maximum(below, 1) + right**2 / np.maximum(above, 1)
        feature, at = np.unravel_index(gains.argmax(), gains.shape)
        low, high = left[feature, at] / below[feature, at], right[feature, at] / above[feature, at]
        for rows in chunks(len(x)):
            guessed[rows] += np.where(x[rows, feature] <= edges[at], low, high).astype("f4")
        learnt += [feature, edges[at], low, high]
    yield np.array(learnt)


def text_rank():
    """Ranks of words by the words beside them: a random graph, of which all edges are passed in each turn."""
    count = data_bytes // 12
    words = count // 16
    heads, tails = np.empty(count, "i4"), np.empty(count, "i4")
    weights = np.empty(count, "f4")
    for rows in chunks(count):
        drawn = random.random((2, len(heads[rows])))
        # Some words are far more frequent than others, as in any text.
        heads[rows], tails[rows] = (drawn**3 * words).astype("i4")
        weights[rows] = random.random(len(heads[rows]), "f4")
    out = np.zeros(words)
    for rows in chunks(count):
        np.add.at(out, heads[rows], weights[rows])
    yield
    ranks = np.full(words, 1 / words)
    for _ in range(3):
        share, come = ranks / np.maximum(out, 1e-9), np.zeros(words)
        for rows in chunks(count):
            np.add.at(come, tails[rows], share[heads[rows]] * weights[rows])
        ranks = 0.15 / words + 0.85 * come
    yield ranks


algorithms = {"logistic regression": logistic_regression, "k-means": k_means,
              "gradient boosting": gradient_boosting, "TextRank": text_rank}
steps = algorithms[algorithm]()
next(steps)
begun = time.monotonic()
learnt = next(steps)
seconds = time.monotonic() - begun
digest = hashlib.sha256(np.ascontiguousarray(learnt).tobytes()).hexdigest()
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "digest": digest, "peak_bytes": peak_bytes}), flush=True)
