"""Log densities of diagonal plus low-rank Gaussians, and their slopes: a few kernels, on a GPU.

Array operations pass over arrays of the size of all loadings some fifteen times, and take a kernel
each. Here programs have some features of one component, whose matrices stay in registers. Needs
Triton, which comes with PyTorch for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixtura.constants import LOG_2PI
from mixtura.numerics import Context

#: Products of float32 as those of three parts of each number.
_EXACT = tl.constexpr("tf32x3")
#: Programs per multiprocessor that share the features of all components, at most; and what a
#: program looks at together, rows and features of either way: the fastest found on an H200.
_PROGRAMS, _FORWARD, _BACKWARD, _ROWS = 4, (128, 16), (16, 64), 32


class KernelLogProb(torch.autograd.Function):
    """(n, K) of complete rows under covariances A + S S^T, in float32.

    S is (K, D, R), 1 / A and means are (K, D), rows (n, D).
    """

    @staticmethod
    def forward(ctx: Context, loading: Tensor, weight: Tensor, mean: Tensor, x: Tensor) -> Tensor:
        given = loading.mT, weight, mean, x  # free parameters have S as (K, R, D)
        loading, weight, mean, x = (each.contiguous() for each in given)
        (count, rank, width), n_rows, (rows, features) = loading.shape, len(x), _FORWARD
        most, blocks = max(16, triton.next_power_of_2(rank)), triton.cdiv(n_rows, rows)
        cores = torch.cuda.get_device_properties(x.device).multi_processor_count
        parts = max(1, _PROGRAMS * cores // (count * blocks))
        steps = triton.cdiv(width, features * parts)
        parts = triton.cdiv(width, features * steps)
        sums = [
            x.new_empty(parts, count, *size) for size in ((most, most), (most, n_rows), (n_rows,))
        ]
        inverse, latent = x.new_empty(count, most, most), x.new_empty(count, most, n_rows)
        found = x.new_empty(n_rows, count)
        with torch.cuda.device(x.device):
            _sums[count, parts, blocks](
                *(loading, weight, mean, x, *sums),
                *(count, rank, width, n_rows, steps, most, rows, features),
                num_warps=most // 16,
            )
            _solutions[(count,)](
                *(*sums, inverse, latent, found),
                *(count, rank, n_rows, width * LOG_2PI, parts, most, _ROWS),
                num_warps=2,
            )
        ctx.save_for_backward(loading, weight, mean, x, inverse, latent)
        return found

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:  # type: ignore[override]
        loading, weight, mean, x, inverse, latent = ctx.saved_tensors
        (count, rank, width), n_rows, (rows, features) = loading.shape, len(x), _BACKWARD
        grad, most = grad.mT.contiguous(), inverse.shape[1]
        pulled = [x.new_empty(count, *size) for size in ((most, most), (most,), ())]
        found = [torch.empty_like(each) for each in (loading, weight, mean)]
        with torch.cuda.device(x.device):
            _pulls[(count,)](inverse, latent, grad, *pulled, n_rows, most, _ROWS, num_warps=2)
            _slopes[count, triton.cdiv(width, features)](
                *(loading, weight, mean, x, latent, grad, *pulled, *found),
                *(rank, width, n_rows, most, rows, features),
                num_warps=most // 16,
            )
        by_loading, by_weight, by_mean = found
        return by_loading.mT, by_weight, by_mean, None


@triton.jit
def _sums(
    loading_at: tl.tensor,
    weight_at: tl.tensor,
    mean_at: tl.tensor,
    x_at: tl.tensor,
    gram_at: tl.tensor,
    projected_at: tl.tensor,
    distance_at: tl.tensor,
    count: tl.tensor,
    rank: tl.tensor,
    width: tl.tensor,
    n_rows: tl.tensor,
    steps: tl.tensor,
    most: tl.constexpr,
    rows: tl.constexpr,
    features: tl.constexpr,
) -> None:
    """S^T A^-1 S, S^T A^-1 r and r^T A^-1 r + log |A| over some features of one component."""
    k, part = tl.program_id(0), tl.program_id(1)
    r, row = tl.arange(0, most), tl.program_id(2) * rows + tl.arange(0, rows)
    gram, projected = tl.zeros([most, most], tl.float32), tl.zeros([most, rows], tl.float32)
    distance, log_weight = tl.zeros([rows], tl.float32), tl.zeros([features], tl.float32)
    for step in range(part * steps, part * steps + steps):
        d = step * features + tl.arange(0, features)
        inside = d < width
        weight = tl.load(weight_at + k * width + d, mask=inside, other=1.0)
        mean = tl.load(mean_at + k * width + d, mask=inside, other=0.0)
        place = (k * rank + r[:, None]) * width + d[None, :]
        loading = tl.load(loading_at + place, mask=(r[:, None] < rank) & inside[None, :], other=0.0)
        shown = (row[:, None] < n_rows) & inside[None, :]
        x = tl.load(x_at + row[:, None] * width + d[None, :], mask=shown, other=0.0)
        away, scaled = x - mean[None, :], loading * weight[None, :]
        gram = tl.dot(scaled, tl.trans(loading), gram, input_precision=_EXACT)
        projected = tl.dot(scaled, tl.trans(away), projected, input_precision=_EXACT)
        distance += tl.sum(away * away * weight[None, :], 1)
        log_weight += tl.log(weight)
    own = part * count + k
    tl.store(gram_at + (own * most + r[:, None]) * most + r[None, :], gram)
    place = (own * most + r[:, None]) * n_rows + row[None, :]
    tl.store(projected_at + place, projected, mask=row[None, :] < n_rows)
    distance -= tl.sum(log_weight, 0)
    tl.store(distance_at + own * n_rows + row, distance, mask=row < n_rows)


@triton.jit
def _solutions(
    gram_at: tl.tensor,
    projected_at: tl.tensor,
    distance_at: tl.tensor,
    inverse_at: tl.tensor,
    latent_at: tl.tensor,
    found_at: tl.tensor,
    count: tl.tensor,
    rank: tl.tensor,
    n_rows: tl.tensor,
    constant: tl.tensor,
    parts: tl.constexpr,
    most: tl.constexpr,
    rows: tl.constexpr,
) -> None:
    """B^-1, B^-1 S^T A^-1 r and log densities of one component."""
    k, r = tl.program_id(0), tl.arange(0, most)
    of_gram = (k * most + r[:, None]) * most + r[None, :]
    gram = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    for part in range(parts):
        gram += tl.load(gram_at + part * count * most * most + of_gram)
    for j in range(rank):  # each factor is swept; in the end there stands minus the inverse
        here, there = r[:, None] == j, r[None, :] == j
        down, across = tl.sum(tl.where(there, gram, 0.0), 1), tl.sum(tl.where(here, gram, 0.0), 0)
        pivot = tl.sum(tl.where(r == j, down, 0.0), 0)
        constant += tl.log(pivot)
        down, across = tl.where(r == j, -1.0, down), tl.where(r == j, -1.0, across)
        kept = tl.where(here | there, 0.0, gram)
        gram = kept - (down / pivot)[:, None] * across[None, :]
    inverse = -gram
    tl.store(inverse_at + of_gram, inverse)
    for begin in range(0, n_rows, rows):
        row = begin + tl.arange(0, rows)
        told, place = row < n_rows, (k * most + r[:, None]) * n_rows + row[None, :]
        projected, distance = tl.zeros([most, rows], tl.float32), tl.zeros([rows], tl.float32)
        for part in range(parts):
            at = projected_at + part * count * most * n_rows + place
            projected += tl.load(at, mask=told[None, :], other=0.0)
            at = distance_at + (part * count + k) * n_rows + row
            distance += tl.load(at, mask=told, other=0.0)
        latent = tl.dot(inverse, projected, input_precision=_EXACT)
        tl.store(latent_at + place, latent, mask=told[None, :])
        distance += constant - tl.sum(projected * latent, 0)
        tl.store(found_at + row * count + k, -0.5 * distance, mask=told)


@triton.jit
def _pulls(
    inverse_at: tl.tensor,
    latent_at: tl.tensor,
    grad_at: tl.tensor,
    by_gram_at: tl.tensor,
    total_at: tl.tensor,
    mass_at: tl.tensor,
    n_rows: tl.tensor,
    most: tl.constexpr,
    rows: tl.constexpr,
) -> None:
    """Of one component: `grad` (K, n) summed, times latent factors, and what comes by way of B."""
    k, r = tl.program_id(0), tl.arange(0, most)
    gram, total = tl.zeros([most, most], tl.float32), tl.zeros([most, rows], tl.float32)
    mass = tl.zeros([rows], tl.float32)
    for begin in range(0, n_rows, rows):
        row = begin + tl.arange(0, rows)
        told = row < n_rows
        grad = tl.load(grad_at + k * n_rows + row, mask=told, other=0.0)
        place = (k * most + r[:, None]) * n_rows + row[None, :]
        latent = tl.load(latent_at + place, mask=told[None, :], other=0.0)
        pull = latent * grad[None, :]
        gram = tl.dot(pull, tl.trans(latent), gram, input_precision=_EXACT)
        total += pull
        mass += grad
    place = (k * most + r[:, None]) * most + r[None, :]
    gram += tl.load(inverse_at + place) * tl.sum(mass, 0)
    tl.store(by_gram_at + place, -0.5 * gram)
    tl.store(total_at + k * most + r, tl.sum(total, 1))
    tl.store(mass_at + k, tl.sum(mass, 0))


@triton.jit
def _slopes(
    loading_at: tl.tensor,
    weight_at: tl.tensor,
    mean_at: tl.tensor,
    x_at: tl.tensor,
    latent_at: tl.tensor,
    grad_at: tl.tensor,
    by_gram_at: tl.tensor,
    total_at: tl.tensor,
    mass_at: tl.tensor,
    by_loading_at: tl.tensor,
    by_weight_at: tl.tensor,
    by_mean_at: tl.tensor,
    rank: tl.tensor,
    width: tl.tensor,
    n_rows: tl.tensor,
    most: tl.constexpr,
    rows: tl.constexpr,
    features: tl.constexpr,
) -> None:
    """The same by some features of its S, 1 / A and mean."""
    k, r = tl.program_id(0), tl.arange(0, most)
    d = tl.program_id(1) * features + tl.arange(0, features)
    inside, of_feature = d < width, k * width + d
    weight = tl.load(weight_at + of_feature, mask=inside, other=1.0)
    mean = tl.load(mean_at + of_feature, mask=inside, other=0.0)
    by_scaled = tl.zeros([most, features], tl.float32)
    first, second = tl.zeros([rows, features], tl.float32), tl.zeros([rows, features], tl.float32)
    for begin in range(0, n_rows, rows):
        row = begin + tl.arange(0, rows)
        told = row < n_rows
        grad = tl.load(grad_at + k * n_rows + row, mask=told, other=0.0)
        place = (k * most + r[:, None]) * n_rows + row[None, :]
        pull = tl.load(latent_at + place, mask=told[None, :], other=0.0) * grad[None, :]
        shown = told[:, None] & inside[None, :]
        x = tl.load(x_at + row[:, None] * width + d[None, :], mask=shown, other=0.0)
        away = x - mean[None, :]
        by_scaled = tl.dot(pull, away, by_scaled, input_precision=_EXACT)
        pushed = away * grad[:, None]
        first += pushed
        second += pushed * away
    used = (r[:, None] < rank) & inside[None, :]
    of_factor = (k * rank + r[:, None]) * width + d[None, :]
    loading = tl.load(loading_at + of_factor, mask=used, other=0.0)
    by_gram = tl.load(by_gram_at + (k * most + r[:, None]) * most + r[None, :])
    by_factors = tl.dot(by_gram, loading, input_precision=_EXACT)
    by_scaled += by_factors
    total, mass = tl.load(total_at + k * most + r), tl.load(mass_at + k)
    by_weight = tl.sum(by_scaled * loading, 0) + 0.5 * (mass / weight - tl.sum(second, 0))
    by_mean = weight * (tl.sum(first, 0) - tl.sum(total[:, None] * loading, 0))
    tl.store(by_loading_at + of_factor, (by_scaled + by_factors) * weight[None, :], mask=used)
    tl.store(by_weight_at + of_feature, by_weight, mask=inside)
    tl.store(by_mean_at + of_feature, by_mean, mask=inside)
