"""The choice of an engine, by trials of known cost and error, with a clock that only trials advance."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.encoders.engine import Decision, Trial, describe, prepare
from attacks.encoders.engine.preparation import prepared
from attacks.encoders.engine.tf32 import allow_tf32
from attacks.encoders.engine.tuner import CANDIDATES, choose, compare
from attacks.encoders.loading import load_encoder
from transforms import Affine, Compose, Downscale, Sobol

CPU = torch.device("cpu")
VIEWS = 64  # of one trial
LONG = 100_000  # views of a run long enough for every trial


class World:
    """An encoder's costs (ms for each view), its gradient's errors, and its failures, by decision.

    The gradient of float32 has norm 2 and, at snr 3, a sampling noise of 1: 2 / sqrt(1 + 3).
    """

    def __init__(
        self, monkeypatch, *, snr=3.0, cost=lambda d: 10.0, error=lambda d: 0.0, embedding=None, on_prepare=None
    ):
        self.snr, self.cost, self.error, self.embedding = snr, cost, error, embedding or (lambda d: 0.0)
        self.on_prepare = on_prepare or (lambda d: None)
        self.seconds, self.trials, self.tried, self.checked = 0.0, 0, [], False
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
        monkeypatch.setattr("attacks.encoders.engine.tuner.prepare", self.prepare)

    def prepare(self, encoder, decision):
        if not self.checked:  # the first call only checks the given settings
            self.checked = True
            return prepare(encoder, decision)
        self.on_prepare(decision)
        self.tried.append(decision)
        self.current = decision

        def encoder(images):
            self.current = decision
            return images.flatten(1) + self.embedding(decision)

        return encoder

    def trial(self, encoder, chunk):
        for done in range(0, VIEWS, chunk):
            encoder(torch.ones(min(chunk, VIEWS - done), 3, 1, 1))
        assert chunk == self.current.chunk
        self.trials += 1
        self.seconds += VIEWS * self.cost(self.current) / 1e3
        return Trial(torch.tensor([[2.0, self.error(self.current)]]), torch.tensor([self.snr]))

    def choose(self, total_views=LONG, rows=VIEWS, **wanted):
        self.checked = False
        arguments = {"rows": rows, "total_views": total_views, "device": CPU, "clock": lambda: self.seconds}
        return choose(self.encoder, self.trial, wanted, **arguments)


def verdict(choice, name):
    (measurement,) = [m for m in choice.measurements if m.name == name]
    return measurement


def speeds(**factors):
    """A cost with a factor for each enabled setting; chunks of 32 are the fastest."""

    def cost(decision):
        used = {decision.layout, decision.precision} | ({"fold"} if decision.fold else set())
        chunk = 1 + 0.1 * abs(math.log2(decision.chunk / 32))
        return 10.0 * chunk * math.prod(factors.get(name, 1.0) for name in used)

    return cost


def test_float32_that_all_is_compared_with_is_not_tf32(monkeypatch):
    world, seen = World(monkeypatch), []

    def trial(encoder, chunk):
        seen.append(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
        return world.trial(encoder, chunk)

    allow_tf32(True)  # torch's own default is true for convolutions
    try:
        choose(world.encoder, trial, {}, rows=VIEWS, total_views=LONG, device=CPU, clock=lambda: world.seconds)
    finally:
        allow_tf32(False)
    assert seen and not any(seen)


def test_faster_settings_are_taken(monkeypatch):
    cost = speeds(channels_last=0.7, fold=1.1, mixed=0.8, bfloat16=0.5)
    world = World(monkeypatch, cost=cost, error=lambda d: {"mixed": 0.01, "bfloat16": 0.1}.get(d.precision, 0.0))
    choice = world.choose(10**6)
    assert choice.decision == Decision("channels_last", "bfloat16", chunk=32)
    taken = [m.name for m in choice.measurements if m.taken]
    assert taken == ["start", "channels_last", "mixed", "bfloat16", "chunk 32"]
    assert verdict(choice, "chunk 64").why.startswith("refused: 1.100 of the time")
    bfloat16 = verdict(choice, "bfloat16")
    assert bfloat16.ms == pytest.approx(10 * 1.1 * 0.7 * 0.5)
    assert (bfloat16.rounding, bfloat16.noise, bfloat16.ratio) == pytest.approx((0.1, 1.0, 0.01))


def test_chunks_are_halved_if_faster_and_gains_below_3_percent_are_refused(monkeypatch):
    world = World(monkeypatch, cost=lambda d: float(d.chunk))
    assert world.choose(10**6).decision == Decision(chunk=1)
    for factor, wanted in ((0.98, "contiguous"), (0.96, "channels_last")):
        world = World(monkeypatch, cost=speeds(channels_last=factor))
        assert world.choose(chunk=16).decision.layout == wanted


@pytest.mark.parametrize("lower", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("error", "taken"), [(0.38, True), (0.39, False)])  # 0.387 squared is 0.15
def test_rounding_must_stay_below_the_sampling_noise(monkeypatch, error, taken, lower):
    monkeypatch.setattr("attacks.encoders.engine.tuner.has_tf32", lambda _: True)
    world = World(monkeypatch, cost=speeds(**{lower: 0.5}), error=lambda d: error * (d.precision == lower))
    monkeypatch.setitem(CANDIDATES, "cpu", ({"precision": lower},))
    choice = world.choose()
    measurement = verdict(choice, lower)
    assert (choice.decision.precision == lower) == measurement.taken == taken
    assert measurement.ratio == pytest.approx(error**2)
    assert measurement.ms is not None  # the gain is recorded even if refused
    json.dumps([m.to_dict() for m in choice.measurements], allow_nan=False)
    lines = describe(choice)
    assert len(lines) == len(choice.measurements) + 1
    assert lines[-1] == "engine: " + " ".join(choice.decision.settings())
    (line,) = [line for line in lines if line.startswith(f"{'+' if taken else '-'} {lower}")]
    assert f"rounding {error}, sampling noise 1 (" in line


def test_tf32_is_tried_only_where_the_device_has_it(monkeypatch):
    monkeypatch.setitem(CANDIDATES, "cpu", CANDIDATES["cuda"])
    world = World(monkeypatch)
    assert verdict(world.choose(), "tf32").why == "refused: the device has no TF32"
    assert not any(d.precision == "tf32" for d in world.tried)


class Amplified(nn.Module):
    """A linear encoder, and a wave of it: where the wave is short, rounding its phase is an error of the whole size
    of the gradient."""

    def __init__(self, frequency):
        super().__init__()
        self.layer, self.frequency = nn.Linear(48, 8), frequency

    def forward(self, x):
        return (self.frequency * self.layer(x.flatten(1))).sin()


@pytest.mark.parametrize(("frequency", "taken"), [(1.0, True), (1000.0, False)])
def test_the_rule_measures_the_gradient_of_the_encoder_itself(frequency, taken):
    torch.manual_seed(0)
    encoder, now = Amplified(frequency).eval(), [0.0]
    views = torch.rand(16, 3, 4, 4)

    def trial(prepared_encoder, chunk):
        leaf = views.clone().requires_grad_()
        (each,) = torch.autograd.grad(prepared_encoder(leaf).sum(), leaf)
        own = prepared(prepared_encoder)
        now[0] += 1.0 if own is None or own.decision.precision != "bfloat16" else 0.5  # pretended to be fast
        mean, noise = each.mean(0), each.var(0).sum() / len(each)
        return Trial(mean[None], (mean.square().sum() / noise - 1).clamp(min=0)[None])

    choice = choose(encoder, trial, {}, rows=16, total_views=LONG, device=CPU, clock=lambda: now[0])
    measurement = verdict(choice, "bfloat16")
    assert measurement.taken == taken == (choice.decision.precision == "bfloat16")
    assert (measurement.ratio < 0.15) == taken


@pytest.mark.parametrize("snr", [math.nan, math.inf])
def test_precision_is_not_lowered_without_a_known_noise(monkeypatch, snr):
    world = World(monkeypatch, snr=snr, cost=speeds(bfloat16=0.1, mixed=0.1), error=lambda d: 1e-9)
    choice = world.choose(chunk=16)
    assert choice.decision.precision == "float32"
    if math.isnan(snr):
        assert {d.precision for d in world.tried} == {"float32"}
        assert all("one view" in verdict(choice, name).why for name in ("mixed", "bfloat16"))


def test_given_settings_are_kept(monkeypatch):
    # Settings given by the user are kept even if slow and noisy.
    cost = speeds(channels_last=0.5, bfloat16=3.0)
    world = World(monkeypatch, cost=cost, error=lambda d: float(d.precision == "bfloat16"))
    settings = {"precision": "bfloat16", "fold": True, "chunk": 4}
    choice = world.choose(layout="auto", **settings)
    assert choice.decision == Decision(layout="channels_last", **settings)
    assert {(d.precision, d.fold) for d in world.tried[1:]} == {("bfloat16", True)}
    assert choice.measurements[0].ratio == pytest.approx(1.0)


def test_nothing_is_measured_when_all_settings_are_given(monkeypatch):
    world = World(monkeypatch)
    decision = Decision("channels_last", "mixed", fold=True, chunk=7)
    assert world.choose(**decision.to_dict()) == (decision, ())
    assert world.trials == 0


@pytest.mark.parametrize("factor", [1.0, 0.5], ids=["nothing is faster", "layout is faster"])
@pytest.mark.parametrize("total_views", [100, 2_000, 5_000, 20_000, 10**6])
def test_tuning_takes_at_most_5_percent_of_the_run(monkeypatch, total_views, factor):
    world = World(monkeypatch, cost=speeds(channels_last=factor))
    choice = world.choose(total_views)
    run = total_views * choice.measurements[0].ms / 1e3 if choice.measurements[0].ms else 0
    # The first trial and its round give the length of the run; a run too short to be tuned has spent these two.
    assert world.seconds <= max(0.05 * run, 2 * VIEWS * 0.011)
    if total_views <= 2_000:
        assert choice.decision == Decision(chunk=16)


@pytest.mark.parametrize(
    ("order", "wanted", "last"), [("cpu", "float32", "fold"), ("cuda", "bfloat16", "channels_last")]
)
def test_on_a_gpu_a_run_that_allows_few_trials_tries_bfloat16_first(monkeypatch, order, wanted, last):
    """200 pictures with a ViT-B on an H100 allowed two candidates: neither was a precision, of which one takes a
    sixth of the time."""
    monkeypatch.setitem(CANDIDATES, "cpu", CANDIDATES[order])
    world = World(monkeypatch, cost=speeds(bfloat16=0.17, tf32=0.4))
    choice = world.choose(8 * VIEWS * 20)
    assert choice.decision.precision == wanted
    end = next(m for m in choice.measurements if m.why.startswith("not measured, nor what follows"))
    assert end.name == last


def test_a_small_gain_needs_three_comparisons(monkeypatch):
    monkeypatch.setitem(CANDIDATES, "cpu", ({"layout": "channels_last"},))
    for trials, taken in ((7, False), (9, True)):
        world = World(monkeypatch, cost=speeds(channels_last=0.9))
        choice = world.choose(trials * VIEWS * 20, chunk=32)
        assert (choice.decision.layout == "channels_last") == taken
    assert (
        "no time"
        in verdict(World(monkeypatch, cost=speeds(channels_last=0.9)).choose(7 * VIEWS * 20), "channels_last").why
    )


def test_the_reason_for_not_measuring_is_recorded(monkeypatch):
    world = World(monkeypatch)
    (short,) = world.choose(1_500).measurements
    assert "too short to be tuned" in short.why
    late = World(monkeypatch, on_prepare=lambda d: setattr(late, "seconds", late.seconds + 5))  # a slow first pass
    (short,) = late.choose(1_500).measurements
    assert short.why == "a run of 15.0 s is too short to be tuned"
    (tiny,) = world.choose(VIEWS).measurements
    assert "over 5% of the run" in tiny.why
    assert "over 5% of the run" in world.choose(5_000).measurements[-1].why


@pytest.mark.parametrize("where", [{"layout": "channels_last"}, {"precision": "mixed"}, {"chunk": 32}])
def test_a_candidate_that_raises_is_refused(monkeypatch, where):
    def on_prepare(decision):
        if where.items() <= decision.to_dict().items():
            raise RuntimeError("no such kernel\nand a long story")

    world = World(monkeypatch, cost=speeds(channels_last=0.5, mixed=0.5), on_prepare=on_prepare)
    choice = world.choose()
    assert not where.items() <= choice.decision.to_dict().items()
    assert "refused: no such kernel" in [m.why for m in choice.measurements]


def test_an_error_in_the_first_trial_ends_the_tuning_without_raising(monkeypatch):
    def on_prepare(_):
        raise ValueError("the gradient is exactly zero")

    choice = World(monkeypatch, on_prepare=on_prepare).choose()
    assert choice.decision == Decision(chunk=16)
    assert choice.measurements[0].why == "not measured: the gradient is exactly zero"
    world = World(monkeypatch)
    silent = choose(world.encoder, lambda e, c: None, {}, rows=1, total_views=LONG, device=CPU, clock=lambda: 0.0)
    assert "must call the encoder" in silent.measurements[0].why


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"embedding": lambda d: 0.01 * d.fold}, "embeddings differ"),
        ({"error": lambda d: 0.3 * d.fold}, "gradient differs"),
        ({"error": lambda d: math.nan if d.fold else 0.0}, "gradient is not finite"),
    ],
)
def test_a_wrong_result_is_refused(monkeypatch, wrong, why):
    choice = World(monkeypatch, cost=speeds(fold=0.5), **wrong).choose()
    assert not choice.decision.fold
    assert why in verdict(choice, "fold").why


def test_an_encoder_without_batch_norm_is_not_folded(monkeypatch):
    world = World(monkeypatch)
    world.encoder = nn.Conv2d(3, 3, 1).eval()
    assert "no batch norm" in verdict(world.choose(), "fold").why
    assert not any(d.fold for d in world.tried)


def test_a_chunk_must_fit_in_memory(monkeypatch):
    world = World(monkeypatch, cost=lambda d: 10 / d.chunk)
    assert world.choose(10**6).decision.chunk == VIEWS
    for most, chunk in ((20, 16), (3, 3), (None, 16)):
        monkeypatch.setattr("attacks.encoders.engine.tuner.most_rows", lambda *_, most=most: most)
        choice = world.choose(10**6)
        assert choice.decision.chunk == chunk
        assert most != 20 or verdict(choice, "chunk 32").why == "refused: memory holds 20 views"


def test_impossible_settings_are_refused(monkeypatch):
    world = World(monkeypatch)
    with pytest.raises(ValueError, match="`layout` must be one of"):
        world.choose(layout="NHWC")
    world.encoder = lambda images: images.flatten(1)
    with pytest.raises(ValueError, match="fold=true"):
        world.choose(fold=True)


def test_rounding_and_noise_are_root_mean_squares():
    # Independent draws: E||g - E g||^2 follows from the snr, whatever the signal.
    truth = torch.randn(200, 50, dtype=torch.float64)
    noise = 3 * torch.randn(200, 50, dtype=torch.float64)
    snr = truth.square().sum(1) / (9 * 50)
    comparison = compare(truth + noise + 0.1, Trial(truth + noise, snr))
    assert comparison.noise == pytest.approx(3 * math.sqrt(50), rel=0.05)
    assert comparison.error == pytest.approx(0.1 * math.sqrt(50))
    assert compare(truth, Trial(truth, -snr)).noise == pytest.approx(size(truth))


def size(truth):
    """A signal-to-noise ratio below zero is an estimate of zero: all noise."""
    return float(truth.square().sum(1).mean().sqrt())


@pytest.mark.slow
def test_the_pocket_encoder_end_to_end():
    encoder, transforms = load_encoder(), Compose([Affine(degrees=(-20, 20), scale=(0.7, 1.3)), Downscale(48)])
    image, u = torch.rand(1, 3, 64, 64), Sobol()(16, transforms.dims, seed=0, step=0)
    anchor = encoder(image)

    def trial(prepared, chunk):
        parts = []
        for views in u.split(chunk):
            leaf = image.repeat(len(views), 1, 1, 1).requires_grad_()
            loss = F.cosine_similarity(prepared(transforms(leaf, views)), anchor).sum()
            parts += torch.autograd.grad(loss, leaf)
        each = torch.cat(parts).flatten(1)  # the gradient of each view
        noise = each.var(0).sum() / len(u)
        return Trial(each.mean(0)[None], (each.mean(0).square().sum() / noise - 1).clamp(min=0)[None])

    choice = choose(encoder, trial, {}, rows=16, total_views=40_000, device=CPU)
    assert choice.measurements[0].taken and choice.measurements[0].ratio == 0
    features = prepare(encoder, choice.decision)(image)
    assert float((features - anchor).norm() / anchor.norm()) < 0.02
