"""Any preset, configuration or override of the command line: valid, or an error of one line, and nothing else."""

import dataclasses
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st
from omegaconf import OmegaConf

from attacks.run import compose
from attacks.schema import presets
from attacks.schema import validate as schema
from attacks.schema.groups import CHOICES, OPEN
from attacks.schema.options import CONFIGS
from attacks.study import pipeline as pipelines
from tests.helpers.crashes import WRITES
from tests.helpers.fuzzing import every_effort, hold, one_line
from tests.helpers.wrong import refused
from transforms.registry import STAGES

BUNDLED_TEXTS = {str(path.relative_to(CONFIGS)): path.read_text() for path in sorted(CONFIGS.rglob("*.yaml"))}
#: Values and keys that a user may write, by mistake or on purpose.
WORDLIKE = r"""
null ~ true no 0 -1 1 2.5 1e999 .nan .inf -.inf 0x10 0o17 1_000 '' a ä [] {} [[]] [1,2] [2,1] [null] [.nan,1]
8/255 1/0 / a/b/c ??? '???' "a\nb" "\u2028" 2001-01-01 12:30:45 all auto another ../../etc/passwd /etc/passwd
https://example.org/x file:///etc/passwd a,b a=b %s {0} <script> *a [/a] camera [camera] case [case] [_self_,case]
${seed} ${evaluate} ${a} ${ ${} ${seed \${seed} ${.} ${..} ${seed}${seed} x${seed} ${oc.env:HOME} ${now:%Y}
${hydra:job.name} ${oc.create:{}} ${${seed}} ${evaluate.layers} ${encoder} ${transforms.stages} range(1,3)
choice(a,b) glob(*) interval(0,1) int(x) float('1') str([1]) sort(3,2,1) shuffle(1,2)
"""
SPACED_VALUES = r"""
' '|a b|{a: 1}|{? [a] : b}|{<<: {a: 1}}|&a 1|&a [*a]|!!python/object/apply:os.system [id]|!!python/name:os.system x
!!python/tuple [1]|!!binary aGk=|!x 1|!!set {a}|!!timestamp 2001-01-01|!!float x|!!int 1.5|!!str 1
[override /encoder: 1]|[{override /encoder: [a]}]|[{a: {b: c}}]
"""
ODD = [*WORDLIKE.split(), *SPACED_VALUES.strip().replace("\n", "|").split("|"), "9" * 400, "9" * 5000]
ODD += ["\u2028", "\u0085", "\u202e", "\U0001f600", "\x00", "\x7f", "\ufeff", "", "a b", "|\n  a", ">-\n  a"]
NAMES = """
name _target_ _partial_ _args_ _convert_ hydra defaults () a a.b 1 true null ${seed} seed show evaluate stages
value kernel << __class__ _name_ _parent_ ä items keys _metadata
"""
KEYS = [*NAMES.split(), "", "a b", "\u2028"]
SIGNS = (*ODD, ":", "- ", "{", "}", "[", "]", "#", "'", '"', "\r", "\t", "---\n", "%YAML 1.1\n", "@")
#: Arguments that are not overrides of a key.
FLAGS = ("-m", "--help", "--cfg=job", "--multirun=5", "-x", "--", "-c", "--hydra-help=3", "resume=a", "=", "@")


@cache
def config_keys():
    """Keys for the command line."""
    parts = [(group, part) for group, choices in CHOICES.items() for part in choices.values()]
    fields = [f"{group}.{field.name}" for group, part in parts for field in dataclasses.fields(part)]
    other_keys = "transforms transforms.value transforms.kernel seed show evaluate.layers evaluate.views"
    return tuple(dict.fromkeys([*CHOICES, *fields, *(f"transforms.stages.{s}" for s in STAGES), *other_keys.split()]))


@cache
def composed():
    """Some composed configurations, as text."""
    runs = [compose(name) for name in ("smoke", "evaluate", "patch_quickstart")]
    return tuple(OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(run))) for run in runs)


