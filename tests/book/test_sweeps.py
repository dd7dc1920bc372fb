"""Sweeps: which runs a file asks for, what is kept of them, and what a cluster may lose."""

import contextlib
import csv
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
import types
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
from conftest import ROOT, small_chapter
from test_bills import stored
from test_cli import symgen

from symgen.book import cluster as cluster_runs, notebooks, presets, runs, sweeps


def test_sweep_runs_every_combination_and_continues(book, monkeypatch):
    grid = book / "grid.yml"
    grid.write_text("chapter: a_first\ngrid: {n: [2], fail: [false, true]}\n")
    result = symgen("sweep", grid)
    assert result.exit_code == 1, result.output
    index = book / "_build/sweeps/grid/index.csv"

    def rows():
        return list(csv.DictReader(index.read_text().splitlines()))

    assert [(r["n"], r["fail"], r["status"]) for r in rows()] == [
        ("2", "false", "done"),
        ("2", "true", "failed"),
    ]
    assert "failed as told" in rows()[1]["error"]
    assert (index.parent / rows()[0]["folder"] / "a_first.ipynb").exists()

    grid.write_text("chapter: a_first\ngrid: {n: [2, 4], fail: [false]}\n")
    started, start = [], sweeps._run_one
    monkeypatch.setattr(sweeps, "_run_one", lambda *a: started.append(a) or start(*a))
    assert symgen("sweep", grid).exit_code == 0
    # The index has both passes; for what was done no process is started.
    assert [(r["pass"], r["n"], r["status"]) for r in rows()] == [
        ("1", "2", "done"),
        ("1", "2", "failed"),
        ("2", "2", "unchanged"),
        ("2", "4", "done"),
    ]
    assert len(started) == 1


