"""
Numbers, words and empty fields
===============================

A data frame goes in as it is. Given what is known, every empty field has a distribution:
chances of words, and means of numbers.
"""

import numpy as np
import pandas as pd

from mixtura import MixtureClassifier
from mixtura.plotting import MarginalsDisplay

rng = np.random.default_rng(0)
ill = rng.integers(0, 2, 400)
form = pd.DataFrame(
    {
        "age": rng.normal(50 + 8 * ill, 10),
        "pressure": rng.normal(120 + 10 * ill, 12),
        "smoker": np.where(rng.random(400) < 0.2 + 0.4 * ill, "yes", "no"),
        "ward": rng.choice(["north", "south", "east"], 400),
    }
)
form = form.mask(rng.random(form.shape) < 0.15)  # one field in seven is empty
names = np.array(["well", "ill"])[ill]
model = MixtureClassifier(1, objective="likelihood", random_state=0).fit(form, names)
MarginalsDisplay.from_estimator(model)

# %%
# The first rows, their empty fields filled in, and the chances of the third column:
print(model.impute(form.head(4)).round(1))
print(model.category_proba(form.head(4), "smoker").round(2))