@st.composite
def override(draw):
    """An argument of the command line, usually almost valid."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=20) | st.sampled_from(FLAGS))
    groups, choices = [*CHOICES, *OPEN], [name for group in CHOICES.values() for name in group]
    if draw(st.integers(0, 2)) == 0:
        group = draw(st.sampled_from(groups))
        return f"{group}={draw(st.sampled_from([*CHOICES.get(group, ('camera', 'eot3d'))]))}"
    sign = draw(st.sampled_from([*[""] * 4, "+", "++", "~"]))
    key = draw(st.sampled_from(config_keys()) | st.sampled_from([*KEYS, *groups, "config"]))
    package = draw(st.sampled_from([*[""] * 5, "@_global_", "@hydra", "@a:b"]))
    atoms = st.sampled_from(["1", "a", "camera", "null", "''", "0.5", "${seed}"])
    value = draw(
        st.sampled_from(["1", "2", "8/255", "0.5", "true", "null"])
        | st.sampled_from([*ODD, *choices, "camera", "identity", "eot2d"])
        | (st.text(max_size=12) | st.integers().map(str) | st.floats().map(str))
        | st.lists(atoms, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.builds("{{{}: {}}}".format, atoms, atoms)
    )
    return f"{sign}{key}{package}={value}" if sign != "~" or draw(st.booleans()) else f"~{key}"


def damage(text, random):
    """The text of a preset after zero to three changes."""
    for _ in range(random.choice((1, 0, 1, 2, 3))):
        text = random.choice((in_tree, in_tree, in_lines))(text, random)
    return text


def in_tree(text, random):
    """A key or a value is replaced anywhere, or a key is added."""
    try:
        tree, value = yaml.safe_load(text), yaml.safe_load(random.choice(ODD))
    except (yaml.YAMLError, RecursionError, ValueError):
        return text
    nodes = [tree] if isinstance(tree, dict | list) else []
    for node in nodes:  # grows on the way
        children = node.values() if isinstance(node, dict) else node
        nodes += [child for child in children if isinstance(child, dict | list) and len(nodes) < 200]
    node = random.choice([node for node in nodes if node] or [{}])
    if not node:
        return text
    key = random.choice([*node] if isinstance(node, dict) else range(len(node)))
    for _ in range(random.choice((0, 0, 0, 1, 5, 60))):  # deeper
        value = {random.choice(KEYS): value} if random.random() < 0.5 else [value]
    if isinstance(node, list) or random.random() < 0.5:
        node[key] = value
    else:
        node[random.choice((*KEYS, *config_keys()))] = random.choice((value, node.pop(key)))
    head = "# @package _global_\n" if "@package" in text else ""
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def in_lines(text, random):
    """A line is dropped, doubled or added, or has another value or another sign in it."""
    lines = text.splitlines() or [""]
    at = random.randrange(len(lines))
    line, key = lines[at], random.choice((*KEYS, *config_keys()))
    place = random.randrange(len(line) + 1)
    mutant = line[:place] + random.choice((*SIGNS, "")) + line[place + random.choice((0, 0, 9)) :]
    value = f"{line.partition(':')[0]}: {random.choice(ODD)}"
    changes = ([], [line, line], [f"{key}: {random.choice(ODD)}", line], [value], [f" {line}"], [mutant], [mutant])
    lines[at : at + 1] = random.choice(changes)
    return "\n".join(lines) + "\n"


#: Prefixes of the audit events in which data leaves the process, or a file changes.
OUTWARD = """
subprocess. os.system os.exec os.posix_spawn os.fork os.spawn os.startfile socket. ctypes. pty. shutil. os.remove
os.rename os.mkdir os.rmdir os.link os.symlink os.truncate os.chmod
"""
OURS = ("attacks", "transforms", "configs")
events = None


def hook(event, details):
    if events is None:
        return
    if event == "open":
        path, _, flags = details
        if isinstance(flags, int) and flags & WRITES and str(path) != os.devnull:
            events.append(f"opens {path!r} to write")
    elif event == "import" and str(details[0]).partition(".")[0] not in OURS:
        events.append(f"imports {details[0]}")
    elif event.startswith(tuple(OUTWARD.split())):
        events.append(f"{event}{details!r}"[:200])


@cache
def add_hook():
    """Python cannot remove an audit hook: it is added once."""
    sys.addaudithook(hook)


@contextmanager
def no_side_effects():
    """Fails if a file is written, a process started, a module imported, or a network used."""
    global events
    add_hook()
    events, files = [], set(Path.cwd().iterdir())
    try:
        yield
    finally:
        recorded_events, events = events, None
    assert not recorded_events, "; ".join(recorded_events[:3])
    assert set(Path.cwd().iterdir()) == files


@cache
def warm():
    """Imports what every run imports, and what the parsers import for a word that they refuse."""
    for word in ("seed=[", "seed=${evaluate.views}", "seed=${.}"):
        attempt(compose, "smoke", [word])
    for name in ("smoke", "evaluate", "patch"):
        pipelines.pipeline(compose(name).transforms)
    composed()


def attempt(step, *values):
    """The result of a step, or None for an error of one line."""
    try:
        return step(*values)
    except (ValueError, OSError) as error:
        one_line(error)
        return None


def node(text):
    """A configuration from its text."""
    try:
        return OmegaConf.create(text)
    except Exception as error:
        raise ValueError("no configuration") from error


def through_a_file(run):
    """Written as YAML, read again and checked again."""
    return schema.validate(OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(run)))))


def check(case):
    """The laws of a case: `whole` (a configuration), or `preset` (text) and `overrides` of the command line."""
    warm()
    run, file = None, str(Path("case.yaml").absolute())
    if "preset" in case:
        Path(file).write_bytes(case["preset"].encode("utf-8", "surrogatepass"))
    with no_side_effects():
        if "whole" in case:
            run = attempt(lambda: schema.validate(node(case["whole"])))
        if "preset" in case:
            attempt(presets.read_preset, file)
            attempt(pipelines.preset, file)
        if "overrides" in case:
            run = attempt(compose, file if "preset" in case else "smoke", case["overrides"])
        if run is not None:
            attempt(pipelines.pipeline, run.transforms)
            assert repr(attempt(through_a_file, run)) == repr(run)  # as text, for NaN is not itself


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


RANDOM = st.randoms(use_true_random=False)
PRESETS = {"preset": st.builds(damage, st.sampled_from(sorted(BUNDLED_TEXTS.values())), RANDOM)}
OVERRIDES = {"overrides": st.lists(override(), max_size=3)}
WHOLE = {"whole": st.builds(damage, st.deferred(lambda: st.sampled_from(composed())), RANDOM)}
KINDS = {"preset": (PRESETS, 16), "whole": (WHOLE, 8), "overrides": (OVERRIDES, 4), "both": (PRESETS | OVERRIDES, 3)}


@every_effort
@pytest.mark.parametrize("kind", KINDS)
def test_the_laws_hold(kind, times):
    cases, count = KINDS[kind]
    hold(check, st.fixed_dictionaries(cases), count, times)


@pytest.mark.slow
def test_bundled_files_and_whole_configurations_obey_the_laws():
    for text in BUNDLED_TEXTS.values():
        check({"preset": text})
    for text in composed():
        run = schema.validate(OmegaConf.create(text))
        assert through_a_file(run) == run


@pytest.mark.parametrize(
    "deed",
    [
        lambda: Path("new").write_text("x"),
        lambda: os.close(os.open("new", os.O_CREAT | os.O_RDWR)),
        lambda: Path("folder").mkdir(),
        lambda: subprocess.run(["true"]),
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: [sys.modules.pop("this", None), __import__("this")],
    ],
)
def test_hook_reports_writes_processes_imports_and_network_use(deed):
    with pytest.raises(AssertionError), no_side_effects():
        deed()
    with no_side_effects():
        Path(__file__).read_text()


@pytest.mark.parametrize("defaults", ["", "null", "[case]", "[_self_, case]"])
def test_empty_defaults_are_ignored_and_circular_defaults_are_refused(defaults, tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(f"name: x\ndefaults: {defaults}\nstages: {{affine: {{degrees: 5}}}}\n")
    if "case" in defaults:
        refused("names itself in its defaults", pipelines.preset, str(path))
    else:
        assert pipelines.preset(str(path)).stages == tuple(pipelines.stages({"affine": {"degrees": 5}}, "x"))


def test_name_that_is_not_a_string_is_refused_by_its_key():
    whole = OmegaConf.create(composed()[0])
    for name in (["pgd"], {"a": 1}, 3, True):
        whole.optimiser.name = name
        refused(r"`optimiser\.name` must be one of", schema.validate, whole)


ODD_KEY = "a\nb\u2028\x1b[2J"


@pytest.mark.parametrize(
    "step",
    [
        lambda path: pipelines.stages({ODD_KEY: {}}, "transforms.stages"),
        lambda path: pipelines.stages({"affine": {ODD_KEY: 1}}, "transforms.stages"),
        lambda path: presets.read_preset(path.with_name(f"{ODD_KEY}.yaml")),
        lambda path: [path.write_text('defaults: ["..\\n\\e"]'), presets.read_preset(path)],
        lambda path: schema.validate(OmegaConf.create({"seed": 1, ODD_KEY: 2})),
        lambda path: schema.validate(OmegaConf.create({"seed": "${a:b}" + ODD_KEY})),
        lambda path: schema.validate(OmegaConf.create({"seed": "${nothing}"})),
    ],
)
def test_unprintable_characters_are_escaped_in_errors(step, tmp_path):
    with pytest.raises((ValueError, OSError)) as error:
        step(tmp_path / "case.yaml")
    assert str(error.value).isprintable()


def test_arguments_that_crash_hydra_are_refused_first():
    for argument in (*FLAGS, "+@_global_=tv", "perturbation=[1,2]", "data=[folder]", "config=[1]"):
        refused(r"must be KEY=VALUE|takes one choice|unknown key `resume`", compose, "smoke", [argument])
