"""Which picture is shown at the top of a report."""

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.experiment.bench import MAIN
from attacks.experiment.drawings import most_fooled


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2)), min_size=2, max_size=8), st.data())
def test_the_shown_picture_has_the_most_success_then_the_least_cosine_of_the_judged(pictures, data):
    judged = data.draw(st.lists(st.sampled_from(range(len(pictures))), min_size=1, unique=True))
    success = torch.tensor([[view < hits for view in range(4)] for hits, _ in pictures])
    cosine = torch.tensor([[level / 2.0] * 4 for _, level in pictures])
    scores = SimpleNamespace(success={MAIN: {"eot": success}}, scores={MAIN: {"eot": SimpleNamespace(cosine=cosine)}})
    bench = SimpleNamespace(study=SimpleNamespace(queries=SimpleNamespace(judged=judged)))
    row, share = most_fooled(bench, scores)
    assert row in judged and share == pictures[row][0] / 4
    assert all((pictures[i][0], -pictures[i][1]) <= (pictures[row][0], -pictures[row][1]) for i in judged)
