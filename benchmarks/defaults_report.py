"""What `benchmarks.defaults` measured, as the tables and the picture of docs/results/defaults.md.

    python -m benchmarks.defaults_report [FILE ...] [--output docs/results/defaults.md]

Only conditions that ours and a rival were measured in, and tables that every model finished in
every split, are compared; other tables are named. What stands around the two marks in the page is
kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from benchmarks.defaults import CONDITIONS, KEY, OURS, OUTPUT, Record, half, read

PAGE = Path("docs/results/defaults.md")
PICTURE, MISSING = Path("pictures/defaults.png"), Path("pictures/missing.png")
#: Share of the features that rows lack at prediction, in conditions that train on the same rows.
SHARES = {name: each.missing for name, each in CONDITIONS.items() if each.training == "complete"}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
#: Points that ours may be worse than the best rival on any table.
TOLERATED = 3.0
MARKS = {"A": "o", "B": "s"}
SCORES = ("error", "log_loss", "calibration", "fit_seconds", "predict_seconds")


class Figures(NamedTuple):
    """A condition's scores, each (models, tables, splits), and what is not among them."""

    models: list[str]
    tables: np.ndarray
    left_out: list[str]
    scores: dict[str, np.ndarray]

    def halves(self) -> dict[str, Figures]:
        """The tables of A and of B, where there are any."""
        names = np.array([half(table) for table in self.tables])
        return {name: self._of(names == name) for name in np.unique(names)}

    def _of(self, mine: np.ndarray) -> Figures:
        kept = {key: values[:, mine] for key, values in self.scores.items()}
        return self._replace(tables=self.tables[mine], scores=kept)

    def ranks(self) -> np.ndarray:
        """Mean ranks of the models by error."""
        return rankdata(self.scores["error"].mean(2), axis=0).mean(1)

    def lag(self) -> tuple[np.ndarray, np.ndarray]:
        """Per table: points of error between ours and the best rival, and which it is."""
        errors = self.scores["error"].mean(2)
        ours = self.models.index(OURS)
        others = np.delete(np.arange(len(self.models)), ours)
        return errors[ours] - errors[others].min(0), others[errors[others].argmin(0)]


def figures(records: list[Record], condition: str) -> Figures:
    """The scores of a condition, of tables that all models have in all splits."""
    found = {tuple(r[k] for k in KEY): r for r in records if r["condition"] == condition}
    models = sorted({key[1] for key in found}, key=lambda model: (model != OURS, model))
    tables, splits = sorted({key[0] for key in found}), sorted({key[2] for key in found})

    def values(table: str, score: str) -> list[list[float]]:
        keys = [[(table, model, split, condition) for split in splits] for model in models]
        return [[found.get(key, {}).get(score, np.nan) for key in row] for row in keys]

    whole = [t for t in tables if not np.isnan(values(t, "error")).any()]
    scores = {s: np.array([values(t, s) for t in whole]).swapaxes(0, 1) for s in SCORES if whole}
    return Figures(models, np.array(whole), [t for t in tables if t not in whole], scores)


def section(condition: str, found: Figures) -> Iterator[str]:
    """One condition: a line per model, and the tables on which ours is worst."""
    yield f"### {CONDITIONS[condition].title[0].upper()}{CONDITIONS[condition].title[1:]}\n"
    parts = found.halves()
    heads = "".join(f" {name}: error | log-loss | calib. | rank |" for name in parts)
    counts = ", ".join(f"{name} {len(part.tables)}" for name, part in parts.items())
    yield f"| tables: {counts} |{heads} fit s | predict s |"
    yield "|---" * (3 + 4 * len(parts)) + "|"
    cells = [columns(part) for part in parts.values()]
    seconds = [np.median(found.scores[key], axis=(1, 2)) for key in SCORES[3:]]
    for place, model in enumerate(found.models):
        spent = [f"{each[place]:.2g}" for each in seconds]
        shown = [*(cell for part in cells for cell in part[place]), *spent]
        name = f"**{model}**" if model == OURS else model
        yield f"| {name} | {' | '.join(shown)} |"
    yield ""
    yield from (worst(name, part) for name, part in parts.items())
    if found.left_out:
        yield f"- Not finished by every model, left out: {', '.join(found.left_out)}."
    yield ""


def columns(part: Figures) -> list[list[str]]:
    """Per model: error and its deviation over splits, log-loss, calibration error, rank."""
    error, loss, gap = (part.scores[key].mean(1) for key in SCORES[:3])
    means = [error.mean(1), loss.mean(1), gap.mean(1), part.ranks()]
    texts = [
        [_with_deviation(each) for each in error],
        *(
            [f"{mean:.{digits}f}" for mean in each]
            for each, digits in zip(means[1:], (3, 3, 2), strict=True)
        ),
    ]
    for each, text in zip(means, texts, strict=True):
        text[each.argmin()] = f"**{text[each.argmin()]}**"
    return [list(row) for row in zip(*texts, strict=True)]


