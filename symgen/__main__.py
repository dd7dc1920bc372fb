"""The command `symgen`; `python -m symgen` is the same."""

from symgen.book.cli import app

if __name__ == "__main__":
    app(prog_name="symgen")
