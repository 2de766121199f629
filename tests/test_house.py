"""Sizes that keep the code readable: one step of an attack, the body of the loop, parameters, chains of imports."""

import ast
import sys
from collections import Counter
from functools import cache
from traceback import walk_stack

import pytest

from attacks import EOT, Away, Linf, Wiener, attack, load_encoder
from attacks.data.gallery import tiles
from attacks.study.pipeline import preset
from tests.test_rooms import ROOT, source
from transforms import Affine, Brightness, Compose, Contrast, Perspective

OURS = tuple(str(ROOT / package) for package in ("attacks", "transforms"))
SOURCES = [path for package in ("attacks", "transforms", "scripts") for path in (ROOT / package).rglob("*.py")]
PHOTOMETRIC = (Affine(degrees=20, scale=(0.75, 1.3)), Perspective(0.15), Brightness(0.1), Contrast((0.7, 1.3)))


@pytest.mark.parametrize(
    ("views", "most"), [(Compose(PHOTOMETRIC), 200), (preset("camera"), 400)], ids=["geometry and light", "camera"]
)
def test_step_makes_few_calls_at_a_small_stack_depth(views, most):
    encoder, images = load_encoder("pocket"), tiles(128).images[:4]
    parts = {"encoder": encoder, "objective": Away(), "perturbation": Linf(16 / 255), "optimiser": Wiener()}
    steps = attack(images, encoder(images), eot=EOT(views, views=4), steps=4, **parts)
    for _ in range(2):  # the first steps also fill caches
        next(steps)
    calls, stacks = Counter(), []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code.co_qualname] += 1
            if frame.f_code.co_filename.endswith("encoders/pocket.py"):
                stacks.append([each.f_code for each, _ in walk_stack(frame.f_back)])

    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        next(steps)
    finally:
        sys.setprofile(previous)
    frames = [code.co_qualname for code in stacks[0] if code.co_filename.startswith(OURS)]
    assert len(frames) - 1 <= 8, frames  # the last is the generator that `attack` returns
    assert calls.total() <= most, calls.most_common(20)


def test_the_body_of_the_loop_fits_on_a_screen():
    tree = ast.parse((ROOT / "attacks" / "solvers" / "loop.py").read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "drive")
    loop = next(node for node in ast.walk(function) if isinstance(node, ast.For))  # the outermost
    assert loop.end_lineno - loop.body[0].lineno + 1 <= 40


def test_no_function_has_more_than_eight_parameters():
    """Except drop-ins, which have another library's parameters, and the public functions."""
    public = {"attack", "solve", "evaluate"}
    for path in SOURCES:
        if "compat" not in path.parts:
            for name, parameters in source(path).parameters:
                count = len({*parameters} - {"self", "cls"})
                assert count <= 8 or name in public, f"{path.relative_to(ROOT)}: {name}"


def test_longest_chain_of_imports_is_at_most_twenty_files():
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in SOURCES
    }
    lazy = {"attacks", "transforms"}  # these import their exports on first use

    @cache
    def chain(module):
        names = source(modules[module]).imports
        targets = {name if name in modules else name.rpartition(".")[0] for name in names} & modules.keys()
        return (module, *max((chain(each) for each in targets - lazy - {module}), key=len, default=()))

    longest = max((chain(name) for name in modules if not name.startswith("scripts")), key=len)
    assert len(longest) <= 20, longest
