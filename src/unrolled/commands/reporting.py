"""What goes wrong becomes one line on standard error and an exit code; `--debug` shows the traceback as well."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, ParamSpec, cast

import typer
from typer.core import TyperGroup

from unrolled.commands.streams import speak_utf8
from unrolled.errors import UnrolledError

P = ParamSpec("P")

UsageError = cast("type[Exception]", typer.BadParameter.__bases__[0])
"""What click raises for a wrong call; typer's versions keep it in different places."""

is_debug: ContextVar[bool] = ContextVar("is_debug", default=False)
"""Whether tracebacks are shown."""


class Terminated(KeyboardInterrupt):
    """The system asked the program to end (SIGTERM)."""


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command so that its errors are printed and become exit codes.

    0 fine · 1 findings of the doctor · 2 usage, settings, data, files · 3 checkpoint · 4 divergence · 70 our bug ·
    130/143 interrupted. A reader that closes our output early ends the command quietly.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        speak_utf8()
        _listen_to_termination()
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BrokenPipeError:
            _close_quietly()
        except UnrolledError as error:
            _leave(str(error), error.exit_code)
        except Terminated:
            _leave("terminated", 143)
        except KeyboardInterrupt:
            _leave("interrupted", 130)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _leave(f"{where}{error.strerror or error}", 2)
        except Exception as error:
            message = str(error).partition("\n")[0]
            _leave(f"internal error: {type(error).__name__}: {message} (run again with --debug and report it)", 70)

    return wrapped


class Commands(TyperGroup):
    """All commands; one that is called wrongly is told so in one line, like every other error."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what stands before the command's name."""
        with _usage_in_one_line():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Read the command's arguments, and run it."""
        with _usage_in_one_line():
            return super().invoke(ctx)


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        text = str(cast("Any", error).format_message())
        if "\n" in text:  # the whole help, where there were no arguments at all
            raise
        speak_utf8()
        context = getattr(error, "ctx", None)
        _leave(f"{text.rstrip('.')}; see {getattr(context, 'command_path', 'unrolled')} --help", 2)


def note(text: str) -> None:
    """Print one line about the input or the run on standard error."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    note(str(message).partition("\n")[0])


def _leave(message: str, code: int) -> NoReturn:
    if is_debug.get():
        traceback.print_exc()
    first_line = message.partition("\n")[0]
    print(f"unrolled: {first_line}", file=sys.stderr, flush=True)
    raise typer.Exit(code) from None


def _close_quietly() -> None:
    """Point standard output nowhere, so that the interpreter does not fail again when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:  # standard output is no file, as in tests
        return


def _listen_to_termination() -> None:
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(*_: object) -> NoReturn:
    raise Terminated
