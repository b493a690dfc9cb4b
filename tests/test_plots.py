import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.text import Text

from minattn import plots
from minattn.objectives import MASKED


@pytest.fixture
def drawn(tmp_path):
    def save(figure):
        path = tmp_path / "figure.png"
        plots.save(figure, path)
        assert path.read_bytes().startswith(b"\x89PNG")
        return figure

    return save


def test_curves_show_mean_and_interval_and_skip_undefined_records(drawn):
    figure = plots.figure(4, 3)
    axes = figure.subplots()
    values = np.array([[1.0, 3.0], [np.nan, 1.0], [2.0, 2.0]])
    plots.curve(axes, np.array([0, 10, 20]), values, "arm", 0)
    plots.curve(axes, np.array([0]), np.array([[np.nan, np.nan]]), "never", 1)
    plots.legend_below(figure, axes, 2)
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[0, 2], [20, 2]]
    drawn(figure)


def test_matrices_share_one_scale_and_show_their_norms(drawn):
    small, large = np.eye(3), np.array([[0, 3.0, 4], [0, 0, 0], [0, 0, 0]])
    figure = drawn(plots.matrices([("small", small), ("large", large)], "title"))
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert [image.get_clim() for image in images] == [(-4, 4), (-4, 4)]
    columns, rows = (
        [[bar.get_height() if above else bar.get_width() for bar in axes.patches] for axes in side]
        for above, side in ((True, figure.axes[1:6:3]), (False, figure.axes[2:6:3]))
    )
    assert columns == [[1, 1, 1], [0, 3, 4]]
    assert rows == [[1, 1, 1], [5, 0, 0]]


def test_coefficients_have_their_tokens_on_both_axes(drawn):
    beta = np.array([[0, 0], [-2.0, 1]])
    figure = drawn(plots.coefficients([("arm", beta, ["a", "b"])], "title"))
    axes = figure.axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        assert [label.get_text() for label in axis.get_ticklabels()] == ["a", "b"]
    assert axes.images[0].get_clim() == (-2, 2)


def test_long_sequences_are_thinned_to_what_can_be_read(drawn):
    tokens = [str(place) for place in range(32)]
    figure = drawn(plots.coefficients([("arm", np.eye(32), tokens)], "title"))
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert shown == tokens[::2]


def test_every_masked_token_is_written_and_leaves_others_room(drawn):
    tokens = [MASKED if place in (3, 8, 9) else str(place) for place in range(32)]
    axes = drawn(plots.coefficients([("arm", np.eye(32), tokens)], "title")).axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        places = [int(place) for place in axis.get_ticklocs()]
        assert [label.get_text() for label in axis.get_ticklabels()] == [tokens[i] for i in places]
        assert places == [0, 3, 5, 8, 9, *range(11, 32, 2)]


@pytest.mark.parametrize("width", [4.0, 13.0])
@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_no_text_is_too_small_in_a_printed_column(tmp_path, width, ending):
    figure = plots.figure(width, 3)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], label="line")
    axes.set_xticks([0, 1], ["small", "labels"], fontsize=3)
    axes.set_title("large", fontsize=30)
    axes.legend(fontsize=2)
    plots.save(figure, tmp_path / f"figure.{ending}")
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    printed = min(1.0, plots.COLUMN / width)
    assert min(sizes) * printed >= plots.SMALLEST - 1e-9
    assert max(sizes) == 30


def test_figures_need_no_display(tmp_path):
    """A backend that would open windows is asked for, and there is nothing to open them on."""
    kept = {name: os.environ[name] for name in os.environ if "DISPLAY" not in name}
    code = (
        "import sys, numpy as np; from minattn import plots; "
        "plots.save(plots.matrices([('one', np.eye(3))], 'title'), 'figure.png'); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=kept | {"MPLBACKEND": "TkAgg", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split() == ["False"], run.stderr
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_equal_figures_are_equal_files(tmp_path):
    for name in ("a.pdf", "b.pdf", "a.png", "b.png"):
        plots.save(plots.matrices([("one", np.eye(3))], "title"), tmp_path / name)
    for ending in ("pdf", "png"):
        one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in "ab")
        assert one == two
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


def test_zero_matrices_can_be_drawn(drawn):
    drawn(plots.matrices([("zero", np.zeros((2, 2)))], "title"))
    drawn(plots.coefficients([("zero", np.zeros((2, 2)), ["a", "b"])], "title"))


def test_intervals_keep_a_line_for_every_name(drawn):
    figure = plots.figure(4, 3)
    axes = figure.subplots()
    plots.intervals(axes, ["one", "none", "two"], {"one": np.array([1.0, 3.0]), "two": np.zeros(3)})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "none", "two"]
    means = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_marker() == "s"
    ]
    assert means == [(2, 0), (0, 2)]
    drawn(figure)
