"""Time of a run over all its sessions, and how much of it was spent beside the steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Starts when it is made.

    Parameters
    ----------
    before : float
        Seconds of earlier sessions.
    """

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.perf_counter() - before
        self._aside = 0.0

    @property
    def seconds(self) -> float:
        """Of all sessions."""
        return time.perf_counter() - self._start

    @property
    def stepping_seconds(self) -> float:
        """Of all sessions, without what this session spent aside."""
        return self.seconds - self._aside

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Evaluations and saves run inside this block."""
        start = self.seconds
        try:
            yield
        finally:
            self._aside += self.seconds - start
