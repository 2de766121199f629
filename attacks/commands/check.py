"""May this encoder be deployed? One command, and one page to decide on and to sign.

    viewproof check pocket my/pictures --for search-by-picture
    viewproof check timm:resnet50.a1_in1k queries --index gallery --for duplicates --minutes 60 --into outputs/check
    viewproof check model.onnx pictures.csv --for verification --run 'attack.gradients=256'

ENCODER is the name of one, with its model behind a colon, a file (.onnx, .pt, .safetensors) or a folder; PICTURES
and --index are what data.path and data.gallery take. The gallery and the untouched photographs are looked at first, a
step is timed, and the minutes are printed; then photographs are attacked until the bundled policy is decided, or as
many as fit into --minutes. The page is check.html in the run directory.
Exit code 0: every requirement passes; 3: one fails; 4: one is undecided; 1: an error.
"""

import argparse
import shlex
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from attacks.commands.gate import attack_into, run_verdict, split_words
from attacks.data.listing import list_entries
from attacks.evidence.custody import policy_origin
from attacks.evidence.facts import Facts, run_facts
from attacks.evidence.formats import evidence_page
from attacks.experiment.clean_views import PICTURES
from attacks.experiment.directory import previous_run
from attacks.experiment.rehearsal import rehearse
from attacks.experiment.results import headline
from attacks.gate.policy import policy_file, read_policy
from attacks.runtime.files import write_text
from attacks.runtime.untrusted import refuse_file
from attacks.schema.composition import compose, words
from attacks.schema.encoder_word import encoder_keys
from attacks.schema.presets import config_word

#: The most pictures that are read: all of them are held in memory.
LIMIT = 2000
#: Beyond any number of pictures.
CEILING = 10**9
#: The fewest photographs of one patch for all: half of them are held out.
HALVED = 12


class Use(NamedTuple):
    """What an encoder is for: the bundled policy, whether pictures need labels, more words of the run, and a key that
    the user must give."""

    policy: str
    needs_labels: bool = False
    words: str = "config=quickstart"
    key: str = ""


USES = {
    "search-by-picture": Use("search-by-picture"),
    "duplicates": Use("duplicate-finder"),
    "verification": Use("face-verification", True),
    "classification": Use("classification", True),
    "classifier": Use("classifier"),
    "moderation": Use("moderation", key="task.threshold"),
    "print": Use("print-and-photo", False, "config=patch transforms=print printer=generic"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "encoder", metavar="ENCODER", help="such as pocket, torchvision:resnet50, model.onnx, a folder"
    )
    parser.add_argument("pictures", metavar="PICTURES", help="a folder of photographs, or a .csv with labels")
    parser.add_argument("--index", metavar="FOLDER", help="the gallery (default: PICTURES)")
    parser.add_argument("--for", dest="use", required=True, choices=USES, help="what the encoder is for")
    parser.add_argument("--minutes", type=float, default=30, help="that the attack may take, about (default: 30)")
    parser.add_argument("--into", type=Path, metavar="DIR", help="the run directory, where the same command goes on")
    parser.add_argument("--run", dest="words", default="", metavar="WORDS", help="more words of `viewproof run`")


def run(options: argparse.Namespace) -> int:
    """Audit, attack until decided, print the verdict and the path of the page. Returns the exit code."""
    if not 0 < options.minutes <= 10**5:
        raise ValueError(f"`--minutes` must be above 0 and at most 100000; got {options.minutes:g}")
    use, into = USES[options.use], options.into or Path(f"outputs/check-{datetime.now():%Y-%m-%d-%H-%M-%S}")
    refuse_file(into, "--into")
    attack_into(_limited(options, run_words(options), into), into)
    origin = policy_origin(policy_file(use.policy))
    verdict = run_verdict(origin, into)
    facts = run_facts(verdict, into, origin)
    page = into / "check.html"
    write_text(page, evidence_page(Facts(origin.policy, f"{use.policy}.yaml", None, (facts,))))
    content = dict(facts.content) | {"gate": verdict.as_dict() | {"notes": facts.custody.problems}}
    print(f"{headline(content)}\npage: {page}")
    return verdict.exit_code


def _limited(options: argparse.Namespace, command: list[str], into: Path) -> list[str]:
    """The words of a run with how many photographs are tried: at most, or of one patch for all of them exactly."""
    is_shared = options.use == "print"
    if (into / "manifest.json").exists():  # the same command goes on, with as many photographs as it began with
        run = previous_run(into).run
        count = run.evaluate.most or getattr(run.data, "count", None)
        if count is None:
            raise ValueError(f"`--into {into}` holds a run that is no check; give another directory")
    else:
        order = [] if is_shared else ["evaluate.batch=8", f"evaluate.most={CEILING}"]  # the photographs of the run
        count = _rehearsal([*command, *order], options.minutes, HALVED if is_shared else PICTURES)
    if is_shared:
        return [*(word for word in command if not word.startswith("data.count=")), f"data.count={count}"]
    return [*command, "evaluate.batch=8", f"evaluate.most={count}"]


def _rehearsal(command: list[str], minutes: float, least: int) -> int:
    """How many photographs are tried, after the audit, which is printed."""
    preset, overrides = split_words(command)
    audit = rehearse(compose(preset, overrides), preset, overrides)
    count = audit.fitting(minutes, least)
    print(f"photographs: {audit.pictures}; files that cannot be read: {audit.unreadable}\ngallery: {audit.gallery}")
    print(f"before any attack, {audit.clean}")
    print(f"minutes: about {audit.minutes(count):.1f} for {count} of {audit.pictures} photographs, less if decided")
    if count <= least and audit.minutes(count) > minutes:
        print(f"note: that is more than --minutes {minutes:g}: {count} photographs are the fewest that are tried")
    return count


def run_words(options: argparse.Namespace) -> list[str]:
    """The words of `viewproof run`, but for how many photographs are tried. Raises ValueError or OSError."""
    use = USES[options.use]
    entries = list_entries(options.pictures)[0]
    for name, value in (("PICTURES", options.pictures), ("--index", options.index)):
        if use.needs_labels and value is not None and not any(entry.label for entry in list_entries(value)[0]):
            fix = "give a folder with a subfolder for each label, or a .csv with the columns path and identity"
            raise ValueError(f"`{name}` must have labels with --for {options.use}; {value} has none: {fix}")
    keys = encoder_keys(options.encoder) | {"data": "folder", "data.path": options.pictures}
    keys |= {} if options.index is None else {"data.gallery": options.index}
    keys |= {"data.unreadable": "skip"} | ({"data.count": LIMIT} if len(entries) > LIMIT else {})
    threat = dict(read_policy(use.policy).threat)
    preset = [word for word in use.words.split() if word.partition("=")[0] not in threat]
    words_typed = [config_word(word) for word in shlex.split(options.words)]
    typed_keys = {word.partition("=")[0] for word in words_typed}
    for key in ("require", "evaluate.most", "evaluate.batch", *(("data.count",) if options.use == "print" else ())):
        if key in typed_keys:
            raise ValueError(f"`--run` must not give `{key}`, which `check` sets; use `viewproof gate --run`")
    if use.key and use.key not in typed_keys:
        raise ValueError(f"`--run` must give `{use.key}` with --for {options.use}: write --run '{use.key}=VALUE'")
    defaults = [*preset, *words(keys), *(f"{key}={value}" for key, value in threat.items() if key != "perturbation")]
    defaults = [word for word in defaults if word.partition("=")[0] not in typed_keys]
    return [*defaults, *words_typed, f"require={use.policy}"]
