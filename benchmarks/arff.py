"""Tables of other people's collections, in files of attributes and rows (ARFF)."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch

#: A class with fewer rows is left out: splits and one label in ten need some.
FEWEST_ROWS = 10
#: The tables by name, in the folder that MIXTURA_TABLES names.
FILES = {
    path.stem: path
    for path in sorted(Path(os.environ.get("MIXTURA_TABLES", os.devnull)).glob("*.arff"))
}


def read_arff(path: Path) -> Bunch:
    """Rows (n, columns) with categories as codes and holes as NaN, classes, a mask of categories.

    The class is the column of that name, or the last. Names, dates and identifiers (text of more
    than 50 kinds) are left out.
    """
    text = path.read_text(encoding="latin-1")
    head, body = re.split(r"^@data", text, maxsplit=1, flags=re.IGNORECASE | re.MULTILINE)
    attributes = [
        line.strip().split(None, 1)[1]
        for line in head.splitlines()
        if line.lower().startswith("@attribute")
    ]
    names, kinds = zip(*map(_parted, attributes), strict=True)
    lines = (line for line in body.splitlines()[1:] if line.strip() and line.strip()[0] not in "%@")
    rows = [
        [field.strip().strip("'\"") for field in fields]
        for fields in csv.reader(lines, quotechar="'", skipinitialspace=True)
    ]
    columns = np.array([row for row in rows if len(row) == len(names)]).T
    last = next((i for i, name in enumerate(names) if name.lower() == "class"), len(names) - 1)
    number, count = np.unique(columns[last], return_inverse=True, return_counts=True)[1:]
    kept = (count[number] >= FEWEST_ROWS) & (columns[last] != "?")
    data, categorical = [], []
    for i, kind in enumerate(kinds):
        values = columns[i][kept]
        hole = np.isin(values, ("?", "<null>", ""))
        text = not kind.lower().startswith(("real", "numeric", "integer"))
        if i == last or hole.all() or (text and len(set(values)) > 50):
            continue
        codes = np.full(len(values), np.nan)
        codes[~hole] = (
            np.unique(values[~hole], return_inverse=True)[1]
            if text
            else values[~hole].astype(float)
        )
        data.append(codes)
        categorical.append(text)
    return Bunch(
        data=np.array(data).T, target=number[kept], categorical=np.array(categorical, bool)
    )


def _parted(attribute: str) -> tuple[str, str]:
    """The name and the kind of `name kind`, where the name may be quoted."""
    if attribute[0] in "'\"":
        name, _, kind = attribute[1:].partition(attribute[0])
    elif "{" in attribute and " " not in attribute.partition("{")[0].strip():
        name, brace, kind = attribute.partition("{")
        kind = brace + kind
    else:
        name, _, kind = attribute.replace("\t", " ").partition(" ")
    return name.strip(), kind.strip()
