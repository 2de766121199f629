"""The smallest radius of each picture, as a part of an evaluation: from the attack at the largest one."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attacks.encoders.engine import engine_reset, engine_restore, engine_state
from attacks.eot.bank import bank
from attacks.evaluation.judge import judged
from attacks.evaluation.radii import SmallestRadii
from attacks.experiment.arms import ArmState, question
from attacks.experiment.batch import SAME, Bench, setup
from attacks.experiment.cost import Meter, Spent
from attacks.objectives.retrieval import Retrieval
from attacks.runtime.progress import Progress
from attacks.schema.groups import LayersConfig
from attacks.solvers.radius import RadiusState, Trial, planned, radius, views_of

#: Runs at one radius whose passes the search may take.
RUNS = 2


def smallest(bench: Bench, spent: Spent, meter: Meter) -> SmallestRadii:
    """Search from the files of the arm `eot`, write `pictures/radius/`, and judge these files on held-out views."""
    parts = bench.parts
    rows = range(len(parts.queries))
    numbers = torch.tensor(list(rows))
    setting, known = setup(bench, parts, rows, bench.run.seed)
    problem, options = question("radius", setting, known)
    if known.goal is None and bench.judge.signature is None and not isinstance(bench.run.objective, LayersConfig):
        # What breaks a picture is another that is nearer: no other objective finds the smallest radius.
        margin = Retrieval(known.gallery, identity=known.identity)
        problem = replace(problem, objective=margin, anchor=known.truth)
    attack = (spent.forward + spent.backward) // len(rows)
    count = views_of(RUNS * attack) if parts.transforms.dims else 1
    views = bank(parts.transforms, count, seed=bench.run.seed, purpose="radius")
    views = views._replace(u=views.u.to(known.images))

    def success(delta: Tensor) -> Tensor:
        shown = parts.perturbation.evaluated(known.images, delta)
        return judged(bench.judge, shown, numbers, views).success.double().mean(1).to(delta.device)

    first = bench.exhibits.pictures("eot", rows) - known.images
    trial = Trial(success, len(views.u))
    state: RadiusState | None = None
    checkpoint, passes = bench.checkpoint.under("radii"), RUNS * attack
    total = 1 + planned(options, trial, passes)[1]
    with checkpoint.task("search") as task, Progress("radii", total, visible=bench.world.first) as progress:
        engine_reset(setting.encoder)
        if task.state is not None:
            state, engine, _, _, earlier = task.state
            engine_restore(setting.encoder, engine)
            meter.begin(earlier)
            progress.skip(state.trials)
        for latest in radius(problem, options, trial, first, passes=passes, state=state):
            state = latest
            progress.step(broken=int(state.broken.sum()))
            task.update(partial(ArmState, state, engine_state(setting.encoder), None, (), meter.peek()))
    assert state is not None  # the first trial is always made
    files = {"radius": parts.perturbation.written(known.images, state.delta)}
    with bench.exhibits.writing(rows, files, {}) as exhibits:
        pictures = exhibits.pictures("radius", rows)
    held_out = judged(bench.judge, pictures, numbers, bench.banks[SAME])
    queries = parts.queries
    return SmallestRadii(
        queries.names,
        queries.clusters,
        parts.perturbation.eps,
        state.least.cpu(),
        state.share.cpu(),
        held_out,
        (state.passes, attack),
    )
