"""Suggestions of names in messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.base.errors import InputError, check_known, nearest, one_like, similar

SIZES = [f"model-{size}b" for size in range(1, 99)]


def begins(known: str, name: str) -> bool:
    return known.startswith(name)


def test_a_misspelt_name_is_more_likely_than_another_size():
    """Many sizes are a letter nearer; the name of the same size comes first all the same."""
    sizes = [f"modell-{size}b" for size in (71, 72, 73, 76, 77)]
    assert similar("modell-70b", [*sizes, "model-large-70b"], begins, most=3, likeness=0.6)[0] == "model-large-70b"
    assert nearest("modell-70b", [*sizes, "model-large-70b"]).startswith("did you mean model-large-70b, ")


def test_names_that_begin_as_the_word_are_all_that_is_meant():
    assert nearest("model-9", SIZES) == "did you mean model-90b, model-91b, model-92b?"
    assert one_like("-97", SIZES) == "expected one like model-97b"


@given(st.sampled_from(SIZES), st.integers(0, 6), st.sampled_from("xyz"))
def test_a_name_with_one_wrong_letter_is_found(name: str, place: int, letter: str):
    """Among the few that a message has room for."""
    wrong = name[:place] + letter + name[place + 1 :]
    found = similar(wrong, SIZES, begins, most=3, likeness=0.6)
    assert 1 <= len(found) <= 3 and (name in found or place > 5)


def test_two_letters_may_have_one_wrong():
    assert similar("tq", ["tp", "pipeline"], begins, most=3, likeness=0.6) == ["tp"]
    assert similar("qq", ["tp", "pipeline"], begins, most=3, likeness=0.6) == []


def test_nothing_like_it_lists_what_there_is():
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    with pytest.raises(InputError, match="^colour 'zzz'") as told:
        check_known("colour", "zzz", ["red", "green"])
    assert "red" in str(told.value) and "green" in str(told.value) and told.value.problems == (str(told.value),)
    check_known("colour", "red", ["red", "green"])
