"""Random words in the columns that have a vocabulary: one is taken only if the vocabulary says so."""

import random
import re
from collections.abc import Callable

import pytest

from jaxscale.runs.schema import COLUMNS
from jaxscale.serving.serving_table import SERVING_COLUMNS
from jaxscale.tables.cells import YES_OR_NO, Column, Names, parse_cells, spellings, vocabularies

N_WORDS = 2000
OPEN = ("framework", "status")
"""Columns of names of people's own: any word is one."""

CLOSED = [
    column
    for column in (*COLUMNS, *SERVING_COLUMNS)
    if column.name not in OPEN
    and (column.kind in ("word", "words") or column.words or column.name in (*spellings(), "sequence_parallel"))
]
IDS = [f"{column.name}-{place}" for place, column in enumerate(CLOSED)]
JUNK = (
    "banana",
    "x",
    "bf16",
    "mixed",
    "16",
    "fp8",
    "true",
    "none",
    "all",
    "2",
    "lp",
    "no",
    "ShardingStrategy",
    "flash",
)
KNOWN_WRONG = ("banana bf16", "bf16 banana", "16-mixde", "mlpp", "flash22", "fp4-whatever", "fulll", "zero-4", "yess")
NAMES = Names()


def mutated(draw: random.Random, word: str) -> str:
    """A word with a letter more or less, others beside it, its letters in another order, or in another case."""
    place = draw.randrange(len(word) + 1)
    apart = draw.choice(" -_+,;/.")
    letter = draw.choice("abcdefghijklmnopqrstuvwxyz0123456789_- .+")
    return draw.choice(
        [
            word[:place] + letter + word[place:],
            word[:place] + word[place + 1 :],
            draw.choice(JUNK) + apart + word,
            word + apart + draw.choice(JUNK),
            word + draw.choice(JUNK),
            "".join(draw.sample(word, len(word))),
            word.upper() + draw.choice(["", " ", "-"]),
        ]
    )


def plain(word: str) -> str:
    """A word as spellings have it: small, blanks and hyphens as underscores, without the name of an enumeration."""
    return re.sub(r"[-_ ]+", "_", re.sub(r"^([A-Z][a-z]+){2,}\.", "", word.strip()).lower()).strip("_")


def words_of(column: Column) -> set[str]:
    """All words that a column may hold, in the form of `plain`."""
    own = YES_OR_NO if column.kind == "flag" else column.words or vocabularies().get(column.vocabulary, ())
    return {plain(word) for word in (*own, *spellings().get(column.name, ()))}


def is_stated(column: Column, word: str) -> bool:
    """Whether a vocabulary, a spelling or a stated pattern has a word."""
    known = words_of(column)
    if plain(word) in known or column.kind == "integer" and re.fullmatch(r"[0-3](\.0*)?", word.strip()):
        return True
    parts = [part for part in re.split(r"[+,;/]", word)]
    if column.kind == "words":
        meant = {spellings().get(column.name, {}).get(plain(part), plain(part)) for part in parts}
        return {plain(part) for part in parts} <= known and ("none" not in meant or len(meant) == 1)
    if column.vocabulary == "precisions":
        usage = {*vocabularies()["precision_parts"]["words"]}
        formats = {re.sub("^(mx|nv)", "", name) for name in {*known, *vocabularies()["number_formats"]}} | known
        parts = [part for part in re.split(r"[-_ +/.,()]+", word.lower()) if part]
        parts = [re.sub("(?<=fp8)(e4m3|e5m2)(fn)?$", "", part) for part in parts]
        return {*parts} <= formats | usage and bool({*parts} & formats)
    return False


def taken(column: Column, words: list[str]) -> list[str]:
    """Words that a cell of a column may hold."""
    values = parse_cells(column, words, NAMES).values
    return [word for word, value in zip(words, values, strict=True) if value is not None and word.strip()]


@pytest.mark.parametrize("column", CLOSED, ids=IDS)
def test_a_word_is_understood_whole_or_refused(column: Column):
    draw = random.Random(7)
    own = sorted(YES_OR_NO if column.kind == "flag" else column.words or vocabularies().get(column.vocabulary, ()))
    words = [*own, *spellings().get(column.name, ())]
    tried = [mutated(draw, draw.choice(words)) for _ in range(N_WORDS)]
    understood = taken(column, tried)
    assert [word for word in understood if not is_stated(column, word)] == []
    assert understood and taken(column, list(KNOWN_WRONG)) == []
    assert taken(column, words) == words, "a word of the vocabulary itself is refused"


@pytest.mark.parametrize("sloppy", [lambda word, known: any(one in word for one in known), lambda word, known: True])
def test_the_fuzz_sees_a_sloppy_reader(sloppy: Callable[[str, set[str]], bool]):
    """Negative control: a reader that looks for a word within the cell takes words that no vocabulary has."""
    column = next(column for column in CLOSED if column.name == "precision")
    known = words_of(column)
    assert any(sloppy(word, known) and not is_stated(column, word) for word in KNOWN_WRONG)


def test_a_word_says_what_it_means_or_is_asked_about():
    by_name = {column.name: column for column in COLUMNS}
    problems = parse_cells(by_name["offload"], ["true", "none+optimizer", "banana"], NAMES).problems
    assert "expected activations or optimizer" in problems[0] and "expected one or the other" in problems[1]
    assert "'banana' is not known; expected some of none" in problems[2]
    assert parse_cells(by_name["zero_stage"], ["ShardingStrategy.FULL_SHARD"], NAMES).values == [3.0]
    assert "not a number" in parse_cells(by_name["zero_stage"], ["banana.FULL_SHARD"], NAMES).problems[0]
    assert parse_cells(by_name["precision"], ["torch.bfloat16"], NAMES).values == ["torch.bfloat16"]
