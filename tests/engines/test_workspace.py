"""Buffers that come back in the same order."""

import numpy as np

from minattn.engines import Buffers, Workspace, choose

REQUESTS = [((2, 3), "float64"), ((2, 3), "float64"), ((4,), "float32"), ((), "float64")]


def test_requests_of_one_step_never_share_memory():
    workspace = Workspace()
    buffers = [workspace.empty(*request) for request in REQUESTS]
    for number, buffer in enumerate(buffers):
        assert (buffer.shape, buffer.dtype) == (REQUESTS[number][0], REQUESTS[number][1])
        assert not any(np.shares_memory(buffer, other) for other in buffers[:number])


def test_the_same_buffers_come_back_after_a_restart():
    workspace = Workspace()
    first = [workspace.empty(*request) for request in REQUESTS]
    for _ in range(2):
        workspace.restart()
        again = [workspace.empty(*request) for request in REQUESTS]
        assert all(one is other for one, other in zip(first, again, strict=True))


def test_another_shape_or_dtype_is_served_and_the_rest_stay():
    workspace = Workspace()
    first = [workspace.empty(*request) for request in REQUESTS]
    workspace.restart()
    changed = [REQUESTS[0], ((3, 3), "float64"), ((4,), "float64"), REQUESTS[3], ((1,), "float64")]
    again = [workspace.empty(*request) for request in changed]
    for number, kept in enumerate([True, False, False, True]):
        assert (again[number] is first[number]) == kept
    for buffer, (shape, dtype) in zip(again, changed, strict=True):
        assert (buffer.shape, buffer.dtype) == (shape, dtype)
        assert not any(np.shares_memory(buffer, other) for other in again if other is not buffer)


def test_what_is_not_larger_takes_no_new_memory():
    workspace = Workspace()
    first = workspace.empty((3, 4), "float64")
    workspace.restart()
    smaller = workspace.empty((2, 5), "float32")
    assert np.shares_memory(first, smaller)
    workspace.restart()
    assert np.shares_memory(first, workspace.empty((3, 4), "float64"))


def test_scratch_is_free_again_unless_all_is_kept():
    for complete in (False, True):
        workspace = Workspace()
        workspace.restart(complete)
        workspace.empty((2,), "float64")
        with workspace.scratch():
            inside = workspace.empty((3,), "float64")
        assert (workspace.empty((3,), "float64") is inside) != complete


def test_a_workspace_is_lent_to_one_borrower_at_a_time():
    buffers = Buffers()
    with buffers.workspace() as one, buffers.workspace() as other:
        assert one is not other
    with buffers.workspace() as again:
        assert again in (one, other)
    with buffers.workspace((0, 1)) as own:
        assert own not in (one, other)
    with buffers.workspace((0, 2)) as another, buffers.workspace((0, 1)) as same:
        assert same is own is not another


def test_what_was_prepared_stays_for_the_same_arrays_and_equal_settings():
    buffers, made = Buffers(), []

    def prepare():
        made.append(object())
        return made[-1]

    arrays = [np.zeros(3), np.zeros(2)]
    assert buffers.prepared(("a", 1), arrays, prepare) is made[0]
    arrays[0] += 1
    assert buffers.prepared(("a", 1), list(arrays), prepare) is made[0]
    with buffers.workspace() as before:
        pass
    assert buffers.prepared(("a", 2), arrays, prepare) is made[1]
    assert buffers.prepared(("a", 2), [arrays[0], arrays[1].copy()], prepare) is made[2]
    assert buffers.prepared(("a", 2), [arrays[0]], prepare) is made[3]
    with buffers.workspace() as after:
        assert after is not before


def test_an_engine_takes_its_outputs_from_its_workspace(engine):
    workspace = Workspace()
    plain, using = choose(engine), choose(engine).using(workspace)
    a, b = np.ones((1, 2, 3)), np.ones((1, 3, 2))
    first = using.matmul(a, b)
    workspace.restart()
    assert using.matmul(a, b) is first
    assert plain.matmul(a, b) is not plain.matmul(a, b)
    assert type(using) is type(plain)
