"""Vision towers within vision-language models of transformers, and others, against the library's own calls."""

import json
import shutil

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from attacks.encoders.families.processor import preprocessing
from attacks.encoders.families.towers import tower_inputs
from attacks.encoders.layers import Layers
from attacks.encoders.loading import load_encoder
from attacks.encoders.preprocess import by_area, by_patches, fit_within
from tests.helpers import encoder_laws as laws

pytestmark = pytest.mark.families
hf = pytest.importorskip("transformers")
from tests.helpers import tiny_models as tiny  # noqa: E402

KINDS = tuple(tiny.KINDS)
#: With a language model beside the tower: what the tower and its projector are called.
WHOLE = {"blip2": ("vision_model", "language_projection")}
WHOLE |= dict.fromkeys(("idefics3", "smolvlm"), ("vision_model", "connector"))
WHOLE |= dict.fromkeys(("qwen2-vl", "qwen2.5-vl"), ("visual", "visual.merger"))
LLAVAS = ("llava", "paligemma", "pixtral", "llava-next", "llava-onevision")
WHOLE |= dict.fromkeys(LLAVAS, ("vision_tower", "multi_modal_projector"))


def load(folder, **options):
    return load_encoder("transformers", str(folder), **options)


def pictures(height, width, count=2):
    return laws.levels(count, 3, height, width).float()


