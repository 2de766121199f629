"""The first words of every page about a run: may the encoder be deployed, why, how sure is that, and what is next."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attacks.evaluation.per_image import MEANS
from attacks.gate.decide import AT_RANDOM, ATTACK_ARMS, NEVER_FAILS, check_faults
from attacks.inference.bounded import missable_share
from attacks.report.facts import encoder_name, gallery
from attacks.report.warnings import GALLERY, TASK, WEIGHTS, flaw
from attacks.report.words import (
    capital,
    count_text,
    fate,
    fit_arms,
    number_words,
    p_value,
    radius,
    sample_counts,
    weighting,
)

#: Of a shared perturbation with too few clusters to hold some out.
NOT_HELD_OUT = "Judged on the pictures it was made from: says nothing of others"
#: When a view was taken, by the arm.
WHEN = {"clean": "before an attack", "noise": "after random noise", "eot": "after the attack"}
#: What to do about a flaw of a run.
MENDING = {
    TASK: "Have untouched pictures recognised first: narrower views, a clean gallery, or another encoder.",
    GALLERY: "Give a larger gallery of different pictures (--index, data.gallery), and test again.",
    WEIGHTS: "Name the weights that will be deployed (encoder.weights), and test again.",
}


@dataclass(frozen=True)
class Answer:
    """What a page about a run says first. `verdict`: at most 15 words, empty without a policy; `reason`: a sentence
    of at most 25 words and 4 numbers; `comparison`: in at most 25 words whether seeing many views helps the
    attacker; `limits`: what the number of pictures leaves open; `step`: what to do next."""

    verdict: str
    reason: str
    comparison: str
    limits: str
    step: str

    @property
    def headline(self) -> str:
        """The verdict or, without a policy, the reason without its intervals."""
        return self.verdict or re.sub(r" \([^()]*%[^()]*\)", "", self.reason)


def answer(content: Mapping[str, Any]) -> Answer:
    """The first words about a run, from the content of metrics.json."""
    gate, count = content.get("gate"), sample_counts(content)[1]
    ratio, weights = weighting(content)  # the unseen pictures may be those with the most traffic
    share = min(100.0, 100 * ratio * missable_share(count))
    share_text = f"{share:.0f}" if share >= 1 else f"{math.ceil(10 * share) / 10:.1f}"
    limits = f"With {count_text(count, 'independent picture')}, up to {share_text} % of "
    limits += "the traffic" if weights else "all pictures"
    limits += " may behave unlike any of them. A stronger attack may do more."
    if fit := fit_arms(content).get("same"):
        limits += f" On the pictures it was made from: {percent(fit['eot']['success'])}."
    elif content.get("split"):
        limits += f" {NOT_HELD_OUT}."
    limits += weights and f" {weights}"
    verdict, step = _decision(content, gate)
    pair = _defence_sentence(content) if "bare" in content["arms"] and flaw(content) != TASK else ""
    reason = _reason(content, gate) if gate else pair or _effect(content)
    return Answer(verdict, reason, (gate and pair) or _comparison(content), limits, step)


def first_numbers(content: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The three numbers of the first screen (share, sentence, interval): of the attack, of the one on the encoder
    without its defence or the strongest other one, and of untouched pictures."""
    arms, key = content["arms"], headline_measure(content)
    moments = WHEN | {"clean": "before the attack", "no_eot": "after an attack made for the file alone"}
    against = content["primary"]["against"]
    if "bare" in arms:
        against, moments["eot"] = "bare", "after the attack through the defence"
        moments["bare"] = "after one on the encoder without its defence"
    words = f"of {'unseen views' if content['bank']['coordinates'] else 'pictures'} are {fate(content, key)}"
    words += " and not flagged" * (key == "fooled_accepted")
    texts = ((arm, percent(arms[arm][key]).partition(" (")) for arm in ("eot", against, "clean"))
    return [(share, f"{words} {moments[arm]}", ends.rstrip(")")) for arm, (share, _, ends) in texts]


def headline_measure(content: Mapping[str, Any]) -> str:
    """The measure of the first sentence: success or, of a defence, what is right behind it or passes its detector."""
    arm, threat = content["arms"]["eot"], content["threat"]
    if "bare" not in content["arms"] or flaw(content) == TASK:
        return "success"
    if arm.get("fooled_accepted"):
        return "fooled_accepted"
    is_right = not threat["targeted"] and threat.get("task") != "verification" and arm.get("recall_at_1")
    return "recall_at_1" if is_right else "success"


