"""Trials against the clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.engine.decision import Decision, Trial
from attacks.encoders.engine.memory import Held, watch
from attacks.encoders.engine.precision import SCALE, Overflow
from attacks.encoders.engine.prepare import Encoder, prepare
from attacks.encoders.tree import Tree

Run = Callable[[Encoder, int], Trial]  # (prepared encoder, chunk) -> one step

#: Halvings of the loss scale from its start to 1, and the pass that then succeeds.
RETRIES = int(SCALE).bit_length()
#: Images of a pass that are kept, to compare embeddings.
PROBE = 4


class Counted:
    """A prepared encoder that counts what it is asked."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.views = self.largest = 0
        self.probe: Tensor | None = None
        self.held = Held()

    def __call__(self, images: Tensor, **which: Any) -> Tree:
        self.held.begin()
        self.views += len(images)
        self.largest = max(self.largest, len(images))
        if self.probe is None:
            self.probe = images.detach()[:PROBE].clone()
        return self.encoder(images, **which)


@dataclass
class Contestant:
    """A decision in the ring: what its warm-up showed, and the seconds of its rounds."""

    decision: Decision
    encoder: Encoder
    trial: Trial  # of the warm-up
    warmup: float  # seconds, preparation included
    views: int  # encoder evaluations of one trial
    largest: int  # rows of its largest pass
    held: float  # bytes for each view; 0 where not measured
    probe: Tensor  # the first images of a pass
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of one trial."""
        return statistics.median(self.times)

    @property
    def per_view(self) -> float:
        """Seconds for each view."""
        return self.seconds / self.views


@dataclass(frozen=True)
class Bench:
    """Runs trials of one encoder on one device."""

    encoder: Encoder
    trial: Run
    device: torch.device
    clock: Callable[[], float]

    def now(self) -> float:
        """The time when all work given to the device is done."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return self.clock()

    def enter(self, decision: Decision) -> Contestant:
        """Prepare the encoder and run one trial, with its memory watched.

        Raises ValueError if the trial never asks the encoder, and whatever the encoder raises.
        """
        began = self.now()
        counted = Counted(prepare(self.encoder, decision))
        # A compiled graph is compiled anew where the hooks on saved tensors change.
        with nullcontext(Held()) if decision.compile else watch(self.device) as counted.held:
            trial = _finished(self.trial, counted, decision.chunk)
        if counted.probe is None:
            raise ValueError("`trial` must evaluate the encoder that it is given; it never called it")
        seconds, encoder, largest = self.now() - began, counted.encoder, counted.largest
        held = counted.held.most / largest
        return Contestant(decision, encoder, trial, seconds, counted.views, largest, held, counted.probe)

    def round(self, contestants: list[Contestant]) -> None:
        """One more trial of each in turn, on the clock."""
        for one in contestants:
            began = self.now()
            _finished(self.trial, one.encoder, one.decision.chunk)
            one.times.append(self.now() - began)


def _finished(trial: Run, encoder: Encoder, chunk: int) -> Trial:
    for _ in range(RETRIES):
        try:
            return trial(encoder, chunk)
        except Overflow:
            continue  # the loss scale is halved by now
    return trial(encoder, chunk)
