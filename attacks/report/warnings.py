"""What a reader must know before believing the numbers of a run."""

from __future__ import annotations

from typing import Any

#: Failed pictures that a warning names.
NAMED = 3
#: Intervals over fewer pictures than that hold the truth too seldom (see docs/evaluation.md).
FEW = 5


def warnings(content: dict[str, Any]) -> list[str]:
    """What a reader must know before believing the numbers."""
    checks = content["sanity"]["checks"] if content["sanity"] else []
    messages = []
    if content["encoder"]["weights"] == "random":
        messages.append(
            "THE ENCODER HAS RANDOM WEIGHTS: the numbers show that all runs, and say nothing of any encoder"
        )
    messages += [f"SANITY CHECK FAILED, {c['name']}: {c['words']}" for c in checks if c["verdict"] == "failed"]
    if checks and all(c["verdict"] == "skipped" for c in checks):
        messages.append(f"NO SANITY CHECK WAS MADE: {checks[0]['words']}")
    if content.get("failed"):
        failures = [f"{each['name']} ({each['reason']})" for each in content["failed"]]
        more = [f"and {len(failures) - NAMED} more, in metrics.json"] if len(failures) > NAMED else []
        messages.append(
            f"{len(failures)} PICTURE(S) FAILED, and are in no table: {', '.join(failures[:NAMED] + more)}"
        )
    messages += [f"THE PART {name} FAILED: {why}" for name, why in content.get("failed_parts", {}).items()]
    if content.get("fell_back"):
        messages.append(
            f"the engine's precision was not enough for {', '.join(content['fell_back'])}, and float32 took its "
            "place there: say engine.precision=float32"
        )
    arms = content["arms"]
    # What the attacker is after: low cosines, or views that are taken for something else.
    away = content["threat"]["objective"] in ("away", "layers", "verification", "bits")
    measure, sign = ("cosine", 1) if away else ("success", -1)
    if sign * (arms["eot"][measure]["mean"] - arms["noise"][measure]["mean"]) > -0.02:
        messages.append(
            "the attack does hardly more than random noise of the same budget: before you call the encoder robust, "
            "see whether its steps are too short or too few (optimiser.lr or rel_step_size, attack.steps)"
        )
    # What a patch changes says how much it differs from what it hides, and no budget limits it.
    if arms["eot"]["budget_used"] < 0.5 and not content["threat"].get("patch"):
        messages.append(
            f"the attacked files use {arms['eot']['budget_used']:.0%} of the budget: 8 bits cannot hold it, or the "
            "attack stays inside its set"
        )
    if content.get("guessed"):
        messages.append(
            f"{content['guessed']} picture(s) have no identity, and the class that the encoder gives them untouched: "
            "recall is how far it agrees with itself, not its accuracy"
        )
    if len(content["queries"]) < FEW:
        messages.append(f"{len(content['queries'])} picture(s): the intervals say little about other pictures")
    else:
        messages += thin(content)
    if arms["clean"]["recall_at_1"]["mean"] < 0.8:
        messages.append("the encoder fails on clean views already, so a low recall is no merit of the attack")
    # With one view for all there is nothing to average: n gradients of it are one.
    views = content["bank"]["coordinates"]
    if views and sign * (arms["eot"][measure]["mean"] - arms["no_eot"][measure]["mean"]) > 0:
        messages.append(
            "EOT is weaker than the attack without it: too few steps or views, do not read this as robustness"
        )
    return messages


def thin(content: dict[str, Any]) -> list[str]:
    """Warnings of the parts that looked at few pictures, though many were attacked."""
    messages = []
    for name in ("response", "left_out", "deployment", "explanations"):
        pictures = (content.get(name) or {}).get("pictures", FEW)  # some parts name them
        count = pictures if isinstance(pictures, int) else len(pictures)
        if count < FEW:
            messages.append(
                f"{count} picture(s) in the part {name}: the intervals there say little about other pictures"
            )
    return messages


def refuse_failed(content: dict[str, Any]) -> None:
    """A run whose tables lack pictures or parts has not done what it was asked for. Raises ValueError in one line."""
    if content.get("failed"):
        names = ", ".join(each["name"] for each in content["failed"][:NAMED])
        raise ValueError(
            f"{len(content['failed'])} picture(s) failed twice and are in no table, {names} among them: see `failed` "
            "in metrics.json; the tables are of the others"
        )
    for name, why in content.get("failed_parts", {}).items():
        raise ValueError(f"the part {name} failed, and the tables are without it: {why}")
