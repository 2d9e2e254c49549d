"""A machine whose sensors fail: how sure it still is, and which sensor lies.

    python examples/failing_sensors.py [picture.png]

Twenty-one sensors follow a wave of one of three shapes. They drop out one after another; then one
is stuck at a value that is possible by itself, but not beside its neighbors.
"""

import sys

import numpy as np

from mixtura import MixtureClassifier
from mixtura.datasets import make_waveform


def main(picture=None):
    rng = np.random.default_rng(0)
    table = make_waveform(1_200, random_state=0)
    (X, new), (y, truth) = np.split(table.data, [1_000]), np.split(table.target, [1_000])
    classes, truth = np.unique(truth, return_inverse=True)
    model = MixtureClassifier(random_state=0).fit(X, y)
    lines = []
    for count in (0, 4, 8, 12, 16, 20):
        lost = rng.random(new.shape).argsort(1) < count  # others in every row
        shown = np.where(lost, np.nan, new)
        right = np.mean(model.predict(shown) == classes[truth])
        sets = model.predict_set(shown, 0.9)
        covers = sets[np.arange(len(truth)), truth].mean()
        lines.append((count, right, covers, sets.sum(1).mean()))
        print("{} sensors lost: {:.2f} right, sets cover {:.2f} and hold {:.2f}".format(*lines[-1]))

    plain = MixtureClassifier(1, density="full", objective="likelihood", random_state=0).fit(X, y)
    stuck = new.copy()
    stuck[:, 9] = new[:, 9].min()
    rejected = plain.predict(stuck, reject=0.01, unknown=-1) == -1
    why = plain.explain(stuck[rejected][:20], "log_density")
    blamed = np.bincount(why.values.argmin(1), minlength=21)
    sound = np.mean(plain.predict(new, reject=0.01, unknown=-1) == -1)
    print(
        f"sensor 9 is stuck: {rejected.mean():.0%} of rows are rejected, {sound:.1%} of sound ones"
    )
    print(f"{blamed[9]} of {blamed.sum()} explanations blame it")
    if picture:
        import matplotlib.pyplot as plt

        figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
        count, *curves = np.array(lines).T
        for curve, label in zip(curves, ("right", "sets cover", "classes in a set"), strict=True):
            left.plot(count, curve, marker="o", label=label)
        left.set(xlabel="sensors lost")
        left.legend()
        right.bar(range(21), why.values.mean(0))
        right.set(xlabel="sensor", ylabel="what it adds to log p(x)")
        figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
