"""The keys of a third-party mixer: their requirements and conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flwr_splitmix.apps.configuration.error import ConfigError, key_of, with_key_names
from flwr_splitmix.links.frames.wire import rounds
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.mixers.described import check_adds_nothing, describe
from flwr_splitmix.server.mixer_request import check_goes_elsewhere

if TYPE_CHECKING:
    from flwr_splitmix.apps.vision.config import VisionConfig


def check_third_party(config: VisionConfig, mixer: Mixer) -> None:
    """Raise ValueError if `link-via` is incomplete or conflicts with other keys.

    Parameters
    ----------
    mixer
        The strategy's mixer without a third party.
    """
    if not config.link_via:
        if config.link_via_token:
            raise ValueError(
                f"link-via-token is {config.link_via_token!r}, but link-via is ''; set link-via to "
                "the mixer's address, or link-via-token to ''"
            )
        return
    if not config.link_via_token:
        raise ValueError(
            "link-via is set, but link-via-token is ''; set it to the path of a file with the "
            "mixer's token (--token-file there)"
        )
    if config.link == "ray":
        raise ValueError(
            "link-via is set, but link is 'ray', and in a simulation all is mixed in one process; "
            "set link to 'stream', or link-via to ''"
        )
    for key, value in (
        ("link-advertise", config.link_advertise),
        ("link-client-ca", config.link_client_ca),
    ):
        if value:
            raise ValueError(
                f"link-via is set, but {key} is {value!r}, and no client connects to this run "
                f"then; set {key} to '', and see what splitmix mixer --help has instead"
            )
    check_goes_elsewhere(
        averages=config.averages,
        evaluation="federated" if config.evaluation_kind == "central" else config.evaluation_kind,
        pace=config.pace,
        parts=config.micro_batches,
    )
    describe(mixer)


def check_sums(config: VisionConfig, prefix: int) -> None:
    """Raise ConfigError if a third party would add up uploads that the wire rounds.

    Parameters
    ----------
    prefix
        Number of prefix tokens at the cut.
    """
    if not (config.link_via and rounds(config.wire_dtype, torch.float32)):
        return
    try:
        check_adds_nothing(config.trial().mixer, prefix, config.wire_dtype)
    except ValueError as error:
        cut = f"cut-at {config.cut_at!r} has prefix tokens, " if prefix else ""
        reason = with_key_names(str(error), map(key_of, type(config).model_fields))
        raise ConfigError(f"run-config: {cut}{reason}") from None
