"""Stages on a layer, before the camera: the same as for the layer as a picture of its own."""

import pytest
import torch

from tests.transforms.wrappers.test_choice import Counter
from transforms import Affine, Brightness, Compose, Downscale, Perspective
from transforms.colour import ChannelGain, Gamma
from transforms.compose import Geometry
from transforms.geometry import Cylinder, Placement, ThinPlate
from transforms.sampling.homography import homography
from transforms.scene import Layer, Scene
from transforms.wrappers import OneOf, OnLayers, Sometimes

double = torch.float64
SIZE = (40, 60)


def seed(value=0):
    return torch.Generator().manual_seed(value)


def base(rows=1):
    return torch.rand(rows, 3, *SIZE, generator=seed(1), dtype=double)


def texture(height=16, width=24, rows=1):
    return torch.rand(rows, 3, height, width, generator=seed(2), dtype=double)


def to_frame(quad, size):
    height, width = size
    return (torch.tensor(quad, dtype=double) - 0.5) * torch.tensor([width, height]) * (2 / min(size))


def pull(quad, size=(16, 24)):
    unit = [[0, 0], [1, 0], [1, 1], [0, 1]]
    return homography(to_frame(quad, SIZE), to_frame(unit, size))


QUAD = [[0.3, 0.2], [0.7, 0.25], [0.65, 0.8], [0.2, 0.7]]
FULL = torch.eye(3, dtype=double)[None]


def scene(pixels=None, place=None, rows=1, alpha=None):
    pixels = texture() if pixels is None else pixels
    return Scene((Layer(base(rows), None, FULL), Layer(pixels, alpha, pull(QUAD) if place is None else place)), SIZE)


def points(dims, count=4, value=3):
    return torch.rand(count, dims, generator=seed(value), dtype=double)


