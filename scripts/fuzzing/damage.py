"""Damage to a file: in its bytes, and in the fields and chunks that a format gives them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from random import Random

PNG = b"\x89PNG\r\n\x1a\n"
#: Numbers at the ends of what some field can hold.
NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    24,
    32,
    127,
    128,
    255,
    256,
    4096,
    2**15 - 1,
    2**15,
    2**16 - 1,
    2**16,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)


def damaged(content: bytes, number: int, other: bytes = b"") -> bytes:
    """The file after zero to six hits, which follow from the number alone. Now and then a part of `other` gets in."""
    random = Random(number)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 6))):
        hit = random.choice((_bytes, _bytes, _number, _number, _cut, _repeat, _field, _field, _field, _mixed))
        content = hit(content, random, other) if content else other
    return content[: 2**16]


def _bytes(content: bytes, random: Random, _other: bytes) -> bytes:
    """Some bytes are others, most of them near the beginning, where headers are."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        reach = len(data) if random.random() < 0.5 else min(len(data), 64)
        data[random.randrange(reach)] = random.randrange(256)
    return bytes(data)


def _number(content: bytes, random: Random, _other: bytes) -> bytes:
    """A field of one to four bytes holds an extreme number."""
    width = random.choice((1, 2, 4))
    at = random.randrange(max(1, min(len(content), random.choice((64, 512, len(content))))))
    number = random.choice(NUMBERS) % (1 << 8 * width)
    packed = number.to_bytes(width, "little") if random.random() < 0.5 else number.to_bytes(width, "big")
    return content[:at] + packed + content[at + width :]


def _cut(content: bytes, random: Random, _other: bytes) -> bytes:
    """The end is missing, or a piece in the middle."""
    first, second = sorted(random.randrange(len(content) + 1) for _ in range(2))
    return content[:second] if random.random() < 0.5 else content[:first] + content[second:]


def _repeat(content: bytes, random: Random, _other: bytes) -> bytes:
    first, second = sorted(random.randrange(len(content) + 1) for _ in range(2))
    return content[:second] + content[first:second] * random.choice((1, 1, 2, 20)) + content[second:]


def _mixed(content: bytes, random: Random, other: bytes) -> bytes:
    """The beginning of one file, the end of another."""
    return content[: random.randrange(len(content) + 1)] + other[random.randrange(len(other) + 1) :]


def _field(content: bytes, random: Random, other: bytes) -> bytes:
    """A hit that knows the format, where there is one for it."""
    hits: dict[bytes, Callable[[bytes, Random], bytes]] = {
        PNG: _png,
        b"II*\0": _tiff,
        b"MM\0*": _tiff,
        b"\xff\xd8": _jpeg,
    }
    for start, hit in hits.items():
        if content.startswith(start):
            return hit(content, random)
    return _number(content, random, other)


def _png(content: bytes, random: Random) -> bytes:
    """A chunk is changed, dropped, doubled or moved, and its checksum is right again."""
    at, chunks = len(PNG), list[tuple[bytes, bytes]]()
    while at + 8 <= len(content) and len(chunks) < 64:
        size = int.from_bytes(content[at : at + 4], "big")
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    if not chunks:
        return content
    i = random.randrange(len(chunks))
    kind, body = chunks[i]
    match random.randrange(6):
        case 0:
            del chunks[i]
        case 1:
            chunks.insert(random.randrange(len(chunks) + 1), chunks[i])
        case 2:
            new = random.choice(
                (b"tRNS", b"PLTE", b"eXIf", b"iCCP", b"zTXt", b"iTXt", b"gAMA", b"acTL", b"fcTL", b"fdAT", b"pHYs")
            )
            chunks.insert(random.randrange(len(chunks) + 1), (new, random.randbytes(random.choice((0, 1, 4, 26)))))
        case 3 if kind == b"IDAT":
            chunks[i] = kind, zlib.compress(random.randbytes(random.randrange(200)))
        case _ if body:
            chunks[i] = kind, (_number if random.random() < 0.6 else _bytes)(body, random, b"")
    whole = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    return PNG + b"".join(whole)


def _tiff(content: bytes, random: Random) -> bytes:
    """An entry of the first directory: its tag, type, count or value."""
    order = "<" if content.startswith(b"II") else ">"
    if len(content) < 10:
        return content
    (at,) = struct.unpack(order + "I", content[4:8])
    if at + 2 > len(content):
        return content
    (entries,) = struct.unpack(order + "H", content[at : at + 2])
    entry = at + 2 + 12 * random.randrange(max(1, min(entries, 64)))
    offset, width = random.choice(((0, 2), (2, 2), (4, 4), (8, 4), (8, 2)))
    number = random.choice((*NUMBERS, *range(254, 300), 317, 320, 322, 323, 324, 325, 338, 339, 34675)) % (
        1 << 8 * width
    )
    packed = struct.pack(order + ("H" if width == 2 else "I"), number)
    return content[: entry + offset] + packed + content[entry + offset + width :]


def _jpeg(content: bytes, random: Random) -> bytes:
    """A byte of a marker's segment, or of its length."""
    marks = [i for i in range(len(content) - 4) if content[i] == 0xFF and content[i + 1] not in (0, 0xFF)]
    if not marks:
        return content
    at = random.choice(marks) + random.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
    return content[:at] + bytes([random.choice((0, 1, 2, 3, 8, 255, random.randrange(256)))]) + content[at + 1 :]
