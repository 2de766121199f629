"""How often a photograph is scored as the run's patch: of what it should show, and of twelve other kinds."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from .card_kinds import HARD, HARDER, KIND, NEGATIVE, SOURCES, Kind, draw_case, examination, take_photo
from .table import Row, Table


def run(photos: int = 2, kind_photos: int = 12, harder_photos: int = 2, hard_photos: int = 2) -> list[Table]:
    """Simulated photographs of a run's card that are scored, by kind: as it should be, harder, of the simulator's
    preset `hard`, and twelve kinds of something else, which must not be scored.

    The limits of `attacks.physical.photo_measure` were set on other scenes, textures and inks. The figures behind the
    share are the worst of each kind: the least correlation of the patch and of the scene, the largest hidden share
    and purity.
    """
    return [
        _table("Photographs of the run's patch: scored", KIND, kind_photos),
        _table("Harder photographs of it: scored", HARDER, harder_photos),
        _table("Photographs of the preset hard: scored", HARD, hard_photos),
        _table("Photographs of something else: scored", NEGATIVE, photos),
    ]


def _table(title: str, kinds: Mapping[str, Kind], count: int) -> Table:
    rows: dict[str, Row] = {}
    reasons: list[str] = []
    must_score = kinds is not NEGATIVE
    for name, kind in kinds.items():
        score_count, figures_of_photos = 0, []
        for index in range(count):
            random = np.random.default_rng((*name.encode(), index))
            case = draw_case(SOURCES["table"], random)
            reason, evidence = examination(case, take_photo(case, kind(case, random), random))
            score_count += reason is None
            if must_score is (reason is not None):
                reasons.append(f"{name}, photograph {index}: {reason or 'score_count'}")
            if evidence is not None:
                figures = evidence.to_dict()
                figures_of_photos.append(
                    [figures[key] for key in ("correlation", "scene_correlation", "hidden", "purity")]
                )
        low, high = (_ends(figures_of_photos, best) for best in (np.nanmin, np.nanmax))
        rows[name] = (float(score_count), float(count), low[0], high[0], low[1], high[1], high[2], low[3], high[3])
    total = sum(float(row[0] or 0) for row in rows.values() if not isinstance(row, str))
    rows["all"] = (total, float(count * len(kinds)), *(None,) * 7)
    columns = {"scored": ".0f", "of": ".0f", "patch, least": ".2f", "most": ".2f", "scene, least": ".2f"}
    columns |= {"most ": ".2f", "hidden, most": ".2f", "purity, least": ".2f", "most  ": ".2f"}
    return Table(title, columns, rows, notes=tuple(reasons[:40]))


def _ends(
    figures_of_photos: list[list[float | None]], end: Callable[[NDArray[np.float64]], np.float64]
) -> list[float | None]:
    """The least or largest of each figure; None where no photograph has it."""
    values = np.array(figures_of_photos, float).reshape(-1, 4)
    return [None if np.isnan(column).all() else float(end(column)) for column in values.T]
