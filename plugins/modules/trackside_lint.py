#!/usr/bin/python
"""Look at what is to be trained before any node is touched."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_lint
short_description: Look at what is to be trained before any node is touched
description:
  - Runs on the controller. Reads the script and its DeepSpeed configuration,
    and refuses what cannot work on this cluster.
options:
  script:
    description: The training program, on the controller.
    type: path
    required: true
  code:
    description: Folder that is sent to the nodes; the script lies in it. Empty means the script's own folder.
    type: str
    default: ""
  config:
    description: DeepSpeed's configuration. Empty means C(ds_config.json) beside the script, where there is one.
    type: str
    default: ""
  name:
    description: Name that the run is to have. Empty means that one is made from the script's.
    type: str
    default: ""
  world_size:
    description: Number of ranks.
    type: int
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Lint
  delegate_to: localhost
  trackside_lint:
    script: train/mlp.py
    world_size: 3
"""
RETURN = r"""
name:
  description: The run's name, or what it begins with.
  returned: success
  type: str
script:
  description: Path of the script below the code folder.
  returned: success
  type: str
code:
  description: The code folder, absolute.
  returned: success
  type: str
config:
  description: The configuration's text, empty when there is none.
  returned: success
  type: str
"""

import json
import os
import re

from ansible.module_utils.basic import AnsibleModule

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read_config(path):
    """Return (document, text); raises ValueError with file, line and cause."""
    with open(path) as stream:
        text = stream.read()
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError("%s line %d column %d: not JSON: %s" % (path, error.lineno, error.colno, error.msg)) from None
    if not isinstance(document, dict):
        raise ValueError("%s: the configuration has to be one JSON object" % path)
    return document, text


def batch_problems(config, world_size):
    """Return what is wrong with the batch sizes: train = micro x accumulation x world size.

    Source: DeepSpeed 0.19, runtime/config.py, _set_batch_related_parameters.
    """
    values = {}
    for name in BATCH:
        value = config.get(name)
        if value in (None, "auto"):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return ["%s is %r, it has to be a whole number from 1 on" % (name, value)]
        values[name] = value
    train, micro, steps = (values.get(name) for name in BATCH)
    if train is None:
        # "auto" is filled in by the program, as transformers does.
        given = any(config.get(name) is not None for name in BATCH[:2])
        return [] if given else ["neither train_batch_size nor train_micro_batch_size_per_gpu is set: set one"]
    rest = world_size * (steps or 1) * (micro or 1)
    if micro and steps and train != rest:
        return [
            "train_batch_size %d is not micro-batch %d x accumulation %d x world size %d = %d: correct one of them"
            % (train, micro, steps, world_size, rest)
        ]
    if train % rest:
        lower, upper = train // rest * rest, (train // rest + 1) * rest
        near = "%d or %d" % (lower, upper) if lower else str(upper)
        return [
            "train_batch_size %d does not divide by %d (world size %d%s): use %s"
            % (train, rest, world_size, " x what else is set" if rest != world_size else "", near)
        ]
    return []


def examine(options):
    """Return the result; raises ValueError with one sentence per problem."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{0,60}", options["name"]):
        raise ValueError("the run's name %r has to be of letters, digits, - and _, 60 at most" % options["name"])
    script = os.path.abspath(options["script"])
    if not os.path.isfile(script):
        raise ValueError("%s: there is no such script: give the path of the training program" % script)
    code = os.path.abspath(options["code"] or os.path.dirname(script))
    if not os.path.isdir(code) or os.path.relpath(script, code).startswith(".."):
        raise ValueError("%s does not lie in the code folder %s: give a folder above it" % (script, code))
    if script.endswith(".py"):
        with open(script, "rb") as stream:
            source = stream.read()
        try:
            compile(source, script, "exec")
        except (SyntaxError, ValueError) as error:
            raise ValueError("%s line %s: %s" % (script, getattr(error, "lineno", "?"), error)) from None
    beside = os.path.join(os.path.dirname(script), "ds_config.json")
    path = options["config"] or (beside if os.path.isfile(beside) else "")
    text = ""
    if path:
        path = os.path.abspath(path)
        if not os.path.isfile(path):
            raise ValueError("%s: there is no such DeepSpeed configuration" % path)
        document, text = read_config(path)
        problems = batch_problems(document, options["world_size"])
        if problems:
            raise ValueError("; ".join("%s: %s" % (path, problem) for problem in problems))
    stem = os.path.splitext(os.path.basename(script))[0]
    return {
        "name": options["name"] or re.sub(r"[^A-Za-z0-9_-]", "_", stem)[:40],
        "script": os.path.relpath(script, code),
        "code": code,
        "config": text,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "script": {"type": "path", "required": True},
            "code": {"type": "str", "default": ""},
            "config": {"type": "str", "default": ""},
            "name": {"type": "str", "default": ""},
            "world_size": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **examine(module.params))
    except ValueError as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()