CAMERA = (Affine(degrees=20, scale=(0.7, 1.3)), Perspective(0.2))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_homography_moves_nothing_but_the_layer(rows):
    move = Affine(degrees=30, scale=(0.5, 1.5), translate=0.1)
    pipeline = Compose([OnLayers(place=move), *CAMERA])
    u = points(pipeline.dims)
    views = pipeline(scene(rows=rows), u)
    moves = move.matrix(u[:, : move.dims])
    for i, view in enumerate(views):
        layout = scene(place=pull(QUAD) @ moves[i])
        layout = layout._replace(layers=(Layer(base(rows)[i * rows // 4, None], None, FULL), layout.layers[1]))
        expected = Compose(CAMERA)(layout, u[i, None, move.dims :])[0]
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-12)


def test_pixel_stages_change_the_layer_alone_and_view_by_view():
    stages = (Gamma((0.5, 2.0)), Brightness(0.2))
    pipeline = Compose([OnLayers(stages), *CAMERA])
    u, dims = points(pipeline.dims), sum(stage.dims for stage in stages)
    views = pipeline(scene(), u)
    for i, view in enumerate(views):
        pixels = Compose(stages)(texture(), u[i, None, :dims])
        torch.testing.assert_close(view, Compose(CAMERA)(scene(pixels), u[i, None, dims:])[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("bend", [Cylinder((30, 60)), ThinPlate(0.1)])
def test_distortion_of_a_layer_equals_distortion_of_its_picture(bend):
    # A layer that fills the scene with one texel per pixel: its distortion is that of a picture.
    pixels, alpha = torch.rand(1, 3, *SIZE, generator=seed(5), dtype=double), torch.ones(1, 1, *SIZE, dtype=double)
    u = points(bend.dims)
    views = Compose([OnLayers([bend])])(scene(pixels, FULL), u)
    ink = Compose([bend], border="constant", value=0.0)(torch.cat([pixels, alpha], 1), u)
    expected = ink[:, :3] + (1 - ink[:, 3:]) * base()
    torch.testing.assert_close(views, expected, rtol=0, atol=1e-10)


def test_two_distortions_in_one_stage_equal_one_after_the_other():
    first, second = Cylinder((30, 60)), ThinPlate(0.1)
    u = points(first.dims + second.dims, 1)
    bend_pair = OnLayers([first, second]).lay(scene(), u)
    chain = OnLayers([second]).lay(OnLayers([first]).lay(scene(), u[:, : first.dims]), u[:, first.dims :])
    torch.testing.assert_close(Compose()(chain, u[:, :0]), Compose()(bend_pair, u[:, :0]), rtol=0, atol=1e-12)


def test_no_layers_or_no_inner_stages_leaves_the_views_unchanged():
    pipeline = Compose([OnLayers([Brightness(0.3)], Affine(degrees=30)), *CAMERA])
    u = points(pipeline.dims)
    assert torch.equal(pipeline(base(), u), Compose(CAMERA)(base(), u[:, -sum(s.dims for s in CAMERA) :]))
    assert torch.equal(Compose([OnLayers(), *CAMERA])(scene(), u[:, :13]), Compose(CAMERA)(scene(), u[:, :13]))


def test_stage_without_coordinates_makes_no_copies():
    stage = Counter([])
    Compose([OnLayers([stage]), *CAMERA])(scene(), points(13))
    assert stage.calls == [1]


@pytest.mark.slow
def test_gradients_are_exact_in_the_texture_and_in_every_coordinate():
    sheet = OnLayers([ChannelGain((0.8, 1.2), 0.1), Cylinder((30, 60), 10, 20, (3, 5))], Placement((0.4, 0.6), 30))
    pipeline = Compose([sheet, Affine(20, (0.7, 1.3), 5, 0.1)])
    weight = torch.rand(2, 3, *SIZE, generator=seed(9), dtype=double)

    def loss(pixels, u):
        small = Scene((Layer(base(), None, FULL), Layer(pixels, None, pull(QUAD, (4, 6)))), SIZE)
        return (pipeline(small, u) * weight).sum()

    pixels = (0.3 + 0.4 * texture(4, 6)).requires_grad_()
    u = points(pipeline.dims, 2).requires_grad_()
    assert torch.autograd.gradcheck(loss, (pixels, u.detach()), eps=1e-6, atol=1e-5)
    (slope,) = torch.autograd.grad(loss(pixels, u), u)
    assert bool((slope != 0).all())


class Bulge(Geometry):
    """Moves points away from the centre, and only where there are any."""

    names = ("bulge",)

    def pull(self, points, u):
        far = points.detach().square().sum(-1, keepdim=True) > 0.05
        return points * (1 + 0.3 * u[:, None, None] * far) if bool(far.any()) else points


def test_a_bend_that_leaves_the_centre_alone_has_its_whole_gradient():
    pipeline = Compose([OnLayers([Bulge()])])
    weight = torch.rand(2, 3, *SIZE, generator=seed(9), dtype=double)
    u = points(pipeline.dims, 2).requires_grad_()

    def loss(u):
        return (pipeline(scene(), u) * weight).sum()

    (slope,) = torch.autograd.grad(loss(u), u)
    for i in range(2):
        step = torch.zeros_like(u).detach()
        step[i] = 1e-6
        change = (loss((u + step).detach()) - loss((u - step).detach())) / 2e-6
        torch.testing.assert_close(slope[i, 0], change, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [(40, 60), (50, 50), (90, 30)])
@pytest.mark.parametrize("aspect", [1.0, 2.0, 0.5])
def test_placement_has_the_scale_angle_and_position_of_its_values(size, aspect):
    place = Placement((0.2, 0.5), 40, aspect=aspect)
    framed_place = place.framed(size)
    side, unit = min(size), min(size) / 2
    corners = torch.tensor([[-aspect, -1], [aspect, -1], [aspect, 1], [-aspect, 1]], dtype=double) / min(aspect, 1)
    for u in points(4, 16):
        scale, angle, right, down = place.values(u[None])[0].tolist()
        back = torch.linalg.inv(framed_place.pull_of(u[None])[0])
        views = (torch.cat([corners, torch.ones(4, 1)], 1) @ back.T)[:, :2] * unit  # pixels from the middle
        edges = views.roll(-1, 0) - views
        lengths = edges.norm(dim=1)
        assert float(lengths.min()) == pytest.approx(scale * side)
        direction = torch.rad2deg(torch.atan2(edges[0, 1], edges[0, 0]))
        assert float(direction) == pytest.approx(angle)
        low, high = views.amin(0), views.amax(0)
        for axis, share, side_length in ((0, right, size[1]), (1, down, size[0])):
            room = side_length - float(high[axis] - low[axis])
            left = float(low[axis]) + side_length / 2
            assert left == pytest.approx(share * room if room > 0 else room / 2, abs=1e-9)


def test_placement_starts_at_the_middle_of_its_ranges():
    place = Placement((0.2, 0.4), (10, 30), (0, 0.5), aspect=1.5)
    quad = place.quad(SIZE)
    torch.testing.assert_close(
        place.framed(SIZE).matrix(torch.full((1, 4), 0.5, dtype=double))[0], torch.eye(3, dtype=double)
    )
    pipeline = Compose([OnLayers(place=place)])
    u = points(4)
    views = pipeline(scene(place=pull(quad.tolist())), u)
    for view, matrix in zip(views, place.framed(SIZE).pull_of(u), strict=True):
        torch.testing.assert_close(view, Compose()(scene(place=matrix[None]), u[:1, :0])[0], rtol=0, atol=1e-10)


def test_coordinates_have_names_and_units():
    pipeline = Compose([OnLayers([Brightness(0.2)], Placement()), Affine(degrees=10)])
    places = ["layer place scale (of shorter side)", "layer place angle (deg)"]
    values = pipeline.describe(torch.full((pipeline.dims,), 0.5))[0]
    assert list(values)[:3] == ["layer brightness added (of full scale)", *places]
    assert values["layer place scale (of shorter side)"] == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OnLayers([Cylinder(), Brightness(0.1)]), "in physical order"),
        (lambda: OnLayers(place=Cylinder()), "must be a homography"),
        (lambda: Compose([Affine(), OnLayers()]), "must come first"),
        (lambda: Compose([Sometimes(OnLayers(), 0.5)]), "in no other stage"),
        (lambda: Compose([OneOf([OnLayers(), Brightness(0.1)])]), "in no other stage"),
        (lambda: Compose([Compose([OnLayers()])]), "in no other stage"),
        (lambda: Compose([OnLayers([Downscale(8)])])(scene(), points(0)), "must keep the size; Downscale"),
        (
            lambda: Compose([OnLayers(), *CAMERA])(scene(texture(rows=3)), points(13)),
            "one for each of the 1 pictures",
        ),
        (lambda: Placement(scale=(0, 0.5)), "`scale` must lie within"),
        (lambda: Placement(x=(0, 2)), "`x` must lie within"),
        (lambda: Placement(aspect=0), "`aspect` must lie within"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic", "keys(-0.5)"])
def test_the_view_of_a_picture_under_a_layer_is_a_picture(kernel):
    texture = (torch.rand(1, 3, 16, 24, generator=seed(1), dtype=double) > 0.5).to(double)
    camera = Compose([Affine(degrees=180, scale=(0.5, 1.5))], kernel=kernel)
    bright, layer = Layer(0 * base() + 0.9, None, FULL), scene(texture).layers[1]
    view = camera(Scene((bright, layer), SIZE), points(camera.dims, 8))
    assert 0 <= float(view.min()) <= float(view.max()) <= 1
