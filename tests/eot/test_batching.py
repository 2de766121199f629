"""Splitting of views into passes: every view once, no pass too large, groups kept whole."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.eot.batching import (
    GROUPS,
    Pass,
    blocks,
    group_size,
    in_parts,
    in_passes,
    memory_told,
    passes,
    within_memory,
)

counts = st.integers(1, 40)


@given(count=counts, most=counts)
def test_blocks_are_even_and_as_few_as_possible(count, most):
    result = blocks(count, most)
    assert [i for block in result for i in block] == list(range(count))
    sizes = [len(block) for block in result]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(result) == -(-count // most)


@given(n=st.integers(1, 300))
def test_there_are_four_to_seven_groups(n):
    groups = -(-n // group_size(n))
    assert groups == n if n < GROUPS else GROUPS <= groups < 2 * GROUPS


@given(first=st.integers(0, 9), count=st.integers(1, 7), n=st.integers(1, 40), room=counts, data=st.data())
def test_passes_cover_every_view_of_every_picture_once(first, count, n, room, data):
    views = sorted(data.draw(st.sets(st.integers(0, n - 1))))  # views of one process, or of nonzero weight
    images, result = range(first, first + count), []
    for each in passes(images, views, n, room):
        assert each.images == images
        assert each.rows <= max(room, count)  # a pass holds whole pictures
        assert len({len(group) for group in each.groups}) == 1
        for group in each.groups:
            assert len({view // group_size(n) for view in group}) == 1
        assert len({group[0] // group_size(n) for group in each.groups}) == len(each.groups)
        result += [view for group in each.groups for view in group]
    assert sorted(result) == views


def seen(part):
    return Counter((i, v) for i in part.images for group in part.groups for v in group)


@given(images=st.integers(1, 6), groups=st.integers(1, 5), length=st.integers(1, 6), fits=st.integers(1, 40))
def test_passes_are_halved_until_they_fit(images, groups, length, fits):
    whole = Pass(range(images), tuple(tuple(range(g * length, (g + 1) * length)) for g in range(groups)))

    def run(part):
        if part.rows > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return part.rows

    done = list(within_memory(run, [whole, whole]))
    assert sum((seen(part) for part, *_ in done), Counter()) == seen(whole) + seen(whole)
    assert all(rows == part.rows <= fits for part, rows, _ in done)
    assert len(done) == 2 or whole.rows > fits
    known = {rows for *_, rows in done}
    assert known == {None} if whole.rows <= fits else min(known) <= fits and max(known) < whole.rows


@pytest.mark.parametrize("text", ["out of memory", "DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"])
def test_a_single_view_that_does_not_fit_is_an_error(text):
    def run(part):
        raise RuntimeError(text)

    with pytest.raises(MemoryError, match=rf"`engine.chunk` cannot go lower.*{text}"):
        list(within_memory(run, [Pass(range(2), ((0, 1),))]))
    with pytest.raises(MemoryError, match=rf"`engine.chunk` cannot go lower.*{text}"):
        list(in_parts(run, torch.arange(3), 2))


@given(count=st.integers(0, 30), chunk=st.integers(1, 40), fits=st.integers(1, 40))
def test_rows_are_split_like_torch_and_halved_until_they_fit(count, chunk, fits):
    def run(part):
        if len(part) > fits:
            raise MemoryError
        return part + 1

    rows = torch.arange(count)
    done = list(in_parts(run, rows, chunk))
    assert torch.equal(torch.cat([rows[:0], *(part for part, _ in done)]), rows)
    assert torch.equal(torch.cat([rows[:0], *(result for _, result in done)]), rows + 1)
    sizes = [len(part) for part, _ in done]
    if chunk <= fits:
        assert sizes == [len(part) for part in rows.split(chunk) if len(part)]
    else:
        assert max(sizes, default=0) <= fits


@given(count=st.integers(0, 9), first=st.integers(0, 3), n=st.integers(0, 12), chunk=counts, fits=counts)
def test_pictures_and_views_are_seen_once_in_passes_that_fit(count, first, n, chunk, fits):
    tried = []

    def run(part):
        tried.append(part.rows)
        if part.rows > fits:
            raise MemoryError
        return part.rows

    views = range(first, first + 3 * n, 3)  # those of one of three processes
    done = list(in_passes(run, count, views, chunk))
    assert sum((seen(part) for part, _ in done), Counter()) == Counter((i, v) for i in range(count) for v in views)
    assert all(rows == part.rows <= min(chunk, fits) and len(part.groups) == 1 for part, rows in done)
    assert (
        sum(rows > fits for rows in tried) <= max(1, chunk).bit_length()
    )  # a size that did not fit is not tried again
    if chunk <= fits and count and n:
        fewest = -(-count // (chunk // n)) if chunk >= n else count * -(-n // chunk)
        assert len(done) == fewest


def test_other_errors_are_not_treated_as_out_of_memory():
    tried = []

    def run(part):
        tried.append(part)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        list(within_memory(run, [Pass(range(2), ((0, 1),))]))
    assert len(tried) == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nSee there"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_out_of_memory_outside_a_pass_gives_a_one_line_error(error):
    with pytest.raises(MemoryError, match=r"^memory ran out; make the pictures smaller [^\n]*\)$"), memory_told():
        raise error


@pytest.mark.parametrize("error", [MemoryError("memory ran out with one view"), RuntimeError("shapes")], ids=str)
def test_other_errors_and_our_own_memory_errors_are_unchanged(error):
    with pytest.raises(type(error)) as caught, memory_told():
        raise error
    assert caught.value is error
