"""Splitting of views into passes: every view once, no pass too large, groups kept whole."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.eot.batching import (
    GROUPS,
    Pass,
    group_size,
    in_parts,
    in_passes,
    memory_told,
    passes,
    split_evenly,
    within_memory,
)

counts = st.integers(1, 40)


@given(count=counts, limit=counts)
def test_blocks_are_even_and_as_few_as_possible(count, limit):
    result = split_evenly(range(count), limit)
    assert [i for block in result for i in block] == list(range(count))
    sizes = [len(block) for block in result]
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1
    assert len(result) == -(-count // limit)


@given(n=st.integers(1, 300))
def test_there_are_four_to_seven_groups(n):
    groups = -(-n // group_size(n))
    assert groups == n if n < GROUPS else GROUPS <= groups < 2 * GROUPS


@given(first=st.integers(0, 9), count=st.integers(1, 7), n=st.integers(1, 40), room=counts, data=st.data())
def test_passes_cover_all_views_without_repetition(first, count, n, room, data):
    views = sorted(data.draw(st.sets(st.integers(0, n - 1))))  # views of one process, or of nonzero weight
    images, result = range(first, first + count), []
    for batch in passes(images, views, n, room):
        assert batch.images == images
        assert batch.rows <= max(room, count)  # a pass holds whole pictures
        assert len({len(group) for group in batch.groups}) == 1
        for group in batch.groups:
            assert len({view // group_size(n) for view in group}) == 1
        assert len({group[0] // group_size(n) for group in batch.groups}) == len(batch.groups)
        result += [view for group in batch.groups for view in group]
    assert sorted(result) == views


def views_of(part):
    return Counter((i, v) for i in part.images for group in part.groups for v in group)


@given(images=st.integers(1, 6), groups=st.integers(1, 5), length=st.integers(1, 6), fits=st.integers(1, 40))
def test_passes_are_halved_until_they_fit(images, groups, length, fits):
    full = Pass(range(images), tuple(tuple(range(g * length, (g + 1) * length)) for g in range(groups)))

    def run(part):
        if part.rows > fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return part.rows

    results = list(within_memory(run, [full, full]))
    assert sum((views_of(part) for part, *_ in results), Counter()) == views_of(full) + views_of(full)
    assert all(rows == part.rows <= fits for part, rows, _ in results)
    assert len(results) == 2 or full.rows > fits
    row_counts = {rows for *_, rows in results}
    assert row_counts == {None} if full.rows <= fits else min(row_counts) <= fits and max(row_counts) < full.rows


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
    results = list(in_parts(run, rows, chunk))
    assert torch.equal(torch.cat([rows[:0], *(part for part, _ in results)]), rows)
    assert torch.equal(torch.cat([rows[:0], *(result for _, result in results)]), rows + 1)
    sizes = [len(part) for part, _ in results]
    if chunk <= fits:
        assert sizes == [len(part) for part in rows.split(chunk) if len(part)]
    else:
        assert max(sizes, default=0) <= fits


@given(count=st.integers(0, 9), first=st.integers(0, 3), n=st.integers(0, 12), chunk=counts, fits=counts)
def test_pictures_and_views_are_seen_once_in_passes_that_fit(count, first, n, chunk, fits):
    calls = []

    def run(part):
        calls.append(part.rows)
        if part.rows > fits:
            raise MemoryError
        return part.rows

    views = range(first, first + 3 * n, 3)  # those of one of three processes
    results = list(in_passes(run, count, views, chunk))
    assert sum((views_of(part) for part, _ in results), Counter()) == Counter(
        (i, v) for i in range(count) for v in views
    )
    assert all(rows == part.rows <= min(chunk, fits) and len(part.groups) == 1 for part, rows in results)
    assert (
        sum(rows > fits for rows in calls) <= max(1, chunk).bit_length()
    )  # a size that did not fit is not tried again
    if chunk <= fits and count and n:
        fewest = -(-count // (chunk // n)) if chunk >= n else count * -(-n // chunk)
        assert len(results) == fewest


def test_other_errors_are_not_treated_as_out_of_memory():
    calls = []

    def run(part):
        calls.append(part)
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        list(within_memory(run, [Pass(range(2), ((0, 1),))]))
    assert len(calls) == 1


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
    with pytest.raises(type(error)) as failure, memory_told():
        raise error
    assert failure.value is error
