"""The lock of a policy, a file beside it: the SHA-256 of its bars, and since when they are fixed."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attacks.gate.policy import Policy, policy_file, read_policy
from attacks.runtime.clock import instant, now_text
from attacks.runtime.files import sha256, write_json
from attacks.runtime.untrusted import read_untrusted


@dataclass(frozen=True)
class PolicyLock:
    """`date`: since when the bars are fixed, by the clock of a machine; `sha256`: of the file of the lock."""

    date: str
    sha256: str


def lock_file(policy: Path) -> Path:
    """The lock of a policy's file: policy.yaml has policy.lock.json."""
    return policy.with_suffix(".lock.json")


def lock(policy: Policy, file: Path) -> Path:
    """Write the lock of a policy. Raises ValueError where another one exists: a bar is fixed once."""
    path = lock_file(file)
    if path.exists():
        read_lock(policy, file)
        raise ValueError(f"`{path}` exists already, and matches; it is not written again, for it has the date")
    write_json(path, {"policy": file.name, "sha256": policy.digest, "date": now_text()})
    return path


def read_lock(policy: Policy, file: Path) -> PolicyLock | None:
    """The lock beside a policy; None without one. Raises ValueError where it is of another policy, or of a later time
    than now."""
    path = lock_file(file)
    if not path.exists():
        return None
    content = read_untrusted(path)
    date = str(content.get("date"))
    try:
        time = instant(date)
    except ValueError as error:
        raise ValueError(f"`{path}`: `date` {error}") from None
    if content.get("sha256") != policy.digest:
        digests = f"its SHA-256 is {policy.digest[:12]}, the lock has {str(content.get('sha256'))[:12]}"
        fix = "Restore it, or give the new policy another name"
        raise ValueError(f"`{file}` is not the policy that was locked on {date}: {digests}. {fix}")
    if time > datetime.now(UTC):
        raise ValueError(f"`{path}`: `date` must not lie in the future; got {date}, the clock has {now_text()}")
    return PolicyLock(date, sha256(path))


def policy_record(name: str | None) -> dict[str, Any] | None:
    """For manifest.json: the SHA-256 of a policy and its lock, or None. Raises ValueError or OSError."""
    if name is None:
        return None
    file = policy_file(name)
    policy = read_policy(file)
    lock = read_lock(policy, file)
    return {"sha256": policy.digest, "lock": None if lock is None else asdict(lock)}
