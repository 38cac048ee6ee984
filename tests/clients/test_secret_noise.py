"""A client's noise: fresh in every step, and repeatable for tests alone."""

from __future__ import annotations

import pytest

from flwr_splitmix.mixers import PatchShare
from tests.clients.guarded import ORDER, N, ask, client_of, cost, epsilon, mask, noisy, spent


def test_a_step_that_is_repeated_has_fresh_noise_and_pays_again() -> None:
    client = client_of()
    # Of clamped labels most are 0 or 1, and those of two draws may be the same ones.
    first, second = (ask(client, 0, mask(3, clamp_labels=False)) for _ in range(2))
    assert client.batches.drawn == 1  # the same batch
    assert not first["smashed"][0].eq(second["smashed"][0]).any()
    assert not first["labels"][0].equal(second["labels"][0])
    assert spent(client) == pytest.approx(epsilon(2 * cost(3)), rel=1e-9)


def test_two_clients_with_one_seed_draw_other_noise() -> None:
    first, second = (ask(client_of(), 0, mask(3)) for _ in range(2))
    assert not first["smashed"][0].eq(second["smashed"][0]).any()


def test_noise_repeats_only_for_who_was_made_so() -> None:
    clients = [client_of(repeatable_secrets=True) for _ in range(2)]
    first, second = (ask(client, 0, mask(3)) for client in clients)
    assert first["smashed"][0].equal(second["smashed"][0])
    assert first["labels"][0].equal(second["labels"][0])
    assert clients[0].attach(ORDER, None)["repeatable-secrets"] is True
    assert "repeatable-secrets" not in client_of().attach(ORDER, None)


@pytest.mark.parametrize("key", ["repeatable_secrets", "seeded_secrets", "seed", "generator"])
def test_no_call_of_a_server_makes_a_clients_noise_repeatable(key: str) -> None:
    client = client_of()
    share = mask(3).to_wire()
    noise = share["noise"]
    assert isinstance(noise, dict)
    with pytest.raises(TypeError, match=key):
        client.run("step", {"number": 0, "progress": 0.0, "gradient": None, "plan": [], key: True})
    for plan in ([{**share, key: 1}], [{**share, "noise": {**noise, key: 1}}]):
        with pytest.raises(ValueError, match=r"nothing else|noise has no"):
            client.run("step", {"number": 0, "progress": 0.0, "gradient": None, "plan": plan})
    first, second = (ask(client, 0, mask(3)) for _ in range(2))
    assert not first["smashed"][0].eq(second["smashed"][0]).any()


def test_noise_of_one_client_does_not_become_repeatable_beside_one_of_a_test() -> None:
    """Clients of one process: what is made repeatable ends with the call."""
    client_of(repeatable_secrets=True).run(
        "step", {"number": 0, "progress": 0.0, "gradient": None, "plan": [mask(3).to_wire()]}
    )
    first, second = (ask(client_of(), 0, mask(3)) for _ in range(2))
    assert not first["smashed"][0].eq(second["smashed"][0]).any()


def test_a_guard_charges_before_an_upload_is_made() -> None:
    """A share that then turns out to be for other tokens has cost, and sent nothing."""
    client = client_of()
    other = noisy(PatchShare(lam=0.5, patches=N + 2, seed=1, start=0, stop=4))
    with pytest.raises(ValueError, match=r"the share is for 0 \+ 8 tokens"):
        ask(client, 0, other)
    assert spent(client) > 0
