import os
import signal
import threading

import pytest

from unrolled.training.interrupts import catch_interrupts


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    with catch_interrupts() as interrupt:
        assert not interrupt
        send(number)
        assert interrupt
        assert interrupt.signal == number
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_leaves_at_once():
    with pytest.raises(KeyboardInterrupt), catch_interrupts():
        send(signal.SIGINT)
        send(signal.SIGINT)
        pytest.fail("it went on")


def test_a_second_termination_leaves_at_once():
    with pytest.raises(SystemExit) as caught, catch_interrupts():
        send(signal.SIGTERM)
        send(signal.SIGTERM)
    assert caught.value.code == 143


def test_other_threads_catch_nothing():
    seen = []

    def body():
        with catch_interrupts() as interrupt:
            seen.append(bool(interrupt))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGINT) is before
