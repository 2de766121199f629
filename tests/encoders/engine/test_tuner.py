"""The choice of an engine, by trials of known cost and error, with a clock that only trials advance."""

import json
import math

import pytest
import torch
from torch import nn

from attacks.encoders.engine import Decision, Trial, describe, prepare
from attacks.encoders.engine.precision import allow_tf32
from attacks.encoders.engine.tuner import CANDIDATES, choose, compare_candidates

CPU = torch.device("cpu")
VIEWS = 64  # of one trial
LONG = 100_000  # views of a run long enough for every trial


class World:
    """An encoder's costs (ms for each view), its gradient's errors, and its failures, by decision.

    The gradient of float32 has norm 2 and, at snr 3, a sampling noise of 1: 2 / sqrt(1 + 3).
    """

    def __init__(
        self,
        monkeypatch,
        *,
        snr=3.0,
        cost=lambda _: 10.0,
        error=lambda _: 0.0,
        embedding=lambda _: 0.0,
        on_prepare=lambda _: None,
    ):
        self.snr, self.cost, self.error, self.embedding, self.on_prepare = snr, cost, error, embedding, on_prepare
        self.seconds, self.trials, self.decisions, self.switches, self.is_first = 0.0, 0, [], set(), True
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval()
        monkeypatch.setattr("attacks.encoders.engine.tuner.prepare", self.prepare)

    def prepare(self, encoder, decision):
        if self.is_first:  # the first call only checks the given settings
            self.is_first = False
            return prepare(encoder, decision)
        self.on_prepare(decision)
        self.decisions.append(decision)
        self.current = decision

        def encoder(images):
            self.current = decision
            return images.flatten(1) + self.embedding(decision)

        return encoder

    def trial(self, encoder, chunk):
        for start in range(0, VIEWS, chunk):
            encoder(torch.ones(min(chunk, VIEWS - start), 3, 1, 1))
        assert chunk == self.current.chunk
        self.trials += 1
        self.seconds += VIEWS * self.cost(self.current) / 1e3
        self.switches.add(torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)
        return Trial(torch.tensor([[2.0, self.error(self.current)]]), torch.tensor([self.snr]))

    def choose(self, total_views=LONG, **settings):
        self.is_first = True
        arguments = {"rows": VIEWS, "total_views": total_views, "device": CPU, "clock": lambda: self.seconds}
        return choose(self.encoder, self.trial, settings, **arguments)


def verdict(choice, name):
    (measurement,) = [m for m in choice.measurements if m.name == name]
    return measurement


def speeds(**factors):
    """A cost with a factor for each enabled setting; chunks of 32 are the fastest."""

    def cost(decision):
        names = {decision.layout, decision.precision} | ({"fold"} if decision.fold else set())
        chunk = 1 + 0.1 * abs(math.log2(decision.chunk / 32))
        return 10.0 * chunk * math.prod(factors.get(name, 1.0) for name in names)

    return cost


def test_faster_settings_are_taken_and_float32_is_not_tf32(monkeypatch):
    cost = speeds(channels_last=0.7, fold=1.1, bfloat16=0.5)
    world = World(monkeypatch, cost=cost, error=lambda d: 0.1 * (d.precision == "bfloat16"))
    allow_tf32(True)  # torch's own default is true for convolutions
    try:
        choice = world.choose(10**6)
    finally:
        allow_tf32(False)
    assert world.switches == {False}
    assert choice.decision == Decision("channels_last", "bfloat16", chunk=32)
    names = [m.name for m in choice.measurements if m.taken]
    assert names == ["start", "channels_last", "bfloat16", "chunk 32"]
    assert verdict(choice, "chunk 64").why.startswith("refused: 1.100 of the time")
    bfloat16 = verdict(choice, "bfloat16")
    assert bfloat16.ms == pytest.approx(10 * 1.1 * 0.7 * 0.5)
    assert (bfloat16.rounding, bfloat16.noise, bfloat16.ratio) == pytest.approx((0.1, 1.0, 0.01))


