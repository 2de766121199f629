"""Policies are data: what they say, and what is refused."""

import hashlib

import pytest

from attacks.gate import policy as policies
from attacks.gate.policy import ARMS, ATTACK, HARM, POLICIES, POLICY_MEASURES, STATISTICS, Requirement, read_policy
from tests.helpers.wrong import refused

GOOD = """claim: Most views are still recognised.
date: 2026-11-24
encoder: 0123456789ab
threat: {perturbation: linf, perturbation.eps: 8/255}
requirements:
  - {measure: success, arm: eot, at_most: 0.5}
  - {measure: cosine, arm: eot, bank: wide, at_least: -0.2, of: p10}
"""


def test_a_policy_is_read_with_its_digest(tmp_path):
    (tmp_path / "p.yaml").write_text(GOOD)
    policy = read_policy(tmp_path / "p.yaml")
    assert policy.claim == "Most views are still recognised." and policy.date == "2026-11-24"
    assert policy.digest == hashlib.sha256(GOOD.encode()).hexdigest()
    assert policy.requirements[0] == Requirement("success", "eot", "same", None, 0.5, "mean")
    assert [str(row) for row in policy.requirements] == [
        "success of eot <= 0.5",
        "cosine of eot, wide views >= -0.2 in 90% of the clusters",
    ]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("claim:", "claims:", "unknown key `claims`: known are"),
        ("claim: Most views are still recognised.\n", "", "`claim` is missing"),
        ("claim: Most views are still recognised.", "claim: [a]", "`claim` must be a sentence"),
        ("2026-11-24", "soon", "`date` must be a day such as"),
        ("0123456789ab", "pocket", "`encoder` must be 12 to 64 hexadecimal digits"),
        ("{perturbation: linf, perturbation.eps: 8/255}", "[linf]", "`threat` must map"),
        ("measure: success", "measure: sucess", "did you mean success?"),
        ("arm: eot, at_most", "arm: pgd, at_most", "`arm` must be one of clean, noise"),
        ("bank: wide", "bank: narrow", "`bank` must be one of"),
        ("of: p10", "of: median", "`of` must be one of mean, p10, worst"),
        ("at_most: 0.5", "at_most: 1.5", "the bar of success must be a number from 0 to 1; got 1.5"),
        ("at_most: 0.5", "at_most: yes", "must be a number"),
        ("at_most: 0.5", "at_most: .nan", "must be a number"),
        ("at_most: 0.5", "at_least: 0.1, at_most: 0.5", "one of the two; got 2"),
        (", at_most: 0.5", "", "one of the two; got 0"),
        ("at_most: 0.5", "most: 0.5", "unknown key `most`"),
        ("claim: Most", "checks: none\nclaim: Most", "`checks` must be all"),
        ("claim: Most", "claim: !!python/object:os.system Most", "YAML tags"),
        ("claim: Most", "_target_: os.system\nclaim: Most", "unknown key|refused"),
        ("claim: Most", "claim: ${oc.env:HOME} Most", "refused"),
        ("at_most: 0.5", "at_most: 0.5, 'at_most': 0.99", "duplicate key or merge `at_most` in line"),
        ("at_most: 0.5", "at_most: 0.5, <<: {at_least: 0.1}", "duplicate key or merge `<<` in line"),
        ("claim: Most", "date: 2020-01-01\nclaim: Most", "duplicate key or merge `date` in line"),
        ("perturbation: linf", "perturbation: linf, perturbation: l2", "duplicate key or merge `perturbation`"),
        (GOOD, "- 1\n", "must map keys to values"),
        (GOOD, "a: [", "is not valid YAML"),
    ],
)
def test_a_mistake_is_one_line_with_key_and_rule(tmp_path, old, new, part):
    assert old in GOOD
    (tmp_path / "p.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(ValueError) as error:
        read_policy(tmp_path / "p.yaml")
    message = str(error.value)
    assert any(text in message for text in part.split("|")) and "\n" not in message and "p.yaml" in message


@pytest.mark.parametrize("of", STATISTICS)
@pytest.mark.parametrize("measure", [*POLICY_MEASURES, "tar_0.01"])
def test_a_row_can_fail_and_only_where_the_attack_succeeds(tmp_path, measure, of):
    """A row is accepted if and only if the best value for the attacker misses it, and the worst one meets it."""
    low, high = (-2, 2) if measure == "shift" else (-1, 1) if "cosine" in measure else (0, 1)
    best, worst = (high, low) if measure in HARM else (low, high)
    for side in ("at_least", "at_most"):
        for bar in sorted({low, -1, -0.5, 0, 0.5, 1, high} - {2}):
            row = Requirement(measure, "eot", of=of, **{side: bar})
            text = f"{{measure: {measure}, arm: eot, of: {of}, {side}: {bar}}}"
            (tmp_path / "p.yaml").write_text(f"claim: It holds.\ndate: 2026-11-24\nrequirements: [{text}]\n")
            if bar >= low and row.meets(worst) and not row.meets(best):
                assert read_policy(tmp_path / "p.yaml").requirements == (row,)
            else:
                refused(f"requirement 1: .*{measure}", read_policy, tmp_path / "p.yaml")


def test_flagged_clean_views_are_false_alarms(tmp_path):
    text = (
        "claim: It holds.\ndate: 2026-11-24\nrequirements:\n  - {measure: fooled_accepted, arm: eot, at_most: 0.1}\n"
    )
    for arm, side, other in (("clean", "at_most", "at_least"), ("eot", "at_least", "at_most")):
        (tmp_path / "p.yaml").write_text(f"{text}  - {{measure: flagged, arm: {arm}, {side}: 0.2}}\n")
        assert str(read_policy(tmp_path / "p.yaml").requirements[1]).startswith(f"flagged of {arm}")
        (tmp_path / "p.yaml").write_text(f"{text}  - {{measure: flagged, arm: {arm}, {other}: 0.2}}\n")
        refused(f"flagged must have `{side}`", read_policy, tmp_path / "p.yaml")


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != ATTACK])
def test_a_policy_that_does_not_ask_about_the_attack_is_refused(tmp_path, arm):
    (tmp_path / "p.yaml").write_text(GOOD.replace("arm: eot", f"arm: {arm}"))
    refused("must have a row of the arm eot", read_policy, tmp_path / "p.yaml")


