"""The command `symgen`, which is `python -m symgen` as well."""

import sys

# Notebooks are read by nbformat, which loads jsonschema, which loads this where it is installed, to
# check addresses that no notebook has. Its grammar takes a second to build, for every command.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from symgen.book.cli import app  # noqa: E402

if __name__ == "__main__":
    app(prog_name="symgen")
