"""The views of pictures that share a perturbation: what drawing them costs in a step."""

from functools import partial

from attacks import EOT, Away, Linf, Universal
from attacks.eot.problem import Problem
from attacks.experiment.build.pipeline import preset
from transforms import Antithetic, Draws, Latin, Sobol, Uniform

from .case import known
from .table import Row, Table
from .timing import compare

#: Steps of an attack; those whose draws are compared.
STEPS = (1, 1000, 100_000)
SAMPLERS: dict[str, Draws] = {"Sobol": Sobol(), "Uniform": Uniform(), "Antithetic": Antithetic(), "Latin": Latin()}
#: Side of the pictures, and as many of them as a step is timed with: its time is proportional to their number.
SIZE, TIMED = 64, 20


def run(pictures: int = 1000, views: int = 8, rounds: int = 5) -> list[Table]:
    """Time of the draws of a step where all pictures share a perturbation, early and late in an attack.

    The views of the preset `camera`; the step is the gradient of the pocket encoder.
    """
    network, everything, embeddings = known(SIZE)
    transforms, images = preset("camera"), everything.images[: min(TIMED, pictures)]
    problem = Problem(images, embeddings[: len(images)], network, Away(), Universal(Linf()))
    delta, u = images[:1] * 0, EOT(transforms, views=views).points(0, 0, images, pictures=len(images))
    step = partial(EOT(transforms, views=views).estimate, problem, delta, u)
    whole = compare({"": step}, 1)[""] * pictures / len(images)
    rows: dict[str, Row] = {}
    for name, draws in SAMPLERS.items():
        points = EOT(transforms, draws, views=views).points
        at = compare({str(k): partial(points, 0, k, images, pictures=pictures) for k in STEPS}, rounds)
        first, *_, last = times = [at[str(k)] for k in STEPS]
        rows[name] = (*(1e3 * seconds for seconds in times), times[1] / first, last / whole)
    columns = {f"step {k:,}": ".2f" for k in STEPS} | {"step 1,000 / 1": ".2f", "of the step": ".3%"}
    title = f"Milliseconds to draw {views} views of each of {pictures:,} pictures of {SIZE} px"
    note = f"a step takes {whole:.1f} s, by that of {len(images)} pictures"
    return [Table(title, columns, rows, notes=(note,))]
