"""A study made from a checked configuration: what is asked, and the parts that answer it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from attacks.data.gallery import Gallery
from attacks.data.split import FIT, assign_split, rows_at_once
from attacks.encoders.black_box.asked import black_box, refuse_unanswered
from attacks.encoders.contract import check_encoder
from attacks.encoders.defended import Defence
from attacks.encoders.description import identity
from attacks.encoders.engine.precision import allow_tf32
from attacks.encoders.randomness import randomised
from attacks.eot import risk
from attacks.eot.adaptive import Adaptive
from attacks.eot.problem import FIXED, losses_of_a_step
from attacks.evaluation.classes import Classes
from attacks.evaluation.deployment import deployed_size
from attacks.evaluation.scores import embed_pictures
from attacks.perturbations.patch.patch import Patch
from attacks.resizers.pipeline import GIVEN, Pipeline, function_pipeline
from attacks.resizers.pipeline import kernel_pipeline as resizer
from attacks.runtime.distributed import local_rank
from attacks.schema import groups
from attacks.schema.encoder import BLACK_BOXES, GRADIENT_FREE, SAMPLING, DefenceConfig
from attacks.schema.groups import PatchConfig
from attacks.schema.objective import LayersConfig
from attacks.schema.run import Run
from attacks.schema.validate import printable_config
from attacks.solvers.worst import Adversary
from attacks.study import task
from attacks.study.combinations import check_combinations, prices_of
from attacks.study.data import data, draw_clusters, hidden_rows, idle_columns, targeted
from attacks.study.encoder import subject_encoder, surrogate
from attacks.study.perturbation import facts, keyframe_places, patch_id, perturb, physical_patch, refuse_shapes
from attacks.study.pipeline import defended_views, input_side
from attacks.study.plugin_parts import part_name, plugin_parts
from attacks.study.printer import lay_on_sheet
from attacks.study.registry import make_part
from attacks.study.study import Attack, Study, Views
from transforms.resizing.resize import NAMES

#: The keys of an attack that say how many gradients it has.
BUDGET_KEYS = ("gradients", "steps", "views", "pictures")


def build(
    run: Run,
    module: nn.Module | None = None,
    function: Callable[[Any], Any] | None = None,
    reuse: nn.Module | None = None,
    answers: Mapping[str, Any] = MappingProxyType({}),
) -> Study:
    """The study of a configuration; a `module` replaces the encoder, and `function` is the pipeline that is recorded
    as given in Python. `reuse`: the encoder of another study with the same encoder, defence and device. `answers`: of
    a ledger, which a black box is not asked for again. Raises ValueError or FileNotFoundError."""
    if isinstance(run.attack, groups.SuiteConfig) and isinstance(run.objective, LayersConfig):
        raise ValueError("`attack=suite` attacks embeddings; objective=layers cannot be combined with it")
    risk_of_views: risk.Risk = make_part("risk", run.risk)
    optimiser: Any = make_part("optimiser", run.optimiser)
    views = plan_views(run, optimiser)
    check_attack(run, optimiser)
    check_black_box(run)
    task.check_task(run)
    if run.penalty.name == "nps" and run.perturbation.name != "patch":
        raise ValueError(
            "`penalty=nps` prices the colours of what is printed, perturbation=patch; got perturbation="
            f"{run.perturbation.name} (use another penalty)"
        )
    check_resizes(run.evaluate.ratios, run.evaluate.pipeline)
    defended_views(run.transforms, run.defence)  # a wrong stage is refused before an encoder is loaded
    allow_tf32(False)  # float32 is float32 but where the engine decides otherwise
    target_device = device(run.engine.device)
    encoder = subject_encoder(run, target_device, module) if reuse is None else reuse
    if getattr(run.optimiser, "surrogate", None) is not None:
        if getattr(run.objective, "target", None) is not None:
            raise ValueError("`optimiser.surrogate` leads away from the picture: use an objective without a target")
        optimiser = replace(optimiser, surrogate=surrogate(run.optimiser.surrogate, target_device))
    check_combinations(run)
    refuse_shapes(run)
    in_memory = getattr(run.attack, "pictures", None) is None
    has_gallery = not task.has_classes(run)
    queries, pictures, truth = data(run.data, run.perturbation, has_gallery=has_gallery, in_memory=in_memory)
    if run.evaluate.most is not None:
        rows = draw_clusters(queries.clusters, run.seed, run.evaluate.most)
        queries, truth = queries.take(rows), truth[rows]
    keeps_shapes = run.data.size is None
    perturbation = perturb(run, queries.only([0]) if keeps_shapes else queries)
    fit_rows, words = list[int](), tuple[str, ...]()
    if perturbation.shared:
        words = assign_split(queries.names, queries.clusters, run.seed, queries.split, run.data.fit)
        rows = [row for row, word in enumerate(words) if word] if in_memory else rows_at_once(words, run.seed)
        fit_rows = [] if in_memory else [row for row, word in enumerate(words) if word == FIT]
    elif run.data.fit is not None:
        raise ValueError(
            "`data.fit` needs a perturbation that pictures share: a patch, or perturbation.shared=true; got "
            f"{run.data.fit}"
        )
    queries = replace(queries, split=words, notes=(*queries.notes, *idle_columns(run, queries)))
    fit, fit_truth = queries.take(fit_rows), truth[fit_rows]
    if perturbation.shared and (fit_rows or len(rows) < len(queries)):
        queries, truth, perturbation = queries.only(rows), truth[rows], perturbation.take(torch.tensor(rows))
    side = input_side(encoder, *queries.shapes)
    transforms = lay_on_sheet(defended_views(run.transforms, run.defence, side), run.printer, run.perturbation)
    if run.encoder.stochastic or (isinstance(encoder, Defence) and encoder.has_fresh_draws):
        transforms = randomised(transforms, encoder)
    if not transforms.dims and run.optimiser.name not in SAMPLING:  # all views are the same: a step needs one
        views = Views(1, views.gradients)
    if (box := black_box(encoder)) is not None:
        box.ledger.rows |= answers
        # a picture without an answer shows no width either
        for part in queries.ranges(box.batch):
            features = encoder(queries.only(part).images.to(target_device))
            refuse_unanswered(encoder, features, [queries.names[row] for row in part])
    for row in [queries.shapes.index(shape) for shape in dict.fromkeys(queries.shapes)]:
        check_encoder(encoder, queries.only([row]).images.to(target_device), transforms, tree=False)
    gallery: Gallery | Classes = pictures
    task.refuse_logits(run, encoder, queries, target_device)
    if task.has_classes(run):
        labels = [pictures.labels[row] for row in truth.tolist()]
        gallery, truth, notes = task.classes_of(run, encoder, embed_pictures(queries, encoder, target_device), labels)
        queries = replace(queries, notes=(*queries.notes, *notes))
    task.check_gallery(run, gallery)
    goal = None
    if (target := getattr(run.objective, "target", None)) is not None:
        exclusions, cache = hidden_rows(gallery, queries, truth), getattr(run.data, "cache", None)
        truths = torch.cat([truth, fit_truth])
        entries = (*queries.entries, *fit.entries)
        gallery, goal = targeted(target, gallery, truths, run.seed, run.data.size, exclusions, cache, entries)
    study = Study(
        seed=run.seed,
        attack=replace(attack_of(run, views), prices=prices_of(run, encoder)),
        objective=run.objective,
        evaluate=run.evaluate,
        sanity=run.sanity,
        encoder=encoder,
        perturbation=perturbation,
        optimiser=optimiser,
        penalty=None if run.penalty.name == "none" else make_part("penalty", run.penalty),
        transforms=transforms,
        draws=make_part("draws", run.draws),
        risk=risk_of_views,
        queries=queries,
        gallery=gallery,
        truth=truth,
        goal=None if goal is None else goal[: len(truth)],
        device=target_device,
        identity=identity(run.encoder, encoder, transforms),
        threat={},
        members=ensemble_members(run, target_device),
        acceptance=task.acceptance_of(run, encoder),
        pipeline=deployed_pipeline(run.evaluate.pipeline, encoder, queries.images.shape[2:], function),
        remake=partial(perturb, run) if keeps_shapes else None,
        places=keyframe_places(getattr(run.perturbation, "keyframes", None), queries),
    )
    if isinstance(node := run.perturbation, PatchConfig) and isinstance(perturbation, Patch):
        goals = [] if study.goal is None else sorted(set(study.goal.tolist()))
        target = ", ".join(gallery.names[row] for row in goals) or None
        patch = physical_patch(node, run.printer, perturbation, queries, patch_id(run), target)
        study = replace(study, patch=patch)
    if fit_rows:
        fit_goal = None if goal is None else goal[len(truth) :]
        study = replace(study, fit=replace(study, queries=fit, truth=fit_truth, goal=fit_goal))
    return replace(study, threat=threat_of(run, study))


def ensemble_members(run: Run, device: torch.device) -> tuple[nn.Module, ...]:
    """The encoders of `objective.encoders`. Raises ValueError in one line."""
    texts = getattr(run.objective, "encoders", ())
    if texts and (run.attack.name != "single" or run.optimiser.name in GRADIENT_FREE):
        raise ValueError(
            f"`objective.encoders` are attacked by gradients of attack=single; got attack={run.attack.name}, "
            f"optimiser={run.optimiser.name}"
        )
    return tuple(surrogate(text, device, "objective.encoders") for text in texts)


def attack_of(run: Run, views: Views) -> Attack:
    """The settings of the attack."""
    node = run.attack
    if isinstance(node, groups.SuiteConfig):
        return Attack(node.name, part_name(run.optimiser), views, nearest=node.nearest)
    adversary = None if node.adversary is None else Adversary(node.adversary, node.refine)
    return Attack(
        node.name, part_name(run.optimiser), views, node.restarts, node.stop, adversary, pictures=node.pictures
    )


def threat_of(run: Run, study: Study) -> dict[str, Any]:
    """What the attacker may do and wants, for metrics.json."""
    node, patch, goal = run.perturbation, study.patch, study.goal
    shares = getattr(study.perturbation, "shares", None)
    parts = {name: part.digests()[0] for name, part in plugin_parts(run).items()}
    return {
        "task": run.task.name,
        "objective": part_name(run.objective),
        "targeted": goal is not None,
        "attack": run.attack.name,
        "optimiser": part_name(run.optimiser),
        "norm": part_name(node),
        "eps": study.perturbation.eps,
        **({} if shares is None else {"least_eps": float(study.perturbation.eps * shares.min())}),
        "gradients": study.views.gradients,
        "views_per_step": run.attack.views if study.transforms.dims else study.views.per_step,
        "risk": run.risk.name,
        "transforms": run.transforms.name,
        "shared": study.perturbation.shared,
        **({} if study.places is None else {"keyframes": node.keyframes}),
        "penalty": run.penalty.name,
        **{key: value for key, value in asdict(run.attack).items() if key not in ("name", "prices", *BUDGET_KEYS)},
        **({"prices": list(study.attack.prices)} if any(study.attack.prices) else {}),
        **({} if study.attack.pictures is None else {"pictures": study.attack.pictures}),
        "patch": None if patch is None else facts(node, patch, study.perturbation),  # None for any other perturbation
        **({"plugins": parts} if parts else {}),
    }


def check_resizes(ratios: Sequence[float], name: str | None) -> None:
    """Refuse ratios of a resize that are none, repeat, or make no picture; and a resizer of no library nor record."""
    if not ratios or len({*ratios}) < len(ratios) or not all(0.1 <= ratio <= 10 for ratio in ratios):
        raise ValueError(f"`evaluate.ratios` must be different numbers in [0.1, 10], such as [0.95, 1]; got {ratios}")
    if name is not None and name not in NAMES and not name.startswith(GIVEN):
        raise ValueError(
            f"`evaluate.pipeline` must be null or one of {', '.join(NAMES)}, from Python also a function "
            f"(robustness(pipeline=...)); got {name!r}"
        )


def deployed_pipeline(
    name: str | None, encoder: nn.Module, size: Sequence[int], function: Callable[[Any], Any] | None
) -> Pipeline | None:
    """The configured pipeline for pictures of a (height, width)."""
    source = size[0], size[1]
    if name is None:
        return None
    if name.startswith(GIVEN):
        return None if function is None else function_pipeline(function, source)
    return resizer(name, source, deployed_size(encoder, source))


def check_attack(run: Run, optimiser: Any) -> None:
    """Refuse attack keys that cannot be combined, and a `stop` that no loss or every loss reaches."""
    node, ball = run.attack, run.perturbation
    for key, part, name in (("attack", node, "radius"), ("optimiser", run.optimiser, "label_only")):
        if part.name == name and (ball.name in ("patch", "plugin") or ball.shared):
            kind = "shared=true" if getattr(ball, "shared", False) else ball.name
            raise ValueError(f"`{key}={name}` needs a ball round each picture, of a radius of its own; got {kind}")
    if isinstance(node, groups.SuiteConfig):
        return
    starts = ["attack=radius"] * (node.name == "radius") + ["attack.restarts"] * (node.restarts > 1)
    starts += ["optimiser=label_only"] * (run.optimiser.name == "label_only")
    if node.start_from is not None and starts:
        raise ValueError(f"`attack.start_from` is the one start of an attack; {starts[0]} has others: drop one")
    if node.name == "radius" and optimiser.gradient_free:
        raise ValueError(f"`attack=radius` goes on by gradients; got optimiser={run.optimiser.name}")
    if node.stop is not None:
        low, high = bounds(run.objective)
        if not low < node.stop < high:
            raise ValueError(
                f"`attack.stop` is a loss of objective={run.objective.name}, between {low:g} and {high:g}; got "
                f"{node.stop}"
            )
    if node.adversary is None:
        return
    if optimiser.gradient_free:
        raise ValueError(f"`attack.adversary` needs gradients of new views; optimiser={run.optimiser.name} has none")
    if run.risk.name != "mean":
        raise ValueError(
            f"`attack.adversary` chooses the worst views itself; it needs risk=mean, got {run.risk.name}"
        )


def check_black_box(run: Run) -> None:
    """Refuse keys that need a gradient, weights or several processes where the encoder can only be asked."""
    if run.encoder.name not in BLACK_BOXES:
        return
    name, evaluate = run.encoder.name, run.evaluate
    if run.attack.name != "single" or run.optimiser.name not in GRADIENT_FREE:
        key = "optimiser" if run.attack.name == "single" else "attack"
        raise ValueError(
            f"`{key}={getattr(run, key).name}` follows gradients, and encoder={name} can only be asked: use "
            f"attack=single with {' or '.join(f'optimiser={each}' for each in GRADIENT_FREE)}"
        )
    if not isinstance(run.defence, DefenceConfig):
        raise ValueError(
            f"`defence={run.defence.name}` encodes views of its own, and encoder={name} can only be asked, once for "
            "each picture: use defence=none, with the defence in what is asked"
        )
    if run.encoder.answer == "same" and run.optimiser.name != "label_only":
        raise ValueError(
            f"`optimiser={run.optimiser.name}` compares numbers, and encoder.answer=same says 1 or 0, alike nearly "
            "everywhere: use optimiser=label_only"
        )
    if evaluate.explain:
        raise ValueError(f"`evaluate.explain` needs gradients, and encoder={name} has none; got {evaluate.explain}")
    if run.workers != 1 or run.shard is not None:
        raise ValueError(f"`workers`: one process alone asks encoder={name}, so that no picture is asked about twice")
    if getattr(run.data, "cache", None) is not None:
        raise ValueError(f"`data.cache` knows an encoder by its weights, and encoder={name} shows none: drop it")


def bounds(node: Any) -> tuple[float, float]:
    """The range of an objective's loss, as it is shown (for `toward` the cosine itself)."""
    if getattr(node, "metric", "cosine") == "l2":
        return (0.0, math.inf) if node.name == "toward" else (-math.inf, 0.0)
    if node.name == "infonce" and node.target is not None:
        return (0.0, math.inf)
    if node.name == "verification":
        return (-1 - node.threshold, 1 - node.threshold)
    return BOUNDS.get(node.name, (-math.inf, math.inf))


