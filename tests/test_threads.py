"""Small work runs on one thread, parts of large work on several; others keep their number."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from threading import Barrier, Event, Thread, current_thread

import numpy as np
import pytest
import torch
from sklearn.base import clone
from threadpoolctl import ThreadpoolController

from mixtura import MixtureClassifier
from mixtura.engines import base
from mixtura.numerics import _APART, by_parts, each_apart, one_thread
from mixtura.solvers import EBW, EM, LBFGS


@pytest.fixture(autouse=True)
def two_threads():
    """Two for the thread that runs the tests, whatever the machine has."""
    with ThreadpoolController().limit(limits=2, user_api="openmp"):
        yield


def test_small_fits_run_on_one_thread(rng):
    X, y = rng.normal(size=(40, 2)), np.arange(40) % 2
    seen = []
    model = MixtureClassifier(1, density="diag").set_callbacks(lambda _: seen.append(threads()))
    model.fit(X + y[:, None], y)
    assert seen
    assert set(seen) == {1}
    assert threads() == 2


def test_large_work_keeps_its_threads():
    with one_thread(10_000_000):
        assert threads() == 2
    with one_thread(1):
        assert threads() == 1
    with pytest.raises(ValueError, match="on the way"), one_thread(1):
        raise ValueError("on the way")
    assert threads() == 2


def test_parts_of_large_sums_are_worked_on_side_by_side():
    """In their order, each operation on one thread, and with what the caller knows."""
    met, together = [], Barrier(2)

    def work(item):
        met.append((threads(), torch.is_grad_enabled()))
        together.wait(60)
        return item**2

    with by_parts(10_000_000), torch.no_grad():
        assert threads() == 1
        assert list(each_apart(work, range(6))) == [0, 1, 4, 9, 16, 25]
        with one_thread(10_000_000):
            assert threads() == 2
        assert threads() == 1
    assert met == [(1, False)] * 6
    assert threads() == 2


def test_parts_of_small_sums_are_worked_on_one_by_one():
    met = []
    with by_parts(1_000):
        assert list(each_apart(lambda item: met.append(current_thread()), range(3))) == [None] * 3
    assert set(met) == {current_thread()}


def test_an_error_in_a_part_ends_all_of_it():
    given = iter(range(1000))

    def fail(item):
        if item == 3:
            raise ValueError("on the way")
        return item

    with by_parts(10_000_000), pytest.raises(ValueError, match="on the way"):
        list(each_apart(fail, given))
    assert next(given) < 10
    assert threads() == 2


@pytest.mark.parametrize("solver", [EM(3), EBW(3), LBFGS(3)])
def test_two_threads_give_what_one_gives_to_the_bit(solver, rng, monkeypatch):
    """And they are at work: in fits of many rows, on chunks of these."""
    likely = isinstance(solver, EM)
    n_rows = 100_000 if likely else 40_000  # classes that are fitted one by one
    X, y = rng.normal(size=(n_rows, 16)), rng.integers(2, size=n_rows)
    X[y == 1] += 0.3
    model = MixtureClassifier(
        2, density="diag", tradeoff=1.0 if likely else 0.5, solver=solver, calibrate=False
    )
    found, seen, own = [], [], base.each_apart
    monkeypatch.setattr(base, "each_apart", lambda *given: seen.append(_APART.get()) or own(*given))
    for count in (1, 2):
        seen.clear()
        with ThreadpoolController().limit(limits=count):
            found.append(clone(model).set_params(random_state=0).fit(X, y).means_)
        assert set(seen) == {count}
        assert _APART.get() == 1
    np.testing.assert_array_equal(*found)


def test_parts_know_what_their_caller_knows(rng):
    known = ContextVar("known", default=0)
    known.set(7)
    with by_parts(10_000_000):
        assert list(each_apart(lambda item: item + known.get(), range(4))) == [7, 8, 9, 10]
    seen = []
    with by_parts(10_000_000):
        list(each_apart(lambda item: seen.append(current_thread()), range(4)))
    assert current_thread() not in seen
    with by_parts(1):
        assert list(each_apart(lambda item: current_thread(), [0])) == [current_thread()]


def test_products_of_pytorch_have_one_thread_whatever_was_set(rng):
    """MKL goes by `torch.set_num_threads`, which limits of OpenMP do not change."""
    X, y = rng.normal(size=(40, 2)), np.arange(40) % 2
    seen, before = [], torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outside = mkl_threads()
        if outside is None:
            pytest.skip("this PyTorch has no MKL")
        assert outside == 2
        MixtureClassifier().set_callbacks(lambda _: seen.append(mkl_threads())).fit(X, y)
        with by_parts(10_000_000):
            assert mkl_threads() == 1
            assert list(each_apart(lambda _: mkl_threads(), range(4))) == [1] * 4
            with one_thread(10_000_000):
                assert mkl_threads() == 2
        assert mkl_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_other_threads_keep_theirs():
    def here():
        return found.append(threads())

    found = []
    other = Thread(target=here)
    other.start()
    other.join()
    with one_thread(1):
        other = Thread(target=here)
        other.start()
        other.join()
    assert found[0] == found[1]


def test_products_of_small_fits_run_on_one_thread(two_products, rng):
    seen = []
    model = MixtureClassifier().set_callbacks(lambda _: seen.append(blas_threads()))
    model.fit(rng.normal(size=(40, 2)), np.arange(40) % 2)
    assert seen
    assert all(each == {1} for each in seen)
    assert blas_threads() == {2}
    with pytest.raises(ValueError, match="on the way"), one_thread(1):
        raise ValueError("on the way")
    assert blas_threads() == {2}


def test_who_sets_the_limit_takes_it_back(two_products):
    """Whoever else comes and goes meanwhile, in threads that live on."""
    came, go = Event(), Event()

    def first():
        with one_thread(1):
            came.set()
            go.wait(60)

    def second():
        with one_thread(1):
            go.set()
            begun.result(60)
        return blas_threads()

    with ThreadPoolExecutor(2) as pool:
        begun = pool.submit(first)
        came.wait(60)
        assert blas_threads() == {1}
        assert pool.submit(second).result(60) == {2}
        assert blas_threads() == {2}
        with one_thread(1):
            assert blas_threads() == {1}
    assert blas_threads() == {2}


@pytest.fixture
def two_products():
    """Two threads for NumPy's products."""
    before = blas_threads()
    if not before:
        pytest.skip("NumPy has no library that counts threads per process")
    set_products(2)
    yield
    assert blas_threads() == {2}
    set_products(max(before))


def threads():
    return torch.get_num_threads()


def set_products(count):
    """By a thread that ends: while it lived, no other could change the number."""
    setter = Thread(target=lambda: ThreadpoolController().limit(limits=count, user_api="blas"))
    setter.start()
    setter.join()


def blas_threads():
    """How many threads libraries have that count them per process."""
    pools = ThreadpoolController().select(threading_layer="pthreads").info()
    return {pool["num_threads"] for pool in pools}


def mkl_threads():
    """How many threads a product of PyTorch has here; None without MKL."""
    for path in Path(torch.__file__).with_name("lib").glob("*torch_cpu.*"):
        library = ctypes.CDLL(str(path))
        if hasattr(library, "MKL_Get_Max_Threads"):
            return library.MKL_Get_Max_Threads()
    return None
