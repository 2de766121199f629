"""Encoders that installed packages offer."""

from importlib.metadata import EntryPoint, entry_points

from torch import nn

from attacks.encoders.engine.batch_norm import settle_batch_norm
from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import preprocess_from
from attacks.encoders.request import Request, refuse_extras
from attacks.encoders.tree import refuse_unready

GROUP = "viewproof.encoders"


def load(request: Request) -> nn.Module:
    """`model` is the name of an entry point of `GROUP`: a callable without arguments that returns an nn.Module.

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
    point, package = _entry_point(request.model), plugin_package(request.model)
    try:
        module: object = point.load()()
    except Exception as error:  # another package's code
        raise ValueError(
            f"plugin {point.name} of {package} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"plugin {point.name} of {package} must return an nn.Module; got a {type(module).__name__} "
            f"({point.value})"
        )
    if request.preprocess and isinstance(module, ImageEncoder):
        module.preprocess = module.preprocess.replace(request.preprocess)
    elif request.preprocess:
        origin = Origin(request.family, request.model, f"of {package}")
        module = ImageEncoder(module, preprocess_from(request.preprocess, f"plugin {point.name}"), origin)
    refuse_unready(module)
    settle_batch_norm(module)
    return module.eval().requires_grad_(False)


def plugin_package(name: str) -> str:
    """The package that offers a plugin, and its version."""
    point = _entry_point(name)
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _entry_point(name: str) -> EntryPoint:
    all_points = entry_points(group=GROUP)
    points = [point for point in all_points if point.name == name]
    if not points:
        names = ", ".join(sorted({point.name for point in all_points})) or "none is installed"
        raise ValueError(f"`encoder.model` must be the name of a plugin ({names}); got {name!r}")
    if len(points) > 1:
        packages = ", ".join(sorted("?" if point.dist is None else point.dist.name for point in points))
        raise ValueError(f"`encoder.model`: {name} is offered by more than one package ({packages}); uninstall one")
    return points[0]