def test_a_second_sweep_into_a_folder_waits_for_the_first(book):
    """Each once wrote the index without the other's runs."""
    work = "import time\ntime.sleep(4)"
    nbformat.write(small_chapter("a_first", work), book / "chapters/a_first.ipynb")
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [2, 4]}\n")
    out = book / "_build/sweeps/grid"
    with subprocess.Popen(
        [sys.executable, "-m", "symgen", "sweep", "grid.yml"], stdout=subprocess.PIPE, text=True
    ) as first:
        deadline = time.monotonic() + 120
        while not (out / "index.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.1)  # one of its two runs has ended, the other begins
        second = symgen("sweep", "grid.yml")
        assert first.wait(timeout=120) == 0, first.stdout.read()
    assert second.exit_code == 0, second.output
    assert "Waiting for another sweep into this folder" in second.output
    assert second.output.count("unchanged") == 2
    rows = csv.DictReader((out / "index.csv").read_text().splitlines())
    assert [(r["pass"], r["n"], r["status"]) for r in rows] == [
        ("1", "2", "done"),
        ("1", "4", "done"),
        ("2", "2", "unchanged"),
        ("2", "4", "unchanged"),
    ]


def commands_of(monkeypatch, text):
    """The commands of a sweep, one a cell, which are not run."""
    asked = []

    def done(arguments, *_):
        asked.append(arguments)
        return {"status": "done", "seconds": 0.0, "error": ""}

    monkeypatch.setattr(sweeps, "_run_one", done)
    Path("grid.yml").write_text(text)
    result = symgen("sweep", "grid.yml")
    assert result.exit_code == 0, result.output
    assert all(words[-1] == "--billed" and words[-3] == "--out" for words in asked)
    return [words[1:-3] for words in asked]


@pytest.mark.parametrize("chapters", ["all", "[b_second, a_first]"])
def test_a_sweep_over_several_chapters_has_a_cell_each(book, monkeypatch, chapters):
    found = commands_of(monkeypatch, f"chapter: {chapters}\ngrid: {{rate: [-0.5]}}\n")
    names = ["a_first", "b_second"] if chapters == "all" else ["b_second", "a_first"]
    assert found == [[x, "--preset", "quick", "-p", "rate", "-0.5"] for x in names]


def test_cases_are_a_list_which_a_grid_multiplies(book, monkeypatch):
    text = """
chapter: a_first
preset: cpu
cases: [{n: 4}, {rate: 0.5, chapter: [a_first, b_second]}, {n: 4}]
grid: {dataset: [digits, other]}
"""
    found = commands_of(monkeypatch, text)
    short = [(x[0], *(x[i] for i in range(4, len(x), 3)), *x[5::3]) for x in found]
    assert short == [
        ("a_first", "n", "dataset", "4", "digits"),
        ("a_first", "n", "dataset", "4", "other"),
        ("a_first", "rate", "dataset", "0.5", "digits"),
        ("b_second", "rate", "dataset", "0.5", "digits"),
        ("a_first", "rate", "dataset", "0.5", "other"),
        ("b_second", "rate", "dataset", "0.5", "other"),
    ]


def test_a_whole_preset_is_a_sweep(book, monkeypatch):
    found = commands_of(monkeypatch, "chapter: all\npreset: cpu\ncases: [{}]\n")
    assert found == [[x, "--preset", "cpu"] for x in ("a_first", "b_second")]


def test_the_bill_of_a_sweep_is_that_of_all_its_cells(book):
    stored(book, 360.0, {})
    Path("grid.yml").write_text("chapter: a_first\ngrid: {n: [3, 4], rate: [1.0, 2.0]}\n")
    told = symgen("sweep", "grid.yml", "--dry-run").output.splitlines()
    assert len(told) == 6 and told[-1].split()[:2] == ["all", "0.60"]
    assert told[2].split()[:4] == ["a_first", "n=3", "rate=2.0", "0.10"]
    assert not (book / "_build").exists()


def test_a_sweep_with_too_many_runs_is_refused_before_any_work(book, monkeypatch):
    monkeypatch.setattr(presets, "resolve_all", None)
    values = list(range(1000))
    (book / "grid.yml").write_text(f"chapter: a_first\ngrid: {{n: {values}, rate: {values}}}\n")
    result = symgen("sweep", "grid.yml")
    assert result.exit_code == 2
    assert "asks for 1,000,000 runs" in result.stderr and "at most 10,000" in result.stderr


SWEEPS = [
    ("null", "grid.yml must hold, under grid, a list"),
    ("chapter: a_first\ncases: {n: 3}\n", "under cases, a list of sets of parameters"),
    ("chapter: a_first\ncases: []\n", "under cases, a list of sets of parameters"),
    ("chapter: a_first\ncases: [{n: 3}]\ngrid: {n: [4]}\n", "n under cases and under grid"),
    ("chapter: a_first\ngrid: {n: [4, 5]}\ncases: [{rate: 0.5}, {rate: 1}]\nn: 3\n", "'n'"),
    ("chapter: a_first\ncases: [n]\n", "under cases, a list of sets of parameters"),
    ("chapter: a_first\ncases: [{m: 3}]\n", "unknown parameter of a_first 'm'"),
    ("cases: [{n: 3, chapter: a_frist}]\n", "unknown chapter 'a_frist'"),
    ("chapter: null\ngrid: {n: [3]}\n", "no chapter named"),
    ("chapter: 3\ngrid: {n: [3]}\n", "unknown chapter '3'"),
    ("chapter: {a: 1}\ngrid: {n: [3]}\n", "unknown chapter"),
    ("chapter: a_first\npreset: null\ngrid: {n: [3]}\n", "unknown preset 'None'"),
    ("chapter: a_first\npreset: [quick]\ngrid: {n: [3]}\n", "unknown preset"),
    ("chapter: a_first\ngrid: {n: [1:30]}\n", "'1:30'"),
    ("chapter: a_first\ngrid: {null: [3]}\n", "every name must be a word"),
    ("null: a_first\n", "every name must be a word"),
    ("chapter: a_first\ngrid: {rate: [!!float .nan]}\n", "cannot be read as YAML"),
    ("chapter: a_first\ngrid: {n: [!!set {1}]}\n", "cannot be read as YAML"),
    ("grid: &g {n: [*g]}\n", "cannot be read as YAML"),
    ("chapter: !!python/name:os.system x\n", "grid.yml cannot be read as YAML: line 1, column 10"),
    ("[" * 5000, "cannot be read as YAML"),
    ("a: " + "1" * 5000, "cannot be read as YAML"),
    ("chapter: a_first\n", "list of values for each parameter"),
    ("chapter: a_first\ngrid: {n: 3}\n", "list of values for each parameter"),
    ("chapter: a_frist\ngrid: {n: [3]}\n", "unknown chapter 'a_frist'"),
    ("chapter: a_first\ngrid: {m: [3]}\n", "unknown parameter of a_first 'm'"),
    ("chapter: a_first\ngird: {n: [3]}\ngrid: {n: [3]}\n", "'gird'. Did you mean \"grid\"?"),
    ("- a\n", "must hold a mapping"),
    ("a: [\n", "grid.yml cannot be read as YAML: line 2, column 1: "),
]


@pytest.mark.parametrize(("text", "part"), SWEEPS)
def test_a_faulty_grid_is_refused(book, text, part):
    (book / "grid.yml").write_text(text)
    result = symgen("sweep", "grid.yml")
    assert result.exit_code == 2
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_dask_a_scheduler_is_an_error_that_names_the_extra(book, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [2]}\n")
    result = symgen("sweep", "grid.yml", "--scheduler", "tcp://localhost:1")
    assert result.exit_code == 2
    assert "symgen[cluster]" in result.stderr


def test_tables_are_joined_with_the_parameters_as_columns(book):
    sweep = book / "_build/sweeps/grid"
    # As runs leave them, without the seconds that these take.
    rows = []
    for number, (n, rate, status) in enumerate(
        [(4, "", "done"), (5, "0.5", "unchanged"), (6, "", "failed")]
    ):
        tables = sweep / str(number) / "tables"
        tables.mkdir(parents=True)
        pd.DataFrame({"n": [n, n], "k": [0, 1]}).to_csv(tables / "a_first.found.csv", index=False)
        pd.DataFrame({"x": [1.5]}).to_csv(tables / "b_second.other.csv", index=False)
        about = {"pass": 1, "chapter": "a_first", "n": n, "rate": rate, "status": status}
        rows.append({**about, "seconds": 0.0, "error": "", "folder": str(number)})
    pd.DataFrame(rows).to_csv(sweep / "index.csv", index=False)
    result = symgen("collect", sweep)
    assert result.exit_code == 0 and "a_first.found.csv: 4 rows" in result.output
    (joined,) = (sweep / "tables").iterdir()
    lines = ["parameter n,rate,n,k", "4,,4,0", "4,,4,1", "5,0.5,5,0", "5,0.5,5,1"]
    assert joined.read_text().splitlines() == lines
    assert "1 of 3 runs failed and have no rows: see" in result.output
    assert "last pass" not in result.output
    later = {"pass": 2, "chapter": "a_first", "n": 5, "rate": "0.5", "status": "unchanged"}
    rows.append({**later, "seconds": 0.0, "error": "", "folder": "1"})
    pd.DataFrame(rows).to_csv(sweep / "index.csv", index=False)
    told = symgen("collect", sweep).output.splitlines()[-1]
    assert told.startswith("1 of 3 runs are not of the last pass")
    assert told.endswith(f"to leave them out, delete {sweep / '0'}")
    shutil.rmtree(sweep / "0")
    symgen("collect", sweep)
    assert joined.read_text().splitlines() == [lines[0], *lines[3:]]


def test_joined_tables_have_the_texts_that_runs_wrote(book):
    sweep = book / "_build/sweeps/grid"
    (sweep / "0" / "tables").mkdir(parents=True)
    table = pd.DataFrame({"word": ["None", "null", "NA"], "x": [float("nan"), 1.5, 2.0]})
    table.to_csv(sweep / "0/tables/a_first.words.csv", index=False)
    pd.DataFrame().to_csv(sweep / "0/tables/a_first.empty.csv", index=False)
    about = {"pass": 1, "chapter": "a_first", "n": 2, "status": "done", "seconds": 0.0}
    pd.DataFrame([{**about, "error": "", "folder": "0"}]).to_csv(sweep / "index.csv", index=False)
    result = symgen("collect", sweep)
    assert result.exit_code == 0, result.output
    lines = (sweep / "tables/a_first.words.csv").read_text().splitlines()
    assert lines == ["n,word,x", "2,None,", "2,null,1.5", "2,NA,2.0"]
    assert not (sweep / "tables/a_first.empty.csv").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_runs_side_by_side_share_the_cores(book, monkeypatch, workers):
    """Two runs with all threads each take longer than one after the other."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(sweeps, "cores", lambda: 6)
    given = []

    def run(command, folder, variables):
        given.append({k: v for k, v in variables.items() if not k.startswith("SYMGEN")})
        return {"status": "done", "seconds": 0.0, "error": ""}

    monkeypatch.setattr(sweeps, "_run_one", run)
    assert len([*sweeps.side_by_side({"a": [], "b": [], "c": []}, workers)]) == 3
    share = {"OMP_NUM_THREADS": "3", "LOKY_MAX_CPU_COUNT": "3"}
    assert given == [share if workers > 1 else {}] * 3
    given.clear()
    assert len([*sweeps.side_by_side({"a": []}, workers)]) == 1 and given == [{}]
    assert [*sweeps.side_by_side({}, workers)] == []


def test_two_runs_that_would_share_a_folder_are_refused(book, monkeypatch):
    monkeypatch.setattr(sweeps, "fingerprint", lambda _: "8450fa40" + 8 * "0")
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [3, 4]}\n")
    result = symgen("sweep", "grid.yml")
    assert result.exit_code == 2
    assert "{'n': 4} and {'n': 3} would be kept in one folder, 8450fa40" in result.stderr
    # The same once more is no other run.
    (book / "grid.yml").write_text("chapter: a_first\ngrid: {n: [3, 3]}\n")
    assert len(sweeps.read_cells(book, book / "grid.yml")) == 1


SAVED = "pass,chapter,status,seconds,error,folder\n1.0,a_first,done,0.0,,0\n"


def test_an_index_that_another_program_has_saved_is_refused(tmp_path):
    (tmp_path / "index.csv").write_text(SAVED)
    with pytest.raises(presets.BookError, match="has a pass that is no whole number"):
        sweeps._read_index(tmp_path)


@pytest.mark.parametrize("text", [None, "", "a,b\n1,2\n", SAVED])
def test_a_folder_without_a_whole_index_is_refused(book, text):
    folder = book / "_build/sweeps/grid"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "index.csv").write_text(text)
    result = symgen("collect", folder)
    assert result.exit_code == 2 and "index" in result.stderr
    assert len(result.stderr.splitlines()) == 1


KILLED = """
import os, pathlib, signal
mark = pathlib.Path("met")
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_process_is_killed_is_started_once_more(book, monkeypatch):
    def ended_as(code):
        monkeypatch.setattr(sweeps, "ended_with_us", lambda *_: [sys.executable, "-c", code])
        return sweeps._run_one([], str(book), {})

    assert ended_as(KILLED)["status"] == "unchanged"
    found = ended_as(KILLED.replace("not mark", "mark"))  # each time
    assert (found["status"], found["error"]) == ("failed", "its process was ended by signal 9")


def dask_process(kind, *arguments, **variables):
    """Start a scheduler or a worker in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments, "--no-dashboard"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


SLOW = """
import os, time
from pathlib import Path
Path("begun").mkdir(exist_ok=True)
Path("begun", f"{n}-{os.getpid()}").touch()
if fail:
    raise ValueError("failed as told")
while n == 2 and not Path("go_on").exists():
    time.sleep(0.1)
"""
# What workers start in place of a chapter where it is only asked who runs what, and when.
INSTEAD = """
from symgen.book import processes, sweeps
cell = "import sys; exec(open('cell.py').read())"
sweeps.ended_with_us = lambda _, *words: processes.ended_with_us(cell, *words)
"""
CELL = """
import os, time
from pathlib import Path
n = int(sys.argv[sys.argv.index("n") + 1])
mark = Path("begun", f"{n}-{os.getpid()}")
mark.touch()
while n in (2, 7) and not Path(f"go_on_{n}").exists():
    time.sleep(0.1)
mark.rename(f"ended/{mark.name}")
if n == 3:
    sys.exit("failed: as told")
print("  done in no time")
"""


def until(what):
    """Wait for something, and return it."""
    deadline = time.monotonic() + 200
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


class Cluster:
    """A scheduler with workers, each of them a process that a test may kill."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.started, self.options = [], []
        self.schedule()

    def schedule(self):
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.scheduler = self._start("scheduler", *where)

    def work(self, count=1, **variables):
        own = [self.address, "--no-nanny", "--nthreads", "1", *self.options]
        return [self._start("worker", *own, **variables) for _ in range(count)]

    def _start(self, kind, *arguments, **variables):
        self.started.append(dask_process(kind, *arguments, **variables))
        return self.started[-1]

    def sweep(self, **variables):
        command = [sys.executable, "-m", "symgen", "sweep", "grid.yml", "--scheduler", self.address]
        self.started.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
            )
        )  # fmt: skip
        return self.started[-1]


