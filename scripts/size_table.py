"""Question: which files and functions are over budget? Prints them; never fails, because a budget is for people.

    python scripts/size_table.py [FOLDER ...]      default: src/octavo native benchmarks scripts

Budgets: file 400 lines, function 60 lines, parameters 6 (self and cls not counted). C++ is counted by lines only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES, FUNCTION_LINES, PARAMETERS = 400, 60, 6
FOLDERS = ("src/octavo", "native", "benchmarks", "scripts")
SUFFIXES = (".py", ".h", ".cpp")

Row = tuple[str, int, str, str]  # what, how many, of what, where


def rows_of(path: Path, shown: str) -> Iterator[Row]:
    text = path.read_text()
    num_lines = text.count("\n")
    if num_lines > FILE_LINES:
        yield ("file", num_lines, "lines", shown)
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        where = f"{shown}:{node.lineno} {node.name}"
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES:
            yield ("function", length, "lines", where)
        arguments = node.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        num_parameters = len([name for name in names if name not in ("self", "cls")])
        if num_parameters > PARAMETERS:
            yield ("function", num_parameters, "parameters", where)


def size_table(folders: list[str]) -> tuple[list[Row], int, int]:
    """(rows over budget, files read, lines read)."""
    rows: list[Row] = []
    num_files, num_lines = 0, 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                num_files += 1
                num_lines += path.read_text().count("\n")
                rows += rows_of(path, str(path))
    return sorted(rows, key=lambda row: (row[0], row[2], -row[1])), num_files, num_lines


def main(arguments: list[str]) -> int:
    rows, num_files, num_lines = size_table(arguments or [folder for folder in FOLDERS if Path(folder).is_dir()])
    print(f"budgets: file {FILE_LINES} lines, function {FUNCTION_LINES} lines, {PARAMETERS} parameters")
    for kind, count, unit, where in rows:
        print(f"  {kind:<8} {count:>5} {unit:<10} {where}")
    print(f"{num_files} files, {num_lines:,} lines, {len(rows)} over budget")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
