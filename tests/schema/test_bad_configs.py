"""Invalid or hostile presets: a one-line error, exit code 1, and no other effect."""

import re

import pytest

from tests.helpers.sampled import mostly_slow
from tests.helpers.wrong import desk as desk

WRITES = "logging.FileHandler, filename: mark"
BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
#: The text of a preset -> a part of the error.
TEXTS = {
    "a target": ("encoder: {_target_: os.system, command: 'touch mark'}\n", "key `_target_` is refused"),
    "a target in a list": ("evaluate: {maps: [{_target_: os.system}]}\n", "key `_target_` is refused"),
    "a partial": ("encoder: {_partial_: true}\n", "key `_partial_` is refused"),
    "a factory of logging": (f"data: {{'()': {WRITES}}}\n", "key `..` is refused"),
    "an object": ("encoder: !!python/object/apply:os.system ['touch mark']\n", "tags"),
    "a Python name": ("encoder: !!python/name:os.system\n", "tags"),
    "a module": ("encoder: !!python/module:antigravity\n", "tags"),
    "another tag": ("encoder: !include /etc/passwd\n", "tags"),
    "an invalid date": ("seed: !!timestamp x\n", "tags"),
    "a tag of a key": ("!!bool x: 1\n", "tags"),
    "an alias bomb": (BOMB, "aliases"),
    "a cycle": ("a: &a [*a]\n", "aliases"),
    "a cycle of references": ("seed: ${evaluate.views}\nevaluate: {views: '${seed}'}\n", "seed"),
    "a reference to itself": ("seed: ${seed}\n", "seed"),
    "a reference to nothing": ("seed: ${nothing.there}\n", "nothing"),
    "deeper than Python": (f"a: {'[' * 2000}{']' * 2000}\n", "not valid YAML"),
    "deep mappings": (f"a: {'{a: ' * 2000}1{'}' * 2000}\n", "YAML"),
    "100 MB": (lambda: "# " + "x" * 100 * 2**20, "larger than"),
    "a long line": (f"a: {'x' * 2**21}\n", "larger than"),
    "a key twice": ("seed: 1\nseed: 2\n", "duplicate key"),
    "a number twice": ("data: {count: {1: 2, 1: 3}}\n", "duplicate key"),
    "a merge": ("<<: {seed: 1}\nseed: 2\n", "duplicate key or merge"),
    "a removal": ("overwrite: true\n", "`overwrite=true` removes an earlier run, so a preset may not"),
    "processes": ("workers: 3\n", "`workers=3` starts processes"),
    "a cluster": ("workers: ray\n", "`workers=ray` starts processes"),
    "a shard": ("shard: 0/2\n", "`shard=0/2` leaves pictures"),
    "a secret": (
        "defaults: [{override /encoder: http}]\nencoder: {model: 'http://h/p', key: VIEWPROOF_K}\n",
        "sends pictures",
    ),
    "bytes": (b"seed: \xff\xfe\n", "not valid YAML"),
    "UTF-16": ("seed: 1\n".encode("utf-16"), "not valid YAML"),
    "a zero byte": ("seed: 1\0\n", "not valid YAML"),
    "an escape": ("seed: \x1b[2J\n", "not valid YAML"),
    "two documents": ("seed: 1\n---\nseed: 2\n", "not valid YAML"),
    "empty": ("", "must be a mapping"),
    "a number": ("5\n", "must be a mapping"),
    "a list": ("- 1\n", "must be a mapping"),
    "a tab": ("a:\n\t- 1\n", "not valid YAML"),
    "the environment": ("seed: ${oc.env:HOME}\n", "does not read the environment"),
    "the environment in a key": ("'${oc.env:HOME}': 1\n", "not in 'Run'"),
    "the environment in two parts": ("a: oc.env\nseed: ${${a}:HOME}\n", "does not read the environment"),
    "a file's content": ("seed: ${oc.decode:x}\n", "does not read the environment"),
    "a resolver of Hydra": ("seed: ${hydra:runtime.cwd}\n", "does not read the environment"),
    "another directory": ("hydra: {run: {dir: ../elsewhere}}\n", "`hydra` is refused"),
    "logging": (f"hydra: {{job_logging: {{handlers: {{x: {{class: {WRITES}}}}}}}}}\n", "`hydra` is refused"),
    "a launcher": ("defaults: [{override /hydra/launcher: joblib}]\n", "refused"),
    "a launcher's keys": ("defaults: [/engine@hydra.launcher: fixed]\n", "refused"),
    "a launcher's package": ("# @package hydra.launcher\nsetup: [touch mark]\n", "@package"),
    "a package of Hydra": ("# @package hydra\nrun: {dir: ../elsewhere}\n", "@package"),
    "a default elsewhere": ("defaults: [../../../etc/passwd]\n", "must name a choice"),
    "an absolute default": ("defaults: [//etc/passwd]\n", "must name a choice"),
    "an unknown default": ("defaults: [{override /encoder: nowhere}]\n", "nowhere"),
    "an unknown key": ("attack: {stepz: 3}\n", "stepz"),
    "an unknown group": ("attck: {steps: 3}\n", "attck"),
    "a numeric key": ("1: 2\n", "1"),
    "a program": ("defaults: [{override /encoder: torchscript}]\nencoder: {model: x.pt}\n", "runs the program"),
    "a plug-in": ("defaults: [{override /encoder: plugin}]\nencoder: {model: x}\n", "x"),
    "a server": ("defaults: [{override /tracker: mlflow}]\ntracker: {uri: 'http://host'}\n", "network"),
    "a password": ("defaults: [{override /tracker: mlflow}]\ntracker: {uri: 'http://a:b@host'}\n", "password"),
    "a folder to write to": ("defaults: [{override /data: folder}]\ndata: {path: x, cache: ../mark}\n", "data.cache"),
    "a file to write to": ("defaults: [{override /tracker: mlflow}]\ntracker: {uri: 'sqlite:////tmp/x'}\n", "uri"),
    "a run to read": ("engine: {reuse: /nowhere}\n", "nowhere"),
    "steps as a word": ("attack: {steps: many}\n", "attack.steps"),
    "a list of steps": ("attack: {steps: [1, 2]}\n", "attack.steps"),
    "an attack as a word": ("attack: fast\n", "override /attack: NAME"),
    "half a step": ("attack: {steps: 1.5}\n", "attack.steps"),
    "an encoder of null": ("encoder: null\n", "encoder"),
    "a boolean as a word": ("evaluate: {one_view: perhaps}\n", "one_view"),
    "a count as a word": ("data: {count: all}\n", "data.count"),
    "defaults as a number": ("defaults: 5\n", "mine.yaml"),
    "defaults as a boolean": ("defaults: true\n", "mine.yaml"),
    "a mapping in itself": ("a: &a {b: *a}\n", "mine.yaml"),
    "a Unicode line separator": ("# x\u2028# @package hydra.job_logging\na: 1\n", "mine.yaml"),
    "an interpolated default": ("defaults: ['${config}/job_logging/y']\n", "mine.yaml"),
    "the environment after a tab": ('a: "${\\toc.env:HOME}"\n', "mine.yaml"),
    "the environment by an interpolated name": ("b: env\na: ${oc.${b}:HOME}\n", "mine.yaml"),
    "the environment decoded": ("b: env\na: ${oc.decode:'${b}'}\n", "mine.yaml"),
}


@pytest.mark.parametrize("text", mostly_slow(TEXTS, 10))
def test_bad_preset_gives_a_one_line_error(desk, text):
    content, reason = TEXTS[text]
    path = desk.given / "mine.yaml"
    content = content() if callable(content) else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    output = desk.refused(f"config={path}")
    assert re.search(reason, output), output
