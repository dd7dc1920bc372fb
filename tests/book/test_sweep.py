"""Sweeps: failed cells are rows, and a second call runs what is missing."""

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from symgen.book import cli, sweep
from symgen.book.notebooks import BookError

GRID = {"chapter": "02_second", "grid": {"value": [1, 2], "fail": [False, True]}}


def write(path, content):
    path.write_text(yaml.safe_dump(content))
    return path


def call(*words):
    return CliRunner().invoke(cli.app, list(map(str, words)))


def test_failed_cells_are_rows_and_missing_ones_run_again(book, monkeypatch):
    grid, ran = write(book / "grid.yml", GRID), []

    def runs(folder, out, cell):
        ran.append(cell.parameters)
        if cell.parameters["fail"]:
            return cell, "cell [3] raised RuntimeError"
        tables = book / "_build" / "sweeps" / "grid" / "cells" / cell.name / "tables"
        tables.mkdir(parents=True)
        frame = pd.DataFrame({"H": [0.1, 0.2], "value": [7, 8]})
        frame.to_csv(tables / "02_second.power.csv", index=False)
        return cell, ""

    monkeypatch.setattr(sweep, "run_cell", runs)
    result = call("sweep", grid)
    assert result.exit_code == 1
    assert "4 of 4 run now, 2 failed" in result.output
    table = pd.read_csv(book / "_build" / "sweeps" / "grid" / "sweep.csv")
    assert table["status"].value_counts().to_dict() == {"done": 4, "failed": 2}
    assert table["H"].dropna().tolist() == [0.1, 0.2] * 2
    # A column of the table that is called like a parameter keeps both.
    assert table["value (power)"].dropna().tolist() == [7, 8] * 2
    assert table["error"].dropna().tolist() == ["cell [3] raised RuntimeError"] * 2
    assert len(ran) == 4
    call("sweep", grid)
    assert len(ran) == 6 and all(one["fail"] for one in ran[4:])


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
        ({"chapter": "02_second"}, "must hold chapter, and grid"),
        ({"chapter": "02_second", "grid": {"value": 1}}, "must hold chapter, and grid.*'value'"),
        ({"chapter": "2_second", "grid": {"value": [1]}}, 'Did you mean "02_second"'),
        ({"chapter": "02_second", "grid": {"valu": [1]}}, 'Did you mean "value"'),
        ({"chapter": "02_second", "preset": "x", "grid": {"n": [1]}}, 'preset "x" is unknown'),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_runs(book, content, message):
    with pytest.raises(BookError, match=message):
        sweep.read_cells(book, write(book / "grid.yml", content))