#: Objective -> the range of its loss, where no key changes it.
BOUNDS = {
    **dict.fromkeys(("away", "toward", "layers", "bits"), (-1.0, 1.0)),
    **dict.fromkeys(("retrieval", "triplet"), (-2.0, 2.0)),
    "infonce": (-math.inf, 0.0),
}


#: The most views of a step: more gradients are better spent on more steps.
MOST_VIEWS = 65_536


def plan_views(run: Run, optimiser: Any) -> Views:
    """The views of the attack. Raises ValueError for numbers that do not fit together."""
    node = run.attack
    adversary, views = getattr(node, "adversary", None), node.views
    kept = optimiser.counts_steps or optimiser.gradient_free
    kept = kept or run.draws.name in ("fixed", "grid") or adversary is not None
    free = isinstance(node, groups.SingleConfig) and not kept
    if views == "auto":
        fixed = losses_of_a_step(node.gradients) if run.optimiser.name in SAMPLING else FIXED
        views = 1 if free else fixed
    if type(views) is not int or not 1 <= views <= MOST_VIEWS:
        raise ValueError(
            f"`attack.views` must be auto or a whole number, at least 1 and at most {MOST_VIEWS:,}; got "
            f"{printable_config(views)}"
        )
    if run.optimiser.name in SAMPLING and (views % 2 or run.risk.name != "mean"):
        raise ValueError(
            f"`optimiser={run.optimiser.name}` needs risk=mean and an even attack.views, the losses of a step; got "
            f"risk={run.risk.name}, attack.views={views}"
        )
    if adversary is not None and adversary < views:
        raise ValueError(
            f"`attack.adversary` chooses the views of a step, {views}, among at least as many; got {adversary}"
        )
    if node.steps is None and node.gradients < views:
        raise ValueError(f"`attack.gradients` must suffice for a step of {views} views; got {node.gradients}")
    steps = node.gradients // views if node.steps is None else node.steps
    free = free and getattr(node, "pictures", None) is None  # more views of them do not lower the noise of the others
    return Views(views, steps, Adaptive() if node.views == "auto" and free else None)


def device(name: str) -> torch.device:
    """The device: "auto" is CUDA if available, a GPU for each process. Raises ValueError for a missing one."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        if local_rank() >= torch.cuda.device_count():
            raise ValueError(
                f"`engine.device={name}` needs a GPU for each process of this machine; it has "
                f"{torch.cuda.device_count()} (torchrun --nproc-per-node, or engine.device=cpu)"
            )
        return torch.device("cuda", local_rank())
    if name == "auto":
        return torch.device("cpu")
    try:
        result = torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError):
        result = None
    if result is None or result.type == "meta":  # which computes no values
        raise ValueError(
            f"`engine.device` must be auto, cpu, cuda, cuda:N or another device of torch that computes; got "
            f"{name!r}, which is not here (engine.device=cpu; of a finished run --device=cpu)"
        )
    return result
