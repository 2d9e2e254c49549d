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

from mixtura.data.batch import Batch
from mixtura.densities import Statistics
from mixtura.densities.gaussian import DiagonalGaussian
from mixtura.models.mixture import Mixture

#: Programs per multiprocessor, a warp each.
_PROGRAMS = 32
#: Most registers of a program that has so many means, by whether numbers are split: the fastest
#: found on an H200.
_REGISTERS = {(128, True): 144, (256, True): 168, (128, False): 128, (256, False): 128}


class Fused:
    """Statistics and `loss` of rows, as `expected` gives them of the likelihood of one class.

    Rows are complete, in float32 or float64; sums are in double precision. Products of float32 are
    those of two parts of each number, with eleven digits each; shares keep the first part alone,
    also in the masses.
    """

    def __init__(self, mixture: Mixture, dtype: torch.dtype) -> None:
        density = mixture.density
        assert isinstance(density, DiagonalGaussian)
        precision, scaled_mean, constant = density.natural
        peak = constant.sum(1) + mixture.log_joint_weight
        parts = scaled_mean, -0.5 * precision, peak
        self._parameters = [(part / math.log(2.0)).to(dtype).contiguous() for part in parts]

    def row_cost(self, missing: bool) -> int:
        """Nothing is held in memory for a row."""
        return 0

    def __call__(self, batch: Batch) -> Statistics:
        x, (n_rows, width) = batch.x, batch.x.shape
        split, count = x.dtype == torch.float32, len(self._parameters[2])
        many, wide = max(8, triton.next_power_of_2(count)), max(16, triton.next_power_of_2(width))
        rows = 32 if split else 16
        cores = torch.cuda.get_device_properties(x.device).multi_processor_count
        programs = min(_PROGRAMS * cores, triton.cdiv(n_rows, rows))
        moments = x.new_empty(programs, 2, many, wide)
        mass, loss = x.new_empty(programs, many), x.new_empty(programs)
        with torch.cuda.device(x.device):
            _pass[(programs,)](
                *(x, batch.weight.contiguous(), *self._parameters, moments, mass, loss),
                *(n_rows, count, width, wide, many, rows, split),
                num_warps=1,
                maxnreg=_REGISTERS.get((many * wide, split), 255),
            )
        first, second = moments.sum(0, dtype=torch.float64)[:, :count, :width]
        return {
            "mass": mass.sum(0, dtype=torch.float64)[:count],
            "first": first,
            "second": second,
            "loss": loss.sum(0, keepdim=True, dtype=torch.float64) * math.log(2.0),
        }


@triton.jit
def _first_part(x: tl.tensor, half: tl.constexpr) -> tl.tensor:
    """The leading eleven binary digits: cut off, or rounded if `half` of the last is added."""
    return ((x.to(tl.int32, bitcast=True) + half) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _quick(operation: tl.constexpr, x: tl.tensor) -> tl.tensor:
    return tl.inline_asm_elementwise(operation, "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _pass(
    x_at: tl.tensor,
    weight_at: tl.tensor,
    linear_at: tl.tensor,
    quadratic_at: tl.tensor,
    peak_at: tl.tensor,
    moments_at: tl.tensor,
    mass_at: tl.tensor,
    loss_at: tl.tensor,
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
    used = (k[None, :] < count) & (d[:, None] < width)
    linear = tl.load(linear_at + k[None, :] * width + d[:, None], mask=used, other=0.0)
    quadratic = tl.load(quadratic_at + k[None, :] * width + d[:, None], mask=used, other=0.0)
    peak = tl.load(peak_at + k, mask=k < count, other=-float("inf"))
    if split:
        linear_a, quadratic_a = _first_part(linear, 4096), _first_part(quadratic, 4096)
        linear_b, quadratic_b = linear - linear_a, quadratic - quadratic_a
    first, second = tl.zeros([wide, many], kind), tl.zeros([wide, many], kind)
    mass, loss = tl.zeros([rows, many], kind), tl.zeros([rows], kind)
    begin, step = tl.program_id(0).to(tl.int64) * rows, tl.num_programs(0).to(tl.int64) * rows
    for at in tl.range(begin, n_rows, step):
        seen = row < tl.minimum(n_rows - at, rows).to(tl.int32)
        there = seen[:, None] if width == wide else seen[:, None] & (d[None, :] < width)
        x = tl.load(x_at + at * width + (row[:, None] * width + d[None, :]), mask=there, other=0.0)
        weight = tl.load(weight_at + at + row, mask=seen, other=0.0)
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
            # Sums of a few rows at a time: those of tensor cores are cut off, not rounded.
            some = tl.dot(tl.trans(b), share, input_precision="tf32")
            more = tl.dot(tl.trans(bb), share, input_precision="tf32")
            first += tl.dot(tl.trans(a), share, some, input_precision="tf32")
            second += tl.dot(tl.trans(aa), share, more, input_precision="tf32")
            loss -= weight * (top + _quick("lg2.approx.ftz.f32 $0, $1;", total))
        else:
            logit = tl.dot(x, linear, input_precision="ieee", out_dtype=kind)
            logit = tl.dot(xx, quadratic, logit, input_precision="ieee", out_dtype=kind)
            logit += peak[None, :]
            top = tl.max(logit, 1)
            share = tl.exp2(logit - top[:, None])
            total = tl.sum(share, 1)
            share = share * (weight / total)[:, None]
            first = tl.dot(tl.trans(x), share, first, input_precision="ieee", out_dtype=kind)
            second = tl.dot(tl.trans(xx), share, second, input_precision="ieee", out_dtype=kind)
            loss -= weight * (top + tl.log2(total))
        mass += share
    program, place = tl.program_id(0), k[None, :] * wide + d[:, None]
    tl.store(moments_at + 2 * program * many * wide + place, first)
    tl.store(moments_at + (2 * program + 1) * many * wide + place, second)
    tl.store(mass_at + program * many + k, tl.sum(mass, 0))
    tl.store(loss_at + program, tl.sum(loss, 0))
