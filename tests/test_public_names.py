"""What `from attacks import ...` offers."""

from pathlib import Path

import attacks

ROOT = Path(__file__).resolve().parents[1]


def test_every_public_name_is_there_and_no_module_hides_one():
    modules = {path.stem for path in (ROOT / "attacks").iterdir()}
    assert not modules & set(attacks.__all__)
    for name in attacks.__all__:
        assert callable(getattr(attacks, name))