@pytest.fixture
def cluster(book):
    pytest.importorskip("distributed")
    nbformat.write(small_chapter("a_first", SLOW, whole=False), book / "chapters/a_first.ipynb")
    cluster = Cluster()
    yield cluster
    for process in cluster.started:
        process.kill()
        process.communicate()


def kept_rows(book):
    """The rows of the index of a sweep."""
    return list(csv.DictReader((book / "_build/sweeps/grid/index.csv").read_text().splitlines()))


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.timeout(300)
def test_a_lost_worker_and_a_failing_cell_leave_no_cell_undone(book, cluster):
    Path("grid.yml").write_text("chapter: a_first\ncases: [{n: 2}, {n: 3, fail: true}, {n: 4}]\n")

    def runs_of(n):
        return [int(p.name.split("-")[1]) for p in (book / "chapters/begun").glob(f"{n}-*")]

    workers, sweep = cluster.work(2), cluster.sweep()
    (kernel,) = until(lambda: runs_of(2))
    lost = next(w for w in workers if kernel in {c.pid for c in family(w)})
    children = family(lost)
    lost.kill()
    until(lambda: len(runs_of(2)) == 2)  # on the other one
    (book / "chapters/go_on").touch()
    told, _ = sweep.communicate(timeout=200)
    _, left = psutil.wait_procs(children, timeout=20)
    assert not left and sweep.returncode == 1, told
    rows = kept_rows(book)
    assert [(r["n"], r["status"]) for r in rows] == [("2", "done"), ("3", "failed"), ("4", "done")]
    assert "failed as told" in rows[1]["error"]


