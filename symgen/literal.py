"""Write text of data so that it is read as it stands, by Markdown, HTML and matplotlib alike."""

import difflib
import re
from collections.abc import Iterable


def plain(text: object) -> str:
    """Return text of data as Markdown and HTML that show it, and nothing but it, on one line.

    Args:
        text: anything; its `str` is shown, without characters that cannot be seen.

    Example:
        >>> plain("<b> & *c*")
        '&#60;b&#62; &#38; &#42;c&#42;'
    """
    line = re.sub(r"\s+", " ", str(text))
    seen = "".join(filter(str.isprintable, line))
    return re.sub(r"[^\w ]|_", lambda match: f"&#{ord(match[0])};", seen)


def no_math(text: object) -> str:
    r"""Return text of data as matplotlib draws it as it is, without formulas.

    Args:
        text: anything; its `str` is drawn, without characters that cannot be seen.

    Example:
        >>> print(no_math("$x$"))
        \$x\$
    """
    seen = "".join(c for c in str(text) if c.isprintable() or c == "\n")
    # A legend leaves out what begins with an underscore.
    return re.sub("^_", " _", seen).replace("$", r"\$")


def nearest(given: object, known: Iterable[str]) -> str:
    """Return `` Did you mean "x"?`` for the known name that holds or is most like `given`."""
    known, given = [str(k) for k in known], str(given)
    found = [k for k in known if given and given.lower() in k.lower()]
    found = found or difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""
