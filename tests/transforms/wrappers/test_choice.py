"""Stages that choose: the right rows, the right type, and no computation of unchosen stages."""

import copy
import dataclasses
import pickle
from dataclasses import dataclass

import pytest
import torch

from tests.helpers.sampling import mostly_slow
from transforms.camera.sizes import Downscale
from transforms.colour.photometric import Brightness, Contrast
from transforms.compose import Compose, Framed, Geometry, Homography, Stage
from transforms.draws.samplers import Grid
from transforms.geometry.affine import Affine, Crop, Flip, Perspective
from transforms.geometry.distortion import Lens, RollingShutter
from transforms.wrappers.choice import OneOf, Sometimes

double = torch.float64
TURN, LENS, LIGHT = Affine(30, (0.7, 1.3)), Lens(0.3, 0.1), Brightness(0.3)
PIPELINE = Compose([Affine(10), Brightness(0.2)])
# (stage, kind): 0 changes pixels, 1 moves points, 2 is a homography
SOMETIMES = [(TURN, 2), (Crop(), 2), (Flip(), 2), (LENS, 1), (RollingShutter(0.2), 1), (LIGHT, 0), (PIPELINE, 0)]
ALTERNATIVES = [
    ([TURN, Crop(), Perspective()], 2),
    ([TURN, LENS, RollingShutter(0.2)], 1),
    ([LIGHT, Contrast((0.5, 1.5)), PIPELINE], 0),
    ([Sometimes(TURN), Sometimes(OneOf([LENS, Crop()]))], 1),
]


@dataclass(frozen=True)
class Faulty(Geometry):
    """A map that is NaN for every point, with its gradient."""

    dims = 1
    names = ("nothing (1)",)

    def values(self, u):
        return u

    def pull(self, points, u):
        return points * (u[:, :, None, None] - 2).sqrt()


@dataclass(frozen=True)
class Counter:
    """A pixel stage that counts the rows of its calls."""

    calls: list
    dims = 0
    names = ()

    def values(self, u):
        return u

    def __call__(self, images, u):
        self.calls.append(len(images))
        return 1 - images


def point(stage, first):
    """One row for each choice, off the middle."""
    return torch.cat([torch.tensor(first, dtype=double)[:, None], torch.rand(len(first), stage.dims - 1).double()], 1)


@pytest.fixture
def photos(photo):
    return torch.cat([photo, photo.flip(-1), 1 - photo])


@pytest.mark.parametrize(
    ("choice", "kind"), [(Sometimes(s), k) for s, k in SOMETIMES] + [(OneOf(s), k) for s, k in ALTERNATIVES]
)
def test_choice_has_the_type_of_its_stages(choice, kind):
    assert isinstance(choice, Stage) and isinstance(choice, Geometry) + isinstance(choice, Homography) == kind
    assert isinstance(choice, Framed) == (kind > 0)
    if kind:
        assert isinstance(choice.framed((80, 120)), Homography) == (kind == 2)


@pytest.mark.parametrize("stage", [s for s, _ in SOMETIMES], ids=lambda stage: type(stage).__name__)
def test_sometimes_applies_the_stage_or_nothing(stage, photos):
    choice = Sometimes(stage, 0.3)
    u = point(choice, [0.29, 0.31, 0.0])
    views = choice(photos, u)
    torch.testing.assert_close(views[::2], stage(photos[::2], u[::2, 1:]), rtol=0, atol=1e-12)
    torch.testing.assert_close(views[1], photos[1], rtol=0, atol=1e-12)
    assert not torch.allclose(views[0], photos[0]) or isinstance(stage, Flip)
    assert choice.values(u)[:, 0].tolist() == [1, 0, 1]
    torch.testing.assert_close(choice.values(u)[:, 1:], stage.values(u[:, 1:]))


@pytest.mark.parametrize("case", mostly_slow(ALTERNATIVES, 2))
def test_one_of_applies_the_stage_chosen_by_weight(case, photos):
    stages = case[0]
    choice = OneOf(stages, [1, 4, 5][-len(stages) :])
    shares, choices = ([0.05, 0.3, 0.7], [0, 1, 2]) if len(stages) == 3 else ([0.2, 0.6, 0.9], [0, 1, 1])
    u = point(choice, shares)
    assert choice.values(u)[:, 0].tolist() == choices
    starts = [1 + sum(s.dims for s in stages[:i]) for i in range(len(stages))]
    for row, i in enumerate(choices):
        oracle = stages[i](photos[row : row + 1], u[row : row + 1, starts[i] : starts[i] + stages[i].dims])
        torch.testing.assert_close(choice(photos, u)[row : row + 1], oracle, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, double], ids=["float32", "float64"])
