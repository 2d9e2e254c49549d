"""What every experiment relies on: finding it, its report, and the command that runs it."""

import csv
import re
import sys

import pytest

from mixtura import cli, papers
from mixtura.exceptions import InvalidInputError
from mixtura.papers.report import Report


def test_every_experiment_can_run_and_says_what_it_shows():
    """A summary of one line, and a function to run."""
    assert "hybrid-table1" in papers.names()
    for name in papers.names():
        assert callable(papers.find(name).run)
        assert papers.summary(name).endswith(".")


def test_unknown_name_is_answered_with_the_nearest():
    """A slip of the pen is met with a suggestion and the whole list."""
    with pytest.raises(InvalidInputError, match="Did you mean 'hybrid-table1'") as refused:
        papers.find("hybrid-tabel1")
    assert all(name in str(refused.value) for name in papers.names())
    with pytest.raises(InvalidInputError, match=r"'xyz'\. There are"):
        papers.reproduce("xyz", folder=None)


def test_rows_are_shown_and_written(tmp_path, capsys):
    """Cells at once on the screen; all columns of all rows in the file."""
    report = Report("trial", tmp_path / "new" / "folder")
    report.row("Test errors", model="ours", error=1.234, paper=None)
    assert "1.23" in capsys.readouterr().out
    report.row("Test errors", model="theirs", error=2.0, extra="yes")
    report.close()
    with (tmp_path / "new" / "folder" / "trial-test-errors.csv").open(encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert first == {"model": "ours", "error": "1.234", "paper": "", "extra": ""}
    assert second == {"model": "theirs", "error": "2.0", "paper": "", "extra": "yes"}


def test_parts_are_chosen_by_what_their_name_contains(tmp_path):
    """Nothing asked for is everything."""
    assert Report("trial", tmp_path).wants("a/b")
    assert Report("trial", tmp_path, only="b").wants("a/b")
    assert not Report("trial", tmp_path, only="c").wants("a/b")


def test_figure_replaces_the_old_one_whole_or_not_at_all(tmp_path):
    """A write that fails leaves the picture of before, and no litter."""
    pytest.importorskip("matplotlib")
    report = Report("trial", tmp_path)
    with report.figure("first panel") as figure:
        figure.add_subplot().plot([0, 1])
    picture = tmp_path / "trial-first-panel.png"
    before = picture.read_bytes()
    assert before.startswith(b"\x89PNG")

    def half(path, **options):
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), report.figure("first panel") as figure:
        figure.savefig = half
    assert picture.read_bytes() == before
    assert list(tmp_path.iterdir()) == [picture]


def test_figure_of_a_failed_experiment_is_not_saved(tmp_path):
    """What was drawn up to an error is no result."""
    pytest.importorskip("matplotlib")
    report = Report("trial", tmp_path)
    with pytest.raises(ZeroDivisionError), report.figure():
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_command")
def test_command_lists_the_experiments(monkeypatch, capsys):
    """One line each."""
    monkeypatch.setattr(sys, "argv", ["mixtura", "reproduce", "--list"])
    with pytest.raises(SystemExit) as finished:
        cli.main()
    assert finished.value.code in (0, None)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == papers.names()
    assert all(papers.summary(line.split()[0]) in line for line in lines)


@pytest.mark.usefixtures("_command")
def test_command_explains_an_unknown_name(monkeypatch, capsys):
    """One line, no traceback."""
    monkeypatch.setattr(sys, "argv", ["mixtura", "reproduce", "hybrid-tabel1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert re.fullmatch(r"error: .*Did you mean 'hybrid-table1'.*\n", capsys.readouterr().err)


@pytest.mark.usefixtures("_command")
def test_command_hands_its_options_on(monkeypatch, tmp_path):
    """Options of the command are settings of the report."""
    seen = []
    monkeypatch.setattr(papers, "find", lambda name: type("Stub", (), {"run": seen.append}))
    options = ["--quick", "--only", "part", "--device", "cpu", "--seed", "3"]
    folder = ["--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["mixtura", "reproduce", "anything", *options, *folder])
    with pytest.raises(SystemExit) as finished:
        cli.main()
    assert finished.value.code in (0, None)
    (report,) = seen
    assert (report.name, report.folder, report.quick) == ("anything", tmp_path, True)
    assert (report.only, report.device, report.seed) == ("part", "cpu", 3)


def no_training(name):
    """An experiment that must not be reached."""

    def run(report):
        raise AssertionError("training began before the folder was looked at")

    return type("Stub", (), {"run": run})


@pytest.mark.parametrize("given", ["results", "new/results"])
def test_folder_may_be_text(monkeypatch, tmp_path, given):
    """A path as text is a path, and its folders are made."""
    stub = type("Stub", (), {"run": lambda report: report.row("errors", ours=1.0)})
    monkeypatch.setattr(papers, "find", lambda name: stub)
    monkeypatch.chdir(tmp_path)
    papers.reproduce("trial", folder=given)
    assert (tmp_path / given / "trial-errors.csv").exists()


def test_folder_that_is_a_file_is_refused_before_any_work(monkeypatch, tmp_path):
    """Also where a folder above it is a file."""
    monkeypatch.setattr(papers, "find", no_training)
    taken = tmp_path / "taken"
    taken.write_text("not a folder")
    for folder in (taken, taken / "below", str(taken)):
        with pytest.raises(InvalidInputError, match=r"taken.*[Cc]hoose another folder"):
            papers.reproduce("trial", folder=folder)


def test_folder_that_cannot_be_written_is_refused_before_any_work(monkeypatch, tmp_path):
    """As an experiment of an hour would find out only at its end."""
    monkeypatch.setattr(papers, "find", no_training)

    def refuse(*arguments, **options):
        raise PermissionError("read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(InvalidInputError, match="cannot be written to: read-only file system"):
        papers.reproduce("trial", folder=tmp_path)


@pytest.mark.parametrize("folder", [None, 3, b"results"])
def test_folder_of_another_kind_is_refused(monkeypatch, folder):
    """Neither text nor a path."""
    monkeypatch.setattr(papers, "find", no_training)
    with pytest.raises(InvalidInputError, match="folder must be a path"):
        papers.reproduce("trial", folder=folder)
