"""A form half filled in: why the answer, what the rest may be, what to ask next, what if.

    python examples/half_filled_form.py [picture.png]

Applicants of a loan state numbers and words, and leave out what they like.
"""

import sys

import numpy as np
import pandas as pd

from mixtura import MixtureClassifier


def make_forms(n_rows, seed):
    """Forms, and whether the loan was paid back; these people do not exist."""
    rng = np.random.default_rng(seed)
    job = rng.choice(["clerk", "farmer", "nurse", "student"], n_rows)
    age = np.where(job == "student", 23, 42) + rng.gamma(4.0, 3.0, n_rows) - 8
    level = pd.Series({"clerk": 31.0, "farmer": 26.0, "nurse": 34.0, "student": 9.0})
    income = level[job].to_numpy() * np.exp(0.3 * rng.normal(size=n_rows))
    owner = rng.random(n_rows) < np.where(age > 40, 0.6, 0.15)
    loan = 0.4 * income * np.exp(0.6 * rng.normal(size=n_rows))
    score = 1.2 - 2.5 * loan / income + 0.9 * owner + 0.6 * rng.normal(size=n_rows)
    home = np.where(owner, "own", "rented")
    forms = pd.DataFrame({"job": job, "age": age, "income": income, "home": home, "loan": loan})
    return forms, np.where(score > 0, "repaid", "lost")


def main(picture=None):
    forms, outcome = make_forms(1_500, 0)
    forms = forms.mask(np.random.default_rng(1).random(forms.shape) < 0.15)
    model = MixtureClassifier("auto", objective="likelihood", random_state=0).fit(forms, outcome)

    form = pd.DataFrame({"job": ["student"], "age": [24.0], "income": [np.nan]})
    form = form.assign(home=[None], loan=[4.5]).astype(forms.dtypes)
    print(form.to_string(index=False))
    why = model.explain(form)
    print(f"p(lost): {model.predict_proba(form)[0, 0]:.2f}, of all {why.base_values[0, 0]:.2f}")
    for name, value in zip(why.feature_names, why.values[0, :, 0], strict=True):
        print(f"  {name:7s} {value:+.2f}")
    print("filled in:", model.impute(form).round(1).to_dict("records")[0])
    print("worth asking, in nats:", model.next_feature(form)[0].round(3))
    owned = model.condition({"home": "own"}).predict_proba(form)[0, 0]
    print(f"p(lost) if the home is owned: {owned:.2f}")
    rows, _ = model.sample(500, y="lost", given={"job": "student", "loan": 4.5}, random_state=0)
    print("incomes of students who did not repay:", np.quantile(rows["income"], [0.05, 0.5, 0.95]))
    if picture:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
        axes.barh(why.feature_names, why.values[0, :, 0])
        axes.set(xlabel="what it adds to p(lost)")
        figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
