"""Decide the requirements of a policy: PASS, FAIL or UNDECIDED for each, on the ends of its 95 % interval.

    viewproof gate POLICY.yaml outputs/my_run
    viewproof gate POLICY.yaml --run 'config=evaluate data=folder data.path=my/pictures' --into outputs/gate
    viewproof gate POLICY.yaml outputs/my_run --out evidence # in the formats of other tools, and as a page to sign
    viewproof gate --check evidence                          # whether it still follows from the runs
    viewproof gate --lock POLICY.yaml                        # fixes the bars: a digest with a date, beside the policy

A policy is a file, or the name of a bundled one (docs/gate.md). With --run the pictures are attacked in units until
every row is decided; the same command goes on after a stop.
Exit code 0: every row passes; 3: one fails; 4: one is undecided; 1: an error.
"""

import argparse
import shlex
import sys
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path

from attacks.evidence.custody import PolicyOrigin, custody_of, policy_origin
from attacks.evidence.pieces import INDEX, check_evidence, write_evidence
from attacks.experiment.directory import finished, intact_run, previous_run
from attacks.experiment.identity import refuse_other_command
from attacks.gate.decide import decide
from attacks.gate.lock import lock
from attacks.gate.policy import policy_file, read_policy, refuse_other_encoder, refuse_other_threat
from attacks.gate.verdict import CODES, Verdict, worst_word
from attacks.runtime.command_line import printable
from attacks.runtime.tables import read_rows
from attacks.runtime.untrusted import read_untrusted, refuse_file
from attacks.schema.composition import compose
from attacks.schema.presets import config_word


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", nargs="?", metavar="POLICY", help="a YAML file, or the name of a bundled policy")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="directories of finished runs")
    parser.add_argument("--run", dest="words", metavar="WORDS", help="the arguments of `viewproof run`, in quotes")
    parser.add_argument("--most", type=int, default=2000, help="of --run: pictures at most (default: 2000)")
    parser.add_argument("--into", type=Path, metavar="DIR", help="of --run: the run directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the evidence there (extra `evidence`)")
    parser.add_argument("--check", type=Path, metavar="DIR", help="check such a folder")
    parser.add_argument("--lock", action="store_true", help="fix the bars of POLICY from today on")


def run(options: argparse.Namespace) -> int:
    """Print the verdict on each run. Returns the exit code."""
    refuse_file(options.out, "--out")
    if options.check is not None:
        return _check(options.check)
    if options.policy is None:
        raise ValueError("`gate` needs a POLICY, or --check DIR")
    file = policy_file(options.policy)
    policy = read_policy(file)
    if options.lock:
        print(lock(policy, file))
        return 0
    if bool(options.runs) == (options.words is not None):
        raise ValueError("`gate` needs directories of finished runs, or --run, one of the two")
    runs = options.runs or [options.into]
    if options.words is not None:
        if options.into is None:
            raise ValueError("`--run` needs --into DIR, the run directory, where the same command goes on")
        words = [config_word(word) for word in shlex.split(options.words)]
        size = [] if any(word.startswith("evaluate.batch=") for word in words) else ["evaluate.batch=8"]
        attack_into([*words, *size, f"require={options.policy}", f"evaluate.most={options.most}"], options.into)
    verdicts = [run_verdict(policy_origin(file), folder) for folder in runs]
    print(*("\n".join(map(printable, str(verdict).splitlines())) for verdict in verdicts), sep="\n\n")
    if options.out is not None:
        path, folder = file.resolve(), Path.cwd()  # a code host knows the policy's path from the working directory
        name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file.name
        write_evidence(options.out, file, name, runs, dict(zip(runs, verdicts, strict=True)).__getitem__)
        print(f"evidence: {options.out / 'evidence.html'}")
    return CODES[worst_word(verdict.verdict for verdict in verdicts)]


def _check(folder: Path) -> int:
    lines = check_evidence(folder, lambda file, run: run_verdict(policy_origin(file), run))
    verdict = read_untrusted(folder / INDEX)["verdict"]
    texts = lines or [f"the evidence in {folder} follows from its policy and runs: {verdict}"]
    print(*map(printable, texts), sep="\n")
    return 1 if lines else 0


def run_verdict(origin: PolicyOrigin, folder: Path) -> Verdict:
    """The verdict on a finished run, whose files must have their digests. Raises ValueError or OSError."""
    policy = origin.policy
    previous, content = intact_run(folder)
    refuse_other_encoder(policy, content["encoder"])
    refuse_other_threat(policy, asdict(previous.run))
    sequential = previous.run.evaluate.most is not None
    if sequential and content["gate"]["policy"]["digest"] != policy.digest:
        raise ValueError(f"`{folder}` stopped when another policy was decided, so only that can be decided on it")
    verdict = decide(policy, str(folder), content, read_rows(folder / "per_image.csv"), sequential)
    return replace(verdict, notes=custody_of(origin, previous, content).problems)


def split_words(words: list[str]) -> tuple[str, list[str]]:
    """The preset among the words of a run, and the others."""
    presets = [word.removeprefix("config=") for word in words if word.startswith("config=")]
    return next(iter(presets), "quickstart"), [word for word in words if not word.startswith("config=")]


def attack_into(words: list[str], into: Path) -> None:
    """Begin the run with these words, or go on with it. Raises ValueError where it is finished and was begun with
    other words: its verdict would be that of another."""
    if finished(into):
        refuse_other_command(previous_run(into).manifest, compose(*split_words(words)), into)
        return
    sys.argv[:] = ["viewproof run", *words, f"hydra.run.dir={into}"]
    try:
        import_module("attacks.run").cli()
    except SystemExit as end:  # the verdict is read from the directory
        if end.code not in (None, *CODES.values()):
            raise
