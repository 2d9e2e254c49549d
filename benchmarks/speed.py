"""How fast, beside what others take in the same run: `make bench` writes docs/results/speed.md.

    MIXTURA_DATA=... python -m benchmarks.speed [tables em holes ...] [--quick] [--output FILE]

Every measurement has a process of its own, with one thread unless it says otherwise. Sections that
are not asked for stay in the file as they are. --quick takes a fraction of the rows, to see that
all runs: its figures mean nothing, and are not written unless --output names a file.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OUTPUT = Path("docs/results/speed.md")
#: Open tables of numbers.
TABLES = (
    *("iris", "wine", "wdbc", "digits", "glass", "sonar", "pima", "pima_ripley", "peterson_barney"),
    *("banana", "waveform", "titanic", "ripley_synth", "jasper_ridge", "phoneme_esl"),
    *("breast_cancer_wisconsin", "japanese_vowels", "free_spoken_digits", "synthetic_control"),
    *("italy_power_demand", "gunpoint", "arrowhead", "coffee"),
)
#: Rows, features and classes of tables beside the open ones.
SYNTHETIC = ((150, 5, 2), (170, 13, 3), (528, 10, 11), (1300, 18, 2), (2000, 16, 10))
OURS = ("Mixture", "MixtureNetwork", "BoostedMixture", "SparseMixture")
PROBLEM = {"n_informative": 5, "n_redundant": 0, "n_clusters_per_class": 1, "random_state": 0}


class Figure(NamedTuple):
    """Something measured, NaN where it was not, and the most (or the least) that it should be."""

    what: str
    value: float
    unit: str
    goal: float
    least: bool = False
    beside: str = ""

    def line(self) -> str:
        """A line of a table."""
        met = self.value >= self.goal if self.least else self.value <= self.goal
        verdict = "yes" if met else "not measured" if np.isnan(self.value) else "**no**"
        goal = f"at {'least' if self.least else 'most'} {self.goal:g}"
        shown = f"{self.value:.3g}".replace("nan", "-")
        cells = self.what, f"{shown} {self.unit}", goal, verdict, self.beside
        return f"| {' | '.join(cells)} |"


def alone(function: Callable[..., Any], *args: object, threads: int = 1) -> Any:
    """What a function gives in a process of its own; NaN where a package or data are absent."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args).result()
        except (ImportError, FileNotFoundError) as error:
            print(f"left out: {error}", file=sys.stderr)
            return float("nan")


def fastest(run: Callable[[], object], repeats: int = 3) -> float:
    """Seconds of the fastest repeat; the first one also warms up."""
    warnings.simplefilter("ignore")
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    return min(spent)


def said(**seconds: float) -> str:
    """Seconds by name, for the last column."""
    shown = ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())
    return shown.replace("nan s", "absent")


