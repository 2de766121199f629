"""Which iterate of a run is kept, and when a picture leaves: looks at the iterates on a fixed bank of views.

The loss of a step is a noisy draw: the lowest one is luck. Iterates are therefore compared on common views. That
takes at most a tenth of all passes: a few looks from few views, and a comparison of two finalists on more.
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
from attacks.runtime.stored import stored
from attacks.solvers.loop import Step
from attacks.solvers.search import bank_losses
from transforms.devices import uploaded

#: Views of the bank; the most passes of choosing, as a share of the others (a tenth of their sum); and the shares of
#: a run after which its iterate is looked at, besides the end.
VIEWS, ALLOWED, LOOKS = 32, 1 / 9, (1 / 8, 1 / 4, 1 / 2, 3 / 4)
#: Views of a look: the fewest that show their own noise, and the most that are of use.
FEWEST, MOST = 4, 16
#: From this share of a run on a picture leaves where its loss has not fallen since a look at this share of the steps
#: done, or by less than so many standard errors.
LEAVES, SINCE, NOISE = 1 / 2, 1 / 3, 1.0


class Plan(NamedTuple):
    """After which shares of a run its iterate is looked at (besides the end), from how many views of the bank
    (`screen`), and from how many (`full`) two finalists are compared."""

    looks: tuple[float, ...]
    screen: int
    full: int

    def due(self, before: Tensor, after: Tensor) -> Tensor:
        """Whether a look, or the end, lies between two shares (N,) of the run, the later one included."""
        looks = torch.tensor([*self.looks, 1.0], dtype=torch.float64)[:, None] * (1 - 1e-9)
        return ((before < looks) & (looks <= after)).any(0)


def planned(passes: int, views: int = VIEWS, multiple: int = 1) -> Plan:
    """The looks that so many forward and backward passes of a picture allow: those of choosing are at most a tenth of
    all, whether a picture leaves early or not. Numbers of views are multiples of `multiple`, at most `views`. Where
    two looks would be too many, only the last iterate is looked at, from as few views as can be."""
    room = int(passes * ALLOWED + 1e-9)

    def whole(count: int) -> int:
        return count // multiple * multiple

    for looks, spare, most in ((LOOKS, 2, MOST), (LOOKS[2:3], 0, FEWEST)):
        times, fewest = len(looks) + 1, min(FEWEST, views) if spare else 1
        screen = whole(min(room // (times + spare), views, max(most, multiple)))
        if screen >= fewest:
            return Plan(looks, screen, min(views, screen + whole((room - times * screen) // 2)))
    return Plan((), multiple, multiple)


def overfitting(gradients: int, views: int = VIEWS, multiple: int = 1) -> Plan:
    """The looks of an attack that does not follow the views: after 1, 2, 3, 4, 6, 8, 11, 16, ... gradients (powers of
    the root of 2, rounded). Its best iterate is an early one, so it takes more looks than a tenth of its passes."""
    counts = {round(2 ** (k / 2)) for k in range(2 * gradients.bit_length())}
    looks = tuple(count / gradients for count in sorted(counts) if count < gradients)
    screen, full = (max(multiple, count // multiple * multiple) for count in (FEWEST, 4 * FEWEST))
    return Plan(looks, min(screen, views), min(full, views))


@dataclass(frozen=True, eq=False)
class Selection:
    """How iterates are compared: by the `risk` of their losses on the first views of the `bank`, after the shares of
    a run that the `plan` says and at its end.

    The last iterate is kept unless an earlier one is better by more than `NOISE` standard errors: as steps become
    shorter the last one is nearly always the best, and the lowest of some noisy losses is luck. With `early` the best
    one is kept, whatever its step. The two finalists, the best and the last or with `early` the two best, are
    compared on more views at the end, without `early` only for pictures that have not left before.

    `measured` is entered for whatever is computed here.
    """

    bank: Bank
    risk: Risk
    plan: Plan
    early: bool = False
    measured: Callable[[], AbstractContextManager[None]] = nullcontext


def selection(problem: Problem, options: Options) -> Selection:
    """How an attack itself chooses among its iterates: weighed as in its steps."""
    eot, adversary = options.eot, options.adversary
    risk = eot.risk if adversary is None else adversary.risk(eot.views)
    size = max(risk.multiple, VIEWS // risk.multiple * risk.multiple) if eot.transforms.dims else risk.multiple
    views = bank(eot.transforms, size, seed=options.seed, purpose="select")
    return Selection(
        views._replace(u=views.u.to(problem.images.dtype)), risk, planned(_passes(options), size, risk.multiple)
    )


def _passes(options: Options) -> int:
    """The forward and backward passes of a picture, at least, if it does not leave."""
    most = options.steps * options.eot.views
    budget = most if options.budget is None else int(torch.as_tensor(options.budget).min())
    return (1 if options.optimiser.gradient_free else 2) * (budget if options.adaptive else min(most, budget))


@stored("candidate")
class Candidate(NamedTuple):
    """An iterate of each picture, or one that all share: its delta, the `step` (N,) that it comes from, its `losses`
    (N,v) from the views of the looks, the risk of these (N,), and its `loss` (N,): the risk of all views that it has
    been seen from. Risks include the penalty; infinite ones are those of no iterate."""

    delta: Tensor
    step: Tensor
    losses: Tensor
    screened: Tensor
    loss: Tensor


@stored("looked")
class Looked(NamedTuple):
    """The looks of a run so far: the two finalists of each picture (see `Selection`), and of each look the share of
    the run (N,), the losses (N,v) and their risk (N,)."""

    best: Candidate
    other: Candidate
    past: tuple[tuple[Tensor, Tensor, Tensor], ...]

    @property
    def latest(self) -> Tensor:
        """The risk at the last look (N,)."""
        return self.past[-1][2]


@dataclass(frozen=True, eq=False)
class Chooser:
    """The looks at the iterates of a run, or of several `runs`, which are compared with one another."""

    problem: Problem
    options: Options
    select: Selection
    runs: int = 1

    def within(self, chunk: int) -> "Chooser":
        """With at most `chunk` views in memory at once."""
        eot = self.options.eot
        return (
            self
            if eot.chunk == chunk
            else replace(self, options=replace(self.options, eot=replace(eot, chunk=chunk)))
        )

    def look(self, step: Step, moved: Tensor, looked: Looked | None) -> Looked:
        """After a step: some pictures that have `moved` (N,), on the CPU, are looked at, the others are as they
        were."""
        share, moved, device = step.done, moved | self.problem.shared, step.delta.device
        rows, some = uploaded(moved.nonzero()[:, 0], device), not bool(moved.all())
        losses, risk = self._seen(step.delta, rows, 0, self.select.plan.screen)
        infinite = torch.full_like(self.problem.images[:, 0, 0, 0], torch.inf)
        table = losses.new_zeros(len(infinite), losses.shape[1]).index_copy(0, rows, losses)
        value = infinite.index_copy(0, rows, risk.to(infinite))
        number = torch.full_like(infinite, step.index, dtype=torch.long)
        fresh, rows_mask = Candidate(step.delta, number, table, value, value), uploaded(moved, device)
        if looked is None:
            nothing = fresh._replace(screened=infinite, loss=infinite)
            looked = Looked(nothing, nothing, ())
        elif some:
            table = torch.where(rows_mask[:, None], table, looked.past[-1][1])
            value = torch.where(rows_mask, value, looked.latest)
            share = torch.where(moved, share, looked.past[-1][0])
        better = self._lower(fresh, looked.best)
        if self.select.early:
            second = self._lower(fresh, looked.other)
            other = _picked(better, looked.best, _picked(second, fresh, looked.other))
        else:
            other = _picked(rows_mask, fresh, looked.other)
        return Looked(_picked(better, fresh, looked.best), other, (*looked.past, (share, table, value)))

    def idle(self, looked: Looked) -> Tensor:
        """The pictures (N,), on the CPU, that leave after the latest look because nothing comes any more. One view of
        several shows no noise: then none leaves."""
        share, table, value = looked.past[-1]
        shares, tables, values = (torch.stack(column) for column in zip(*looked.past, strict=True))
        before = shares <= SINCE * share  # shares are on the CPU
        asked = before.any(0) & (share >= LEAVES) & self.options.optimiser.leaves_early
        if self.select.plan.screen < FEWEST <= len(self.select.bank.u) or not bool(asked.any()):
            return torch.zeros(len(self.problem), dtype=torch.bool)
        judged = values.mean(1, keepdim=True).expand_as(values) if self.problem.shared else values
        looks, rows = uploaded(before, value.device), torch.arange(len(value), device=value.device)
        lowest = torch.where(looks, judged, torch.inf).argmin(0)
        gain, error = self._gap((tables[lowest, rows], values[lowest, rows]), (table, value))
        return asked & (gain <= NOISE * error).cpu()

    def chosen(self, looked: Looked) -> Candidate:
        """The iterates that are kept, from the looks alone."""
        best, other = looked.best, looked.other
        if self.select.early:
            return best
        ahead = self._ahead((best.losses, best.screened), (other.losses, other.screened))
        return _picked(ahead | (best.step == other.step), best, other)

    def final(self, looked: Looked, left: Tensor) -> Candidate:
        """The iterates that are kept at the end. Pictures that have `left` (N,) before have no second comparison,
        except with `early`."""
        best, other, plan = looked.best, looked.other, self.select.plan
        stays, asked = ~left | self.select.early | (self.runs > 1), other.screened.isfinite()
        if self.runs == 1:
            asked = asked & (best.step != other.step)
        choice = self.chosen(looked)
        if plan.full == plan.screen or not bool(stays.any()):
            return choice
        rows = (stays & asked.cpu()).nonzero()[:, 0]  # the only wait but for those of new losses
        if not len(rows):
            return choice
        rows = uploaded(rows, asked.device)
        one, two = (self._more(candidate, rows, plan.full) for candidate in (best, other))
        ahead = ~self._below(two[1], one[1]) if self.select.early else self._ahead(one, two)
        best, other = (
            candidate._replace(loss=candidate.loss.index_copy(0, rows, risk))
            for candidate, (_, risk) in ((best, one), (other, two))
        )
        none = torch.zeros_like(asked)
        ahead, seen = none.index_copy(0, rows, ahead), none.index_fill(0, rows, True)
        return _picked(seen, _picked(ahead | (best.step == other.step), best, other), choice)

    def solved(self, looked: Looked, stop: float, before: Tensor) -> tuple[Looked, Tensor]:
        """The pictures (N,), on the CPU, whose loss is `stop` or less on the whole bank, where it is on the views of
        the looks; those `before` are."""

        def reached(looked: Looked) -> Tensor:
            solved = (looked.best.loss <= stop).cpu()
            return solved.all().expand_as(solved) if self.problem.shared else solved

        now, size = reached(looked), len(self.select.bank.u)
        rows = (now & ~before).nonzero()[:, 0]
        if len(rows) and size > self.select.plan.screen:
            rows = uploaded(rows, looked.latest.device)
            _, risk = self._more(looked.best, rows, size)
            looked = looked._replace(best=looked.best._replace(loss=looked.best.loss.index_copy(0, rows, risk)))
            now = reached(looked)
        return looked, before | now

    def _seen(self, delta: Tensor, rows: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """The losses (n,v) of the pictures with numbers `rows` (n,) from some views of the bank, and their risk
        (n,)."""
        views = self.select.bank._replace(u=self.select.bank.u[first:stop])
        part = self.problem.take(rows)
        delta = delta if self.problem.shared or part is self.problem else delta[rows]
        with self.select.measured():
            losses, penalty = bank_losses(part, delta, views, self.options.eot, self.options.penalty)
        risk = self.select.risk.value(losses).to(losses)
        return losses, risk if penalty is None else risk + penalty

    def _more(self, candidate: Candidate, rows: Tensor, stop: int) -> tuple[Tensor, Tensor]:
        """The losses of the pictures with numbers `rows` (n,) from the first `stop` views of the bank, and their
        risk."""
        known = candidate.losses[rows]
        screen = self.select.plan.screen
        fresh, _ = self._seen(candidate.delta, rows, screen, stop)
        losses = torch.cat([known, fresh], 1)
        penalty = candidate.screened[rows] - self.select.risk.value(known).to(known)
        return losses, self.select.risk.value(losses).to(losses) + penalty

    def _lower(self, one: Candidate, other: Candidate) -> Tensor:
        """Whether the risk of one is lower at the looks (N,); of a shared perturbation, the mean."""
        return self._below(one.screened, other.screened)

    def _below(self, one: Tensor, other: Tensor) -> Tensor:
        """Whether one risk is lower (n,); of a shared perturbation, the mean."""
        return (one.mean() < other.mean()).expand_as(one) if self.problem.shared else one < other

    def _ahead(self, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
        """Whether one is better beyond the noise (n,), or there is no other."""
        gap, error = self._gap(other, one)
        return (gap > NOISE * error) | gap.isinf()

    def _gap(self, one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """By how much the risk of one is higher (n,), and the standard error of that over their common views."""
        views = one[0].shape[1]
        parts = [views * self.select.risk.weights(losses).to(losses) * losses for losses, _ in (one, other)]
        differences, gap = parts[0] - parts[1], one[1] - other[1]
        if self.problem.shared:
            differences, gap = differences.mean(0, keepdim=True).expand_as(differences), gap.mean().expand_as(gap)
        return gap, differences.std(1, correction=min(1, views - 1)) / views**0.5


def _picked(mask: Tensor, one: Candidate, other: Candidate) -> Candidate:
    """Of each picture, one where `mask` (N,) says so, else the other."""

    def of(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask[: len(a)].view(-1, *[1] * (a.dim() - 1)), a, b)

    return Candidate(*(of(a, b) for a, b in zip(one, other, strict=True)))
