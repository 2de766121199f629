"""The keys of the choices of the group `objective` whose class declares none. No torch."""

from dataclasses import dataclass

from attacks.schema.options import MISSING, option

TARGET = "another (of another photograph, drawn), a gallery picture, an image's path, or table: that of its row"
CLASS = "another (class, drawn by the seed), the name of a class, or table: that of its row"
ANCHOR = "own: the untouched picture; views: its mean over views; paired: itself in the same view (a second pass)"


@dataclass
class AwayConfig:
    """The view should stop looking like its own picture."""

    name: str = "away"
    metric: str = option("cosine", "or l2, which an attack spends on lengths", range="cosine, l2")
    anchor: str = option("own", ANCHOR, range="own, views, paired")
    encoders: list[str] = option(
        [], "encoders that are attacked together with it, such as [pocket, timm:resnet18]", paper="Dong et al. 2018"
    )


@dataclass
class TowardConfig:
    """The view should look like another picture."""

    name: str = "toward"
    target: str = option("another", TARGET)
    metric: str = option("cosine", range="cosine, l2")


@dataclass
class TripletConfig:
    """The view should be nearer to another picture than to its own."""

    name: str = "triplet"
    target: str = option("another", TARGET)
    margin: float | None = option(
        None, "a view won by so much hardly counts any more (a hinge)", range="[0, 2)", paper="Schroff et al. 2015"
    )


@dataclass
class InfoNCEConfig:
    """The true match should lose its share of the softmax over the gallery; or a target should win it."""

    name: str = "infonce"
    temperature: float = option(
        0.07, "that of the encoder's training, if it is known", range="above 0", paper="van den Oord et al. 2018"
    )
    target: str | None = option(None, f"should win: {TARGET}; null: the true match should lose")


@dataclass
class LogitsConfig:
    """What the losses on logits have: those of task=classification, and of task=score but for dlr."""

    name: str = MISSING
    target: str | None = option(None, f"should win: {CLASS}; null: the picture's class should lose")


@dataclass
class LayersConfig:
    """Features inside the encoder should stop looking like those of the untouched picture.

    Use: an embedding that hides what happens inside, or features that another network reads.
    Not: a search by the embedding itself: away.
    Source: the cosine of features, as of away.
    Oracle: each weight belongs to its layer, tests/objectives/test_aim.py.
    """

    name: str = "layers"
    layers: list[str] = option(
        ["stages.5:flat", "stages.8:flat"], "module, or module:pool with the pool flat, mean, cls or tokens"
    )
    weights: list[float] = option([], "one for each layer, in order; none: equal ones", range="at least 0")
    metric: str = option("cosine", range="cosine, l2")
    anchor: str = option("own", ANCHOR, range="own, views, paired")


@dataclass
class MixedConfig:
    """Away from the own picture and below the best impostor at once.

    Use: a best impostor that changes from view to view, which away alone does not reach.
    Not: a gallery that the attacker does not know: away.
    Source: the weighted sum of away and retrieval.
    Cost: a product of each view's embedding with the gallery.
    Oracle: a weighted sum, tests/objectives/test_embedding.py.
    """

    name: str = "mixed"
    away: float = option(1.0, "weight of away", range="at least 0")
    retrieval: float = option(1.0, "weight of retrieval", range="at least 0")
