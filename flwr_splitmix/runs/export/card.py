"""The model card of an exported model: use, training, and what the server saw in training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flwr_splitmix.methods import BY_NAME, plain
from flwr_splitmix.words import counted, epsilon_text


def model_card(facts: Mapping[str, Any]) -> str:
    """Return the model card, in Markdown, of the model described by `facts` (see `write_facts`)."""
    method = BY_NAME.get(facts["strategy"])
    left_out = [f"{method.left_out}\n"] if method is not None and method.left_out else []
    first = [_front(facts), _title(facts), _use(facts), *left_out]
    return "\n".join([*first, _training(facts), _privacy(facts)])


def _front(facts: Mapping[str, Any]) -> str:
    library = "transformers" if facts["kind"] == "language" else _library(facts)
    return f"---\nlibrary_name: {library}\ntags:\n- split-learning\n- flwr-splitmix\n---\n"


def _library(facts: Mapping[str, Any]) -> str:
    return "timm" if facts.get("timm") else "flwr-splitmix"


def _title(facts: Mapping[str, Any]) -> str:
    owner = "" if facts["client"] is None else f", with the segment of client {facts['client']}"
    return (
        f"# {facts['model']}, trained by {facts['strategy']}\n\n"
        f"Run `{facts['run']}` after round {facts['round']} of {facts['rounds']}{owner}.\n"
    )


def _use(facts: Mapping[str, Any]) -> str:
    if facts["kind"] == "language":
        return _use_of_texts(facts)
    lines = ["## Use\n", "```sh", "splitmix predict FOLDER IMAGE...", "```\n"]
    if timm := facts.get("timm"):
        options = ", ".join(f"{key}={value!r}" for key, value in timm["arguments"].items())
        lines += [
            "```python",
            "import timm",
            "",
            f"model = timm.create_model({timm['name']!r}, {options},",
            '                          checkpoint_path="FOLDER/model.safetensors").eval()',
            "```\n",
        ]
    else:
        lines.append(f"There is no file for timm's `create_model`: {facts['timm_lacks']}.\n")
    method = BY_NAME.get(facts["strategy"])
    lines.append(
        (
            "`lower.safetensors` has the client's head, `upper.safetensors` the server's trunk and "
            "the client's tail. "
            if method is not None and method.shape == "U"
            else "`lower.safetensors` has the client's segment, `upper.safetensors` the server's. "
        )
        + f"{_preprocessing(facts['preprocessing'])}"
    )
    if facts.get("onnx"):
        lines.append(
            f"`{facts['onnx']['file']}` takes `pixels`, float32 (n, channels, height, width) in "
            "0..1, already resized and padded, normalises them itself, and returns `logits`; it "
            f"agreed with torch to {facts['onnx']['difference']:.1e} in onnxruntime."
        )
    lines.append("\n" + _classes(facts))
    if facts.get("multi_label"):
        lines.append(
            "An image may have several of them: the sigmoid of a logit is its probability.\n"
        )
    return "\n".join(lines)


def _classes(facts: Mapping[str, Any]) -> str:
    names = ", ".join(f"`{name!r}`" for name in facts["classes"])  # a name may have a comma
    return f"Classes, in the order of the logits: {names}.\n"


def _preprocessing(steps: Mapping[str, Any]) -> str:
    colours = "grey" if steps["channels"] == 1 else "RGB"
    height, width = steps["stored_size"]
    size = steps["image_size"]
    padded = "" if (height, width) == (size, size) else f", padded with black to {size} x {size}"
    mean, std = (", ".join(f"{value:g}" for value in steps[key]) for key in ("mean", "std"))
    return (
        f"Images are {colours}, resized (bilinear) to {height} x {width} pixels{padded}, scaled to "
        f"0..1 and normalised with mean {mean} and standard deviation {std}."
    )


def _use_of_texts(facts: Mapping[str, Any]) -> str:
    auto = {
        "classification": "AutoModelForSequenceClassification",
        "generation": "AutoModelForCausalLM",
    }[facts["task"]]
    lines = [
        '## Use\n\n```sh\nsplitmix predict FOLDER --text "..."\n```\n',
        f"```python\nfrom transformers import {auto}, AutoTokenizer\n\nmodel = {auto}"
        '.from_pretrained("FOLDER")\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")\n```\n',
    ]
    if facts["task"] == "generation":
        lines.append(f"It learned to answer prompts of the form `{facts['prompt']!r}`.\n")
    else:
        lines.append(_classes(facts))
    if facts.get("pairs"):
        lines.append("It learned pairs of sentences: `tokenizer(first, second)`, all of type 0.\n")
    return "\n".join(lines)


def _training(facts: Mapping[str, Any]) -> str:
    accuracy = facts["accuracy"]
    measured = "was not measured"
    if accuracy is not None:
        mean = "" if facts["client"] is None else ", of all clients, not of this one alone"
        measured = (
            f"{100 * accuracy['value']:.1f} % ({accuracy['kind']}, after round "
            f"{accuracy['round']}{mean})"
        )
    parts, trained = facts["parts"], facts["clients"]
    those = "" if trained == parts else f", of which {trained} trained"
    return (
        f"## Training\n\n- Data: {facts['dataset']}, {facts['partition']} among "
        f"{counted(parts, 'client')}{those}, seed {facts['seed']}\n- Accuracy: {measured}\n- "
        f"Versions: {', '.join(f'{name} {v}' for name, v in facts['versions'].items())}\n"
    )


def _privacy(facts: Mapping[str, Any]) -> str:
    method = BY_NAME.get(facts["strategy"])
    lines = ["## What the server saw in training\n"]
    if method is not None:
        lines += [
            f"- At the cut: {plain(method.at_cut)}",
            f"- Sent to the server: {plain(method.up)}",
            *_sent_each_round(facts),
            f"- Hidden from the server: {plain(method.protects)}",
        ]
    lines.append(f"- Epsilon: {_epsilon(facts)}\n")
    return "\n".join(lines)


def _sent_each_round(facts: Mapping[str, Any]) -> list[str]:
    if not facts["averaged"]:
        return []
    whose = "head and tail" if BY_NAME[facts["strategy"]].shape == "U" else "lower segment"
    return [
        f"- Sent once a round as well, to be averaged: the trained weights of each client's {whose}"
    ]


def _epsilon(facts: Mapping[str, Any]) -> str:
    epsilon = facts["epsilon"]
    if epsilon is None:
        return (
            "none is accounted for, and nothing is promised about what the model itself reveals of "
            "its training data"
        )
    if not math.isfinite(float(epsilon)):
        return "no bound; the run's log says why"
    averaged = (
        " The lower segment was averaged over the clients, which no epsilon covers."
        if facts["averaged"] and facts["kind"] != "language"
        else ""
    )
    return (
        f"{epsilon_text(epsilon)} at delta {facts['delta']:g}, of the client that spent most. It "
        f"covers {facts['epsilon_covers']}.{averaged}"
    )
