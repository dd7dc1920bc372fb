"""Sweeps: failed cells are rows, and a second call runs what is missing."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from symgen.book import cli, notebooks, run, sweep
from symgen.book.notebooks import BookError

GRID = {"chapter": "02_second", "grid": {"value": [1, 2], "fail": [False, True]}}


def write(path, content):
    path.write_text(yaml.safe_dump(content))
    return path


def call(*words):
    return CliRunner().invoke(cli.app, list(map(str, words)))


@pytest.fixture
def fast(book, monkeypatch):
    """Cells that leave a page and a table without running anything; yields those that ran."""
    ran = []

    def runs(folder, out, cell):
        ran.append(cell.parameters)
        if cell.parameters["fail"]:
            return cell, "cell [3] raised RuntimeError"
        source = notebooks.read_chapter(book, cell.chapter)
        source.metadata["symgen"] = run.identity(source, cell.parameters)
        place = Path(out, "cells", cell.name)
        notebooks.write(source, place / "02_second.ipynb")
        (place / "tables").mkdir(exist_ok=True)
        frame = pd.DataFrame({"H": [0.1, 0.2], "value": [7, 8]})
        frame.to_csv(place / "tables" / "02_second.power.csv", index=False)
        return cell, ""

    monkeypatch.setattr(sweep, "run_cell", runs)
    return ran


def test_failed_cells_are_rows_and_missing_ones_run_again(book, fast):
    grid = write(book / "grid.yml", GRID)
    result = call("sweep", grid)
    assert result.exit_code == 1
    assert "4 of 4 run now, 2 failed" in result.output
    table = pd.read_csv(sweep.sweep_folder(book, grid) / "sweep.csv")
    assert table["status"].value_counts().to_dict() == {"done": 4, "failed": 2}
    assert table["H"].dropna().tolist() == [0.1, 0.2] * 2
    # A column of the table that is called like a parameter keeps both.
    assert table["value (power)"].dropna().tolist() == [7, 8] * 2
    assert table["error"].dropna().tolist() == ["cell [3] raised RuntimeError"] * 2
    assert len(fast) == 4
    call("sweep", grid)
    assert len(fast) == 6 and all(one["fail"] for one in fast[4:])


def test_cells_run_again_after_their_chapter_has_changed(book, fast):
    grid = write(book / "grid.yml", {**GRID, "grid": {"value": [1], "fail": [False]}})
    call("sweep", grid)
    assert "0 of 1 run now" in call("sweep", grid).output
    source = notebooks.read_chapter(book, "02_second")
    source.cells[-1].source += "\nvalue"
    notebooks.write(source, book / "chapters" / "02_second.ipynb")
    assert "1 of 1 run now" in call("sweep", grid).output


def test_two_grids_of_one_name_have_two_tables(book, fast):
    tables = []
    for value in (1, 2):
        (book / str(value)).mkdir()
        content = {**GRID, "grid": {"value": [value], "fail": [False]}}
        grid = write(book / str(value) / "grid.yml", content)
        assert call("sweep", grid).exit_code == 0
        tables.append(sweep.sweep_folder(book, grid) / "sweep.csv")
    assert [pd.read_csv(table)["value"].iloc[0] for table in tables] == [1, 2]


def test_a_sweep_on_dask_runs_real_chapters(book):
    from distributed import LocalCluster

    cells = sweep.read_cells(book, write(book / "g.yml", {**GRID, "grid": {"fail": [False, True]}}))
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False,
                      dashboard_address=None) as cluster:  # fmt: skip
        address = cluster.scheduler_address
        results = [*sweep.run_cells(book, cells, book / "out", scheduler=address)]
    errors = {cell.parameters["fail"]: error for cell, error in results}
    assert errors[False] == "" and "raised RuntimeError" in errors[True]
    assert (book / "out" / "cells" / cells[0].name / "02_second.ipynb").exists()


def test_several_grids_are_joined(book):
    grids = [{"value": [1, 2]}, {"value": [3], "fail": [True]}]
    cells = sweep.read_cells(book, write(book / "g.yml", {"chapter": "02_second", "grid": grids}))
    found = [cell.parameters for cell in cells]
    assert found == [{"value": 1}, {"value": 2}, {"fail": True, "value": 3}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"chapter": "02_second", "gird": {}}, 'key of .* "gird" is unknown.*Did you mean "grid"'),
        ({"chapter": "02_second"}, "must hold grid: lists of values"),
        ({"chapter": "02_second", "grid": {"value": 1}}, "must hold grid.*'value'"),
        ({"chapter": "02_second", "grid": {"value": []}}, "must hold grid.*'value'"),
        ({"chapter": "02_second", "grid": []}, "asks for no run"),
        ({"chapter": [], "grid": {}}, "asks for no run"),
        ({"chapter": 3, "grid": {"value": [1]}}, 'chapter "3" is unknown'),
        ({"grid": {"value": [1]}}, 'chapter "None" is unknown'),
        ({"chapter": "2_second", "grid": {"value": [1]}}, 'Did you mean "02_second"'),
        ({"chapter": "02_second", "grid": {"valu": [1]}}, 'Did you mean "value"'),
        ({"chapter": "02_second", "preset": "x", "grid": {"n": [1]}}, 'preset "x" is unknown'),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(book, content, message):
    with pytest.raises(BookError, match=message):
        sweep.read_cells(book, write(book / "grid.yml", content))


def test_a_grid_that_is_no_text_is_refused(book):
    (book / "grid.yml").write_bytes(b"chapter: \xff")
    with pytest.raises(BookError, match=r"grid.yml cannot be read: 'utf-8'"):
        sweep.read_cells(book, book / "grid.yml")
