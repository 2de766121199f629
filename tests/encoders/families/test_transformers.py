"""What is particular to transformers: pools, processors, texts, folders, and code that is never run."""

import hashlib
import json
import shutil
from functools import partial

import pytest
import torch

from attacks.encoders.families.processor import preprocessing
from attacks.encoders.loading import load_encoder
from tests.helpers import encoder_laws as laws
from tests.helpers.sampling import mostly_slow
from tests.helpers.tiny_models import SQUARE, VISION, make_config, make_processor

pytestmark = pytest.mark.families
refusal = partial(laws.refusal, family="transformers")
hf = pytest.importorskip("transformers")

#: Kind -> the number of tokens before the patches.
PREFIX = {"clip": 1, "siglip": 0, "dinov2": 1, "registers": 4, "dinov3": 4, "convnext": 1, "vit": 1}


def copy_folder(tiny_folder, kind, tmp_path, **changes):
    """A copy of the folder with some keys of config.json changed."""
    folder = tmp_path / kind
    shutil.copytree(tiny_folder(kind), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def load(folder, **options):
    return load_encoder("transformers", str(folder), **options)


def pictures(count=2):
    return laws.levels(count, 3, 40, 60).float()


@pytest.mark.parametrize("kind", PREFIX)
@torch.no_grad()
def test_pools_equal_the_library(tiny_folder, kind):
    network = hf.AutoModel.from_pretrained(tiny_folder(kind)).eval()
    tower, first, encoder = getattr(network, "vision_model", network), PREFIX[kind], load(tiny_folder(kind))
    tokens = tower(encoder.preprocess(pictures())).last_hidden_state
    pools = {"pooled": encoder(pictures()), "mean": tokens[:, first:].mean(1)}
    for pool, expected in (pools | ({"cls": tokens[:, 0]} if first else {})).items():
        features = load(tiny_folder(kind), pool=pool)(pictures())
        assert float(expected.std()) > 0.01
        torch.testing.assert_close(features, expected, rtol=0, atol=1e-4)


def crop(short, height, width):
    return {"size": {"shortest_edge": short}, "crop_size": {"height": height, "width": width}}


PROCESSORS = {
    "clip": ("CLIPImageProcessor", {}),
    "siglip": ("SiglipImageProcessor", {}),
    "dinov2": ("BitImageProcessor", crop(256, 224, 224)),
    "odd margins": ("CLIPImageProcessor", crop(101, 90, 92)),
    "smaller than the crop": ("CLIPImageProcessor", crop(51, 90, 60)),
    "dinov3": ("DINOv3ViTImageProcessor", {}),
    "vit": ("ViTImageProcessor", {}),
    "lanczos": ("ViTImageProcessor", {"resample": 1, "size": {"height": 90, "width": 120}}),
    "nearest": ("ViTImageProcessor", {"resample": 0, "size": {"height": 90, "width": 120}}),
    "box": ("ViTImageProcessor", {"resample": 4}),
    "larger": ("SiglipImageProcessor", {"size": {"height": 600, "width": 700}}),
    "convnext": ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}),
    "convnext large": ("ConvNextImageProcessor", {}),
    "no resize": ("CLIPImageProcessor", {"do_resize": False}),
    "no normalise": ("ViTImageProcessor", {"do_normalize": False}),
    "0 to 2": ("ViTImageProcessor", {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}),
}


#: Refused, for no `Preprocess` is equal to it, or the processor itself fails.
UNSUPPORTED = {
    "torchvision": {"box": "resample=4"},
    "pil": dict.fromkeys(("convnext", "convnext large"), "_preprocess")
    | dict.fromkeys(("smaller than the crop", "no resize"), "do_center_crop"),
}


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("name", mostly_slow(PROCESSORS, 2))
def test_preprocessing_equals_the_processor(name, backend, tmp_path):
    """Of 8-bit pictures, to the level: which library resizes, in which order, and where it rounds and clips."""
    kind, settings = PROCESSORS[name]
    getattr(hf, kind)(**settings).save_pretrained(tmp_path)
    processor = hf.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)  # DINOv3's has one form
    if name in UNSUPPORTED[backend]:
        with pytest.raises(ValueError, match=f"has a step .* cannot express: {UNSUPPORTED[backend][name]}"):
            preprocessing(processor)
        return
    preprocess = preprocessing(processor)
    for picture in (laws.levels(1, 3, 300, 200), laws.levels(1, 3, 110, 333), laws.three_pictures()["portrait"]):
        expected = processor(laws.as_pil(picture), return_tensors="pt").pixel_values
        limit = (1e-3 if preprocess.eight_bit else 1e-2) / 255
        assert float(laws.difference(preprocess(picture), expected, preprocess).max()) <= limit


