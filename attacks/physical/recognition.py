"""Whether a photograph shows the patch of the run and the arm, laid into its scene as the attack had it.

The rules are fixed before any photograph is taken: they have no options, and a photograph that breaks one is listed
with the reason and left out of the score. Their limits were set on simulated photographs of other scenes, textures
and inks than those of the table in docs/benchmarks.md, which `python scripts/benchmark.py cards` measures again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import Card, numbers_of, words_of
from attacks.physical.resemblance import CORRELATION, HIDDEN, Resemblance
from attacks.physical.scene_features import MATCHES
from attacks.physical.scene_place import CELLS, Place

#: The largest share of the patch that lies beyond the photograph's edge.
CUT = 0.5
#: No ink is as pure as a screen: the most light of pure red, green and blue relative to white.
PUREST = 0.95
#: The most that the scene is turned where it cannot be compared, in degrees, and stretched along one direction.
MOST_DEGREES, MOST_STRETCH = 45.0, 1.8


@dataclass(frozen=True, eq=False)
class Expected:
    """What photographs of a print should show: the id of the run, the arm, its card (None where the user gives the
    corners), and the textures of all arms of the run (h,w,3), 0..255 over white, by name."""

    id: str
    arm: str
    card: Card | None
    textures: Mapping[str, NDArray[np.float32]]

    def arm_of(self, numbers: Iterable[int]) -> str | None:
        """The arm of this run whose card has at least two of these tags."""
        for arm in self.textures:
            if len(set(numbers) & set(numbers_of(words_of(self.id, arm)))) >= 2:
                return arm
        return None


@dataclass(frozen=True, eq=False)
class Evidence:
    """What speaks for a photograph: the `patch`, the `purity` of the chart's colours (None without a chart), and the
    `place` of the card in its scene (None where it has none of its own)."""

    patch: Resemblance
    purity: float | None
    place: Place | None

    @property
    def refusal(self) -> str | None:
        """Why the photograph is left out; None: it is scored. The first rule that it breaks."""
        seen, pure = self.patch, self.purity or 0.0
        rules = [
            (seen.cut > CUT, f"{seen.cut:.1%} of the patch lies beyond the edge, at most {CUT:.0%}"),
            (seen.better != "", f"it shows {seen.better}, not the patch of this arm as it is"),
            (seen.glare > HIDDEN, f"glare or bare paper on {seen.glare:.1%} of the patch, at most {HIDDEN:.0%}"),
            (
                seen.correlation < CORRELATION,
                f"the patch is not the run's: correlation {seen.correlation:.3f}, at least {CORRELATION}",
            ),
            (seen.hidden > HIDDEN, f"{seen.hidden:.1%} of the patch is covered or changed, at most {HIDDEN:.0%}"),
            (pure > PUREST, f"its colours are purer than ink, {pure:.3f}, at most {PUREST}: a screen or a file"),
        ]
        rules += [] if self.place is None else _of_place(self.place)
        return next((reason for broken, reason in rules if broken), None)

    def to_dict(self) -> dict[str, float | None]:
        """The figures that the rules compare, for photos.json."""
        place = self.place
        found = None if place is None else place.found
        lies = {name: getattr(found, name, None) for name in ("matches", "turned", "stretched", "larger", "away")}
        return {
            "correlation": self.patch.correlation,
            "hidden": self.patch.hidden,
            "glare": self.patch.glare,
            "cut": self.patch.cut,
            "purity": self.purity,
            "scene_correlation": None if place is None else place.correlation,
            "stretch": None if place is None else place.stretch,
            **{f"scene_{name}": value for name, value in lies.items()},
        }


def _of_place(place: Place) -> list[tuple[bool, str]]:
    value, fault = place.correlation, None if place.found is None else place.found.fault
    return [
        (fault is not None, f"in its scene the card is {fault}"),
        (place.unseen, f"it shows too little of the scene round the card, fewer than {CELLS} cells: step back"),
        (
            value is not None and place.found is None and not place.belongs,
            "another scene, or the card elsewhere in it: too few matches with the run's picture "
            f"(at least {MATCHES}), or too little correlation ({value or 0:.2f})",
        ),
        (
            value is None and abs(place.degrees) > MOST_DEGREES,
            f"the card is turned by {place.degrees:.1f} degrees, at most {MOST_DEGREES:g}",
        ),
        (
            place.stretch > MOST_STRETCH,
            f"the scene is {place.stretch:.3f} times as long one way, at most {MOST_STRETCH}",
        ),
    ]
