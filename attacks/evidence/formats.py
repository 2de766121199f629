"""The verdict as JUnit XML, SARIF 2.1.0, a CycloneDX 1.6 ML-BOM and an in-toto test result, without a time in them;
and on one page that prints to one or two sheets, for whoever signs it."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attacks.evidence.facts import Facts, RunFacts, WorstView, requirement_rule
from attacks.gate.verdict import RequirementResult, size_text
from attacks.report.environment import environment
from attacks.report.sheets import Picture, from_file
from attacks.report.warnings import warnings
from attacks.report.words import arm_names, counts_text, extreme_words, fate, interval_text, radius, sample_words
from attacks.runtime.extras import extra

PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
#: Verdict -> the word of in-toto.
RESULTS = {"PASS": "PASSED", "UNDECIDED": "WARNED", "FAIL": "FAILED"}
#: The name of what does not hold of a run's record, or of the age of the bars.
CUSTODY = "custody"


def requirement_text(row: RequirementResult, worst: WorstView | None) -> str:
    """A requirement and its verdict in a sentence or two."""
    text = f"{row.requirement}: {row.verdict}, {row.number} from {size_text(vars(row))}."
    text += f" {row.reason[:1].upper()}{row.reason[1:]}." if row.reason else ""
    return text + (f" Worst view: {worst}." if worst else "")


def junit(facts: Facts) -> str:
    """JUnit XML: a suite a run, a test a requirement. FAIL is a failure, UNDECIDED an error, a problem of custody a
    property of the suite."""
    library = extra("junitparser")
    report = library.JUnitXml(facts.policy.claim)
    for run in facts.runs:
        suite = library.TestSuite(run.name)
        for problem in run.custody.problems:
            suite.add_property(CUSTODY, problem)
        for row, worst in zip(run.verdict.rows, run.worst, strict=True):
            case = library.TestCase(str(row.requirement), f"{facts.file}.{run.name}", 0)
            if row.verdict != "PASS":
                kind = library.Failure if row.verdict == "FAIL" else library.Error
                case.result = [kind(requirement_text(row, worst), row.verdict)]
            suite.add_testcase(case)
        suite.update_statistics()
        report.add_testsuite(suite)
    return str(report.tostring().decode()) + "\n"


def sarif(facts: Facts) -> str:
    """SARIF 2.1.0: a rule a requirement, an error a failure, a warning a problem of custody, at the policy."""
    results, rules = [], {}
    for run, row, worst in facts.rows:
        name = requirement_rule(row.requirement)
        rules[name] = {"id": name, "shortDescription": {"text": str(row.requirement)}}
        if row.verdict == "FAIL":
            results.append(_sarif_result(facts, name, run, requirement_text(row, worst)))
    for run, problem in facts.problems:
        rules[CUSTODY] = {"id": CUSTODY, "shortDescription": {"text": "the record shows bars fixed before the run"}}
        results.append(_sarif_result(facts, CUSTODY, run, problem, "warning"))
    driver = {"name": "Viewproof", "version": facts.version, "rules": list(rules.values())}
    log = {"version": "2.1.0", "$schema": "https://json.schemastore.org/sarif-2.1.0.json"}
    return _json(log | {"runs": [{"tool": {"driver": driver}, "results": results, "columnKind": "utf16CodeUnits"}]})


def _sarif_result(facts: Facts, rule: str, run: RunFacts, text: str, level: str = "error") -> dict[str, Any]:
    place = {"artifactLocation": {"uri": facts.file}, "region": {"startLine": 1}}
    words = f"{rule} {run.content['encoder']['fingerprint']}" + (f" {text}" if rule == CUSTODY else "")
    return {
        "ruleId": rule,
        "level": level,
        "locations": [{"physicalLocation": place}],
        "message": {"text": f"{run.name}: {text}"},
        "partialFingerprints": {"requirementAndEncoder/v1": hashlib.sha256(words.encode()).hexdigest()},
    }


def cyclonedx(facts: Facts) -> str:
    """A CycloneDX 1.6 fragment: each encoder as a machine-learning-model with its digest and its measured values, and
    the claim with its evidence, and the problems of custody as counter-evidence. Raises ValueError where the
    library's own copy of the schema refuses it."""
    validation, schema = extra("cyclonedx.validation.json"), extra("cyclonedx.schema")
    claims: list[dict[str, Any]] = []
    evidence: list[dict[str, Any]] = []
    for i, run in enumerate(facts.runs, 1):
        rows = zip(run.verdict.rows, run.worst, strict=True)
        texts = [(requirement_rule(row.requirement), requirement_text(row, worst)) for row, worst in rows]
        texts += [(CUSTODY, problem) for problem in run.custody.problems]
        data = [{"name": "run", "contents": {"attachment": {"content": f"sha256 of files.json {run.files}"}}}]
        claim = {"bom-ref": f"claim-{i}", "target": f"encoder-{i}", "predicate": facts.policy.claim}
        claims.append({**claim, "evidence": [], "counterEvidence": []})
        for name, text in texts:
            ref = f"evidence-{len(evidence) + 1}"
            evidence.append({"bom-ref": ref, "propertyName": name, "description": text, "data": data})
            claims[-1]["counterEvidence" if name == CUSTODY else "evidence"].append(ref)
    digests = " ".join([facts.policy.digest, *(run.files for run in facts.runs)])
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digests)}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "viewproof", "version": facts.version}]},
            "properties": [{"name": "viewproof:verdict", "value": facts.verdict}],
        },
        "components": [_component(run, f"encoder-{i}") for i, run in enumerate(facts.runs, 1)],
        "declarations": {"claims": claims, "evidence": evidence},
    }
    text = _json(bom)
    error = validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"the CycloneDX fragment is not valid: {error}")
    return text


