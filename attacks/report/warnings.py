"""Warnings that stand above the numbers of a run."""

from typing import Any

from attacks.report.words import counted

#: The most failed pictures that a warning names.
NAMED = 3
#: Intervals over fewer pictures cover the true value too seldom (see docs/evaluation.md).
FEW = 5


def warnings(content: dict[str, Any]) -> list[str]:
    """The warnings of a run, from the content of metrics.json."""
    checks = content["sanity"]["checks"] if content["sanity"] else []
    messages = []
    if content["encoder"]["weights"] == "random":
        messages.append(
            "THE ENCODER HAS RANDOM WEIGHTS: the run works, but its numbers say nothing about any encoder"
        )
    messages += [f"SANITY CHECK FAILED, {c['name']}: {c['words']}" for c in checks if c["verdict"] == "failed"]
    if checks and all(c["verdict"] == "skipped" for c in checks):
        messages.append(f"NO SANITY CHECK WAS MADE: {checks[0]['words']}")
    if content.get("failed"):
        failures = [f"{failure['name']} ({failure['reason']})" for failure in content["failed"]]
        more = [f"and {len(failures) - NAMED} more, in metrics.json"] if len(failures) > NAMED else []
        messages.append(
            f"{len(failures)} PICTURE(S) FAILED, and are in no table: {', '.join(failures[:NAMED] + more)}"
        )
    messages += [f"THE PART {name} FAILED: {why}" for name, why in content.get("failed_parts", {}).items()]
    if content.get("fell_back"):
        messages.append(
            f"the engine's precision was not enough for {', '.join(content['fell_back'])}; float32 was used there: "
            "set engine.precision=float32"
        )
    arms = content["arms"]
    # The attacker's goal: low cosines, or views that are taken for something else.
    away = content["threat"]["objective"] in ("away", "layers", "verification", "bits")
    measure, sign = ("cosine", 1) if away else ("success", -1)
    if sign * (arms["eot"][measure]["mean"] - arms["noise"][measure]["mean"]) > -0.02:
        messages.append(
            "the attack does hardly more than random noise of the same budget: before you call the encoder robust, "
            "check that its steps are neither too short nor too few (optimiser.lr or rel_step_size, attack.steps)"
        )
    # A patch has no budget: its change is its difference from the pixels behind it.
    if arms["eot"]["budget_used"] < 0.5 and not content["threat"].get("patch"):
        messages.append(
            f"the attacked files use {arms['eot']['budget_used']:.0%} of the budget: 8 bits cannot represent it, or "
            "the attack stays inside its set"
        )
    if content.get("guessed"):
        messages.append(
            f"{counted(content['guessed'], 'picture')} without an identity: the class is the encoder's own "
            "prediction, and recall shows how far it agrees with itself, not its accuracy"
        )
    if len(content["queries"]) < FEW:
        few = counted(len(content["queries"]), "picture")
        messages.append(f"{few}: the intervals say little about other pictures")
    else:
        messages += few_in_parts(content)
    if arms["clean"]["recall_at_1"]["mean"] < 0.8:
        messages.append("the encoder fails on clean views already, so a low recall is not due to the attack")
    # Where all views are equal, a mean over views is one gradient.
    views = content["bank"]["coordinates"]
    if views and sign * (arms["eot"][measure]["mean"] - arms["no_eot"][measure]["mean"]) > 0:
        messages.append(
            "EOT is weaker than the attack without it: too few steps or views, so this is no sign of robustness"
        )
    return messages


def few_in_parts(content: dict[str, Any]) -> list[str]:
    """Warnings about parts with few pictures in a run with many."""
    messages = []
    for name in ("response", "left_out", "deployment", "explanations"):
        pictures = (content.get(name) or {}).get("pictures", FEW)  # some parts name them
        if (count := pictures if isinstance(pictures, int) else len(pictures)) < FEW:
            few = f"{counted(count, 'picture')} in the part {name}"
            messages.append(f"{few}: the intervals there say little about other pictures")
    return messages


def refuse_failed(content: dict[str, Any]) -> None:
    """Raise ValueError, in one line, for a run whose tables lack pictures or parts."""
    if content.get("failed"):
        names = ", ".join(failure["name"] for failure in content["failed"][:NAMED])
        raise ValueError(
            f"{len(content['failed'])} picture(s) failed twice and are in no table, {names} among them: see `failed` "
            "in metrics.json; the tables hold the others"
        )
    for name, why in content.get("failed_parts", {}).items():
        raise ValueError(f"the part {name} failed, and the tables are without it: {why}")
