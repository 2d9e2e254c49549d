"""What mixture networks share: mixtures embed, a read-out decides or predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from mixtura.data import UNLABELED, Batch
from mixtura.densities import DENSITIES
from mixtura.engines import Engine, PreparedEngine
from mixtura.estimators.base import (
    MixtureEstimator,
    run_over,
)
from mixtura.estimators.plan import read_counts
from mixtura.exceptions import DegenerateDataWarning, warn
from mixtura.models.mixture import Mixture
from mixtura.models.network import N_DRAWS, RELATIVE, Network
from mixtura.objectives import Objective
from mixtura.parts import resolve
from mixtura.progress import Progress
from mixtura.selection.budget import Budget, warn_if_cut_short
from mixtura.solvers import EM, LBFGS, Adam, LinkedEM, Solver, SpreadPrior
from mixtura.solvers.gradients import evaluate
from mixtura.solvers.linked import ElasticNet, LinkedResult, NetworkPrior
from mixtura.training.groups import Recipe, effective_rows, fit_groups

#: Embeddings that "auto" compares, and how far the mixtures of classes then keep to their own rows.
_COMPARED = {"posterior": 0.0, "log_density": 1.0}
#: Up to so many rows L-BFGS trains end to end, with an iteration for every twenty of them; few rows
#: would be learned by heart, and many need the time to find what tells rare classes.
_SMALL, _ROWS_EACH, _ITERATIONS = 6_000, 20, (40, 150)
#: Chances of categories that all components may have together, where their number is open.
_MOST_CHANCES = 40_000
#: Draws of what is missing in a row: in training, and of rows that are held back; and how often
#: those of training are made anew.
_TRAINING_DRAWS, TRIAL_DRAWS, _ROUNDS = 8, 32, 4


class Variant(NamedTuple):
    """What "auto" may leave open."""

    embedding: str
    specialize: float
    informative: bool


class MixtureNetwork(MixtureEstimator):
    """What classifier and regressor share."""

    _network_class: type[Network] = Network
    specialize: Any = 0.0

    def _variants(self) -> list[Variant]:
        """The embeddings that the parameters leave open, first choice first."""
        return [
            Variant(
                embedding,
                _COMPARED.get(embedding, 0.0) if self.specialize == "auto" else self.specialize,
                self.missingness == "informative",
            )
            for embedding in (_COMPARED if self.embedding == "auto" else [self.embedding])
        ]

    def _may_tell(self, engine: Engine) -> bool:
        """Whether it is left open if holes mean something."""
        return self.missingness == "auto" and engine.has_holes

    def _fit_in_time(
        self,
        variant: Variant,
        engine: Engine,
        draw: Callable[[int], Engine],
        progress: Progress,
        aside: int = 0,
    ) -> LinkedResult:
        """A network of all rows, or of as many as time allows; so many are set aside already."""

        def train(rows: Engine, latest: LinkedResult | None) -> LinkedResult:
            return self._fit_network(variant, rows, self._generator(), progress)

        def loss(result: LinkedResult, rows: Engine) -> float:
            network: Any = replace(result.network, n_draws=TRIAL_DRAWS)
            return evaluate(network, self._objective(rows), rows)[1]

        found = Budget(progress, train, loss, draw, resumes=False).run(engine)
        if warn_if_cut_short(progress, found.n_rows, len(engine), aside):
            return replace(found.model, converged=False)
        by_gradient = self._follows_gradients(found.model.network, engine)
        if not (found.model.converged or progress.stopped or by_gradient):
            warn(
                f"linked EM stopped after max_iter={self._linked_em.max_iter} iterations without "
                "settling; raise max_iter or tol of the solver.",
                ConvergenceWarning,
            )
        return found.model

    def _fit_network(
        self, variant: Variant, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> LinkedResult:
        """A start by EM, linked EM, and gradients through the whole network if they are wanted."""
        mixture, prior = self._start(variant, engine, generator, progress)
        linked, rarity = self._linked_em, self._rarity(engine)
        net = ElasticNet(linked.l1 * rarity, linked.l2 * rarity)
        blank = self._network_class.blank(mixture, variant.embedding)
        found = linked.run(
            replace(blank, n_draws=_TRAINING_DRAWS),
            engine,
            progress,
            specialize=variant.specialize,
            net=net,
            prior=prior,
        )
        if progress.stopped or not self._follows_gradients(found.network, engine):
            return self._finished(found, engine, progress)
        penalties = NetworkPrior(net, self._supervision(engine), prior)
        network = found.network
        for solver in self._gradient_solvers(engine):
            if progress.stopped:
                break
            stay = engine.may_have_missing and isinstance(solver, LBFGS)
            rows = PreparedEngine(engine, network.completed) if stay else engine
            objective: Any = self._objective(engine)
            network = solver.run(
                network, objective, rows, progress, generator=generator, prior=penalties
            ).model
        return self._finished(replace(found, network=network), engine, progress)

    def _follows_gradients(self, network: Network, engine: Engine) -> bool:
        """Whether mixtures and read-out are trained together, after linked EM."""
        taught = self._supervision(engine) > 0
        return self._linked_em.end_to_end and taught and bool(network.weight.any())

    def _finished(self, result: LinkedResult, engine: Engine, progress: Progress) -> LinkedResult:
        """The network as it will predict."""
        return replace(result, network=replace(result.network, n_draws=N_DRAWS))

    def _gradient_solvers(self, engine: Engine) -> list[Solver]:
        """One after the other. Draws of what is missing stay the same within a run of L-BFGS, or
        every step would be one of another function; several runs keep them from being learned."""
        if len(engine) > _SMALL:
            return [Adam()]
        rounds = _ROUNDS if engine.may_have_missing else 1
        iterations = int(np.clip(len(engine) / _ROWS_EACH, *_ITERATIONS))
        return [LBFGS(iterations // rounds)] * rounds

    @property
    def _linked_em(self) -> LinkedEM:
        return resolve(self.solver, {"linked_em": LinkedEM})

    def _rarity(self, engine: Engine) -> float:
        """What penalties of the read-out are multiplied by."""
        return 1.0

    def _supervision(self, engine: Engine) -> float:
        """How many rows' losses of the read-out the objective of the gradients holds."""
        raise NotImplementedError

    def _objective(self, engine: Engine) -> Objective:
        raise NotImplementedError

    def _start(
        self, variant: Variant, engine: Engine, generator: torch.Generator, progress: Progress
    ) -> tuple[Mixture, SpreadPrior | None]:
        """EM on all rows, once for all classes; or on the rows of each, where that is its share."""
        n_classes, everyone = self._n_mixtures, engine.single_class()
        engines = [everyone] * n_classes
        if variant.specialize > 0.5 and n_classes > 1:
            own = (engine.labeled_as(label) for label in range(n_classes))
            engines = [rows.single_class() if len(rows) else everyone for rows in own]
        counts = self._counts(engines, variant)
        alike = len({id(engine) for engine in engines}) == 1 and len(set(counts or [0])) == 1
        fitted = 1 if alike else n_classes
        structure = resolve(self.density, DENSITIES).candidates(engine.n_numbers)[0]
        em = resolve(self.init, {"em": partial(EM, max_iter=50, tol=0.01)})
        recipe = Recipe(structure, em, self.prior_rows, variant.informative)
        counts = None if counts is None else counts[:fitted]
        start = fit_groups(engines[:fitted], counts, recipe, generator, progress)
        mixtures = [result.model for result in start.results] * (n_classes if alike else 1)
        even = mixtures[0].log_weight.new_full((n_classes,), 1.0 / n_classes).log()
        return Mixture.join(mixtures, even, learn_prior=True), start.prior

    def _counts(self, engines: Sequence[Engine], variant: Variant) -> list[int] | None:
        """Components of each mixture, no more than its rows; None lets a criterion decide.

        A read-out of posteriors wants more components than the density of the rows does; columns
        of thousands of categories, each with its chance in every component, have fewer.
        """
        most = np.array([len(engine) for engine in engines])
        if isinstance(self.n_components, str):
            if variant.specialize > 0.5:
                return None
            rows = np.array([effective_rows(engine) for engine in engines])
            chances = sum(sum(engine.levels) for engine in engines)
            most = np.minimum(most, max(2, _MOST_CHANCES // max(1, chances)))
            return np.clip(np.rint(2.0 * np.cbrt(rows)).astype(int), 1, most).tolist()
        wanted = read_counts(self.n_components, np.arange(len(engines)))
        if (wanted > most).any():
            warn(
                "more components than rows: there is one a row then. Remedy: a smaller "
                "n_components, or 'auto'.",
                DegenerateDataWarning,
            )
        counts = np.minimum(wanted, most)
        if variant.embedding in RELATIVE and (counts == 1).any():
            warn(
                f"a component alone has the {variant.embedding} one, whatever the row, and tells "
                "nothing. Remedy: n_components=2 or more, or embedding='log_density'.",
                DegenerateDataWarning,
            )
        return counts.tolist()

    # -- what a fitted network answers -----------------------------------------------------------

    @property
    def _n_mixtures(self) -> int:
        return 1

    def _keep(
        self, result: LinkedResult, variant: Variant, engine: Engine, progress: Progress
    ) -> None:
        """Fitted attributes."""
        network = result.network.to("cpu", torch.float64)
        self._publish(result.network.mixture, engine.scaling)
        self._publish_scores(engine, progress, result.prior)
        self.n_iter_, self.converged_ = result.n_iter, result.converged
        self.coef_, self.intercept_ = network.weight.numpy(), network.bias.numpy()
        self.embedding_shift_, self.embedding_scale_ = network.shift.numpy(), network.scale.numpy()
        self.embedding_, self.specialize_ = variant.embedding, variant.specialize
        if self._linked_em.l1 > 0 and not self.coef_.any() and self._supervision(engine):
            warn(
                "the read-out uses no component, and predicts the same for all rows. Remedy: a "
                "smaller l1, or more components.",
                DegenerateDataWarning,
            )
        self.missingness_ = "informative" if variant.informative else "ignore"
        self.n_components_ = list(network.mixture.layout.counts)
        self.history_ = progress.history

    def _network(self) -> Network:
        check_is_fitted(self)
        read_out = (self.coef_, self.intercept_, self.embedding_shift_, self.embedding_scale_)
        blank = self._network_class.blank(self.mixture_, self.embedding_)
        return blank.with_read_out(*map(torch.from_numpy, read_out))

    def _outputs(self, rows: np.ndarray) -> np.ndarray:
        """What the network makes of checked rows."""
        return run_over(
            self._network(), self._table(rows), lambda n, b: n.class_log_joint(b)
        ).numpy()

    def transform(self, X: Any) -> np.ndarray:
        """The embedding of each row, (n, K), in the units of the read-out."""
        network, rows = self._network(), self._check_X(X, reset=False)
        return run_over(network, self._table(rows), lambda n, b: n.embed(b)).numpy()

    def _draw(self, count: int, generator: torch.Generator) -> Batch:
        """Rows from the mixtures, in the model's units."""
        mixture = self._density_model()
        chance = mixture.log_joint_weight.exp()
        component = torch.multinomial(chance, count, replacement=True, generator=generator)
        rows = mixture.density.sample(component, generator)
        return Batch(rows, None, torch.full((count,), UNLABELED), torch.ones_like(rows[:, 0]))

    def cluster(self, X: Any) -> np.ndarray:
        """The component that each row most probably belongs to, (n,)."""
        return self.responsibilities(X).argmax(1)