def _component(run: RunFacts, ref: str) -> dict[str, Any]:
    encoder = run.content["encoder"]
    metrics: list[dict[str, Any]] = []
    for row in run.verdict.rows:
        metrics.append({"type": str(row.requirement), "value": f"{row.value:.6g}", "slice": size_text(vars(row))})
        if not row.has_range:
            metrics[-1]["confidenceInterval"] = {"lowerBound": f"{row.low:.6g}", "upperBound": f"{row.high:.6g}"}
    return {
        "type": "machine-learning-model",
        "bom-ref": ref,
        "name": encoder["name"] if encoder["model"] is None else f"{encoder['name']}:{encoder['model']}",
        "description": "SHA-256 of the tensors, whatever file holds them",
        "hashes": [{"alg": "SHA-256", "content": encoder["fingerprint"]}],
        "modelCard": {"quantitativeAnalysis": {"performanceMetrics": metrics}},
    }


def in_toto(facts: Facts) -> str:
    """An in-toto Statement v1 with the predicate test-result v0.1, over the digests of the policy and of each run's
    files.json; a problem of custody is a test with a warning. Raises ValueError where the library refuses it."""
    statements, json_format = extra("in_toto_attestation.v1.statement"), extra("google.protobuf.json_format")
    descriptor = extra("in_toto_attestation.v1.resource_descriptor").ResourceDescriptor
    digests = [(facts.file, facts.policy.digest), *((f"{run.name}/files.json", run.files) for run in facts.runs)]
    subjects = [descriptor(name=name, digest={"sha256": digest}).pb for name, digest in digests]
    tests: dict[str, list[str]] = {word: [] for word in RESULTS.values()}
    for run, row, _ in facts.rows:
        tests[RESULTS[row.verdict]].append(f"{run.name}: {row.requirement}")
    tests["WARNED"] += [f"{run.name}: {CUSTODY}: {problem}" for run, problem in facts.problems]
    predicate: dict[str, Any] = {
        "result": next((word for word in ("FAILED", "WARNED") if tests[word]), "PASSED"),
        "configuration": [{"name": facts.file, "digest": {"sha256": facts.policy.digest}}],
    }
    predicate |= {f"{word.lower()}Tests": names for word, names in tests.items()}
    statement = statements.Statement(subjects, PREDICATE, predicate)
    statement.validate()
    return _json(json_format.MessageToDict(statement.pb))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


class RunPage(NamedTuple):
    """A run on the page: facts, metrics.json with its `gate`, warnings, rows, the worst picture and its original."""

    facts: RunFacts
    content: dict[str, Any]
    warnings: list[str]
    rows: list[tuple[str, str]]
    pictures: list[Picture]


def evidence_page(facts: Facts) -> str:
    """The page, `evidence.html` and `check.html`; it fetches nothing and runs no scripts."""
    runs = []
    for run in facts.runs:
        content = dict(run.content) | {"gate": run.verdict.as_dict() | {"notes": run.custody.problems}}
        runs.append(RunPage(run, content, warnings(content), _rows(run), _pictures(run)))
    return environment().get_template("evidence.html").render(facts=facts, runs=runs, not_tested=_not_tested(facts))


