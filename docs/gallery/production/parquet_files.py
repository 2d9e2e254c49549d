"""
Rows that stay in files
=======================

EM goes through Parquet files block by block, and ends with the model that the table in memory
would have given.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mixtura import MixtureDensity

rng = np.random.default_rng(0)
centers = 4.0 * rng.normal(size=(4, 3))
X = centers[rng.integers(0, 4, 6000)] + rng.normal(size=(6000, 3))
table = pd.DataFrame(X, columns=list("abc")).mask(rng.random(X.shape) < 0.1)
memory, files = (MixtureDensity(4, density="full", random_state=0) for _ in range(2))
memory.fit(table)
with tempfile.TemporaryDirectory() as folder:
    for part in range(3):
        table[part::3].to_parquet(Path(folder) / f"{part}.parquet", index=False)
    files.fit(f"{folder}/*.parquet")
figure, axes = plt.subplots(layout="constrained")
for model, name, style in ((memory, "in memory", "o"), (files, "from files", "-")):
    axes.plot([record["objective"] for record in model.history_], style, label=name)
axes.set(xlabel="iteration of EM", ylabel="objective")
axes.legend(frameon=False)
