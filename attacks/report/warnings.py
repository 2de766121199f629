"""Warnings that stand above the numbers of a run: one for each cause, the heaviest first, each with what to do."""

from collections.abc import Mapping
from typing import Any

from attacks.gate.decide import check_faults, stronger_arms
from attacks.report.words import count_text

#: The causes for which a result says little, as half a sentence.
TASK, GALLERY = "untouched pictures are not recognised", "the gallery is too small to tell"
WEIGHTS = "the encoder's weights are random"
#: The most failed pictures that a warning names.
MAX_NAMED = 3
#: The least recall@1 of clean views, and the least mean cosine: below it, which is 1/sqrt(2), less than half of the
#: squared length of a view's embedding is along that of the file.
MIN_RECALL, MIN_COSINE = 0.8, 0.5**0.5
#: The least success of answers at random, of an attack without a target: that of a gallery of ten.
CHANCE = 0.9
#: From this success on a stronger attack, or a larger gallery, would tell a reader nothing new.
HIGH = 0.9
#: By so much an attack must exceed random noise, and another attack must exceed it to be the stronger one.
HARDLY, AHEAD = 0.02, 0.05
#: Other attacks, and what to do where one is the stronger.
MORE = "take more gradients (attack.gradients) or longer steps (optimiser.lr, rel_step_size)"
OTHERS = {
    "no_eot": ("an attack that ignores the views", MORE),
    "one_view": ("the attack with one view a step", "set attack.views=1, or take more gradients (attack.gradients)"),
    "bare": ("an attack on the bare encoder", MORE),
    "noise": ("random noise", MORE),
}


def causes(content: Mapping[str, Any]) -> dict[str, str]:
    """The warnings of a run, from the content of metrics.json, by cause: `WEIGHTS`, `TASK` and `GALLERY` make its
    result say little, whatever it is."""
    if content["encoder"]["weights"] == "random":  # of which other findings are effects
        text = "The encoder has random weights, so that no number is about an encoder in use: set encoder.weights"
        texts = {WEIGHTS: text, "failures": _failures(content)}
    else:
        texts = {
            "failures": _failures(content),
            TASK: _lost_views(content),
            "cosine": _low_cosine(content),
            "attack": _weak_attack(content),
            "bare": _above_clean(content),
            GALLERY: _small_gallery(content),
            "guesses": _guesses(content),
        }
    return {cause: text for cause, text in texts.items() if text}


def warnings(content: Mapping[str, Any]) -> list[str]:
    return [*causes(content).values()]


def flaw(content: Mapping[str, Any]) -> str:
    """The cause for which the result says little; empty if none was found."""
    return next((cause for cause in causes(content) if cause in (WEIGHTS, TASK, GALLERY)), "")


def _failures(content: Mapping[str, Any]) -> str:
    pictures = [f"{failure['name']} ({failure['reason']})" for failure in content.get("failed", ())]
    parts = [f"the part {name} ({reason})" for name, reason in content.get("failed_parts", {}).items()]
    if not pictures + parts:
        return ""
    rest = [f"{len(pictures) - MAX_NAMED} pictures more"] if len(pictures) > MAX_NAMED else []
    head = f"{count_text(len(pictures), 'picture')} failed" if pictures else "A part failed"
    return f"{head}, and no table has {', '.join(pictures[:MAX_NAMED] + rest + parts)}: mend the cause and run again"


def _lost_views(content: Mapping[str, Any]) -> str:
    """About views that lose the pictures without an attack."""
    clean, files = content["arms"]["clean"], content.get("files_right")
    recall, success = clean["recall_at_1"] and clean["recall_at_1"]["mean"], clean["success"]["mean"]
    is_low = recall is not None and recall < MIN_RECALL
    if not is_low and success <= 1 - MIN_RECALL:
        return ""
    value = f"recall@1 is {recall:.2f}" if is_low else f"success is {success:.2f}"
    of_files = "" if files is None else f" (of the files {files:.2f})"
    text = f"The views lose the clean pictures already, {value}{of_files}, so that success is not the attack's alone"
    return f"{text}: read the lost views, or narrow the views (transforms)"


def _low_cosine(content: Mapping[str, Any]) -> str:
    cosine = content["arms"]["clean"]["cosine"]["mean"]
    if cosine >= MIN_COSINE or _lost_views(content):
        return ""
    remedy = "read its shift, which is the attack's alone, or narrow the views (transforms)"
    return f"The views lower the cosine of the clean pictures to {cosine:.2f}: {remedy}"


