"""Encoders that installed packages offer."""

from torch import nn

from attacks.encoders.engine.batch_norm import settle_batch_norm
from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import preprocess_from
from attacks.encoders.request import Request, refuse_extras
from attacks.encoders.tree import refuse_unready
from attacks.runtime.plugins import plugin


def load(request: Request) -> nn.Module:
    """`model` is the name of an entry point: a callable without arguments that returns an nn.Module.

        [project.entry-points."viewproof.encoders"]
        my_encoder = "my_package:make"

    The module maps (N,3,H,W) in [0,1] to (N,D); or it takes normalised pictures, and `preprocess` is their
    preprocessing. Of an `ImageEncoder`, `preprocess` replaces the fields that it names.

    Use: an encoder of your own that is installed as a package.
    Not: a module that Python has at hand: pass it to `attack` itself.
    Source: the entry points of Python packages.
    Oracle: an installed package, tests/encoders/families/test_plugins.py.
    With: encoder.model=my_encoder
    """
    refuse_extras(request)
    part = plugin("encoder", request.model)
    module: object = part.make()
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"plugin {part.name} of {part.package} must return an nn.Module; got a {type(module).__name__} "
            f"({part.source.value})"
        )
    if request.preprocess and isinstance(module, ImageEncoder):
        module.preprocess = module.preprocess.replace(request.preprocess)
    elif request.preprocess:
        origin = Origin(request.family, request.model, f"of {part.package}")
        module = ImageEncoder(module, preprocess_from(request.preprocess, f"plugin {part.name}"), origin)
    refuse_unready(module)
    settle_batch_norm(module)
    return module.eval().requires_grad_(False)
