"""
Fisher scores: sequences for other learners
===========================================

The gradient of the log density by the parameters makes a row of every sequence, which a support
vector machine takes.
"""

from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from mixtura import FisherScores, SequenceMixtureClassifier
from mixtura.datasets import make_hmm_sequences

train, test = (make_hmm_sequences(25, random_state=seed) for seed in (0, 1))
chains = SequenceMixtureClassifier(2, method="ml", calibrate=False, random_state=0)
machine = make_pipeline(FisherScores(chains), StandardScaler(), SVC())
print("hidden Markov models", chains.fit(train.data, train.target).score(test.data, test.target))
print("their scores, SVM   ", machine.fit(train.data, train.target).score(test.data, test.target))
