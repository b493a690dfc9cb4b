"""How fast is a training step, and what does watching W_qk cost?

Before anything is timed, gradients are compared: minattn's engines and their peers on the same
parameters and tokens, each within 1e-9 (float64) or 1e-4 (float32) of the reference's in float64,
relative to the largest entry. A peer that disagrees is left out, an engine that does is an error.

Peers are PyTorch, eager with explicit attention, with its fused attention (SDPA) and compiled, and
JAX, jitted; for several replicas their batched forms (pip install 'minattn[bench]'; what is missing
is named). All have the same cores and --threads. A step is forward and backward, as `fit` makes it:
on a batch that is checked already, in buffers of the step before. Peers get tensors.

All contestants are timed in every round, in an order that turns, after untimed steps of their own.
Tables have medians and quartiles over rounds; a ratio is taken round by round. A target is met if
both quartiles are within its limit, and not met if neither is. It is "too noisy" to tell if they
lie on either side, or if other processes took more than a tenth of the cores in too many rounds.

  standard      time of engine "numba" over that of the fastest peer, at most 0.5 (d 64), and over
                the floor, at most 1.2 (d 256). The floor is what the matrix products alone would
                take, forward and backward and with whole blocks of scores, at the rate of a product
                of 1024 x 1024 matrices in the same rounds
  replicas      16 toy models, each with parameters and data of its own: at most 0.35 of the fastest
                peer's
  feed_forward  with pre-norm and a feed-forward part of width 4 d: at most 0.8 of the fastest peer
  account       share of training spent on `account`: at most 0.15 at every tenth step; with one
                head at every step
  scores        scores from factors over scores of the product: at most 0.1
  curves        slope of log time against log size at the upper end: at most 1.1 in batch, layers
                and replicas, at most 2 in length
  crossover     time of engine "numba" over "numpy" in small models; no target
  memory        peak memory of a step, above the level before it, in a fresh process, over that of
                PyTorch eager: at most 1
  compilation   how much longer a process's first training run takes with an empty cache: at most
                15 seconds

d: width, N: tokens a sequence, B: sequences, L: layers, H: heads, R: replicas. The result folder
holds README.md, a page with the tables; benchmark.csv and summary.json with every measured row; and
figures. The default run takes ten to fifteen minutes on two quiet cores, --quick half a minute
without peers.

--gpu-check compares the engine "cupy" with NumPy and with PyTorch on this GPU instead, at most five
minutes; it needs NumPy, CuPy and PyTorch, and minattn need not be installed. Of the options it
takes --out alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

GPU_CHECK = "--gpu-check"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or check the GPU engine."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if GPU_CHECK in given:
        # Last, so that it serves only where minattn is not installed.
        sys.path.append(str(Path(__file__).resolve().parents[1]))
        from parts.benchmark import gpu  # which has to do without what the other needs

        gpu.main([argument for argument in given if argument != GPU_CHECK])
    else:
        from parts.benchmark import run

        sys.exit(run.experiment.run(lambda: run.main(given, __doc__)))


if __name__ == "__main__":
    main()
