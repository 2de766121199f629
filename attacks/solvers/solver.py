"""The loop run to its end, keeping for each picture the iterate that is best on a fixed bank of views.

The loss of a step is a noisy draw: the lowest one is luck. Candidates are therefore compared on common views.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from attacks.encoders.tree import Tree, take
from attacks.eot.bank import Bank, bank
from attacks.eot.protocols import Perturbation, Setup, among
from attacks.eot.risk import Risk
from attacks.perturbations.patch.patch import Patch
from attacks.runtime.distributed import ALONE
from attacks.runtime.values import stored
from attacks.solvers.loop import STEPS, Position, Step, merged
from attacks.solvers.search import loop_of
from transforms import stream
from transforms.compose import seen

#: Views of the bank that chooses the best iterate.
VIEWS = 64
#: How many times during a run the current iterate is compared.
LOOKS = 10


@stored("best")
class Best(NamedTuple):
    """The best perturbation so far (of each picture, or the one that all share), the loss of each picture under it on
    the bank (N,), the step that it comes from (N,), and the last comparison's loss (N,)."""

    delta: Tensor
    loss: Tensor
    step: Tensor
    latest: Tensor


@stored("solve_state")
class Standing(NamedTuple):
    """Where `watch` stands after a step: the restart, the pictures (R,) that take part in it, the attack's own
    position, the last step of the restart before and the latest one, the best, which pictures have moved since it was
    looked for (N,), and which are solved (N,)."""

    restart: int
    rows: Tensor
    inner: Position
    before: Step | None
    step: Step
    best: Best | None
    moved: Tensor
    solved: Tensor


def solve(
    images: Tensor, anchor: Tree, *, stop: float | None = None, restarts: int = 1, **setup: Unpack[Setup]
) -> Best:
    """Run the attack to its end; arguments and errors as in `attack`, `stop` and `restarts` as in `watch`."""
    best = None
    for _, found in watch(images, anchor, stop=stop, restarts=restarts, **setup):
        best = found
    assert best is not None  # the last step is always compared
    return best


