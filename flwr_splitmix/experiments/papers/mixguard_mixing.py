"""Table VIII and Figures 3 to 5 of MixGuard: numbers of mixed texts and of messages.

They show utility and costs on CoLA; the attacks are in the matrix of texts.
"""

from __future__ import annotations

from flwr_splitmix.experiments.experiment import Entry, Experiment, Ordering, TableScore
from flwr_splitmix.experiments.papers.mixguard_ablations import (
    BARE,
    CONSTANT,
    LATE,
    MIXED,
    NO_STAGE_ONE,
    QUIET,
    SILENT,
    STEADY,
    UNCALIBRATED,
    WITH_TOKENS,
)
from flwr_splitmix.experiments.papers.mixguard_settings import (
    COLA,
    MixGuardSetting,
    messages_row,
    sources_row,
)

SOURCES = {3: 84.5, 4: 85.0, 5: 85.2, 6: 84.8, 7: 85.0, 8: 83.8, 9: 83.9, 10: 83.6}
"""Accuracy on CoLA in percent, as printed in Table VIII, by k with m = 3."""

MESSAGES = {5: 85.6, 7: 85.3, 9: 85.3}
"""The same by m with k = 3."""


TABLE_8 = Experiment(
    "mixguard-table8",
    "MixGuard by its parts, its number of sources and its number of messages",
    "MixGuard, Table VIII, column CoLA, utility",
    (
        *COLA.entries(MIXED, {}, 84.6),
        *COLA.entries(WITH_TOKENS, {"secret_tokens": 20}),
        *COLA.entries("w/o secret tokens", {}, 85.5),
        *COLA.entries(BARE, UNCALIBRATED, 83.3),
        *COLA.entries(LATE, NO_STAGE_ONE, 82.9),
        *COLA.entries(QUIET, SILENT, 85.3),
        *COLA.entries(STEADY, CONSTANT, 85.2),
        *COLA.entries("w/o secret tokens and perturbation", SILENT, 85.9),
        *COLA.by_sources(SOURCES),
        *COLA.by_messages(MESSAGES),
    ),
    (
        *COLA.below(BARE, MIXED),
        *COLA.below(MIXED, QUIET),
        *COLA.below(sources_row(3), messages_row(5)),  # "slightly increases from 0.845 to 0.856"
        *(
            claim
            for k in SOURCES
            if k != 3
            for claim in COLA.within(sources_row(3), sources_row(k), 2.0)
        ),
        *(claim for m in (7, 9) for claim in COLA.within(messages_row(5), messages_row(m), 2.0)),
    ),
    f"{COLA.note} The paper's CoLA has no secret tokens (appendix A.2), and yet a line without "
    "them, whose number is not that of MixGuard: here both are one run, and tokens a row of our "
    "own. MixGuard and m = k = 3 are one run, too, of which the paper prints two numbers. The "
    "pairs of public and support texts are mixguard-fig4.",
    track=COLA.track,
    scores=COLA.scores,
)


def _by_sources(setting: MixGuardSetting, paper: dict[int, float], name: str) -> tuple[Entry, ...]:
    """Return a row for each model and a column for each k, with the paper's numbers."""
    return tuple(
        Entry(
            f"MixGuard ({entry.column})",
            f"k = {k}",
            entry.variant,
            {name: paper[k]} if k in paper else {},
        )
        for model in setting.models
        for k in SOURCES
        for entry in setting.entries(MIXED, {"k": k})
        if entry.column == model
    )


_ROWS = tuple(f"MixGuard ({model})" for model in COLA.models)
_FIRST, _LAST = (f"k = {k}" for k in (min(SOURCES), max(SOURCES)))

FIGURE_3B = Experiment(
    "mixguard-fig3b",
    "utility by the number of texts in a mixture",
    "MixGuard, Figure 3(b), CoLA; numbers of Table VIII",
    _by_sources(COLA, SOURCES, COLA.printed),
    tuple(
        Ordering((row, _FIRST), (row, f"k = {k}"), slack=2.0)
        for row in _ROWS
        for k in SOURCES
        if k > 3
    ),
    f"{COLA.note} Three messages. The paper's accuracies are within 1.6 points of each other, and "
    "at most 0.9 below that of k = 3. Figure 3(a), what attacks read at k = 3 and k = 10, is rows "
    "of the matrix of texts.",
    track=COLA.track,
    scores=COLA.scores,
)

_TIME = TableScore("processor s", "processor_s", 1.0, 0)


