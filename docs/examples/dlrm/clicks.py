# SPDX-License-Identifier: Apache-2.0
"""Generated clicks with a known truth, in the shape of the Criteo data set: 13 numbers and 26 categories each."""
import numpy as np

N_NUMBERS, N_CATEGORIES = 13, 26
HOT_KEYS, HOT_DRAWS = 0.0016, 0.959  # two levels: 0.16 % of the keys get 95.9 % of the draws


class Clicks:
    """Draws clicks. Each key of each category has a taste, and the tastes and numbers of a click decide whether it is a
    click (1) or not (0). Tastes change from day to day.

    rows: keys of each category. zipf: the exponent of a Zipf distribution of keys; 0: two levels
    """

    def __init__(self, rows, zipf=0.0, day=0, seed=0):
        truth = np.random.default_rng(2026)  # the same for every seed
        first, second = truth.standard_normal((2, N_CATEGORIES, rows), np.float32)
        angle = day * np.pi / 4
        self.tastes = np.cos(angle) * first + np.sin(angle) * second
        self.weights = truth.standard_normal(N_NUMBERS).astype(np.float32)
        self.rows, self.random = rows, np.random.default_rng([seed, day])
        self.zipf = np.cumsum(np.arange(1, rows + 1) ** -zipf) if zipf else None

    def ranks(self, shape):
        """How popular the drawn keys are: 0 is the most popular key."""
        if self.zipf is not None:
            return np.searchsorted(self.zipf, self.random.random(shape) * self.zipf[-1])
        hot = max(1, round(HOT_KEYS * self.rows))
        cold_draws = self.random.integers(hot, max(self.rows, hot + 1), shape)
        return np.where(self.random.random(shape) < HOT_DRAWS, self.random.integers(0, hot, shape), cold_draws) % self.rows

    def keys(self, n):
        """(n, 26) keys. Popular keys are spread over the table."""
        return self.ranks((n, N_CATEGORIES)) * 2654435761 % self.rows

    def batch(self, n):
        """Numbers (n, 13), keys (n, 26), and 1 for each click, else 0 (n)."""
        numbers = self.random.standard_normal((n, N_NUMBERS), np.float32)
        keys = self.keys(n)
        tastes = self.tastes[np.arange(N_CATEGORIES), keys]
        pairs = tastes[:, ::2] * tastes[:, 1::2]
        score = tastes.sum(1) / 3 + pairs.sum(1) / 6 + numbers @ self.weights / 5 - 1
        return numbers, keys, (self.random.random(n) < 1 / (1 + np.exp(-score))).astype(np.float32)


def auc(scores, clicked):
    """The probability that a click has a higher score than a non-click; equal scores count half."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    n = clicked.sum()
    return float((ranks[clicked > 0].sum() - n * (n + 1) / 2) / (n * (len(clicked) - n)))