def _with_deviation(error: np.ndarray) -> str:
    """The mean over splits, and its deviation where there are several."""
    return f"{error.mean():.2f}" + (f" ± {error.std(ddof=1):.2f}" if len(error) > 1 else "")


def worst(name: str, part: Figures) -> str:
    """A line: where ours is farthest behind the best rival of the table."""
    lag, best = part.lag()
    place = lag.argmax()
    many = int((lag > TOLERATED).sum())
    return (
        f"- Worst table of {name}: {part.tables[place]}, {lag[place]:+.1f} points beside"
        f" {part.models[best[place]]}; more than {TOLERATED:.0f} points behind on {many} of"
        f" {len(lag)}, ahead or level on {int((lag <= 0).sum())}."
    )


def per_table(found: dict[str, Figures]) -> Iterator[str]:
    """Ours minus the best rival of each table and condition, in points of error."""
    yield "### Per table: our error minus that of the best rival, in points\n"
    yield "The best rival is picked per cell by its test error: no one classifier does as well.\n"
    yield f"| table | half | {' | '.join(found)} |"
    yield "|---" * (2 + len(found)) + "|"
    lags = {c: dict(zip(f.tables, f.lag()[0], strict=True)) for c, f in found.items()}
    for table in sorted({table for lag in lags.values() for table in lag}):
        cells = [f"{lag[table]:+.1f}" if table in lag else "" for lag in lags.values()]
        yield f"| {table} | {half(table)} | {' | '.join(cells)} |"


def draw(found: dict[str, Figures], path: Path) -> None:
    """Mean errors of all models, a panel per condition, a mark per half."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    for axes, (condition, each) in zip(figure.subplots(2, 3).flat, found.items(), strict=False):
        models = each.models[::-1]
        for name, part in each.halves().items():
            errors = part.scores["error"].mean((1, 2))[::-1]
            axes.plot(errors, models, MARKS[name], mfc="none", label=f"half {name}")
            axes.axvline(errors[models.index(OURS)], color="0.8", zorder=0)
        axes.set_title(CONDITIONS[condition].title, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_xlabel("error in %", fontsize=7)
    figure.axes[0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_missing(found: dict[str, Figures], path: Path) -> None:
    """Mean error of all models against the share of features that rows lack at prediction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes, each = figure.subplots(), [found[name] for name in SHARES if name in found]
    share = [100 * SHARES[name] for name in SHARES if name in found]
    for place, model in enumerate(each[0].models):
        errors = [part.scores["error"][place].mean() for part in each]
        bold = (
            {"color": "black", "lw": 2.5, "zorder": 3} if model == OURS else {"lw": 1, "ls": "--"}
        )
        axes.plot(share, errors, marker="o", ms=3, label=model, **bold)
    axes.set_xlabel("features missing at prediction, in %")
    axes.set_ylabel("mean error in %")
    axes.set_title(f"{len(each[0].tables)} tables, trained as they are, defaults", fontsize=9)
    axes.set_ylim(bottom=0)
    figure.legend(fontsize=8, loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=110)


def written(records: list[Record]) -> tuple[str, dict[str, Figures]]:
    """The text between the marks, and the figures of the picture."""
    origins = {
        who: sorted({r["origin"] for r in records if (r["model"] == OURS) == ours})
        for who, ours in (("ours", True), ("rivals", False))
    }
    lines = [f"- {who}: {'; '.join(names)}." for who, names in origins.items() if names]
    failed = [r for r in records if "failed" in r]
    lines += [
        f"- Failed: {', '.join(map(str, (r[k] for k in KEY)))}: {r['failed']}" for r in failed
    ]
    found = {condition: figures(records, condition) for condition in CONDITIONS}
    found = {
        condition: each
        for condition, each in found.items()
        if len(each.tables) and OURS in each.models and len(each.models) > 1
    }
    lines.append("")
    for condition, each in found.items():
        lines += section(condition, each)
    return "\n".join([*lines, *per_table(found)]), found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=[OUTPUT])
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args()
    text, found = written(read(*options.files))
    before, _, rest = options.output.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    picture = ""
    if find_spec("matplotlib"):
        draw(found, options.output.parent / PICTURE)
        draw_missing(found, options.output.parent / MISSING)
        picture = f"![Mean errors by condition]({PICTURE})\n\n"
    page = f"{before}{BEGIN}\n\n{picture}{text}\n\n{END}{after}"
    options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
