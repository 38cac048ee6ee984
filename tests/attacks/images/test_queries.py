"""Queries of attacks on images, as keys of caches."""

from __future__ import annotations

from dataclasses import replace

import torch

from flwr_splitmix.attacks.images.networks.example import Query


def test_queries_of_the_same_tensors_are_one_key_of_a_cache() -> None:
    tokens, mask = torch.zeros(2, 5, 3), torch.ones(2, 4, dtype=torch.bool)
    query = Query(tokens, mask, member=None, labels=torch.ones(2, 10))
    assert {query: "answer"}[replace(query)] == "answer"


def test_queries_of_other_tensors_or_members_differ() -> None:
    query = Query(torch.zeros(2, 5, 3), None, member=0)
    others = [replace(query, member=1), replace(query, tokens=query.tokens.clone())]
    assert [query == other for other in others] == [False, False]
    assert len({query, *others}) == 3