@pytest.mark.timeout(300)
def test_what_a_lost_scheduler_had_to_do_is_given_to_the_next(book, cluster):
    Path("grid.yml").write_text(f"chapter: a_first\ngrid: {{n: {list(range(1, 13))}}}\n")
    Path("cell.py").write_text(CELL)
    Path("instead.py").write_text(INSTEAD)
    cluster.options = ["--preload", str(book / "instead.py")]
    for name in ("begun", "ended"):
        Path(name).mkdir()

    def runs_of(n, folder="begun"):
        return [int(path.name.split("-")[1]) for path in Path(folder).glob(f"{n}-*")]

    workers, sweep = cluster.work(2), cluster.sweep()
    (begun,) = until(lambda: runs_of(2))
    lost = next(w for w in workers if begun in {c.pid for c in family(w)})
    children = family(lost)
    lost.kill()
    assert not psutil.wait_procs(children, timeout=60)[1]
    Path("go_on_2").touch()
    (other,) = (w for w in workers if w is not lost)
    (begun,) = until(lambda: runs_of(7))
    cluster.scheduler.kill()
    other.wait(100)  # it ends with the scheduler, and what it runs with it
    assert not psutil.pid_exists(begun)
    cluster.schedule()
    cluster.work(2)
    until(lambda: len(runs_of(7)) == 2)
    Path("go_on_7").touch()
    told, _ = sweep.communicate(timeout=200)
    assert sweep.returncode == 1, told
    assert told.count("was lost") == 1 and "runs wait for a new one" in told
    rows = kept_rows(book)
    assert [int(r["n"]) for r in rows] == list(range(1, 13))
    assert [r["status"] for r in rows if r["n"] != "3"] == ["done"] * 11, told
    assert rows[2]["status"] == "failed" and "as told" in rows[2]["error"]


