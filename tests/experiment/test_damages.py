"""A run directory whose files were damaged while it was stopped: the run notices, or is not harmed."""

import json
import shutil

import pytest

from tests.helpers.processes import facts
from tests.helpers.sampling import mostly_nightly


def bit_flip(share):
    def harm(data, _):
        at = min(int(share * len(data)), len(data) - 1)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return harm


def zeros(share):
    def harm(data, _):
        at = int(share * max(len(data) - 4096, 0))
        return data[:at] + bytes(min(4096, len(data) - at)) + data[at + 4096 :]

    return harm


#: Name -> what a file's bytes, and those of another file of its kind, become.
DAMAGES = {
    **{f"flip {share}": bit_flip(share) for share in (0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1)},
    **{f"zero {share}": zeros(share) for share in (0, 0.5, 1)},
    **{f"cut {share}": lambda data, _, share=share: data[: int(share * len(data))] for share in (0, 0.1, 0.5)},
    "cut 1": lambda data, _: data[:-1],
    "append 1": lambda data, _: data + b"\0",
    "append 4096": lambda data, _: data + bytes(4096),
    "copy": lambda _, other: other,
}
PARTS = range(20)
#: What of a manifest is checked when a run is resumed: what its numbers depend on.
ENTRIES = ("config", "identity", "engine")


def stopped_runs(crashes):
    """Two stopped runs, in which no part is contained in another: the last one in a step, and one with most parts."""
    kills = [crash for crash in sorted((crashes / "kill").iterdir()) if not is_contained(parts(crash))]
    return [crash for crash in kills if "now" in " ".join(parts(crash))][-1], max(kills, key=lambda k: len(parts(k)))


def parts(crash):
    return [path.name.removesuffix(".safetensors") for path in crash.glob("checkpoint/[!.]*.safetensors")]


def is_contained(names):
    return any(longer.startswith(f"{short}.") for longer in names for short in names)


def cases(crashes, *patterns):
    """(run, file, name of the damage, bytes of the damaged file)"""
    for run in stopped_runs(crashes):
        for pattern in patterns:
            files = sorted(run.glob(pattern))
            for file, other in zip(files, [*files[1:], files[0]], strict=True):
                data = file.read_bytes()
                for name, harm in DAMAGES.items():
                    damage = harm(data, other.read_bytes())
                    if damage != data:
                        yield run, file.relative_to(run), name, damage


def silent(nursery, folder, case, expected):
    """What is wrong with the resumed run; nothing if it has `expected` files, or was refused in one line."""
    run, file, name, damage = case
    shutil.copytree(run, folder)
    manifest = dependencies(folder)
    (folder / file).write_bytes(damage)
    code, text = nursery.run([f"resume={folder}"])
    if code == 0:
        figures = facts(folder)
        wrong = [name for name in {**figures, **expected} if figures.get(name) != expected.get(name)]
        wrong += ["manifest.json"] if dependencies(folder) != manifest else []
        if file.parts[0] == "checkpoint" and f"{folder / file} is damaged" not in text:
            wrong.append("no note")
    else:
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        wrong = [] if code == 1 and len(errors) == 1 and "Traceback" not in text else [text[-2000:]]
    shutil.rmtree(folder)
    return f"{file}, {name}: exit {code}, {wrong}" if wrong else None


def dependencies(folder):
    content = json.loads((folder / "manifest.json").read_text())
    return [content[name] for name in ENTRIES]


def none_silent(nursery, recording, top, patterns, part, minimum):
    expected, crashes = recording("pictures")
    all_cases = list(cases(crashes, *patterns))
    assert len(all_cases) >= minimum and (part or patterns[0].startswith("pictures") or "gallery" in str(all_cases))
    wrong = [silent(nursery, top / f"damaged-{part}", case, expected) for case in all_cases[part :: len(PARTS)]]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("part", mostly_nightly(PARTS, len(PARTS)))
def test_no_damage_of_a_stopped_run_is_silent(nursery, recording, top, part):
    none_silent(nursery, recording, top, ["checkpoint/*.safetensors", "manifest.json"], part, 300)


@pytest.mark.parametrize("part", mostly_nightly(PARTS, len(PARTS)))
def test_no_damage_of_a_written_picture_is_silent(nursery, recording, top, part):
    none_silent(nursery, recording, top, ["pictures/*/*.png"], part, 200)
