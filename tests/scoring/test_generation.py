"""Answers written token by token, and how they are scored."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.scoring.answers import _Words, bleu, exact_match, final_number, meteor, rouge_l
from flwr_splitmix.scoring.generation import GenerationScores

END, WORDS = 1, 12


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


def batch(*pairs: tuple[list[int], list[int]]) -> MaskedBatch:
    """Return prompts and right answers, each with an END behind it."""
    texts = [torch.tensor([*prompt, *answer, END]) for prompt, answer in pairs]
    labels = [torch.tensor([-100] * len(p) + [*a, END]) for p, a in pairs]
    text_batch = TextSet(texts, labels).batch(torch.arange(len(pairs)).numpy())
    return MaskedBatch.of(text_batch, torch.device("cpu"))


def after(token: int) -> int:
    """Say what a model answers that counts: the word after w9 is the end."""
    return END if token >= 9 else token + 1


def counting(masked: MaskedBatch) -> Tensor:
    """Return the logits of a model that counts."""
    logits = torch.zeros(*masked.inputs.shape, WORDS)
    for row, ids in enumerate(masked.inputs.tolist()):
        for place, token in enumerate(ids):
            logits[row, place, after(token)] = 1.0
    return logits


def generate(scores: GenerationScores, first: MaskedBatch) -> list[MaskedBatch]:
    """Do as the exchanges of an evaluation do; returns what was sent."""
    batches = [scores.begin(first)]
    while (following := scores.add(counting(batches[-1]), batches[-1])) is not None:
        batches.append(following)
    return batches


def new_scores(**options: Any) -> GenerationScores:
    options = {"end": END, "max_new_tokens": 20, "max_length": 40, **options}
    return GenerationScores(decode, **options)


def test_each_answer_goes_on_to_its_own_end() -> None:
    scores = new_scores()
    batches = generate(scores, batch(([3, 8], [9]), ([5, 2, 6], [9, 9])))
    assert scores.predicted == ["w9", "w7 w8 w9"]
    assert scores.right == ["w9", "w9 w9"]
    assert scores.examples == 2
    # The right answers and the first words in one exchange, then a word in each; no row is left
    # out when it has ended, so that the server does not learn when.
    assert [len(b.inputs) for b in batches] == [2] * 4
    assert batches[-1].inputs[1, : int(batches[-1].mask[1].sum())].tolist() == [5, 2, 6, 7, 8, 9]
    assert batches[-1].inputs[0, : int(batches[-1].mask[0].sum())].tolist() == [3, 8, 9]


def test_the_right_answer_is_in_nothing_that_is_sent_later() -> None:
    batches = generate(new_scores(), batch(([5, 4], [2, 2, 2])))
    for later in batches[1:]:
        assert 2 not in later.inputs
        assert (later.labels == -100).all()


def test_an_answer_has_at_most_so_many_tokens() -> None:
    scores = new_scores(max_new_tokens=2)
    assert len(generate(scores, batch(([2], [3])))) == 2
    assert scores.predicted == ["w3 w4"]


def test_a_text_has_at_most_so_many_tokens() -> None:
    scores = new_scores(max_length=4)
    batches = generate(scores, batch(([2, 2], [3])))
    assert scores.predicted == ["w3 w4"]
    assert max(b.inputs.shape[1] for b in batches) == 4


def test_padding_hides_how_long_answers_are() -> None:
    batches = generate(new_scores(pad_to=16), batch(([5, 4], [2]), ([8], [9])))
    assert {b.inputs.shape[1] for b in batches[1:]} == {16}


def test_scores_are_over_all_batches() -> None:
    scores = new_scores()
    generate(scores, batch(([7], [8, 9])))
    generate(scores, batch(([7], [8, 8]), ([8], [9])))
    result = scores.result()
    assert result["exact_match"] == pytest.approx(2 / 3)
    assert result["rouge_l"] == pytest.approx((1 + 0.5 + 1) / 3)
    # Of two words in one piece, of one of two, of one: the penalty is half the cube of 1 / matches.
    assert result["meteor"] == pytest.approx((1 - 0.5 / 8 + 0.5 * 0.5 + 0.5) / 3)
    assert {"loss", "accuracy", "perplexity", "bleu"} <= result.keys()
    assert scores.examples == 3


def test_a_text_without_an_answer_is_not_scored() -> None:
    """Nothing said of nothing asked would be an exact match."""
    prompts = batch(([7], [3]), ([7], []))
    labels = torch.cat([prompts.labels, torch.full_like(prompts.labels[:1], -100)])
    ids, mask = (torch.cat([tensor, tensor[:1]]) for tensor in (prompts.inputs, prompts.mask))
    scores = new_scores()
    generate(scores, MaskedBatch(ids, mask, labels))
    assert (len(scores.predicted), scores.right) == (2, ["w3", ""])  # the second asks for the end
    assert scores.result()["exact_match"] == 0.0


def test_a_text_that_is_all_answer_goes_on_from_its_first_token() -> None:
    texts = [[5, 6, 7, END], [3, 8, 9, END], [4]]  # nothing can be said of a single token
    texts_and_labels = TextSet(texts, texts).batch(torch.arange(3).numpy())
    scores = new_scores()
    batches = generate(scores, MaskedBatch.of(texts_and_labels, torch.device("cpu")))
    assert scores.predicted == ["w6 w7 w8 w9", "w4 w5 w6 w7 w8 w9"]
    assert scores.right == ["w6 w7", "w8 w9"]
    assert batches[1].inputs[:, :2].tolist() == [[5, 6], [3, 4], [4, 0]]


def test_loss_and_accuracy_are_those_of_the_right_answers() -> None:
    scores = new_scores()
    generate(scores, batch(([7], [8, 8])))
    # Of 8, 8 and the end, a model that counts gets the first alone.
    assert scores.result()["accuracy"] == pytest.approx(1 / 3)


def test_an_answer_needs_room() -> None:
    with pytest.raises(ValueError, match="max_new_tokens is 0; it must be at least 1"):
        new_scores(max_new_tokens=0)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("so it is\n#### 72", "72"),
        ("#### 1,234", "1234"),
        ("#### -3.50 dollars", "-3.5"),
        ("#### $18.", "18"),
        ("####5\n#### 6", "5"),
        ("#### .50", "0.5"),
        ("#### 05", "5"),
        ("#### -$5", "-5"),
        ("#### $-5.0", "-5"),
        ("#### -0.0", "0"),
        ("#### 007.070", "7.07"),
        ("10.0 #### 100", "100"),
        ("the answer is 7", None),
        ("#### none", None),
    ],
)
def test_the_number_that_counts(answer: str, number: str | None) -> None:
    assert final_number(answer) == number


def test_only_the_number_of_a_sum_must_be_right() -> None:
    assert exact_match("3 + 4 is seven #### 7.0", "four plus three #### 7")
    assert not exact_match("four plus three #### 8", "four plus three #### 7")
    assert not exact_match("four plus three is 7", "four plus three #### 7")
    assert exact_match("a  b\n", "a b")
    assert not exact_match("a", "a b")


def test_overlap_has_its_known_values() -> None:
    # Lin (2004), section 3: "police kill the gunman" against "police killed the gunman".
    assert rouge_l(["police kill the gunman"], ["police killed the gunman"]) == pytest.approx(0.75)
    assert bleu(["the cat is on the mat now"], ["the cat is on the mat now"]) == pytest.approx(100)
    assert bleu(["nothing of that sort"], ["the cat is on the mat now"]) < 5
    assert rouge_l([], []) == 0.0


@pytest.mark.parametrize(
    "text", ["Привет, мир!", "你好 世界", "مرحبا", "blau äöü", "हिन्दी की किताब"]
)
def test_words_of_any_alphabet_count(text: str) -> None:
    """rouge-score keeps a-z and 0-9 only: a text that is read whole would have 0."""
    assert rouge_l([text], [text.lower()]) == 1.0
    assert rouge_l(["blau ßßß"], [text]) < 0.6
    assert rouge_l([unicodedata.normalize("NFD", text)], [text]) == 1.0
    assert rouge_l(["की का कु"], ["के को कि"]) == 0.0, "they differ in their vowels"


def test_english_words_are_rouge_scores_own() -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    text = Path(__file__).read_text(encoding="ascii", errors="ignore")
    words = DefaultTokenizer(use_stemmer=False).tokenize(text)
    assert _Words().tokenize(text) == words
    assert len(words) > 100


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        # Six words in six pieces, and in two: the penalty is half, and half of 1 / 27.
        ("on the mat sat the cat", "the cat sat on the mat", 0.5),
        ("the cat was sat on the mat", "the cat sat on the mat", 0.9654),
        ("dogs running", "the dog runs", 2 / 3 / 0.9666667 * (1 - 0.5 / 8)),  # by their stems
        ("automobile", "car", 0.0),  # no synonyms
        ("", "car", 0.0),
    ],
)
def test_meteor_is_that_of_its_paper_without_synonyms(
    answer: str, right: str, score: float
) -> None:
    assert meteor([answer], [right]) == pytest.approx(score, abs=5e-5)
    assert meteor([answer, right], [right, right]) == pytest.approx(
        (score + meteor([right], [right])) / 2, abs=5e-5
    )