def test_weights_are_probabilities(dtype):
    choice = OneOf([LIGHT, PIPELINE, LIGHT, LIGHT], [1, 0, 2, 1])
    u = torch.rand(4000, choice.dims, dtype=dtype)
    shares = choice.values(u)[:, 0].long().bincount(minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.25, 0, 0.5, 0.25]), rtol=0, atol=0.03)
    assert OneOf([LIGHT, LIGHT], [1, 0]).values(torch.full((1, 3), 1 - 2**-24))[0, 0] == 0


MIRROR = Flip(p=1)
#: What mirrors a share p of the views: homography, bend or pixel stage; and its first value where it does.
MIRRORS = {
    "flip": lambda p: (Flip(p), 1),
    "sometimes": lambda p: (Sometimes(MIRROR, p), 1),
    "one_of": lambda p: (OneOf([MIRROR, Affine()], [p, 1 - p]), 0),
    "sometimes-pixels": lambda p: (Sometimes(Compose([MIRROR]), p), 1),
    "one_of-bend": lambda p: (OneOf([MIRROR, Lens((0, 0), (0, 0))], [p, 1 - p]), 0),
    "one_of-pixels": lambda p: (OneOf([Compose([MIRROR]), Compose([Affine()])], [p, 1 - p]), 0),
}


