"""
The path through the states
===========================

What a hidden Markov model makes of one sequence: its likeliest path.
"""

from mixtura import SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences
from mixtura.plotting import StatesDisplay

train = make_hmm_sequences(15, random_state=0)
model = SequenceMixtureClassifier(2, method="ml", calibrate=False, random_state=0)
model.fit(train.data, train.target)
StatesDisplay.from_estimator(model, train.data)
