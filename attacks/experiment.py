"""The main job: attack pictures, write them to files, and judge the files on views that no attack has seen.

Four arms, judged alike: `clean`, `noise` (same budget, no optimisation), `no_eot` (the same optimiser and as many
encoder passes, but only the picture itself is looked at) and `eot`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attacks.aims import Known, aim, watched
from attacks.arms import Counted, Setting, Trace, check, csv, judge_arm, optimise
from attacks.build import Parts
from attacks.distributed import World
from attacks.drift import VIEWS, Drift, layer_drift, ordered
from attacks.embeddings import cache_of, embedded
from attacks.engine import Decision, prepare
from attacks.evaluation import Bank, Scores, bank, embed, signature_of
from attacks.exhibits import file_names, patched, placement, sheet, through_files
from attacks.files import atomic, write_json, write_text
from attacks.images import save_image
from attacks.objectives import Away
from attacks.patch import Patch
from attacks.sanity import Sanity
from attacks.schema import Run
from attacks.solver import written
from attacks.worst import uphill
from attacks.zero_shot import Classes
from transforms import Shown, stream

ARMS = ("clean", "noise", "no_eot", "eot")
#: Views of each picture, the worst for the attacker, from which the search for a worse one starts.
KEPT = 4


class Cost(NamedTuple):
    """Encoder passes, in views, and seconds; and how many pictures of the gallery needed none, being cached.

    Not counted is what looks at the encoder before the run: the engine's measurement (which may fill the cache), and
    the one look at each picture that has a class to be told."""

    forward: int
    backward: int
    seconds: float
    cached: int = 0


@dataclass(frozen=True)
class Outcome:
    """What an experiment found: scores of each arm, the pictures as read back from their files, what was shown to the
    encoder (of a patch: a scene), and the way there."""

    scores: dict[str, Scores]
    pictures: dict[str, Tensor]
    shown: dict[str, Shown]
    budget: dict[str, Tensor]
    trace: list[Trace]
    cost: Cost
    bank: Bank
    sanity: Sanity | None
    worst: dict[str, Tensor]  # of each picture the cosine (N,) of its worst view for the attacker
    refined: int  # steps of gradient that lead there, from the worst views of the bank
    drift: Drift | None  # of the layers that the run asks for


def experiment(run: Run, parts: Parts, decision: Decision, world: World, out: Path) -> Outcome:
    """Run the four arms; write `pictures/`, `adversarial.png`, `perturbation.safetensors`, `steps.csv` to `out` (the
    first process of `world` does)."""
    with watched(parts.encoder, run.objective) as module:
        return _experiment(run, parts, module, decision, world, out)


def _experiment(run: Run, parts: Parts, module: nn.Module, decision: Decision, world: World, out: Path) -> Outcome:
    """The same, with the encoder as the objective wants it."""
    began = time.perf_counter()
    full = replace(decision, precision="float32")
    encoder = Counted(prepare(module, decision))
    same = module is parts.encoder and full == decision
    judge = encoder if same else Counted(prepare(parts.encoder, full))
    exact = judge if module is parts.encoder else Counted(prepare(module, full))
    images = parts.queries.images.to(parts.device)
    layers = ordered(parts.encoder, run.evaluate.layers, images[:1]) if run.evaluate.layers else {}
    cache = cache_of(run, parts.encoder, full, parts.device)
    gallery, passed, cached, notes = embedded(
        parts.gallery, judge.encoder, parts.device, decision.chunk, cache, keep=world.first
    )
    judge.forward += passed * world.first  # every process does it, for the same answer
    if world.first:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
    own = gallery[parts.truth]
    if isinstance(parts.gallery, Classes):  # its rows are texts
        own = embed(images, judge if world.first else judge.encoder, parts.device, decision.chunk)
    known = Known(images, own, gallery, parts.truth, parts.goal, parts.gallery.identity)
    counted = exact if world.first else exact.encoder  # every process does it, for the same answer
    found_aim = aim(run.objective, known, counted, parts.transforms, run.seed)
    setting = Setting(run, parts, world, encoder, judge, found_aim, decision.chunk)

    noise = parts.perturbation.noise(images, torch.Generator().manual_seed(stream(run.seed, "noise")))
    deltas = {"noise": noise}
    best, eot = optimise("eot", setting, known)
    deltas["eot"] = best.delta
    best, no_eot = optimise("no_eot", setting, known, spent=-(-eot[-1].evals // len(images)))
    deltas["no_eot"], trace = best.delta, no_eot + eot
    sanity = check(setting, known, eot, module)

    saved = {arm: parts.perturbation.quantise(delta, images) for arm, delta in deltas.items()}
    files = {"clean": images} | {arm: written(parts.perturbation, images, delta) for arm, delta in saved.items()}
    names = file_names(parts.queries.names)
    found = {arm: through_files(out / "pictures" / arm, names, files[arm], world) for arm in ARMS}
    shown: dict[str, Shown] = {arm: picture.to(images) for arm, picture in found.items()}
    if isinstance(parts.perturbation, Patch):  # what can be taken away, and is judged, is the texture
        shown |= patched(out, parts.perturbation, found["clean"].to(images), saved, world)
    views = bank(parts.transforms, run.evaluate.views, seed=run.seed, purpose="evaluate")
    views = views._replace(u=views.u.to(images))
    scores = {arm: judge_arm(arm, setting, shown[arm], known.own, gallery, views) for arm in ARMS}
    refined = _refinable(setting)
    worst = {arm: _worst(setting, shown[arm], known.own, scores[arm], views, refined) for arm in ARMS}
    drift = None
    if layers:
        some, attacked = views._replace(u=views.u[:VIEWS]), {arm: shown[arm] for arm in ARMS[1:]}
        clean = found["clean"].to(images)
        drift = layer_drift(parts.encoder, clean, attacked, some, layers, chunk=decision.chunk, world=world)

    if world.first:
        save_image(out / "adversarial.png", sheet(found["eot"]))
        with atomic(out / "perturbation.safetensors") as temporary:
            save_file({arm: delta.cpu().contiguous() for arm, delta in saved.items()}, temporary)
        if isinstance(parts.perturbation, Patch):
            goal = None if parts.goal is None else parts.gallery.names[int(parts.goal[0])]
            placed = placement(parts.perturbation, names, images, run.perturbation, goal)
            write_json(out / "placement.json", placed)
        write_text(out / "steps.csv", csv(trace))
    budget = {arm: parts.perturbation.norm(found[arm].to(images) - images).cpu() for arm in ARMS}
    seen = {id(each): each for each in (encoder, judge, exact)}.values()
    passes = torch.tensor([[each.forward, each.backward] for each in seen]).sum(0)
    world.sum(passes)
    forward, backward = passes.tolist()
    # Costs of their own, as their passes are.
    checked = (0.0 if sanity is None else sanity.cost["seconds"]) + (0.0 if drift is None else drift.seconds)
    cost = Cost(forward, backward, time.perf_counter() - began - checked, cached)
    return Outcome(scores, found, shown, budget, trace, cost, views, sanity, worst, refined, drift)


def _refinable(setting: Setting) -> int:
    """The steps of gradient toward the worst view. None with a target: the row is then the lowest cosine to the
    picture itself, and a view without anything in it would win. None for an encoder compared by its bits: they have
    no slope."""
    plain = setting.parts.goal is None and signature_of(setting.parts.encoder) is None
    return setting.run.evaluate.refine if plain else 0


def _worst(setting: Setting, shown: Shown, own: Tensor, scores: Scores, views: Bank, steps: int) -> Tensor:
    """Of each picture the cosine (N,) to its clean embedding in the view that resists the attacker most."""
    if setting.parts.goal is not None:
        return scores.cosine.amin(1)
    found = uphill(
        shown,
        own,
        encoder=setting.judge,
        objective=Away(),
        views=views,
        losses=scores.cosine.to(own.device),
        refine_steps=steps,
        keep=KEPT,
        chunk=setting.chunk,
        world=setting.world,
    )
    return found.losses[:, 0].cpu()
