"""Signs of a party on its link: who owes an answer, and since when."""

from __future__ import annotations

from colonnade.fabrics.grpc.call_queue import Signs


def test_who_was_asked_nothing_is_not_silent() -> None:
    signs = Signs()
    assert signs.silent_since is None
    signs.ask(5)
    signs.answer(9, was_awaited=True)
    # Long after the answer, with the label holder busy elsewhere: nothing is owed.
    assert signs.silent_since is None
    assert signs.heard == 9


def test_silence_begins_with_the_question_or_the_last_sign() -> None:
    signs = Signs()
    signs.ask(5)
    signs.ask(7)
    assert signs.silent_since == 5
    signs.answer(20, was_awaited=True)
    assert signs.silent_since == 20
    # The failure of something told is a sign, but no answer.
    signs.answer(30, was_awaited=False)
    assert signs.silent_since == 30
    signs.answer(31, was_awaited=True)
    assert signs.silent_since is None


def test_a_question_that_did_not_go_out_is_not_owed() -> None:
    signs = Signs()
    signs.ask(5)
    signs.take_back()
    assert signs.silent_since is None
    signs.ask(50)
    assert signs.silent_since == 50
