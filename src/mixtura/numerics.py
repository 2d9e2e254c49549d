"""Numerical ground: factorizations that cannot fail, constraints, sums in logs."""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.nn.functional import softplus

Item = TypeVar("Item")
Found = TypeVar("Found")


def softplus_inverse(value: Tensor) -> Tensor:
    """The z with softplus(z) = value, accurate for small and large values."""
    return value + torch.log(-torch.expm1(-value))


def above(floor: float, free: Tensor) -> Tensor:
    """Map free parameters to values above `floor`."""
    return floor + softplus(free)


def above_slope(floor: float, value: Tensor) -> Tensor:
    """How fast values above `floor` grow with their free parameters."""
    return -torch.expm1(floor - value)


def above_inverse(floor: float, value: Tensor) -> Tensor:
    """The free parameters of `value`; values on the floor are lifted off it by a hair."""
    hair = 1e-4 * floor + torch.finfo(value.dtype).tiny
    return softplus_inverse((value - floor).clamp_min(hair))


def times_transposed(left: Tensor, right: Tensor) -> Tensor:
    """A B^T for stacks of matrices.

    Some CPU builds multiply a stack by a transposed view a hundred times slower than by a copy.
    """
    transposed = right.mT
    return left @ (transposed.contiguous() if right.device.type == "cpu" else transposed)


def stack_product(left: Tensor, right: Tensor) -> Tensor:
    """A B for stacks of small matrices, where no gradient is recorded.

    On a CPU NumPy's loop over the stack costs a fraction of PyTorch's.
    """
    if left.device.type == "cpu":
        with np.errstate(all="ignore"):  # as PyTorch: the caller looks at what comes out
            return torch.from_numpy(np.matmul(left.numpy(), right.numpy()))
    return left @ right


def lowest_log(kind: torch.dtype) -> float:
    """The logarithm below which an exponential counts for nothing.

    Products of two that count, and of a number above 2e-4 beside them, are above the smallest
    normal number.
    """
    return 0.45 * math.log(torch.finfo(kind).tiny)


def or_zero(values: Tensor) -> Tensor:
    """Values; zero where they are next to nothing.

    Numbers below the smallest normal one, 1e-308 in double precision, and operations that end
    there, take a CPU ten to a hundred times as long as others, and well separated components make
    many of them.
    """
    if values.is_cuda:
        return values
    return torch.nn.functional.hardshrink(values, math.exp(lowest_log(values.dtype)))


def exp_or_zero(log: Tensor) -> Tensor:
    """Exponentials, in the memory of `log`; zero where they are next to nothing."""
    if log.is_cuda:
        return log.exp_()
    return or_zero(log.clamp_(min=lowest_log(log.dtype) - 1.0).exp_())  # surely next to nothing


def lower_inverse(factor: Tensor) -> Tensor:
    """Inverse of lower triangular matrices (..., D, D)."""
    eye = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    return solve_lower(factor, eye.expand_as(factor))


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """L^-1 B; row-major, since products with the solver's own column-major layout are slow."""
    return torch.linalg.solve_triangular(factor, right, upper=False).contiguous()


def log_det_lower(factor: Tensor) -> Tensor:
    """log det(L L^T) of lower triangular L (..., D, D)."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def rows_stand_last(matrix: Tensor) -> bool:
    """Whether what neighbours in the memory of matrices (..., D, D) are entries of different ones:
    work that goes through all of them in step is quickest then."""
    return min(matrix.stride()[-2:]) > 1


def eliminated(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses and log determinants of positive definite matrices (..., D, D)."""
    work = matrix.movedim((-2, -1), (0, 1)).clone(memory_format=torch.contiguous_format)
    log_det = invert_in_step(work.view(*work.shape[:2], -1))
    inverse = work.movedim((0, 1), (-2, -1))
    return (
        inverse if rows_stand_last(matrix) else inverse.contiguous(),
        log_det.view(matrix.shape[:-2]),
    )


