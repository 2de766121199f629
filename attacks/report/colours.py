"""The colours of the pages, light and dark. The tests compute the contrast of every pair that is used together."""

import numpy as np

#: The colours by name, of the light page and of the dark one.
PALETTES = {
    "ink": ("#1d2530", "#e6e9ed"),
    "dim": ("#56616e", "#a6b1be"),
    "line": ("#cfd6dd", "#3c4652"),
    "paper": ("#ffffff", "#12171d"),
    "panel": ("#f4f6f8", "#1b222b"),
    "mark": ("#fff1cc", "#43360f"),
    "link": ("#0b55c4", "#8dbbff"),
    "clean": ("#2d7a52", "#7fd6a3"),
    "noise": ("#6b7786", "#a0aec0"),
    "no_eot": ("#bb4f18", "#f6a06a"),
    "one_view": ("#8b45b8", "#d3a8f2"),
    "bare": ("#a12c5c", "#f5a3c7"),
    "eot": ("#1a56a8", "#7fb2f5"),
}
LIGHT, DARK = ({name: pair[i] for name, pair in PALETTES.items()} for i in (0, 1))
#: Backgrounds of cells, from no effect of the attack to full effect; the same in the light and the dark page.
RAMP = ("#f3f6fa", "#c2d6ec", "#80aad8", "#3b74b5", "#123e7a")


def page_colours(svg: str) -> str:
    """A drawing in the light palette, with its colours, but for white, replaced by the page's variables."""
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
    values = [channel / 255 for channel in _channels(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(colour: str) -> list[int]:
    return [*bytes.fromhex(colour[1:])]