def make_table(n_rows: int, n_features: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import make_classification

    return make_classification(n_rows, n_features, n_classes=n_classes, **PROBLEM)


def named(name: str) -> Any:
    """An estimator by its name: ours, or another's."""
    import mixtura

    if name in OURS:
        return getattr(mixtura, f"{name}Classifier")(random_state=0)
    if name == "LightGBM":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(verbose=-1)
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    grid = {"svc__C": [1, 10, 100], "svc__gamma": ["scale", 0.01, 0.1]}
    steps = SimpleImputer(), StandardScaler(), SVC()
    search = GridSearchCV(make_pipeline(*steps), grid, cv=3)
    others = {"SVM": search, "logistic": LogisticRegression()}
    return others.get(name) or HistGradientBoostingClassifier(random_state=0)


# -- sections ----------------------------------------------------------------------------------


def fit_table(table: str | tuple[int, int, int], most: int, names: tuple[str, ...]) -> dict:
    """Seconds to fit by name."""
    from benchmarks.tables import load_table

    if isinstance(table, str):
        rows = load_table(table, thinned=False)
        X, y = rows.data, rows.target
    else:
        X, y = make_table(*table)
    lacks = bool(np.isnan(X).any())
    return {
        name: float("nan")
        if lacks and name == "SparseMixture"  # refuses holes
        else fastest(lambda n=name: named(n).fit(X[:most], y[:most]), 2)
        for name in names
    }


def tables(quick: bool) -> Iterator[Figure]:
    """MixtureClassifier(), beside a support vector machine with its 3 x 3 grid in 3 folds."""
    yield from beside_svm(quick, OURS[:1])


def others(quick: bool) -> Iterator[Figure]:
    """The other classifiers with their defaults, beside the same."""
    yield from beside_svm(quick, OURS[1:])


def beside_svm(quick: bool, ours: tuple[str, ...]) -> Iterator[Figure]:
    """Seconds to fit, by those of the support vector machine; the first of ours by name."""
    lightgbm = ("LightGBM",) if find_spec("lightgbm") else ()
    names = (*ours, "SVM", "HistGradientBoosting", *lightgbm)
    asked = (*TABLES[:2], SYNTHETIC[0]) if quick else (*TABLES, *SYNTHETIC)
    found: dict[str, list[float]] = {name: [] for name in ours}
    for table in asked:
        seconds = alone(fit_table, table, 100 if quick else 10**9, names)
        if not isinstance(seconds, dict):
            continue
        label = table if isinstance(table, str) else "{} x {}, {} classes".format(*table)
        for name in ours:
            found[name].append(seconds[name] / seconds["SVM"])
        most = 2.0 if ours == OURS[:1] else 3.0
        yield Figure(label, found[ours[0]][-1], "x SVM", most, beside=said(**seconds))
        if table == SYNTHETIC[0] and ours == OURS[:1]:
            yield Figure(label, seconds["Mixture"], "s", 0.5)
    absent = "" if lightgbm else "LightGBM is not installed"
    for name, ratios in found.items():
        goals = (1.0, 2.0) if name == "Mixture" else (3.0, 3.0)
        what = f"{name}Classifier()"
        median, slowest = float(np.nanmedian(ratios)), float(np.nanmax(ratios))
        yield Figure(f"{what}, median", median, "x SVM", goals[0], beside=absent)
        yield Figure(f"{what}, slowest", slowest, "x SVM", goals[1])


def fit_large(name: str, n_rows: int) -> tuple[float, float]:
    """Seconds, and memory beyond that before the fit as a multiple of the data."""
    X, y = make_table(n_rows, 20, 2)
    model, unit = named(name), 1 if sys.platform == "darwin" else 1024
    named(name).fit(X[:500], y[:500])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = fastest(lambda: model.fit(X, y), 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return spent, grown * unit / X.nbytes


def large(quick: bool) -> Iterator[Figure]:
    """Many rows, two threads. Memory is the peak of the process beyond that with the data."""
    for n_rows, goal in ((200_000, 1.0), (1_000_000, 3.0)):
        count = n_rows // (100 if quick else 1)
        ours = alone(fit_large, "Mixture", count, threads=2)
        theirs = alone(fit_large, "HistGradientBoosting", count, threads=2)
        beside = said(ours=ours[0], theirs=theirs[0])
        what = f"{count:,} x 20"
        yield Figure(what, ours[0] / theirs[0], "x HistGradientBoosting", goal, beside=beside)
    yield Figure(f"{what}, memory", ours[1], "x data", 2.0, beside=f"theirs {theirs[1]:.2g}")


def fit_one(shape: tuple[int, int, int]) -> float:
    X, y = make_table(*shape)
    return fastest(lambda: named("Mixture").fit(X, y))


def threads(quick: bool) -> Iterator[Figure]:
    """Default fits with two threads, by those with one; also beside another busy process."""
    for shape in SYNTHETIC[:1] if quick else SYNTHETIC:
        for where in ("alone", "beside a busy process"):
            busy = ["-c", "while True: pass"] if "busy" in where else ["-c", ""]
            other = subprocess.Popen([sys.executable, *busy])
            one, two = (alone(fit_one, shape, threads=count) for count in (1, 2))
            other.kill()
            what = "{} x {}, {} classes, {}".format(*shape, where)
            yield Figure(what, two / one, "x one thread", 1.1, beside=said(one=one, two=two))


def em(quick: bool) -> Iterator[Figure]:
    """Steps of EM from the same start; ratios of seconds per step."""
    from benchmarks.rivals import em_step

    cases = (
        ("full", (20_000, 50, 10), "float32", "torchgmm", 2.0),
        ("diag", (100_000, 32, 16), "float32", "torchgmm", 1.5),
        ("full", (1_000_000, 16, 8), "float64", "scikit-learn", 4.0),
    )
    for kind, (n, d, k), dtype, rival, goal in cases:
        shape = (n // (50 if quick else 1), d, k)
        sides = dict.fromkeys(("ours", rival, "scikit-learn"))
        seconds = {side: alone(em_step, side, kind, shape, dtype) for side in sides}
        what = f"{kind}, {shape[0]:,} x {d}, K {k}, {dtype}"
        value = seconds[rival] / seconds["ours"]
        yield Figure(what, value, f"x {rival}", goal, True, said(**seconds))


def fit_holes(n_rows: int, one: bool) -> float:
    from mixtura import MixtureDensity

    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 36)) @ rng.normal(size=(36, 36))
    X[rng.random(X.shape) < 0.2] = np.nan
    model = MixtureDensity(1, density="full") if one else MixtureDensity(density="auto")
    return fastest(lambda: model.set_params(random_state=0).fit(X), 2 if one else 1)


def score_holes(n_rows: int, share: float) -> float:
    """Seconds per row of class log-joints: 784 features, 170 components, rank 25."""
    import torch

    from benchmarks.rivals import engine_of, low_rank_mixture

    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, 784))
    mixture = low_rank_mixture(torch.from_numpy(x), 17, torch.Generator().manual_seed(0))
    engine = engine_of(np.where(rng.random(x.shape) < share, np.nan, x))
    return fastest(lambda: engine.concat(mixture.class_log_joint, mixture.density)) / n_rows


