"""Transformers language models cut into head, trunk and tail; needs the extra `language`."""

from flwr_splitmix.extras import needed_for

with needed_for("cutting language models"):
    from flwr_splitmix.segments.language.build import build_language_parts
    from flwr_splitmix.segments.language.cut import LanguageCut
    from flwr_splitmix.segments.language.cutting import cut_language_model
    from flwr_splitmix.segments.language.export import export
    from flwr_splitmix.segments.language.generation import generate
    from flwr_splitmix.segments.language.lora import add_lora, merge_lora, trainable_state
    from flwr_splitmix.segments.language.parts import Head, LanguageParts, Tail, Trunk
    from flwr_splitmix.segments.language.placement import place_trunk

__all__ = [
    "Head",
    "LanguageCut",
    "LanguageParts",
    "Tail",
    "Trunk",
    "add_lora",
    "build_language_parts",
    "cut_language_model",
    "export",
    "generate",
    "merge_lora",
    "place_trunk",
    "trainable_state",
]