def test_chunks_are_halved_if_faster_and_gains_below_3_percent_are_refused(monkeypatch):
    world = World(monkeypatch, cost=lambda d: float(d.chunk))
    assert world.choose(10**6).decision == Decision(chunk=1)
    for factor, layout in ((0.98, "contiguous"), (0.96, "channels_last")):
        world = World(monkeypatch, cost=speeds(channels_last=factor))
        assert world.choose(chunk=16).decision.layout == layout


@pytest.mark.parametrize("lower", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("error", "is_taken"), [(0.38, True), (0.39, False)])  # 0.387 squared is 0.15
def test_rounding_must_stay_below_the_sampling_noise(monkeypatch, error, is_taken, lower):
    monkeypatch.setattr("attacks.encoders.engine.tuner.has_tf32", lambda _: True)
    world = World(monkeypatch, cost=speeds(**{lower: 0.5}), error=lambda d: error * (d.precision == lower))
    monkeypatch.setitem(CANDIDATES, "cpu", ({"precision": lower},))
    choice = world.choose()
    measurement = verdict(choice, lower)
    assert (choice.decision.precision == lower) == measurement.taken == is_taken
    assert measurement.ratio == pytest.approx(error**2)
    assert measurement.ms is not None  # the gain is recorded even if refused
    json.dumps([m.to_dict() for m in choice.measurements], allow_nan=False)
    lines = describe(choice)
    assert lines[-1] == "engine: " + " ".join(choice.decision.settings())
    (line,) = [line for line in lines if line.startswith(f"{'+' if is_taken else '-'} {lower}")]
    assert f"rounding {error}, sampling noise 1 (" in line


@pytest.mark.parametrize("snr", [math.nan, math.inf])
def test_precision_is_not_lowered_without_a_known_noise(monkeypatch, snr):
    world = World(monkeypatch, snr=snr, cost=speeds(bfloat16=0.1), error=lambda d: 1e-9)
    choice = world.choose(chunk=16)
    assert choice.decision.precision == "float32"
    if math.isnan(snr):
        assert {d.precision for d in world.decisions} == {"float32"}
        assert "one view" in verdict(choice, "bfloat16").why


def test_given_settings_do_not_change(monkeypatch):
    """Even if they are slow and noisy; nothing is measured where all are given."""
    cost = speeds(channels_last=0.5, bfloat16=3.0)
    world = World(monkeypatch, cost=cost, error=lambda d: float(d.precision == "bfloat16"))
    settings = {"precision": "bfloat16", "fold": True, "chunk": 4}
    choice = world.choose(layout="auto", **settings)
    assert choice.decision == Decision(layout="channels_last", **settings)
    assert {(d.precision, d.fold) for d in world.decisions[1:]} == {("bfloat16", True)}
    assert choice.measurements[0].ratio == pytest.approx(1.0)
    world, decision = World(monkeypatch), Decision("channels_last", "bfloat16", fold=True, chunk=7)
    assert world.choose(**decision.to_dict()) == (decision, ()) and world.trials == 0
    world.encoder = lambda images: images.flatten(1)
    with pytest.raises(ValueError, match="fold=true"):
        world.choose(fold=True)


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
    ("order", "precision", "last"), [("cpu", "float32", "fold"), ("cuda", "bfloat16", "channels_last")]
)
def test_on_a_gpu_a_run_that_allows_few_trials_tries_bfloat16_first(monkeypatch, order, precision, last):
    """200 pictures with a ViT-B on an H100 allowed two candidates: neither was a precision, of which one takes a
    sixth of the time."""
    monkeypatch.setitem(CANDIDATES, "cpu", CANDIDATES[order])
    world = World(monkeypatch, cost=speeds(bfloat16=0.17, tf32=0.4))
    choice = world.choose(8 * VIEWS * 20)
    assert choice.decision.precision == precision
    end = next(m for m in choice.measurements if m.why.startswith("not measured, nor what follows"))
    assert end.name == last
    if order == "cuda":
        assert verdict(choice, "tf32").why == "refused: the device has no TF32"
        assert not any(d.precision == "tf32" for d in world.decisions)


