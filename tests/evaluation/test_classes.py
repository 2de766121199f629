"""Classes as text: the file, and the zero-shot classifier of CLIP."""

import hashlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.evaluation.classes import class_embeddings, read_classes, text_tower


def texts(sentences):
    """A direction for each text, a function of the text alone."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) for text in sentences]
    return torch.stack([torch.randn(6, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def test_a_class_is_the_mean_direction_of_its_templates():
    templates = ["a photo of a {}.", "a {}", "{}, printed"]
    result = class_embeddings(texts, ["cat", "stop sign"], templates)
    for name, row in zip(["cat", "stop sign"], result, strict=True):
        directions = [F.normalize(texts([t.format(name)])[0], dim=0) for t in templates]
        assert torch.allclose(row, F.normalize(sum(directions), dim=0), atol=1e-6)
    assert torch.allclose(result.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("factor", [0, 1e-30, 1e30, float("nan")])
def test_a_text_embedding_without_a_direction_is_refused(factor):
    with pytest.raises(ValueError, match="of 'a' have no direction"):
        class_embeddings(lambda rows: texts(rows) * torch.tensor([1.0, factor])[:, None], ["a", "b"], ["{}", "x {}"])


@pytest.mark.parametrize("templates", [[], ["a photo"]])
def test_a_template_must_have_a_placeholder(templates):
    with pytest.raises(ValueError, match=r"`task.templates`.*\{\}"):
        class_embeddings(texts, ["a", "b"], templates)


def test_classes_are_read_line_by_line(tmp_path):
    (tmp_path / "c.txt").write_bytes("\ufeffcat\r\n\r\n# a note\r\n stop sign \r\nété".encode())
    assert read_classes(tmp_path / "c.txt") == ("cat", "stop sign", "été")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"cat\n", "at least two"), (b"", "at least two"), (b"a\nb\na\n", "'a' twice"), (b"\xff\xfe\x00", "UTF-8")],
)
def test_a_bad_file_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "c.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_classes(tmp_path / "c.txt")
    assert "c.txt" in str(error.value) and "\n" not in str(error.value)


class Tower(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.encoder = inner
        if inner is None:
            self.texts = texts


def test_the_text_tower_is_found_behind_wrappers():
    assert text_tower(Tower(Tower())) is texts
    assert text_tower(nn.Identity()) is None
