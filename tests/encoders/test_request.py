"""Common parts of all encoder families: files, random weights, failed downloads, and one row for each picture."""

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from attacks.encoders.contract import probe
from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.request import Request, fetching, with_seed

FILES = {
    **dict.fromkeys(("w.safetensors", "W.SafeTensors", "w.pt", "w.pth.tar", "a/b", "./x", "~/w.pt", "/w.bin"), True),
    **dict.fromkeys(("pretrained", "random", "IMAGENET1K_V2", "laion2b_s34b_b79k", "openai", "folder"), False),
    **dict.fromkeys(("mnasnet0.5", "lvd142m", "v1.5"), False),
    "there": True,
}


@pytest.mark.parametrize(("text", "file"), FILES.items())
def test_which_texts_are_taken_as_a_weights_file(tmp_path, monkeypatch, text, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("")
    for name in ("folder", "pretrained"):
        (tmp_path / name).mkdir()
    (tmp_path / "random").write_text("")  # reserved names are not taken as files
    path = Request("torchvision", "x", text).file
    assert (path is not None) == file
    assert path is None or path == Path(text).expanduser()


def test_random_weights_do_not_touch_the_generators_of_torch(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("the GPU's generator was seeded"))
    state = torch.random.get_rng_state()
    first, repeat = (with_seed(lambda: nn.Linear(3, 3).weight) for _ in range(2))
    assert torch.equal(first, repeat)
    assert torch.equal(torch.random.get_rng_state(), state)


class Http(Exception):
    """An HTTP client error that is not an OSError."""


Http.__module__ = "httpx._exceptions"


def raise_chain(kind, cause, link="from"):
    """An error with a cause; one that is raised while the cause is handled; or one that replaces it."""
    error = kind("the hub\nis gone")
    try:
        raise cause("no route")
    except cause as reason:
        if link == "while":
            raise error  # noqa: B904
        raise error from (reason if link == "from" else None)


@pytest.mark.parametrize(
    "failure", [(RuntimeError, OSError), (RuntimeError, Http, "while"), (ValueError, OSError), (Http, OSError)]
)
def test_a_failed_download_gives_a_one_line_error(failure):
    with (
        pytest.raises(ValueError, match=r"^weights of x could not be fetched \(the hub\): .*random") as info,
        fetching("weights of x"),
    ):
        raise_chain(*failure)
    assert "\n" not in str(info.value)


def test_retry_warnings_of_the_client_do_not_show(caplog):
    log = logging.getLogger("huggingface_hub")
    level = log.level
    with (
        pytest.raises(ValueError, match=r"\(the hub\): without a network give a folder$"),
        fetching("weights of x", "a folder"),
    ):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 5/5].")
        raise_chain(Http, OSError)
    assert not caplog.records and log.level == level


@pytest.mark.parametrize(
    "failure",
    [(ValueError, OSError, "in its place"), (AttributeError, OSError, "while"), (ArithmeticError, RuntimeError)],
)
def test_errors_other_than_failed_downloads_are_unchanged(failure):
    with pytest.raises(failure[0]) as info, fetching("weights of x"):
        raise_chain(*failure)
    assert "could not be fetched" not in str(info.value)


def encoder(network, **fields):
    preprocess = Preprocess(16, "pil_bilinear", (0.5,) * 3, (0.5,) * 3)
    return ImageEncoder(network, preprocess, Origin("x", "y", "random"), **fields)


def network(make):
    """A module that applies a function."""
    module = nn.Module()
    module.forward = make
    return module


def boom(images):
    raise RuntimeError("mat1 and mat2\ncannot be multiplied")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: None, r"\(N,D\), a row for each of 8 pictures; got a NoneType"),
        (lambda x: x.flatten(1) / 0, r"not finite"),
        (boom, r"x:y: a picture does not go through \(RuntimeError: mat1 and mat2\); .*`encoder\.preprocess`"),
    ],
)
def test_outputs_other_than_one_feature_row_per_picture_are_refused(make, message):
    with pytest.raises(ValueError, match=message) as info:
        probe(encoder(network(make)))
    assert "\n" not in str(info.value)


def test_the_repr_does_not_hash_the_weights_and_the_text_does(monkeypatch):
    subject = encoder(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)))
    text = str(subject)
    assert subject.fingerprint()[:12] in text and "x:y" in text and "3,076 weights" in text
    monkeypatch.setattr(ImageEncoder, "fingerprint", lambda self: pytest.fail("a debugger would hash the weights"))
    assert text.startswith(repr(subject))
