"""A black box behind an address: requests, keys, limits, and servers that misbehave."""

import contextlib
import json
import time

import pytest
import torch

from attacks.encoders import Phash, bits
from attacks.encoders.black_box import endpoint as module
from attacks.encoders.black_box.endpoint import endpoint
from tests.helpers.services import serving
from tests.helpers.wrong import refused


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.01)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def pictures(count=3, size=(40, 56)):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 5, 7, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size, mode="bicubic").clamp(0, 1)
    return (images * 255).round() / 255


@pytest.mark.parametrize("batch", [1, 2, 64])
def test_the_hash_behind_an_address_is_phash(batch):
    images = pictures()
    with serving() as server:
        answer = endpoint(server.url, batch=batch)(images)
    assert torch.equal(answer, torch.where(bits(Phash()(images)), 1.0, -1.0))
    assert server.requests == -(-3 // batch) and set(server.answered.values()) == {1}


def fails(times, fault):
    return lambda number: fault if number < times else None


def drip(handler, content):
    """A byte at a time: each is within the time-out of a socket, all of them are not."""
    with contextlib.suppress(OSError):
        for byte in content:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.03)


BAD = {
    "busy": lambda handler: handler.reply(503, b"busy", Retry_After=0),
    "too many": lambda handler: handler.reply(429, b"slow down"),
    "no JSON": lambda handler: handler.reply(200, b"<html>moved</html>"),
    "nothing": lambda handler: handler.reply(200, b""),
    "cut off": lambda handler: handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[1, 2"),
    "hangs up": lambda handler: handler.connection.close(),
    "no HTTP": lambda handler: handler.wfile.write(b"\x00\x01\x02\r\n\r\n"),
    "late": lambda handler: time.sleep(0.4),
    "drips": lambda handler: drip(handler, b"HTTP/1.1 200 OK\r\n\r\n[1, 2, 3, 4, 5, 6, 7, 8, 9]"),
    "drips its headers": lambda handler: drip(handler, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", BAD)
def test_what_may_pass_is_tried_again_and_at_last_one_line(name):
    images = pictures(1)
    with serving(fails(2, BAD[name])) as server:
        encoder = endpoint(server.url, timeout=0.2)
        assert encoder(images).shape == (1, 64) and server.requests == 3
    with serving(fails(9, BAD[name])) as server:
        encoder = endpoint(server.url, retries=1, timeout=0.2)
        refused("no answer in 2 attempts", encoder, images)
        assert server.requests == 2 and not len(encoder.ledger)


def test_an_address_without_a_server_is_one_line():
    with serving() as server:
        url = server.url
    refused(r"no answer in 2 attempts, at last .*refused", endpoint(url, retries=1), pictures(1))


ECHOES = {
    "status line": lambda handler, key: handler.wfile.write(key + b"\r\n\r\n"),
    "version": lambda handler, key: handler.wfile.write(b"HTTP/" + key + b" 200 OK\r\n\r\n"),
    "reason": lambda handler, key: handler.wfile.write(b"HTTP/1.1 401 " + key + b"\r\n\r\n"),
    "header": lambda handler, key: handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: " + key + b"\r\n\r\n[1]"),
    "chunk": lambda handler, key: handler.wfile.write(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + key + b"\r\n"
    ),
    "body": lambda handler, key: handler.reply(200, key),
    "refusal": lambda handler, key: handler.reply(403, key),
    "JSON": lambda handler, key: handler.reply(200, json.dumps({"answer": key.decode()}).encode()),
    "number": lambda handler, key: handler.reply(200, b"[1" + b"0" * 9 + b"77]"),
    "address": lambda handler, key: handler.reply(302, b"", Location="http://" + key.decode()),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("place", ECHOES)
def test_no_message_holds_a_key_that_the_server_sends_back(place, monkeypatch):
    key = "1000000000077"
    monkeypatch.setenv("VIEWPROOF_SECRET", key)
    odd = fails(9, lambda handler: ECHOES[place](handler, key.encode()))
    with serving(odd) as server, pytest.raises(ValueError, match="encoder http") as info:
        endpoint(server.url, "same", key="VIEWPROOF_SECRET", retries=1)(pictures(1))
    assert key not in str(info.value) and f"{float(key):g}" not in str(info.value)


def test_a_longer_answer_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    with serving(fails(9, lambda handler: handler.reply(200, b"[1]" + b" " * 98))) as server:
        refused("more than 100 bytes", endpoint(server.url), pictures(1))
        assert server.requests == 1 and endpoint(server.url, batch=2).batch == 2


@pytest.mark.parametrize("status", [400, 401, 404, 301, 302, 307])
def test_what_does_not_pass_has_no_second_attempt(status, monkeypatch):
    monkeypatch.setenv("VIEWPROOF_SECRET", "abc-123")
    with serving() as other:
        odd = fails(9, lambda handler: handler.reply(status, b"abc-123", Location=other.url))
        with serving(odd) as server, pytest.raises(ValueError, match=f"status {status}") as info:
            endpoint(server.url, key="VIEWPROOF_SECRET")(pictures(1))
    assert server.requests == 1 and not other.requests and "abc-123" not in str(info.value)


@pytest.mark.parametrize("content", [b"[1, NaN]", b"7", b'{"error": "no"}', b'[1, "a"]', b"[[1]]"])
def test_answers_of_another_shape_are_one_line(content):
    refusal = pytest.raises(ValueError, match="the answer must be a row of numbers")
    with serving(fails(9, lambda handler: handler.reply(200, content))) as server, refusal:
        endpoint(server.url)(pictures(1))


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("VIEWPROOF_KEY", "s3cret")
    with serving() as server:
        encoder = endpoint(server.url, key="VIEWPROOF_KEY")
        encoder(pictures(1))
    assert server.headers[0]["Authorization"] == "Bearer s3cret" and "s3cret" not in repr(encoder)


def test_requests_keep_to_the_rate():
    with serving() as server:
        encoder = endpoint(server.url, rate=20)
        began = time.monotonic()
        encoder(pictures(5))
        assert time.monotonic() - began > 4 / 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "host/path"}, "`model`"),
        ({"model": "file:///etc/passwd"}, "`model`"),
        ({"model": "http://host/?key=1"}, "`model`"),
        ({"key": "sk-abc123"}, "`key` must be the name"),
        ({"key": "AWS_SECRET_ACCESS_KEY"}, "begins with VIEWPROOF_"),
        ({"key": "VIEWPROOF_NONE"}, "VIEWPROOF_NONE is empty"),
        ({"key": "VIEWPROOF_LINES"}, "VIEWPROOF_LINES is empty, or not ASCII on one line"),
        ({"rate": 0.0}, "`rate`"),
        ({"retries": -1}, "`retries`"),
        ({"timeout": 0.0}, "`timeout`"),
        ({"batch": 0}, "`batch`"),
        ({"answer": "no"}, "`answer`"),
    ],
)
def test_values_out_of_range_are_refused(options, message, monkeypatch):
    monkeypatch.setenv("VIEWPROOF_LINES", "abc123\n")
    with pytest.raises(ValueError, match=message) as info:
        endpoint(**{"model": "http://127.0.0.1:1"} | options)
    assert "abc123" not in str(info.value)
