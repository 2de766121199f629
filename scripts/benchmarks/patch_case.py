"""The input of every contestant of the comparison of patches: scenes, a goal, ranges of placement, a budget."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import Patch
from attacks.data.gallery import HELD_OUT, photograph
from transforms import Compose, Sobol
from transforms.auditing.steps import seeded
from transforms.compose import Homography
from transforms.draws import stream
from transforms.geometry import Placement
from transforms.sampling.homography import matrix_of, quad_to_quad
from transforms.wrappers import OnLayers

from .case import gallery_case
from .contest import Counting

#: Sides of a scene in pixels and of a texture in texels.
SIZE, TEXTURE = 96, 48
#: Scenes that share a patch, and groups of them; the first group chooses settings and is not judged.
SCENES, GROUPS = 8, 7
#: ART's default rotation, and the default scale of a patch.
DEGREES, SCALE = 22.5, (0.3, 0.6)


@dataclass(frozen=True)
class Anywhere(Placement):
    """As ART places a patch: the room for its middle is that of the unturned square."""

    def pull_of(self, u: Tensor) -> Tensor:
        """(N,4) -> (N,3,3) from the scene's stage frame to the layer's."""
        size, angle, right, down = self.values(u).unbind(-1)
        x, y = (2 * right - 1) * (1 - size), (2 * down - 1) * (1 - size)
        angle = torch.deg2rad(angle)
        c, s = angle.cos() / size, angle.sin() / size
        return matrix_of([[c, s, -c * x - s * y], [-s, c, s * x - c * y], [0, 0, 1]], angle)


@dataclass(frozen=True)
class Askew(Homography):
    """As ART distorts a patch: each corner moves inward by up to `most` of half the side along both axes."""

    most: float
    dims: ClassVar[int] = 8
    names: ClassVar[tuple[str, ...]] = tuple(f"corner {i} (of half side)" for i in range(8))

    def values(self, u: Tensor) -> Tensor:
        return self.most * u

    def matrix(self, u: Tensor) -> Tensor:
        square = u.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
        corners_inward = square * (1 - self.values(u).unflatten(-1, (4, 2)))
        return quad_to_quad(corners_inward, square.expand_as(corners_inward))


@dataclass(frozen=True)
class PatchRanges:
    """Where a patch may lie: ART's arguments, and the same for us."""

    scale: tuple[float, float] = SCALE
    distortion: float = 0.0
    degrees: float = DEGREES

    @property
    def place(self) -> Anywhere:
        return Anywhere(scale=self.scale, degrees=self.degrees)

    @property
    def pipeline(self) -> Compose:
        return Compose([OnLayers([Askew(self.distortion)] if self.distortion else [], self.place)])

    def patch(self, size: int, texture: int) -> Patch:
        """Ours, of `texture` x `texture` texels, for square pictures of `size`."""
        return Patch((texture, texture), self.place.quad((size, size)))

    def arguments(self) -> dict[str, float]:
        return {
            "rotation_max": self.degrees,
            "scale_min": self.scale[0],
            "scale_max": self.scale[1],
            "distortion_scale_max": self.distortion,
        }


@dataclass(frozen=True)
class PatchTask:
    """A group of scenes (B,3,S,S) for one patch, toward the gallery's row `target`, or away from their own rows."""

    image: Tensor
    rows: Tensor  # (B,), of the gallery
    target: int | None
    ranges: PatchRanges
    evals: int  # gradients of each scene
    seed: int
    counter: Counting
    gallery: Tensor  # (G,D), of length 1

    @property
    def goal(self) -> Tensor:
        """(B,), the gallery's rows that each scene's views are compared with."""
        return self.rows if self.target is None else torch.full_like(self.rows, self.target)

    @property
    def anchor(self) -> Tensor:
        """(B,D), the embeddings of these."""
        return self.gallery[self.goal]

    @torch.no_grad()
    def judgement(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """(B*V,3,S,S), scene by scene -> cosines to the anchors, and whether the attack succeeds, (B,V) both."""
        embeddings = torch.cat([self.counter.encoder(part) for part in views.split(64)])
        likeness = (F.normalize(embeddings, dim=1) @ self.gallery.T).unflatten(0, (len(self.image), -1))
        cosine = likeness.gather(2, self.goal[:, None, None].expand(-1, likeness.shape[1], 1))[..., 0]
        is_goal = likeness.argmax(2) == self.goal[:, None]
        return cosine, is_goal if self.target is not None else ~is_goal

    @torch.no_grad()
    def ours(self, texture: Tensor, views: int) -> Tensor:
        """(1,3,h,w) -> `views` fresh placements in each scene by our renderer."""
        pipeline = self.ranges.pipeline
        u = Sobol()(views * len(self.image), pipeline.dims, seed=stream(self.seed, "held out"))
        patch = self.ranges.patch(self.image.shape[-1], texture.shape[-1])
        return pipeline(patch.scene(self.image, texture), u.to(texture))

    @torch.no_grad()
    def theirs(self, overlay: Callable[[Tensor, Tensor], Tensor], texture: Tensor, views: int) -> Tensor:
        """The same by ART's."""
        with seeded(stream(self.seed, "held out by ART")):
            return overlay(self.image.repeat_interleave(views, 0), texture[0]).clamp(0, 1)


def patch_task(group: int, targeted: bool, ranges: PatchRanges, evals: int) -> PatchTask:
    """The scenes of a group; its target is a tile of a photograph that no query is cut from."""
    network, all_tiles, embeddings = gallery_case(SIZE)
    query_rows = [i for i, name in enumerate(all_tiles.names) if photograph(name) in HELD_OUT]
    target_rows = sorted(set(range(len(all_tiles))) - set(query_rows))
    rows = query_rows[group :: len(query_rows) // SCENES][:SCENES]
    return PatchTask(
        all_tiles.images[rows],
        torch.tensor(rows),
        target_rows[(2 * group + 1) * len(target_rows) // (2 * GROUPS)] if targeted else None,
        ranges,
        evals,
        stream(0, "patch", group, targeted),
        Counting(network).eval(),
        F.normalize(embeddings, dim=1),
    )
