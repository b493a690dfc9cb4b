"""Buffers that come back in the same order."""

import numpy as np

from minattn.engines import Workspace, choose

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


def test_another_shape_or_dtype_gets_another_buffer_and_the_rest_stay():
    workspace = Workspace()
    first = [workspace.empty(*request) for request in REQUESTS]
    workspace.restart()
    changed = [REQUESTS[0], ((3, 2), "float64"), ((4,), "float64"), REQUESTS[3], ((1,), "float64")]
    again = [workspace.empty(*request) for request in changed]
    for number, kept in enumerate([True, False, False, True]):
        assert (again[number] is first[number]) == kept
    for buffer, (shape, dtype) in zip(again, changed, strict=True):
        assert (buffer.shape, buffer.dtype) == (shape, dtype)


def test_an_engine_takes_its_outputs_from_its_workspace(engine):
    workspace = Workspace()
    plain, using = choose(engine), choose(engine).using(workspace)
    a, b = np.ones((1, 2, 3)), np.ones((1, 3, 2))
    first = using.matmul(a, b)
    workspace.restart()
    assert using.matmul(a, b) is first
    assert plain.matmul(a, b) is not plain.matmul(a, b)
    assert type(using) is type(plain)