def _rows(run: RunFacts) -> list[tuple[str, str]]:
    content, threat = run.content, run.content["threat"]
    size = "a patch" if threat["patch"] else f"{threat['norm']}, eps {radius(threat)}"
    goal = f"{'' if threat['targeted'] else 'un'}targeted: a view is {fate(content)}"
    knows = "black box, none of the weights: answers only" if run.blind else "white box, the weights and the views"
    budget = f"{threat['gradients']} {'queries' if run.blind else 'gradients'} a picture"
    bank, arms = content["bank"], content["arms"]
    best = max((arm for arm in arms if arm not in ("clean", "noise")), key=lambda arm: arms[arm]["success"]["mean"])
    ranges = zip(bank["coordinates"], bank["ranges"], strict=True)
    views = [f"{name} {low:.3g}" + (f" to {high:.3g}" if high > low else "") for name, (low, high) in ranges]
    rows = [
        *run.custody.rows,
        ("pictures", sample_words(content)),
        ("attacker's goal", goal),
        ("knowledge", knows),
        ("capability", f"{size}; {budget}, {threat['optimiser']}"),
        ("techniques", "; ".join(f"{key} {name}" for key, name in run.techniques.items())),
        ("views", f"{bank['views']} held-out views of each picture; {'; '.join(views) or 'the file as it is'}"),
        ("strongest attack", f"{arm_names(content)[best]}: success {interval_text(arms[best]['success'])}"),
        ("checks of the attack", _checks(content["sanity"])),
    ]
    if failure := content["failure"]:
        names = {"clean": "P(failure) of the encoder", "eot": "P(failure) of the attack"}
        counts = counts_text(failure["pictures"], failure["clusters"])
        for arm, (row, *_) in failure["arms"].items():
            text = f"{row['words']} over all views of {row['picture']}, the largest of {counts}"
            rows.append((names[arm], text))
    if run.shown_view is not None:
        result, worst = run.shown_view
        words = f"{worst.picture}, view {worst.number}, cosine {worst.cosine:.2f} ({result.requirement})"
        rows.append(("worst view", f"{words}: {extreme_words(dict(worst.values), bank)}".removesuffix(": ")))
    return rows


def _checks(sanity: Mapping[str, Any] | None) -> str:
    if sanity is None:
        return "none were made"
    verdicts = [check["verdict"] for check in sanity["checks"]]
    failed = f"; failed: {', '.join(sanity['failed'])}" if sanity["failed"] else ""
    return f"{verdicts.count('passed')} of {len(verdicts) - verdicts.count('skipped')} passed{failed}"


def _not_tested(facts: Facts) -> list[str]:
    threats = [run.content["threat"] for run in facts.runs]
    norms = ", ".join(sorted({"patch" if threat["patch"] else str(threat["norm"]) for threat in threats}))
    wide, rare = (all(run.content[key] for run in facts.runs) for key in ("wide", "failure"))
    lines = [
        f"changes of another kind or size than {norms} above",
        "stronger attacks: every number is an upper bound of the robustness",
        "other encoders, preprocessing and precisions; other pictures than those the sample stands for",
        "views outside of the ranges above" + ("" if wide else ", wider ones included"),
    ]
    if not any(run.blind or run.content["threat"]["attack"] == "suite" for run in facts.runs):
        lines.append("attackers who see answers only, or who transfer attacks from other encoders")
    if all(run.blind for run in facts.runs):
        lines.append("attackers who know the weights")
    if not any(threat["patch"] for threat in threats):
        lines.append("printed patches")
    if not rare:
        lines.append("views that fail more rarely than the held-out ones can show: P(failure) was not estimated")
    return [*lines, "photographs: all views are computed"]


def _pictures(run: RunFacts) -> list[Picture]:
    """The file of the worst view, behind its original. Raises ValueError where it is missing."""
    if run.shown_view is None:
        return []
    row, worst = run.shown_view
    arm, file = row.requirement.arm, Path(worst.file)
    text = f"{'Untouched' if arm == 'clean' else 'Attacked'}: {worst.picture}, whose view {worst.number} is the worst"
    picture = from_file(run.folder / file, f"{worst.picture}, {arm}", text)
    if picture is None:
        raise ValueError(f"`{run.folder / worst.file}`, the picture of the worst view, is missing: put it back")
    path, alt = run.folder / "pictures" / "clean" / file.name, f"{worst.picture}, untouched"
    original = from_file(path, alt, f"Original: {worst.picture}")
    return [original, picture] if arm != "clean" and original is not None else [picture]
