"""What a process holds of its own: files that it maps do not count, and what was swapped out does."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """RssAnon + VmSwap."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "VmSwap:")))
