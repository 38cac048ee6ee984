"""Cuts of a transformers model in memory, without copies of its modules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flwr_splitmix.segments.language.cut import LanguageCut
from flwr_splitmix.segments.language.layouts.families import layout_of, task_of
from flwr_splitmix.segments.language.parts import Head, LanguageParts, Tail, Trunk

PARTS = ("head", "trunk", "tail")


def cut_language_model(
    model: Any, cut: LanguageCut, *, parts: Collection[str] = PARTS
) -> LanguageParts:
    """Cut a transformers model into head, trunk and tail.

    The parts hold the model's own modules and weights, with its attention implementation,
    gradient checkpointing and training mode: their outputs equal the model's bit for bit (in
    training mode those of a model that fills no cache, `use_cache=False`). Of weights that all
    layers read, such as DeBERTa's embeddings of distances, each part has a copy that is not
    trained.

    Parameters
    ----------
    model
        A `PreTrainedModel` for causal language modelling or sequence classification: Llama,
        Mistral, Qwen2, Qwen3, Qwen3-MoE and decoders that compute as they do, GPT-2, GPT-BigCode,
        GPT-Neo, GPT-NeoX, GPT-J, OPT, Phi, BLOOM, MPT, Falcon; for classification only, BERT,
        RoBERTa, ELECTRA, DistilBERT, DeBERTa, MPNet, ModernBERT and NomicBERT.
    cut
        Numbers of layers in head and tail.
    parts
        The parts to return; the others are None.

    Raises
    ------
    ValueError
        If the model cannot be cut, the cut leaves no layer for the trunk, or a part is unknown.
    """
    built = cut_sharing_tables(model, cut, parts=parts)
    freeze_tables(built)
    return built


def freeze_tables(built: LanguageParts) -> None:
    """Give each part its own copy of weights that all layers read; it is not trained."""
    for part in (built.head, built.trunk, built.tail):
        if part is not None:
            part.stack.freeze_tables()


def cut_sharing_tables(
    model: Any, cut: LanguageCut, *, parts: Collection[str] = PARTS
) -> LanguageParts:
    """Cut a model as `cut_language_model` does, into parts that share what all layers read.

    For a model whose weights are still to be loaded; then, `freeze_tables`.
    """
    if not parts or not set(parts) <= set(PARTS):
        raise ValueError(f"parts are {tuple(parts)}; expected some of {', '.join(PARTS)}")
    config, task = model.config, task_of(model)
    layout = layout_of(model)
    layers = len(layout.layers(model))
    first, middle, last = cut.spans(layers)
    head = Head(layout.embedding(model), layout.span(model, first), layout)
    trunk = Trunk(layout.span(model, middle), layout)
    tail = Tail(layout.span(model, last), layout.output(model), layout)
    module_ids = {id(module) for module in model.modules()}
    for module in (module for part in (head, trunk, tail) for module in part.modules()):
        # Not `part.train(...)`: modules of the model may differ from it in their mode.
        if id(module) not in module_ids:
            module.training = model.training
    return LanguageParts(
        head=head if "head" in parts else None,
        trunk=trunk if "trunk" in parts else None,
        tail=tail if "tail" in parts else None,
        config=config,
        model_class=type(model),
        cut=cut,
        kind=layout.kind,
        task=task,
        width=int(config.hidden_size),
        layers=layers,
        vocab_size=int(config.vocab_size),
        max_length=int(layout.max_length(config)),
        num_labels=int(config.num_labels) if task == "classification" else None,
        tied=task == "generation" and _is_tied(model),
    )


def _is_tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight
