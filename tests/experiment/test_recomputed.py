"""Every number of metrics.json, recomputed from the other files of a run."""

import re
from collections import Counter
from itertools import product
from numbers import Real

import numpy as np
import pytest

from attacks.data.gallery import tiles
from attacks.data.images import save_image
from attacks.evaluation.per_image import COLUMNS, arms_table, primary, secondary
from attacks.experiment import drawings
from attacks.experiment.sections import judged
from attacks.runtime.tables import write_rows
from tests.helpers.recomputation import (
    EXACT,
    FLIPS,
    MEANS,
    MEDIANS,
    SHARES,
    cells,
    comparisons,
    leaves,
    read,
    recompute,
    rows,
)
from tests.helpers.runs import call
from tests.helpers.sampling import mostly_slow

TINY = ["config=evaluate", "data=folder", "data.size=64", "attack.steps=1", "attack.views=2", "evaluate.views=4"]
TINY += ["evaluate.refine=0", "evaluate.left_out=3", "evaluate.deploy=5", "evaluate.explain=3", "sanity=none"]
TINY += ["evaluate.map_pictures=11", "evaluate.maps=[[angle,scale]]", "evaluate.curves=[angle]", "transforms=eot2d"]
TINY += ["evaluate.pipeline=cv2_nearest", "evaluate.layers=[stem]", "evaluate.one_view=true", "evaluate.batch=null"]
#: Numbers that do not follow from the files of results, and why.
OTHER_SOURCES = {
    r"schema|seed|neighbours|threat \w+": "the configuration",
    r"(wide )?bank (refine|side|ranges \d+ \d)|wide factor": "the configuration",
    r"left_out steps|(deployment|detection) size \d|response \w+ \d [xy] trained \d|drift views": "the configuration",
    r"gallery(_audit \w+)?|guessed|files_right|chance .*|verification .*": "pictures and encoder, before any attack",
    r"left": "the pictures that were not attacked",
    r"(.* )?cost \w+|costs .*": "passes and seconds, counted in the run",
}
#: The change of the saved pictures is measured in single precision.
SINGLE = 1e-6


def sixteen(work):
    """A small run with every part, of sixteen pictures in eleven clusters."""
    sample, lines = tiles(64).spread(16), ["path,cluster,identity,weight"]
    for i, (name, image) in enumerate(zip(sample.names, sample.images, strict=True)):
        save_image(work / f"{name}.png", image)
        lines.append(f"{name}.png,{i % 11},{i // 2},{1 + i % 11 % 3}")
    (work / "list.csv").write_text("\n".join(lines))
    data = [f"data.path={work / 'list.csv'}", f"data.gallery={work / 'list.csv'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judged, "CELLS", 3)
        patch.setattr(judged, "CURVE_CELLS", 2)
        patch.setattr(drawings, "draw_sheets", lambda *_: None)
        patch.setattr(drawings, "report_page", lambda *_: "")
        assert call(patch, *TINY, *data, f"hydra.run.dir={work / 'run'}") == 0


@pytest.fixture(scope="module")
def finished(shared_runs):
    return shared_runs.folder("sixteen", sixteen) / "run"


@pytest.fixture(scope="module")
def recomputation(finished):
    return leaves(recompute(finished))


def is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool)


@pytest.mark.slow
def test_every_number_follows_from_the_files(finished, recomputation):
    content = leaves(read(finished))
    assert recomputation.keys() <= content.keys()
    for place, value in recomputation.items():
        error = SINGLE if "budget_used" in place else 1e-9
        expected_value = pytest.approx(value, abs=error, rel=0) if is_number(value) else value
        assert content[place] == expected_value, place
    numbers = {place for place, value in content.items() if is_number(value)}
    left = [" ".join(map(str, place)) for place in numbers - recomputation.keys()]
    assert not [place for place in left if not any(re.fullmatch(pattern, place) for pattern in OTHER_SOURCES)]
    assert len(numbers & recomputation.keys()) > 2500


