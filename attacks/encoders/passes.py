"""How many passes of a network one call of an encoder takes: those of a defence that looks at several views."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from attacks.encoders.tree import Encoder, Tree, optional
from transforms.doors import unchecked


class Passes(NamedTuple):
    """Of one picture in one call: `forward` passes; `backward` passes of a call whose pictures require a gradient;
    and `inner`, those of a call whose pictures do not, as of a defence that follows gradients itself."""

    forward: int = 1
    backward: int = 1
    inner: int = 0

    def nest(self, outer: "Passes") -> "Passes":
        """Where each pass of an `outer` encoder is such a call."""
        backward, inner = (self.of_calls(outer.forward, slopes)[1] for slopes in (outer.backward, outer.inner))
        return Passes(outer.forward * self.forward, backward, inner)

    def of_calls(self, pictures: int, slopes: int) -> tuple[int, int]:
        """The forward and backward passes for so many pictures, of which `slopes` require a gradient."""
        return pictures * self.forward, slopes * self.backward + (pictures - slopes) * self.inner


def passes_of(encoder: object, only: int | None = None) -> Passes:
    """The passes of an encoder, within the wrappers that count, select or run it; of an ensemble those of all
    members, or of the member `only`."""
    passes = Passes()
    while encoder is not None:
        if isinstance(members := optional(encoder, "members"), nn.ModuleList):
            calls = [passes_of(member) for member in (members if only is None else [members[only]])]
            return Passes(*map(sum, zip(*calls, strict=True))).nest(passes)
        call = optional(encoder, "passes")
        passes = call.nest(passes) if isinstance(call, Passes) else passes
        parts = (optional(encoder, name) for name in ("encoder", "run", "__wrapped__"))
        only = encoder.keywords.get("only", only) if isinstance(encoder, partial) else only
        encoder = encoder.func if isinstance(encoder, partial) else next((part for part in parts if part), None)
    return passes


@dataclass
class PassCount:
    """The number of passes of the networks of some encoders."""

    forward: int = 0
    backward: int = 0


class CountedCalls:
    """An encoder that counts the passes of its network, forward and back, as it encodes views, in a `count` that
    several may share."""

    def __init__(self, encoder: Encoder, count: PassCount | None = None) -> None:
        self.encoder, self.count, self.passes_of_view = encoder, count or PassCount(), passes_of(encoder)

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        passes = passes_of(self.encoder, draws.get("only"))
        forward, backward = passes.of_calls(len(images), len(images) * images.requires_grad)
        self.count.forward += forward
        self.count.backward += backward
        return unchecked(self.encoder)(images, **draws)
