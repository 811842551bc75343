"""Write THIRD_PARTY.md: source and licence of every table of the wheel, from data/licences.toml."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "THIRD_PARTY.md"
HEAD = """# Tables of others

jaxscale itself is under Apache-2.0 ([LICENSE](LICENSE)). The tables below come with it. They hold figures of their
sources, re-expressed in the columns that `data/README.md` describes (in an installed copy `jaxscale/_data/README.md`),
which also says of each what was derived, left out or corrected. The licence of a table is that of its source, by its
SPDX name; texts: [Apache-2.0](LICENSE), [BSD-3-Clause](LICENSES/BSD-3-Clause.txt),
[CC-BY-4.0](LICENSES/CC-BY-4.0.txt), [MIT](LICENSES/MIT.txt). Copyright is with the authors of the sources.

Written by `scripts/third_party.py` from `data/licences.toml`.
"""


def entry_text(name: str, entry: dict[str, Any]) -> str:
    """Item of the list for one table."""
    note = f" Note: {entry['note']}." if "note" in entry else ""
    return f"- `{name}`, {entry['licence']}: {entry['title']}. Taken from `{entry['revision']}`.{note}"


def third_party_text() -> str:
    """Text of the file."""
    tables = tomllib.loads((ROOT / "data" / "licences.toml").read_text(encoding="utf-8"))["tables"]
    items = [entry_text(name, entry) for name, entry in sorted(tables.items()) if entry["permissive"]]
    return "\n".join([HEAD, *items, ""])


if __name__ == "__main__":
    TARGET.write_text(third_party_text(), encoding="utf-8")
