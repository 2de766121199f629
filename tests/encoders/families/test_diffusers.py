"""The VAE of diffusers against the library itself: a tiny one with random weights, saved by the library."""

import hashlib
import json
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from attacks.encoders.families.diffusers_models import preprocessing
from attacks.encoders.loading import load_encoder
from tests.helpers import encoder_laws as laws

pytestmark = pytest.mark.families
refused = partial(laws.refusal, family="diffusers")
diffusers = pytest.importorskip("diffusers")

FILE = "diffusion_pytorch_model.safetensors"
TINY = {
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "block_out_channels": (4, 8, 8),
    "norm_num_groups": 2,
    "latent_channels": 3,
}
#: Stable Diffusion 1, 3 (shifted, without the last convolution), and one with statistics of each channel.
KINDS = {
    "plain": {},
    "shifted": {"shift_factor": 0.06, "scaling_factor": 1.5, "use_quant_conv": False, "use_post_quant_conv": False},
    "channels": {"latents_mean": [0.1, -0.2, 0.3], "latents_std": [1.0, 2.0, 0.5]},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folders = {}
    for kind, given in KINDS.items():
        folders[kind] = tmp_path_factory.mktemp(kind)
        torch.manual_seed(1)
        diffusers.AutoencoderKL(**TINY, **given).save_pretrained(folders[kind])
    return folders


def loaded(folder, **options):
    return load_encoder("diffusers", str(folder), **options)


def pictures():
    return torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", KINDS)
def test_features_equal_the_library(saved, kind):
    vae = diffusers.AutoencoderKL.from_pretrained(saved[kind]).eval()
    with torch.no_grad():
        latents = vae.encode(2 * pictures() - 1).latent_dist.mean
    assert latents.shape == (2, 3, 8, 12)
    config = vae.config
    if config.latents_mean is not None:  # as in the pipelines
        means, stds = (torch.tensor(v)[None, :, None, None] for v in (config.latents_mean, config.latents_std))
        latents = (latents - means) / stds
    latents = (latents - (config.shift_factor or 0)) * config.scaling_factor
    features = loaded(saved[kind], preprocess={"size": None})(pictures())
    assert float(features.std()) > 0.01
    torch.testing.assert_close(features, latents.flatten(1), rtol=0, atol=1e-5)


@pytest.fixture
def processor():
    return diffusers.image_processor.VaeImageProcessor(vae_scale_factor=8)


def test_preprocessing_equals_the_processor(processor):
    """Of a file with Pillow's Lanczos, exactly with `eight_bit`; of a tensor, which the library resizes without a
    kernel, with torch's nearest."""
    plain = preprocessing({"block_out_channels": (4, 4, 4, 4), "sample_size": 64})
    plain = plain.replaced({"size": None, "multiple": 8})
    laws.assert_as_tensor(plain.replaced({"kernel": "torch_nearest"}), processor.preprocess)
    laws.assert_as_pil(plain, processor.preprocess, limit=1e-3 / 255)


@pytest.mark.parametrize(("given", "sides"), [({"size": [64, 96]}, (64, 96)), ({}, (32, 32))])
def test_the_number_of_features_does_not_depend_on_the_picture_size(saved, processor, given, sides):
    """By default at the size that the model was trained on, 32 of the tiny one."""
    encoder = loaded(saved["plain"], preprocess=given)
    count = 3 * sides[0] // 4 * sides[1] // 4
    assert encoder(torch.rand(1, 3, 70, 50)).shape == encoder(torch.rand(1, 3, 33, 90)).shape == (1, count)
    sized = encoder.preprocess.replaced({"eight_bit": True})
    for picture in laws.three_pictures().values():
        expected = processor.preprocess(laws.as_pil(picture), height=sides[0], width=sides[1])
        assert float(255 * laws.difference(sized(picture), expected, sized).max()) <= 1e-3


def test_every_pixel_has_a_gradient(saved):
    free = loaded(saved["plain"], preprocess={"size": None}).preprocess
    assert free.multiple == 4  # two halvings
    for preprocess in (free, loaded(saved["plain"]).preprocess):
        for sides in ((480, 640), (481, 639)):
            assert laws.assert_every_pixel_counts(preprocess, *sides) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_exact(saved, kind):
    laws.assert_gradient_is_exact(loaded(saved[kind]))


def test_the_decoder_is_not_loaded(saved):
    names = dict(loaded(saved["plain"]).network.named_modules())
    assert "encoder.mid_block.attentions.0" in names
    assert not any(name.startswith(("decoder", "post_quant")) for name in names)


def test_a_pipelines_vae_is_found(saved, tmp_path):
    shutil.copytree(saved["plain"], tmp_path / "vae")
    (tmp_path / "model_index.json").write_text("{}")
    whole, part = loaded(tmp_path), loaded(saved["plain"])
    assert whole.fingerprint() == part.fingerprint()
    assert whole.origin.digest() == hashlib.sha256((saved["plain"] / FILE).read_bytes()).hexdigest()


def test_half_precision_weights_and_older_names_are_read(saved, tmp_path):
    state = load_file(saved["plain"] / FILE)
    save_file({name: tensor.half() for name, tensor in state.items()}, tmp_path / "half.safetensors")
    half = loaded(saved["plain"], weights=tmp_path / "half.safetensors")
    assert half.origin.file == tmp_path / "half.safetensors"
    wanted = loaded(saved["plain"]).network.state_dict()
    for name, weight in half.network.state_dict().items():
        assert torch.equal(weight, wanted[name].half().float())
    for name, old in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
        state = {key.replace(f".{name}.", f".{old}."): tensor for key, tensor in state.items()}
    folder = tmp_path / "old"
    shutil.copytree(saved["plain"], folder)
    save_file(state, folder / FILE)
    library = diffusers.AutoencoderKL.from_pretrained(folder).encoder.state_dict()
    old = loaded(folder)
    laws.assert_same_weights(old.network.encoder, library)
    assert old.fingerprint() == loaded(saved["plain"]).fingerprint()


def test_random_weights_are_the_same_every_time(saved):
    random = laws.assert_random_weights_repeat("diffusers", saved["plain"])
    assert random.fingerprint() != loaded(saved["plain"]).fingerprint()


def test_errors_have_one_line(saved, tmp_path):
    refused("has no config.json", tmp_path, FileNotFoundError)
    refused("no folder here, and no name on the hub", "./nowhere", FileNotFoundError)
    refused("`encoder.pool` is for transformers", saved["plain"], pool="mean")
    refused("must be pretrained, random or a file; got 'ema'", saved["plain"], weights="ema")
    folder = tmp_path / "vae"
    shutil.copytree(saved["plain"], folder)
    (folder / FILE).unlink()
    refused(f"has no {FILE} .*: give the weights", folder, FileNotFoundError)
    (folder / "diffusion_pytorch_model.bin").write_bytes(b"never read")
    refused("only diffusion_pytorch_model.bin: a pickle can run code", folder)
    state = load_file(saved["plain"] / FILE)
    state.pop("encoder.conv_in.bias")
    save_file(state, folder / FILE)
    refused("1 keys missing", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_class_name": "AutoencoderTiny"}))
    refused("must be an AutoencoderKL; config.json says 'AutoencoderTiny'", folder)
    (folder / "config.json").write_text(json.dumps(config | {"down_block_types": ["Nothing"] * 3}))
    refused("makes no AutoencoderKL", folder)


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_error_has_one_line():
    refused("nobody/nothing of the hub could not be fetched", "nobody/nothing")
