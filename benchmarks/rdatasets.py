"""Tables of R packages as ARFF files: those that github.com/vincentarelbundock/Rdatasets keeps.

    python -m benchmarks.rdatasets FOLDER_OF_CSV FOLDER_OF_ARFF

The class of a table is its last column of words that has two to eight kinds, each of twelve rows or
more; tables have 120 to 50,000 rows (3,000 of them are drawn), four to 60 columns, and a size that
no other has. Identifiers, and columns that count the rows, are left out. A forest must make 15 %
fewer errors than the most frequent class, and must not be always right.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

IDENTIFIERS = ("rownames", "unnamed: 0", "id", "subject", "x")
BYTES, ROWS, COLUMNS, KINDS = (3_000, 3_000_000), (120, 50_000), (4, 60), (2, 8)
#: Tables that had been used here, their relatives, field trials of position alone, repetitions.
LEFT_OUT = re.compile(
    r"Pima|biopsy|brca|titanic|penguins|peng$|uniformity|spam7|sdtm|_national_forecast|"
    r"seat_forecast|state_forecast|wday|US_births|Births|hpc_cv|epa2021|besag|samplonomy|gapminder|"
    r"email_test|complete_old|OASIS_cross|HELPmiss|plm.Crime|vcd.Baseball|HSAUR.epil|MASS.epil|"
    r"tidyr|quartets|cleveland.soil|waynick",
    re.IGNORECASE,
)
FEWEST, MOST_ROWS, MOST_KINDS, TRIED = 12, 3_000, 20, 1_500


def is_words(column: pd.Series) -> bool:
    return not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)


def is_class(column: pd.Series) -> bool:
    count = column.dropna().astype(str).value_counts()
    fits = KINDS[0] <= len(count) <= KINDS[1] and count.min() >= FEWEST
    return is_words(column) and fits and count.sum() >= ROWS[0]


def kept(column: pd.Series) -> bool:
    """Whether a column can tell anything but the number of its row."""
    if is_words(column):
        return 2 <= column.dropna().astype(str).nunique() <= MOST_KINDS
    values = column.to_numpy(float)
    return column.nunique() > 1 and not (np.diff(values) > 0).all()


def read(path: Path) -> tuple[pd.DataFrame, pd.Series] | None:
    """Features and classes; None of tables that are no such ones."""
    table = pd.read_csv(path, low_memory=False)
    table = table.drop(columns=[c for c in table if str(c).lower() in IDENTIFIERS])
    fits = ROWS[0] <= len(table) <= ROWS[1] and COLUMNS[0] <= table.shape[1] <= COLUMNS[1]
    target = next((c for c in reversed(table.columns) if is_class(table[c])), None)
    if not fits or target is None:
        return None
    table = table[table[target].notna()]
    X, y = table.drop(columns=target), table[target].astype(str)
    X = X[[c for c in X if kept(X[c])]]
    some = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    return None if X.shape[1] < COLUMNS[0] - 1 else (X.iloc[some], y.iloc[some])


def has_signal(X: pd.DataFrame, y: pd.Series) -> bool:
    """Whether a forest finds some, and not all is told."""
    codes = X.apply(lambda c: c.astype(str).factorize()[0] if is_words(c) else c.fillna(c.median()))
    forest = RandomForestClassifier(40, random_state=0)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    right = cross_val_score(forest, codes.iloc[:TRIED], y.iloc[:TRIED], cv=folds).mean()
    frequent = y.value_counts(normalize=True).max()
    return 0.005 < 1.0 - right < 0.85 * (1.0 - frequent)


def arff(X: pd.DataFrame, y: pd.Series) -> str:
    """Attributes and rows."""
    quoted = {
        c: X[c].astype(str).map(_quoted).where(X[c].notna(), "?") for c in X if is_words(X[c])
    }
    columns = [quoted.get(c, X[c].map(repr, na_action="ignore").fillna("?")) for c in X]
    kinds = [_kinds(X[c].dropna()) if c in quoted else "numeric" for c in X]
    head = [f"@attribute {_quoted(c)} {kind}" for c, kind in zip(X, kinds, strict=True)]
    rows = map(",".join, zip(*columns, y.map(_quoted), strict=True))
    return "\n".join(["@relation table", *head, f"@attribute class {_kinds(y)}", "@data", *rows])


def _kinds(words: pd.Series) -> str:
    return "{" + ",".join(sorted(set(words.astype(str).map(_quoted)))) + "}"


def _quoted(word: object) -> str:
    return "'" + re.sub(r"[\\'\n,%]+", " ", str(word)).strip() + "'"


def seen_first(folder: Path) -> tuple[list[str], list[str]]:
    """The 104 tables that were looked at, no more than six of a package, and the others."""
    names = [n for n in sorted(p.stem for p in folder.glob("*.arff")) if not LEFT_OUT.search(n)]
    random.Random(17).shuffle(names)
    packages = [name.partition(".")[0] for name in names]
    few = [name for i, name in enumerate(names) if packages[:i].count(packages[i]) < 6]
    return sorted(few[:104]), sorted(set(names) - set(few[:104]))


def main(source: Path, folder: Path) -> None:
    seen = set[tuple[int, int]]()
    for path in sorted(source.rglob("*.csv")):
        small = BYTES[0] < path.stat().st_size < BYTES[1]
        found = read(path) if small else None
        if found is None or found[0].shape in seen:
            continue
        seen.add(found[0].shape)
        if has_signal(*found):
            name = re.sub(r"[^A-Za-z0-9.]+", "_", f"{path.parent.name}.{path.stem}")
            (folder / f"{name}.arff").write_text(arff(*found), encoding="latin-1", errors="replace")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