def holes(quick: bool) -> Iterator[Figure]:
    """Scattered missing entries: 4,400 x 36 with 20 %; and rows whose patterns all differ."""
    n_rows = 200 if quick else 4_400
    yield Figure("one full Gaussian", alone(fit_holes, n_rows, True), "s", 1.0)
    yield Figure("MixtureDensity, all auto", alone(fit_holes, n_rows, False), "s", 20.0)
    for share in (0.1, 0.3, 0.6, 0.9):
        spent = alone(score_holes, 16 if quick else 512, share)
        yield Figure(f"{share:.0%} missing", 1e3 * spent, "ms per row", 1.0 if share > 0.8 else 3.0)


def epoch(quick: bool) -> Iterator[Figure]:
    """One epoch on the hybrid margin, MNIST's pca50 shape; beside the formulas in plain PyTorch."""
    from benchmarks.rivals import epoch as run

    n_rows = 1_000 if quick else 60_000
    ours, plain = (alone(run, side, n_rows, 50, 10, "cpu") for side in ("ours", "plain"))
    what = f"{n_rows:,} x 50, 100 components, rank 25"
    yield Figure(what, plain / ours, "x plain", 5.0, True, said(ours=ours, plain=plain))


def fit_sequences(side: str, n_sequences: int) -> float:
    """Two classes: hmmlearn's models, one per class; or ours, as a user calls it."""
    from benchmarks.rivals import STATES, sequences
    from mixtura import SequenceMixtureClassifier
    from mixtura.solvers import EM

    parts = [sequences(n_sequences // 2, 50, 200, seed) for seed in (0, 1)]
    y = np.repeat([0, 1], n_sequences // 2)
    if side != "hmmlearn":
        settings = {"method": "ml", "init": EM(5, tol=0.0)} if side == "ml" else {}
        states = STATES if side == "ml" else "auto"
        model = SequenceMixtureClassifier(states, random_state=0, **settings)
        return fastest(lambda: model.fit([*parts[0], *parts[1]], y), 2)
    from hmmlearn.hmm import GaussianHMM

    def fit() -> None:
        for part in parts:
            model = GaussianHMM(STATES, "diag", n_iter=5, tol=-np.inf, random_state=0)
            model.fit(np.concatenate(part), [len(sequence) for sequence in part])

    return fastest(fit, 2)


def hmm(quick: bool) -> Iterator[Figure]:
    """Hidden Markov models beside hmmlearn: six states, ten channels, five iterations."""
    from benchmarks.rivals import baum_welch

    count, long = (20, 500) if quick else (500, 20_000)
    fits = {side: alone(fit_sequences, side, count) for side in ("hmmlearn", "ml", "default")}
    theirs, beside = fits["hmmlearn"], said(**fits)
    what = f"{count} sequences, "
    yield Figure(f"{what}method='ml'", fits["ml"] / theirs, "x hmmlearn", 1.0, beside=beside)
    yield Figure(f"{what}defaults", fits["default"] / theirs, "x hmmlearn", 5.0)
    for shape in ((count, 50, 200), (4, long, long)):
        ours, theirs = (alone(baum_welch, side, shape, False) for side in ("ours", "hmmlearn"))
        what = "{} sequences of {} to {} frames, per iteration".format(*shape)
        beside = said(ours=ours, hmmlearn=theirs)
        yield Figure(what, ours / theirs, "x hmmlearn", 1.0, beside=beside)
    ergodic, ordered = (alone(baum_welch, "ours", (count, 50, 200), way) for way in (False, True))
    yield Figure("left-to-right, per iteration", ordered / ergodic, "x ergodic", 1.5)


def fit_sparse(n_rows: int, digits: bool) -> tuple[float, ...]:
    """Seconds, and errors (in per cent) of ours and of the support vector machine."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True) if digits else make_table(n_rows + 1_000, 20, 2)
    ours, theirs = named("SparseMixture"), named("SVM")
    spent = [fastest(lambda m=m: m.fit(X[:n_rows], y[:n_rows]), 2) for m in (ours, theirs)]
    errors = [100 * (1 - model.score(X[n_rows:], y[n_rows:])) for model in (ours, theirs)]
    return (*spent, *errors)


def sparse(quick: bool) -> Iterator[Figure]:
    """`SparseMixtureClassifier()`, with its error beside that of the support vector machine."""
    for what, n_rows, goal in (("digits", 900, 1.5), ("10,000 x 20", 10_000, 5.0)):
        count = n_rows // (9 if quick else 1)
        ours, theirs, error, other = alone(fit_sparse, count, what == "digits")
        beside = f"SVM {theirs:.3g} s; errors {error:.1f} and {other:.1f} %"
        yield Figure(f"{what}, {count} rows", ours, "s", goal, beside=beside)


def predict_row(name: str, frame: bool) -> float:
    """Milliseconds."""
    from sklearn.datasets import load_wine

    X, y = load_wine(return_X_y=True, as_frame=frame)
    model = named(name).fit(X, y)
    return 1e3 * fastest(lambda: model.predict_proba(X[:1]), 2_000)


def row(quick: bool) -> Iterator[Figure]:
    """`predict_proba` of one row of wine; beside scikit-learn's logistic regression."""
    for what, frame, goal in (("NumPy", False, 0.3), ("a data frame", True, 1.0)):
        ours, theirs = (alone(predict_row, name, frame) for name in ("Mixture", "logistic"))
        yield Figure(f"one row, {what}", ours, "ms", goal, beside=f"theirs {theirs:.2g} ms")


def imports(quick: bool) -> Iterator[Figure]:
    """A fresh interpreter, less the time of an empty one."""
    command = "import sys; sys.argv = ['mixtura', '--help']; from mixtura.cli import main; main()"

    def spent(code: str) -> float:
        run = [sys.executable, "-c", code]
        return fastest(lambda: subprocess.run(run, stdout=subprocess.DEVNULL, check=True), 7)

    empty = spent("")
    yield Figure("`import mixtura`", spent("import mixtura") - empty, "s", 0.2)
    yield Figure("`mixtura --help`", spent(command) - empty, "s", 0.5)


def fit_on_device() -> float:
    X, y = make_table(4_000, 20, 2)
    return fastest(lambda: named("Mixture").set_params(device="cuda").fit(X, y), 2)


def paper_cell() -> float:
    """Seconds per seed of one cell of the hybrid paper's Table 1: 30 epochs and the EM start."""
    from mixtura import papers
    from mixtura.papers.hybrid.table1 import SEEDS

    part = {"only": "mnist-pca50/full/LL+LM", "device": "cuda"}
    with tempfile.TemporaryDirectory() as folder:
        return fastest(lambda: papers.reproduce("hybrid-table1", folder=folder, **part), 1) / SEEDS


def gpu(quick: bool) -> Iterator[Figure]:
    """On a CUDA device."""
    import torch

    from benchmarks.rivals import epoch as run

    if not torch.cuda.is_available():
        print("left out: there is no CUDA device", file=sys.stderr)
        return
    n_rows = 1_000 if quick else 50_000
    ours, plain = (alone(run, side, n_rows, 784, 17, "cuda") for side in ("ours", "plain"))
    what = f"epoch, {n_rows:,} x 784, 170 components"
    yield Figure(what, ours, "s", 0.1, beside=said(plain=plain))
    yield Figure("default fit, 4,000 x 20", alone(fit_on_device), "s", 2.0)
    yield Figure("a cell of the hybrid paper's Table 1", alone(paper_cell), "s", 10.0)


# -- the command -------------------------------------------------------------------------------

SECTIONS = {
    **{
        "tables": tables,
        "others": others,
        "large": large,
        "threads": threads,
        "em": em,
        "holes": holes,
    },
    **{"epoch": epoch, "hmm": hmm, "sparse": sparse, "row": row, "import": imports, "gpu": gpu},
}


def origin() -> str:
    """The commit and the machine."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    chip = models[0] if models else platform.processor() or platform.machine()
    return f"commit {commit}; {os.cpu_count()} cores, {chip}; Python {platform.python_version()}"


def written(path: Path, found: dict[str, str]) -> str:
    """The file, with new sections in place of old ones; what stands before and after them stays."""
    head, *old = path.read_text().split("\n## ") if path.exists() else ["# Speed\n"]
    sections = {part.split("\n", 1)[0]: part.split("\n", 1)[1].strip() for part in old} | found
    names = [name for name in SECTIONS if name in sections]
    names += [name for name in sections if name not in SECTIONS]
    kept = [f"## {name}\n\n{sections[name]}" for name in names]
    return "\n\n".join([head.strip(), *kept]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; none: all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if strange := set(options.sections) - set(SECTIONS):
        parser.error(f"no section is called {', '.join(sorted(strange))}")
    path = options.output or (None if options.quick else OUTPUT)
    for name in options.sections or SECTIONS:
        section = SECTIONS[name]
        command = f"`python -m benchmarks.speed {name}{' --quick' * options.quick}`"
        lines = [f"{section.__doc__}\n\n{command}; {origin()}.\n"]
        lines += ["| | measured | goal | met | beside |", "|---|---|---|---|---|"]
        print(f"\n{name}\n{lines[0]}", flush=True)
        for figure in section(options.quick):
            lines.append(figure.line())
            print(lines[-1], flush=True)
        if path:
            path.write_text(written(path, {name: "\n".join(lines)}))


if __name__ == "__main__":
    main()
