"""
Lost frames
===========

Four classes of sequences that differ in how their states follow each other. More and more
frames are lost at prediction: they are integrated out.
"""

import matplotlib.pyplot as plt
import numpy as np

from mixtura import SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences

train = make_hmm_sequences(25, random_state=0)
test = make_hmm_sequences(100, random_state=1)
model = SequenceMixtureClassifier(3, method="ml", random_state=0)
model.fit(train.data, train.target)
shares, errors = np.linspace(0.0, 0.9, 7), []
for share in shares:
    rng = np.random.default_rng(0)
    lost = [np.where(rng.random((len(s), 1)) < share, np.nan, s) for s in test.data]
    errors.append(100 * (1 - model.score(lost, test.target)))
figure, axes = plt.subplots(layout="constrained")
axes.plot(shares, errors, marker="o")
axes.set(xlabel="share of lost frames", ylabel="error (%)", ylim=(0, None))
