"""Costs of a module for a client: memory and multiply-adds of training, measured."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from flwr_splitmix.optimizers import OptimizerFactory
from flwr_splitmix.private_names import attention_on_cpu
from flwr_splitmix.segments.modules import not_in_place

Shape = Sequence[int]

_as_usual = sdpa_kernel(
    [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
)
"""Attention as torch computes it by default, whatever this process has chosen for speed."""


@dataclass(frozen=True)
class ClientCosts:
    """Costs of one client.

    Parameters
    ----------
    parameters
        Number of parameters that the client holds.
    parameter_bytes, optimizer_bytes
        Bytes of the parameters, and of the state of their optimizers after a step.
    activation_bytes
        Bytes that one batch's forward pass keeps for its backward pass, without parameters.
    forward_macs, training_macs
        Multiply-adds per sample of a forward pass, and of forward and backward together. Matrix
        products, convolutions and attention are counted; norms, activations and FFTs are not.
    exchanged_bytes
        Bytes of parameters and buffers that the client sends each round for averaging; it
        receives as many.
    """

    parameters: int
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    forward_macs: int
    training_macs: int
    exchanged_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Bytes of parameters, optimizer state and activations together."""
        return self.parameter_bytes + self.optimizer_bytes + self.activation_bytes

    def to_json(self) -> dict[str, int]:
        """Return the costs by name, with the total memory."""
        return {**asdict(self), "memory_bytes": self.memory_bytes}


@_as_usual
def measure(
    module: nn.Module, inputs: Tensor, optimizer: OptimizerFactory, *, averages: bool
) -> ClientCosts:
    """Measure one training step of a client's module on the CPU; the module is not changed.

    Parameters
    ----------
    module
        Lower segment or whole model.
    inputs
        One batch of images, (b, C, S, S).
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


@dataclass(frozen=True)
class StageCosts:
    """Costs of one stage of a model, or of several together.

    Parameters
    ----------
    parameters, parameter_bytes
        Number and bytes of the stage's parameters.
    trainable
        Number of the parameters that are trained.
    activation_bytes_per_sample
        Bytes that the forward pass of a sample keeps for its backward pass.
    forward_macs, training_macs
        Multiply-adds per sample, as in `ClientCosts`.
    """

    parameters: int = 0
    trainable: int = 0
    parameter_bytes: int = 0
    activation_bytes_per_sample: float = 0.0
    forward_macs: float = 0.0
    training_macs: float = 0.0

    def __add__(self, other: StageCosts) -> StageCosts:
        """Return the costs of both."""
        mine, others = asdict(self), asdict(other)
        return StageCosts(**{name: mine[name] + others[name] for name in mine})

    def forward_only(self) -> StageCosts:
        """Return the costs where nothing learns, so that there is no backward pass."""
        return replace(
            self, trainable=0, activation_bytes_per_sample=0.0, training_macs=self.forward_macs
        )

    def memory(self, batch: int) -> int:
        """Return the bytes that training takes: weights, gradients, AdamW's moments, activations.

        Parameters
        ----------
        batch
            Samples per batch.
        """
        learning = self.parameter_bytes * self.trainable // max(self.parameters, 1)
        return self.parameter_bytes + 3 * learning + round(batch * self.activation_bytes_per_sample)


@_as_usual
def measure_stages(
    stages: Sequence[nn.Module], inputs: Tensor, *, adapted: bool = False
) -> list[StageCosts]:
    """Measure the consecutive stages of a model in one pass over all of them.

    Parameters
    ----------
    stages
        Each takes the output of the one before: a tensor, or a tuple of tensors.
    inputs
        At least two samples, as batch normalisation needs them; may be on the meta device.
    adapted
        Whether stages behind the first hand gradients on though no weight below them learns, as
        those with adapters do. The adapters' own costs are neglected.

    Returns
    -------
    The costs of each stage.
    """
    activations = _Activations(p for stage in stages for p in stage.parameters())
    costs: list[StageCosts] = []
    passing: Any = inputs
    with _counter() as counter:
        for stage in stages:
            bytes_before, flops_before = activations.nbytes, counter.get_total_flops()
            with activations.counting():
                output = not_in_place(stage)(passing)
            forward = counter.get_total_flops() - flops_before
            _backward(output)
            flops = counter.get_total_flops() - flops_before
            parameters = list(stage.parameters())
            costs.append(
                StageCosts(
                    sum(p.numel() for p in parameters),
                    sum(p.numel() for p in parameters if p.requires_grad),
                    sum(p.nbytes for p in parameters),
                    (activations.nbytes - bytes_before) / len(inputs),
                    forward / 2 / len(inputs),
                    flops / 2 / len(inputs),
                )
            )
            passing = activations.hand_on(output, adapted)
    for stage in stages:
        stage.zero_grad()
    return costs


def _place_of(tensor: Tensor) -> Any:
    """Return a key that identifies a tensor's storage, even on the meta device."""
    return StorageWeakRef(tensor.untyped_storage()).cdata  # type: ignore[no-untyped-call]


class _Activations:
    """Counter of the tensors that forward passes keep; it holds them: no storage is reused."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.nbytes = 0
        self._parameter_places = {_place_of(parameter) for parameter in parameters}
        self._tensors: dict[int, Tensor] = {}

    def counting(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        place = _place_of(tensor)
        if place not in self._parameter_places and place not in self._tensors:
            self._tensors[place] = tensor.detach()
            self.nbytes += tensor.untyped_storage().nbytes()
        return tensor

    def hand_on(self, output: Any, always: bool) -> Any:
        """Return a stage's output as the next one's input: a leaf.

        It needs a gradient if the output does, or always.
        """
        if isinstance(output, tuple):
            return tuple(self.hand_on(part, always) for part in output)
        detached: Tensor = output.detach()
        return detached.requires_grad_(always or output.requires_grad)


def _counter() -> FlopCounterMode:
    """Make a counter that also counts attention on the CPU, which torch before 2.15 leaves out."""
    forward, backward = attention_on_cpu()
    return FlopCounterMode(
        display=False,
        custom_mapping={forward: _attention_flops, backward: _attention_backward_flops},
    )


def _attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Count the products of queries with keys, and of their weights with values."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def _attention_backward_flops(
    _out: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """Count, as torch does elsewhere: the weights anew, and two products for each of theirs."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (3 * width + 2 * value[3])


def _macs(module: nn.Module, sample: Tensor) -> tuple[int, int]:
    with _counter() as counter:
        output = module(sample)
        forward = counter.get_total_flops()
        _backward(output)
    return forward // 2, counter.get_total_flops() // 2


def _step(module: nn.Module, inputs: Tensor, factory: OptimizerFactory) -> tuple[int, int]:
    activations = _Activations(module.parameters())
    with activations.counting():
        output = module(inputs)
    _backward(output)
    # A module may train a part of its own, such as a simulated attacker.
    optimizers = [
        value
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.optim.Optimizer)
    ]
    trainable = [p for p in module.parameters() if p.requires_grad]
    if trainable:
        optimizers.append(factory(trainable))
        optimizers[-1].step()
    return activations.nbytes, sum(_state_bytes(optimizer) for optimizer in optimizers)


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    state: list[Any] = [value for entry in optimizer.state.values() for value in entry.values()]
    return sum(value.nbytes for value in state if isinstance(value, Tensor))


def _backward(output: Any) -> None:
    parts = output if isinstance(output, tuple) else (output,)
    learning = [part for part in parts if part.requires_grad]
    if learning:
        torch.autograd.backward(learning, [torch.ones_like(part) for part in learning])
