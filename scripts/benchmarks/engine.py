"""The gradient of one EOT step: this project's engine, the encoder alone, a loop written by hand, and the peers."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from attacks.encoders.engine import Choice, Decision, Trial, describe, keep_freed_memory, prepare
from attacks.encoders.engine.tuner import choose

from .case import PIPELINE, GradientCase, case
from .contest import Attack, Setting, in_fresh_process
from .memory import MIB, peak
from .peers import PEERS
from .table import MISSING, BenchmarkTable, Row
from .timing import median_seconds

BARE, FLOAT32, AUTO = "bare encoder, as auto", "ours, float32", "ours, auto"
#: What float32 is measured against: the same layout, folding and chunk.
BARE32 = "bare encoder, float32"
#: Steps times pictures of the attack that `auto` prepares for: enough to repay all measuring.
STEPS = 100 * 100


def run(
    rounds: int = 15, arch: Sequence[str] = ("resnet18", "resnet50"), views: int = 16, device: str = "cpu"
) -> list[BenchmarkTable]:
    """Milliseconds a view and memory: this engine, a loop by hand, and the peers."""
    return [compare_engines(name, rounds, views, device) for name in arch]


def compare_engines(arch: str, rounds: int, views: int, device: str) -> BenchmarkTable:
    """Time and memory of each contestant on one encoder; peers that are missing are named as such."""
    question = case(arch, views, device)
    keep_freed_memory()
    choice = decision_of_auto(question)
    makers = contestants(question, choice.decision)
    seconds = median_seconds({name: make() for name, make in makers.items()}, rounds, device, warm=True)
    keep_freed_memory(False)
    conditions = (arch, views, device, choice.decision)
    rows: dict[str, Row] = dict.fromkeys([*makers, *PEERS], MISSING)
    for name, time in seconds.items():
        memory = in_fresh_process(engine_peak, name, *conditions) / MIB
        rows[name] = (1e3 * time / views, time / seconds[BARE], memory)
    subject = f"{arch}, {views} views of {question.image.shape[-1]}x{question.image.shape[-1]}, {device}"
    title = f"Gradient of one step: {subject}, {torch.get_num_threads()} threads, {rounds} rounds"
    columns = {"ms per view": ".2f", "/ bare": ".2f", "MiB": ".0f"}
    return BenchmarkTable(title, columns, rows, tuple(describe(choice)))


def engine_peak(name: str, arch: str, views: int, device: str, decision: Decision) -> int:
    """The peak bytes of a contestant's first step in this process, above those before it."""
    step = contestants(case(arch, views, device), decision)[name]()
    return peak(step, device)


def contestants(question: GradientCase, decision: Decision) -> dict[str, Callable[[], Attack]]:
    """Name -> what prepares it, in the order of the table; only installed peers."""
    full = dataclasses.replace(decision, precision="float32")
    makers: dict[str, Callable[[], Attack]] = {
        BARE: lambda: bare(question, decision),
        BARE32: lambda: bare(question, full),
        FLOAT32: lambda: our_step(question, full),
        AUTO: lambda: our_step(question, decision),
    }
    setting = Setting(0.25, len(question.u))
    makers |= {name: partial(peer.prepare, question, setting) for name, peer in PEERS.items() if peer.installed}

    def prepare_attack(name: str) -> Attack:
        step = makers[name]()

        def run() -> Tensor:
            """The step as in a run: ours keeps freed memory, that of a peer is left to glibc."""
            keep_freed_memory(name not in PEERS)
            return step()

        return run

    return {name: partial(prepare_attack, name) for name in makers}


def bare(question: GradientCase, decision: Decision) -> Attack:
    """The encoder as the engine runs it, forward and backward, on views that are there already: no EOT is faster."""
    encode = prepare(question.frozen, decision)
    with torch.no_grad():
        views = PIPELINE(question.image, question.u)

    def run() -> Tensor:
        parts = [part.detach().requires_grad_() for part in views.split(decision.chunk)]
        return torch.cat([torch.autograd.grad(question.loss(encode, part).sum(), part)[0] for part in parts])

    return run


def our_step(question: GradientCase, decision: Decision) -> Attack:
    """`EOT.estimate`, the encoder run as decided."""
    encode = prepare(question.frozen, decision)
    return lambda: question.estimate(encode, decision.chunk).grad


def decision_of_auto(question: GradientCase) -> Choice:
    """The choice of `engine: auto` for this encoder and these views, before `STEPS` such steps."""

    def trial(encode: Callable[[Tensor], Tensor], chunk: int) -> Trial:
        estimate = question.estimate(encode, chunk)
        return Trial(estimate.grad, estimate.snr)

    n = len(question.u)
    return choose(question.frozen, trial, {}, rows=n, total_views=STEPS * n, device=question.image.device)