@pytest.mark.slow
def test_the_run_has_every_part_and_both_kinds_of_intervals(finished, recomputation):
    content = read(finished)
    parts = Counter(place[0] for place, value in recomputation.items() if is_number(value))
    assert {"arms", "wide", "primary", "comparisons", "response", "left_out", "deployment", "explanations"} < {*parts}
    assert {"drift", "detection"} < {*parts} and len(content["clusters"]) == 16 > len(set(content["clusters"])) == 11
    assert content["primary"]["p"] is not None is not content["comparisons"][0]["p"]
    assert content["response"]["maps"][0]["p"] is not None
    assert {value for place, value in leaves(content).items() if place[-1] == "kind"} == {"interval", "range"}


@pytest.mark.slow
def test_the_cost_is_the_sum_of_its_parts(finished):
    content = read(finished)
    for name in ("forward", "backward", "seconds"):
        assert content["cost"][name] == pytest.approx(sum(cost[name] for cost in content["costs"].values()))


def random_rows(clusters, seed):
    """Rows of per_image.csv with heavy tails, one to three pictures in each cluster, and a target."""
    (draw, detector), table = map(np.random.default_rng, (seed, (seed, 1))), []
    pictures = [(str(i), f"{i}-{j}") for i in range(clusters) for j in range(draw.integers(1, 4))]
    base = {cluster: draw.normal(0, 0.2) for cluster, _ in pictures}
    arms = enumerate(("clean", "noise", "no_eot", "one_view", "eot"))
    for bank, (level, arm) in product(("same", "wide"), arms):
        for cluster, picture in pictures:
            row = {"bank": bank, "arm": arm, "picture": picture, "cluster": cluster, "identity": "", "views": 64}
            rate = np.clip(0.2 * level + base[cluster] + draw.normal(0, 0.1), 0, 1)
            row |= {"step": None} | dict.fromkeys(COLUMNS)
            row |= {name: float(np.tanh(draw.standard_t(3) - level / 4)) for name in MEANS}
            row["mrr"] = abs(row["mrr"])
            row |= {name: draw.binomial(64, rate) / 64 for name in (*SHARES[:-2], "tar_0.01")}
            row |= {name: detector.binomial(64, rate) / 64 for name in SHARES[-2:]}
            row |= {name: float(draw.integers(1, 30)) for name in MEDIANS}
            survivors = int(draw.integers(0, 65))
            share = draw.binomial(survivors, rate) / survivors if survivors else None
            table.append(row | {"survived": survivors, "success_survived": share})
    return table


@pytest.mark.parametrize("clusters", mostly_slow([9, 30, 3, 2, 28, 5, 40, 10, 29, 4, 6], 3))
def test_tables_of_any_number_of_clusters_follow_from_their_rows(tmp_path, clusters):
    table = random_rows(clusters, seed=clusters)
    if clusters in (5, 9, 40):
        table = [row | {"weight": 1 / (1 + int(row["cluster"]) % 4)} for row in table]
    write_rows(tmp_path / "per_image.csv", table)
    text_rows = rows(tmp_path, "per_image")
    content, recomputation = leaves(arms_table(table)), leaves(cells(text_rows))
    for measure in ("success", "cosine"):
        first, rest = comparisons(text_rows, measure)
        recomputation |= leaves({measure: {"primary": first, "rest": rest}})
        content |= leaves({measure: {"primary": primary(table, measure), "rest": secondary(table, measure)}})
    names = {"baselines", "0", "1"}
    assert {place for place in content.keys() - recomputation.keys() if not names & {*place}} == set()
    for place, value in recomputation.items():
        # five standard errors of random signs, of one test or of 16 at once, and what they make of the ends
        tests = 16 if "rest" in place else 1
        error = 5 * np.sqrt(2 * tests * value / FLIPS) if place[-1] == "p" and value else 0
        error = (error + 0.02 * ("difference" in place)) * (clusters > EXACT)
        expected_value = pytest.approx(value, abs=1e-9 + error, rel=0) if is_number(value) else value
        assert content[place] == expected_value, place
