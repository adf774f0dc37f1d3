"""What is refused before a node is touched."""

import json

import pytest
import trackside_lint as lint

TRAIN, MICRO, STEPS = lint.BATCH


def options(script, **others):
    return {"script": str(script), "code": "", "config": "", "name": "", "world_size": 3, **others}


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "code" / "my job.py"
    path.parent.mkdir()
    path.write_text("print('hi')\n")
    return path


@pytest.mark.parametrize(
    "config",
    [
        {TRAIN: 96},
        {TRAIN: 96, MICRO: 32},
        {TRAIN: 96, MICRO: 8, STEPS: 4},
        {MICRO: 5},
        {MICRO: 5, STEPS: 2},
        {TRAIN: 96, MICRO: "auto", STEPS: "auto"},
        {TRAIN: "auto", MICRO: "auto"},  # transformers fills them in
    ],
)
def test_batch_sizes_that_work(config):
    assert lint.batch_problems(config, 3) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "neither"),
        ({STEPS: 2}, "neither"),
        ({TRAIN: 100}, "does not divide by 3 (world size 3): use 99 or 102"),
        ({TRAIN: 2}, "use 3"),
        ({TRAIN: 96, STEPS: 5}, "does not divide by 15 (world size 3 x what else is set): use 90 or 105"),
        ({TRAIN: 96, MICRO: 16, STEPS: 1}, "micro-batch 16 x accumulation 1 x world size 3 = 48"),
        ({TRAIN: "many"}, "'many', it has to be a whole number"),
        ({MICRO: True}, "True, it has to be a whole number"),
        ({TRAIN: 0}, "0, it has to be a whole number"),
    ],
)
def test_batch_sizes_that_do_not(config, words):
    assert words in "; ".join(lint.batch_problems(config, 3))


def test_the_script_and_the_configuration_beside_it(script):
    text = json.dumps({TRAIN: 96})
    (script.parent / "ds_config.json").write_text(text)
    assert lint.examine(options(script)) == {
        "name": "my_job",
        "script": "my job.py",
        "code": str(script.parent),
        "config": text,
    }


def test_the_script_below_a_code_folder(script):
    found = lint.examine(options(script, code=str(script.parents[1]), name="run-1"))
    assert (found["name"], found["script"], found["config"]) == ("run-1", "code/my job.py", "")


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"script": "/nowhere/train.py"}, "no such script"),
        ({"code": "/usr"}, "does not lie in the code folder /usr"),
        ({"config": "/nowhere/ds.json"}, "no such DeepSpeed configuration"),
        ({"name": "a b"}, "has to be of letters"),
    ],
)
def test_wrong_paths_and_names(script, others, words):
    with pytest.raises(ValueError, match=words):
        lint.examine({**options(script), **others})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n  "train_batch_size": 96,\n}\n', r"ds\.json line 3 column 1: not JSON"),
        ("[]", "one JSON object"),
        ('{"train_batch_size": 100}', r"ds\.json: train_batch_size 100"),
    ],
)
def test_a_wrong_configuration_is_named_with_its_line(script, text, words):
    config = script.with_name("ds.json")
    config.write_text(text)
    with pytest.raises(ValueError, match=words):
        lint.examine(options(script, config=str(config)))


def test_a_script_that_is_no_python_is_named_with_its_line(script):
    script.write_text("a = 1\nif a:\n")
    with pytest.raises(ValueError, match=r"my job\.py line 2"):
        lint.examine(options(script))