def watch(
    images: Tensor,
    anchor: Tree,
    *,
    stop: float | None = None,
    restarts: int = 1,
    standing: Standing | None = None,
    **setup: Unpack[Setup],
) -> Iterator[tuple[Step, Best | None]]:
    """The steps of `attack` (of `search`, if the optimiser is gradient-free), each with the best iterate so far (None
    until the first comparison).

    A picture whose loss on the bank is `stop` or less is solved and leaves the batch; where all share one delta, they
    leave together, when one delta solves all.

    With `restarts` above 1 the whole run is done so many times, each time from a seed of its own and with all `steps`
    and the whole `budget`; all are compared on one bank. Steps and encoder passes are counted on. A picture that is
    solved takes no part in the later runs; they show the best delta for it.

    Each step's `position` is a `Standing`; given as `standing`, the same run goes on after that step, to the bit.

    Raises:
        ValueError: as `attack`, and for `restarts` below 1.
    """
    if type(restarts) is not int or restarts < 1:
        raise ValueError(f"`restarts` must be a whole number of runs, at least 1; got {restarts!r}")
    steps = setup.setdefault("steps", STEPS)
    views = selection(setup, images)
    every, best, shared = max(1, steps // LOOKS), None, setup["perturbation"].shared
    solved = torch.zeros(len(images), dtype=torch.bool)
    step: Step | None = None
    if standing is not None:
        step, best, solved = standing.step, standing.best, standing.solved
    for restart in range(0 if standing is None else standing.restart, restarts):
        rows, before, moved, inner = (~solved).nonzero()[:, 0].to(images.device), step, torch.zeros_like(solved), None
        if standing is not None:
            rows, before, moved, inner = standing.rows, standing.before, standing.moved, standing.inner
            standing = None
        if not len(rows):
            return
        running, said = _run(images, anchor, restart, rows, inner, setup), None
        while True:
            try:
                own = running.send(said)
            except StopIteration:
                break
            inner = own.position
            own = own._replace(position=None)
            step = own if before is None or best is None else _joined(own, rows, before, best)
            said, moved = None, moved | step.active
            if (own.index + 1) % every == 0 or own.last:
                best = _better(best, _look(step, best, moved, views, images, anchor, setup), shared)
                if stop is not None:
                    solved = (best.loss <= stop).cpu()
                    solved = solved.all().expand_as(solved) if shared else solved
                    said = solved[rows.cpu()]
                    inner = inner._replace(solved=inner.solved | said)
                moved = torch.zeros_like(moved)
            at = Standing(restart, rows, inner, before, step, best, moved, solved)
            yield step._replace(last=step.last and restart == restarts - 1, position=at), best


def _run(
    images: Tensor, anchor: Tree, restart: int, rows: Tensor, position: Position | None, setup: Setup
) -> Generator[Step, Tensor | None, None]:
    """One run on the `rows` that are left: the first one is the run of the setup itself, on all pictures."""
    run = loop_of(setup["optimiser"])
    if not restart:
        return run(images, anchor, position=position, **setup)
    budget = setup.get("budget")
    own = setup.copy()
    own["seed"] = stream(setup.get("seed", 0), "restart", restart)
    own["budget"] = budget[rows.to(budget.device)] if isinstance(budget, Tensor) and budget.dim() else budget
    own["perturbation"] = among(own["perturbation"], rows)
    return run(images[rows], take(anchor, rows), position=position, **own)


def _joined(own: Step, rows: Tensor, before: Step, best: Best) -> Step:
    """A step of a later run on some `rows`, as a step of all pictures, counted on from the last step `before` it."""
    shared = len(best.delta) < len(best.loss)
    return Step(
        index=before.index + 1 + own.index,
        delta=own.delta if shared else best.delta.index_copy(0, rows, own.delta),
        estimate=merged(before.estimate, own.estimate, rows, shared),
        evals=before.evals + own.evals,
        active=torch.zeros_like(before.active).index_copy(0, rows.cpu(), own.active),
        last=own.last,
    )


def pictures(perturbation: Perturbation, images: Tensor, delta: Tensor) -> Tensor:
    """The attacked pictures themselves, seen directly: (N,C,H,W)."""
    return seen(perturbation.scene(images, delta))


def written(perturbation: Perturbation, images: Tensor, delta: Tensor) -> Tensor:
    """The attacked pictures as their 8-bit files hold them, from a quantised delta (one for each picture, but for a
    patch's texture)."""
    if not isinstance(perturbation, Patch):
        return images + delta
    return (pictures(perturbation, images, delta) * 255).round() / 255


def _size(setup: Setup) -> int:
    """Views of the bank: as many as the risk can be taken of."""
    eot = setup["eot"]
    multiple = _risk(setup).multiple
    return max(multiple, VIEWS // multiple * multiple) if eot.transforms.dims else multiple


def _risk(setup: Setup) -> Risk:
    """How the losses of a picture's views are judged: as the attack weighs them."""
    eot, adversary = setup["eot"], setup.get("adversary")
    return eot.risk if adversary is None else adversary.risk(eot.n)


def _look(
    step: Step, best: Best | None, moved: Tensor, views: Bank, images: Tensor, anchor: Tree, setup: Setup
) -> Best:
    """The current iterate on the bank; a picture that has not `moved` since the last look is as it was."""
    shared = setup["perturbation"].shared
    rows = torch.arange(len(images)) if best is None or shared else moved.nonzero()[:, 0]
    rows = rows.to(images.device)
    delta = step.delta if shared else step.delta[rows]
    loss = _worth(delta, images[rows], take(anchor, rows), views, step.estimate.chunk, setup)
    if best is not None:
        latest = best.latest.clone()
        latest[rows] = loss
        loss = latest
    return Best(step.delta, loss, torch.full_like(loss, step.index, dtype=torch.long), loss)


def _worth(delta: Tensor, images: Tensor, anchor: Tree, views: Bank, chunk: int, setup: Setup) -> Tensor:
    """The loss of each picture on a bank (N,), as the attack weighs it, and what its penalty asks."""
    attacked = setup["perturbation"].scene(images, delta)
    encoder, objective, world = setup["encoder"], setup["objective"], setup.get("world", ALONE)
    losses = views.losses(attacked, anchor, encoder, objective, chunk, world, untouched=images)
    loss, penalty = _risk(setup).value(losses).to(losses), setup.get("penalty")
    return loss if penalty is None else loss + penalty(delta, seen(attacked), images)


def _better(best: Best | None, now: Best, shared: bool) -> Best:
    """Picture by picture, the one with the lower loss; of a shared perturbation, the one with the lower mean."""
    if best is None:
        return now
    better = (now.loss.mean() < best.loss.mean()).expand_as(now.loss) if shared else now.loss < best.loss
    delta = torch.where(better[: len(now.delta), None, None, None], now.delta, best.delta)
    return Best(delta, torch.where(better, now.loss, best.loss), torch.where(better, now.step, best.step), now.loss)


def compare(best: Best | None, found: Best, images: Tensor, anchor: Tree, setup: Setup) -> Best:
    """The better of two, picture by picture, where `found` comes from an attack with another objective: its loss is
    taken anew, that of the setup on the setup's bank. `best` has been so compared before."""
    loss = _worth(found.delta, images, anchor, selection(setup, images), setup["eot"].chunk, setup)
    return _better(best, Best(found.delta, loss, found.step, loss), setup["perturbation"].shared)


def selection(setup: Setup, images: Tensor) -> Bank:
    """The bank of views that chooses among iterates."""
    views = bank(setup["eot"].transforms, _size(setup), seed=setup.get("seed", 0), purpose="select")
    return views._replace(u=views.u.to(images))
