"""What is particular to the VAE of diffusers: its sizes, its files, the decoder that is not loaded."""

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
from tests.helpers.tiny_models import VAES, latents

pytestmark = pytest.mark.families
refusal = partial(laws.refusal, family="diffusers")
load = partial(load_encoder, "diffusers")
diffusers = pytest.importorskip("diffusers")
FILE = "diffusion_pytorch_model.safetensors"


@pytest.mark.parametrize("kind", VAES)
def test_without_a_size_the_features_are_the_latents_of_the_picture(tiny_folder, kind):
    vae = diffusers.AutoencoderKL.from_pretrained(tiny_folder(kind)).eval()
    pictures = torch.rand(2, 3, 32, 48)
    encoder = load(str(tiny_folder(kind)), preprocess={"size": None})
    torch.testing.assert_close(encoder(pictures), latents(vae, 2 * pictures - 1), rtol=0, atol=1e-5)
    assert encoder.preprocess.multiple == 4  # two halvings
    assert laws.assert_every_pixel_counts(encoder.preprocess, 481, 639) == 1.0


def test_preprocessing_equals_the_processor():
    """Of a file with Pillow's Lanczos, exactly with `eight_bit`; of a tensor, which the library resizes without a
    kernel, with torch's nearest."""
    processor = diffusers.image_processor.VaeImageProcessor(vae_scale_factor=8)
    plain = preprocessing({"block_out_channels": (4, 4, 4, 4), "sample_size": 64})
    plain = plain.replace({"size": None, "multiple": 8})
    laws.assert_as_tensor(plain.replace({"kernel": "torch_nearest"}), processor.preprocess)
    laws.assert_as_pil(plain, processor.preprocess, limit=1e-3 / 255)


@pytest.mark.parametrize(("size", "count"), [([64, 96], 3 * 16 * 24), (None, 3 * 8 * 8)])
def test_the_number_of_features_does_not_depend_on_the_picture_size(tiny_folder, size, count):
    """By default at the size that the model was trained on, 32 of the tiny one."""
    encoder = load(str(tiny_folder("plain")), preprocess={"size": size} if size else {})
    assert encoder(torch.rand(1, 3, 70, 50)).shape == encoder(torch.rand(1, 3, 33, 90)).shape == (1, count)


def test_a_pipelines_vae_is_found_without_its_decoder(tiny_folder, tmp_path):
    shutil.copytree(tiny_folder("plain"), tmp_path / "vae")
    (tmp_path / "model_index.json").write_text("{}")
    pipeline, vae = load(str(tmp_path)), load(str(tiny_folder("plain")))
    assert pipeline.fingerprint() == vae.fingerprint()
    assert pipeline.origin.digest() == hashlib.sha256((tiny_folder("plain") / FILE).read_bytes()).hexdigest()
    names = dict(vae.network.named_modules())
    assert "encoder.mid_block.attentions.0" in names
    assert not any(name.startswith(("decoder", "post_quant")) for name in names)


def test_half_precision_weights_and_older_names_are_read(tiny_folder, tmp_path):
    state = load_file(tiny_folder("plain") / FILE)
    save_file({name: tensor.half() for name, tensor in state.items()}, tmp_path / "half.safetensors")
    files = {"weights": tmp_path / "half.safetensors"}, {}
    half, plain = (load(str(tiny_folder("plain")), **file) for file in files)
    laws.assert_same_weights(half.network, plain.network.half().state_dict())
    for name, old in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
        state = {key.replace(f".{name}.", f".{old}."): tensor for key, tensor in state.items()}
    folder = tmp_path / "old"
    shutil.copytree(tiny_folder("plain"), folder)
    save_file(state, folder / FILE)
    library = diffusers.AutoencoderKL.from_pretrained(folder).encoder.state_dict()
    laws.assert_same_weights(load(str(folder)).network.encoder, library)


def test_errors_have_one_line(tiny_folder, tmp_path):
    refusal("has no config.json", tmp_path, FileNotFoundError)
    folder = tmp_path / "vae"
    shutil.copytree(tiny_folder("plain"), folder)
    (folder / FILE).unlink()
    refusal(f"has no {FILE} .*: give the weights", folder, FileNotFoundError)
    (folder / "diffusion_pytorch_model.bin").write_bytes(b"never read")
    refusal("only diffusion_pytorch_model.bin: a pickle can run code", folder)
    state = load_file(tiny_folder("plain") / FILE)
    state.pop("encoder.conv_in.bias")
    save_file(state, folder / FILE)
    refusal("1 keys missing", folder)
    config = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"_class_name": "AutoencoderTiny"}, "must be an AutoencoderKL; config.json says 'AutoencoderTiny'"),
        ({"down_block_types": ["Nothing"] * 3}, "makes no AutoencoderKL"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        refusal(message, folder)
