"""Ctrl-C and termination: the first signal asks for an orderly end, the second leaves at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupt", "catch_interrupts"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Which signal asked for an end, if any did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal; raise for a second one, whatever is being done at that moment.

        Raises
        ------
        KeyboardInterrupt
            For a second signal that is SIGINT.
        SystemExit
            For a second signal that is SIGTERM, with code 143.
        """
        del frame
        if self.signal is None:
            self.signal = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)


@contextmanager
def catch_interrupts() -> Iterator[Interrupt]:
    """Catch SIGINT and SIGTERM inside the block; the handlers before are restored after it.

    Outside the main thread, where Python allows no handlers, nothing is caught.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, interrupt.receive) for number in _SIGNALS}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
