"""`python -m symgen` is the command `symgen`."""

from symgen.book.cli import app

if __name__ == "__main__":
    app(prog_name="symgen")
