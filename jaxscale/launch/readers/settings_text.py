"""Parsing of launch files to flat keys and values: TOML, YAML, JSON, Python, or options of a command line."""

import ast
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscale.base.documents import parsed_json, parsed_toml, parsed_yaml, read_text, read_toml
from jaxscale.base.errors import InputError
from jaxscale.models import catalogue_model
from jaxscale.plans.plan import END_STAGES
from jaxscale.runs.schema import BY_NAME
from jaxscale.tables.cells import respelt, translate

FORM = "launch.form"
"""Key that says of which form settings are: `options` of a command line, of which an absent one has its default."""

OPEN = "launch.open"
"""Key of the options whose values are variables that the script does not assign."""

SIZES: Mapping[str, Mapping[str, Any]] = read_toml(Path(__file__).with_name("families.toml"))["sizes"]
"""Settings of the sizes of models that launch files build themselves, by family and column of the runs table."""

LARGEST_LAUNCH_FILE = 2**20
"""Size beyond which a file is no launch file [byte]."""

_OPTION = re.compile(r"""--([A-Za-z][\w.\-]*)(?:[= ]+("[^"]*"|'[^']*'|(?!--)(?!-[A-Za-z])[^\s\\#]+))?""")
_ASSIGNMENT = re.compile(r"""(?<![\w\-$.])([A-Za-z_][\w.]*)=("[^"]*"|'[^']*'|[^\s\\]+)""")


def settings_of(path: Path) -> dict[str, Any]:
    """Settings of a launch file by dotted key, in lower case with underscores.

    Raises:
        InputError: an unreadable file, or a file without settings.
    """
    text = _text(path)
    if path.suffix.lower() == ".py":
        if settings := python_settings(text):
            return settings
        raise InputError(f"{path}: holds no settings; expected assignments or keyword arguments of a configuration")
    problem = "TOML, YAML, JSON or options such as --micro-batch-size 1"
    for parse in _parsers(path, text):
        try:
            tree = parse(text)
        except ValueError as error:
            problem = f"{problem} ({str(error).partition(chr(10))[0]})"
            continue
        if isinstance(tree, Mapping) and tree:
            return flat(tree)
    options = command_line_settings(text)
    if not options:
        raise InputError(f"{path}: holds no settings; expected {problem}")
    return {**options, FORM: "options in part" if has_open_parts(text) else "options"}


def remarks_of(path: Path) -> list[str]:
    """Remarks on a launch file: comments `not expressed` written by `plan --write`, and defaults of shell variables."""
    text = _text(path)
    lines = [line.strip() for line in text.splitlines()]
    told = [line.removeprefix("# ") for line in lines if line.startswith("# not expressed: ")]
    script = "\n".join(line for line in lines if not line.startswith("#"))
    defaults = dict(_DEFAULT.findall(script))
    return told + [f"{name} taken as {value}, unless the environment sets it" for name, value in defaults.items()]


_DEFAULT = re.compile(r"\$\{(\w+):-(\d+)\}")
"""Variables of a shell with a number where the environment sets none."""


def _text(path: Path) -> str:
    return read_text(path, LARGEST_LAUNCH_FILE, "a launch file")


def _parsers(path: Path, text: str) -> list:
    """Parsers to try, by the ending of the file, or else all."""
    parsers = {".toml": [parsed_toml], ".json": [parsed_json], ".yaml": [parsed_yaml], ".yml": [parsed_yaml]}
    # A document has lines `key: value`; a script with options has none.
    is_command = "--" in text and not re.search(r"^\s*[\w.]+\s*:\s", text, re.MULTILINE)
    return parsers.get(path.suffix.lower(), [] if is_command else [parsed_json, parsed_toml, parsed_yaml])


