"""Times in records: text, UTC."""

from datetime import UTC, datetime


def now_text() -> str:
    """The time of this machine to the second, such as 2026-11-24T09:30:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def instant(text: object) -> datetime:
    """The time of such a text or of a day, at midnight; UTC where it names no zone. Raises ValueError."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is no time such as {now_text()}") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
