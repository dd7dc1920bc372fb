"""How a command ends: refused in one line, or stopped by a signal, with nothing left running."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from typing import Any

import click

from symgen.book.presets import BookError

CTRL_C = signal.default_int_handler
# Those that came: what they raise in the middle of a library may be taken for an error of its own.
SIGNALS: list[int] = []


class Commands(click.Group):
    """Commands that say in one line what cannot be carried out, with exit code 2.

    The signals to stop unwind, so that nothing is left running or half written.
    """

    def invoke(self, context: click.Context) -> Any:
        # Who is started to ignore Ctrl-C goes on ignoring it.
        ours = [signal.SIGTERM, *[signal.SIGINT] * (signal.getsignal(signal.SIGINT) is CTRL_C)]
        before = {number: signal.signal(number, _stop) for number in ours}
        SIGNALS.clear()
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise
        except (BookError, OSError) as error:
            click.echo(f"symgen: {error}", err=True)
            raise SystemExit(2 if isinstance(error, BookError) else 1) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop(number: int, _: Any) -> None:
    SIGNALS.append(number)
    # The cell of the kernel that is stopped along with it ends in an error, which nobody reads.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    raise SystemExit(128 + number)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what was running when a signal stops it."""
    try:
        yield
        if SIGNALS:
            raise SystemExit(128 + SIGNALS[0])
    except SystemExit:
        click.echo(f"symgen: stopped while {what}", err=True)
        raise


@contextlib.contextmanager
def only_new() -> Iterator[None]:
    """Refuse, as any request that cannot be carried out, to write over something."""
    try:
        yield
    except FileExistsError as error:
        raise BookError(str(error)) from None