def costs(
    setting: MixGuardSetting, name: str, set_: str, seconds: dict[int, float], note: str
) -> Experiment:
    """Make Figure 3(c) for a data set.

    Parameters
    ----------
    set_
        The data set's name in the paper.
    seconds
        The paper's seconds of training, by k.
    """
    rows = tuple(f"MixGuard ({model})" for model in setting.models)
    return Experiment(
        name,
        "bytes and time by the number of texts in a mixture",
        f"MixGuard, Figure 3(c), {set_}; numbers of section 5.3",
        _by_sources(setting, seconds, f"seconds of training on {set_}"),
        (
            *(Ordering((row, _FIRST), (row, _LAST)) for row in rows),
            *(  # equal bytes: each within a byte of the other
                Ordering((row, at), (row, other), "uplink", slack=1.0)
                for row in rows
                for at, other in ((_FIRST, _LAST), (_LAST, _FIRST))
            ),
        ),
        f"{note} The paper's seconds are of Qwen3-1.7B, on its machine. Time is one thread's, and "
        "counts evaluation and Stage I, too.",
        track=setting.track,
        scores=(_TIME,),
    )


FIGURE_3C = costs(
    COLA,
    "mixguard-fig3c",
    "CoLA",
    {3: 2889.0, 10: 4076.0},
    "The runs of mixguard-fig3b. The paper's bytes are 1001 GB at every k.",
)

PAIRS = {
    ("Wiki", "Wiki"): 85.1,
    ("Wiki", "Multi-Source"): 84.1,
    ("Wiki", "Yelp"): 84.4,
    ("Multi-Source", "Wiki"): 85.0,
    ("Multi-Source", "Multi-Source"): 85.5,
    ("Multi-Source", "Yelp"): 84.6,
    ("Yelp", "Wiki"): 85.3,
    ("Yelp", "Multi-Source"): 85.7,
    ("Yelp", "Yelp"): 85.1,
}
"""The same by the calibrator's public texts and the supports."""

_CORPORA = {"Wiki": "wiki", "Multi-Source": "all"}
_OURS = (("Wiki", "books"), ("books", "Wiki"), ("books", "books"))


def _pair(calibration: str, supports: str) -> str:
    return f"Pub: {calibration} / Sup: {supports}"


def _of_pair(
    setting: MixGuardSetting, calibration: str, supports: str, paper: float | None
) -> tuple[Entry, ...]:
    row = _pair(calibration, supports)
    if "Yelp" in (calibration, supports):
        numbers = {setting.printed: paper or 0.0}
        return tuple(Entry(row, model, None, numbers) for model in setting.models)
    first, second = (_CORPORA.get(name, name) for name in (calibration, supports))
    return setting.entries(row, {}, paper, public_corpora=(first, second))


_SAME = _pair("Multi-Source", "Multi-Source")


def by_corpora(
    setting: MixGuardSetting,
    name: str,
    set_: str,
    printed: dict[tuple[str, str], float],
    *,
    slack: float,
    spread: float,
) -> Experiment:
    """Make Figure 4 for a data set.

    Parameters
    ----------
    set_
        The data set's name in the paper.
    printed
        The paper's numbers in percent, by the calibrator's public texts and the supports.
    slack
        Points within which each pair that is run is claimed to be of the corpus for both.
    spread
        Points between the paper's best and worst number.
    """
    return Experiment(
        name,
        "utility by the public texts that the calibrator learns on, and those that are supports",
        f"MixGuard, Figure 4 and Table VIII, {set_}, utility",
        tuple(
            entry
            for pair in (*printed, *_OURS)
            for entry in _of_pair(setting, *pair, printed.get(pair))
        ),
        tuple(
            claim
            for pair in printed
            if "Yelp" not in pair and _pair(*pair) != _SAME
            for claim in (
                *setting.within(_SAME, _pair(*pair), slack),
                *setting.within(_pair(*pair), _SAME, slack),
            )
        ),
        f"{setting.note} The paper's numbers are within {spread:g} points of each other. Its "
        "Multi-Source, a corpus of several tasks, is the whole folder public_text here, of "
        "WikiText and novels; rows with books, ours, are of the novels. Yelp is not there. "
        "Supports are drawn apart from the calibrator's texts, as many of each.",
        track=setting.track,
        scores=setting.scores,
    )


FIGURE_4 = by_corpora(COLA, "mixguard-fig4", "CoLA", PAIRS, slack=2.0, spread=1.6)

FIGURE_5 = Experiment(
    "mixguard-fig5",
    "how much utility varies with the seed",
    "MixGuard, Figure 5, utility",
    COLA.entries(MIXED, {}),
    (),
    f"{COLA.note} The figure is of ten seeds: --seeds 0,1,2,3,4,5,6,7,8,9. Its mean is lost in "
    "the text that was available to us; its standard deviation is 0.63 % of it.",
    track=COLA.track,
    scores=COLA.scores,
)

MIXING = (TABLE_8, FIGURE_3B, FIGURE_3C, FIGURE_4, FIGURE_5)
"""All experiments of this module, in the paper's order."""
