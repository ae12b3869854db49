"""What a server reads of a model's files: how text becomes tokens, and messages a prompt. A third of a start's work.

Refuses to read configuration or weights, which the engine checks meanwhile, and to compile the chat template, which is
code from a file and whose compiling is its renderer's matter. Every refusal is a ModelFileError that names the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ModelFileError
from octavo.loading.fake_tokenizer import BOS_TOKEN, EOS_TOKEN, FAKE_CHAT_TEMPLATE, FakeTokenizer
from octavo.loading.gguf import GGUFFile
from octavo.loading.gguf_tokenizer import special_token_texts, tokenizer_from_gguf
from octavo.loading.json_file import read_bounded, read_json_object
from octavo.loading.json_tokenizer import special_token_names, tokenizer_from_folder
from octavo.loading.model_files import ModelFiles
from octavo.loading.tokenizer import TokenizerLike


@dataclass(frozen=True, slots=True)
class Front:
    tokenizer: TokenizerLike  # what encoding needs is built, or refused, at the first `encode`
    chat_template: str | None  # jinja source as the file has it
    bos_token: str  # "" where there is none
    eos_token: str


def load_front(files: ModelFiles) -> Front:
    """Raises ModelFileError."""
    if files.kind == "fake":
        return Front(FakeTokenizer(), FAKE_CHAT_TEMPLATE, BOS_TOKEN, EOS_TOKEN)
    assert files.path is not None, "only the fake model has no path"
    if files.kind == "gguf":
        file = GGUFFile.open(files.path)
        return Front(tokenizer_from_gguf(file), gguf_template(file), *special_token_texts(file))
    names = special_token_names(files.path)
    marks = names.get("bos_token", ""), names.get("eos_token", "")
    return Front(tokenizer_from_folder(files.path), folder_template(files.path), *marks)


def gguf_template(file: GGUFFile) -> str | None:
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelFileError(f"{file.path}: key tokenizer.chat_template: it must be a STRING")
    return template


def folder_template(folder: Path) -> str | None:
    """chat_template.jinja, or chat_template of tokenizer_config.json: a text, or named ones with a "default"."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return read_bounded(path, 1 << 20).decode("utf-8")
        except UnicodeDecodeError:
            raise ModelFileError(f"{path}: not valid UTF-8") from None
    path = folder / "tokenizer_config.json"
    value = read_json_object(path).get("chat_template") if path.exists() else None
    if isinstance(value, list):
        named: Mapping[Any, Any] = {each.get("name"): each.get("template") for each in value if isinstance(each, dict)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelFileError(f"{path}: chat_template must be a text, or a list of named ones with a default")
    return value
