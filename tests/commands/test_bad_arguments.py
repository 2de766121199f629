"""Wrong words and inputs of the commands: a one-line error, a non-zero exit code, and no file written."""

import json
import os
import shlex

import pytest

from attacks.commands import main
from tests.helpers.prints import fake_run
from tests.helpers.wrong import in_time, tree
from tests.run.test_bad_directories import manifest


def empty(folder):
    (folder / "run").mkdir()


FILES = ("manifest.json", "metrics.json", "placement.json", "patch.png", "fault.safetensors")


def strange(folder):
    """A directory with all the files that a script reads, all of them invalid."""
    empty(folder)
    for name in (*FILES, "per_image.csv"):
        (folder / "run" / name).write_bytes(b"\0\xff{[\n\x1b[2J")


def pipe(folder):
    empty(folder)
    for name in FILES:
        os.mkfifo(folder / "run" / name)


def partial(folder):
    empty(folder)
    (folder / "run" / "manifest.json").write_text(manifest())


def faulty(folder):
    """A run whose metrics.json has lost its content, and a policy."""
    partial(folder)
    (folder / "run" / "metrics.json").write_text("{}")
    rows = "requirements: [{measure: success, arm: eot, at_most: 0.6}]"
    (folder / "policy.yaml").write_text(f"claim: Some.\ndate: 2026-11-24\nthreat: {{}}\n{rows}\n")


def leading_out(folder):
    """A run with a patch, whose folders for prints and photographs are links to elsewhere."""
    fake_run(folder / "run")
    (folder / "elsewhere").mkdir()
    for name in ("print", "photos"):
        (folder / "run" / name).symlink_to(folder / "elsewhere")


def patch(folder):
    fake_run(folder / "run")
    path = folder / "run" / "placement.json"
    corners = [[0, 0], [1, 0], [1, 1], [0, 1]]
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"pictures": ["a.png"], "quads": [[corners]], "masks": [[None]]})
    )
    (folder / "in").mkdir()


def program_preset(folder):
    (folder / "evil.yaml").write_text("name: evil\nstages: {affine: {_target_: os.system}}\n")


