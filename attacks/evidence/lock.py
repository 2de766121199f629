"""Bars that are fixed beforehand: a digest of the policy with a date, beside it."""

import json
from datetime import date
from pathlib import Path

from attacks.gate.policy import Policy
from attacks.runtime.files import write_json
from attacks.runtime.untrusted import read_untrusted


def lock_file(policy: Path) -> Path:
    """The lock of a policy's file: policy.yaml has policy.lock.json."""
    return policy.with_suffix(".lock.json")


def lock(policy: Policy, file: Path) -> Path:
    """Write the lock of a policy. Raises ValueError where another one exists: a bar is fixed once."""
    path = lock_file(file)
    if path.exists():
        lock_date(policy, file)
        raise ValueError(f"`{path}` exists already, and matches; it is not written again, for it has the date")
    write_json(path, {"policy": file.name, "sha256": policy.digest, "date": date.today().isoformat()})
    return path


def lock_date(policy: Policy, file: Path) -> str | None:
    """The date of the lock beside a policy; None without one. Raises ValueError where the policy has changed."""
    path = lock_file(file)
    if not path.exists():
        return None
    content = read_untrusted(path)
    try:
        day = date.fromisoformat(str(content.get("date"))).isoformat()
    except ValueError:
        raise ValueError(f"`{path}` has no date such as 2026-11-24; got {json.dumps(content.get('date'))}") from None
    if content.get("sha256") != policy.digest:
        raise ValueError(
            f"`{file}` is not the policy that was locked on {day}: its SHA-256 is {policy.digest[:12]}, the lock has "
            f"{str(content.get('sha256'))[:12]}. Restore it, or give the new policy another name"
        )
    return day
