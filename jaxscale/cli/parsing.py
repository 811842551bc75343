"""Parsing of command-line arguments into a command, with one-line error messages."""

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tyro

from jaxscale.base.errors import LIKE, InputError, one_like, similar
from jaxscale.base.units import COUNTS

ASSIGNING = ("--set", "--where", "--column", "--plan", "--mode")
"""Options that take any number of words `NAME=VALUE`."""

OTHER_NAMES = {
    **dict.fromkeys(("--gpus", "--n-chips", "--chips", "--num-gpus", "--ngpus", "--world-size"), "--n-gpus"),
    **dict.fromkeys(("--batch", "--batch-size", "--global-batch-size", "--gbs"), "--global-batch"),
    **dict.fromkeys(("--chip", "--device", "--accelerator"), "--gpu"),
    **dict.fromkeys(("--seqlen", "--sequence-length", "--context", "--max-seq-len"), "--seq-len"),
    **dict.fromkeys(("--output", "--output-file"), "--out"),
    **dict.fromkeys(("--figure", "--png", "--svg", "--pdf"), "--plot"),
    "--out": "--report",
}
"""Options as other programs and earlier releases call them."""


ELSEWHERE = (
    *("--model", "--gpu", "--n-gpus", "--global-batch", "--seq-len", "--framework", "--precision", "--set"),
    *("--fit", "--hardware", "--out"),
)
"""Options that mean one thing wherever a command has them: none is a misspelling of another."""

ARGUMENTS = {"n_chips": "n_gpus", "generation_chips": "generation_gpus", "batch": "global_batch"}
"""Arguments in Python that differ from the option of the same meaning, and the option."""


class Listed(NamedTuple):
    """Entry of an argument in the help text of a command.

    Attributes:
        names: names of an option, the long name last; empty for a positional argument.
        label: name and placeholder, for example `--n-gpus N`.
        text: description.
    """

    names: tuple[str, ...]
    label: str
    text: str

    @property
    def is_required(self) -> bool:
        """Whether the argument is mandatory."""
        return self.text.endswith("(required)")


def parse(arguments: Sequence[str], commands: Any, program: str, description: str | None = None) -> Any:
    """Parse arguments to a command; returns None after a request for help, whose text is printed.

    Args:
        arguments: arguments of the process after the words of `program`.
        commands: class of a command, or the union of all classes.
        program: name of the program, followed by the command if known.
        description: first text of the help; by default the docstring of the command.

    Raises:
        InputError: invalid arguments.
    """
    common: dict[str, Any] = {"prog": program, "description": description, "config": (tyro.conf.FlagCreatePairsOff,)}
    refusal = io.StringIO()
    try:
        # Tyro prints a box of several lines; the message here has a line.
        with contextlib.redirect_stderr(refusal):
            return tyro.cli(commands, args=list(_one_by_one(arguments)), **common)
    except SystemExit as stop:
        # Exit code 0: help was printed.
        if not stop.code:
            return None
    if spelled := spelled_in_digits(arguments, one_line(refusal.getvalue())):
        return parse(spelled, commands, program, description)
    name, *command = program.split()
    below = _path(arguments)[: 2 - len(command)]
    # The words may name no command: then the help of the program.
    text = next(text for path in (below, []) if (text := _help_of(path, commands, common)))
    usage = text.partition("\n\n")[0]
    # Words of the usage behind the program.
    path = usage.partition("[")[0].split()[2:]
    words = [*command, *arguments]
    line = (
        _no_command(words, path, usage)
        or _unknown(words, list(listed_in(text)))
        or _missing(words, list(listed_in(text)), path)
        or one_line(refusal.getvalue())
    )
    raise InputError(f"{line} (see {' '.join((name, *path))} --help)") from None