def invert_in_step(work: Tensor) -> Tensor:
    """Log determinants (N,) of positive definite matrices (D, D, N), which become their inverses.

    By Gauss-Jordan, each step of which goes through all matrices at once: of thousands of small
    ones, that takes half the time of one factorization after another.
    """
    pivots = torch.empty_like(work[0])
    for at in range(len(work)):
        column = work[:, at].clone()
        factor = torch.reciprocal(column[at], out=pivots[at])
        row = work[at] * factor
        work.addcmul_(column[:, None], row, value=-1.0)
        work[:, at] = column.mul_(-factor)
        work[at] = row
        work[at, at] = factor
    return -pivots.log_().sum(0)


def invert_few(work: np.ndarray) -> np.ndarray:
    """The same of an array, by the lower halves alone: of matrices whose number is small, that
    takes about half the time."""
    room, pivots = np.empty_like(work[0]), np.empty_like(work[0])
    for at, pivot in enumerate(pivots):
        column = np.concatenate([work[at, : at + 1], work[at + 1 :, at]])
        np.reciprocal(column[at], out=pivot)
        row = column * pivot
        for place, factor in enumerate(column):
            below = work[place, : place + 1]
            below -= np.multiply(factor, row[: place + 1], out=room[: place + 1])
        work[at, :at], work[at + 1 :, at], work[at, at] = row[:at], row[at + 1 :], -pivot
    for place in range(len(work)):
        below = work[place, : place + 1]
        work[: place + 1, place] = np.negative(below, out=below)
    return -np.log(pivots).sum(0)


def inverses(matrices: np.ndarray) -> np.ndarray:
    """Of each of a stack (..., D, D); NaN where there is none."""
    try:
        return np.linalg.inv(matrices)
    except np.linalg.LinAlgError:
        found, failed = torch.linalg.inv_ex(torch.from_numpy(matrices))
        return found.masked_fill(failed[..., None, None] != 0, torch.nan).numpy()


def is_positive_definite(matrix: Tensor) -> Tensor:
    """Whether each symmetric matrix (..., D, D) has a Cholesky factor."""
    return torch.linalg.cholesky_ex(matrix).info == 0