@pytest.mark.parametrize("dtype", [torch.float32, double, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make", MIRRORS.values(), ids=MIRRORS)
def test_what_is_recorded_is_what_is_rendered(make, dtype):
    picture = torch.arange(4.0).reshape(1, 1, 1, 4) / 4
    for p in (0.0, 0.1, 0.3, 1 / 3, 0.5, 0.6, 0.7, 0.9, 1 - 2**-24, 1.0):
        stage, mark = make(p)
        pipeline = Compose([stage])
        limit = torch.tensor(p)  # float32
        near = torch.stack([limit, *(limit.nextafter(torch.tensor(to)) for to in (0.0, 1.0))])
        points = torch.cat([Grid()(5, 1)[:, 0], Grid()(15, 1)[:, 0], near, near.double() - 1e-12])
        points = points.clamp(0, 1 - 2**-24)
        u = torch.full((len(points), pipeline.dims), 0.5, dtype=dtype)
        u[:, 0] = points
        views = pipeline(picture.expand(len(u), -1, -1, -1), u)
        mirrored = views[:, 0, 0, 0] > views[:, 0, 0, -1]
        assert ((pipeline.values(u)[:, 0] == mark) == mirrored).all(), p
        assert (mirrored == (u[:, 0].float() < limit)).all() or p == 1
        assert mirrored.all() or p < 1


def test_choices_among_geometry_fuse_with_their_neighbours(photos):
    choices = [Sometimes(Crop(), 0.5), OneOf([TURN, LENS]), Sometimes(Perspective())]
    pipeline = Compose([TURN, *choices, LENS], antialias=False)
    assert pipeline.resamples() == 1
    u = torch.rand(3, pipeline.dims, dtype=double)
    u[:, 5], u[:, 10] = torch.tensor([0.1, 0.9, 0.2]), torch.tensor([0.9, 0.1, 0.2])
    u[:, 18] = torch.tensor([0.1, 0.1, 0.9])
    first, crop, turn, bend, corners, lens_u = u.split([5, 5, 6, 2, 9, 2], 1)
    crop, turn, corners = crop[:, 1:], turn[:, 1:], corners[:, 1:]
    expected = [
        ([TURN, Crop(), LENS, Perspective(), LENS], [first, crop, bend, corners, lens_u]),
        ([TURN, TURN, Perspective(), LENS], [first, turn, corners, lens_u]),
        ([TURN, Crop(), TURN, LENS], [first, crop, turn, lens_u]),
    ]
    for row, (view, (stages, parts)) in enumerate(zip(pipeline(photos, u), expected, strict=True)):
        oracle = Compose(stages, antialias=False)(photos[row, None], torch.cat(parts, 1)[row, None])
        torch.testing.assert_close(view, oracle[0], rtol=0, atol=1e-10)


def test_unchosen_stages_are_not_computed(photo):
    choices = [Sometimes(Faulty(), 0.5), OneOf([LENS, Faulty()]), OneOf([Faulty(), OneOf([TURN, LENS])], [0, 1])]
    for choice in choices:
        u = point(choice, [0.9 if isinstance(choice, Sometimes) else 0.4] * 2).requires_grad_()
        images = photo.repeat(2, 1, 1, 1).requires_grad_()
        choice(images, u).square().sum().backward()
        assert images.grad.isfinite().all() and images.grad.any()
        assert u.grad is None or u.grad.isfinite().all()  # None: no row of this batch depends on `u`
    calls = []
    choice = OneOf([Counter(calls), LIGHT])
    choice(photo.expand(5, -1, -1, -1), point(choice, [0.1, 0.9, 0.2, 0.8, 0.9]))
    assert calls == [2]


def test_coordinates_are_named_by_the_stage_and_the_discrete_ones_declared():
    choice = OneOf([Flip(), LENS, Sometimes(TURN)])
    names = ("stage (0 = flip, 1 = lens, 2 = sometimes)", "flip mirrored (0 or 1)", "lens k1 (of r^2)")
    assert choice.names[:3] == names and choice.names[4] == "sometimes applied (0 or 1)"
    assert len(set(choice.names)) == choice.dims == 10
    assert choice.discrete == (0, 1, 4) and Compose([LENS, choice]).discrete == (2, 3, 6)
    assert Compose([Sometimes(LIGHT)]).names[1] == "sometimes brightness added (of full scale)"
    assert OneOf([Brightness(), Brightness()]).names[0] == "stage (0 = brightness1, 1 = brightness2)"


@pytest.mark.parametrize("choice", [Sometimes(TURN, 0.2), Sometimes(LIGHT), OneOf([TURN, LENS]), OneOf([LIGHT], [2])])
def test_choices_compare_copy_and_pickle_by_value(choice):
    for twin in (pickle.loads(pickle.dumps(choice)), copy.deepcopy(choice), copy.copy(choice)):
        assert twin == choice and type(twin) is type(choice) and hash(twin) == hash(choice)
    assert repr(choice).startswith(type(choice).__name__ + "(stage")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(choice, dataclasses.fields(choice)[0].name, LIGHT)
    if isinstance(choice, Sometimes):
        assert dataclasses.replace(choice, p=0.9) == Sometimes(choice.stage, 0.9)


def test_choice_among_different_sizes_is_refused(photo):
    u = torch.tensor([[0.1]])
    for choice in (Sometimes(Downscale(20)), OneOf([Downscale(20), Downscale(80)])):
        with pytest.raises(ValueError, match=r"must have one shape.*Downscale makes"):
            choice(photo, u)
    choice = OneOf([Downscale(20), Downscale(30)])
    with pytest.raises(ValueError, match=r"Downscale makes \(3, 20, 30\), Downscale \(3, 30, 45\)"):
        choice(photo.expand(2, -1, -1, -1), torch.tensor([[0.1], [0.9]]))
    equal_sizes = Sometimes(Downscale((20, 80)))
    assert equal_sizes(photo, torch.tensor([[0.1, 0.2]])).shape == photo.shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sometimes("affine"), "`stage` must be a stage"),
        (lambda: Sometimes(TURN, 1.5), "`p` must be a probability"),
        (lambda: Sometimes(TURN, "often"), "`p` must be a probability"),
        (lambda: OneOf([]), "`stages` must be a list of stages"),
        (lambda: OneOf([TURN, "lens"]), "`stages` must be a list of stages"),
        (lambda: OneOf([TURN, LIGHT]), r"all be geometric or none; Affine is and Brightness is not \(write Compose"),
        (lambda: OneOf([TURN, LENS], [1]), "`weights`"),
        (lambda: OneOf([TURN, LENS], [0, 0]), "`weights`"),
        (lambda: OneOf([TURN, LENS], [1, float("nan")]), "`weights`"),
        (lambda: OneOf([TURN, LENS], "12"), "`weights`"),
    ],
)
def test_invalid_choices_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
