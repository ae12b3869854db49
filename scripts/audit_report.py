"""What pip-audit found, line by line, and an exit code: 0 nothing, 1 something is known or a package was passed over, 2
the service knows none of the packages, and so is no database.

python scripts/audit_report.py REPORT SERVICE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OWN = "octavo"  # not published where the databases look, and not theirs to judge


def lines(report: dict[str, Any]) -> tuple[list[str], int]:
    """(what to print, number of packages that were looked up)."""
    found, num_asked = [], 0
    for package in report["dependencies"]:
        if package["name"] == OWN:
            continue
        if "skip_reason" in package:
            found.append(f"{package['name']}: not looked up: {package['skip_reason']}")
            continue
        num_asked += 1
        for hole in package["vulns"]:
            names = ", ".join([hole["id"], *hole.get("aliases", ())])
            fixed = ", ".join(hole.get("fix_versions", ())) or "nothing yet"
            found.append(f"{package['name']} {package['version']}: {names}; fixed in {fixed}")
    return found, num_asked


def main(path: str, service: str) -> int:
    found, num_asked = lines(json.loads(Path(path).read_text()))
    if not num_asked:
        print(f"audit: {service} looked up none of the packages")
        return 2
    for line in found:
        print(f"audit: {line}")
    if not found:
        print(f"audit: nothing is known against {num_asked} packages ({service})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
