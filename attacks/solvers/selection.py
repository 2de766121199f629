"""Which iterate of a run is kept, and when a picture leaves: looks at the iterates on a fixed bank of views.

The loss of a step is a noisy draw: the lowest one is luck. Choosing takes at most a tenth of all passes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.eot.bank import Bank, bank
from attacks.eot.problem import Options, Problem
from attacks.eot.risk import Risk
from attacks.runtime.values import stored
from attacks.solvers.loop import Step
from attacks.solvers.search import bank_losses
from transforms.devices import uploaded

#: Views of the bank; the most passes of choosing, as a share of the others (a tenth of their sum); and the shares of
#: a run after which its iterate is looked at, besides the end.
VIEWS, BUDGET_SHARE, LOOKS = 32, 1 / 9, (1 / 8, 1 / 4, 1 / 2, 3 / 4)
#: Views of a look: the fewest that show their own noise, and the most that are of use.
FEWEST, LARGEST = 4, 16
#: From this share of a run on a picture leaves where its loss has not fallen since a look at this share of the steps
#: done, or by less than so many standard errors.
LEAVES, REFERENCE, NOISE = 1 / 2, 1 / 3, 1.0


class LookPlan(NamedTuple):
    """After which shares of a run its iterate is looked at (besides the end), from how many views of the bank
    (`screen`), and from how many (`full`) two finalists are compared."""

    looks: tuple[float, ...]
    screen: int
    full: int

    def due(self, start: Tensor, end: Tensor) -> Tensor:
        """Whether a look, or the end, lies between two shares (N,) of the run, the later one included."""
        looks = torch.tensor([*self.looks, 1.0], dtype=torch.float64)[:, None] * (1 - 1e-9)
        return ((start < looks) & (looks <= end)).any(0)


def plan_for(passes: int, views: int = VIEWS) -> LookPlan:
    """The looks that so many forward and backward passes of a picture allow: those of choosing are at most a tenth of
    all, whether a picture leaves early or not, and have at most `views` views. Where two looks would be too many,
    only the last iterate is looked at, from one view."""
    room = int(passes * BUDGET_SHARE + 1e-9)
    for looks, spare, limit in ((LOOKS, 2, LARGEST), (LOOKS[2:3], 0, FEWEST)):
        times, fewest = len(looks) + 1, min(FEWEST, views) if spare else 1
        screen = min(room // (times + spare), views, limit)
        if screen >= fewest:
            return LookPlan(looks, screen, min(views, screen + (room - times * screen) // 2))
    return LookPlan((), 1, 1)


def overfitting(gradients: int, views: int = VIEWS) -> LookPlan:
    """The looks of an attack that does not follow the views: after 1, 2, 3, 4, 6, 8, 11, 16, ... gradients (powers of
    the root of 2, rounded). Its best iterate is an early one, so it takes more looks than a tenth of its passes."""
    counts = {round(2 ** (k / 2)) for k in range(2 * gradients.bit_length())}
    looks = tuple(count / gradients for count in sorted(counts) if count < gradients)
    return LookPlan(looks, min(FEWEST, views), min(4 * FEWEST, views))


@dataclass(frozen=True, eq=False)
class Selection:
    """How iterates are compared: by the `risk` of their losses on the first views of the `bank`, after the shares of
    a run that the `plan` says and at its end.

    The last iterate is kept unless an earlier one is better by more than `NOISE` standard errors: as steps become
    shorter the last one is nearly always the best, and the lowest of some noisy losses is luck. With `early` the best
    one is kept, whatever its step. The two finalists, the best and the last or with `early` the two best, are
    compared on more views at the end, without `early` only for pictures that have not left before.

    The `timer` is entered for whatever is computed here.
    """

    bank: Bank
    risk: Risk
    plan: LookPlan
    early: bool = False
    timer: Callable[[], AbstractContextManager[None]] = nullcontext

    def risk_of(self, problem: Problem, options: Options, delta: Tensor, views: Bank) -> tuple[Tensor, Tensor]:
        """The losses (N,V) on some views of the bank, and their risk (N,) with the penalty."""
        with self.timer():
            losses, penalty = bank_losses(problem, delta, views, options.eot, options.penalty)
        risk = self.risk.value(losses).to(losses)
        return losses, risk if penalty is None else risk + penalty


def selection(problem: Problem, options: Options) -> Selection:
    """How an attack itself chooses among its iterates: weighed as in its steps."""
    eot, adversary = options.eot, options.adversary
    risk = eot.risk if adversary is None else adversary.risk(eot.views)
    size = VIEWS if eot.transforms.dims else 1
    views = bank(eot.transforms, size, seed=options.seed, purpose="select")
    return Selection(views._replace(u=views.u.to(problem.images.dtype)), risk, plan_for(_passes(options), size))


def _passes(options: Options) -> int:
    """The forward and backward passes of a picture, at least, if it does not leave."""
    limit = options.steps * options.eot.views
    budget = limit if options.budget is None else int(torch.as_tensor(options.budget).min())
    return (1 if options.optimiser.gradient_free else 2) * (budget if options.adaptive else min(limit, budget))


@stored("candidate")
class Iterate(NamedTuple):
    """An iterate of each picture, or one that all share: its delta, the `step` (N,) that it comes from, its `losses`
    (N,v) from the views of the looks, their risk (N,), and its `loss` (N,): the risk of all views that it has been
    seen from. Risks include the penalty; infinite ones are those of no iterate."""

    delta: Tensor
    step: Tensor
    losses: Tensor
    screen_risk: Tensor
    loss: Tensor


@stored("looked")
class Looks(NamedTuple):
    """The looks of a run so far: the two finalists of each picture (see `Selection`), and of each look the share of
    the run (N,), the losses (N,v) and their risk (N,)."""

    best: Iterate
    other: Iterate
    history: tuple[tuple[Tensor, Tensor, Tensor], ...]

    @property
    def latest(self) -> Tensor:
        return self.history[-1][2]


@dataclass(frozen=True, eq=False)
class Chooser:
    """The looks at the iterates of a run, or of several `runs`, which are compared with one another."""

    problem: Problem
    options: Options
    select: Selection
    runs: int = 1

    def with_chunk(self, chunk: int) -> "Chooser":
        if chunk == self.options.eot.chunk:
            return self
        return replace(self, options=replace(self.options, eot=replace(self.options.eot, chunk=chunk)))

    def look(self, step: Step, mask: Tensor, record: Looks | None) -> Looks:
        share, mask, device = step.done, mask | self.problem.shared, step.delta.device
        rows, is_part = uploaded(mask.nonzero()[:, 0], device), not bool(mask.all())
        losses, risk = self._bank_risk(step.delta, rows, 0, self.select.plan.screen)
        infinite = torch.full_like(self.problem.images[:, 0, 0, 0], torch.inf)
        table = losses.new_zeros(len(infinite), losses.shape[1]).index_copy(0, rows, losses)
        value = infinite.index_copy(0, rows, risk.to(infinite))
        number = torch.full_like(infinite, step.index, dtype=torch.long)
        latest, rows_mask = Iterate(step.delta, number, table, value, value), uploaded(mask, device)
        if record is None:
            empty = latest._replace(screen_risk=infinite, loss=infinite)
            record = Looks(empty, empty, ())
        elif is_part:
            table = torch.where(rows_mask[:, None], table, record.history[-1][1])
            value = torch.where(rows_mask, value, record.latest)
            share = torch.where(mask, share, record.history[-1][0])
        better = self._below(latest.screen_risk, record.best.screen_risk)
        if self.select.early:
            second = self._below(latest.screen_risk, record.other.screen_risk)
            other = _pick(better, record.best, _pick(second, latest, record.other))
        else:
            other = _pick(rows_mask, latest, record.other)
        return Looks(_pick(better, latest, record.best), other, (*record.history, (share, table, value)))

    def idle(self, record: Looks) -> Tensor:
        """The pictures (N,), on the CPU, that leave after the latest look because nothing comes any more. One view of
        several shows no noise: then none leaves."""
        share, table, value = record.history[-1]
        shares, tables, values = (torch.stack(column) for column in zip(*record.history, strict=True))
        references = shares <= REFERENCE * share  # shares are on the CPU
        idle_rows = references.any(0) & (share >= LEAVES) & self.options.optimiser.leaves_early
        if self.select.plan.screen < FEWEST <= len(self.select.bank.u) or not bool(idle_rows.any()):
            return torch.zeros(len(self.problem), dtype=torch.bool)
        risks = values.mean(1, keepdim=True).expand_as(values) if self.problem.shared else values
        is_reference, rows = uploaded(references, value.device), torch.arange(len(value), device=value.device)
        lowest = torch.where(is_reference, risks, torch.inf).argmin(0)
        gain, error = self._gap((tables[lowest, rows], values[lowest, rows]), (table, value))
        return idle_rows & (gain <= NOISE * error).cpu()

    def pick(self, record: Looks) -> Iterate:
        """The iterates that are kept, from the looks alone."""
        best, other = record.best, record.other
        if self.select.early:
            return best
        ahead = self._ahead((best.losses, best.screen_risk), (other.losses, other.screen_risk))
        return _pick(ahead | (best.step == other.step), best, other)

    def final(self, record: Looks, left: Tensor) -> Iterate:
        """The iterates that are kept at the end. Pictures that have `left` (N,) before have no second comparison,
        except with `early`."""
        best, other, plan = record.best, record.other, self.select.plan
        stays, is_open = ~left | self.select.early | (self.runs > 1), other.screen_risk.isfinite()
        if self.runs == 1:
            is_open = is_open & (best.step != other.step)
        choice = self.pick(record)
        if plan.full == plan.screen or not bool(stays.any()):
            return choice
        rows = (stays & is_open.cpu()).nonzero()[:, 0]  # the only wait but for those of new losses
        if not len(rows):
            return choice
        rows = uploaded(rows, is_open.device)
        first, two = (self._extend(candidate, rows, plan.full) for candidate in (best, other))
        ahead = ~self._below(two[1], first[1]) if self.select.early else self._ahead(first, two)
        best, other = (
            candidate._replace(loss=candidate.loss.index_copy(0, rows, risk))
            for candidate, (_, risk) in ((best, first), (other, two))
        )
        no_rows = torch.zeros_like(is_open)
        ahead, contenders = no_rows.index_copy(0, rows, ahead), no_rows.index_fill(0, rows, True)
        return _pick(contenders, _pick(ahead | (best.step == other.step), best, other), choice)

    def stop_at(self, record: Looks, stop: float, solved_rows: Tensor) -> tuple[Looks, Tensor]:
        """The pictures (N,), on the CPU, whose loss is `stop` or less on the whole bank, where it is on the views of
        the looks; those of `solved_rows` are."""

        def below_stop(record: Looks) -> Tensor:
            mask = (record.best.loss <= stop).cpu()
            return mask.all().expand_as(mask) if self.problem.shared else mask

        hits, size = below_stop(record), len(self.select.bank.u)
        rows = (hits & ~solved_rows).nonzero()[:, 0]
        if len(rows) and size > self.select.plan.screen:
            rows = uploaded(rows, record.latest.device)
            _, risk = self._extend(record.best, rows, size)
            record = record._replace(best=record.best._replace(loss=record.best.loss.index_copy(0, rows, risk)))
            hits = below_stop(record)
        return record, solved_rows | hits

    def _bank_risk(self, delta: Tensor, rows: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
        views = self.select.bank._replace(u=self.select.bank.u[first:stop])
        part = self.problem.take(rows)
        delta = delta if self.problem.shared or part is self.problem else delta[rows]
        return self.select.risk_of(part, self.options, delta, views)

    def _extend(self, candidate: Iterate, rows: Tensor, stop: int) -> tuple[Tensor, Tensor]:
        screen_losses = candidate.losses[rows]
        screen = self.select.plan.screen
        more_losses, _ = self._bank_risk(candidate.delta, rows, screen, stop)
        losses = torch.cat([screen_losses, more_losses], 1)
        penalty = candidate.screen_risk[rows] - self.select.risk.value(screen_losses).to(screen_losses)
        return losses, self.select.risk.value(losses).to(losses) + penalty

    def _below(self, first: Tensor, other: Tensor) -> Tensor:
        """Whether one risk is lower (n,); of a shared perturbation, the mean."""
        return (first.mean() < other.mean()).expand_as(first) if self.problem.shared else first < other

    def _ahead(self, first: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
        """Whether one is better beyond the noise (n,), or there is no other."""
        gap, error = self._gap(other, first)
        return (gap > NOISE * error) | gap.isinf()

    def _gap(self, first: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """By how much the first risk is higher than the other (n,), and the standard error of that over their common
        views."""
        views = first[0].shape[1]
        parts = [views * self.select.risk.weights(losses).to(losses) * losses for losses, _ in (first, other)]
        differences, gap = parts[0] - parts[1], first[1] - other[1]
        if self.problem.shared:
            differences, gap = differences.mean(0, keepdim=True).expand_as(differences), gap.mean().expand_as(gap)
        return gap, differences.std(1, correction=min(1, views - 1)) / views**0.5


def _pick(mask: Tensor, first: Iterate, other: Iterate) -> Iterate:
    """For each picture the first value where `mask` (N,) is true, else the second."""

    def of(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask[: len(a)].view(-1, *[1] * (a.dim() - 1)), a, b)

    return Iterate(*(of(a, b) for a, b in zip(first, other, strict=True)))