def floor_spectrum(matrix: Tensor, floor: float) -> Tensor:
    """Raise eigenvalues of symmetric matrices (K, D, D) to at least `floor`.

    This is the maximum-likelihood covariance under the constraint that it is no smaller than
    `floor` in any direction, so EM with it stays monotone. Matrices that need no change are
    returned to the bit.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    low = ~is_positive_definite(matrix - floor * eye)
    if not low.any():
        return matrix
    values, vectors = torch.linalg.eigh(matrix[low])
    raised = (vectors * values.clamp_min(floor)[..., None, :]) @ vectors.mT
    matrix = matrix.clone()
    matrix[low] = 0.5 * (raised + raised.mT) + 1e-9 * floor * eye
    return matrix


class Context(Protocol):
    """What autograd hands from a forward pass to its backward pass."""

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]: ...
    def save_for_backward(self, *tensors: Tensor) -> None: ...


#: Size up to which matrices are eliminated in step, if their rows stand last, and if they do not:
#: of larger ones, each has work enough.
_IN_STEP = {True: 32, False: 6}


class _QuadraticLogDet(torch.autograd.Function):
    """u^T A^-1 u and log det A, with the gradient written out.

    Differentiating through a Cholesky factor costs several triangular solves with matrices on
    both sides; the closed form needs A^-1 once.
    """

    @staticmethod
    def forward(ctx: Context, matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        factor = torch.linalg.cholesky_ex(matrix).L
        half = solve_lower(factor, vectors)
        ctx.save_for_backward(factor, half)
        return half.square().sum(-2), log_det_lower(factor)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Context, grad_quadratic: Tensor, grad_log_det: Tensor
    ) -> tuple[Tensor, Tensor]:
        factor, half = ctx.saved_tensors
        inverse = lower_inverse(factor)
        solved = stack_product(inverse.mT, half)
        weighted = solved * grad_quadratic[..., None, :]
        grad_matrix = grad_log_det[..., None, None] * stack_product(
            inverse.mT, inverse
        ) - stack_product(weighted, solved.mT)
        return grad_matrix, 2.0 * weighted


class _Along(Context, Protocol):
    dim: int


class _LogSumExp(torch.autograd.Function):
    """Both passes share one softmax, which is a single operation on every device."""

    @staticmethod
    def forward(ctx: _Along, values: Tensor, dim: int) -> Tensor:
        share = or_zero(values.softmax(dim))
        ctx.save_for_backward(share)
        ctx.dim = dim
        return values.amax(dim).sub_(share.amax(dim).log_())

    @staticmethod
    def backward(ctx: _Along, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (share,) = ctx.saved_tensors
        return share * grad.unsqueeze(ctx.dim), None


def logsumexp(values: Tensor, dim: int) -> Tensor:
    """log of the sum of exponentials; with gradients, a value along `dim` must be finite."""
    if torch.is_grad_enabled() and values.requires_grad:
        return _LogSumExp.apply(values, dim)
    if values.is_cuda:
        return values.logsumexp(dim)
    largest = values.amax(dim, keepdim=True).clamp_min(torch.finfo(values.dtype).min)
    return (largest + exp_or_zero(values - largest).sum(dim, keepdim=True).log()).squeeze(dim)


def quadratic_log_det(matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Quadratic forms and log determinants of positive definite matrices.

    Parameters
    ----------
    matrix : (..., D, D), positive definite.
    vectors : (..., D, M).

    Returns
    -------
    (..., M) values of u^T A^-1 u, and (...) values of log det A.
    """
    traced = torch.is_grad_enabled() and (matrix.requires_grad or vectors.requires_grad)
    small = matrix.shape[-1] <= _IN_STEP[rows_stand_last(matrix)]
    if not traced and small and matrix.device.type == "cpu":
        return _quadratic_in_step(matrix, vectors)
    return _QuadraticLogDet.apply(matrix, vectors)


def _quadratic_in_step(matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The same where all matrices are eliminated in step: quickest if their rows stand last."""
    work, left = matrix.movedim((-2, -1), (0, 1)).clone(), vectors.movedim((-2, -1), (0, 1)).clone()
    found = torch.zeros_like(left[0])
    for at in range(len(work)):
        column, factor = work[at + 1 :, at], work[at, at].reciprocal()
        scaled = column * factor
        work[at + 1 :, at + 1 :].addcmul_(scaled[:, None], column, value=-1.0)
        left[at + 1 :].addcmul_(scaled[:, None], left[at], value=-1.0)
        found.addcmul_(left[at].square(), factor)
    return found.movedim(0, -1), work.diagonal().log().sum(-1)


def solve_posdef(matrix: Tensor, right: Tensor) -> Tensor:
    """A^-1 B for positive definite A."""
    return torch.cholesky_solve(right, torch.linalg.cholesky_ex(matrix).L)


@lru_cache(maxsize=32)
def tri_pack_index(size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns of the lower triangle, and the (size, size) map back into the packing."""
    rows, columns = torch.tril_indices(size, size, device=device)
    place = torch.zeros(size, size, dtype=torch.long, device=device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=device)
    return rows, columns, place


@lru_cache
def compiles(device: torch.device) -> bool:
    """Whether Triton is there, and knows the device."""
    if device.type != "cuda" or not torch.version.cuda:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0) and find_spec("triton") is not None


#: Numbers that one thread works on: two gain little then, and lose much where a core is busy.
_FEW = 500_000
#: Threads that work on parts of a sum, at most: each holds a part in memory.
_MOST_APART = 4
#: How many threads the caller of a fit has, and how many may work on parts of a sum.
_GIVEN: ContextVar[int | None] = ContextVar("_GIVEN", default=None)
_APART: ContextVar[int] = ContextVar("_APART", default=1)


