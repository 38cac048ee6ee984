"""Statements of a class about its methods, and the classes that override these."""

from __future__ import annotations

from flwr_splitmix.overriding import overridden


class Base:
    still = True

    def act(self) -> None: ...

    def rest(self) -> None: ...


class Acts(Base):
    def act(self) -> None: ...


class States(Base):
    still = False

    def act(self) -> None: ...


class MixedIn:
    def rest(self) -> None: ...


class Below(MixedIn, States): ...


def test_a_method_of_a_nearer_class_than_the_statement_is_named() -> None:
    assert overridden(Acts, ("rest", "act"), "still") == "act"
    assert overridden(Below, ("act", "rest"), "still") == "rest"


def test_a_class_states_what_holds_of_its_own_methods() -> None:
    assert not overridden(Base, ("act", "rest"), "still")
    assert not overridden(States, ("act", "rest"), "still")


def test_a_method_that_nobody_has_is_not_overridden() -> None:
    assert not overridden(Below, ("nothing",), "still")


def test_a_method_without_a_statement_is_ones_own() -> None:
    assert overridden(Acts, ("act",), "unstated") == "act"
