"""Costs of each pair of cuts, behind the head and behind the trunk, for advice in the U shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from flwr_splitmix.clients.ushape.ends import Learns
from flwr_splitmix.segments.advice import CutCosts, Setting, predict, rest
from flwr_splitmix.segments.costs import StageCosts

Part = Literal["head", "trunk", "tail"]

PARTS: tuple[Part, ...] = get_args(Part)

ROUND_TRIPS = 2
"""Round trips per step."""


def tensors_each_way(learns: Learns) -> int:
    """Return how many tensors a step brings each way for each message of a batch.

    They are a message and the gradient of its answer; back come the answer and the gradient of the
    message. If only tails learn, there are no gradients.
    """
    return 2 if learns == "all" else 1


def costs_of_pairs(
    setting: Setting,
    below: Mapping[Part, Sequence[StageCosts]],
    whole: StageCosts,
    *,
    least: int,
    chosen: tuple[int, int],
    learns: Learns,
    batch: int,
    mixtures: float,
    uplink_bytes: int,
    downlink_bytes: int,
) -> list[CutCosts]:
    """Return what each pair of cuts costs a client, and how long a step with it is predicted to be.

    If only tails learn, head and trunk have no backward pass.

    Parameters
    ----------
    below
        Costs per sample of all below each cut, trained as in the head, the trunk or the tail;
        the first cut is before the first layer, and the last is behind the last layer.
    whole
        Costs per sample of the whole model, trained as in the tail.
    least
        Fewest layers in the head. The trunk has at least one.
    chosen
        Configured numbers of layers in head and tail.
    batch, mixtures, uplink_bytes, downlink_bytes
        As for `predict`; they are the same for all pairs.
    """
    layers = len(below["tail"]) - 1
    cuts = []
    for head_layers in range(least, layers):
        for tail_layers in range(layers - head_layers):
            behind = layers - tail_layers
            head, tail = below["head"][head_layers], rest(whole, below["tail"][behind])
            trunk = rest(below["trunk"][behind], below["trunk"][head_layers])
            if learns == "tail":
                head, trunk = head.forward_only(), trunk.forward_only()
            client = head + tail
            cuts.append(
                CutCosts(
                    cut_at=f"head-layers={head_layers} tail-layers={tail_layers}",
                    client_parameters=client.parameters,
                    client_memory_bytes=client.memory(batch),
                    client_macs=round(batch * client.training_macs),
                    uplink_bytes=uplink_bytes,
                    downlink_bytes=downlink_bytes,
                    step_s=predict(
                        setting,
                        client,
                        trunk,
                        batch=batch,
                        mixtures=mixtures,
                        uplink_bytes=uplink_bytes,
                        downlink_bytes=downlink_bytes,
                        exchanges=ROUND_TRIPS,
                    ),
                    default=(head_layers, tail_layers) == chosen,
                )
            )
    return cuts
