"""What train/mlp.py is given: samples, split and batch sizes. Neither torch nor DeepSpeed is needed."""

import gzip
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "train"
spec = importlib.util.spec_from_file_location("train_inputs", TRAIN / "inputs.py")
inputs = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = inputs
spec.loader.exec_module(inputs)


def shipped_config():
    return json.loads((TRAIN / "ds_config.json").read_text())


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8, 12])
def test_shipped_config_fits_every_usual_world_size(world_size):
    assert inputs.batch_sizes(shipped_config(), world_size) == (96, 96 // world_size, 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"train_batch_size": 96}, (96, 32, 1)),
        ({"train_batch_size": 96, "gradient_accumulation_steps": 4}, (96, 8, 4)),
        ({"train_batch_size": 96, "train_micro_batch_size_per_gpu": 8}, (96, 8, 4)),
        ({"train_micro_batch_size_per_gpu": 5}, (15, 5, 1)),
        ({"train_micro_batch_size_per_gpu": 5, "gradient_accumulation_steps": 2}, (30, 5, 2)),
    ],
)
def test_missing_batch_sizes_follow_from_the_others(given, expected):
    assert inputs.batch_sizes(given, 3) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_batch_size": 100}, "that 3 divides"),
        ({"train_batch_size": 96, "train_micro_batch_size_per_gpu": 5}, "micro-batch 5 x accumulation 6"),
        (
            {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1},
            "is not micro-batch 16 x accumulation 1 x world size 3",
        ),
        ({"train_batch_size": 2}, "is not micro-batch 0"),
        ({"train_batch_size": "auto"}, "whole numbers"),
        ({"train_batch_size": 0}, "whole numbers"),
        ({"gradient_accumulation_steps": 2}, "needs train_batch_size or"),
    ],
)
def test_batch_sizes_that_do_not_fit_are_refused(given, message):
    with pytest.raises(inputs.InputError, match=message):
        inputs.batch_sizes(given, 3)


def test_shipped_digits():
    samples = inputs.read_samples(inputs.find_data(TRAIN / "data"))
    assert (len(samples.labels), samples.width, samples.classes) == (1797, 64, 10)
    assert samples.features[0][:6] == [0, 0, 5, 13, 9, 1]
    assert samples.labels[:3] == [0, 1, 2]
    assert {value for row in samples.features for value in row} == set(range(17))


def test_labels_may_be_text_and_width_follows_the_data(tmp_path):
    (tmp_path / "pets.csv").write_text("1,2.5,dog\n3,4e1,cat\n\n5,6,dog\n")
    samples = inputs.read_samples(inputs.find_data(tmp_path))
    assert samples == inputs.Samples([[1, 2.5], [3, 40], [5, 6]], [1, 0, 1], 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [("1,2,0\n1,0\n", r"digits.csv.gz:2: 2 values"), ("1,x,0\n", r"digits.csv.gz:1: .*'x'"), ("", "no samples")],
)
def test_broken_data_names_file_and_line(tmp_path, text, message):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(inputs.InputError, match=message):
        inputs.read_samples(path)


def test_a_folder_holds_the_digits_or_exactly_one_file(tmp_path):
    with pytest.raises(inputs.InputError, match="found none"):
        inputs.find_data(tmp_path)
    (tmp_path / "a.csv").touch()
    assert inputs.find_data(tmp_path) == tmp_path / "a.csv"
    (tmp_path / "b.csv.gz").touch()
    with pytest.raises(inputs.InputError, match=r"a\.csv, b\.csv\.gz"):
        inputs.find_data(tmp_path)
    (tmp_path / "digits.csv.gz").touch()
    assert inputs.find_data(tmp_path) == tmp_path / "digits.csv.gz"
    with pytest.raises(inputs.InputError, match="no such file or folder"):
        inputs.find_data(tmp_path / "absent")


def test_split_is_fixed_and_disjoint():
    training, held_out = inputs.split(1797)
    assert len(held_out) == 299
    assert sorted(training + held_out) == list(range(1797))
    assert (training, held_out) == inputs.split(1797)
    assert held_out[:5] == [0, 3, 7, 10, 21]


def test_held_out_samples_hold_every_class_evenly():
    samples = inputs.read_samples(TRAIN / "data" / "digits.csv.gz")
    counts = Counter(samples.labels[index] for index in inputs.split(1797)[1])
    assert set(counts) == set(range(10))
    assert min(counts.values()) >= 20


def test_synthetic_samples_are_seeded_and_balanced():
    samples = inputs.synthetic_samples(3, width=4, each=5)
    assert samples == inputs.synthetic_samples(3, width=4, each=5)
    assert samples != inputs.synthetic_samples(3, width=4, each=5, seed=1)
    assert Counter(samples.labels) == {0: 5, 1: 5, 2: 5}
    assert samples.width == 4
