"""The catalogue of methods: one entry each, from which everything that lists methods is made.

A further method is a file in `strategies/`, a file in `mixers/` or `hiding/` if it mixes or hides
in a new way, and one entry of `METHODS`. Importing this module loads neither torch nor a strategy.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args, get_type_hints

ShapeName = Literal["L", "U"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method, without and with averaging.

    Facts that a constructor states itself (its options, whether it averages) are not repeated here.

    Parameters
    ----------
    name
        Name of the strategy's class, which does not average by itself.
    module
        Module of `flwr_splitmix.strategies` that has the class.
    twin
        Name of the class, in the same module, that differs in averaging alone; None if there is
        none.
    shape
        "L": the loss is at the server; "U": at the client.
    mixer
        What mixes smashed data (L shape) or hides them (U shape), inner mixers in parentheses: the
        strategy's `str(strategy.mixer)`; "" for a U shape that hides nothing.
    needs
        Options of the constructor without which there is no strategy, besides the segment.
    positions
        Where position embeddings must be added, as the mixer has it: "upper" if patches are moved
        behind the cut.
    keys
        Which of `MIXING` are its own; its constructor says so too, but needs torch.
    at_cut, up, protects
        For the tables, in Markdown: what happens at the cut, what crosses it on its way to the
        server, what is hidden from the server.
    epsilon
        What the epsilon that its clients report covers, and what not; "" if they report none.
    noise
        U shape: keys of its own on noise.
    left_out
        What of the trained model an export leaves out, in sentences for its card; "" for nothing.
    """

    name: str
    module: str
    twin: str | None = None
    shape: ShapeName = "L"
    mixer: str = ""
    needs: tuple[Literal["noise", "labels"], ...] = ()
    positions: Literal["upper"] | None = None
    keys: tuple[str, ...] = ()
    at_cut: str
    up: str
    protects: str
    epsilon: str = ""
    noise: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its classes."""
        return (self.name,) if self.twin is None else (self.name, self.twin)


MIXING = ("k", "alpha")
"""Keys on how smashed data are mixed that several methods have."""

_FROZEN = "frozen edges shuffle tokens; labels are at the server"
_INPUTS = "all smashed data of images that the client mixed before its lower segment; soft labels"
_CUT_INPUTS = "all smashed data of images of which parts are left out; soft labels"
_SOME = "in part: patches that are not sent in that step can only be guessed"
_EXACTLY = "(attacks.md#read-by-linear-algebra)"
_ORDER = "of the patches, nothing; of their order, a part: [attacks.md]" + _EXACTLY
_IMAGE = "nothing: the image is read from its spectrum ([attacks.md]" + _EXACTLY + ")"
_EPSILON = "what an epsilon says: [privacy.md](privacy.md)"

METHODS: tuple[Method, ...] = (
    Method(
        name="PSL", twin="SFL", module="psl", mixer="NoMixing",
        at_cut="nothing", up="all smashed data, hard labels", protects="nothing",
    ),
    Method(
        name="MixupSL", twin="MixupSFL", module="mixup_sl", mixer="Mixup",
        keys=MIXING, at_cut="weighted sums over *k* clients",
        up="all smashed data times the mixing ratio; the sum of *k* clients' is one mixture",
        protects="nothing from the server",
    ),
    Method(
        name="CutoutSL", twin="CutoutSFL", module="cutout_sl", mixer="RandomCutout",
        keys=("alpha",), at_cut="random patches are left out",
        up="some random patches; gaps stay empty", protects=_SOME,
    ),
    Method(
        name="VanillaCutMixSL", twin="VanillaCutMixSFL", module="vanilla_cutmix_sl",
        mixer="VanillaCutMix", keys=("k",), at_cut="a box of patches is another client's",
        up="the patches in a box, or those around it; *k* is 2", protects=_SOME,
    ),
    Method(
        name="CutMixSL", twin="CutMixSFL", module="cutmix_sl", mixer="PatchCutMix",
        keys=MIXING, at_cut="random patches of *k* clients",
        up="some random patches, 1/*k* of them on average; the others of the *k* fill the gaps",
        protects=_SOME,
    ),
    Method(
        name="ShuffledPSL", twin="ShuffledSFL", module="shuffled_sl", mixer="Shuffled(NoMixing)",
        positions="upper", at_cut="patches change places behind the mixer",
        up="all smashed data, without positions; the mixer shuffles each sample's patches",
        protects="nothing; the order of patches is hidden from the upper segment only",
    ),
    Method(
        name="ShuffledCutMixSL", twin="ShuffledCutMixSFL", module="shuffled_sl",
        mixer="Shuffled(PatchCutMix)", positions="upper",
        keys=MIXING, at_cut="as CutMixSL; patches change places behind the mixer",
        up="as CutMixSL, without positions; the mixer shuffles the mixture's patches",
        protects="as CutMixSL; the order of patches is hidden from the upper segment only",
    ),
    Method(
        name="InputMixupSL", twin="InputMixupSFL", module="input_level_sl",
        mixer="InputLevel(Mixup)", at_cut="inputs are mixed before the lower segment",
        up=_INPUTS, protects="nothing; for comparison",
    ),
    Method(
        name="InputCutoutSL", twin="InputCutoutSFL", module="input_level_sl",
        mixer="InputLevel(RandomCutout)", at_cut="parts of inputs are left out",
        up=_CUT_INPUTS, protects="nothing; for comparison",
    ),
    Method(
        name="InputVanillaCutMixSL", twin="InputVanillaCutMixSFL", module="input_level_sl",
        mixer="InputLevel(VanillaCutMix)", at_cut="inputs are mixed before the lower segment",
        up=_INPUTS, protects="nothing; for comparison",
    ),
    Method(
        name="InputCutMixSL", twin="InputCutMixSFL", module="input_level_sl",
        mixer="InputLevel(PatchCutMix)", at_cut="inputs are mixed before the lower segment",
        up=_INPUTS, protects="nothing; for comparison",
    ),
    Method(
        name="PatchShuffleSL", module="shuffled_edge_sl", mixer="FrozenEdge", needs=("labels",),
        at_cut=_FROZEN, up="shuffled patches of a frozen lower segment; ids for labels",
        protects=_ORDER,
    ),
    Method(
        name="BatchShuffleSL", module="shuffled_edge_sl", mixer="FrozenEdge", needs=("labels",),
        at_cut=_FROZEN, up="as PatchShuffleSL, with patches exchanged within the batch",
        protects=_ORDER,
    ),
    Method(
        name="SpectralShuffleSL", module="shuffled_edge_sl", mixer="FrozenEdge",
        needs=("labels",), at_cut=_FROZEN,
        up="shuffled patches of the embedded image's spectrum; ids for labels",
        protects=_IMAGE,
    ),
    Method(
        name="DPSL", twin="DPSFL", module="dp_sl", mixer="Noisy(NoMixing)", needs=("noise",),
        at_cut="clipping and Gaussian noise, then as PSL",
        up="as PSL, clipped and with noise; noisy soft labels", protects=_EPSILON,
    ),
    Method(
        name="DPMixSL", twin="DPMixSFL", module="dp_sl", mixer="Noisy(Mixup)", needs=("noise",),
        keys=MIXING, at_cut="clipping and Gaussian noise, then as MixupSL",
        up="as MixupSL, clipped and with noise; noisy soft labels", protects=_EPSILON,
    ),
    Method(
        name="DPCutMixSL", twin="DPCutMixSFL", module="dp_sl", mixer="Noisy(PatchCutMix)",
        needs=("noise",), keys=MIXING, at_cut="clipping and Gaussian noise, then as CutMixSL",
        up="as CutMixSL, clipped and with noise; noisy soft labels", protects=_EPSILON,
    ),
    Method(
        name="USplitSL", twin="USplitFL", module="u_split_sl", shape="U", at_cut="nothing",
        up="hidden states and gradients", protects="inputs, labels, logits",
    ),
    Method(
        name="NaiveMixSL", module="mixguard", shape="U", mixer="NaiveMix",
        at_cut="two examples' hidden states in one", up="as USplitSL",
        protects="inputs, labels, logits",
    ),
    Method(
        name="MixGuard", module="mixguard", shape="U", mixer="MixGuard",
        keys=("k",), at_cut="secret mixtures with support texts, noise on gradients",
        up="*m* times as much as USplitSL; with refinement in every step (3*m* + 1)/2 times",
        protects="inputs, labels, logits", noise=("perturbation", "strength"),
        left_out="MixGuard's calibrator is left out, although the tail was trained behind it: the "
        "run's accuracy is not this model's.",
    ),
    Method(
        name="DPForwardSL", module="ushape_defences", shape="U", mixer="DPForward",
        at_cut="each example's hidden states are clipped and get Gaussian noise",
        up="as USplitSL; hidden states, not gradients, have an [epsilon](language.md#dp-forward)",
        protects="inputs, labels, logits",
        epsilon="a client's messages about one record, in training and evaluation; not gradients "
        "returned to the trunk, lengths of texts, mean losses and scores, what a record did to "
        "a head that learns, or heads and tails that are averaged or exported (docs/language.md of "
        "flwr-splitmix)",
        noise=("epsilon", "releases", "clip-norm", "sensitivity"),
    ),
    Method(
        name="NoPeekSL", module="ushape_defences", shape="U", mixer="NoPeek",
        at_cut="heads learn to send what depends less on the inputs", up="as USplitSL",
        protects="inputs, labels, logits",
    ),
    Method(
        name="SnDSL", module="ushape_defences", shape="U", mixer="SnD",
        at_cut="noise on each token's hidden state, a denoiser at the client",
        up="as USplitSL; with refinement in every step twice as much",
        protects="inputs, labels, logits", noise=("eta",),
        left_out="Its tail was trained behind noise and a denoiser, which are left out: the run's "
        "accuracy is not this model's.",
    ),
    Method(
        name="DPSGDSL", module="ushape_defences", shape="U", mixer="DPSGD",
        at_cut="nothing; heads and tails learn by DP-SGD",
        up="as USplitSL; averaged weights, and nothing else, have an "
        "[epsilon](language.md#dp-sgd-on-head-and-tail)",
        protects="inputs, labels, logits",
        epsilon="the weights of a client's head and tail, about one training record, as long as "
        "the trunk does not change; not messages, gradients returned to the trunk, lengths of "
        "texts, mean losses and scores, or a trunk that learns (docs/language.md of flwr-splitmix)",
        noise=("noise-multiplier", "clip-norm"),
    ),
)  # fmt: skip
"""All methods, in the order in which they are listed everywhere."""

BY_NAME: dict[str, Method] = {name: method for method in METHODS for name in method.names}
"""Each method by the names of its classes."""


def strategy_names(shape: ShapeName | None = None) -> tuple[str, ...]:
    """Return the names of the strategies of one shape, or of both, twin after method."""
    return tuple(name for name, method in BY_NAME.items() if shape in (None, method.shape))


def strategy_class(name: str) -> type[Any]:
    """Import the class of a strategy.

    Raises
    ------
    KeyError
        If the catalogue has no strategy of that name.
    """
    kind = getattr(import_module(f"flwr_splitmix.strategies.{BY_NAME[name].module}"), name)
    assert isinstance(kind, type)
    return kind


def own_options(kind: type[Any]) -> tuple[str, ...]:
    """Return the keyword options that a strategy's constructor names, in its order.

    Those that every strategy has are not named there: they are passed on.
    """
    parameters = inspect.signature(kind).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def plain_options(kind: type[Any]) -> tuple[str, ...]:
    """Return those of `own_options` whose values are plain, as a run configuration can say them."""
    # The constructor may be that of a base class in another module.
    hints = get_type_hints(kind.__init__)
    return tuple(name for name in own_options(kind) if _is_plain(hints[name]))


def _is_plain(hint: Any) -> bool:
    parts = get_args(hint)
    if parts and all(isinstance(part, str) for part in parts):  # Literal["a", "b"]
        return True
    return {*(parts or (hint,))} <= {bool, int, float, str, type(None)}


def plain(markdown: str) -> str:
    """Return a field of a `Method` as plain text.

    Links lead nowhere outside this package's docs: of one to a page the page's path stays, of any
    other its words.
    """

    def words(link: re.Match[str]) -> str:
        return f"docs/{link[1]} of flwr-splitmix" if link[1].endswith(".md") else link[1]

    return re.sub(r"\[([^]]*)\]\([^)]*\)", words, markdown).replace("*", "")
