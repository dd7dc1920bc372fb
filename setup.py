"""What pyproject.toml cannot say: that the wheel carries the book, and where its repository is."""

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# Not imported: nothing that the package needs is there while it is built.
layout = runpy.run_path(str(ROOT / "symgen" / "book" / "layout.py"))


class WithBook(build_py):
    """Puts the book's files, which stay where they are in the repository, into the package."""

    def _book(self) -> dict[str, str]:
        target = Path(self.build_lib, "symgen", layout["SHIPPED"])
        return {str(name): str(target / name) for name in layout["book_files"](ROOT)}

    def build_package_data(self) -> None:
        super().build_package_data()
        for source, target in self._book().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(source, target, preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        ours = [] if self.editable_mode else self._book().values()
        return [*super().get_outputs(include_bytecode), *ours]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *self._book()]


address = layout["repository"](ROOT)
setup(cmdclass={"build_py": WithBook}, project_urls={"Source": address} if address else {})
