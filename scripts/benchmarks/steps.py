"""The attack without EOT against its number of steps: a few raise its success, more fit the untransformed picture."""

from dataclasses import replace

from torch import Tensor

from attacks import EOT, Away, bank, evaluate
from attacks.eot.problem import Options, Problem
from attacks.experiment.build.parts import build
from attacks.run import compose
from attacks.solvers.loop import descend
from attacks.solvers.selection import overfitting, selection
from attacks.solvers.solver import watch

from .case import known
from .table import Row, Table

STEPS = (1, 2, 4, 8, 16, 24, 50, 100, 200, 400)


def run(steps: tuple[int, ...] = STEPS, pictures: int = 10, held_out: int = 128) -> list[Table]:
    """Success of the quickstart's attacks on held-out views by the number of gradients: without EOT, and with one
    view a step.

    The points of a row are iterates of one run."""
    settings = compose("quickstart", [f"data.count={pictures}"])
    parts, most = build(settings), max(steps)
    encoder, everything, gallery = known(settings.data.size)
    images, rows = parts.queries.images, [everything.names.index(name) for name in parts.queries.names]
    own = gallery[rows]
    views = bank(parts.transforms, held_out, seed=settings.seed, purpose="evaluate")
    problem = Problem(images, own, encoder, Away(), parts.perturbation)

    def success(delta: Tensor) -> float:
        shown = parts.perturbation.written(images, parts.perturbation.quantise(delta, images))
        nearest = evaluate(shown, own, gallery, encoder=encoder, bank=views).nearest
        return float((nearest != nearest.new_tensor(rows)[:, None]).double().mean())

    table: dict[str, Row] = {}
    arms = {"no_eot": EOT(views=1), "eot": EOT(parts.transforms, parts.draws, views=1)}
    for arm, eot in arms.items():
        options = Options(parts.optimiser, eot, steps=most)
        done = {step.evals // pictures: step.delta for step in descend(problem, options)}
        table[arm] = tuple(success(done[n]) if n in done else None for n in sorted(steps))
    select = selection(problem, Options(parts.optimiser, arms["eot"]))
    select = replace(select, early=True, plan=overfitting(most, len(select.bank.u)))
    *_, (_, best) = watch(problem, Options(parts.optimiser, arms["no_eot"], steps=most), select=select)
    assert best is not None  # the last iterate is always compared
    at = (best.step + 1).tolist()
    chosen = f"no_eot as a run chooses it, after {min(at)} to {max(at)} steps: {success(best.delta):.3f}"
    title = f"Success on {held_out} held-out views by gradients: {pictures} pictures, {settings.perturbation.eps}"
    return [Table(title, {str(n): ".3f" for n in sorted(steps)}, table, "lines", (chosen,), "gradients of a picture")]
