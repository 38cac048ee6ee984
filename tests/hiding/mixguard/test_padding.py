"""Texts of several lengths get one; what stands behind a text is no constant."""

from __future__ import annotations

import pytest
import torch

from flwr_splitmix.hiding.mixguard import SecretTokens, pad_together

LONG, SHORT = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 0]]), torch.tensor([[9, 9], [9, 0]])
IDS, MASKS = (LONG, SHORT), ((LONG != 0).long(), (SHORT != 0).long())


def test_each_text_keeps_its_tokens_and_the_union_covers_all() -> None:
    padded = pad_together(IDS, MASKS, filler=3)
    assert padded.ids.tolist() == [[[5, 6, 7, 8], [5, 6, 7, 3]], [[9, 9, 3, 3], [9, 3, 3, 3]]]
    assert padded.masks.tolist() == [[[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 1, 0, 0], [1, 0, 0, 0]]]
    assert padded.union.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_random_words_stand_where_a_text_has_ended() -> None:
    draw = SecretTokens(0, 1000, range(10)).draw
    ids = [torch.full((2, 3), 4), torch.full((2, 50), 4)]
    padded = pad_together(ids, [torch.ones_like(i) for i in ids], filler=draw)
    filler = padded.ids[0, :, 3:].flatten()
    assert (filler >= 10).all()
    assert len(set(filler.tolist())) > 60  # 94 draws of 990
    assert (padded.ids[padded.masks == 1] == 4).all()


def test_a_constant_width_tells_no_length() -> None:
    padded = pad_together(IDS, MASKS, filler=3, pad_to=6)
    assert padded.ids.shape == (2, 2, 6)
    assert (padded.union == 1).all()
    assert padded.masks[0].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]]


def test_bad_inputs_are_said() -> None:
    with pytest.raises(ValueError, match="the common width is 4; it must be at most 3"):
        pad_together(IDS, MASKS, filler=3, max_length=3)
    with pytest.raises(ValueError, match="the common width is 4; it must be at most 2"):
        pad_together(IDS, MASKS, filler=3, pad_to=2)
    with pytest.raises(ValueError, match="the common width is 9; it must be at most 8"):
        pad_together(IDS, MASKS, filler=3, pad_to=9, max_length=8)
    with pytest.raises(ValueError, match="2 batches of ids and 1 of masks"):
        pad_together(IDS, MASKS[:1], filler=3)
    with pytest.raises(ValueError, match=r"shape \(1, 2\)"):
        pad_together((LONG, SHORT[:1]), (MASKS[0], MASKS[1][:1]), filler=3)
