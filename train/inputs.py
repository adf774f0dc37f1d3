"""What a training is given: its samples, their split, and its batch sizes. Standard library only."""

from __future__ import annotations

import csv
import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple


class InputError(Exception):
    """The data or the configuration is wrong; the message says what to do."""


@dataclass(frozen=True)
class Samples:
    """One row of features and one class, counted from 0, for each sample."""

    features: list[list[float]]
    labels: list[int]
    classes: int

    @property
    def width(self) -> int:
        return len(self.features[0])


class BatchSizes(NamedTuple):
    """Samples of one optimizer step, of one rank's forward pass, and forward passes for each step."""

    train: int
    micro: int
    accumulation: int


def find_data(path: Path) -> Path:
    """Return the data file that `path` is, or that the folder `path` holds."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder; give a CSV file with --data, or use --synthetic")
    if (path / "digits.csv.gz").is_file():
        return path / "digits.csv.gz"
    found = sorted(file for file in path.iterdir() if file.name.endswith((".csv", ".csv.gz")))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise InputError(f"{path}: expected one .csv or .csv.gz file, found {names}; name the file with --data")
    return found[0]


def read_samples(path: Path) -> Samples:
    """Read lines of comma-separated numbers, each ended by the sample's label; labels may be any text."""
    features: list[list[float]] = []
    names: list[str] = []
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        for line, row in enumerate(csv.reader(file), start=1):
            if not row:
                continue
            try:
                features.append([float(value) for value in row[:-1]])
            except ValueError as error:
                raise InputError(f"{path}:{line}: {error}; every value but the label is a number") from error
            if len(features[-1]) != len(features[0]):
                raise InputError(f"{path}:{line}: {len(row)} values where the first line has {len(features[0]) + 1}")
            names.append(row[-1].strip())
    if not features or not features[0]:
        raise InputError(f"{path}: no samples; a line is its values, then its label")
    classes = {name: index for index, name in enumerate(sorted(set(names)))}
    return Samples(features, [classes[name] for name in names], len(classes))


def synthetic_samples(clusters: int, *, width: int = 64, each: int = 180, seed: int = 0) -> Samples:
    """Draw `each` samples around every one of `clusters` random centres, which are their classes."""
    noise = NormalDist()
    centres = noise.samples(clusters * width, seed=seed)
    offsets = iter(noise.samples(clusters * width * each, seed=seed + 1))
    labels = [index % clusters for index in range(clusters * each)]
    features = [[centres[label * width + column] + next(offsets) for column in range(width)] for label in labels]
    return Samples(features, labels, clusters)


def split(count: int) -> tuple[list[int], list[int]]:
    """Return the indices to train on and the sixth that is held out: the same ones on every rank and in every run."""
    # Ordered by hash and not drawn: no version of a random generator can change the split.
    order = sorted(range(count), key=lambda index: hashlib.sha256(f"split {index}".encode()).digest())
    held_out = count // 6
    return sorted(order[held_out:]), sorted(order[:held_out])


def batch_sizes(config: dict[str, Any], world_size: int) -> BatchSizes:
    """Fill in the batch sizes that a DeepSpeed configuration leaves out.

    train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * world size, as in
    deepspeed/runtime/config.py (0.19.8, `_set_batch_related_parameters`), which rounds where this raises InputError.
    """
    train = config.get("train_batch_size")
    micro = config.get("train_micro_batch_size_per_gpu")
    accumulation = config.get("gradient_accumulation_steps")
    given = [size for size in (train, micro, accumulation) if size is not None]
    if any(not isinstance(size, int) or size < 1 for size in given):
        raise InputError(f"batch sizes are whole numbers from 1 on, not {given}")
    if train is None and micro is None:
        raise InputError("the configuration needs train_batch_size or train_micro_batch_size_per_gpu")
    if accumulation is None:
        accumulation = train // (micro * world_size) if train and micro else 1
    if micro is None:
        micro = train // (accumulation * world_size)
    if train is None:
        train = micro * accumulation * world_size
    if train != micro * accumulation * world_size:
        raise InputError(
            f"train_batch_size {train} is not micro-batch {micro} x accumulation {accumulation} x "
            f"world size {world_size}: choose a train_batch_size that {max(accumulation, 1) * world_size} divides, "
            "or give train_micro_batch_size_per_gpu alone"
        )
    return BatchSizes(train, micro, accumulation)
