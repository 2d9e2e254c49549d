"""What an experiment shows: rows as they come, pictures, and both as files; measured cells."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from mixtura.data.given import Parameters, Setting
from mixtura.exceptions import InvalidInputError
from mixtura.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: What curves are drawn on; matplotlib is imported by those who draw.
Panel: TypeAlias = "Axes"
#: Lines of a table: cells by the names of their columns.
Lines = list[Parameters]


@dataclass
class Report:
    """Settings of a run, and where its rows and pictures go.

    Attributes
    ----------
    name : the experiment; its files begin with it.
    folder : where files are written.
    quick : a small version that ends within a minute on two cores.
    only : keep to the parts whose name contains this.
    search : find the settings anew, where the experiment can.
    jobs : processes that search at the same time.
    max_time : seconds after which a search stops; another run goes on where it was.
    """

    name: str
    folder: Path
    quick: bool = False
    device: str = "auto"
    seed: int = 0
    only: str = ""
    search: bool = False
    jobs: int = 1
    max_time: float = math.inf
    tables: dict[str, Lines] = field(default_factory=dict)
    _header: tuple[str, ...] = ()
    _began: float = field(default_factory=time.perf_counter)

    def wants(self, part: str) -> bool:
        """Whether a part of the experiment was asked for."""
        return self.only in part

    def note(self, text: str) -> None:
        """Say what is going on."""
        print(f"[{time.perf_counter() - self._began:6.0f} s] {text}", flush=True)

    def row(self, table: str, **cells: Setting) -> None:
        """One more line of a table, shown at once."""
        self.tables.setdefault(table, []).append(cells)
        header = (table, *cells)
        widths = [max(len(name), 9) if i else 28 for i, name in enumerate(cells)]
        if header != self._header:
            self._header = header
            print(f"\n{table}\n{_line(cells, widths)}")
        print(_line(map(_show, cells.values()), widths), flush=True)

    def cell(
        self, row: str, column: str, values: Sequence[float], settings: Parameters | None = None
    ) -> None:
        """A measured cell of a published table, one value per seed, kept at once."""
        what = {"row": row, "column": column, "values": [round(float(each), 4) for each in values]}
        self.keep("cells", {**what, "settings": settings or {}, **provenance(self)})

    def keep(self, kind: str, line: Parameters) -> None:
        """One more line of a file, at once: so that an interrupted run can go on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._path(kind, "jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def kept(self, kind: str) -> Lines:
        """The lines that this run or earlier ones have kept."""
        path = self._path(kind, "jsonl")
        return lines_of(path) if path.is_file() else []

    @contextmanager
    def figure(self, name: str = "", **options: Setting) -> Iterator[Figure]:
        """A matplotlib figure that is saved when the block ends."""
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained", **options)
        yield figure
        with self._saved(name, "png") as path:
            figure.savefig(path, dpi=130)

    def close(self) -> None:
        """Write the tables."""
        for table, rows in self.tables.items():
            with self._saved(table, "csv") as path:
                _write_csv(rows, path)

    def _path(self, part: str, suffix: str) -> Path:
        stem = "-".join([self.name, *part.lower().split()])
        return self.folder / f"{stem}.{suffix}"

    @contextmanager
    def _saved(self, part: str, suffix: str) -> Iterator[Path]:
        """Where to write a file, which takes its place when it is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(part, suffix)
        with replacing(path) as fresh:
            yield fresh
        self.note(f"saved {path}")


def lines_of(path: Path) -> Lines:
    """The objects of a file with one per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def provenance(report: Report) -> Parameters:
    """How a figure can be had again: command, commit and machine."""
    words = [f"mixtura reproduce {report.name}"]
    words += [f"--only {report.only!r}"] if report.only else []
    words += ["--search"] if report.search else []
    words += [f"--seed {report.seed}"] if report.seed else []
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if report.device.startswith("cuda"):
        machine = f"{torch.cuda.get_device_name()}, {machine}"
    return {"command": " ".join(words), "commit": found, "machine": machine}


def writable_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a path, made if need be; refused if no file can be written into it."""
    if isinstance(folder, bytes) or not isinstance(folder, (str, os.PathLike)):
        raise InvalidInputError(
            f"folder must be a path (text or pathlib.Path), but is {folder!r}, a {type(folder)}."
        )
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise InvalidInputError(
            f"the folder {str(path)!r} cannot be written to: {error}. Choose another folder."
        ) from error


def _show(value: object) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0.0 else f"{value:.2g}"


def _line(cells: Iterable[str], widths: list[int]) -> str:
    """The first column to the left, numbers to the right."""
    first, *rest = zip(cells, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)])


def _write_csv(rows: Lines, path: Path) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