#: Wrong arguments, whatever the folder holds.
AUDIT = """
--transforms nothing|--transforms missing.yaml|--callable nowhere:thing|--callable torch|--callable torch:nothing|
--transforms identity --image missing.png|--transforms identity --draws 0|--transforms identity --draws many|
--transforms identity --side 0|--transforms identity --side 100000000|--transforms identity --callable torch:round|
--nothing|
"""
SHOW = """
'{nothing: {}}'|'{affine: {degree: 3}}'|'{affine: [3}'|'[affine]'|'{affine: {degrees: !!timestamp x}}'|
'{affine: {_target_: os.system}}'|'{affine: {degrees: "${oc.env:HOME}"}}'|'{affine: {degrees: "${nowhere}"}}'|
{} --draws 0|{} --columns 0|{} --side 0|{} --image missing.png|{} --out sheet.gif|{} --sampler grid|{} --nothing|
30|1.5|''|null|true|{}
""".replace("{} ", "'{affine: {degrees: 3}}' ")
PLAN = {
    "0.1": "one of the arguments --pilot --photos --baseline is required",
    "0.1 --pilot . --baseline 0.5": "not allowed with argument",
    "--baseline 0.5": "`plan` needs EFFECT, the difference to detect, or --bar",
    "0 --baseline 0.5": "`EFFECT` must be a number above 0 and below 1; got 0",
    "nan --baseline 0.5": "`EFFECT` must be a number above 0",
    "0.1 --baseline 1": "`--baseline` must be a number above 0 and below 1; got 1",
    "0.6 --baseline 0.5": "`--baseline` and EFFECT must be at most 1 in all; got 1.1",
    "0.1 --baseline 0.5 --correlation 1": "`--correlation` must be a number",
    "0.1 --baseline 0.5 --views 0": "`--views` must be 1 to a million; got 0",
    "0.1 --pilot none": "metrics.json",
    "0.1 --pilot .": "metrics.json",
}
#: Commands that write into a folder, `--out`.
OUT = [["print", "run"], ["gate", "policy.yaml", "run"], ["failure", "run"], ["compare", "run"]]
OUT += [["certify", "run"]]
OUT += [["audit", "--resizers"], ["audit", "--transforms", "camera"], ["score", "run", "in"]]
#: Command, arguments, contents of the folder, a part of the error.
CASES = [
    ("aduit", [], empty, "did you mean audit?"),
    ("config=smoke", [], empty, "type viewproof run config=smoke"),
    ("--nothing", [], empty, "--nothing"),
    *(("plan", arguments.split(), empty, reason) for arguments, reason in PLAN.items()),
    ("print", ["run"], empty, "patch.png"),
    ("print", ["run"], strange, "patch.png"),
    ("print", ["run"], pipe, "has no patch.png"),
    ("print", ["run"], partial, "is not finished: go on with viewproof run resume=run"),
    ("verify", ["run"], empty, "`verify` must be the directory of a run; run has no manifest.json"),
    ("print", ["run"], leading_out, "is a link that leads out"),
    ("print", ["run", "--out", "run/patch.png"], patch, "patch.png"),
    ("score", ["run", "in"], empty, "placement.json"),
    ("score", ["run", "in"], strange, "placement.json"),
    ("score", ["run", "in"], partial, "is not finished: go on with viewproof run resume=run"),
    ("score", ["run", "in"], leading_out, "is a link that leads out"),
    ("score", ["run", "none"], patch, "photographs"),
    ("score", ["run", "in"], patch, "photographs"),
    ("compare", ["none"], empty, "none"),
    ("compare", ["run"], empty, "holds no run"),
    ("compare", ["run"], strange, "none of these is a run"),
    ("compare", ["run", "--depth", "3"], empty, "--depth"),
    ("compare", ["run"], pipe, "holds no run"),
    ("compare", ["zip://me:secret@run::runs.zip", "--out", "out"], empty, "holds the name or password"),
    ("audit", ["--transforms", "run/manifest.json"], strange, "."),
    ("audit", ["--transforms", "run"], empty, "run"),
    ("audit", ["--callable", "run:thing"], empty, "run"),
    ("audit", ["--transforms", "camera", "--image", "run/patch.png"], strange, "patch.png"),
    ("audit", ["--transforms", "camera", "--image", "run/patch.png"], pipe, "plain file"),
    ("audit", ["--transforms", "camera", "--encoder", "run"], empty, "--encoder"),
    ("audit", ["--transforms", "evil.yaml"], program_preset, "refused"),
    *(("audit", shlex.split(arguments), empty, "") for arguments in AUDIT.split("|")),
    *(("show", ["--stage", *shlex.split(arguments)], empty, "") for arguments in SHOW.split("|")),
    ("show", ["--transforms", "missing.yaml"], empty, "missing.yaml"),
    ("gate", ["policy.yaml", "run"], faulty, "`encoder` is missing or malformed; restore the file"),
    ("gate", ["policy.yaml"], faulty, "needs directories of finished runs, or --run"),
    ("gate", ["policy.yaml", "run", "--run", "config=smoke"], faulty, "one of the two"),
    ("gate", ["policy.yaml", "--run", "config=smoke"], faulty, "--into"),
    ("gate", ["policy.yaml", "none"], faulty, "metrics.json"),
    ("gate", ["none.yaml", "run"], faulty, "bundled policies"),
    *((name, [*words, "--out", "policy.yaml"], faulty, "folder, and policy.yaml is a file") for name, *words in OUT),
    ("failure", ["run", "--particles", "10"], empty, "`--particles` must be at least 50"),
    ("failure", ["run", "--pictures", "0"], empty, "`--pictures` must be at least 1"),
    ("failure", ["run", "--arm", "noise"], empty, "invalid choice"),
    ("certify", ["run", "--samples", "0"], empty, "`--samples` must be 100 to"),
    ("certify", ["run", "--radii", "0.5", "nan"], empty, "`--radii` must be 1e-06 to"),
    ("certify", ["run", "--alpha", "1"], empty, "`--alpha` must be 1e-12 to 0.5"),
    ("certify", ["run", "--pictures", "0"], empty, "`--pictures` must be 1 to"),
    ("certify", ["run"], empty, "metrics.json"),
    ("replay", ["none"], empty, "none"),
    ("replay", ["run"], empty, "met no view that is not finite"),
    ("replay", ["run"], strange, "fault.safetensors"),
    ("replay", ["run"], pipe, "fault.safetensors"),
]


@pytest.mark.parametrize(("name", "arguments", "make", "reason"), CASES, ids=lambda v: getattr(v, "__name__", None))
def test_wrong_input_gives_a_one_line_error(name, arguments, make, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    original = tree(tmp_path)
    with in_time():
        code = main([name, *arguments])
    output, error = capsys.readouterr()
    assert code == 1 and output == "", output
    assert error.startswith("error: ") and error.count("\n") == 1 and error[:-1].isprintable(), error
    assert reason in error and len(error) < 600, error
    assert tree(tmp_path) == original
