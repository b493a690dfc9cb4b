"""The tasks of `modalities.py`, text, images and sound, and one arm of one of them trained."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minattn.arrays import Array
from minattn.comparison import Run, Task, Training, frequency_loss, text_task
from minattn.comparison import train as train_arm
from minattn.data import MarkovChain, Sound, load_digits, load_text, load_wav, write_wav
from minattn.optim import AdamW
from minattn.params import W_qk
from minattn.randomness import generator
from minattn.scores import symmetry

MODALITIES = ("text", "images", "sound")
# Rate, steps and pitches were chosen on seed 1000 so that every arm learns, and by nothing else.
LEARNING_RATE = 6e-3
RATE, SECONDS, TONES = 8000, 20, 6


@dataclass(frozen=True)
class Setting:
    """One arm of one modality, trained in R replicas."""

    modality: str
    shuffled: bool  # the same symbols, each drawn by itself: nothing to learn from context
    arm: str
    seed: int
    replicas: int
    steps: int
    width: int
    layers: int
    length: int
    record_every: int
    engine: str
    text: str | None = None
    wav: str | None = None
    sha256: str = ""  # of the material, so that --resume takes no result of another


Results = dict[Setting, dict[str, Array]]


@dataclass(frozen=True)
class Material:
    """What one modality is made of."""

    title: str
    sha256: str
    n_symbols: int
    train: Any
    validation: Any
    symbols: tuple[str, ...] | None = None


def material(modality: str, seed: int, text: str | None, wav: str | None) -> Material:
    """Load a modality."""
    if modality == "text":
        corpus = load_text(text and Path(text))
        parts = (corpus.n_symbols, corpus.train, corpus.validation, corpus.symbols)
        return Material(f"text ({corpus.name})", corpus.sha256, *parts)
    if modality == "images":
        digits = load_digits()
        parts = (digits.n_symbols, digits.train, digits.validation)
        return Material(f"images ({digits.name})", digits.sha256, *parts)
    sound = load_wav(wav) if wav else synthetic(seed)
    parts = (sound.n_symbols, sound.train, sound.validation)
    return Material(f"sound ({sound.name})", sound.sha256, *parts)


def synthetic(seed: int) -> Sound:
    """Return the tone mixture as a WAV file gives it: written and read again."""
    file = io.BytesIO()
    write_wav(file, tones(seed), RATE)
    file.seek(0)
    return load_wav(file, name="synthetic tone mixture")


def tones(seed: int) -> Array:
    """Mix tones of random pitch, each swelling at its own slow pace, and a little noise."""
    rng = generator(seed, "source", 0)
    t = np.arange(RATE * SECONDS) / RATE
    mixed = np.zeros_like(t)
    for _ in range(TONES):
        pitch, pace = rng.uniform(40, 400), rng.uniform(0.2, 1.0)
        phases = rng.uniform(0, 2 * np.pi, 2)
        swell = 1 + np.sin(2 * np.pi * pace * t + phases[0])
        mixed += swell * np.sin(2 * np.pi * pitch * t + phases[1])
    mixed += 0.1 * rng.standard_normal(len(t))
    return mixed / abs(mixed).max()


def task_of(setting: Setting, source: Material) -> Task:
    """Return the task of a setting; replicas share its source."""
    many = setting.replicas
    if setting.shuffled:
        counts = np.bincount(source.train.tokens.ravel(), minlength=source.n_symbols)
        alone = [MarkovChain.independent(counts / counts.sum())] * many
        return Task(setting.modality, f"{source.title}, shuffled", alone, alone, setting.layers)
    if setting.modality == "text":
        corpus = load_text(setting.text and Path(setting.text))
        return text_task("text", many, corpus, setting.layers)
    parts = [source.train] * many, [source.validation] * many
    return Task(setting.modality, source.title, *parts, setting.layers)


def train(setting: Setting) -> dict[str, Array]:
    """Train one arm; return metrics (records, L, R), loss (records, R) and the rest."""
    source = material(setting.modality, setting.seed, setting.text, setting.wav)
    run = train_arm(task_of(setting, source), setting.arm, training(setting))
    result = {name: values for name, values in run.history.metrics.items() if values.ndim == 3}
    forms = [W_qk(run.initial, layer) for layer in range(setting.layers)]
    result |= {
        "loss": run.loss,
        "steps": run.history.steps,
        "goal": frequency_loss(source.train.tokens, source.n_symbols, run.test),
        "proof_residual": run.proof_residual,
        "untrained_symmetry": np.mean([symmetry(form) for form in forms], axis=0),
    }
    if not setting.shuffled:
        result |= pictures(run)
    return result


def training(setting: Setting) -> Training:
    """Return how every arm is trained."""
    return Training(
        width=setting.width,
        heads=1,
        length=setting.length,
        batch_size=8,
        steps=setting.steps,
        record_every=setting.record_every,
        held_out_windows=32,
        optimizer=AdamW(LEARNING_RATE),
        seed=setting.seed,
        engine=setting.engine,
        dtype="float32",
    )


def pictures(run: Run) -> dict[str, Array]:
    """Return W_qk's change in the first replica, a matrix a layer: (L, d, d)."""
    layers = range(run.config.layers)
    change = [W_qk(run.history.params, n)[0] - W_qk(run.initial, n)[0] for n in layers]
    return {"change_of_first_replica": np.stack(change)}
