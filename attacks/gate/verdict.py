"""The verdict on a policy."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # it imports torch, which a page of errors does not need
    from attacks.gate.policy import Policy, Requirement

Word = Literal["PASS", "FAIL", "UNDECIDED"]
#: The exit codes of commands that decide; 1 is an error.
CODES: dict[str, int] = {"PASS": 0, "FAIL": 3, "UNDECIDED": 4}
#: The reason of a row that has only a range.
RANGE_REASON = "the perturbation was made from these pictures, so there is no interval"


def worst_word(words: Iterable[Word]) -> Word:
    """FAIL if it is among the words, else UNDECIDED if that is, else PASS."""
    return max(words, key=("PASS", "UNDECIDED", "FAIL").index, default="PASS")


@dataclass(frozen=True)
class RequirementResult:
    """A requirement with its verdict: the value with the ends of its 95 % interval; about how many pictures `more`
    would decide it (None: unknown), the reason of a verdict that does not follow from the interval, and the `chance`
    of the measure with its `least` and `most` reachable value (None: the run does not say). `weighted`: by the column
    `weight` of the pictures."""

    requirement: "Requirement"
    verdict: Word
    value: float
    low: float
    high: float
    clusters: int
    pictures: int
    more: int | None = None
    reason: str = ""
    chance: float | None = None
    least: float | None = None
    most: float | None = None
    weighted: bool = False

    @property
    def has_range(self) -> bool:
        """Whether there is no interval."""
        return self.reason.startswith(RANGE_REASON)

    @property
    def number(self) -> str:
        """The value with the ends of its interval in brackets, or of the range in parentheses."""
        return number_text(vars(self))


@dataclass(frozen=True)
class Verdict:
    """The rows of a policy on one run. `reasons`: why no row can pass, such as a failed check of the attack.
    `sequential`: decided by confidence sequences, which hold however often one looks. `notes`: what speaks against
    the record of the run or the age of the bars; the verdict stands."""

    policy: "Policy"
    run: str
    rows: tuple[RequirementResult, ...]
    reasons: tuple[str, ...] = ()
    sequential: bool = False
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Word:
        """FAIL if a row fails, else UNDECIDED if one is, else PASS."""
        return worst_word(row.verdict for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 for PASS, 3 for FAIL, 4 for UNDECIDED."""
        return CODES[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        """For metrics.json."""
        policy = {key: getattr(self.policy, key) for key in ("claim", "date", "digest", "encoder")}
        content = {"policy": policy | {"threat": dict(self.policy.threat)}, "verdict": self.verdict}
        rows = [asdict(row) | {"text": str(row.requirement)} for row in self.rows]
        rows = [{key: value for key, value in row.items() if key != "weighted" or value} for row in rows]
        return content | {"sequential": self.sequential, "rows": rows, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        return "\n".join([verdict_text(self.as_dict(), self.run), *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in verdict_rows(self.as_dict()))
        rows = "".join(f"<tr>{row}</tr>" for row in cells)
        reasons = "".join(f"<p>No row can pass: {escape(reason)}</p>" for reason in self.reasons)
        reasons += "".join(f"<p>Note: {escape(note)}</p>" for note in self.notes)
        return f"<p><b>{self.verdict}</b>: {escape(self.policy.claim)}</p><table>{rows}</table>{reasons}"


def verdict_text(gate: Mapping[str, Any], run: str = "") -> str:
    """The section `gate` of metrics.json in lines of a terminal."""
    cells = [("requirement", "value", "verdict", "from"), *verdict_rows(gate)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    head = f"{gate['verdict']}: {gate['policy']['claim']}" + (f" ({run})" if run else "")
    return "\n".join([head, *lines, *(f"no row can pass: {reason}" for reason in gate["reasons"])])


def verdict_rows(gate: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Of each requirement of such a section the text, the value with its ends, the verdict, and its reason."""
    return [(row["text"], number_text(row), row["verdict"], _note(row)) for row in gate["rows"]]


def number_text(row: Mapping[str, Any]) -> str:
    """The `number` of a row of such a section."""
    value, low, high = (f"{row[key]:.3g}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})" if row["reason"].startswith(RANGE_REASON) else f"{value} [{low}, {high}]"


def level_text(level: Mapping[str, Any]) -> str:
    """The chance level of a measure, and the least and the greatest value that it can have."""
    return f"random answers {level['chance']:.3g} ({level['least']:.3g} to {level['most']:.3g})"


def _note(row: Mapping[str, Any]) -> str:
    plan = "" if row["more"] is None else f"; decided by about {count_text(row['more'], 'further picture')}"
    level = "" if row["chance"] is None else f"; {level_text(row)}"
    reason = row["reason"] and f"; {row['reason']}"
    return f"{size_text(row)}{level}{plan}{reason}"


def size_text(row: Mapping[str, Any]) -> str:
    """From how many pictures and clusters the value of such a row is, and whether they count unequally."""
    text = counts_text(row["pictures"], row["clusters"])
    return f"{text}, weighted by `weight`" if row.get("weighted") else text


def counts_text(pictures: int, clusters: int) -> str:
    return f"{count_text(pictures, 'picture')} in {count_text(clusters, 'cluster')}"


def count_text(number: int, noun: str) -> str:
    """A number of things, such as "1 picture" or "2 pictures"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
