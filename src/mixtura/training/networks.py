"""Networks of mixtures: a start by EM, linked EM, and gradients through the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from mixtura.engines import Engine, Prepared
from mixtura.exceptions import DegenerateDataWarning, warn
from mixtura.models.mixture import Mixture
from mixtura.models.network import RELATIVE, Network, NetworkStack, RegressionNetwork
from mixtura.models.read_out import N_DRAWS
from mixtura.objectives import Objective, Regression, beside_likelihood, likelihood_share
from mixtura.progress import Progress
from mixtura.solvers import LBFGS, Adam, FitResult, LinkedEM, Solver, SpreadPrior
from mixtura.solvers.elastic_net import ElasticNet, NetworkPrior
from mixtura.solvers.linked import LinkedResult, with_class_shares
from mixtura.training.groups import NOTHING, Folds, Groups, Recipe, effective_rows, fit_groups

#: Up to so many rows L-BFGS trains end to end, with an iteration for every twenty of them; few rows
#: would be learned by heart, and many need the time to find what tells rare classes.
_SMALL, _ROWS_EACH, _ITERATIONS = 6_000, 20, (40, 150)
#: Rows of a component of all classes per direction of its low-rank part, where the rank is left
#: open; and the least rank.
_ROWS_PER_RANK, _LEAST_RANK = 8, 3
#: Chances of categories that all components may have together, where their number is open.
_MOST_CHANCES = 40_000
#: Draws of what is missing in a row: in training, and of rows that are held out; and how often
#: those of training are made anew.
_TRAINING_DRAWS, _TRIAL_DRAWS, _ROUNDS = 8, 32, 4
#: Penalties of the read-out are lessened so far at most where classes are rare.
_LEAST_RARITY = 0.1
#: Iterations that tell which of several candidates is best; and those that all rows are left where
#: the start has had them all, without some rows. Share of the objective that the last one gains,
#: where rows are complete.
_GLIMPSE, _LAST, _GAIN = 12, 20, 1e-4

AnyNetwork = TypeVar("AnyNetwork", Network, NetworkStack)


@dataclass(frozen=True)
class NetworkPlan:
    """How a network is trained: nothing is left open.

    Attributes
    ----------
    n_classes : 0 where the network predicts a number, or nothing.
    counts : components of each mixture, or of all; None leaves them to the rows.
    recipe : of the start, by EM.
    thins : whether components of all classes may have a lower rank than it says.
    term : discriminative term of the objective; None is the squared error of a number.
    tradeoff : share of the likelihood per observed value beside it.
    unlabeled_weight : of unlabeled rows in the likelihood, where they take part; 0 sets them aside.
    together : whether trials on several folds are trained side by side.
    short : whether trials have just a glimpse of the iterations of gradients.
    begin : what it begins with, the results of short trials by the fold that they held out.
    settles : whether that has had all iterations, and few are left.
    marginals : how the numbers are mapped in whose units it is trained.
    """

    n_classes: int
    counts: np.ndarray | None
    embedding: str
    recipe: Recipe
    linked: LinkedEM
    term: Objective | None
    tradeoff: float
    thins: bool = False
    unlabeled_weight: float = 0.5
    together: bool = False
    short: bool = False
    begin: Mapping[int, LinkedResult] = field(default_factory=dict)
    settles: bool = False
    marginals: str = "linear"

    @property
    def specialize(self) -> float:
        """How much less the rows of other classes count for the mixture of a class."""
        return 0.0 if self.term is None else self.linked.specialized(self.embedding)

    @property
    def settings(self) -> dict[str, object]:
        """What candidates differ in."""
        return {
            "embedding": self.embedding,
            "missingness": self.recipe.missingness,
            "unlabeled_weight": self.unlabeled_weight,
            "marginals": self.marginals,
        }

    def informative(self) -> NetworkPlan:
        """The same, with components that also differ in which entries are absent."""
        return replace(self, recipe=replace(self.recipe, informative=True))

    def whole(self) -> NetworkPlan:
        """The same, from the beginning to the end."""
        return replace(self, short=False, begin={}, settles=False)

    def shortened(self) -> NetworkPlan:
        """The same, with so few iterations of gradients as tell candidates apart."""
        return replace(self, short=True)

    def resumed(self, begin: Mapping[int, LinkedResult]) -> NetworkPlan:
        """The same, with the iterations that short trials have left."""
        return replace(self, short=False, begin=begin)

    def settling(self, begin: LinkedResult) -> NetworkPlan:
        """The same, on all rows, from a network of some of them on."""
        return replace(self, short=False, begin={NOTHING: begin}, settles=True)

    def trials(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[LinkedResult]:
        """The networks of trials; each learns from the rows of the other folds."""
        begin = [self.begin[number] for number in folds.held_out if self.begin]
        if len(folds.held_out) == 1:
            engine = folds.shown(engine, 0)
            folds = Folds.none(engine)
        found = self._trained(engine, folds, generator, progress, begin)
        if self.short:
            return found
        found = [self._with_shares(each, engine, progress) for each in found]
        return [replace(each, network=self.for_trials(each.network)) for each in found]

    @staticmethod
    def for_trials(network: Network) -> Network:
        """The network with fewer draws of what is missing."""
        return replace(network, n_draws=_TRIAL_DRAWS)

    def train(self, engine: Engine, generator: torch.Generator, progress: Progress) -> LinkedResult:
        """A network of the rows."""
        begin = [self.begin[NOTHING]] if self.begin else []
        (found,) = self._trained(engine, Folds.none(engine), generator, progress, begin)
        many = replace(found, network=replace(found.network, n_draws=N_DRAWS))
        return self._with_shares(many, engine, progress)

    def _trained(
        self,
        engine: Engine,
        folds: Folds,
        generator: torch.Generator,
        progress: Progress,
        begin: Sequence[LinkedResult],
    ) -> list[LinkedResult]:
        """One network per trial, begun anew or with others."""
        if self.unlabeled_weight == 0.0:
            folds, engine = folds.only(engine.labeled), engine.only(engine.labeled)
        begun = begin or self._begun(engine, folds, generator, progress)
        networks = [replace(each.network, n_draws=_TRAINING_DRAWS) for each in begun]
        if any(self.follows_gradients(each, engine) for each in networks):
            priors = [each.prior for each in begun]
            networks = self._descended(networks, priors, engine, folds, generator, progress)
        return [
            replace(each, network=network) for each, network in zip(begun, networks, strict=True)
        ]

    def _with_shares(
        self, result: LinkedResult, engine: Engine, progress: Progress
    ) -> LinkedResult:
        """Trained end to end, the network whose p(x) gives the classes their shares."""
        if self.n_classes < 2 or not self.linked.end_to_end:
            return result
        network, shares = with_class_shares(result.network, self._shares(engine), progress)
        return replace(result, network=network, shares=shares)

    def _begun(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[LinkedResult]:
        """EM, and linked EM where that does more; what a read-out makes of it."""
        kind = RegressionNetwork if self.term is None else Network
        found = []
        for trial, start in enumerate(self._start(engine, folds, generator, progress)):
            result = self.linked.run(
                replace(kind.blank(start.model, self.embedding), n_draws=_TRAINING_DRAWS),
                folds.shown(engine, trial),
                progress,
                net=self._net(engine),
                prior=start.prior,
                fitted=self._descends(engine),
            )
            if result.n_iter == 0:
                result = replace(result, n_iter=start.n_iter, converged=start.converged)
            found.append(result)
        return found

    def _descended(
        self,
        networks: list[Network],
        priors: list[SpreadPrior | None],
        engine: Engine,
        folds: Folds,
        generator: torch.Generator,
        progress: Progress,
    ) -> list[Network]:
        """Mixtures and read-out trained together by gradients, those of several trials at once.

        Where draws of what is missing need autograd through densities, one after another.
        """
        if len(networks) > 1 and engine.may_have_missing and not networks[0].explicit:
            shown = (folds.shown(engine, trial) for trial in range(len(networks)))
            alone = zip(networks, priors, shown, strict=True)
            return [
                self._descended([each], [prior], rows, Folds.none(rows), generator, progress)[0]
                for each, prior, rows in alone
            ]
        count = networks[0].mixture.n_components
        taught = [self.supervision(folds.shown(engine, trial)) for trial in range(len(networks))]
        penalties = NetworkPrior(
            self._net(engine),
            torch.tensor(taught, dtype=torch.float64, device=engine.device),
            SpreadPrior.stacked(priors, count) if len(priors) > 1 else priors[0],
        )
        solve = partial(
            self._solve,
            objective=self.objective(engine),
            generator=generator,
            progress=progress,
            prior=penalties,
        )
        if len(networks) == 1:
            return [solve(networks[0], engine)]
        kind, assignment = folds.assignment(engine.y, self.n_classes)
        rows = engine.with_answers(y=kind)
        return solve(NetworkStack.of(networks, assignment), rows).networks()

    def _solve(
        self,
        model: AnyNetwork,
        engine: Engine,
        objective: Objective,
        generator: torch.Generator,
        progress: Progress,
        prior: NetworkPrior,
    ) -> AnyNetwork:
        """One solver after the other.

        Draws of what is missing stay the same within a run of L-BFGS, or every step would be one of
        another function; several runs keep them from being learned by heart.
        """
        for solver in self._solvers(engine):
            if progress.stopped:
                break
            rows = engine
            if engine.may_have_missing and isinstance(solver, LBFGS):
                rows = engine.seen(Prepared(model.completed))
            result = solver.run(model, objective, rows, progress, generator=generator, prior=prior)
            model = result.model
        return model

    def _solvers(self, engine: Engine) -> list[Solver]:
        if len(engine) > _SMALL:
            return [Adam()]
        iterations = int(np.clip(len(engine) / _ROWS_EACH, *_ITERATIONS))
        if self.short or self.settles:
            iterations = _GLIMPSE if self.short else _LAST
        elif self.begin:
            iterations -= _GLIMPSE
        if not engine.may_have_missing:
            return [LBFGS(iterations, _GAIN)]
        rounds = 1 if self.short else _ROUNDS
        return [LBFGS(iterations // rounds)] * rounds

    def _net(self, engine: Engine) -> ElasticNet:
        """Penalties of the read-out."""
        rarity = self._rarity(engine)
        return ElasticNet(self.linked.l1 * rarity, self.linked.l2 * rarity)

    def objective(self, engine: Engine) -> Objective:
        """What gradients minimize over the rows."""
        if self.term is None:
            return Regression(likelihood_share(self.tradeoff, engine.values_per_row))
        all_labeled = bool(engine.labeled.all())
        return beside_likelihood(
            self.term,
            self.tradeoff,
            unlabeled_weight=None if all_labeled else self.unlabeled_weight,
            n_values=engine.values_per_row,
        )

    def supervision(self, engine: Engine) -> float:
        """How many rows' losses of the read-out the objective of the gradients holds."""
        if self.n_classes < 2 and self.term is not None:
            return 0.0
        generative = likelihood_share(self.tradeoff, engine.values_per_row)
        labeled = engine.labeled
        if self.term is not None:  # the likelihood holds labels too, where it looks at them
            generative *= 0.0 if bool(labeled.all()) else self.unlabeled_weight
        return (1.0 - generative) * float(engine.weight[labeled].sum())

    def follows_gradients(self, network: Network, engine: Engine) -> bool:
        """Whether mixtures and read-out are trained together, after linked EM."""
        return self._descends(engine) and bool(network.weight.any())

    def _descends(self, engine: Engine) -> bool:
        return self.linked.end_to_end and self.supervision(engine) > 0

    def _shares(self, engine: Engine) -> np.ndarray:
        """(C,) shares of the classes in the weight of the labeled rows."""
        y, weight = engine.y.cpu().numpy(), engine.weight.double().cpu().numpy()
        mass = np.bincount(y[y >= 0], weight[y >= 0], minlength=self.n_classes)
        return mass / max(mass.sum(), 1e-300)

    def _rarity(self, engine: Engine) -> float:
        """What penalties of the read-out are multiplied by: as much say has the rarest class.

        Its share, of an even one; penalties never vanish.
        """
        if self.n_classes < 1 or self.term is None:
            return 1.0
        shares = self._shares(engine)
        found = shares[shares > 0]
        return max(_LEAST_RARITY, self.n_classes * float(found.min())) if len(found) else 1.0

    def _start(
        self, engine: Engine, folds: Folds, generator: torch.Generator, progress: Progress
    ) -> list[FitResult[Mixture]]:
        """EM on all rows, once for all classes; or on the rows of each, where that is its share.

        The numbers of components are those of the rows that the last trial sees.
        """
        n_mixtures, shown = max(1, self.n_classes), folds.shown(engine, -1)
        own = self.specialize > 0.5 and n_mixtures > 1
        engines: list[Engine] = [shown] * n_mixtures
        if own:
            parts = (shown.labeled_as(label) for label in range(n_mixtures))
            engines = [rows if len(rows) else shown for rows in parts]
        counts = self._components(engines)
        alike = not own and len(set(counts or [0])) == 1
        fitted = 1 if alike else n_mixtures
        counts = None if counts is None else counts[:fitted]
        groups = (
            Groups.by_class(engine, fitted, folds)
            if own
            else Groups.everyone(engine, fitted, folds)
        )
        recipe = self.recipe
        if self.thins and not own and counts is not None:
            recipe = self._thinned(effective_rows(shown) / max(counts))
        start = fit_groups(groups, counts, recipe, generator, progress)
        even = torch.full((n_mixtures,), 1.0 / n_mixtures, dtype=torch.float64).log()
        even = even.to(start.results[0][0].model.log_weight)
        return start.joined(even, learn_prior=True, times=n_mixtures // fitted)

    def _thinned(self, rows: float) -> Recipe:
        """The recipe of components that have so many rows each, whatever their class.

        A covariance of more directions learns them by heart, and takes the longer.
        """
        structure, rank = self.recipe.structure, max(_LEAST_RANK, round(rows / _ROWS_PER_RANK))
        return replace(self.recipe, structure=structure.limited(rank))

    def _components(self, engines: Sequence[Engine]) -> list[int] | None:
        """Components of each mixture, no more than its rows; None lets a criterion decide.

        A read-out of posteriors wants more components than the density of the rows does; columns
        of thousands of categories, each with its chance in every component, have fewer.
        """
        most = np.array([len(engine) for engine in engines])
        if self.counts is None:
            if self.specialize > 0.5:
                return None
            rows = np.array([effective_rows(engine) for engine in engines])
            chances = sum(sum(engine.levels) for engine in engines)
            most = np.minimum(most, max(2, _MOST_CHANCES // max(1, chances)))
            return np.clip(np.rint(2.0 * np.cbrt(rows)).astype(int), 1, most).tolist()
        wanted = np.broadcast_to(self.counts, len(engines))
        if (wanted > most).any():
            warn(
                "more components than rows: there is one per row then. Remedy: a smaller "
                "n_components, or 'auto'.",
                DegenerateDataWarning,
            )
        counts = np.minimum(wanted, most)
        if self.embedding in RELATIVE and (counts == 1).any():
            warn(
                f"a component alone has the {self.embedding} one, whatever the row, and tells "
                "nothing. Remedy: n_components=2 or more, or embedding='log_density'.",
                DegenerateDataWarning,
            )
        return counts.tolist()
