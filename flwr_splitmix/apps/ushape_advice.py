"""The costs of a pair of cuts, behind the head and behind the trunk, for advice in the U shape."""

from __future__ import annotations

from flwr_splitmix.clients.ushape_client import Learns
from flwr_splitmix.segments.advice import CutCosts, Setting, predict
from flwr_splitmix.segments.costs import StageCosts

EXCHANGES = 2
"""Round trips per step."""


def tensors_each_way(learns: Learns) -> int:
    """Return how many tensors a step brings each way for each message of a batch.

    They are a message and the gradient of its answer; back come the answer and the gradient of the
    message. If only tails learn, there are no gradients.
    """
    return 2 if learns == "all" else 1


def costs_of_pair(
    setting: Setting,
    layers: tuple[int, int],
    client: StageCosts,
    trunk: StageCosts,
    *,
    chosen: tuple[int, int],
    memory_bytes: int,
    batch: int,
    mixtures: float,
    uplink_bytes: int,
    downlink_bytes: int,
) -> CutCosts:
    """Return what a pair of cuts costs a client, and the predicted duration of a step with it.

    Parameters
    ----------
    layers, chosen
        Layers of head and tail, of this pair and of the configured one.
    client, trunk
        Costs per sample of head and tail together, and of the trunk.
    memory_bytes
        What a client needs in training.
    batch, mixtures, uplink_bytes, downlink_bytes
        As for `predict`.
    """
    head, tail = layers
    return CutCosts(
        cut_at=f"head-layers={head} tail-layers={tail}",
        client_parameters=client.parameters,
        client_memory_bytes=memory_bytes,
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
            exchanges=EXCHANGES,
        ),
        default=layers == chosen,
    )
