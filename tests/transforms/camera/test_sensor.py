"""The noise has the stated variance and depends on the draw alone; 8 bits equal those of a file."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.autograd import gradcheck

from transforms import Sobol
from transforms.camera.sensor import Quantise, SensorNoise, quantise, white_noise
from transforms.draws import Uniform, stream

double = torch.float64
NOISE = SensorNoise(read=(0.0, 0.02), shot=(0.0, 0.004))
SHAPE = (3, 16, 20)


def noise_on_grey(stage, u, value=0.5, shape=SHAPE):
    """The noise that the stage adds to flat grey."""
    return stage(torch.full((len(u), *shape), value), u) - value


@pytest.mark.parametrize("draws", [Sobol(), Uniform()], ids=lambda d: type(d).__name__)
def test_noise_is_a_function_of_seed_step_and_view(draws):
    fields = {}
    for seed in (0, 1):
        for step in range(3):
            u = draws(8, 3, seed=seed, step=step)
            batch = noise_on_grey(NOISE, u)
            torch.manual_seed(seed + 10 * step)  # the global generator is neither used nor touched
            order, state = torch.randperm(8), torch.get_rng_state()
            assert torch.equal(noise_on_grey(NOISE, u[order]), batch[order]), "position in the batch"
            assert torch.equal(torch.get_rng_state(), state)
            chunks = [noise_on_grey(NOISE, part) for part in draws(8, 3, seed=seed, step=step).split(3)]
            assert torch.equal(torch.cat(chunks), batch), "chunk and call order"
            fields |= {(seed, step, view): field for view, field in enumerate(batch)}
    keys = list(fields)
    alike = [(a, b) for i, a in enumerate(keys) for b in keys[:i] if torch.equal(fields[a], fields[b])]
    assert not alike


def test_float32_and_float64_of_the_same_number_give_the_same_noise(photo):
    u = torch.rand(4, 3)
    images = photo.expand(4, -1, -1, -1)
    assert torch.equal(white_noise(u[:, 2], SHAPE), white_noise(u[:, 2].double(), SHAPE))
    torch.testing.assert_close(NOISE(images, u), NOISE(images, u.double()), rtol=0, atol=1e-8)
    torch.testing.assert_close(NOISE(images.float(), u).double(), NOISE(images, u), rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 2, 3), SHAPE, (3, 500, 400)])
def test_several_threads_draw_the_same_noise(shape):
    """Of the generators of torch, one for each view; also within inference mode, which each thread has of its own."""
    seeds, fields, threads = torch.rand(4), [], torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        with torch.inference_mode():
            fields.append(white_noise(seeds, shape))
    torch.set_num_threads(threads)
    keys = [stream(0, "pixel noise", seed) % 2**32 for seed in seeds.double().tolist()]
    expected = torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(key)) for key in keys])
    assert torch.equal(fields[0], expected) and torch.equal(fields[1], expected)


@pytest.mark.parametrize("level", [0.2, 0.5, 0.8])
@pytest.mark.parametrize(("read", "shot"), [(0.02, 0.0), (0.0, 0.002), (0.01, 0.001)])
def test_mean_and_variance_at_a_grey_level(level, read, shot):
    stage = SensorNoise((read, read), (shot, shot))
    noise = noise_on_grey(stage, torch.rand(16, 3), level, (3, 64, 64)).double()
    n, variance = noise.numel(), shot * level + read**2
    assert abs(float(noise.mean())) < 5 * math.sqrt(variance / n)
    assert float(noise.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / n))
    kurtosis = float((noise**4).mean()) / variance**2
    assert kurtosis == pytest.approx(3, abs=5 * math.sqrt(96 / n)), "normal"


def test_noise_is_white():
    e = white_noise(torch.rand(16), (3, 64, 64)).double()
    pairs = {
        "right": (e[..., 1:], e[..., :-1]),
        "down": (e[..., 1:, :], e[..., :-1, :]),
        "diagonal": (e[..., 1:, 1:], e[..., :-1, :-1]),
        "channel": (e[:, 1:], e[:, :-1]),
        "view": (e[1:], e[:-1]),
    }
    for name, (a, b) in pairs.items():
        assert abs(float((a * b).mean())) < 5 / math.sqrt(a.numel()), name
    power = torch.fft.fft2(e).abs().square().mean((0, 1)) / 64**2
    assert float(power.max()) < 1 + 6 / math.sqrt(48) and float(power.min()) > 1 - 6 / math.sqrt(48)


@pytest.mark.parametrize("dtype", [torch.float32, double])
def test_black_has_a_finite_gradient(dtype):
    stage = SensorNoise((0, 0.02), (0, 0.004))
    images = torch.zeros(2, *SHAPE, dtype=dtype, requires_grad=True)
    u = torch.tensor([[0.0, 0.0, 0.3], [0.0, 0.5, 0.6]], dtype=dtype, requires_grad=True)
    view = stage(images, u)
    assert not view[0].any(), "neither read nor shot noise: black stays black"
    grads = torch.autograd.grad((view * torch.rand_like(view)).sum(), (images, u))
    assert all(grad.isfinite().all() for grad in grads)
    assert grads[0][1].std() > 0.1, "through the deviation: each pixel by its own noise"


def test_gradient_includes_the_noise_deviation():
    images = (0.4 + 0.2 * torch.rand(2, 1, 5, 6, dtype=double)).requires_grad_()
    levels = (0.2 + 0.6 * torch.rand(2, 2, dtype=double)).requires_grad_()
    seeds = torch.rand(2, 1, dtype=double)
    assert gradcheck(lambda x, part: NOISE(x, torch.cat([part, seeds], 1)), (images, levels))
    shot = SensorNoise(shot=(0.004, 0.004))
    view = shot(images, torch.cat([levels, seeds], 1))
    e = white_noise(seeds[:, 0], (1, 5, 6)).double()
    (slope,) = torch.autograd.grad(view.sum(), images)
    torch.testing.assert_close(slope, 1 + e * 0.004 / (2 * (0.004 * images).sqrt()), rtol=1e-10, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, double])
def test_quantise_rounds_as_a_png_does(dtype, photo):
    images = (photo + 0.3 * torch.randn_like(photo)).clamp(-0.3, 1.3).to(dtype)
    file = (images.clamp(0, 1) * 255).round().to(torch.uint8)[0].permute(1, 2, 0).numpy()
    file_pixels = np.asarray(Image.fromarray(file))
    view = quantise(images)
    assert torch.equal(view, torch.tensor(file_pixels).permute(2, 0, 1)[None].to(dtype) / 255)
    assert torch.equal(view, Quantise()(images, torch.zeros(1, 0)))
    assert torch.equal(quantise(view), view), "a file saved again is the same file"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_quantise_in_half_precision_is_the_nearest_level(dtype):
    x = torch.rand(1000).to(dtype)
    assert torch.equal(quantise(x), ((x.float() * 255).round() / 255).to(dtype))


@pytest.mark.parametrize("bits", [1, 3, 8, 12])
def test_quantise_has_two_to_the_bits_levels(bits):
    x = torch.linspace(-0.1, 1.1, 20_000, dtype=double)
    view = quantise(x, bits)
    assert len(view.unique()) == 2**bits
    assert (view - x.clamp(0, 1)).abs().max() <= 0.5 / (2**bits - 1) + 1e-12


def test_gradient_of_quantise_is_that_of_the_clamp():
    x = torch.tensor([-0.1, 0.0, 0.3, 0.5, 1.0, 1.2], requires_grad=True)
    weights = torch.randn(6)
    (slope,) = torch.autograd.grad((quantise(x) * weights).sum(), x)
    assert torch.equal(slope, weights * torch.tensor([0, 1, 1, 1, 1, 0])), "an end is within [0,1]"