def _weak_attack(content: Mapping[str, Any]) -> str:
    """About signs that a stronger attack exists. Where success is high, only a failed check still matters."""
    arms = content["arms"]
    leads = {arm: _leads(content, arm) for arm in OTHERS if arm in arms}
    success, noise = (arms[arm]["success"]["mean"] for arm in ("eot", "noise"))
    is_noise = min(leads["noise"]) > -HARDLY and not _lost_views(content) and not _low_cosine(content)
    if success >= HIGH and not (content["sanity"] or {}).get("failed"):
        text = f"Random noise of this size reaches {noise:.2f}, so that the budget does it and not the attack"
        return f"{text}: lower eps, or shrink the patch" if is_noise else ""
    remedy = "turn the checks on (sanity=short)" if content["sanity"] is None else "do what Sanity checks says"
    signs = [(fault, remedy) for fault in check_faults(content)]
    leaders = {arm for arm, (lead, goal) in leads.items() if lead > AHEAD or (lead >= 0 and goal > AHEAD)}
    stronger = {*stronger_arms(content), *(leaders - {"noise"}), *(["noise"] if is_noise else [])}
    for arm in (arm for arm in OTHERS if arm in stronger):
        reach = (arms[arm][key]["mean"] for key in ("success", "cosine"))
        signs.append(("{} reaches {:.2f}, cosine {:.2f}".format(OTHERS[arm][0], *reach), OTHERS[arm][1]))
    if "bare" in arms and "bare" not in stronger and min(leads["bare"]) > -HARDLY:
        signs.append(("it gains nothing over an attack on the bare encoder", MORE))
    # A patch has no budget: its change is its difference from the pixels behind it.
    if (used := arms["eot"]["budget_used"]) < 0.5 and not content["threat"].get("patch"):
        longer = "take longer steps, or a larger eps where 8 bits are too coarse"
        signs.append((f"its files use {used:.0%} of the budget", longer))
    texts = "; ".join(text for text, _ in signs)
    head = f"A stronger attack may exist ({texts}), so that the success of {success:.2f} may be too low"
    return f"{head}: {signs[0][1]}" if signs else ""


def _leads(content: Mapping[str, Any], arm: str) -> tuple[float, float]:
    """By how much an arm exceeds the attack in success, and in the attacker's goal, which may be a low cosine."""
    first, other = content["arms"]["eot"], content["arms"][arm]
    lowers_cosine = content["threat"]["objective"] in ("away", "layers", "verification", "bits")
    success, cosine = (other[key]["mean"] - first[key]["mean"] for key in ("success", "cosine"))
    return success, -cosine if lowers_cosine else success


def _above_clean(content: Mapping[str, Any]) -> str:
    """About files made on the encoder within a defence that mislead the defended one less than untouched ones do."""
    success = {arm: content["arms"][arm]["success"]["mean"] for arm in ("clean", "bare") if arm in content["arms"]}
    if content["threat"]["targeted"] or success.get("bare", 1.0) >= success["clean"] - HARDLY:
        return ""
    text = f"An attack on the bare encoder has a success of {success['bare']:.2f}, and untouched pictures have"
    effect = "such files do not test the defence: read the attack through it"
    return f"{text} {success['clean']:.2f}, so that {effect}"


def _small_gallery(content: Mapping[str, Any]) -> str:
    success = content["arms"]["eot"]["success"]["mean"]
    chance = content.get("chance", {}).get("success", {}).get("chance", 1.0)
    if chance >= CHANCE or content["threat"].get("targeted") or success >= HIGH or content.get("classes"):
        return ""
    text = f"A gallery of {content['gallery']} has little that a view can be taken for"
    effect = f"a larger one may raise the success of {success:.2f}: give more of it (data.gallery)"
    return f"{text} (answers at random reach {chance:.2f}), so that {effect}"


def _guesses(content: Mapping[str, Any]) -> str:
    if not content.get("guessed"):
        return ""
    effect = "the class is the encoder's guess and recall its agreement with itself: name the identities (data.path)"
    return f"{count_text(content['guessed'], 'picture')} without an identity, so that {effect}"


def refuse_failed(content: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for a run whose tables lack pictures or parts."""
    if text := _failures(content):
        raise ValueError(text)
