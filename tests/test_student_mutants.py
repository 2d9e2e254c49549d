"""Checks of a density that must fail: Student's t, wrong in one thing at a time."""

from dataclasses import replace

import pytest
import torch
from students import make_student, reference_of

from mixtura.densities import Gaussian, StudentT
from mixtura.testing import DENSITY_CHECKS, REFERENCE_CHECKS


class WrongConstant(StudentT):
    def log_prob(self, batch):
        return super().log_prob(batch) + 1e-6


class WrongMarginal(StudentT):
    """As many degrees of freedom as if all features were observed."""

    def log_prob(self, batch):
        found = super().log_prob(batch)
        if batch.observed is None:
            return found
        return found - 1e-3 * (~batch.observed).sum(1, keepdim=True).to(found)


class Double(StudentT):
    def log_prob(self, batch):
        return super().log_prob(batch).double()


class Detached(StudentT):
    def from_free(self, free):
        return super().from_free({**free, "raw_dof": free["raw_dof"].detach()})


class Unbounded(StudentT):
    def from_free(self, free):
        return replace(super().from_free(free), dof=free["raw_dof"])


class Matheron(StudentT):
    """The rule of Gaussians."""

    def agree(self, batch, component, drawn):
        return Gaussian.agree(self.scale, batch, component, drawn)


class NormalDraws(StudentT):
    def sample(self, component, generator, **options):
        return self.scale.sample(component, generator, **options)


class NoRegression(StudentT):
    def expected(self, batch):
        seen = batch.observed[:, None]
        return torch.where(seen, batch.x[:, None], self.location.to(batch.x))


class ScatterWeighted(StudentT):
    """What is missing scatters as if its weight were known to be one."""

    def statistics(self, batch, occupancy):
        size = self.n_features * (1.0 - batch.missing_share())[:, None]
        weight = (self.dof + size) / (self.dof + self.scale.distances(batch)[0])
        inner = self.scale.statistics(batch, occupancy * weight)
        right = super().statistics(batch, occupancy)
        return {**right, **{f"scale.{name}": value for name, value in inner.items()}}


class CompleteTails(StudentT):
    """Tails of rows with holes, taken for those of complete rows."""

    def statistics(self, batch, occupancy):
        found = super().statistics(batch, occupancy)
        return {
            **found,
            "tail": super().statistics(replace(batch, observed=None), occupancy)["tail"],
        }


class LighterTails(StudentT):
    def own_statistics(self):
        found = super().own_statistics()
        return {**found, "tail": 0.99 * found["tail"]}


class Averaged(StudentT):
    def statistics(self, batch, occupancy):
        found = super().statistics(batch, occupancy)
        return {name: value / len(batch) for name, value in found.items()}


class StuckTails(StudentT):
    """Derivatives as if the degrees of freedom were known."""

    def slope(self, statistics):
        inner = {name: statistics[f"scale.{name}"] for name in self.scale.own_statistics()}
        found = {f"scale.{name}": value for name, value in self.scale.slope(inner).items()}
        return {"raw_dof": torch.zeros_like(self.dof), **found}


class Shuffled(StudentT):
    def select(self, index):
        return replace(super().select(index), dof=self.dof[: len(index)])


MUTANTS = [
    (WrongConstant, "check_log_prob"),
    (WrongMarginal, "check_marginals"),
    (Double, "check_single_precision"),
    (Detached, "check_gradient"),
    (Unbounded, "check_free"),
    (Matheron, "check_complete"),
    (Matheron, "check_conditional_draws"),
    (NormalDraws, "check_sample"),
    (NormalDraws, "check_frequencies_of_draws"),
    (NoRegression, "check_expected"),
    (ScatterWeighted, "check_updates"),
    (CompleteTails, "check_updates"),
    (LighterTails, "check_own_statistics"),
    (Averaged, "check_additive"),
    (StuckTails, "check_slope"),
    (Shuffled, "check_stacking"),
]


@pytest.mark.parametrize(("mutant", "name"), MUTANTS, ids=lambda value: str(value))
def test_every_check_can_fail(mutant, name, generator):
    """A density that is wrong in one thing fails the check of that thing."""
    right = make_student(("student_full", "covariance"), generator)
    wrong = mutant(scale=right.scale, dof=right.dof)
    check = {check.__name__: check for check in DENSITY_CHECKS + REFERENCE_CHECKS}[name]
    more = (reference_of(right),) if check in REFERENCE_CHECKS else ()
    check(right, torch.Generator().manual_seed(0), *more)
    with pytest.raises((AssertionError, RuntimeError)):
        check(wrong, torch.Generator().manual_seed(0), *more)


def test_all_checks_have_a_mutant():
    """None is there that nothing fails."""
    names = {check.__name__ for check in DENSITY_CHECKS + REFERENCE_CHECKS}
    assert names == {name for _, name in MUTANTS}