def flat(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested tables by dotted key; lists are values."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}".lower().replace("-", "_")
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


PROGRAMS = (
    ("trl", re.compile(r"\btrl (?:sft|dpo|grpo|rloo)\b|\btrl[./]scripts\b")),
    ("ms-swift megatron", re.compile(r"\bmegatron (?:sft|pt|rlhf)\b")),
    ("ms-swift", re.compile(r"\bswift (?:sft|pt|rlhf)\b")),
    ("torchtune", re.compile(r"\btune run\b(?=(?:[^\n]|\\\n)*--config[= ]+(\S+))")),
    ("verl", re.compile(r"\bverl\.trainer\b")),
    ("openrlhf", re.compile(r"\bopenrlhf\.cli\b")),
    ("litgpt finetune", re.compile(r"\blitgpt finetune\w*(?: +(?!-)(\S+))?")),
    ("litgpt", re.compile(r"\blitgpt pretrain(?: +(?!-)(\S+))?|benchmark_litgpt|litgpt\.")),
)
"""Programs that a command names, by the text that does."""

SEVERAL = ("recompute_modules", "offload_modules", "moe_router_load_balancing_type", "cuda_graph_modules")
"""Options that take several words."""

_MORE = re.compile(r"((?:[ \t]+[a-z_][a-z_0-9]*)+)(?=\s|\\|$)")


def command_line_settings(text: str) -> dict[str, Any]:
    """Settings of a command line or script: `--name value`, `--name=value`, `--flag` and `name=value`.

    A variable `$NAME` is replaced by the value assigned in the script; without an assignment, the option is left out.
    """
    # Comments and printed text are no settings.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "echo "))]
    text = "\n".join(re.sub(r"""(?<=[\s)])#[^'"]*$""", "", line) for line in lines)
    found: dict[str, Any] = {}
    for name, value in _ASSIGNMENT.findall(text):
        # An array of a shell holds options, found below.
        if not value.startswith("("):
            found[name.lower()] = plain_value(value)
    for match in _OPTION.finditer(text):
        name, value = match[1].lower().replace("-", "_"), match[2]
        # Options with several words end at the next option.
        if name in SEVERAL and value and (more := _MORE.match(text, match.end())):
            value = "+".join([value, *more[1].split()])
        found[name] = plain_value(value) if value else True
    for program, pattern in PROGRAMS:
        if found and (named := pattern.search(text)):
            found.setdefault("program", program)
            if named.groups() and named[1]:
                found.setdefault("model_name", named[1])
    options = {match[1].lower().replace("-", "_") for match in _OPTION.finditer(text)}
    used = {name.lower() for name in re.findall(r"\$\{?(\w+)", text)} - options
    # Nodes and processes are told by the variable, whatever the script does with the value.
    used -= {"nnodes", "nproc_per_node"}
    resolved = {name: value for name, value in _resolved(found).items() if name not in used}
    if unknown := tuple(name for name, value in resolved.items() if value == ""):
        resolved[OPEN] = unknown
    # A variable of the script is no setting beside the option that takes its value.
    return {name: value for name, value in resolved.items() if value != ""}


def has_open_parts(text: str) -> bool:
    """Whether a script passes an unassigned variable to the program, which may hold further options."""
    words = text.replace("\\\n", " ").split()
    # A variable after an option is a value; a lone variable may hold any options.
    for before, word in zip(["", *words], words, strict=False):
        match = re.fullmatch(r"""["']?\$\{?(\w+)(?:\[[@*]\])?\}?["']?""", word)
        is_value = before.startswith("--") or before.endswith("=")
        if match and not is_value and not re.search(rf"\b{match[1]}\+?=", text) and match[1] != "@":
            return True
    return False


def _resolved(found: dict[str, Any]) -> dict[str, Any]:
    """Settings with the variables of the script filled in; settings with unknown variables are left out."""

    def filled(value: Any) -> Any:
        if not (isinstance(value, str) and (match := re.fullmatch(r"\$\{?(\w+)(?::-([^}]*))?\}?", value))):
            return value
        known = found.get(match[1].lower())
        # A single level of variables is filled in; references to further variables stay open.
        if known is None or isinstance(known, str) and known.startswith("$"):
            return plain_value(match[2]) if match[2] else ""
        return known

    return {name: filled(value) for name, value in found.items()}


def python_settings(text: str) -> dict[str, Any]:
    """Settings of a Python configuration, from assignments `config.training.steps = 1` and keyword arguments.

    Keywords of nested calls get dotted keys; a value other than a literal is kept as text.
    The text is parsed, never executed.
    """
    try:
        tree = _with_constants(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[str, Any] = _launcher_settings(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "unsloth":
            found["program"] = "unsloth"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models"):
            family = [*(node.module or "").split("."), *(alias.name for alias in node.names)][2]
            found.setdefault("model.name", family) if family != "common" else None
        if isinstance(node, ast.FunctionDef) and (family := _FAMILY.match(node.name)):
            found.setdefault("model.name", family[0])
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Name | ast.Tuple):
            name = ast.unparse(node.targets[0])
            key = name.split(".", 1)[1] if isinstance(node.targets[0], ast.Attribute) else ""
            _take(node.value, key.lower(), found)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            _take(node.value, "", found)
        elif isinstance(node, ast.Return) and node.value is not None:
            _take(node.value, "", found)
    return found


class _Constants(ast.NodeTransformer):
    """Replaces variables by their literals."""

    def __init__(self, literals: Mapping[str, ast.expr]) -> None:
        self.literals = literals

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Literal of a variable, else the variable."""
        return self.literals.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _with_constants(tree: ast.Module) -> ast.Module:
    """Program with variables replaced by their values, where a single assignment sets a variable to a literal."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        for target in node.targets:
            if isinstance(target, ast.Name):
                assigned.setdefault(target.id, []).append(node.value)
    # A variable with several assignments depends on the flow of the program.
    literals = {name: found[0] for name, found in assigned.items() if len(found) == 1}
    return _Constants({name: node for name, node in literals.items() if isinstance(node, ast.Constant)}).visit(tree)


_FAMILY = re.compile(r"llama3|llama4|qwen3_5|qwen3|deepseek_v3|gpt_oss|kimi_k2_7")
"""Families of torchtitan's registry, with which the names of its functions begin."""

_LAUNCHER = re.compile(r"--(nnodes|nproc[-_]per[-_]node)[ =](\d+)")


def _launcher_settings(text: str) -> dict[str, Any]:
    """Options of the launcher that a comment of a Python configuration names."""
    return {name.replace("-", "_"): int(value) for name, value in _LAUNCHER.findall(text)}


def _take(node: ast.expr, key: str, found: dict[str, Any]) -> None:
    """Store the value of a setting, or of each keyword of a call."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        # A class without arguments is the value of the key, as SelectiveAC.Config().
        if key and (not node.keywords or called.endswith(".Config")):
            found.setdefault(key, called.removesuffix(".Config"))
        if called.endswith("model_registry") and node.args and isinstance(node.args[0], ast.Constant):
            found.setdefault("model.flavor", node.args[0].value)
        for keyword in node.keywords:
            if keyword.arg:
                _take(keyword.value, f"{key}.{keyword.arg}".strip(".").lower(), found)
        return
    # A variable says nothing that its own assignment does not.
    if not key or isinstance(node, ast.Name):
        return
    try:
        value = ast.literal_eval(node)
        found[key] = list(value) if isinstance(value, tuple) else value
    except (ValueError, TypeError, SyntaxError, RecursionError):
        found[key] = ast.unparse(node)


def plain_value(text: str) -> Any:
    """Value from a word: number, truth value, None, or text."""
    # A comma ends a keyword of a call.
    text = text.strip().strip("\"'").rstrip(",")
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


Settings = Mapping[str, Any]
Cells = dict[str, Any]


class ReadSettings:
    """Settings of a file with look-up by key; each setting looked up counts as understood.

    Attributes:
        settings: value by key.
        is_complete: whether absent options have the program's defaults, as on a command line.
        understood: keys looked up so far.
        doubtful: known keys with an unknown value.
        last: key of the last successful look-up.
    """

    def __init__(self, settings: Settings, is_complete: bool = False):
        """Args: settings: value by key; is_complete: whether absent options have the program's defaults."""
        self.settings, self.is_complete = settings, is_complete
        self.understood: set[str] = set()
        self.doubtful: set[str] = set()
        self.last = ""
        self._keys: dict[str, list[str]] = {}
        for key in settings:
            parts = key.split(".")
            # Every suffix of a key is a name, as frameworks nest the options differently.
            for start in range(len(parts)):
                self._keys.setdefault(".".join(parts[start:]), []).append(key)

    def value(self, *names: str) -> Any:
        """Value of the first setting with a key that ends in one of the names; None if absent."""
        found = None
        for name in names:
            for key in self._keys.get(name, ()):
                self.understood.add(key)
                if found is None and self.settings[key] is not None:
                    found, self.last = self.settings[key], key
        return found

    def number(self, *names: str) -> float | None:
        """Value of a setting as a number; None if absent or not a number."""
        return plain_number(self.value(*names))

    def flag(self, *names: str) -> bool | None:
        """Value of a setting as a truth value; if absent, False for complete settings, else None."""
        value = self.value(*names)
        if isinstance(value, str):
            value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(value.lower())
        # An absent flag of a command line is off.
        return bool(value) if value is not None else False if self.is_complete else None

    def word(self, column: str, *names: str, own: Mapping[str, str] | None = None) -> str | None:
        """Value of a setting as a word of a column of the runs table; None for an absent or unknown value.

        Args:
            column: column of the runs table.
            names: last components of the key.
            own: translations of words with a special meaning in the program, by word in lower case.
        """
        value = self.value(*names)
        if not isinstance(value, str) or value.lower() in ("", "auto", "autoselected", "default"):
            return None
        # A name of a hub has its owner before it.
        entry, text = BY_NAME[column], respelt(column, value.rsplit("/", 1)[-1])
        text = (own or {}).get(text.lower(), text)
        meant = entry.words.get(text.lower()) if entry.words else translate(entry.vocabulary, text)
        if meant is None:
            self.doubtful.add(self.last)
        return meant

    def chips(self, each: tuple[str, ...], nodes: tuple[str, ...]) -> float | None:
        """Number of chips: processes per node times nodes [1]; None if unknown."""
        count, hosts = self.number(*each), self.number(*nodes)
        # A launcher without --nnodes starts processes on a single host.
        if hosts is None and "launch.form" in self.settings and not {*nodes} & {*self.settings.get("launch.open", ())}:
            hosts = 1.0
        return count * hosts if count and hosts else None

    def has(self, *names: str) -> bool:
        """Whether any of the settings is present and neither empty nor false."""
        return self.value(*names) not in (None, "", False)


def end_cells(first: float | int, last: float | int, layers: float | int, stages: int) -> Cells:
    """Cells of the number of layers of the first and last pipeline stage; no cells for an even division."""
    # Uneven stages: the earlier stages take the rest.
    even = (math.ceil(layers / stages), math.floor(layers / stages))
    return {} if (first, last) == even else dict(zip(END_STAGES, (first, last), strict=True))


def plain_number(value: Any) -> float | None:
    """Value as a float; None for a value that is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def product(cells: Cells, *names: str) -> float | None:
    """Product of cells; None if a cell is empty."""
    found = 1.0
    for name in names:
        value = plain_number(cells.get(name))
        if value is None:
            return None
        found *= value
    return found


def product_of_degrees(cells: Cells, *names: str) -> float:
    """Product of degrees; an empty degree counts as 1 [1]."""
    found = 1.0
    for name in names:
        found *= plain_number(cells.get(name)) or 1.0
    return found


def known_layers(stated: Any, name: Any) -> float | None:
    """Stated number of layers, else the layers of the named catalogue model, else None [1]."""
    return plain_number(stated) or plain_number((catalogue_model(str(name or "")) or {}).get("n_layers"))


def known_model(name: str) -> str | None:
    """Name of a model in the spelling of the catalogue; None for a model outside of the catalogue."""
    for spelling in (name, name.replace("_", "-"), name.lower().removesuffix("-pretrain")):
        if catalogue_model(spelling) is not None:
            return spelling
    return None


def take_model(cells: Cells) -> None:
    """Change the cell `model` to the spelling of the catalogue, if the catalogue has the model."""
    if name := cells.get("model"):
        text = str(name).strip().rstrip("/")
        cells["model"] = known_model(text) or known_model(text.rsplit("/", 1)[-1]) or name
