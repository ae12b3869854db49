"""Writes the table of limits in docs/security.md from the limits themselves.

python scripts/make_limits_docs.py           write the table
python scripts/make_limits_docs.py --check   exit 1 when it is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.server.limits import limit_fields

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
BEGIN, END = "<!-- limits: made by `make docs` -->", "<!-- end of limits -->"


def table() -> str:
    rows = ["| option | default | at most | what is bounded, and what is answered above it |", "|---|---|---|---|"]
    for field in limit_fields():
        most = field.metadata["most"]
        rows.append(
            f"| `--{field.name.replace('_', '-')}` | {_shown(field.name, field.default)} "
            f"| {'' if most is None else _shown(field.name, most)} | {field.metadata['help']} |"
        )
    return "\n".join(rows)


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
            if value % size == 0:
                return f"{value // size:,.0f} {unit}"
    if name.endswith("_seconds"):
        return f"{value:g} s"
    return f"{value:,}"


def page(text: str) -> str:
    """The page with the table as it should be."""
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    assert found, f"{PAGE.name} has no {BEGIN}"
    assert ended, f"{PAGE.name} has no {END}"
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    made = page(text)
    if "--check" in sys.argv[1:]:
        if made != text:
            print(f"{PAGE} is stale: run make docs", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
