"""The laws of `scripts/fuzz.py stages` on cases that are always the same, and what fuzzing has found."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from fuzzing import stage_cases, stage_laws
from fuzzing.target import Broken

from attacks.experiment.build.pipeline import pipeline, stages
from attacks.schema.groups import ViewsConfig
from transforms import Gamma
from transforms.registry import STAGES
from transforms.sampling.straight_through import straight_through

few = settings(max_examples=25, deadline=None, derandomize=True, database=None)
many = settings(few, max_examples=600)
KINDS = {"single": stage_cases.single(), "composed": stage_cases.composed(), "spoiled": stage_cases.spoiled()}
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_the_laws_hold(kind):
    few(given(KINDS[kind])(stage_laws.check))()


@pytest.mark.slow
@every_kind
def test_the_laws_hold_on_many_cases(kind):
    many(given(KINDS[kind])(stage_laws.check))()


#: Arguments that no case varies: `codec` is a map of its own, with its own tests.
LEFT_OUT = {"jpeg": {"codec"}, "downscale": {"then_upscale"}}
LEFT_OUT |= {"one_of": {"stages", "weights"}, "sometimes": {"stage", "p"}}  # `chosen` makes these


@pytest.mark.parametrize("name", STAGES)
def test_every_argument_of_every_stage_is_varied(name):
    known = {field.name for field in dataclasses.fields(STAGES[name]) if field.init}
    varied = {*stage_cases.BOUNDS.get(name, {}), *stage_cases.OTHERS.get(name, {})}
    assert varied == known - LEFT_OUT.get(name, set())


class InPlace(Gamma):
    def __call__(self, images, u):
        return images.mul_(0.5)


class Mixed(Gamma):
    def __call__(self, images, u):
        return images.roll(1, 0) * 0.5 + 0.0 * u.sum()


class Dead(Gamma):
    def __call__(self, images, u):
        return images.detach() * 0.5 + 0.0 * images


class NotFinite(Gamma):
    def __call__(self, images, u):
        return images / 0


class Steep(Gamma):
    def __call__(self, images, u):
        return straight_through(images, images * torch.inf)


class TooFar(Gamma):
    def values(self, u):
        return u + 5


class Wider(Gamma):
    def __call__(self, images, u):
        return images.double()


class Beyond(Gamma):
    def __call__(self, images, u):
        return images * 1.5


class Random(Gamma):
    def __call__(self, images, u):
        return images * torch.rand(())


class Late(Gamma):
    def __call__(self, images, u):
        raise ValueError("`gamma` is wrong after all")


CASE = {
    "pictures": 3,
    "views": 1,
    "channels": 3,
    "height": 5,
    "width": 7,
    "content": "random",
    "dtype": "float32",
    "layout": "plain",
    "u": "random",
    "kernel": "bilinear",
    "border": "constant",
    "value": 0.5,
    "antialias": True,
    "seed": 0,
    "stages": {"gamma": {"gamma": [0.5, 0.9]}},
}


@pytest.mark.parametrize(
    "bad", [InPlace, Mixed, Dead, NotFinite, Steep, TooFar, Wider, Beyond, Random, Late], ids=lambda bad: bad.__name__
)
def test_each_law_is_noticed_where_it_is_broken(bad, monkeypatch):
    stage_laws.check(CASE)
    monkeypatch.setitem(STAGES, "gamma", bad)
    with pytest.raises(Broken):
        stage_laws.check(CASE)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gaussian_blur", "sigma", [0, 1e9]),  # ran out of memory when called
        ("defocus", "radius", [0, 101]),
        ("motion_blur", "length", [1e9, 1e9]),
        ("downscale", "size", 2**31),
        ("downscale", "then_upscale", 2**40),
        ("shading", "grid", 10**6),  # a trillion names
        ("contrast", "factor", [0, 1e39]),  # NaN: infinite in float32
        ("channel_gain", "gain", [1e9, 1e39]),
        ("moire", "period", [1, 1e300]),
        ("affine", "degrees", 10**400),  # OverflowError
        ("affine", "translate", [-1e9, 1e9]),
        ("affine", "degrees", True),  # 1 degree
        ("crop", "ratio", ["1", "2"]),  # TypeError when called
        ("cylinder", "distance", ["1", "2"]),  # passed for numbers
        ("contrast", "factor", [True, True]),
        ("cutout", "value", True),  # NotImplementedError when called
        ("resize_pad", "value", True),
    ],
)
def test_what_fuzzing_found_is_refused_by_its_key_when_made(name, key, value):
    with pytest.raises(ValueError, match=rf"`{key}` must"):
        stages({name: {"size": 20, key: value} if name == "downscale" else {key: value}}, "transforms.stages")


def test_a_border_value_is_no_truth_value():
    with pytest.raises(ValueError, match=r"`transforms.value` must be a number"):
        pipeline(ViewsConfig("x", {}, value=True))