def test_a_policy_that_is_missing_or_too_large_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="bundled policies: classification, classifier, duplicate-finder"):
        read_policy(tmp_path / "none.yaml")
    (tmp_path / "p.yaml").write_text("#" * 70_000)
    refused("larger than 64 KiB", read_policy, tmp_path / "p.yaml")


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_policies_are_valid(path):
    assert read_policy(path.stem) == read_policy(path)


def test_another_encoder_or_threat_is_refused(tmp_path):
    (tmp_path / "p.yaml").write_text(GOOD)
    policy = read_policy(tmp_path / "p.yaml")
    config = {"perturbation": {"name": "linf", "eps": 8 / 255}}
    encoder = {"sha256": "0123456789ab" + "c" * 52, "fingerprint": "f" * 64}
    policies.refuse_other_threat(policy, config)
    policies.refuse_other_encoder(policy, encoder)
    policies.refuse_other_encoder(policy, {"sha256": None, "fingerprint": encoder["sha256"]})
    with pytest.raises(ValueError, match="about weights 0123456789ab; the run's have"):
        policies.refuse_other_encoder(policy, {"sha256": None, "fingerprint": "f" * 64})
    for name, eps in (("l2", 8 / 255), ("linf", 4 / 255), ("linf", None)):
        with pytest.raises(ValueError, match="the policy needs perturbation"):
            policies.refuse_other_threat(policy, {"perturbation": {"name": name, "eps": eps}})