@pytest.mark.parametrize("kind", WHOLE)
def test_tokens_before_and_after_the_projector(tiny_folder, kind):
    tower_name, projector_name = WHOLE[kind]
    images = pictures(40, 60)
    answer = tiny.library_output(tiny_folder(kind), kind, [laws.as_pil(image[None]) for image in images])
    tokens = torch.stack(tuple(answer.pooler_output))
    names = {tower_name: "tokens", projector_name: "tokens", "output": "flat"}
    with Layers(load(tiny_folder(kind)), names) as layers:
        features = layers(images)
    inner = answer.last_hidden_state.reshape(features[tower_name].shape)
    torch.testing.assert_close(features[tower_name], inner, rtol=0, atol=1e-4)
    if kind == "qwen2.5-vl":  # its layers take the tokens in the order of their windows
        features[projector_name], tokens = (value.mean(1) for value in (features[projector_name], tokens))
    if kind not in ("llava-next", "llava-onevision"):  # they leave out the border and mark the ends of rows
        torch.testing.assert_close(features[projector_name], tokens, rtol=0, atol=1e-4)
    torch.testing.assert_close(features["output"], tiny.pooled_rows(answer), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", WHOLE)
def test_the_language_model_is_not_read(tiny_folder, kind, tmp_path):
    """Without its tensors the folder gives the same encoder, and without one of the tower's it is refused."""
    folder = tmp_path / kind
    shutil.copytree(tiny_folder(kind), folder)
    state = load_file(folder / "model.safetensors")
    tower = {name: tensor for name, tensor in state.items() if "language_model" not in name}
    save_file(tower, folder / "model.safetensors", {"format": "pt"})
    encoder = load(tiny_folder(kind))
    assert load(folder).fingerprint() == encoder.fingerprint()
    assert sum(tensor.numel() for tensor in tower.values()) >= sum(p.numel() for p in encoder.parameters())
    tower.pop(next(name for name in tower if ".patch_" in name))
    save_file(tower, folder / "model.safetensors", {"format": "pt"})
    laws.refusal(r"do not fit \w+: 1 keys missing", folder, family="transformers")


def patches(kind, preprocess, picture):
    return tower_inputs(tiny.make_processor(kind))(preprocess(picture))


def gap(values, expected, preprocess):
    """The largest difference on the scale of [0,1]."""
    return max(preprocess.std) * float((values.double() - expected.double()).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_pixels_equal_the_processor(tiny_folder, kind):
    """Of 8-bit pictures, to the level. The other arguments, of grids and masks, are equal."""
    processor = tiny.make_processor(kind)
    preprocess = preprocessing(processor)
    for picture in (*laws.three_pictures().values(), laws.levels(1, 3, 300, 200)):
        expected = processor(laws.as_pil(picture), return_tensors="pt")
        values = patches(kind, preprocess, picture)
        limit = (1e-3 if preprocess.eight_bit else 1e-2) / 255
        assert gap(values["pixel_values"], expected.pixel_values, preprocess) <= limit
        for key in expected.keys() - {"pixel_values"}:
            assert torch.as_tensor(values[key]).tolist() == torch.as_tensor(expected[key]).tolist(), key


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("kind", ["llava", "qwen2-vl"])
def test_of_a_name_on_the_hub_only_the_files_with_the_tower_are_fetched(tiny_folder, kind, tmp_path, monkeypatch):
    state, model_folder, names_of_files = load_file(tiny_folder(kind) / "model.safetensors"), tmp_path / "whole", []
    shutil.copytree(tiny_folder(kind), model_folder)
    (model_folder / "model.safetensors").unlink()
    places = {name: f"model-{i % 2 if 'language' in name else 2}.safetensors" for i, name in enumerate(state)}
    for file in set(places.values()):
        save_file({name: state[name] for name in state if places[name] == file}, model_folder / file)
    (model_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    def snapshot_download(name, *, revision="b" * 40, allow_patterns, local_files_only=False):
        assert name == "some/model" and revision == "b" * 40
        if local_files_only:
            raise FileNotFoundError("empty cache")
        (snapshot := tmp_path / revision).mkdir(exist_ok=True)
        for file in model_folder.iterdir():
            if any(file.match(pattern) for pattern in allow_patterns):
                shutil.copy(file, snapshot)
                names_of_files.append(file.name)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert load("some/model").fingerprint() == load(tiny_folder(kind)).fingerprint()
    assert [name for name in names_of_files if name.endswith(".safetensors")] == ["model-2.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llava", "llava-next", "idefics3", "qwen2-vl"])
def test_half_precision_is_that_of_the_tower(kind, dtype, tmp_path):
    network = getattr(hf, tiny.KINDS[kind][0])(tiny.make_config(kind)).to(dtype)
    network.save_pretrained(tmp_path)
    tiny.make_processor(kind).save_pretrained(tmp_path)
    answers = []
    for precision in ("own", "float32"):
        images = pictures(40, 60).requires_grad_()
        features = load(tmp_path, precision=precision)(images)
        features.square().sum().backward()
        answers += [features.detach(), images.grad]
    assert answers[0].dtype == torch.float32 and not torch.equal(answers[0], answers[2])
    for half, wide in zip(answers[:2], answers[2:], strict=True):
        assert float((half - wide).norm() / wide.norm()) < 16 * torch.finfo(dtype).eps


SIDES = st.integers(4, 900)


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES, st.integers(2, 30), st.integers(50, 3000))
def test_sizes_are_those_of_the_library(height, width, patch, limit):
    """Of every picture; a side of the library's may be none or zero, where one patch is the least."""
    from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
    from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

    assume(max(height, width) / min(height, width) <= 200)
    limits = (patch * patch * 4, patch * patch * limit)
    expected = smart_resize(height, width, patch, *limits)
    assert by_area(height, width, limits, patch) == tuple(max(patch, side) for side in expected)
    assert by_patches(height, width, limit, patch) == get_image_size_for_max_num_patches(height, width, patch, limit)
    expected = get_resize_output_image_size(torch.empty(3, height, width), limit, patch, "channels_first")
    assert fit_within(height, width, (limit, limit), patch) == tuple(max(patch, side) for side in expected)


@pytest.mark.parametrize("kind", ["anyres", "split"])
@settings(max_examples=60, deadline=None)
@given(height=st.integers(4, 90), width=st.integers(4, 90))
def test_tiles_are_those_of_the_library(kind, height, width):
    """Their number and their values, of every size of picture."""
    name = {"anyres": "llava-next", "split": "idefics3"}[kind]
    processor, picture = tiny.make_processor(name), pictures(height, width, 1)
    expected = processor(laws.as_pil(picture), return_tensors="pt").pixel_values
    values = patches(name, preprocessing(processor), picture)["pixel_values"]
    assert values.shape == expected.shape
    assert gap(values, expected, preprocessing(processor)) <= 1e-3 / 255
