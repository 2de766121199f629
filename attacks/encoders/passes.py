"""How many passes of a network one call of an encoder takes: those of a defence that looks at several views."""

from functools import partial
from typing import NamedTuple

from torch import nn

from attacks.encoders.tree import optional


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
