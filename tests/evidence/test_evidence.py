"""Evidence: valid against the official schemas, reproduced by a check, and refused where it was changed."""

import base64
import json
import re
import shutil
from functools import cache, partial
from itertools import product
from pathlib import Path

import pytest
import skimage.data
import xmlschema
from cyclonedx.schema import SchemaVersion
from google.protobuf import json_format
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from PIL import Image

from attacks.commands import main
from attacks.commands.gate import run_verdict
from attacks.evaluation.rare import splitting
from attacks.evidence.custody import policy_origin
from attacks.evidence.facts import Facts, RunFacts, WorstView, run_facts
from attacks.evidence.formats import cyclonedx, evidence_page, in_toto, junit, requirement_text, sarif
from attacks.evidence.pieces import PIECES
from attacks.gate.policy import Policy, Requirement
from attacks.gate.verdict import RANGE_REASON, RequirementResult, Verdict
from attacks.schema.groups import CHOICES
from tests.experiment.test_units import NAN, SMALL, spoil
from tests.helpers import report_pages
from tests.helpers.page import Page
from tests.helpers.runs import call
from tests.report.test_answer import JARGON

SCHEMAS = Path(__file__).parent / "schemas"
POLICY = """claim: Half of the <views> are recognised.
date: 2026-11-24
requirements:
  - {measure: success, arm: clean, at_most: 0.999}
  - {measure: success, arm: eot, at_most: 0.01}
  - {measure: cosine, arm: noise, at_least: 0.5}
"""
WORDS = "config=quickstart attack.gradients=16 evaluate.views=16 data.size=32 perturbation.eps=32/255 sanity=none"
WORDS += " evaluate.failure=1 evaluate.particles=50 evaluate.refine=0 evaluate.one_view=false"


def evidence(folder):
    """A folder with a locked policy, a run and its evidence."""
    (folder / "mine.yaml").write_text(POLICY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "MAX_DRAWS", 10)
        patch.chdir(folder)
        assert main(["gate", "--lock", "mine.yaml"]) == 0
        assert call(patch, *WORDS.split(), "require=mine.yaml", "hydra.run.dir=run") == 3
        assert main(["gate", "mine.yaml", "run", "--out", "evidence"]) == 3


@pytest.fixture
def bundle(shared_runs):
    return shared_runs.folder("evidence", evidence)


