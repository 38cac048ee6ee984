"""Check of a language run before it starts: texts, tokens, model, cut, clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_splitmix.apps.checking.findings import (
    check_devices,
    check_enough,
    check_link,
    describe_clients,
    remark_plaintext,
    remark_warmup,
)
from flwr_splitmix.apps.checking.parts import Checks
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.language.advice import advise, open_run_model
from flwr_splitmix.apps.language.config import SMALL, LanguageConfig
from flwr_splitmix.apps.language.inputs import check_inputs
from flwr_splitmix.apps.language.model import check_adapted, check_vocabulary, check_width, unusable
from flwr_splitmix.apps.language.noise_cost import remark_noise
from flwr_splitmix.apps.language.placing import BALANCED
from flwr_splitmix.apps.language.texts import (
    long_texts_sentence,
    public_texts,
    run_token_set,
    text_sets,
    tokenizer_of,
    training_size,
)
from flwr_splitmix.apps.language.trial import try_layers
from flwr_splitmix.data.texts.tokens import LongTextsCount
from flwr_splitmix.hiding.making import hiding_options, needs_public
from flwr_splitmix.runs import Run
from flwr_splitmix.segments.language import LanguageParts
from flwr_splitmix.server.nodes.participants import size_of_draw
from flwr_splitmix.words import counted, listed

MAX_ROWS = 4000
"""Number of training rows that are tokenised: enough to estimate their lengths, and fast."""


def check(checks: Checks) -> None:
    """Check a run configuration and report the findings."""
    report = checks.report
    try:
        config = LanguageConfig.read(checks.values)
    except ConfigError as error:
        report.problems.append(str(error))
        return
    report.facts |= {"strategy": config.strategy, "model": config.model}
    remark_warmup(config, report)
    checks.run(check_link, config, report)
    checks.run(remark_plaintext, config, report)
    opened = _Opened(config, report)
    devices = checks.run(_check_devices, config)
    model = checks.run(opened.check_model)
    data = checks.run(_check_data, config, report)
    clients = data and checks.run(opened.check_clients)
    tokens = data and checks.run(opened.check_tokens)
    usable = devices and model and clients and tokens and checks.run(remark_noise, config, report)
    if usable and checks.setting is not None:
        checks.run(opened.advise, checks.setting)


def _check_devices(config: LanguageConfig) -> None:
    server = {} if config.device == BALANCED else {"device": config.device}
    check_devices(**server, client_device=config.client_device)


def _check_data(config: LanguageConfig, report: Report) -> None:
    sets = text_sets(config)
    if config.resume:
        check_inputs(Run.open(config.resume, home=config.home), config)
    kinds = f" of {len(sets.classes)} classes" if sets.classes else ""
    report.facts["data"] = (
        f"{sets.name}: {len(sets.train)} training and {counted(len(sets.test), 'test row')}{kinds}"
    )
    counts = Counter(sets.train.labels.tolist())
    empty = [name for label, name in enumerate(sets.classes) if not counts[label]]
    if empty:
        classes, them = ("class", "it") if len(empty) == 1 else ("classes", "them")
        report.remarks.append(
            f"the training rows have none of the {classes} {listed(map(repr, empty))}: the model "
            f"cannot learn {them}; num-labels is {config.num_labels}"
        )
    users = [config.strategy] if needs_public(config.hides_by) else []
    users += ["the small model's tokenizer"] if config.model == SMALL else []
    if users and not config.public and config.dataset != "generated":
        report.remarks.append(
            f"public is '', so the public texts for {' and '.join(users)} are made up ones, unlike "
            "the dataset's; name public text of its kind"
        )
    public = public_texts(config)
    if "support_texts" in hiding_options(config.hides_by) and public:
        _check_supports(config, public, report)


def _check_supports(config: LanguageConfig, texts: Sequence[str], report: Report) -> None:
    public = len(texts)
    if public <= config.support_texts:
        raise ConfigError(
            f"run-config: support-texts is {config.support_texts}, of "
            f"{counted(public, 'public text')}; at least one must be left to calibrate on"
        )
    distinct = len(set(texts[: config.support_texts or public]))
    needed = config.k - 1
    if distinct < needed:
        remedy = f"a public with at least {needed} distinct texts hides more"
        for key in ("support_texts", "public_samples"):
            if 0 < getattr(config, key) < needed:
                remedy = f"a larger {key.replace('_', '-')} hides more"
                break
        report.remarks.append(
            f"k is {config.k}, so a text is mixed with {counted(needed, 'support')}, drawn "
            f"from only {distinct} distinct; {remedy}"
        )


class _Opened:
    """The parts of a check that need the run's model, which the first of them opens."""

    def __init__(self, config: LanguageConfig, report: Report) -> None:
        self._config, self._report = config, report
        self._model: tuple[Any, LanguageParts] | None = None
        self._tokens = 0

    def check_model(self) -> None:
        """Open the run's model; raise ConfigError if it is unsuitable."""
        config = self._config
        try:
            self._model = open_run_model(config)
        except (OSError, ValueError) as error:
            raise unusable(config, error) from None
        parts = self._model[1]
        check_adapted(config, parts)
        check_width(config, parts)
        self._report.facts["model"] = (
            f"{config.model}, {counted(parts.layers, 'layer')} of width {parts.width}: "
            f"{config.head_layers} in the head, {config.tail_layers} in the tail"
        )
        try_layers(config)

    def check_clients(self) -> None:
        """Describe the clients' data; raise ConfigError if there are too few clients."""
        config, report = self._config, self._report
        if not report.nodes_known:
            return
        check_enough(config.min_nodes, report.nodes)
        keys = "partition-alpha"
        if config.long_texts == "drop":
            if self._model is None:  # and no tokenizer, which decides on long rows
                return
            keys = "max-length or partition-alpha"
        sizes = [training_size(config, client, report.nodes) for client in range(report.nodes)]
        describe_clients(report, sizes, config.batch_size, "training rows", larger=keys)

    def check_tokens(self) -> None:
        """Describe the lengths of texts; raise ConfigError if none is short enough."""
        config, report = self._config, self._report
        if self._model is None:  # nor would a hub that does not answer hand out its tokenizer
            return
        check_vocabulary(config, tokenizer_of(config), self._model[1])
        rows = text_sets(config).train
        looked = rows.first(MAX_ROWS)
        counts: list[LongTextsCount] = []
        texts = run_token_set(config, looked, counts.append)
        beginning = f"of the first {len(looked)} training rows: " if len(looked) < len(rows) else ""
        report.remarks += [beginning + long_texts_sentence(config, count) for count in counts]
        if not len(texts):
            raise ConfigError(
                f"run-config: no training row has at most {config.text_length} tokens, and "
                f"long-texts is {config.long_texts!r}; raise max-length"
            )
        longest = max(len(text) for text in texts.texts)
        report.facts["tokens"] = (
            f"{longest} at most in a text, {config.secrets} secret ones besides"
        )
        self._tokens = config.pad_to or min(config.width, longest + config.secrets)

    def advise(self, setting: Mapping[str, float]) -> None:
        """Add the costs of all cuts; every other part has passed."""
        config, report = self._config, self._report
        if self._model is None:
            return
        clients = size_of_draw(report.nodes, config.min_nodes or 1, config.fraction_train)
        report.advice = advise(config, *self._model, self._tokens, clients, setting)
