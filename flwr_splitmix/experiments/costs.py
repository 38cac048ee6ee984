"""A method's cost at a client: memory and multiply-adds, measured on the CPU in float32."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flwr_splitmix.schedule import OptimizerFactory


@dataclass(frozen=True)
class ClientCosts:
    """The costs of one client.

    Parameters
    ----------
    parameters
        Number of parameters that the client holds.
    parameter_bytes, optimizer_bytes
        Of the parameters, and of the optimizer's state after a step.
    activation_bytes
        Of what one batch's forward pass keeps for its backward pass, parameters not counted.
    forward_macs, training_macs
        Multiply-adds per sample of a forward pass, and of forward and backward together. Matrix
        products, convolutions and attention are counted; norms, activations and FFTs are not.
    exchanged_bytes
        Of parameters that the client sends, and that it receives, each round to be averaged.
    """

    parameters: int
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    forward_macs: int
    training_macs: int
    exchanged_bytes: int

    def to_json(self) -> dict[str, int]:
        """Return the costs by name."""
        return asdict(self)


def measure(
    module: nn.Module, inputs: Tensor, optimizer: OptimizerFactory, *, averages: bool
) -> ClientCosts:
    """Measure one training step of what a client holds; the module itself is not changed.

    Parameters
    ----------
    module
        Lower segment or whole model.
    inputs
        One batch, (b, C, S, S).
    averages
        Whether the module's arrays are exchanged once a round.
    """
    module = copy.deepcopy(module).cpu().train()
    inputs = inputs.cpu()
    forward, training = _macs(module, inputs[:1])
    activations, optimizer_bytes = _step(module, inputs, optimizer)
    parameter_bytes = sum(p.nbytes for p in module.parameters())
    state = sum(t.nbytes for t in module.state_dict().values())
    return ClientCosts(
        sum(p.numel() for p in module.parameters()),
        parameter_bytes,
        optimizer_bytes,
        activations,
        forward,
        training,
        state if averages else 0,
    )


def _macs(module: nn.Module, sample: Tensor) -> tuple[int, int]:
    with FlopCounterMode(display=False) as counter:
        output = module(sample)
        forward = counter.get_total_flops()
        _backward(output)
    return forward // 2, counter.get_total_flops() // 2


def _step(module: nn.Module, inputs: Tensor, factory: OptimizerFactory) -> tuple[int, int]:
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(inputs)
    activations = sum(kept.values())  # of the forward pass: nothing of it is freed yet
    _backward(output)
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        return activations, 0
    optimizer = factory(trainable)
    optimizer.step()
    state: list[Any] = [value for entry in optimizer.state.values() for value in entry.values()]
    return activations, sum(value.nbytes for value in state if isinstance(value, Tensor))


def _backward(output: Tensor) -> None:
    if output.requires_grad:
        output.sum().backward()  # type: ignore[no-untyped-call]
