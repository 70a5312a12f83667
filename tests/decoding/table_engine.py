"""Small models made of tables, as engines: the whole search can be checked against them by enumeration."""

from __future__ import annotations

import numpy as np

from unrolled import next_symbol

END = 2  # the id of the end symbol


class TableEngine:
    """ln P(next | last two symbols, source): one (V, V, V) table a source kind, chosen by the source's first id.

    A (V, V) table depends on the last symbol only. Before the start symbol, 1, stands 0.
    """

    def __init__(self, *tables):
        size = np.shape(tables[0])[-1]
        with np.errstate(divide="ignore"):
            self.tables = np.log([np.broadcast_to(np.asarray(values, float), (size,) * 3) for values in tables])
        self.vocabulary_size = size
        self.calls = []

    def start(self, sources, *, need_attention=False):
        return TableStepper(self, [np.asarray(source) for source in sources])

    def log_probs(self, sources, targets):
        return [
            self.tables[source[0], [0, 1, *target[:-2]][: len(target)], [1, *target[:-1]], list(target)]
            for source, target in zip(sources, targets, strict=True)
        ]


class TableStepper:
    """Its state is the last two symbols and the number of steps: what `select` confuses, the outputs tell."""

    def __init__(self, engine, sources):
        self.engine, self.sources = engine, sources
        self.previous = np.zeros(len(sources), dtype=np.int64)
        self.last = np.ones(len(sources), dtype=np.int64)
        self.time = np.zeros(len(sources), dtype=np.int64)

    @property
    def num_rows(self):
        return len(self.last)

    def _kind(self):
        kinds = np.array([source[0] for source in self.sources])
        return np.repeat(kinds, len(self.last) // len(self.sources))

    def _log_probs(self):
        return self.engine.tables[self._kind(), self.previous, self.last]

    def top_k(self, k, banned):
        self.engine.calls.append(("top_k", self.num_rows, k))
        return next_symbol.top_k(self._log_probs(), k, banned=banned)

    def log_prob_of(self, ids):
        return self._log_probs()[np.arange(self.num_rows), ids]

    def sample(self, policy, uniforms):
        return next_symbol.draw(next_symbol.filtered_probabilities(self._log_probs(), policy), uniforms)

    def probabilities(self):
        return np.exp(self._log_probs())

    def attention(self):
        """Tells the last symbol, the time, and the source, so that a test sees where a row came from."""
        width = max(map(len, self.sources))
        weights = np.zeros((self.num_rows, width))
        weights[:, 0], weights[:, 1], weights[:, 2] = self.last, self.time, self._kind()
        return weights

    def advance(self, tokens):
        assert tokens.shape == self.last.shape
        self.previous, self.last, self.time = self.last, tokens.copy(), self.time + 1

    def select(self, rows, sources=None):
        assert np.all((rows >= 0) & (rows < self.num_rows))
        self.engine.calls.append(("select", len(rows), None if sources is None else len(sources)))
        self.previous, self.last, self.time = self.previous[rows], self.last[rows], self.time[rows]
        if sources is not None:
            self.sources = [self.sources[i] for i in sources]
        assert len(self.last) % len(self.sources) == 0


def table(rows, vocabulary_size):
    """A (V, V) table from {last: {next: p}}; symbols that are never reached go on uniformly."""
    values = np.full((vocabulary_size, vocabulary_size), 0.0)
    values[:, END:] = 1.0 / (vocabulary_size - END)
    for last, following in rows.items():
        values[last] = 0.0
        for symbol, probability in following.items():
            values[last, symbol] = probability
    return values


def random_tables(seed, num_symbols=4, num_kinds=3):
    rng = np.random.default_rng(seed)
    size = END + 1 + num_symbols
    values = rng.dirichlet(np.full(size - END, 0.7), size=(num_kinds, size, size))
    return TableEngine(*np.concatenate([np.zeros((num_kinds, size, size, END)), values], axis=3))