@lru_cache
def _thread_pools(**kind: str) -> ThreadpoolController:
    """Libraries of a kind; of all others a limit would be taken back, too."""
    return ThreadpoolController().select(**kind)


@lru_cache
def _mkl() -> Callable[[int], int]:
    """Sets how many threads MKL has for the thread that asks, if PyTorch has MKL; the former
    number, or 0 where that is the one that `torch.set_num_threads` gave to all threads."""
    for path in Path(torch.__file__).with_name("lib").glob("*torch_cpu.*"):
        with suppress(OSError, AttributeError):
            return ctypes.CDLL(str(path)).MKL_Set_Num_Threads_Local
    return lambda count: 0


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads work on each operation of PyTorch that this thread asks for."""
    torch.get_num_threads()  # a thread takes over what was set for all when it first asks
    with _thread_pools(user_api="openmp").limit(limits=count):
        before = _mkl()(count)
        try:
            yield
        finally:
            _mkl()(before)


#: Held by the one thread that has set the limit of NumPy's and SciPy's libraries.
_LIMITS_BLAS = Lock()


@contextmanager
def one_thread(size: float) -> Iterator[None]:
    """Work on so many numbers on one thread, if they are few: sharing it out would cost more.

    On more of them, all threads that the caller of a fit has.
    """
    given = _GIVEN.get()
    if size <= _FEW:
        with _limited():
            yield
    elif given is None:
        yield
    else:
        with _threads(given):
            yield


@contextmanager
def by_parts(size: float) -> Iterator[None]:
    """Each operation on one thread, on whatever sizes; parts of large sums on several.

    Threads that share an operation wait for each other after each of thousands, and where a core
    has other work, for that: fits took up to nineteen times as long.
    """
    given = _GIVEN.get() or torch.get_num_threads()
    tokens = _GIVEN.set(given), _APART.set(min(given, _MOST_APART) if size > _FEW else 1)
    try:
        with _limited():
            yield
    finally:
        _GIVEN.reset(tokens[0])
        _APART.reset(tokens[1])


def each_apart(function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[Found]:
    """What a function gives for each item, in their order; several threads work where `by_parts`
    has some. The items come from this one, a few ahead."""
    count = _APART.get()
    if count == 1:
        yield from map(function, items)
        return
    records = torch.is_grad_enabled()

    def work(item: Item) -> Found:
        with torch.set_grad_enabled(records):
            return function(item)

    def begin() -> None:  # of a thread that ends with its part of the work
        torch.get_num_threads()
        _thread_pools(user_api="openmp").limit(limits=1)
        _mkl()(1)

    with ThreadPoolExecutor(count, initializer=begin) as pool:
        waiting = deque[Future[Found]]()
        for item in items:
            waiting.append(pool.submit(copy_context().run, work, item))
            if len(waiting) > count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _limited() -> Iterator[None]:
    """One thread works on each operation.

    OpenMP and MKL count threads for each thread that calls them, so that all else in the process
    keeps its own number. OpenBLAS, which NumPy and SciPy bring, does not: until a fit is done,
    other threads of the process have one thread there, too. Who comes first sets that limit and
    takes it back; others meanwhile leave it alone, since only that thread can.
    """
    with _threads(1):
        if not _LIMITS_BLAS.acquire(blocking=False):
            yield
            return
        try:
            with _thread_pools(threading_layer="pthreads").limit(limits=1):
                yield
        finally:
            _LIMITS_BLAS.release()


def spawn(generator: torch.Generator) -> torch.Generator:
    """A generator of its own for a part of the work: one draw of the given one is its seed."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.Generator().manual_seed(seed)


def anew(generator: torch.Generator) -> torch.Generator:
    """A generator that begins where the given one began."""
    return torch.Generator().manual_seed(generator.initial_seed())
