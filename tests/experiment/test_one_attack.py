"""Without views a run attacks once: `no_eot` would be the arm `eot` once more."""

import json

import pytest
from safetensors.torch import load_file

from attacks.commands import main
from attacks.runtime.tables import read_rows
from attacks.schema.composition import compose
from attacks.study.assembly import build
from attacks.study.study import Study
from attacks.verification.verify import verify
from tests.helpers.questions import WORDS, module, pictures, query_digests
from tests.helpers.runs import call

PLAIN = ["config=smoke", "transforms=identity", "attack.steps=null", "attack.gradients=8", "evaluate.views=4"]

ARMS = "clean noise no_eot one_view eot"


def attacked(folder):
    """What the attack of a run with views has left: its files, its perturbations, its steps."""
    files = {path.name: path.read_bytes() for path in sorted((folder / "pictures" / "eot").iterdir())}
    steps = [row for row in read_rows(folder / "steps.csv") if row["arm"] == "eot"]
    return files, load_file(folder / "perturbation.safetensors")["eot"].tolist(), steps


def passes(folder):
    """The forward and backward passes of all attacks of a run, without those that choose among iterates."""
    costs = json.loads((folder / "metrics.json").read_text())["costs"]
    arms = [costs[arm] for arm in ("eot", "no_eot") if arm in costs]
    return [sum(cost["forward"] - cost["selection"] for cost in arms), sum(cost["backward"] for cost in arms)]


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["pgd", "nes"])
def test_the_attack_is_that_of_a_run_that_repeats_it_at_half_of_the_cost(optimiser, tmp_path, monkeypatch):
    words, black_box = [*PLAIN, "attack.views=1"], optimiser == "nes"
    if black_box:
        words = [*WORDS, *pictures(tmp_path / "photos"), *PLAIN[1:], "attack.views=2", f"optimiser={optimiser}"]
        module(tmp_path, monkeypatch)
        words += ["encoder=callable", "encoder.model=victim:corners"]
    folders, questions = [tmp_path / "single", tmp_path / "double"], []
    for folder in folders:
        (tmp_path / "seen").unlink(missing_ok=True)
        assert call(monkeypatch, *words, f"hydra.run.dir={folder}") == 0
        questions.append(len(query_digests(tmp_path)))
        monkeypatch.setattr(Study, "arms", ("clean", "noise", "no_eot", "eot"))
    assert attacked(folders[0]) == attacked(folders[1])
    single, double = map(passes, folders)
    assert single[0] > 0 and [2 * count for count in single] == double
    assert (questions[0] < questions[1]) == black_box


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["pgd", "square"])
def test_equal_views_of_a_step_are_one_so_that_the_budget_buys_steps(optimiser, tmp_path, monkeypatch):
    for views in (1, 4):
        words = [*PLAIN, f"optimiser={optimiser}", f"attack.views={views}", f"hydra.run.dir={tmp_path / str(views)}"]
        assert call(monkeypatch, *words) == 0
    assert attacked(tmp_path / "1") == attacked(tmp_path / "4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "arms"),
    [
        (["transforms=identity"], "clean noise eot"),
        (["transforms=identity", "attack.adversary=4"], "clean noise eot"),
        (["transforms=identity", "defence=jpeg"], "clean noise eot"),  # in the encoder, for every arm
        (["transforms=identity", "defence=tte"], "clean noise one_view bare eot"),
        # `no_eot` goes past these stages, which have no coordinates either
        (["transforms=identity", "+transforms.stages.downscale={size: 32}"], "clean noise no_eot eot"),
        (["transforms=eot2d"], ARMS),
        (["config=patch", "transforms=identity"], "clean noise eot"),
        (["config=patch", "transforms=identity", "perturbation.place.scale=[0.4,0.6]"], ARMS),
    ],
)
def test_no_eot_stands_where_it_sees_another_picture_than_eot(words, arms):
    preset, words = ("patch", words[1:]) if words[0] == "config=patch" else ("smoke", words)
    assert " ".join(build(compose(preset, words)).arms) == arms


@pytest.mark.slow
def test_tables_report_verify_judge_and_gate_do_without_the_arm(shared_runs, tmp_path, capsys):
    folder = shared_runs(*PLAIN)
    content, page = json.loads((folder / "metrics.json").read_text()), (folder / "report.html").read_text()
    assert content["primary"]["baselines"] == ["noise"] and content["primary"]["against"] == "noise"
    assert "no_eot" not in (folder / "per_image.csv").read_text() and "without EOT" not in page
    assert json.loads((folder / "manifest.json").read_text())["primary"]["baselines"] == ["noise"]
    assert verify(folder, 1).passed
    assert main(["judge", str(folder), "--on", "phash", "--out", str(tmp_path)]) == 0
    table = read_rows(tmp_path / "transfer.csv")
    assert [row["arm"] for row in table] == 2 * ["clean", "noise", "eot"] and not any(row["gain"] for row in table)
    policy, row = tmp_path / "policy.yaml", "  - {measure: success, arm: ARM, at_most: 0.9}\n"
    for arm, codes, text in (("clean", (0, 3, 4), ""), ("no_eot", (1,), "made once: ask for `arm: eot`")):
        rows = row.replace("ARM", "eot") + row.replace("ARM", arm)
        policy.write_text(f"claim: It holds.\ndate: 2026-11-24\nrequirements:\n{rows}")
        assert main(["gate", str(policy), str(folder)]) in codes
        assert text in capsys.readouterr().err
