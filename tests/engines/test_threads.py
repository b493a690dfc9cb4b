"""The number of threads, and the pool that runs shards."""

import multiprocessing
import threading
import time

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from minattn.engines import choose, get_threads, set_threads
from minattn.engines.threads import available_cores, run_in_threads, single_threaded_blas

WAIT = 60  # seconds after which a test gives up on another thread


@pytest.mark.parametrize("threads", [1, 2, np.int64(3)])
def test_the_number_of_threads(threads):
    set_threads(threads)
    assert get_threads() == threads
    assert choose("numba").threads == threads
    assert choose("numpy").threads == 1


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "2", None])
def test_a_bad_number_of_threads_is_refused_and_changes_nothing(bad):
    set_threads(3)
    with pytest.raises(ValueError, match=r"n: got .*, needs an integer"):
        set_threads(bad)
    assert get_threads() == 3


def test_the_default_is_a_positive_number_of_cores():
    assert available_cores() >= 1


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("tasks", [1, 2, 7])
def test_results_come_in_the_order_of_the_tasks(threads, tasks):
    set_threads(threads)
    finished = []

    def task(number):
        time.sleep(0.002 * (tasks - number))  # later ones are quicker
        finished.append(number)
        return number

    expected = list(range(tasks))
    assert run_in_threads([lambda n=n: task(n) for n in expected]) == expected
    assert sorted(finished) == expected


def test_tasks_run_side_by_side_and_the_caller_takes_part():
    set_threads(2)
    meeting = threading.Barrier(2, timeout=WAIT)

    def task():
        meeting.wait()  # breaks unless both are there at once
        return threading.get_ident()

    found = set(run_in_threads([task, task]))
    assert threading.get_ident() in found
    assert len(found) == 2


def test_one_thread_is_the_callers():
    set_threads(1)
    assert set(run_in_threads([threading.get_ident] * 5)) == {threading.get_ident()}


def test_a_thread_that_is_done_takes_the_next_task():
    set_threads(2)
    rest = threading.Barrier(2, timeout=WAIT)
    tasks = [lambda: rest.wait() and None, *[threading.get_ident] * 5, lambda: rest.wait() and None]
    found = run_in_threads(tasks)  # breaks unless all between the first and the last get done
    assert len(set(found[1:-1])) == 1


@pytest.mark.parametrize("failing", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_an_error_of_any_task_comes_out_when_those_begun_have_finished(failing):
    set_threads(2)
    begun, finished = [], []

    def task(number):
        begun.append(number)
        time.sleep(0.0 if number in failing else 0.02)
        if number in failing:
            raise KeyError(number)
        finished.append(number)

    with pytest.raises(KeyError) as caught:
        run_in_threads([lambda n=n: task(n) for n in range(3)])
    assert caught.value.args[0] in failing
    assert set(finished) == set(begun) - failing


def test_the_pool_works_after_an_error():
    set_threads(2)
    with pytest.raises(ZeroDivisionError):
        run_in_threads([lambda: 0, lambda: 1 // 0])
    assert run_in_threads([lambda: 1, lambda: 2]) == [1, 2]


def blas_threads():
    """Return the number of threads of the BLAS that NumPy brings along."""
    libraries = ThreadpoolController().select(user_api="blas").info()
    return [lib["num_threads"] for lib in libraries if "numpy" in lib["filepath"]]


@pytest.mark.parametrize("tasks", [1, 3])
def test_blas_has_one_thread_inside_and_its_own_number_afterwards(tasks):
    set_threads(2)
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if 2 not in blas_threads():
            pytest.skip("this BLAS cannot use two threads")
        for inside in run_in_threads([blas_threads] * tasks):
            assert set(inside) == {1}
        assert 2 in blas_threads()
        with pytest.raises(ZeroDivisionError):
            run_in_threads([lambda: 1 // 0] * tasks)
        assert 2 in blas_threads()


def answer(queue):
    """Run two tasks in a forked process."""
    queue.put(run_in_threads([lambda: 1, lambda: 2]))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork"
)
def test_a_forked_process_has_threads_of_its_own():
    set_threads(2)
    run_in_threads([lambda: 1, lambda: 2])  # the pool of this process has its thread
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=answer, args=(queue,), daemon=True)
    child.start()
    try:
        assert queue.get(timeout=WAIT) == [1, 2]
        child.join(WAIT)
        assert child.exitcode == 0
    finally:
        child.kill()


def test_blas_has_its_threads_back_after_runs_that_overlap():
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if 2 not in blas_threads():
            pytest.skip("this BLAS cannot use two threads")
        first, second = single_threaded_blas(), single_threaded_blas()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(blas_threads()) == {1}  # the second one is still at work
        second.__exit__(None, None, None)
        assert 2 in blas_threads()
