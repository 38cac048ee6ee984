"""Images in the U shape: head, trunk and tail, the client and the strategy of a run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images, images_of
from flwr_splitmix.apps.vision.model import buildable
from flwr_splitmix.apps.vision.ushape_keys import IMAGE_USHAPE
from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.clients.client import Order
from flwr_splitmix.clients.ushape.local_inference import score_locally
from flwr_splitmix.data import ImageDataset
from flwr_splitmix.data.batches import TEST_BATCH
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.runs import Run
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments import VisionParts
from flwr_splitmix.segments.modules import with_statistics
from flwr_splitmix.segments.vision.cut import open_vision_model
from flwr_splitmix.segments.vision.split_model import Cuttable, Request
from flwr_splitmix.server.aggregation import make_aggregator
from flwr_splitmix.server.evaluation.central import EvaluateFn
from flwr_splitmix.strategies import UShapeStrategy
from flwr_splitmix.words import counted


@lru_cache(maxsize=2)
def parts_of(config: VisionConfig) -> VisionParts:
    """Build head, trunk and tail for the run's images; see `first_parts`.

    Raises
    ------
    ConfigError
        If there is no such model, it cannot be cut so, or pretrained weights are not available;
        if images have several labels; or if heads and tails are averaged and have BatchNorm.
    """
    images = images_of(config)
    if images.multi_label:
        raise ConfigError(
            f"run-config: dataset is {config.dataset!r}, whose images may have several labels, but "
            f"clients of {config.strategy} learn one class of each; use a data set of classes "
            "with it, or a strategy of the L shape"
        )
    parts = first_parts(config, len(images.classes), images.train.shape[0])
    for name, part in (("head", parts.head), ("tail", parts.tail)):
        layer = with_statistics(part)
        if layer and config.averages:
            raise ConfigError(
                f"run-config: strategy is {config.strategy!r}, but the {name} of {config.model} "
                f"has {layer}, whose statistics it does not average; use a model without "
                f"{layer} there, or USplitSL"
            )
    return parts


def first_parts(config: VisionConfig, classes: int, channels: int) -> VisionParts:
    """Build head, trunk and tail as they are before training; every process gets the same weights.

    If only tails learn, the head is frozen.

    Raises
    ------
    ConfigError
        If there is no such model, it cannot be cut so, or pretrained weights are not available.
    """
    with buildable(config), seeded_draws(torch.device("cpu"), config.seed):
        model = open_model(config, classes, channels)
        parts = model.cut_in_three(*cuts_of(model, config.head_layers, config.tail_layers))
    if config.learns == "tail":
        parts.head.requires_grad_(False)
    return parts


def open_model(
    config: VisionConfig, classes: int, channels: int, *, pretrained: bool | None = None
) -> Cuttable:
    """Build the run's model, in stages.

    Parameters
    ----------
    pretrained
        None for the configured.

    Raises
    ------
    ValueError
        If there is no such model, or a size does not fit.
    """
    uses_pretrained = config.pretrained if pretrained is None else pretrained
    return open_vision_model(
        Request(
            name=config.model,
            cut_at=None,
            num_classes=classes,
            channels=channels,
            image_size=config.image_size,
            patch_size=config.patch_size,
            depth=config.depth or None,
            positions="lower",
            cell=1,
            options={"pretrained": True} if uses_pretrained else {},
        )
    )


def cuts_of(model: Cuttable, head_layers: int, tail_layers: int) -> tuple[str, str]:
    """Return the names of the cuts behind the head and behind the trunk.

    Raises
    ------
    ConfigError
        If there are no such cuts.
    """
    names, name = [*model.cuts], model.request.name
    try:
        first, *_ = model.cuts_in_three()
    except ValueError as error:
        raise ConfigError(
            f"run-config: model is {name!r}: {error}; take such a model, or a strategy of the L "
            "shape"
        ) from None
    least, layers = names.index(first), len(names) - 1
    if head_layers < least:
        raise ConfigError(
            f"run-config: head-layers is {head_layers}, but before them {name} has other tokens "
            f"than between its layers; it must be at least {least}"
        )
    if head_layers + tail_layers >= layers:
        raise ConfigError(
            f"run-config: head-layers is {head_layers} and tail-layers {tail_layers}, but {name} "
            f"has {counted(layers, 'layer')}, of which the trunk needs one; use fewer, or "
            "a larger depth"
        )
    return names[head_layers], names[layers - tail_layers]


def whole_call(config: VisionConfig, classes: int, channels: int) -> tuple[str, dict[str, Any]]:
    """Return the call that cuts the same model behind the head only, as `split_of` does.

    Raises
    ------
    ConfigError, ValueError
        Raised by `open_model` and `cuts_of`.
    """
    model = open_model(config, classes, channels, pretrained=False)
    head_to, _ = cuts_of(model, config.head_layers, config.tail_layers)
    return "split_vision_model", {
        "name": config.model,
        "cut_at": head_to,
        "num_classes": classes,
        "channels": channels,
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "depth": config.depth or None,
        "positions": "lower",
        "cell": 1,
    }


def load_part(part: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load a part's trained parameters; averaged ones come without the constants of its buffers.

    Parameters that are frozen may be missing.

    Raises
    ------
    RuntimeError
        If names or shapes differ.
    """
    missing, unexpected = part.load_state_dict(weights, strict=False)
    parameters = {name for name, p in part.named_parameters() if p.requires_grad}
    if wrong := sorted(parameters.intersection(missing)) + unexpected:
        raise RuntimeError(f"{wrong[0]} is in one of them only")


