"""Text of compiled programs (HLO): computations, instructions, and how often each runs in a step."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jaxscale.base.errors import InputError

WIDTHS = {"pred": 1.0, "token": 0.0, "opaque": 0.0, "s4": 0.5, "u4": 0.5, "s2": 0.25, "u2": 0.25}
"""Bytes of types whose name does not tell their bits [byte]."""

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_ON_CHIP = "S(1)"
_CALLED = {name: re.compile(name + r"=%?([\w.\-]+)") for name in ("body", "calls", "to_apply")}
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TURNS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Instruction(NamedTuple):
    """One instruction of a computation.

    Attributes:
        name: unique in the program.
        shape: type of the result as text; of a tuple the types of its parts.
        opcode: operation.
        operands: names of the instructions that it reads.
        inside: text between its parentheses.
        attributes: text behind its operands.
        is_root: whether its result is that of the computation.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    inside: str
    attributes: str
    is_root: bool


class ProgramText(NamedTuple):
    """A compiled program.

    Attributes:
        computations: instructions by name, of each computation by name.
        entry: name of the computation that runs first.
    """

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


def program_text(text: str) -> ProgramText:
    """A program from its text.

    Raises:
        InputError: the text holds no program.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            header = _HEADER.match(line)
            if header is not None and " = " not in line.split("{")[0]:
                current = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
        elif current is not None:
            inside, attributes = _split(found[5])
            names = tuple(re.findall(r"%([\w.\-]+)", inside))
            current[found[2]] = Instruction(
                found[2], found[3], found[4], names, inside, attributes, is_root=found[1] is not None
            )
    if not entry:
        raise InputError("the text holds no compiled program; expected that of `Compiled.as_text()`")
    return ProgramText(computations, entry)


def _split(text: str) -> tuple[str, str]:
    """Operands and attributes of an instruction, from the text behind its opening parenthesis."""
    depth = 1
    for place, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if not depth:
            return text[:place], text[place + 1 :]
    return text, ""


def array_bytes(shape: str, in_memory: bool = False) -> list[float]:
    """Bytes of each array of a type, those of a tuple one by one [byte].

    Args:
        shape: type as text.
        in_memory: nothing for arrays that a TPU keeps in the memory of its core.
    """
    return [
        0.0 if in_memory and _ON_CHIP in layout else _width(kind) * math.prod(map(int, filter(None, sizes.split(","))))
        for kind, sizes, layout in _ARRAY.findall(shape)
    ]


def _width(kind: str) -> float:
    bits = re.search(r"\d+", kind)
    return WIDTHS.get(kind, int(bits[0]) / 8 if bits else 4.0)


def called(instruction: Instruction, how: str) -> str | None:
    """Name of the computation that an instruction calls as its `body`, or by `calls` or `to_apply`."""
    found = _CALLED[how].search(instruction.attributes)
    return found[1] if found else None


def executed(program: ProgramText) -> Iterator[tuple[Instruction, str, float]]:
    """Instructions that run by themselves, with their computation and how often each runs [1].

    Loops multiply by their turns, once where the compiler does not know them; of branches the longest counts.
    """
    yield from _of_computation(program, program.entry, 1.0)


def _of_computation(program: ProgramText, name: str, times: float) -> Iterator[tuple[Instruction, str, float]]:
    for one in program.computations.get(name, {}).values():
        if one.opcode == "while":
            turns = _TURNS.search(one.attributes)
            body = called(one, "body")
            if body is not None:
                yield from _of_computation(program, body, times * (float(turns[1]) if turns else 1.0))
        elif one.opcode == "conditional":
            branches = _BRANCHES.search(one.attributes)
            names = re.findall(r"[\w.\-]+", branches[1]) if branches else []
            longest = max(names, key=lambda branch: len(program.computations.get(branch, {})), default=None)
            if longest is not None:
                yield from _of_computation(program, longest, times)
        elif one.opcode == "call":
            yield from _of_computation(program, called(one, "to_apply") or "", times)
        elif one.opcode == "async-start":
            yield from _of_computation(program, called(one, "calls") or "", times)
        else:
            yield one, name, times
