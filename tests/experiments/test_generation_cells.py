"""Cells with generated answers: what a decoder learns, and how its answers are scored."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from flwr_splitmix.data.texts.generated import GENERATED, generated_sets
from flwr_splitmix.data.texts.token_sets import token_set
from flwr_splitmix.events import RoundDone
from flwr_splitmix.experiments import EXPERIMENTS, SCALES, Cell, variant
from flwr_splitmix.experiments.papers.mixguard_sets import SETS
from flwr_splitmix.experiments.scales import DECODER, TINY
from flwr_splitmix.experiments.texts.data import load_cell_texts
from flwr_splitmix.experiments.texts.models import open_model_tokenizer, tiny_decoder
from flwr_splitmix.experiments.texts.recipes import TextTrack
from flwr_splitmix.experiments.texts.whole_models import WholeTextClient, WholeTexts
from flwr_splitmix.scoring.generation import GenerationScores
from flwr_splitmix.segments.language import LanguageCut, build_language_parts
from tests.experiments.text_cells import run

SMOKE = SCALES["smoke"]
ANSWERED: list[TextTrack] = ["gsm8k", "webnlg", "samsum", "codealpaca"]
SCORES = ("exact_match", "rouge_l", "bleu", "meteor")


def cell_of(method: str, *, track: TextTrack = "gsm8k", epochs: int = 2, **options: Any) -> Cell:
    chosen = variant(method, options, model=DECODER, clients=1)
    return SMOKE.cell(chosen, track=track, epochs=epochs)


def summary_of(cell: Cell, home: Path, source: str = GENERATED) -> dict[str, Any]:
    return run(cell, home, source).summary or {}


def test_a_cut_decoder_learns_what_it_learns_whole(tmp_path: Path) -> None:
    """With one client and nothing hidden, even with an embedding that head and tail share."""
    whole = summary_of(cell_of("Unsplit"), tmp_path)
    cut = summary_of(cell_of("USplitSL"), tmp_path)
    for name in ("top1", "eval_loss", "eval_perplexity", *(f"eval_{score}" for score in SCORES)):
        assert cut[name] == pytest.approx(whole[name], rel=1e-4), name
    # Nothing is mixed, so inference at the client equals split inference.
    for score in SCORES:
        assert cut[f"local_{score}"] == pytest.approx(cut[f"eval_{score}"])
    assert whole["eval_perplexity"] == pytest.approx(np.exp(whole["eval_loss"]))
    assert 0 < whole["top1"] < 1


def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    tokenizer = open_model_tokenizer(TINY)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(tiny_decoder(len(tokenizer)))
    model.eval()
    model.save_pretrained(tmp_path)
    parts = build_language_parts(str(tmp_path), LanguageCut(1, 1))
    rows = generated_sets("generation").test.first(6)
    data = token_set(rows, tokenizer, "generation", max_length=96)
    scorers: list[GenerationScores] = []

    def scores() -> GenerationScores:
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        end = tokenizer.eos_token_id
        scorers.append(GenerationScores(decode, end=end, max_new_tokens=5, max_length=96))
        return scorers[-1]

    client = WholeTextClient(
        WholeTexts(*parts.all_here()),
        data,
        scores=scores,
        batch_size=4,
        benchmark_data=data,
        device="cpu",
    )
    scored = client.score()
    expected, losses = [], []
    for ids, labels in (data[row] for row in range(len(data))):
        prompt = ids[labels == -100][None]
        with torch.no_grad():
            written = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
            losses += [model(input_ids=ids[None], labels=labels[None]).loss * (labels >= 0).sum()]
        answer = written[0, prompt.shape[1] :]
        expected.append(tokenizer.decode(answer, skip_special_tokens=True).strip())
    assert scorers[0].predicted == expected
    assert scorers[0].right == [answer.strip() for answer in rows.answers]
    tokens = sum(int((labels >= 0).sum()) for _, labels in (data[r] for r in range(len(data))))
    assert scored["loss"] / scored["examples"] == pytest.approx(
        float(sum(losses)) / tokens, rel=1e-4
    )
    assert scored["scores"].keys() == {"perplexity", *SCORES}


@pytest.mark.parametrize("method", ["USplitSL", "Unsplit"])
def test_an_interrupted_cell_goes_on_as_if_it_never_had_been(method: str, tmp_path: Path) -> None:
    cell = cell_of(method, epochs=3)
    whole = run(cell, tmp_path / "whole")

    def interrupt(event: RoundDone) -> None:
        if event.server_round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(cell, tmp_path / "stopped", on_round=interrupt)
    rounds: list[int] = []
    resumed = run(
        cell, tmp_path / "stopped", on_round=lambda event: rounds.append(event.server_round)
    )
    assert 3 in rounds
    assert 1 not in rounds
    for name in ("loss", "eval_loss", "eval_rouge_l", "accuracy"):
        assert resumed.rows[-1].get(name) == whole.rows[-1].get(name), name


def test_every_row_of_the_table_answers_and_says_what_its_own_scores_need(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["mixguard-table3-gsm8k"]
    shown = {}
    for entry, cell in experiment.cells(SMOKE):
        summary = summary_of(cell, tmp_path)
        shown[entry.row] = {score.name: score.of(summary) for score in experiment.scores}
    for row, scores in shown.items():
        has = {name for name, value in scores.items() if value is not None}
        assert {"exact match (%)", "BLEU", "ROUGE-L (x 100)", "METEOR (x 100)"} <= has, row
        assert ("local" in has) == (row != "unsplit"), row
        assert ("decode error" in has) == row.startswith("MixGuard"), row
        assert ("epsilon" in has) == row.startswith("DP-"), row


@pytest.mark.parametrize("track", ANSWERED[1:])
def test_mixguard_answers_the_texts_of_every_corpus(track: TextTrack, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[f"mixguard-table3-{track}"]
    entry = {each.row: each for each in experiment.entries}["MixGuard"]
    assert entry.variant is not None
    summary = summary_of(SMOKE.cell(entry.variant, track=track), tmp_path)
    assert experiment.scores[0].of(summary) is not None


@pytest.fixture
def gsm8k(tmp_path: Path) -> str:
    """Write 12 rows for each split, the last with a long answer, and public text next to them."""
    folder, public = tmp_path / "gsm8k", tmp_path / "public_text"
    folder.mkdir()
    public.mkdir()
    (public / "book.txt").write_text("It was late. The old dog sleeps near the boats today .\n" * 2)
    rows = [{"question": f"What is {i} and 1 ?", "answer": f"#### {i + 1}"} for i in range(12)]
    rows[-1]["answer"] = "one and one is two . " * 30 + rows[-1]["answer"]
    for name in ("train", "test"):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    return str(folder)


def test_gsm8k_is_trained_from_its_folder(gsm8k: str, tmp_path: Path) -> None:
    cell = cell_of("MixGuard", secret_tokens=2, refine_every=1)
    cell = replace(cell, recipe=replace(cell.recipe, samples=12))
    assert run(cell, tmp_path / "home", gsm8k).status == "finished"


def test_long_answers_are_cut_for_training_and_left_out_of_the_test(
    gsm8k: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reference answer without its end, which has the number, would be another answer."""
    caplog.set_level("WARNING", logger="flwr.splitmix")
    cell = cell_of("USplitSL")
    cell = replace(cell, recipe=replace(cell.recipe, samples=0, test_images=0))
    tokenizer = open_model_tokenizer(TINY)
    texts = load_cell_texts(cell, gsm8k, tokenizer)
    assert (len(texts.pooled), len(texts.test)) == (12, 11)
    assert max(len(text) for text in texts.pooled.texts) == 96
    assert {int(text[-1]) for text in texts.test.texts} == {tokenizer.eos_token_id}
    assert "left out as too long: 1 of 12 texts" in caplog.text


def test_papers_numbers_of_codebleu_are_not_put_beside_bleu() -> None:
    """No maintained library has CodeBLEU, and claims must not be judged by another score."""
    (code,) = (each for each in SETS if each.name.endswith("codealpaca"))
    assert code.orderings == ()
    assert {name for entry in code.entries for name in entry.paper} == {
        "CodeAlpaca CodeBLEU, Qwen3-1.7B",
        "CodeAlpaca CodeBLEU, Llama 3.2-1B",
    }
    assert code.scores[0].name == "BLEU"
