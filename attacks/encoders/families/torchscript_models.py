"""Networks in TorchScript files."""

import warnings

import torch
from torch import nn

from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import preprocess_from
from attacks.encoders.request import Request, first_line, flat, whole_file


def load(request: Request) -> ImageEncoder:
    """`model` is a file of `torch.jit.save`. It is a program, and could open files: load only files that you trust (a
    preset may not name one, see attacks/run.py).

    The features are the network's output, flattened. Its layers take no hooks: only "output" can be named.

    Use: a network that comes as a TorchScript file that you trust.
    Not: a file of a stranger: it is a program.
    Source: torch.jit.
    Oracle: the file's own output, tests/encoders/families/test_torchscript.py.
    With: encoder.model=network.pt 'encoder.preprocess={size: 224, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}'
    """
    path = whole_file(request)
    preprocess = preprocess_from(request.preprocess, f"{path}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`torch.jit.load` is ")  # deprecated; its user cannot change it
        try:
            network: nn.Module = torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"`encoder.model`: {path} is not a TorchScript file, or not a whole one ({first_line(error)}); a "
                "state_dict needs the network that it is of, and a .pt2 Python (torch.export.load, then unflatten)"
            ) from None
    if not network.state_dict():
        raise ValueError(
            f"`encoder.model`: {path} has no weights that could be moved or widened (torch.jit.freeze makes "
            "constants of them): save it before it is frozen, or pass the module to `attack` from Python"
        )
    return ImageEncoder(network, preprocess, Origin(request.family, request.model, "in the file", path), read=flat)
