"""The layouts of transformers models, by family and task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from flwr_splitmix.segments.language.layouts.alibi import BLOOM, MPT
from flwr_splitmix.segments.language.layouts.deberta import DEBERTA, DEBERTA_V2
from flwr_splitmix.segments.language.layouts.decoders import (
    LLAMA,
    NEOX,
    PHI,
    SCALED,
    looks_like_llama,
)
from flwr_splitmix.segments.language.layouts.encoders import BERT, DISTILBERT, ELECTRA, ROBERTA
from flwr_splitmix.segments.language.layouts.falcon import FALCON
from flwr_splitmix.segments.language.layouts.gpt2 import GPT2, GPT_BIGCODE, GPT_NEO
from flwr_splitmix.segments.language.layouts.gptj import GPTJ
from flwr_splitmix.segments.language.layouts.layout import Layout, Task
from flwr_splitmix.segments.language.layouts.modernbert import MODERNBERT
from flwr_splitmix.segments.language.layouts.mpnet import MPNET
from flwr_splitmix.segments.language.layouts.nomic import NOMIC_BERT
from flwr_splitmix.segments.language.layouts.opt import OPT
from flwr_splitmix.segments.language.layouts.trial import agrees
from flwr_splitmix.words import cause

LAYOUTS: tuple[Layout, ...] = (
    LLAMA, GPT2, GPT_BIGCODE, GPT_NEO, NEOX, GPTJ, OPT, PHI, BLOOM, MPT, FALCON,
    BERT, ROBERTA, ELECTRA, DISTILBERT, DEBERTA, DEBERTA_V2, MPNET, MODERNBERT, NOMIC_BERT,
)  # fmt: skip
"""The layouts of models that are listed by their type."""

TRIED_LAYOUTS: tuple[Layout, ...] = (LLAMA, SCALED)
"""The layouts that a model of an unlisted type may have, in the order in which they are tried."""

ADAPTED_LAYERS: tuple[tuple[str, ...], ...] = (
    ("q_proj", "v_proj"), ("qkv_proj",), ("q_b_proj", "kv_b_proj"),
)  # fmt: skip
"""Names of queries and values in models that are tried: of Llama, of Phi-3, of DeepSeek."""

OTHER_MODULES = "no layout of this package has its modules"
OTHER_RESULTS = "it has Llama's modules, but a small copy in parts does not compute what it does"
CARRIES_STATE = (
    "its layers, or some, carry a state from token to token, which the parts do not keep"
)
WHY_NOT: dict[str, str] = {
    "albert": "all its layers are one set of weights, and parts that each train a copy would no "
    "longer be one",
    **dict.fromkeys(
        (
            "mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "jamba", "bamba", "zamba",
            "zamba2", "falcon_h1", "nemotron_h", "recurrent_gemma", "granitemoehybrid",
            "qwen3_next",
        ),
        CARRIES_STATE,
    ),
}  # fmt: skip
"""Why models of some types cannot be cut."""

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
        raise ValueError(f"task is {task!r}; it must be 'generation' or 'classification'")
    why = _why_not(config, task)
    if why is None and type(config) not in CLASSES[task]:
        why = "transformers has no such model for that"
    if why is not None:
        raise ValueError(_cannot_cut(config.model_type, task, why))
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
    config, task = model.config, task_of(model)
    why = _why_not(config, task)
    if why is None:
        listed_layout = _listed_layout(config.model_type)
        if listed_layout is not None:
            return listed_layout
        if looks_like_llama(model):
            why = OTHER_RESULTS
            layout = next((layout for layout in TRIED_LAYOUTS if agrees(model, layout)), None)
            if layout is not None:
                return replace(layout, lora_targets=_adapted(model))
    raise ValueError(_cannot_cut(config.model_type, task, why or OTHER_MODULES))


def task_of(model: Any) -> Task:
    """Return the task of a model.

    Raises
    ------
    ValueError
        If the model's class is for neither task, such as one without an output layer.
    """
    return task_of_class(type(model), type(model.config))


def task_of_class(model_class: type[Any], config_class: type[Any]) -> Task:
    """Return the task of a model's class with a configuration's class; raises as `task_of`."""
    for task, classes in CLASSES.items():
        if config_class in classes and issubclass(model_class, classes[config_class]):
            return task
    raise ValueError(
        f"{model_class.__name__} has no output layer that a tail can have; use a model of "
        "AutoModelForCausalLM or AutoModelForSequenceClassification"
    )


def cannot_make(model_class: type[Any], config: Any, error: Exception) -> ValueError:
    """Return the error of a model that transformers cannot make, because of `error`."""
    task = task_of_class(model_class, type(config))
    if _listed_layout(config.model_type) is None:
        return ValueError(_cannot_cut(config.model_type, task, OTHER_MODULES))
    return ValueError(
        f"no model of type {config.model_type!r} can be made with this configuration "
        f"({cause(error)})"
    )


def _adapted(model: Any) -> tuple[str, ...]:
    """Return the names of the layers of queries and values, as far as a model has them."""
    module_names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    return next(
        (names for names in ADAPTED_LAYERS if module_names & set(names)), LLAMA.lora_targets
    )


def _listed_layout(model_type: str) -> Layout | None:
    return next((layout for layout in LAYOUTS if model_type in layout.types), None)


def _why_not(config: Any, task: Task) -> str | None:
    """Return why no model of a configuration can be cut, as far as it shows; else None."""
    listed_layout = _listed_layout(config.model_type)
    if getattr(config, "is_encoder_decoder", False):
        return "each layer of its decoder reads what its encoder returns, so no cut has two sides"
    if getattr(config, "add_cross_attention", False):
        return "its layers also read what another model returns"
    if listed_layout is not None and task not in listed_layout.tasks:
        other = f"task={listed_layout.tasks[0]!r} cuts it"
        return f"it is an encoder, which reads a text in both directions ({other})"
    if (
        listed_layout is not None
        and listed_layout.kind == "encoder"
        and getattr(config, "is_decoder", False)
    ):
        return "its configuration turns an encoder into a decoder"
    return WHY_NOT.get(config.model_type)


def _cannot_cut(model_type: str, task: str, why: str) -> str:
    able = [t for layout in LAYOUTS if task in layout.tasks for t in layout.types]
    return (
        f"a model of type {model_type!r} cannot be cut for {task}: {why}; these types can: "
        f"{', '.join(able)}, and other decoders that compute as Llama does, where transformers has "
        "a model of that type for the task"
    )