def test_layer_names_are_those_of_the_library_without_the_text_tower(tiny_folder):
    clip = dict(load(tiny_folder("clip")).network.named_modules())
    assert "vision_model.encoder.layers.1.mlp" in clip
    siglip = dict(load(tiny_folder("siglip")).network.named_modules())
    assert "encoder.layers.1.mlp" in siglip
    assert not any("text" in name for name in [*clip, *siglip])


def tokenizer(folder):
    """Ten words, the end token and the padding, saved as a tokenizer of the library."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    model = Tokenizer(models.WordLevel({"?": 0, "</s>": 1, **{f"w{i}": i + 2 for i in range(10)}}, unk_token="?"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    hf.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="?", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(folder)


@pytest.mark.parametrize(("kind", "padding"), [("clip", True), ("altclip", True), ("siglip", "max_length")])
def test_texts_equal_the_library(tiny_folder, kind, padding, tmp_path):
    folder = copy_folder(tiny_folder, kind, tmp_path)
    assert load(folder).texts is None
    tokenizer(folder)
    texts = ["w1 w2", "w3", "w4 w5 w6 w7 w8 w9 w1 w2 w3 w4 w5 w6"]  # the last is too long and truncated
    network, tokenize = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    inputs = tokenize(texts, padding=padding, truncation=True, max_length=9, return_tensors="pt")
    assert inputs.input_ids.shape == (3, 9)
    with torch.no_grad():
        expected = network.get_text_features(**inputs).pooler_output
    encoder = load(folder)
    torch.testing.assert_close(encoder.texts(texts), expected, rtol=0, atol=1e-6)
    assert encoder.texts(texts).shape[1] == encoder(pictures()).shape[1]
    assert load(folder, pool="mean").texts is None  # another feature space
    if padding == "max_length":  # a single text is padded too
        torch.testing.assert_close(encoder.texts(texts[:1]), expected[:1], rtol=0, atol=1e-5)


def test_a_file_of_weights_may_lie_in_another_folder(tiny_folder, tmp_path):
    folder, file = tiny_folder("vit"), tmp_path / "mine.safetensors"
    shutil.copy(folder / "model.safetensors", file)
    other = load(folder, weights=file)
    assert other.origin.digest() == hashlib.sha256(file.read_bytes()).hexdigest()
    assert other.origin.file == file and torch.equal(other(pictures()), load(folder)(pictures()))


def test_half_precision_is_kept_or_widened_and_shards_are_read(tiny_folder, tmp_path):
    network = hf.AutoModel.from_pretrained(tiny_folder("dinov2")).half()
    network.save_pretrained(tmp_path, max_shard_size="4KB")
    make_processor("dinov2").save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    for precision, dtype in (("own", torch.float16), ("float32", torch.float32)):
        encoder = load(tmp_path, precision=precision)
        assert encoder.origin.file is None
        for name, weight in encoder.network.state_dict().items():
            assert weight.dtype == dtype
            assert torch.equal(weight, network.state_dict()[name].to(dtype))
    assert {w.dtype for w in load(tmp_path, weights="random").parameters()} == {torch.float32}


def test_classifier_weights_load_without_a_pooler(tiny_folder, tmp_path):
    torch.manual_seed(0)
    network = hf.ViTForImageClassification(make_config("vit")).eval()
    network.save_pretrained(tmp_path)
    make_processor("vit").save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    default, cls = load(tmp_path), load(tmp_path, pool="cls")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(default(pictures()), cls(pictures()))
    with torch.no_grad():
        expected = network.vit(default.preprocess(pictures())).last_hidden_state[:, 0]
    torch.testing.assert_close(cls(pictures()), expected, rtol=0, atol=1e-5)
    message = "pools nothing itself, or its weights lack that layer; take cls or mean"
    refusal(message, tmp_path, pool="pooled")


def test_a_tower_saved_by_itself_keeps_its_projection(tmp_path):
    torch.manual_seed(0)
    network = hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**VISION, projection_dim=7)).eval()
    network.save_pretrained(tmp_path)
    make_processor("clip").save_pretrained(tmp_path)
    encoder = load(tmp_path)
    with torch.no_grad():
        expected = network(encoder.preprocess(pictures())).image_embeds
    assert expected.shape == (2, 7)
    torch.testing.assert_close(encoder(pictures()), expected, rtol=0, atol=1e-5)


# --- refusals in one line; code that comes with a model is never run ---


@pytest.mark.usefixtures("offline")
def test_a_folder_of_the_hub_cache_loads(tiny_folder, tmp_path):
    place = tmp_path / "models--some--vit"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    shutil.copytree(tiny_folder("vit"), place / "snapshots" / ("a" * 40))
    assert load("some/vit").fingerprint() == load(tiny_folder("vit")).fingerprint()
    assert load("some/vit").origin.file.name == "model.safetensors"
    (place / "snapshots" / ("a" * 40) / "model.safetensors").unlink()
    refusal("has no model.safetensors", "some/vit", kind=FileNotFoundError)
    assert load("some/vit", weights="random").title == "transformers:some/vit"


def test_a_folder_with_missing_files_is_refused(tiny_folder, tmp_path):
    refusal("has no config.json", tmp_path, kind=FileNotFoundError)
    folder = copy_folder(tiny_folder, "vit", tmp_path)
    (folder / "model.safetensors").unlink()
    refusal(r"has no model.safetensors .*: give the weights as encoder.weights=FILE", folder, kind=FileNotFoundError)
    assert load(folder, weights="random")
    (folder / "preprocessor_config.json").unlink()
    refusal(r"says nothing of its preprocessing: give `encoder.preprocess.size`", folder, weights="random")
    fields = {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert load(folder, weights="random", preprocess=fields).preprocess.size == 32


def test_a_pickle_is_refused_unread(tiny_folder, tmp_path):
    folder = copy_folder(tiny_folder, "vit", tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"layernorm.bias": laws.Bomb()}, folder / "pytorch_model.bin")
    refusal(r"has no model.safetensors, only pytorch_model.bin: a pickle can run code .* refused", folder)
    refusal("more than tensors.*refused", folder, weights=folder / "pytorch_model.bin")


def test_code_that_comes_with_a_model_is_never_run(tiny_folder, tmp_path):
    folder, witness = copy_folder(tiny_folder, "vit", tmp_path), tmp_path / "witness"
    (folder / "mine.py").write_text(f"open({str(witness)!r}, 'w').write('run')\nclass Mine: pass\n")
    code = {"AutoConfig": "mine.Mine", "AutoModel": "mine.Mine", "AutoImageProcessor": "mine.Mine"}
    config = json.loads((folder / "config.json").read_text()) | {"auto_map": code}
    (folder / "config.json").write_text(json.dumps(config))
    processor = json.loads((folder / "preprocessor_config.json").read_text()) | {"auto_map": code}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    assert load(folder).fingerprint() == load(tiny_folder("vit")).fingerprint()  # a model type of the library
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"image_processor_type": "Mine"}))
    (folder / "config.json").write_text(json.dumps(config | {"image_processor_type": "Mine"}))
    refusal(r"the image processor of .* cannot be read by transformers: .* custom code", folder)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    refusal(r"has no model_type 'mine'; the code that comes with it \(auto_map\) is never run", folder)
    assert not witness.exists()


@pytest.mark.parametrize("place", ["in the file", "in another file", "in a part"])
def test_a_quantised_model_is_refused(tiny_folder, tmp_path, place):
    config = json.loads((tiny_folder("clip") / "config.json").read_text())
    quantised = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    changes = {"in the file": quantised, "in a part": {"text_config": config["text_config"] | quantised}}
    other = {"configuration_files": ["config.4.0.0.json"]}
    folder = copy_folder(tiny_folder, "clip", tmp_path, **changes.get(place, other))
    (folder / "config.4.0.0.json").write_text(json.dumps(config | quantised))
    refusal("is quantised, and has no exact gradient", folder)


def test_an_attention_kernel_from_the_hub_is_ignored(tiny_folder, tmp_path):
    """`attn_implementation` may name a repository with a kernel, which is code."""
    config = json.loads((tiny_folder("clip") / "config.json").read_text())
    config["vision_config"]["attn_implementation"] = "somebody/kernel"
    changes = {"attn_implementation": "somebody/kernel", "vision_config": config["vision_config"]}
    folder = copy_folder(tiny_folder, "clip", tmp_path, **changes)
    for weights in ("pretrained", "random"):
        network = load(folder, weights=weights).network.vision_model
        assert network.config._attn_implementation == "sdpa"


def test_an_index_cannot_leave_its_folder(tiny_folder, tmp_path):
    folder = copy_folder(tiny_folder, "vit", tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "other.safetensors")
    for places in ({"a": "../other.safetensors"}, {"a": "pytorch_model.bin"}, ["model.safetensors"]):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        refusal("model.safetensors.index.json must list safetensors beside it", folder)


def test_weights_of_another_model_are_refused(tiny_folder, tmp_path):
    folder = copy_folder(tiny_folder, "vit", tmp_path, hidden_size=32)
    refusal(r"do not fit ViTModel: 0 keys missing, \d+ of another shape \(first: .*\(1, 1, 16\), must be", folder)
    other = tiny_folder("siglip") / "model.safetensors"
    refusal(r"do not fit ViTModel: \d+ keys missing.*are they of another model", tiny_folder("vit"), weights=other)


def test_tokens_that_are_not_the_patches_are_refused(tmp_path):
    """A masked autoencoder drops three patches of four at random."""
    hf.ViTMAEModel(hf.ViTMAEConfig(**VISION)).save_pretrained(tmp_path)
    make_processor("vit").save_pretrained(tmp_path)
    for pool in (None, "cls", "mean"):
        refusal(r"nothing says where its patches are", tmp_path, pool=pool)


@pytest.mark.parametrize(
    ("name", "settings", "step"),
    [
        ("PoolFormerImageProcessor", {}, "_preprocess"),
        ("EfficientNetImageProcessor", {}, "_fuse_mean_std_and_rescale_factor"),
        ("ViTImageProcessor", SQUARE | {"do_pad": True, "pad_size": SQUARE["size"]}, "do_pad"),
        ("ViTImageProcessor", SQUARE | {"resample": 5}, "resample=5"),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 20, "longest_edge": 40}}, "size="),
        ("CLIPImageProcessor", {"size": {"longest_edge": 40}}, "size="),
        ("ConvNextImageProcessor", {"do_center_crop": True, "crop_size": SQUARE["size"]}, "do_center_crop"),
        ("LlavaImageProcessor", {"do_pad": True}, "do_pad"),
        ("Idefics3ImageProcessor", {"do_image_splitting": False}, "do_image_splitting=False"),
        ("LlavaNextImageProcessor", {"crop_size": {"height": 200, "width": 200}}, "crop_size of a tile"),
        ("PixtralImageProcessor", {"do_center_crop": True, "crop_size": SQUARE["size"]}, "do_center_crop"),
        ("Gemma3ImageProcessor", {}, "_preprocess"),
    ],
)
def test_an_unsupported_step_is_named(tiny_folder, tmp_path, name, settings, step):
    folder = copy_folder(tiny_folder, "vit", tmp_path)
    getattr(hf, name)(**settings).save_pretrained(folder)
    refusal(rf"the processor {name} has a step that .* cannot express: {step}", folder)
