"""Classifiers that vote."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mixtura.constants import SILENCE
from mixtura.data.batch import Batch
from mixtura.data.given import Device
from mixtura.models.mixture import Mixture
from mixtura.parts import storable


@storable
@dataclass(frozen=True)
class Votes:
    """Class mixtures that vote: not a density, but it has log shares of the classes.

    Attributes
    ----------
    voters : over the same classes.
    weights : of their votes.
    """

    voters: tuple[Mixture, ...]
    weights: tuple[float, ...]

    def row_cost(self, missing: bool) -> int:
        """That of the costliest: they vote one after another."""
        return max(voter.row_cost(missing) for voter in self.voters)

    def to(self, device: Device | None = None, dtype: torch.dtype | None = None) -> Votes:
        """Another device or floating type."""
        return Votes(tuple(voter.to(device, dtype) for voter in self.voters), self.weights)

    def class_log_joint(self, batch: Batch) -> Tensor:
        """Log shares of the votes, (n, C)."""
        total = batch.weight.new_tensor(SILENCE, dtype=torch.float64)
        for voter, weight in zip(self.voters, self.weights, strict=True):
            joint = voter.class_log_joint(batch)
            vote = torch.nn.functional.one_hot(joint.argmax(1), joint.shape[1])
            total = total + weight * vote.double()
        return (total / total.sum(1, keepdim=True)).log()

    def outputs(self, batch: Batch) -> Tensor:
        """What objectives look at."""
        return self.class_log_joint(batch)
