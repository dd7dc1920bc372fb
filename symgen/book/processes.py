"""Processes that end with the one that started them, however that one ends."""

import os
import signal
import sys
import threading
import time


def ended_with_us(code: str, *arguments: str) -> list[str]:
    """Return the command that runs Python code in a process that ends when this one does.

    A process that is killed outright tells its children nothing: they have to look.
    """
    start = f"from symgen.book.processes import watch; watch({os.getpid()}); {code}"
    return [sys.executable, "-c", start, *arguments]


def watch(parent: int) -> None:
    """Have this process ended within a second after its parent has."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, daemon=True).start()
