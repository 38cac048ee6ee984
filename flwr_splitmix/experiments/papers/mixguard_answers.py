"""MixGuard's ablations on generated answers (GSM8K, SAMSum) and on pairs of sentences (MRPC)."""

from __future__ import annotations

from flwr_splitmix.experiments.experiment import Experiment, TableScore
from flwr_splitmix.experiments.papers.mixguard_ablations import (
    BARE,
    CONSTANT,
    LATE,
    MIXED,
    NO_STAGE_ONE,
    NOISE,
    QUIET,
    SILENT,
    STEADY,
    UNCALIBRATED,
    inference,
)
from flwr_splitmix.experiments.papers.mixguard_cola import SKEWED
from flwr_splitmix.experiments.papers.mixguard_mixing import by_corpora, costs
from flwr_splitmix.experiments.papers.mixguard_sets import SETS
from flwr_splitmix.experiments.papers.mixguard_settings import (
    NOT_THE_PAPERS,
    MixGuardSetting,
    messages_row,
    sources_row,
)
from flwr_splitmix.experiments.scales import DECODER, ENCODER
from flwr_splitmix.experiments.texts.recipes import TextTrack


def _scores(track: TextTrack) -> tuple[TableScore, ...]:
    """Return the scores that the utility table of a corpus shows."""
    return next(experiment.scores for experiment in SETS if experiment.track == track)


def _setting(
    track: TextTrack, model: str, tokens: int, printed: str, note: str = ""
) -> MixGuardSetting:
    return MixGuardSetting(
        track,
        (model,),
        {**SKEWED, "secret_tokens": tokens},
        printed,
        _scores(track),
        f"One client, {tokens} secret tokens, {NOT_THE_PAPERS} The paper's numbers are of "
        f"Qwen3-1.7B.{note}",
    )


GSM8K = _setting(
    "gsm8k",
    DECODER,
    40,
    "GSM8K exact match",
    " A decoder of 15 million parameters, that of scale cpu, answers next to nothing right: its "
    "perplexity tells more there.",
)
SAMSUM = _setting("samsum", DECODER, 40, "SAMSum ROUGE-L")
MRPC = _setting("mrpc", ENCODER, 20, "MRPC accuracy")

SOURCES = {3: 44.3, 4: 43.8, 5: 43.4, 6: 44.1, 7: 42.6, 8: 41.6, 9: 41.9, 10: 40.7}
"""Exact match on GSM8K in percent, as printed in Table VIII, by k with m = 3."""

MESSAGES = {5: 43.8, 7: 44.2, 9: 45.0}
"""The same by m with k = 3."""

PAIRS = {
    ("Wiki", "Wiki"): 42.8,
    ("Wiki", "Multi-Source"): 44.7,
    ("Wiki", "Yelp"): 44.7,
    ("Multi-Source", "Wiki"): 40.3,
    ("Multi-Source", "Multi-Source"): 43.1,
    ("Multi-Source", "Yelp"): 40.9,
    ("Yelp", "Wiki"): 40.6,
    ("Yelp", "Multi-Source"): 45.6,
    ("Yelp", "Yelp"): 42.0,
}
"""The same by the calibrator's public texts and the supports."""

_OPEN, _NEITHER = "w/o secret tokens", "w/o secret tokens and perturbation"

TABLE_4 = Experiment(
    "mixguard-table4-gsm8k",
    "what each part of MixGuard does for utility where answers are generated",
    "MixGuard, Table IV, column GSM8K, utility",
    (
        *GSM8K.entries(MIXED, {}, 45.5),
        *GSM8K.entries(_OPEN, {"secret_tokens": 0}, 46.4),
        *GSM8K.entries(BARE, UNCALIBRATED, 35.0),
        *GSM8K.entries(LATE, NO_STAGE_ONE, 29.1),
        *GSM8K.entries(QUIET, SILENT, 30.9),
        *GSM8K.entries(STEADY, CONSTANT, 30.6),
        *GSM8K.entries(_NEITHER, {**SILENT, "secret_tokens": 0}, 47.9),
    ),
    (
        *GSM8K.below(MIXED, _OPEN),
        *GSM8K.below(BARE, MIXED),
        *GSM8K.below(LATE, MIXED),
        *GSM8K.below(QUIET, MIXED),
        *GSM8K.below(STEADY, MIXED),
        *GSM8K.below(QUIET, _NEITHER),
    ),
    f"{GSM8K.note} {NOISE}",
    track=GSM8K.track,
    scores=GSM8K.scores,
)


TABLE_8 = Experiment(
    "mixguard-table8-gsm8k",
    "MixGuard by its number of sources and its number of messages where answers are generated",
    "MixGuard, Table VIII and Figure 3, GSM8K, utility",
    (
        *GSM8K.by_sources(SOURCES),
        *GSM8K.by_messages(MESSAGES),
    ),
    (
        *GSM8K.below(sources_row(10), sources_row(3)),  # "decreases from 0.443 to 0.407"
        *(claim for m in MESSAGES for claim in GSM8K.within(sources_row(3), messages_row(m), 2.0)),
    ),
    f"{GSM8K.note} Lines without one of MixGuard's parts are mixguard-table4-gsm8k, pairs of "
    "public and support texts mixguard-fig4-gsm8k.",
    track=GSM8K.track,
    scores=GSM8K.scores,
)

FIGURE_3C = costs(
    GSM8K,
    "mixguard-fig3c-gsm8k",
    "GSM8K",
    {3: 2479.0, 10: 3628.0},
    "Runs of mixguard-table8-gsm8k. The paper's bytes are 875 GB at every k.",
)

FIGURE_4 = by_corpora(GSM8K, "mixguard-fig4-gsm8k", "GSM8K", PAIRS, slack=3.0, spread=5.3)

ANSWERS = (
    TABLE_4,
    TABLE_8,
    FIGURE_3C,
    FIGURE_4,
    inference(MRPC, "mixguard-table7-mrpc", "MRPC", (87.9, 88.4), "72.3 and 72.5"),
    inference(GSM8K, "mixguard-table7-gsm8k", "GSM8K", (45.9, 44.6), "23.8 twice"),
    inference(SAMSUM, "mixguard-table7-samsum", "SAMSum", (53.3, 53.2), "52.0 and 52.1"),
)
"""All experiments of this module."""
