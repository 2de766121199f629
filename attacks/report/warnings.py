"""Warnings that stand above the numbers of a run."""

from typing import Any

from attacks.report.words import count_text, sample_counts, sample_words

#: The most failed pictures that a warning names.
MAX_NAMED = 3
#: A run, or a part of one, with fewer clusters has a warning (see docs/intervals.md).
MIN_CLUSTERS = 10
#: The least recall@1 of clean views, and the least mean cosine: below it, which is 1/sqrt(2), less than half of the
#: squared length of a view's embedding is along that of the file.
MIN_RECALL, MIN_COSINE = 0.8, 0.5**0.5
#: The least success of answers at random, of an attack without a target: that of a gallery of ten.
CHANCE = 0.9
PARTS = ("radii", "response", "left_out", "deployment", "explanations")


def warnings(content: dict[str, Any]) -> list[str]:
    """The warnings of a run, from the content of metrics.json."""
    checks = content["sanity"]["checks"] if content["sanity"] else []
    messages: list[str] = []
    add = messages.append
    if content["encoder"]["weights"] == "random":
        add("THE ENCODER HAS RANDOM WEIGHTS: the run works, but its numbers say nothing about any encoder")
    messages += [f"SANITY CHECK FAILED, {c['name']}: {c['words']}" for c in checks if c["verdict"] == "failed"]
    if checks and all(c["verdict"] == "skipped" for c in checks):
        add(f"NO SANITY CHECK WAS MADE: {checks[0]['words']}")
    if content.get("failed"):
        failures = [f"{failure['name']} ({failure['reason']})" for failure in content["failed"]]
        rest = [f"and {len(failures) - MAX_NAMED} more, in metrics.json"] if len(failures) > MAX_NAMED else []
        add(f"{len(failures)} PICTURE(S) FAILED, and are in no table: {', '.join(failures[:MAX_NAMED] + rest)}")
    messages += [f"THE PART {name} FAILED: {reason}" for name, reason in content.get("failed_parts", {}).items()]
    if content.get("fell_back"):
        add(
            f"the engine's precision was not enough for {', '.join(content['fell_back'])}; float32 was used there: "
            "set engine.precision=float32"
        )
    arms = content["arms"]
    # The attacker's goal: low cosines, or views that are taken for something else.
    lowers_cosine = content["threat"]["objective"] in ("away", "layers", "verification", "bits")
    measure, sign = ("cosine", 1) if lowers_cosine else ("success", -1)
    if sign * (arms["eot"][measure]["mean"] - arms["noise"][measure]["mean"]) > -0.02:
        add(
            "the attack does hardly more than random noise of the same budget: before you call the encoder robust, "
            "check that its steps are neither too short nor too few (optimiser.lr or rel_step_size, attack.gradients)"
        )
    # A patch has no budget: its change is its difference from the pixels behind it.
    if arms["eot"]["budget_used"] < 0.5 and not content["threat"].get("patch"):
        add(
            f"the attacked files use {arms['eot']['budget_used']:.0%} of the budget: 8 bits cannot represent it, or "
            "the attack stays inside its set"
        )
    if content.get("guessed"):
        add(
            f"{count_text(content['guessed'], 'picture')} without an identity: the class is the encoder's own "
            "prediction, and recall shows how far it agrees with itself, not its accuracy"
        )
    messages += few_clusters(content)
    chance = content.get("chance", {}).get("success", {}).get("chance")
    if chance is not None and chance < CHANCE and not content["threat"].get("targeted"):
        add(
            f"A GALLERY OF {content['gallery']}: a view has little to be taken for, so that answers at random would "
            f"have a success of only {chance:.2f}; read the cosine, or give more pictures (data.gallery)"
        )
    clean, files = arms["clean"], content.get("files_right")
    recall = clean["recall_at_1"]["mean"] if clean["recall_at_1"] else 1.0
    if recall < MIN_RECALL or clean["cosine"]["mean"] < MIN_COSINE:
        add(
            f"THE TASK FAILS IN THE CLEAN VIEWS ALREADY: mean cosine {clean['cosine']['mean']:.2f} to the file's "
            f"embedding, recall@1 {recall:.2f}{'' if files is None else f', of the files {files:.2f}'}; the attack's "
            "success says little: narrow the views (transforms), and see its success on the views that the clean "
            "picture survives"
        )
    # Where all views are equal, a mean over views is one gradient.
    views = content["bank"]["coordinates"]
    if views and sign * (arms["eot"][measure]["mean"] - arms["no_eot"][measure]["mean"]) > 0:
        add("EOT is weaker than the attack without it: too few steps or views, so this is no sign of robustness")
    if _one_view_is_stronger(content):
        add("EOT with one view a step is stronger than with several: set attack.views=1, or take more gradients")
    return messages


def few_clusters(content: dict[str, Any]) -> list[str]:
    """A warning about few clusters in the run, or in some parts of a run with many."""
    place = sample_words(content) if sample_counts(content)[1] < MIN_CLUSTERS else ""
    if not place:
        counts = ((name, (content.get(name) or {}).get("clusters", MIN_CLUSTERS)) for name in PARTS)
        parts = [f"{count_text(n, 'cluster')} in the part {name}" for name, n in counts if n < MIN_CLUSTERS]
        place = ", ".join(parts)
    return [f"{place}: fewer than {MIN_CLUSTERS} clusters say little about other pictures"] if place else []


def _one_view_is_stronger(content: dict[str, Any]) -> bool:
    """Whether the interval of the difference in the measure of the primary comparison excludes 0."""
    measure = content["primary"]["measure"]
    key = {"other": "one_view", "bank": "same", "measure": measure}
    rows = [row["difference"] for row in content["comparisons"] if key.items() <= row.items()]
    rows = [row for row in rows if row["kind"] == "interval"]
    return any(row["high"] < 0 if measure == "success" else row["low"] > 0 for row in rows)


def refuse_failed(content: dict[str, Any]) -> None:
    """Raise ValueError, in one line, for a run whose tables lack pictures or parts."""
    if content.get("failed"):
        names = ", ".join(failure["name"] for failure in content["failed"][:MAX_NAMED])
        raise ValueError(
            f"{len(content['failed'])} picture(s) failed and are in no table, {names} among them: see `failed` "
            "in metrics.json; the tables hold the others"
        )
    for name, reason in content.get("failed_parts", {}).items():
        raise ValueError(f"the part {name} failed, and the tables are without it: {reason}")
