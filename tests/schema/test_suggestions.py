"""The error for a mistyped key or choice suggests the right one, in one line."""

import pytest

from attacks.run import compose
from attacks.schema.suggestions import keys, suggestion

#: Argument -> suggestion.
MEANT = {
    "eps=8/255": "perturbation.eps=8/255",
    "steps=10": "attack.steps=10",
    "attack=pgd": "optimiser=pgd",
    "attack.eps=3": "perturbation.eps=3",
    "encoder=resnet50": "encoder=torchvision encoder.model=resnet50",
    "encoder=ViT-B-32": "encoder=open_clip encoder.model=ViT-B-32",
    "optimizer=pgd": "optimiser=pgd",
    "optimizer.momentm=0.5": "optimiser.momentum=0.5",
    "optimiser.lr=2": "optimiser=sgd optimiser.lr=2",
    "config=quikstart": "config=quickstart",
    "perturbation=Linf": "perturbation=linf",
    "evaluate.view=3": "evaluate.views=3",
    "epsilon=8/255": "perturbation.eps=8/255",
    "attack.iterations=10": "attack.steps=10",
    "encoder=dinov2": "encoder=transformers encoder.model=facebook/dinov2-small",
    "objective=untargeted": "objective=away",
}


@pytest.mark.slow
@pytest.mark.parametrize("word", MEANT)
def test_mistyped_key_or_choice_gets_the_right_suggestion(word):
    with pytest.raises(ValueError, match="did you mean") as caught:
        if word.startswith("config="):
            compose(word.removeprefix("config="))
        else:
            compose("smoke", [word])
    assert str(caught.value).endswith(f"did you mean {MEANT[word]}?")
    assert str(caught.value).isprintable()


def test_correct_or_unrecognisable_arguments_get_no_suggestion():
    for word in ("attack.steps=3", "seed", "optimiser=pgd", "nonsense.x=3", "hydra.run.dir=x", "objective=xyzzy"):
        assert suggestion(word) is None
    for key, owners in keys().items():
        assert suggestion(key) is None or owners, key


REFUSED = {
    "attack.steps=four": "`attack.steps` must be a whole number; got four",
    "attack.steps=[1]": "`attack.steps` must be a whole number; got [1]",
    "transforms.deterministic=maybe": "`transforms.deterministic` must be true or false; got maybe",
    "attack=sweet": "`attack=sweet` is unknown: attack is single, suite, radius",
    "transforms.stages.afine.shear=3": "downscale; did you mean affine?",
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_wrong_type_an_unknown_choice_and_a_mistyped_stage_are_refused_in_one_line(word):
    with pytest.raises(ValueError, match="`") as caught:
        compose("smoke", [word])
    assert str(caught.value).endswith(REFUSED[word]) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_error_for_a_stage_missing_from_the_preset_proposes_a_plus():
    for word in ("transforms.stages.cutout.size=[0.2,0.4]", "transforms.stages.affine.shear=3"):
        with pytest.raises(ValueError, match=r"is added with a plus: \+transforms\.stages\.\w+"):
            compose("smoke", [word])
        compose("smoke", [f"+{word}"])