def test_a_small_gain_needs_three_comparisons(monkeypatch):
    monkeypatch.setitem(CANDIDATES, "cpu", ({"layout": "channels_last"},))
    for trials, is_taken in ((7, False), (9, True)):
        choice = World(monkeypatch, cost=speeds(channels_last=0.9)).choose(trials * VIEWS * 20, chunk=32)
        assert (choice.decision.layout == "channels_last") == is_taken
        assert is_taken or "no time" in verdict(choice, "channels_last").why


def test_the_reason_for_not_measuring_is_recorded(monkeypatch):
    def no_gradient(_):
        raise ValueError("the gradient is exactly zero")

    world = World(monkeypatch)
    slow = World(monkeypatch, on_prepare=lambda d: setattr(slow, "seconds", slow.seconds + 5))  # a slow first pass
    (short,) = slow.choose(1_500).measurements
    assert short.why == "a run of 15.0 s is too short to be tuned"
    world = World(monkeypatch)
    for views, text in (
        (1_500, "too short to be tuned"),
        (VIEWS, "over 5% of the run"),
        (5_000, "over 5% of the run"),
    ):
        assert text in world.choose(views).measurements[-1].why
    choice = World(monkeypatch, on_prepare=no_gradient).choose()
    assert choice.decision == Decision(chunk=16)
    assert choice.measurements[0].why == "not measured: the gradient is exactly zero"
    world = World(monkeypatch)
    world.encoder = nn.Conv2d(3, 3, 1).eval()
    assert "no batch norm" in verdict(world.choose(), "fold").why


@pytest.mark.parametrize("setting", [{"layout": "channels_last"}, {"precision": "bfloat16"}, {"chunk": 32}])
def test_a_candidate_that_raises_is_refused(monkeypatch, setting):
    def on_prepare(decision):
        if setting.items() <= decision.to_dict().items():
            raise RuntimeError("no such kernel\nand a long story")

    choice = World(monkeypatch, cost=speeds(channels_last=0.5, bfloat16=0.5), on_prepare=on_prepare).choose()
    assert not setting.items() <= choice.decision.to_dict().items()
    assert "refused: no such kernel" in [m.why for m in choice.measurements]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"embedding": lambda d: 0.01 * d.fold}, "embeddings differ"),
        ({"error": lambda d: 0.3 * d.fold}, "gradient differs"),
        ({"error": lambda d: math.nan if d.fold else 0.0}, "gradient is not finite"),
    ],
)
def test_a_wrong_result_is_refused(monkeypatch, fault, reason):
    choice = World(monkeypatch, cost=speeds(fold=0.5), **fault).choose()
    assert not choice.decision.fold
    assert reason in verdict(choice, "fold").why


def test_a_chunk_must_fit_in_memory(monkeypatch):
    world = World(monkeypatch, cost=lambda d: 10 / d.chunk)
    assert world.choose(10**6).decision.chunk == VIEWS
    for most_rows, chunk in ((20, 16), (3, 3), (None, 16)):
        monkeypatch.setattr("attacks.encoders.engine.tuner.most_rows", lambda *_, rows=most_rows: rows)
        choice = world.choose(10**6)
        assert choice.decision.chunk == chunk
        assert most_rows != 20 or verdict(choice, "chunk 32").why == "refused: memory holds 20 views"


def test_rounding_and_noise_are_root_mean_squares():
    # Independent draws: E||g - E g||^2 follows from the snr, whatever the signal.
    truth = torch.randn(200, 50, dtype=torch.float64)
    noise = 3 * torch.randn(200, 50, dtype=torch.float64)
    snr = truth.square().sum(1) / (9 * 50)
    comparison = compare_candidates(truth + noise + 0.1, Trial(truth + noise, snr))
    assert comparison.noise == pytest.approx(3 * math.sqrt(50), rel=0.05)
    assert comparison.error == pytest.approx(0.1 * math.sqrt(50))
    # A signal-to-noise ratio below zero is an estimate of zero: all noise.
    size = float(truth.square().sum(1).mean().sqrt())
    assert compare_candidates(truth, Trial(truth, -snr)).noise == pytest.approx(size)
