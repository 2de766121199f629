"""Imports run downwards: each row has a room and the rooms that it may import, all above it (and `transforms`)."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {
    "attacks": """
    schema      <-
    runtime     <- schema
    encoders perturbations <- runtime schema
    data        <- perturbations runtime
    resizers    <- data runtime
    eot         <- encoders perturbations runtime schema
    objectives  <- encoders eot perturbations runtime schema
    optimisers  <- eot runtime schema
    solvers     <- encoders eot objectives optimisers perturbations runtime
    inference   <-
    evaluation  <- data encoders eot inference objectives optimisers resizers runtime solvers
    gate        <- evaluation inference runtime schema
    report      <- data encoders evaluation gate inference resizers runtime solvers
    study <- data encoders eot evaluation objectives optimisers perturbations resizers runtime schema solvers
    experiment <- data encoders eot evaluation gate inference objectives report resizers runtime schema solvers study
    verification <- data encoders eot evaluation experiment gate report resizers runtime schema solvers study
    evidence    <- data eot experiment gate report runtime schema study
    physical    <- data encoders eot evaluation experiment inference perturbations report runtime schema study
    run         <- experiment gate report runtime schema
commands <- data eot evaluation evidence experiment gate \
inference physical report resizers runtime schema study verification
    notebook    <- commands data evidence experiment gate report runtime schema""",
    "transforms": """
    sampling <-
    draws       <-
    scene       <- sampling
    colour      <- draws sampling
    compose resizing <- colour sampling scene
    compat camera geometry auditing <- colour compose draws resizing sampling scene
    wrappers <- camera compose draws sampling scene
    registry    <- camera colour compose geometry wrappers""",
}


class Source:
    """What tests ask of a source file, from one walk over its tree, which would fill the memory: imports at any
    depth, as `a.b.name`; the names that it binds (its module, classes, functions, parameters, variables, attributes
    and aliases); classes, and functions on the top level; and the parameters of each function."""

    def __init__(self, path):
        tree = ast.parse(path.read_text())
        self.bindings = [] if path.stem == "__init__" else [path.stem]
        self.definitions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        self.imports, self.parameters = [], []
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    self.imports += [alias.name for alias in names]
                case ast.ImportFrom(module=module, names=names, level=level):
                    self.imports += [f"{'.' * level}{module or ''}.{alias.name}" for alias in names]
                case ast.FunctionDef(name=name, args=sets) | ast.AsyncFunctionDef(name=name, args=sets):
                    names = [entry.arg for entry in (*sets.posonlyargs, *sets.args, *sets.kwonlyargs)]
                    self.parameters.append((name, names))
                    self.bindings.append(name)
                case ast.ClassDef(name=name):
                    self.definitions.append(name)
                    self.bindings.append(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    self.bindings.append(name)
                case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                    self.bindings.append(name)


source = cache(Source)


@pytest.mark.slow
@pytest.mark.parametrize("package", ROOMS)
def test_imports_run_downwards(package):
    rows = [
        (left.split(), right.split()) for left, _, right in (r.partition("<-") for r in ROOMS[package].split("\n"))
    ]
    below = {room: right for left, right in rows for room in left}
    order = list(below)
    assert all(order.index(other) < order.index(room) for room in below for other in below[room]), "a cycle"
    for path in (ROOT / package).rglob("*.py"):
        room = (*path.relative_to(ROOT / package).with_suffix("").parts,)[0]
        for name in source(path).imports:
            top, other = (*name.split("."), "")[:2]
            assert top, f"{path}: relative import"
            assert top not in {"scripts", "tests"} and (package, top) != ("transforms", "attacks"), f"{path}: {name}"
            assert top != "hydra" or room in {"schema", "run"}, f"{path}: only the command line imports Hydra"
            if top == package and other in below and room in below and other != room:
                assert other in below[room], f"{path}: {room} must not import {name}"