def make_client(config: VisionConfig, client: int, clients: int) -> UShapeClient:
    """Make the client of one node; the numbers are its partition, and that of partitions.

    Raises
    ------
    ConfigError, ClientError, DataError, ValueError
        If model, data or device are unsuitable.
    """
    train, test = client_images(config, client, clients)
    return _client_of(config, train, test_data=test)


def _client_of(config: VisionConfig, train: ImageDataset, **options: Any) -> UShapeClient:
    """Make a client of any images; `options` are other than the configuration has them."""
    parts = parts_of(config)
    configured: dict[str, Any] = {
        "batch_size": config.batch_size,
        "device": config.client_device,
        "hiding": config.hiding(),
        "benchmark_data": images_of(config).test,
        "optimizer": config.optimizer(),
        "schedule": config.schedule(),
        "learns": config.learns,
    }
    head, tail = copy.deepcopy(parts.head), copy.deepcopy(parts.tail)
    return UShapeClient(head, tail, train, **configured | options)


def make_strategy(config: VisionConfig, run: Run | None) -> UShapeStrategy:
    """Make the configured strategy.

    Raises
    ------
    ConfigError, ValueError
        Raised by `parts_of` and the strategy.
    LinkError
        If the stream's address or certificates are wrong.
    """
    options: dict[str, Any] = {}
    if config.averages:
        options["aggregator"] = make_aggregator(config.aggregator)
    return IMAGE_USHAPE[config.strategy](
        copy.deepcopy(parts_of(config).trunk),
        schedule=config.schedule(),
        device=config.device,
        min_nodes=config.min_nodes or 1,
        evaluation=config.evaluation_over_link,
        **options,
        **config.training_options(run),
    )


def initial_arrays(config: VisionConfig) -> ArrayRecord:
    """Return the initial weights of the learning parts of heads and tails, if these are averaged.

    Without averaging, every client builds them from the seed.
    """
    if not config.averages:
        return ArrayRecord()
    ends = nn.ModuleDict({"head": parts_of(config).head, "tail": parts_of(config).tail})
    return ArrayRecord({n: p.detach() for n, p in ends.named_parameters() if p.requires_grad})


def try_client(config: VisionConfig) -> None:
    """Take a client's first step with two images, on the CPU.

    Raises
    ------
    ConfigError
        If the model cannot be trained by the strategy, such as by DP-SGD.
    """
    order = Order(0, config.seed, 1, config.num_server_rounds, averaged=config.averages)
    size = min(config.batch_size, 2)
    client = _client_of(config, images_of(config).train, device="cpu", batch_size=size)
    trunk = copy.deepcopy(parts_of(config).trunk)  # BatchNorm would keep what it measures
    begun = {"number": 0, "progress": 0.0, "gradient": None}
    try:
        client.attach(order, None)
        upload = client.run("encode", begun)
        messages = [message.detach().requires_grad_() for message in upload["messages"]]
        outputs = [trunk(message, upload["mask"]) for message in messages]
        answer = client.run("decode", {"number": 0, "outputs": outputs})
        gradients = None
        if config.learns == "all":
            gradients = torch.autograd.grad(outputs, messages, answer["gradients"])
        client.run("encode", {**begun, "gradient": gradients, "last": True})
    except (ClientError, ValueError) as error:
        raise ConfigError(
            f"run-config: strategy is {config.strategy!r}, but model {config.model!r} cannot be "
            f"trained by it, as by USplitSL: {error}"
        ) from error


def central_evaluation(config: VisionConfig, strategy: UShapeStrategy) -> EvaluateFn:
    """Return an `evaluate_fn` that scores averaged head and tail, with the trunk, on the tests."""
    train, device = images_of(config).train, str(strategy.trunk.device)
    whole = _client_of(config, train, device=device, batch_size=TEST_BATCH)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        ends = whole.ends
        ends.load(ends.fitted(to_tensors(arrays), "the averaged head and tail do not fit"))
        scores = score_locally(whole, strategy.trunk.module, "benchmark")
        return MetricRecord({**scores, "num-examples": len(images_of(config).test)})

    return evaluate