@pytest.fixture
def copy(bundle, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(bundle, folder)
    monkeypatch.chdir(folder)
    return folder


def piece(folder, name):
    return (folder / "evidence" / name).read_text()


@cache
def schema_of(name):
    return xmlschema.XMLSchema(SCHEMAS / name) if name.endswith("xsd") else json.loads((SCHEMAS / name).read_text())


def sarif_of(text):
    import jsonschema  # takes two seconds, in each process that only collects this file

    log, schema = json.loads(text), schema_of("sarif-2.1.0.json")
    jsonschema.validate(log, schema, cls=jsonschema.validators.validator_for(schema))
    return log["runs"][0]


def in_toto_of(text):
    statement = json_format.ParseDict(content := json.loads(text), statement_pb2.Statement())  # an unknown key fails
    Statement.copy_from_pb(statement).validate()
    return content["subject"], json_format.ParseDict(content["predicate"], test_result_pb2.TestResult())


def problems_by_piece(folder):
    """The problems of custody by the pieces of one run, which are valid, where the standard of a format has them."""
    suite = schema_of("jenkins-junit.xsd").to_dict(folder / "junit.xml")["testsuite"][0]
    properties = suite.get("properties", {"property": []})["property"]
    bom = json.loads((folder / "encoder.cdx.json").read_text())["declarations"]
    refs = {ref for claim in bom["claims"] for ref in claim["counterEvidence"]}
    results = sarif_of((folder / "verdict.sarif").read_text())["results"]
    tests = in_toto_of((folder / "test-result.intoto.json").read_text())[1]
    names = [name.partition(": custody: ") for name in tests.warned_tests]
    notes = Page((folder / "evidence.html").read_text()).text.split("Custody. ")[1:]
    return {
        "junit.xml": [row["@value"] for row in properties if row["@name"] == "custody"],
        "verdict.sarif": [row["message"]["text"][5:] for row in results if row["level"] == "warning"],
        "encoder.cdx.json": [row["description"] for row in bom["evidence"] if row["bom-ref"] in refs],
        "test-result.intoto.json": [problem for _, mark, problem in names if mark],
        "evidence.html": notes,
    }


@pytest.mark.slow
def test_junit_is_valid_and_has_a_test_for_each_requirement(bundle):
    cases = schema_of("jenkins-junit.xsd").to_dict(bundle / "evidence" / "junit.xml")["testsuite"][0]["testcase"]
    assert len(cases) == 3 and ["failure" in case for case in cases] == [False, True, False]
    assert ["error" in case for case in cases] == [True, False, True]  # no check of the attack: nothing passes


@pytest.mark.slow
def test_sarif_is_valid_and_has_a_result_for_each_failure(bundle):
    run = sarif_of(piece(bundle, "verdict.sarif"))
    (result,) = run["results"]
    assert result["ruleId"] == "success-eot-same-mean-at-most" and "Worst view: " in result["message"]["text"]
    assert "affine angle (deg)" in result["message"]["text"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == "mine.yaml" and len(run["tool"]["driver"]["rules"]) == 3


@pytest.mark.slow
def test_cyclonedx_is_valid_and_has_the_digest_and_the_values(bundle):
    from cyclonedx.validation.json import JsonStrictValidator  # it imports jsonschema

    text = piece(bundle, "encoder.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace("SHA-256", "SHA-257")) is not None
    (component,) = json.loads(text)["components"]
    metrics = json.loads((bundle / "run" / "metrics.json").read_text())
    assert component["hashes"][0]["content"] == metrics["encoder"]["fingerprint"]
    values = component["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert float(values[1]["value"]) == pytest.approx(metrics["arms"]["eot"]["success"]["mean"], rel=1e-5)
    assert float(values[1]["confidenceInterval"]["lowerBound"]) > 0.01


@pytest.mark.slow
def test_in_toto_is_a_statement_over_the_policy_and_the_run(bundle):
    subjects, result = in_toto_of(piece(bundle, "test-result.intoto.json"))
    assert result.result == "FAILED" and len(result.failed_tests) == 1 and len(result.warned_tests) == 2
    names = {subject["name"]: subject["digest"]["sha256"] for subject in subjects}
    assert names["run/files.json"] == json.loads((bundle / "run" / "metrics.json").read_text())["files"]


@pytest.mark.slow
def test_the_page_states_what_a_signer_asks(bundle):
    text = piece(bundle, "evidence.html")
    page_text = Page(text).text
    expected = (
        "FAIL|locked since|AML.T0043.000|NISTAML.022|affine angle (deg)|What was not tried|photographs|Signature"
    )
    expected += "|viewproof gate --check|was not checked|10 pictures in 10 clusters|P(failure) of the encoder"
    head = Page(text[text.index("<header>") : text.index("</header>") + 9]).text
    assert head.startswith("Do not deploy") and not JARGON.search(head)
    for words in f"{expected}|the largest of 1 picture in 1 cluster".split("|"):
        assert words in page_text, words
    assert "<views>" not in text and "&lt;views&gt;" in text and "<script" not in text and "http://" not in text


@pytest.mark.slow
def test_a_check_repeats_every_piece(copy, capsys):
    assert main(["gate", "--check", "evidence"]) == 0
    assert "follows from its policy and runs: FAIL" in capsys.readouterr().out
    first = {name: piece(copy, name) for name in PIECES}
    assert main(["gate", "mine.yaml", "run", "--out", "evidence"]) == 3
    assert {name: piece(copy, name) for name in PIECES} == first


#: The optimisers that see answers only, by docs/black_box.md.
BLIND = ("nes_square", "square", "nes", "label_only")
POLICY_OF_NOTHING = Policy("A claim.", "2026-11-24", (), "0" * 64)


def facts_of(*threats, rows=()):
    """The facts of runs with such threats and results."""
    contents, verdict = [report_pages.content() for _ in threats], Verdict(POLICY_OF_NOTHING, "run", rows)
    for content, threat in zip(contents, threats, strict=True):
        content["threat"] |= threat
        content["bank"] |= {"ranges": [[0.0, 1.0]] * 3}
    runs = [RunFacts("run", Path("run"), verdict, content, "0" * 64, (None,) * len(rows)) for content in contents]
    return Facts(POLICY_OF_NOTHING, "mine.yaml", None, tuple(runs))


#: Verdict -> the first words of a run, and the result of in-toto.
LEADS = {
    "PASS": ("May be deployed", "PASSED"),
    "UNDECIDED": ("Undecided", "WARNED"),
    "FAIL": ("Do not deploy", "FAILED"),
}


def results_of(verdicts):
    """Rows with such verdicts, whose intervals tell them apart."""
    return tuple(
        RequirementResult(Requirement("success", arm, at_most=0.5), word, x, x - 0.05, x + 0.05, 9, 9)
        for word, arm, x in zip(verdicts, ("clean", "eot", "noise"), (0.11, 0.33, 0.55), strict=False)
    )


def test_verdict_reason_and_rows_of_several_runs_agree():
    worst = partial(max, key=[*LEADS].index)
    for first, second in product(product(LEADS, repeat=2), product(LEADS, repeat=1)):
        parts = [facts_of({}, rows=results_of(verdicts)) for verdicts in (first, second)]
        facts = Facts(POLICY_OF_NOTHING, "mine.yaml", None, tuple(part.runs[0] for part in parts))
        text, result = evidence_page(facts), json.loads(in_toto(facts))["predicate"]
        assert text.partition("<title>")[2].startswith(worst(first + second))
        assert result["result"] == LEADS[worst(first + second)][1] == LEADS[facts.verdict][1]
        assert junit(facts).count("<failure") == sarif(facts).count('"error"') == (first + second).count("FAIL")
        heads, tables = text.split("<header>")[1:], text.split("<tbody>")[1:]
        for rows, head, table in zip((first, second), heads, tables, strict=True):
            head = Page(f"<header>{head.partition('</header>')[0]}</header>").text
            assert head.startswith(LEADS[worst(rows)][0]), (rows, head)
            words = [row.verdict for row in results_of(rows) if f"{100 * row.low:.0f}-{100 * row.high:.0f} %" in head]
            assert words == [worst(rows)], (rows, head)
            assert re.findall('gate [a-z]+">([A-Z]+)<', table.partition("</tbody>")[0]) == [*rows]


def page_of(*threats):
    row = RequirementResult(Requirement("success", "eot", at_most=0.5), "FAIL", 0.9, 0.8, 1.0, 12, 15)
    return Page(evidence_page(facts_of(*threats, rows=(row,)))).text


@pytest.mark.parametrize("optimiser", CHOICES["optimiser"])
def test_an_attack_is_a_black_box_one_if_its_optimiser_needs_no_gradient(optimiser):
    text = page_of({"optimiser": optimiser})
    black = ("black box, none of the weights", "AML.T0043.001", "NISTAML.025", "800 queries a picture", "who know")
    white = ("white box, the weights and the views", "AML.T0043.000", "NISTAML.022", "800 gradients a picture")
    for words in (*black, *white, "attackers who see answers only"):
        assert (words in text) == ((words in black) == (optimiser in BLIND)), words


def test_a_suite_follows_gradients_and_sees_answers_too():
    text = page_of({"optimiser": "square", "attack": "suite"})
    assert "white box" in text and "AML.T0043.000" in text and "attackers who see answers only" not in text
    text = page_of({"optimiser": "wiener"}, {"optimiser": "nes"})
    assert "attackers who see answers only" not in text and "who know the weights" not in text


@pytest.mark.slow
@pytest.mark.parametrize("row", ["range", "interval"])
def test_a_range_is_no_interval_in_any_piece(row):
    requirement = Requirement("cosine", "eot", at_least=0.2)
    ends = "(0.1 to 0.4)" if row == "range" else "[0.1, 0.4]"
    reason = RANGE_REASON if row == "range" else ""
    decision = RequirementResult(requirement, "UNDECIDED", 0.25, 0.1, 0.4, 3, 5, reason=reason)
    facts = facts_of({}, rows=(decision,))
    assert f"UNDECIDED, 0.25 {ends} from 5 pictures in 3 clusters" in requirement_text(decision, None)
    assert f"0.25 {ends}" in junit(facts) and f" 0.25 {ends} " in Page(evidence_page(facts)).text
    assert ends in str(facts.runs[0].verdict)
    components = json.loads(cyclonedx(facts))["components"]
    (metric,) = components[0]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert metric["value"] == "0.25" and ("confidenceInterval" in metric) == (row == "interval")


@pytest.mark.slow
def test_the_worst_view_has_its_picture_where_another_of_the_same_stem_failed(tmp_path, monkeypatch, capsys):
    for name, x in (("anna", 0), ("bert", 60)):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.fromarray(skimage.data.chelsea()[:40, x : x + 40]).save(tmp_path / "in" / name / "1.png")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(POLICY)
    with monkeypatch.context() as patch:
        spoil(patch, {"anna/1.png": NAN})
        assert call(patch, *SMALL, "data.path=in", "evaluate.batch=1", "hydra.run.dir=run") == 1
    assert main(["gate", "mine.yaml", "run", "--out", "evidence"]) == 4
    (file,) = (tmp_path / "run" / "pictures" / "eot").iterdir()
    images = Page(piece(tmp_path, "evidence.html")).all("img")
    assert base64.b64encode(file.read_bytes()).decode() in images[1]["src"]
    assert "bert/1.png, eot" in images[1]["alt"] and "untouched" in images[0]["alt"]
    assert "The attacked picture" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(("words", "shown"), [("FFP", 0), ("PFF", 1), ("PPU", 1), ("P", 0)])
def test_the_view_of_the_first_failure_is_shown_else_that_of_an_attack(words, shown):
    verdicts, arms = {"P": "PASS", "F": "FAIL", "U": "UNDECIDED"}, ("clean", "eot", "noise")
    rows = tuple(
        RequirementResult(Requirement("cosine", arm, at_least=0.2), verdicts[word], 0.5, 0.1, 0.9, 9, 9)
        for arm, word in zip(arms, words, strict=False)
    )
    worst = tuple(WorstView(row.requirement.arm, "x.png", 0, 0.0, ()) for row in rows)
    facts = RunFacts("run", Path("run"), Verdict(POLICY_OF_NOTHING, "run", rows), {}, "0" * 64, worst)
    assert facts.shown_view == (rows[shown], worst[shown])


@pytest.mark.slow
def test_a_missing_picture_of_the_worst_view_is_an_error(copy, monkeypatch):
    origin = policy_origin(Path("mine.yaml"))
    facts = run_facts(run_verdict(origin, Path("run")), Path("run"), origin)
    shutil.rmtree(copy / "run" / "pictures" / facts.shown_view[0].requirement.arm)
    with pytest.raises(ValueError, match="the picture of the worst view, is missing"):
        evidence_page(Facts(facts.verdict.policy, "mine.yaml", None, (facts,)))


def tamper(folder, name, old, new):
    """Replace a text of a file; "" for a file that is not there, None to remove one."""
    text = (folder / name).read_text() if old else ""
    assert old in text, (name, old)
    (folder / name).unlink() if new is None else (folder / name).write_text(text.replace(old, new, 1))


TAMPERINGS = [
    ("evidence/junit.xml", 'failures="1"', 'failures="0"'),
    ("evidence/verdict.sarif", '"level": "error"', '"level": "note"'),
    ("evidence/encoder.cdx.json", '"lowerBound": "', '"lowerBound": "0'),
    ("evidence/test-result.intoto.json", "FAILED", "PASSED"),
    ("evidence/evidence.html", "FAIL", "PASS"),
    ("evidence/evidence.json", '"verdict": "FAIL"', '"verdict": "PASS"'),
    ("evidence/evidence.json", '"policy": "mine.yaml"', '"policy": "yours.yaml"'),
    ("evidence/evidence.json", '"../run"', '"../elsewhere"'),
    ("evidence/policy.lock.json", '"date": "2', '"date": "1'),
    ("evidence/policy.lock.json", '"sha256": "', '"sha256": "0'),
    ("evidence/policy.yaml", "Half", "Most"),
    ("evidence/policy.yaml", "at_most: 0.01", "at_most: 0.99"),
    ("evidence/more.html", "", "PASS"),
    ("run/per_image.csv", "same,eot", "same,noise"),
    ("run/metrics.json", '"seed": 0', '"seed": 1'),
    ("run/manifest.json", '"seed": 0', '"seed": 1'),
    ("run/files.json", '"size": ', '"size": 1'),
    ("run/scores.safetensors", "", None),
    *((f"evidence/{name}", "", None) for name in ("junit.xml", "evidence.html", "policy.yaml", "policy.lock.json")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "old", "new"), TAMPERINGS)
def test_changed_evidence_is_refused(copy, capsys, name, old, new):
    tamper(copy, name, old, new)
    assert main(["gate", "--check", "evidence"]) == 1
    output = capsys.readouterr()
    assert output.out or output.err.startswith("error: ")
    assert "Traceback" not in output.err and "follows from" not in output.out


@pytest.mark.slow
def test_a_locked_policy_cannot_be_changed(copy, capsys):
    tamper(copy, "mine.yaml", "at_most: 0.01", "at_most: 0.99")
    for command in (["gate", "mine.yaml", "run"], ["gate", "--lock", "mine.yaml"]):
        assert main(command) == 1
        assert "is not the policy that was locked on" in capsys.readouterr().err
    shutil.copy(copy / "evidence" / "policy.yaml", copy / "mine.yaml")
    assert main(["gate", "--lock", "mine.yaml"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_what_is_no_evidence_is_one_line(tmp_path, capsys):
    (tmp_path / "evidence.json").write_text("[]")
    assert main(["gate", "--check", str(tmp_path)]) == 1
    assert main(["gate", "--check", str(tmp_path / "none")]) == 1
    assert main(["gate", "--lock"]) == 1
    assert capsys.readouterr().err.count("\n") == 3
