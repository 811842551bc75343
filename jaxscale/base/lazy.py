"""Lazy packages: public names are loaded on first use, so that importing a package is cheap.

Public names are the imports of `__init__` below `if TYPE_CHECKING:`. Type checkers read these imports
as code; at run time `public_face` parses the text and runs each import on first use. Names of earlier releases
work for one more release, with a warning (`RENAMED`).
"""

import ast
import importlib
import sys
import warnings
from types import ModuleType
from typing import Any


class PublicFace(ModuleType):
    """Package with public names imported on first use."""

    __all__: list[str]
    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        """Import a public name from its module."""
        home = self._homes.get(name)
        if home is None and not name.startswith("_"):
            return renamed(self.__name__, name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if home == self.__name__:
            value = importlib.import_module(f"{home}.{name}")
        else:
            value = getattr(importlib.import_module(home), name)
        # The method below would omit a public sub-package.
        ModuleType.__setattr__(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, except a sub-module with the name of a public function, which would hide the function."""
        # The import system would bind the sub-module `limits/study.py` in place of the function `limits.study`.
        if not (isinstance(value, ModuleType) and name in self._homes):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Public names, and the attributes of every module object."""
        return sorted({*self.__all__, *(name for name in super().__dir__() if name.startswith("__"))})


def public_face(package: str) -> None:
    """Make a package import each public name on first use.

    Args:
        package: name of the package being imported, `__name__` in `__init__`.
    """
    module = sys.modules[package]
    loader: Any = module.__spec__.loader if module.__spec__ else None
    homes = public_homes(loader.get_source(package))
    module.__dict__.update(_homes=homes, __all__=sorted(homes))
    module.__class__ = PublicFace


def public_homes(source: str) -> dict[str, str]:
    """Full name of the module of each public name; the package itself for a public sub-package.

    Args:
        source: text of an `__init__` with imports of public names below `if TYPE_CHECKING:`.

    Returns:
        Name of the module by public name.
    """
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def loaded(home: str) -> Any:
    """Object of a registry entry `module:name`, imported on demand."""
    module, name = home.split(":")
    return getattr(importlib.import_module(module), name)


RENAMED = {
    "jaxscale.runs_from_pandas": "jaxscale.read_runs",
    "jaxscale.report.figures.latency_against_load": "jaxscale.serving.latency_against_load",
    "jaxscale.report.figures.serving_frontier": "jaxscale.serving.serving_frontier",
    "jaxscale.serving.best_plan": "jaxscale.serving.best_serving_plan",
    "jaxscale.laws.backtest": "jaxscale.laws.backtest_of",
    "jaxscale.laws.check": "jaxscale.laws.checked_law",
    "jaxscale.laws.compare": "jaxscale.laws.compare_forms",
    "jaxscale.laws.document": "jaxscale.laws.law_document",
    "jaxscale.laws.fit": "jaxscale.laws.fit_law",
    "jaxscale.laws.load": "jaxscale.laws.load_law",
    "jaxscale.laws.losses": "jaxscale.laws.losses_of",
    "jaxscale.laws.read": "jaxscale.laws.read_losses",
    "jaxscale.laws.save": "jaxscale.laws.save_law",
    "jaxscale.laws.table": "jaxscale.laws.loss_table",
    "jaxscale.laws.tables": "jaxscale.laws.loss_table_names",
}
"""Public names by those of before."""


def renamed(package: str, name: str) -> Any:
    """Object with the public name of an earlier release; warns of the new name.

    Raises:
        AttributeError: no release had the name.
    """
    present = RENAMED.get(f"{package}.{name}")
    if present is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    old, new = (path.replace("jaxscale.", "js.", 1) for path in (f"{package}.{name}", present))
    warnings.warn(f"{old} is now {new}; the old name goes in 0.3", DeprecationWarning, stacklevel=3)
    module, attribute = present.rsplit(".", 1)
    return getattr(importlib.import_module(module), attribute)