def subject_line(content: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    """The encoder's name, when it was tested, and on which machine."""
    start, machine = (str(manifest.get(key, "unknown")) for key in ("started", "device"))
    machine = manifest.get("cpu", machine) if machine == "cpu" else machine
    return f"{encoder_name(content)}, {start.replace('T', ', ').replace('+00:00', ' UTC')}, {machine}"


def subject_rows(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was tested, how sure the answer is, and what to do next, in rows (question, text)."""
    words, encoder, threat = answer(content), content["encoder"], content["threat"]
    attack = "a patch" if threat["patch"] else f"changes within {threat['norm']} {radius(threat)}"
    if threat["norm"] == "linf":
        eps = threat["eps"]
        attack = f"changes of at most {eps * 255:.3g} of 255 ({100 * eps:.2g} %) of each colour value"
        attack += ", by the picture's row" * ("least_eps" in threat)
    digest, (pictures, count) = str(encoder.get("fingerprint"))[:12], sample_counts(content)
    name = encoder_name(content) + " (a demonstration)" * (encoder["name"] == "pocket")
    sample = count_text(count, "independent picture") + f", {pictures} in all" * (pictures > count)
    return [
        ("On what", f"{name}, fingerprint {digest}; {sample}"),
        ("Gallery", gallery(content)),
        ("Against", f"{attack}, found by the optimiser {threat['optimiser']}, in {threat['transforms']} views"),
        ("How sure", f"Intervals hold with 95 % confidence. {words.limits}"),
        ("What next", words.step),
    ]


def percent(value: Mapping[str, Any]) -> str:
    """A share with the ends of its interval, such as "80 % (51-95 %)"; with as many digits as tables have."""
    digits = 1 if 0 < value["high"] - value["low"] < 0.02 else 0
    mean, low, high = (f"{100 * round(value[key], 2 + digits):.{digits}f}" for key in ("mean", "low", "high"))
    ends = f"{low} to {high} % among them" if value.get("kind") == "range" else f"{low}-{high} %"
    return f"{mean} % ({ends})"


def _decision(content: Mapping[str, Any], gate: Mapping[str, Any] | None) -> tuple[str, str]:
    """The verdict, and what to do next."""
    cause = flaw(content)
    mending = MENDING.get(cause, "")
    if gate is None:
        policy = "say what you need (viewproof check, or a policy for viewproof gate)"
        return "", mending or f"Nothing is decided yet: {policy}."
    if gate["verdict"] == "FAIL":
        is_attack = _deciding_row(content, gate)["requirement"]["arm"] in ATTACK_ARMS
        fault = "the attack succeeds too often" if is_attack else "it fails without an attack"
        # A larger gallery can only raise the attacker's success.
        texts = {GALLERY: f"{fault}, although the gallery is small"}
        texts |= {TASK: f"{fault}, and {TASK}"} if is_attack else {}
        step = "Try another encoder, or a defence (defence=jpeg), on the same pictures; "
        step += "viewproof compare ranks both."
        return f"Do not deploy: {texts.get(cause, cause or fault)}.", mending or step
    if gate.get("notes") and not mending:  # of its record: the bars may be younger than the run
        mending = "Fix the bars before a test (viewproof gate --lock), and test again; the faults are named below."
    if gate["verdict"] == "PASS":
        if mending:
            return f"Meets its policy, yet says little: {cause or 'its record has faults, see below'}.", mending
        step = "Keep this run as the record; test again when encoder, gallery, cameras or attacks change."
        return "May be deployed against this attack: every requirement is met.", step
    doubt, step = _doubt(content, gate)
    return f"Undecided: {cause or doubt}.", mending or step


def _doubt(content: Mapping[str, Any], gate: Mapping[str, Any]) -> tuple[str, str]:
    """Why a run without a flaw decides nothing, in half a sentence, and what to do next."""
    rows = [row for row in gate["rows"] if row["verdict"] == "UNDECIDED"]
    reasons, is_lax = {row["reason"] for row in rows}, {AT_RANDOM, NEVER_FAILS}
    if gate["reasons"] and not check_faults(content):
        if content.get("split") and not content["split"]["judge"]:
            step = "Give more pictures, so that some are held out, and test again."
            return "it was judged on its own pictures", step
        if content["failed"]:
            return "some pictures failed", "Mend what made pictures fail (metrics.json, `failed`), and test again."
    elif not gate["reasons"] and reasons & is_lax:
        return "the bar is so low that guessing would pass", "Set a bar that guessing does not meet, and test again."
    if gate["reasons"] or any(reasons):  # or another attack breaks a picture
        step = "Attack longer (attack.gradients) with its checks (sanity=short), and test again."
        return "the attack was too weak, or not checked", step
    counts = [row["more"] for row in rows]
    number = 0 if None in counts else max(counts)
    about = f"about {count_text(number, 'more picture')}" if number else "more pictures"
    step = "Give more pictures of different things and run the same command into a new folder."
    return f"{about} {'is' if number == 1 else 'are'} needed", step


def _reason(content: Mapping[str, Any], gate: Mapping[str, Any]) -> str:
    """The sentence behind a verdict: of the row that decides it."""
    if gate["verdict"] == "UNDECIDED" and gate["reasons"] and not flaw(content):
        return f"{capital(gate['reasons'][0])}."
    row = _deciding_row(content, gate)
    requirement = row["requirement"]
    least, bar, measure = requirement["at_least"], requirement["at_most"], requirement["measure"]
    side, bar = ("at most", bar) if least is None else ("at least", least)
    is_mean, of, number = measure in MEANS, requirement["of"], {**row, "mean": row["value"]}
    mean, ends = number_words(number)
    ends = ends.strip("[]()").replace(", ", " to ")
    share, mean = percent(number), f"{mean} ({ends})"
    if gate["verdict"] == "UNDECIDED":  # between the ends: which of them is the question
        share, mean = share.partition("(")[2].removesuffix(")"), ends
    predicate = fate(content, measure)
    moment = WHEN.get(requirement["arm"], "after another attack") + (
        " (wider views)" if requirement["bank"] == "wide" else ""
    )
    bar_text = f"{bar:g}" if is_mean else f"{100 * bar:g} %"
    need = f"{side} {bar_text} {'is required' if side == 'at least' else 'is allowed'}"
    if of == "p10":
        state = f"the {predicate} is {side} {bar_text}" if is_mean else f"{side} {bar_text} of views are {predicate}"
        return f"{capital(moment)}, in {share} of pictures {state}; nine in ten must."
    if of == "worst":
        value, noun = (f"a {row['value']:.2f}", "") if is_mean else (f"{100 * row['value']:.0f} %", " of views")
        return f"{capital(moment)}, the worst picture has {value}{noun} {predicate}; {need}."
    if is_mean:
        return f"{capital(moment)}, the {predicate} is {mean}; {need}."
    return f"{capital(moment)}, {share} of camera views are {predicate}; {need}."


def _deciding_row(content: Mapping[str, Any], gate: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a verdict that its sentence is about: of untouched pictures where these are not recognised, else
    of the attack made for many views, before other attacks, noise and untouched pictures."""
    is_lost, order = flaw(content) == TASK, ("eot", *ATTACK_ARMS, "noise", "clean")
    rows = [row for row in gate["rows"] if row["verdict"] == gate["verdict"]]
    rows = [row for row in rows if AT_RANDOM in row["reason"]] or rows
    if is_lost and gate["verdict"] != "FAIL":
        rows = [row for row in gate["rows"] if row["requirement"]["arm"] == "clean"] or rows
    return min(rows, key=lambda row: order.index(row["requirement"]["arm"]) * (-1 if is_lost else 1))


def _effect(content: Mapping[str, Any]) -> str:
    """Without a policy: what the attack does."""
    arms, views = content["arms"], "unseen camera views" if content["bank"]["coordinates"] else "pictures"
    share, before = percent(arms["eot"]["success"]), percent(arms["clean"]["success"]).partition(" (")[0]
    attack = "With the patch" if content["threat"]["patch"] else "After the attack"
    if flaw(content) == TASK:
        return f"Untouched pictures are not recognised in {before} of {views}; after the attack, in {share}."
    return f"{attack}, {share} of {views} are {fate(content)}; before it, {before}."


def _defence_sentence(content: Mapping[str, Any]) -> str:
    """What an attack made on the encoder within a defence leaves, and one made through the defence."""
    arms, key = content["arms"], headline_measure(content)
    verb = "leaves" if key == "recall_at_1" else "has"
    bare, defence = (percent(arms[arm][key]) for arm in ("bare", "eot"))
    views = f"{bare.partition(' (')[0]} of {'views' if content['bank']['coordinates'] else 'files'}"
    first = f"Made on the bare encoder, the attack {verb} {views} {fate(content, key)}"
    if key == "fooled_accepted":
        first = f"Made on the bare encoder, the attack has success, and is not flagged, in {views}"
    return f"{first}; through the defence, {defence}."


def _comparison(content: Mapping[str, Any]) -> str:
    """Whether seeing many views helps the attacker: the primary comparison."""
    first = content["primary"]
    attack = "an attack made for many views" if content["bank"]["coordinates"] else "the attack"
    other = "random noise" if first["against"] == "noise" else "one made for the file alone"
    if first["p"] is None:
        number = first["needed"] - first["clusters"]
        if number <= 0:  # they are those it was made from
            return f"Whether {attack} beats {other} needs pictures that are held out."
        number *= 2 if content.get("split") else 1  # half of them are held out
        text = count_text(number, "more picture")
        return f"Whether {attack} beats {other} is undecided: {text} needed."
    change, unit = first["difference"], "points" if first["measure"] == "success" else "of likeness"
    scale, digits = (100, 0) if first["measure"] == "success" else (1, 2)
    mean, low, high = (f"{scale * change[key]:+z.{digits}f}" for key in ("mean", "low", "high"))
    text = f"{mean} {unit} ({low} to {high}), p {p_value(first['p'])}"
    gain = change["mean"] if first["measure"] == "success" else -change["mean"]
    word = "is not shown to differ from" if first["p"] >= 0.05 else "beats" if gain > 0 else "is weaker than"
    return f"{capital(attack)} {word} {other}: {text}."
