"""Models that are grown stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn.utils._param_validation import StrOptions

from mixtura.parts import COUNT, Part

#: How classifiers are grown.
GROWING = ("boosted", "boosted_generative", "adaboost")


@dataclass
class Boosted(Part):
    """A classifier of sequences that is grown one stage at a time.

    Parameters
    ----------
    kind : "boosted", a mixture per class, grown where the classes meet (BxCML);
        "boosted_generative", grown where sequences are not explained yet (BxML); "adaboost", models
        that vote (SAMME, which for two classes is AdaBoost.M1, the paper's BBN), without a density.
    n_stages : at most; fewer where the objective stops to gain, or classes have fewer than two
        sequences per stage.
    """

    kind: str = "boosted"
    n_stages: int = 10

    _parameter_constraints = {"kind": [StrOptions(set(GROWING))], "n_stages": [COUNT]}
