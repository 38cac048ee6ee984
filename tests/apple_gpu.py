"""A stand-in for Apple's GPUs: tensors without float64 that meet none of another device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MPS = torch.device("mps")


class OnGpu(Tensor):
    """A tensor that says it is on Apple's GPU."""


def on_gpu(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnGpu)


class AppleGpu(TorchFunctionMode):
    """Inside it, `on_gpu` tensors compute as Apple's GPU does; `.cpu()` and `.to` copy as usual."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            if func == Tensor.device.__get__ and isinstance(args[0], OnGpu):
                return MPS
            if func is Tensor.as_subclass:
                return func(*args, **kwargs)
            tensors = [t for t in _tensors((args, kwargs)) if t.dim()]
            gpu = any(isinstance(t, OnGpu) for t in _tensors((args, kwargs)))
            name = getattr(func, "__name__", "")
            if name == "cpu":
                return args[0].as_subclass(Tensor)
            if name == "to":
                arguments = [a for a in (*args[1:], *kwargs.values()) if not isinstance(a, bool)]
                devices = [_device(a) for a in arguments if not isinstance(a, torch.dtype)]
                dtypes = [a for a in arguments if isinstance(a, torch.dtype)]
                dtypes += [a.dtype for a in arguments if isinstance(a, Tensor)]
                gpu = devices[0] == MPS if devices else gpu
                converted = args[0].as_subclass(Tensor).to(dtypes[0] if dtypes else args[0].dtype)
                return self._placed(converted, gpu)
            if len({isinstance(t, OnGpu) for t in tensors}) > 1:
                raise RuntimeError(f"{name}: expected all tensors to be on the same device")
            if kwargs.get("device") is not None and torch.device(kwargs["device"]) == MPS:
                kwargs["device"], gpu = "cpu", True
            return self._placed(func(*args, **kwargs), gpu)

    def _placed(self, output: Any, gpu: bool) -> Any:
        if isinstance(output, (tuple, list)):
            placed = [self._placed(one, gpu) for one in output]
            return placed if type(output) in (tuple, list) else tuple(placed)
        if not isinstance(output, Tensor):
            return output
        if gpu and output.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        if isinstance(output, OnGpu) == gpu:
            return output  # as a subclass it would be a view, and no leaf
        return output.as_subclass(OnGpu if gpu else Tensor)


def _device(named: Tensor | torch.device | str) -> torch.device:
    if isinstance(named, Tensor):
        return MPS if isinstance(named, OnGpu) else named.device
    return torch.device(named)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)
