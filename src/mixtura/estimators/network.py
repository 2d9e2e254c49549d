"""What mixture networks share: mixtures embed, a read-out decides or predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import StrOptions

from mixtura.data.batch import UNLABELED, Batch
from mixtura.data.curves import KINDS, TAMED
from mixtura.data.given import ArrayLike
from mixtura.data.scaling import Scaling
from mixtura.data.schema import Schema
from mixtura.densities import DENSITIES, Structure
from mixtura.engines import Engine
from mixtura.estimators.answering import DensityEstimator
from mixtura.estimators.base import CONSTRAINTS
from mixtura.estimators.blending import has_far_numbers
from mixtura.exceptions import DegenerateDataWarning, UnsupportedError, warn
from mixtura.models.fitted import Fitted
from mixtura.models.mixture import Mixture
from mixtura.models.network import Network
from mixtura.models.read_out import EMBEDDINGS
from mixtura.objectives import Objective
from mixtura.parts import SHARE, resolve
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, warn_if_cut_short
from mixtura.selection.chooser import Chooser, Contender
from mixtura.selection.typical import typical_quantiles
from mixtura.solvers import EM, LinkedEM
from mixtura.solvers.em import enough_gain
from mixtura.solvers.gradients import evaluate
from mixtura.solvers.linked import LinkedResult
from mixtura.training.groups import Recipe
from mixtura.training.networks import NetworkPlan

_Chooser = Chooser[NetworkPlan, LinkedResult]

#: Embeddings that "auto" compares.
_COMPARED = ("posterior", "log_density")
#: Missing numbers up to which networks of several folds are trained side by side: each has draws
#: and matrices of its own for every row with holes.
_STACKED = 1_200
#: What the parameters of both may be.
NETWORK_CONSTRAINTS: dict[str, list[object]] = CONSTRAINTS | {
    "embedding": [StrOptions({"auto", *EMBEDDINGS})],
    "marginals": [StrOptions({"auto", "linear", TAMED, *KINDS})],
    "tradeoff": [SHARE],
    "solver": [StrOptions({"linked_em"}), LinkedEM],
}


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkEstimator(DensityEstimator):
    """What classifier and regressor share."""

    embedding: str = "auto"
    density: str | Structure = "diag"
    tradeoff: float = 0.2
    solver: str | LinkedEM = "linked_em"
    init: str | EM = "em"
    prior_rows: float = 3.0
    missingness: str = "auto"
    marginals: str = "auto"
    standardize: bool = True

    n_iter_: int = field(init=False)
    converged_: bool = field(init=False)

    # -- attributes ----------------------------------------------------------------------------

    @property
    def network_(self) -> Network:
        """The fitted mixtures and their read-out, in the model's units."""
        model = self._fitted.model
        assert isinstance(model, Network)
        return model

    @property
    def coef_(self) -> np.ndarray:
        """(K,) weights of the components in the read-out."""
        return self.network_.weight.numpy()

    @property
    def intercept_(self) -> np.ndarray:
        """(C,) biases of the read-out."""
        return self.network_.bias.numpy()

    @property
    def embedding_(self) -> str:
        """What components make of a row."""
        return self.network_.embedding

    @property
    def n_components_(self) -> list[int]:
        """Components of each mixture."""
        return list(self.mixture_.layout.counts)

    def cluster(self, X: ArrayLike) -> np.ndarray:
        """The component that each row most probably belongs to, (n,)."""
        return self.responsibilities(X).argmax(1)

    # -- fitting -------------------------------------------------------------------------------

    def _plans(
        self,
        engine: Engine,
        n_classes: int,
        counts: np.ndarray | None,
        term: Objective | None,
        unlabeled_weight: float,
        marginals: str,
    ) -> list[NetworkPlan]:
        """One for every embedding that is left open, the first choice first."""
        wanted = resolve(self.density, DENSITIES)
        structure = wanted.candidates(engine.n_numbers)[0]
        if not structure.closed_form:
            raise UnsupportedError(
                f"linked EM needs closed-form updates, and density={self.density!r} has none: use "
                "a density that has them, such as 'low_rank', or MixtureClassifier."
            )
        em = resolve(self.init, {"em": partial(EM, max_iter=50, tol=enough_gain(engine.n_numbers))})
        linked = resolve(self.solver, {"linked_em": LinkedEM})
        recipe = Recipe(structure, em, self.prior_rows, self.missingness == "informative")
        lacking = engine.has_holes and engine.n_features - engine.values_per_row
        costly = len(engine) * lacking > _STACKED
        return [
            NetworkPlan(
                n_classes=n_classes,
                counts=counts,
                embedding=embedding,
                recipe=recipe,
                linked=linked,
                term=term,
                tradeoff=self.tradeoff,
                thins=getattr(wanted, "rank", None) == "auto",
                unlabeled_weight=unlabeled_weight,
                together=n_classes > 1 and not costly,
                marginals=marginals,
            )
            for embedding in (_COMPARED if self.embedding == "auto" else [self.embedding])
        ]

    def _asks_units(self, engine: Engine) -> bool:
        """Whether curves for the columns are worth a comparison with straight lines."""
        return self.marginals == "auto" and self.standardize and has_far_numbers(engine)

    @staticmethod
    def _best(
        chooser: _Chooser,
        plans: list[NetworkPlan],
        curves: Scaling | None,
        asks: bool,
        clearly_beats: Callable[..., bool],
    ) -> tuple[Contender[NetworkPlan, LinkedResult], LinkedResult | None, _Chooser]:
        """The best embedding by short trials, trained further; and whether holes mean something.

        The same along curves, if these are in question. Beside it its short trial on all rows,
        where there was any, and what compared it with others in its units.
        """
        several = len(plans) > 1
        ways = [each.shortened() for each in plans] if several else plans
        best = chooser.race(ways, "embedding", whole=several)
        if curves is not None:
            along = chooser.under(curves)
            best = along.challenge(best, [replace(best.way, marginals=TAMED)], question="marginals")
            chooser = along if best.way.marginals == TAMED else chooser
        others = [best.way.informative()] if asks else []
        best = chooser.challenge(best, others, clearly_beats, "missingness")
        whole = best.whole
        if several and best.models:
            chooser.deepen(best, best.way.resumed(dict(enumerate(best.models))))
        return best, whole, chooser

    @staticmethod
    def _of_trials(
        chooser: _Chooser, best: Contender[NetworkPlan, LinkedResult], engine: Engine
    ) -> list[tuple[Mixture, Engine]]:
        """Mixtures of trials, with the rows that each had not seen, where all were compared on."""
        unseen = chooser.unseen(best) if chooser.saw_all(engine) else []
        return [(each.network.mixture, rows) for each, rows in unseen]

    def _train(
        self,
        plan: NetworkPlan,
        engine: Engine,
        generator: torch.Generator,
        progress: Progress,
        aside: int = 0,
    ) -> LinkedResult:
        """A network of all rows, or of as many as time allows; so many are set aside already."""

        def train(rows: Engine, own: torch.Generator, latest: LinkedResult | None) -> LinkedResult:
            return plan.train(rows, own, progress)

        def loss(result: LinkedResult, rows: Engine) -> float:
            network = plan.for_trials(result.network)
            return evaluate(network, plan.objective(rows), rows)[1]

        found = Budget(progress, train, loss, generator, resumes=False).run(engine)
        if warn_if_cut_short(progress, found.n_rows, len(engine), aside):
            return replace(found.model, converged=False)
        by_gradient = plan.follows_gradients(found.model.network, engine)
        if not (found.model.converged or progress.stopped or by_gradient):
            warn(
                f"linked EM stopped after max_iter={plan.linked.max_iter} iterations without "
                "settling; raise max_iter or tol of the solver.",
                ConvergenceWarning,
            )
        return found.model

    def _publish(
        self,
        result: LinkedResult,
        plan: NetworkPlan,
        engine: Engine,
        schema: Schema,
        progress: Progress,
        unseen: Sequence[tuple[Mixture, Engine]],
        **answers: ArrayLike,
    ) -> None:
        """The fitted model, and how it came about; `answers` are further fields of the model.

        Mixtures of trials come with the rows that they had not seen.
        """
        mixture, prior = result.network.mixture, result.prior
        typical = typical_quantiles(mixture, engine, prior, progress, unseen)
        network = result.network.to("cpu", torch.float64)
        self.model_ = Fitted(network, engine.scaling, schema, typical=typical, **answers)
        self.n_iter_, self.converged_ = result.n_iter, result.converged
        self.history_ = progress.history
        if plan.linked.l1 > 0 and not self.coef_.any() and plan.supervision(engine):
            warn(
                "the read-out uses no component, and predicts the same for all rows. Remedy: a "
                "smaller l1 of the solver, or more components.",
                DegenerateDataWarning,
            )


def draw_rows(mixture: Mixture, count: int, generator: torch.Generator) -> Batch:
    """Rows from all mixtures of a network, in the model's units."""
    chance = mixture.log_joint_weight.exp()
    component = torch.multinomial(chance, count, replacement=True, generator=generator)
    rows = mixture.density.sample(component, generator)
    return Batch(rows, None, torch.full((count,), UNLABELED), torch.ones_like(rows[:, 0]))
