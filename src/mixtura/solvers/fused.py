"""A pass of EM that reads every row once: one kernel, for diagonal Gaussians on a GPU.

Array operations write what they find of all rows, and read it again, some fifteen times. Here the
log densities, shares and sums of a few rows stay in registers. Needs Triton, which comes with
PyTorch for CUDA.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch.nn.functional import pad

from mixtura.data.batch import Batch
from mixtura.densities import Statistics
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.models.mixture import Mixture

#: Programs per multiprocessor, a warp each.
_PROGRAMS = 32
#: Most registers of a program that has so many means, by whether numbers are split: the fastest
#: found on an H200.
_REGISTERS = {(128, True): 128, (256, True): 168, (128, False): 128, (256, False): 128}


class Fused:
    """Statistics and `loss` of rows, as `expected` gives them of the likelihood of one class.

    Rows are complete, in float32 or float64; sums are in double precision. Products of float32 are
    those of two parts of each number, with eleven digits each; shares keep the first part alone,
    also in the masses.
    """

    def __init__(self, mixture: Mixture) -> None:
        density = mixture.density
        assert isinstance(density, DiagonalGaussian)
        precision, scaled_mean, constant = density.natural
        self._parameters = precision, scaled_mean, constant.sum(1) + mixture.log_joint_weight

    def row_cost(self, missing: bool) -> int:
        """Nothing is held in memory for a row."""
        return 0

    def __call__(self, batch: Batch) -> Statistics:
        x, weight, width = batch.x, batch.weight.contiguous(), batch.x.shape[1]
        split, count = x.dtype == torch.float32, len(self._parameters[2])
        many, wide = (
            max(1 << (n - 1).bit_length(), least) for n, least in ((count, 8), (width, 16))
        )
        rows = 32 if split else 16
        lacking = max(rows - len(x), 0)  # a program works on so many at least
        if lacking:
            x, weight = pad(x, (0, 0, 0, lacking)), pad(weight, (0, lacking))
        cores = torch.cuda.get_device_properties(x.device).multi_processor_count
        programs = min(_PROGRAMS * cores, -(-len(x) // rows))
        sums = x.new_empty(programs, (2 * wide + 1) * many + 1)
        with torch.cuda.device(x.device):
            _pass[(programs,)](
                *(x, weight, *self._parameters, sums),
                *(len(x), count, width, wide, many, rows, split),
                num_warps=1,
                maxnreg=_REGISTERS.get((many * wide, split), 255),
                enable_fp_fusion=not split,  # fused, a difference takes two instructions
            )
        moments, mass, loss = sums.sum(0, dtype=torch.float64).split((2 * wide * many, many, 1))
        first, second = moments.view(2, many, wide)[:, :count, :width]
        loss = loss * math.log(2.0)
        return {"mass": mass[:count], "first": first, "second": second, "loss": loss}


@triton.jit
def _first_part(x: tl.tensor, half: tl.constexpr) -> tl.tensor:
    """The leading eleven binary digits: cut off, or rounded if `half` of the last is added."""
    return ((x.to(tl.int32, bitcast=True) + half) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _quick(operation: tl.constexpr, x: tl.tensor) -> tl.tensor:
    return tl.inline_asm_elementwise(operation, "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _load(
    at: tl.tensor, row: tl.tensor, d: tl.tensor, width: tl.constexpr, wide: tl.constexpr
) -> tl.tensor:
    """Rows from `at` on, those at `row`, with zeros where there are no columns."""
    return tl.load(at + (row + d)) if width == wide else tl.load(at + (row + d), d < width, 0.0)


@triton.jit
def _pass(
    x_at: tl.tensor,
    weight_at: tl.tensor,
    precision_at: tl.tensor,
    scaled_mean_at: tl.tensor,
    peak_at: tl.tensor,
    sums_at: tl.tensor,
    n_rows: tl.tensor,
    count: tl.tensor,
    width: tl.constexpr,
    wide: tl.constexpr,
    many: tl.constexpr,
    rows: tl.constexpr,
    split: tl.constexpr,
) -> None:
    """Sums of every so many rows: moments (2, many, wide), masses (many,), and the loss in bits.

    `wide` and `many` are powers of two, of which `width` columns and `count` components are used.
    """
    kind = x_at.dtype.element_ty
    d, k, row = tl.arange(0, wide), tl.arange(0, many), tl.arange(0, rows)
    used, place = (k[None, :] < count) & (d[:, None] < width), k[None, :] * width + d[:, None]
    bits = tl.full([1], 1.4426950408889634, tl.float64)  # of a natural logarithm
    quadratic = tl.load(precision_at + place, mask=used, other=0.0) * bits
    linear = tl.load(scaled_mean_at + place, mask=used, other=0.0) * bits
    quadratic, linear = (quadratic * -0.5).to(kind), linear.to(kind)
    peak = (tl.load(peak_at + k, mask=k < count, other=-float("inf")) * bits).to(kind)
    if split:
        linear_a, quadratic_a = _first_part(linear, 4096), _first_part(quadratic, 4096)
        linear_b, quadratic_b = linear - linear_a, quadratic - quadratic_a
    first, second = tl.zeros([wide, many], kind), tl.zeros([wide, many], kind)
    mass, loss = tl.zeros([rows, many], kind), tl.zeros([rows], kind)
    begin, step = tl.program_id(0).to(tl.int64) * rows, tl.num_programs(0).to(tl.int64) * rows
    for at in tl.range(begin, n_rows, step):
        # At the end the last rows, those seen before without weight: no load of x is masked.
        here = tl.minimum(at, n_rows - rows)
        x = _load(x_at + here * width, row[:, None] * width, d[None, :], width, wide)
        weight = tl.load(weight_at + here + row, mask=row >= at - here, other=0.0)
        xx = x * x
        if split:
            a, aa = _first_part(x, 0), _first_part(xx, 0)
            b, bb = x - a, xx - aa
            logit = tl.dot(b, linear_a, input_precision="tf32")
            logit = tl.dot(bb, quadratic_a, logit, input_precision="tf32")
            logit = tl.dot(a, linear_b, logit, input_precision="tf32")
            logit = tl.dot(aa, quadratic_b, logit, input_precision="tf32")
            logit = tl.dot(a, linear_a, logit, input_precision="tf32")
            logit = tl.dot(aa, quadratic_a, logit, input_precision="tf32") + peak[None, :]
            top = tl.max(logit, 1)
            share = _quick("ex2.approx.ftz.f32 $0, $1;", logit - top[:, None])
            total = tl.sum(share, 1)
            share = share * (weight * _quick("rcp.approx.ftz.f32 $0, $1;", total))[:, None]
            share = _first_part(share, 4096)
            loss -= weight * (top + _quick("lg2.approx.ftz.f32 $0, $1;", total))
        else:
            logit = tl.dot(x, linear, input_precision="ieee", out_dtype=kind)
            logit = tl.dot(xx, quadratic, logit, input_precision="ieee", out_dtype=kind)
            logit += peak[None, :]
            top = tl.max(logit, 1)
            share = tl.exp2(logit - top[:, None])
            total = tl.sum(share, 1)
            share = share * (weight / total)[:, None]
            loss -= weight * (top + tl.log2(total))
        # Once more: each load serves one product, so that both are made well before.
        x = _load(x_at + here * width, row[None, :] * width, d[:, None], width, wide)
        xx = x * x
        if split:
            a, aa = _first_part(x, 0), _first_part(xx, 0)
            # Sums of a few rows at a time: those of tensor cores are cut off, not rounded.
            some = tl.dot(x - a, share, input_precision="tf32")
            more = tl.dot(xx - aa, share, input_precision="tf32")
            first += tl.dot(a, share, some, input_precision="tf32")
            second += tl.dot(aa, share, more, input_precision="tf32")
        else:
            first = tl.dot(x, share, first, input_precision="ieee", out_dtype=kind)
            second = tl.dot(xx, share, second, input_precision="ieee", out_dtype=kind)
        mass += share
    sums_at += tl.program_id(0) * ((2 * wide + 1) * many + 1)
    tl.store(sums_at + (k[None, :] * wide + d[:, None]), first)
    tl.store(sums_at + (many * wide + k[None, :] * wide + d[:, None]), second)
    tl.store(sums_at + 2 * many * wide + k, tl.sum(mass, 0))
    tl.store(sums_at + (2 * wide + 1) * many, tl.sum(loss, 0))
