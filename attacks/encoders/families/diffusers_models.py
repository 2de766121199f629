"""The latents of a variational autoencoder of diffusers (`AutoencoderKL`), which Stable Diffusion works on."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attacks.encoders.families.folders import model_folder, read_config, read_weights
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import RANDOM, Request, with_seed
from attacks.encoders.weights import fill
from attacks.runtime.extras import extra

_STEM = "diffusion_pytorch_model"
_DECODER = ("decoder.", "post_quant_conv.")


def load(request: Request) -> ImageEncoder:
    """`model` is a folder of an `AutoencoderKL`, or of a pipeline with one in `vae`, or a name on the hub, which the
    local cache may have; `weights` "pretrained" (the folder's), "random", or a file with the library's names.

    The features are the mean of the latents, as a diffusion model gets them: less `shift_factor` where there is one,
    times `scaling_factor`, in a row of channels x height/8 x width/8 (8 of most models).

    Their number follows the size of what the network sees, and views differ in size; so every picture is brought to
    the square that the model was trained on (`sample_size` of its configuration), by the rule of the library's
    `VaeImageProcessor` for a file: Pillow's Lanczos, values in [-1,1]. A victim that gives the library tensors
    instead of files resizes by `preprocess={kernel: torch_nearest}`. `preprocess={size: null}` leaves a picture as
    large as it is, each side down to a multiple of 8, as the library does when it is given no size: then all views
    must have one size.

    Use: the autoencoder that a diffusion model edits in.
    Not: a search by picture: latents keep the place of everything.
    Source: diffusers.
    Oracle: the library's processor and network, tests/encoders/families/test_diffusers.py.
    With: encoder.model=stabilityai/sd-vae-ft-mse

    Raises:
        ValueError, FileNotFoundError: in one line: no such folder or name, no weights or only pickles, another kind
            of autoencoder.
    """
    diffusers = extra("diffusers")
    weights = (f"{_STEM}.safetensors", f"vae/{_STEM}.safetensors")
    folder = model_folder(request, ("config.json", "vae/config.json"), weights)
    folder = folder / "vae" if (folder / "vae").is_dir() else folder
    config = read_config(folder)
    if config.get("_class_name") != "AutoencoderKL":
        raise ValueError(
            f"`encoder.model` {folder} must be an AutoencoderKL; config.json says {config.get('_class_name')!r}"
        )
    try:
        whole = with_seed(lambda: diffusers.AutoencoderKL.from_config(config))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"config.json of {folder} makes no AutoencoderKL ({' '.join(str(error).split())[:200]})"
        ) from None
    network, file = _Encoder(whole), None
    if request.weights != RANDOM:
        state, file, label = read_weights(request, folder, _STEM)
        # The attention of older files, such as sd-vae-ft-mse's, by the names that the library has now.
        for old, new in (("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")):
            state = {name.replace(f".attentions.0.{old}.", f".attentions.0.{new}."): t for name, t in state.items()}
        fill(network, state, label, ignore=_DECODER)
    fields = dict(request.preprocess)
    if "size" in fields and fields["size"] is None:  # `multiple` replaces it
        fields.setdefault("multiple", _reduction(whole.config))
    preprocess = preprocessing(whole.config).replace(fields)
    return ImageEncoder(network, preprocess, replace(request.origin, file=file))


def preprocessing(config: Any) -> Preprocess:
    """What `VaeImageProcessor` does to a picture, at the training size of an autoencoder of this configuration."""
    by = _reduction(config)
    return Preprocess(max(by, config["sample_size"] // by * by), "pil_lanczos", mean=(0.5,) * 3, std=(0.5,) * 3)


def _reduction(config: Any) -> int:
    return int(2 ** (len(config["block_out_channels"]) - 1))


class _Encoder(nn.Module):
    """The half that encodes: pictures in [-1,1] -> latents as a diffusion model gets them, in a row (N,D)."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.encoder, self.quant_conv = whole.encoder, whole.quant_conv
        config = whole.config
        self.scale: float = config["scaling_factor"]
        self.shift: float = config.get("shift_factor") or 0.0
        # Per channel, of the few models that have them; then the scale comes on top.
        self.means, self.stds = (config.get(name) for name in ("latents_mean", "latents_std"))

    def forward(self, pictures: Tensor) -> Tensor:
        answer = self.encoder(pictures)
        if self.quant_conv is not None:
            answer = self.quant_conv(answer)
        latents: Tensor = answer.chunk(2, 1)[0] - self.shift  # the other half is the log of the variance
        if self.means is not None and self.stds is not None:
            means, stds = (latents.new_tensor(values)[:, None, None] for values in (self.means, self.stds))
            latents = (latents - means) / stds
        return (latents * self.scale).flatten(1)
