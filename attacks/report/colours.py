"""The colours of the pages, light and dark. The tests compute the contrast of every pair that is used together."""

import numpy as np

LIGHT = {
    "ink": "#1d2530",
    "dim": "#56616e",
    "line": "#cfd6dd",
    "paper": "#ffffff",
    "panel": "#f4f6f8",
    "mark": "#fff1cc",
    "link": "#0b55c4",
    "clean": "#2d7a52",
    "noise": "#6b7786",
    "no_eot": "#bb4f18",
    "one_view": "#8b45b8",
    "eot": "#1a56a8",
}
DARK = {
    "ink": "#e6e9ed",
    "dim": "#a6b1be",
    "line": "#3c4652",
    "paper": "#12171d",
    "panel": "#1b222b",
    "mark": "#43360f",
    "link": "#8dbbff",
    "clean": "#7fd6a3",
    "noise": "#a0aec0",
    "no_eot": "#f6a06a",
    "one_view": "#d3a8f2",
    "eot": "#7fb2f5",
}
#: Text on its background, with a contrast of at least 4.5, and lines on theirs, with at least 3 (WCAG 2.2).
TEXT = [(text, background) for text in ("ink", "dim", "link") for background in ("paper", "panel", "mark")]
LINES = [(arm, "paper") for arm in ("clean", "noise", "no_eot", "one_view", "eot")]
#: Backgrounds of cells, from no effect of the attack to full effect; the same in the light and the dark page.
RAMP = ("#f3f6fa", "#c2d6ec", "#80aad8", "#3b74b5", "#123e7a")


def variables(palette: dict[str, str]) -> str:
    """The palette as CSS variables."""
    return " ".join(f"--{name}: {colour};" for name, colour in palette.items())


def page_colours(svg: str) -> str:
    """A drawing in the light palette, with its colours replaced by the page's variables. White is kept: it is the
    text of dark cells."""
    for name, colour in LIGHT.items():
        if name != "paper":
            svg = svg.replace(f": {colour}", f": var(--{name})")
    return svg


def shade(measure: str, mean: float) -> tuple[str, str]:
    """Background and text of a cell. Dark cells are those where the attack works: high success, or low cosine."""
    strength = mean if measure == "success" else 1 - mean
    places, channels = np.linspace(0, 1, len(RAMP)), np.array([_channels(colour) for colour in RAMP])
    background = "#" + "".join(f"{round(np.interp(strength, places, channel)):02x}" for channel in channels.T)
    return background, max("#000000", "#ffffff", key=lambda text: contrast_ratio(text, background))


def contrast_ratio(first: str, second: str) -> float:
    """The contrast ratio of two colours #rrggbb, 1 to 21 (WCAG 2.2)."""
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _channels(colour))
    ]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(colour: str) -> list[int]:
    return [*bytes.fromhex(colour[1:])]
