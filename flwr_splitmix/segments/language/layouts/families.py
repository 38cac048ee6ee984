"""The layouts of transformers models, by family and task."""

from __future__ import annotations

from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from flwr_splitmix.segments.language.layouts.decoders import (
    LLAMA,
    NEOX,
    PHI,
    SCALED,
    looks_like_llama,
)
from flwr_splitmix.segments.language.layouts.encoders import BERT, DISTILBERT, ELECTRA, ROBERTA
from flwr_splitmix.segments.language.layouts.gpt2 import GPT2, GPT_NEO
from flwr_splitmix.segments.language.layouts.layout import Layout, Task
from flwr_splitmix.segments.language.layouts.modernbert import MODERNBERT
from flwr_splitmix.segments.language.layouts.opt import OPT
from flwr_splitmix.segments.language.layouts.trial import agrees

LAYOUTS: tuple[Layout, ...] = (
    LLAMA, GPT2, GPT_NEO, NEOX, OPT, PHI, BERT, ROBERTA, ELECTRA, DISTILBERT, MODERNBERT,
)  # fmt: skip
"""The layouts of models that are listed by their type."""

TRIED: tuple[Layout, ...] = (LLAMA, SCALED)
"""The layouts that a model of an unlisted type may have, in the order in which they are tried."""

CLASSES: dict[Task, Any] = {
    "generation": MODEL_FOR_CAUSAL_LM_MAPPING,
    "classification": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
}
"""For each task, the mapping from a configuration's class to its model's class."""


def model_class(config: Any, task: Task) -> type[Any]:
    """Return the transformers class of a configuration's model for a task.

    Raises
    ------
    ValueError
        If the task is unknown, or no such model can be cut; the message says which can.
    """
    if task not in CLASSES:
        raise ValueError(f"task is {task!r}; allowed are 'generation' and 'classification'")
    known = _known(config.model_type)
    if type(config) not in CLASSES[task] or (known is not None and task not in known.tasks):
        raise ValueError(_cannot_cut(config.model_type, task))
    transformers_class: type[Any] = CLASSES[task][type(config)]
    return transformers_class


def layout_of(model: Any) -> Layout:
    """Return the layout of a model.

    A model of an unlisted type whose modules are named like Llama's is tested first: a copy with
    a few thousand weights must compute the same in parts as whole.

    Raises
    ------
    ValueError
        If the model cannot be cut; the message names its type and the types that can.
    """
    config = model.config
    error = ValueError(_cannot_cut(config.model_type, task_of(model)))
    crossing = getattr(config, "add_cross_attention", False)
    known = _known(config.model_type)
    if known is not None:
        turned = known.kind == "encoder" and getattr(config, "is_decoder", False)
        if crossing or turned or task_of(model) not in known.tasks:
            raise error
        return known
    if crossing or not looks_like_llama(model):
        raise error
    layout = next((layout for layout in TRIED if agrees(model, layout)), None)
    if layout is None:
        raise error
    return layout


def task_of(model: Any) -> Task:
    """Return the task of a model.

    Raises
    ------
    ValueError
        If the model's class is for neither task, such as one without an output layer.
    """
    return task_of_class(type(model), type(model.config))


def task_of_class(made: type[Any], configured: type[Any]) -> Task:
    """Return the task of a model's class with a configuration's class; raises as `task_of`."""
    for task, classes in CLASSES.items():
        if configured in classes and issubclass(made, classes[configured]):
            return task
    raise ValueError(
        f"{made.__name__} has no output layer that a tail can have; allowed are models of "
        "AutoModelForCausalLM and AutoModelForSequenceClassification"
    )


def cannot_make(made: type[Any], config: Any, error: Exception) -> ValueError:
    """Return the error of a model that transformers cannot make, because of `error`."""
    task = task_of_class(made, type(config))
    if _known(config.model_type) is None:
        return ValueError(_cannot_cut(config.model_type, task))
    said = " ".join(str(error).split())[:200]
    return ValueError(
        f"no model of type {config.model_type!r} can be made with this configuration "
        f"({type(error).__name__}: {said})"
    )


def _known(model_type: str) -> Layout | None:
    return next((layout for layout in LAYOUTS if model_type in layout.types), None)


def _cannot_cut(model_type: str, task: str) -> str:
    able = [t for layout in LAYOUTS if task in layout.tasks for t in layout.types]
    return (
        f"a model of type {model_type!r} cannot be cut for {task}; allowed are "
        f"{', '.join(able)}, and decoders that compute as Llama does"
    )
