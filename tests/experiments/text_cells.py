"""Shared parts of tests of cells on texts: a tiny encoder, and the run of a cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from flwr_splitmix.data.texts.generated import GENERATED, generated_public
from flwr_splitmix.data.texts.tokenizers import train_tokenizer
from flwr_splitmix.events import RoundDone
from flwr_splitmix.experiments import Cell
from flwr_splitmix.experiments.cell_runs import held_run
from flwr_splitmix.experiments.running import run_cell
from flwr_splitmix.runs import Run


def save_tiny_encoder(folder: Path) -> None:
    """Save an encoder of three layers with random weights, and its tokenizer, in a folder."""
    tokenizer = train_tokenizer(generated_public("classification"), 300)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(folder)


def run(
    cell: Cell,
    home: Path,
    source: str = GENERATED,
    on_round: Callable[[RoundDone], None] = lambda event: None,
) -> Run:
    """Run a cell in a home directory; continue the run that the cell has there."""
    with held_run(cell, home, source) as cell_run:
        run_cell(cell, cell_run, source, device="cpu", on_round=on_round)
    return cell_run
