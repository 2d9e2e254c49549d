"""A clinic that orders tests one at a time: what to measure next, and when to stop.

    python examples/clinic.py [picture.png]

Patients come with nothing measured. The ten worst values cost three times as much as the others.
Measuring stops when a diagnosis has a probability of 98 %.
"""

import sys

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from mixtura import MixtureClassifier

DATA = load_breast_cancer()
COST = np.where([name.startswith("worst") for name in DATA.feature_names], 3.0, 1.0)


def visit(model, patients, worth):
    """What is measured of each patient until the diagnosis is sure."""
    known = np.full(patients.shape, np.nan)
    unsure = np.arange(len(patients))
    while len(unsure):
        test = np.where(np.isnan(known[unsure]), worth(known[unsure]), -1.0).argmax(1)
        known[unsure, test] = patients[unsure, test]
        sure = model.predict_proba(known[unsure]).max(1) > 0.98
        unsure = unsure[~sure & np.isnan(known[unsure]).any(1)]
    return known


def main(picture=None, n_patients=60):
    X, new, y, truth = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    new, truth, rng = new[:n_patients], truth[:n_patients], np.random.default_rng(0)
    model = MixtureClassifier(random_state=0).fit(X, y)
    orders = {
        "by information": lambda known: model.next_feature(known, COST),
        "by chance": lambda known: rng.random(known.shape),
    }
    spent = {}
    for name, worth in orders.items():
        known = visit(model, new, worth)
        spent[name] = ~np.isnan(known) @ COST
        right = np.mean(model.predict(known) == truth)
        print(f"{name}: {spent[name].mean():.1f} per patient, {right:.2f} are right")
    print(f"all tests: {COST.sum():.1f} per patient, {model.score(new, truth):.2f} are right")
    if picture:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
        axes.hist(list(spent.values()), bins=15, label=list(spent))
        axes.set(xlabel="cost until a diagnosis has 98 %", ylabel="patients")
        axes.legend()
        figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