def spelled_in_digits(arguments: Sequence[str], refusal: str) -> list[str]:
    """Arguments with the refused number in digits, a length `8k` as 8192 and `15T` as 15e12; empty for other refusals.

    Args:
        refusal: error message of the parser, in a line.
    """
    refused = re.match(r"(\S+) = '(\d+(?:\.\d+)?)([kKMGBT])' is no (whole )?number", refusal)
    if refused is None:
        return []
    option, digits, prefix, is_whole = refused.groups()
    # Lengths and counts of chips are multiples of powers of two: 8k tokens are 8,192.
    value = float(digits) * COUNTS[prefix.lower()][1 if is_whole else 0]
    if is_whole and not value.is_integer():
        return []
    written, cell = f"{value:.15g}", f"{digits}{prefix}"
    words = list(arguments)
    for place, word in enumerate(words):
        name, _, stated = word.partition("=")
        if name.replace("_", "-") == option and stated == cell:
            words[place] = f"{name}={written}"
        elif word == cell and place and words[place - 1].replace("_", "-") == option:
            words[place] = written
    return words if words != list(arguments) else []


def _help_of(path: Sequence[str], commands: Any, common: dict[str, Any]) -> str:
    """Help text of a command; empty where there is none of these words."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
        try:
            tyro.cli(commands, args=[*path, "--help"], **common)
        except SystemExit as stop:
            return "" if stop.code else shown.getvalue()
    return ""


def _one_by_one(arguments: Sequence[str]) -> Iterator[str]:
    """Arguments with an option of several values repeated before each word `NAME=VALUE`."""
    option = ""
    for place, word in enumerate(arguments):
        if word.startswith("-"):
            option = word if word in ASSIGNING else ""
        # The word right behind the option needs no repetition.
        elif option and arguments[place - 1] != option:
            if "=" not in word:
                # A word without `=` ends the list of assignments.
                option = ""
            else:
                yield option
        yield word


def _path(arguments: Sequence[str]) -> list[str]:
    """Words before the first option, at most two: a command and a subcommand."""
    before = next((place for place, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[: min(before, 2)])


def listed_in(text: str) -> Iterator[Listed]:
    """Arguments listed in a help text of tyro."""
    entries: list[list[str]] = []
    for line in text.splitlines():
        # In ASCII, box lines are blanks.
        row = line.rstrip("│ ")
        if re.match(r"[│ ] \S", row):
            entries.append(re.split(r"\s{2,}", row[2:], maxsplit=1))
        elif entries and re.match(r"[│ ] {3,}\S", row):
            entries[-1].append(row[2:].strip())
    for label, *told in entries:
        names = tuple(re.findall(r"(?<!\S)--?[A-Za-z][\w-]*", label))
        yield Listed(names, label, " ".join(told))


def _options(arguments: Sequence[str]) -> list[str]:
    """Options among the words of a command line, as help spells them."""
    words = (word.partition("=")[0] for word in arguments)
    # Tyro takes underscores in options as hyphens.
    return [word.replace("_", "-") for word in words if re.match(r"--?[A-Za-z]", word)]


def _no_command(arguments: Sequence[str], path: Sequence[str], usage: str) -> str:
    """Error for an unknown or missing subcommand; empty for a valid subcommand."""
    choices = re.search(r"\{([\w,-]+)\}", usage)
    if choices is None:
        return ""
    names, words = choices[1].split(","), arguments[len(path) :]
    # An option of the program, as --help.
    if not path and words[0].startswith("-"):
        return ""
    if not words or words[0].startswith("-"):
        return f"{' '.join(path)} needs a command; expected one of {', '.join(names)}"
    return f"command {' '.join((*path, words[0]))!r} is unknown; {one_like(words[0], names)}"


def _unknown(arguments: Sequence[str], listed: Sequence[Listed]) -> str:
    """Error for the first unknown option; empty where all options are known."""
    known = [name for one in listed for name in one.names]
    for option in _options(arguments):
        if option in known:
            continue
        # A name of a known program before any likeness of spelling.
        meant = [OTHER_NAMES.get(option, "")]
        if meant[0] not in known and option in ELSEWHERE:
            return f"{option} is an option of other commands, not of this one"
        if meant[0] not in known:
            long = [name for name in known if name.startswith("--")]
            meant = similar(option, long, lambda other, begun: other.startswith(begun), most=1, likeness=LIKE)
        return f"{option} is unknown" + (f"; did you mean {meant[0]}?" if meant else "")
    return ""


def _missing(arguments: Sequence[str], listed: Sequence[Listed], path: Sequence[str]) -> str:
    """Which options are missing; empty where none are."""
    given = set(_options(arguments))
    lacking = [one.label for one in listed if one.names and one.is_required and not given & set(one.names)]
    return f"{' '.join(path)} needs {', '.join(lacking)}" if lacking else ""


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """Message about an argument of a function, with the option that stated it, as typed on the command line.

    Args:
        message: a refusal, such as `price = -1 is out of range` or `RolloutBatch.answers = 0 ...`.
        arguments: arguments of the process.
    """
    begun = re.match(r"(?:[A-Z]\w*\.)?([a-z]\w*)(?: =)? '?([^\s',;]+)", message)
    if begun is None or message[begun.end(1) :][:2] not in (" =", " '"):
        return message
    stated: dict[str, str] = {}
    for word, behind in zip(arguments, (*arguments[1:], ""), strict=True):
        option, is_joined, value = word.partition("=")
        if option.startswith("--"):
            stated[option] = value if is_joined else behind
    argument = f"-{ARGUMENTS.get(begun[1], begun[1])}".replace("_", "-")
    # The value tells the precision of an engine from that of training, and a model from a model that rewards.
    holding = [option for option in stated if begun[2] in stated[option].split(",")]
    ending = [option for option in holding if option.replace("_", "-").endswith(argument)]
    # A number may be written in another way: 1e30, 1e+30.
    others = holding if begun[2][0].isalpha() else [o for o in stated if o.replace("_", "-") == f"-{argument}"]
    found = next(iter((*ending, *others)), "")
    return f"{found}{message[begun.end(1) :]}" if found else message


_DIGITS = "; expected digits, as 4096, or 4k"

_NUMBER = "; expected a number without a unit, as 0.05, 15e12 or 15T"

REWRITTEN = (
    (r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)", r"\1 = \2 is no whole number" + _DIGITS),
    (r"Error parsing (\S+): could not convert string to float: (.*)", r"\1 = \2 is no number" + _NUMBER),
    (
        r"Error parsing (\S+): no type matching \{None\}\|INT could be instantiated from \['(.*)'\].*",
        r"\1 = '\2' is no whole number" + _DIGITS,
    ),
    (
        r"Error parsing (\S+): no type matching \{None\}\|FLOAT could be instantiated from \['(.*)'\].*",
        r"\1 = '\2' is no number" + _NUMBER,
    ),
    (
        r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]",
        r"\1 = \2 is no number" + _NUMBER,
    ),
    (r"Missing from jaxscale (.*?): (\S+) .*", r"\1 needs \2"),
    (r"Missing value for argument '(\S+)'\. Expected 1 values\.", r"\1 needs a value"),
    (r"invalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)\.", r"\2 = \1; expected one of \3"),
    (r"Unrecognized options: (.*)", r"not understood: \1"),
)
"""Messages of tyro, as patterns, and how they are said here."""


def one_line(box: str) -> str:
    """Error message of tyro in a line, without the box and the help text."""
    lines: list[str] = []
    for line in box.splitlines()[1:]:  # the first line is the title of the box
        # Tyro colours a box where stdout is a terminal.
        text = re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╰╯ ")
        is_rule = not text.strip("─- ")
        if is_rule and lines or text.startswith(("Available subcommands", "Arguments are applied")):
            break
        if not is_rule:
            lines.append(text)
    message = " ".join(lines)
    for pattern, said in REWRITTEN:
        message = re.sub(pattern, said, message)
    return message or "the arguments are not valid"
