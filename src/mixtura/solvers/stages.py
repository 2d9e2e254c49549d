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
    rivals : of "boosted": a stage looks at sequences as probable as they are of "all" other
        classes together, or of the "strongest" rival, beside which their own class stands
        (pairwise confusion).
    together : of "boosted": whether all stages are trained on, together, for the conditional
        likelihood once growth has ended, by the solver of discriminative objectives.
    """

    kind: str = "boosted"
    n_stages: int = 10
    rivals: str = "all"
    together: bool = False

    _parameter_constraints = {
        "kind": [StrOptions(set(GROWING))],
        "n_stages": [COUNT],
        "rivals": [StrOptions({"all", "strongest"})],
        "together": ["boolean"],
    }