def test_a_scheduler_that_does_not_answer_is_told(book, monkeypatch):
    distributed = pytest.importorskip("dask.distributed")

    def client(**_):
        raise TimeoutError("timed out")

    monkeypatch.setattr(distributed, "Client", client)
    Path("grid.yml").write_text("chapter: a_first\ngrid: {n: [2]}\n")
    result = symgen("sweep", "grid.yml", "--scheduler", "tcp://localhost:1")
    assert (
        result.exit_code == 2 and "no dask scheduler answers at tcp://localhost:1" in result.stderr
    )


def test_a_scheduler_without_workers_is_told(monkeypatch, capsys):
    asked = types.SimpleNamespace(
        scheduler_info=lambda: {"workers": {}}, get_executor=lambda **_: ThreadPoolExecutor(1)
    )
    monkeypatch.setattr(cluster_runs, "_client", lambda *_: contextlib.nullcontext(asked))
    monkeypatch.setattr(cluster_runs, "_result", Future.result)
    found = cluster_runs.on_workers(lambda command: {"ran": command}, {1: ["a"]}, (), "tcp://x")
    assert dict(found) == {1: {"ran": ["a"]}}
    assert capsys.readouterr().err == "symgen: tcp://x has no worker yet; runs wait for one\n"


def stated_here(book):
    (cell,) = sweeps.read_cells(book, Path("grid.yml"))
    source = notebooks.sources_fingerprint(presets.read_chapter(book, "a_first"))
    return cluster_runs.stated(source, cell.resolved)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (0, "and the sweep was started with version other"),
        (1, "is version 0.1.0 with code"),
        (3, "the cells or presets of a_first in"),
    ],
)
def test_a_worker_with_other_code_refuses_in_one_sentence(book, monkeypatch, part, told):
    """Version, code and book: what differs is said, and the sweep ends with it."""
    Path("grid.yml").write_text("chapter: a_first\ngrid: {n: [4]}\n")
    words = stated_here(book).split()
    # Of other files the code may still be the same: comments, or another layout.
    words[2] = "other"
    options = ["a_first", "-p", "n", "4", "--billed", "--wanted"]
    monkeypatch.setattr(runs, "execute", lambda *_: runs.Outcome("done", Path("x"), "done in 1 s"))
    assert symgen("run", *options, " ".join(words)).exit_code == 0
    words[part] = "other"
    result = symgen("run", *options, " ".join(words))
    assert result.exit_code == cluster_runs.EXIT and told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    code = f"import sys; sys.stderr.write({result.stderr!r}); sys.exit({result.exit_code})"
    monkeypatch.setattr(sweeps, "ended_with_us", lambda *_: [sys.executable, "-c", code])
    found = Future()
    found.set_result(sweeps._run_one([], str(book), {}))
    with pytest.raises(presets.BookError, match=f"^{platform.node()}: .*{told[:20]}"):
        cluster_runs._result(found)


def test_a_worker_without_the_folder_or_without_symgen_is_told(book):
    found = Future()
    found.set_result(sweeps._run_one([], str(book / "elsewhere"), {}))
    with pytest.raises(presets.BookError, match="elsewhere, where the sweep was started"):
        cluster_runs._result(found)
    found = Future()
    found.set_exception(ModuleNotFoundError("No module named 'symgen'"))
    with pytest.raises(presets.BookError, match="it has no symgen, or that of another version"):
        cluster_runs._result(found)
