"""From a model's files to what an engine needs. Every refusal is a ModelFileError that names the file.

Program, source of its parameters and tokenizer come checked against each other, so that an executor meets no surprise.
What a server needs is less: see `front`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from octavo.errors import InternalError, ModelFileError
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.dequantize import dequantize
from octavo.loading.fake_tokenizer import BOS_TOKEN, EOS_TOKEN, FAKE_CHAT_TEMPLATE, FakeTokenizer
from octavo.loading.fingerprint import fingerprint
from octavo.loading.front import folder_template, gguf_template
from octavo.loading.gguf import GGUFFile, printable
from octavo.loading.gguf_tokenizer import special_token_texts, token_id_key, tokenizer_from_gguf
from octavo.loading.json_file import read_json_object
from octavo.loading.json_tokenizer import special_token_names, tokenizer_from_folder
from octavo.loading.model_files import ModelFiles
from octavo.loading.safetensors_files import INDEX_NAME, SafetensorsFiles
from octavo.loading.tokenizer import TokenizerLike
from octavo.loading.weights import CheckpointSource
from octavo.models.registry import ModelFamily, family_for_gguf, family_for_hf
from octavo.program.ops import Program
from octavo.program.parameters import ParameterSource

T = TypeVar("T")
MAX_ROPE_FACTORS: Final = 4096
FAKE_CONTEXT_LENGTH: Final = 2048  # tokens, where no other is asked for

# What chat formats end a turn with. One counts where it is a control token and the file's own template writes it.
_TURN_ENDS: Final = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|return|>",
)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What is told of a model, without weights. Plain data."""

    name: str
    kind: str  # "gguf", "folder", "fake"
    context_length: int  # tokens the model was trained for
    vocab_size: int  # of the logits; may exceed the tokenizer's
    chat_template: str | None  # jinja source, known to compile
    bos_token: str  # "" where there is none
    eos_token: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]  # every id that ends an answer, ascending


@dataclass(frozen=True, slots=True)
class LoadedModel:
    program: Program
    source: ParameterSource
    tokenizer_factory: Callable[[], TokenizerLike]  # builds it at the first call
    metadata: ModelMetadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def chat_template(self) -> str | None:
        return self.metadata.chat_template

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.metadata.eos_token_ids

    @property
    def context_length(self) -> int:
        return self.metadata.context_length


def load_model(files: ModelFiles) -> LoadedModel:
    """Opens and checks everything; reads no tensor's bytes. Raises ModelFileError."""
    if files.kind == "gguf":
        return _load_gguf(files, _path(files))
    if files.kind == "folder":
        return _load_folder(files, _path(files))
    raise InternalError("the fake model has no weights; its executor needs none")


# -- GGUF


def _load_gguf(files: ModelFiles, path: Path) -> LoadedModel:
    file = GGUFFile.open(path)
    family, config, program = _gguf_program(file)
    source = CheckpointSource(file, family.gguf_names(config), lambda: fingerprint((("gguf", path),), files.home))
    source.check(program.parameters)
    metadata = _gguf_metadata(files, file, program)
    return LoadedModel(program, source, functools.cache(lambda: tokenizer_from_gguf(file)), metadata)


def _gguf_program(file: GGUFFile) -> tuple[ModelFamily, Any, Program]:
    def build() -> tuple[ModelFamily, Any, Program]:
        family = family_for_gguf(file.metadata)
        config = family.gguf_config(file.metadata, tensor_names=file.tensors.keys(), rope_freqs=_rope_freqs(file))
        return family, config, family.trace(config)

    family, config, program = _configured(file.path, build)
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != program.vocab_size:
        raise ModelFileError(
            f"{file.path}: key tokenizer.ggml.tokens: {len(tokens)} tokens for a vocabulary of {program.vocab_size}"
        )
    return family, config, program


def _rope_freqs(file: GGUFFile) -> list[float] | None:
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    if tensor.tensor_type != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > MAX_ROPE_FACTORS:
        raise ModelFileError(f"{file.path}: tensor rope_freqs.weight: it must be F32, of one dimension")
    factors: list[float] = dequantize(file.raw(tensor.name), "F32", tensor.shape).tolist()
    return factors


def _gguf_metadata(files: ModelFiles, file: GGUFFile, program: Program) -> ModelMetadata:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    texts = tokens if isinstance(tokens, list) else []
    eos = token_id_key(file, "eos")
    bos_token, eos_token = special_token_texts(file)
    template = gguf_template(file)
    ends = {eos, token_id_key(file, "eot"), token_id_key(file, "eom")} - {None}
    types = file.metadata.get("tokenizer.ggml.token_type")
    if template is not None and isinstance(types, list) and len(types) == len(texts):
        written = {end for end in _TURN_ENDS if end in template}
        ends |= {i for i, (text, kind) in enumerate(zip(texts, types, strict=True)) if kind == 3 and text in written}
    return ModelMetadata(
        name=files.name,
        kind="gguf",
        context_length=program.max_model_len,
        vocab_size=program.vocab_size,
        chat_template=_checked_template(template, file.path),
        bos_token=bos_token,
        eos_token=eos_token,
        bos_token_id=token_id_key(file, "bos"),
        eos_token_ids=tuple(sorted(end for end in ends if end is not None)),
    )


# -- a folder in Hugging Face's form


def _load_folder(files: ModelFiles, folder: Path) -> LoadedModel:
    family, config, program = _folder_program(folder)
    checkpoint = SafetensorsFiles(folder)
    parts = [("config", folder / "config.json")]
    if (folder / INDEX_NAME).exists():
        parts.append(("index", folder / INDEX_NAME))
    parts += [("weights", file.path) for file in checkpoint.files]
    source = CheckpointSource(checkpoint, family.hf_names(config), lambda: fingerprint(parts, files.home))
    source.check(program.parameters)
    tokenizer_factory = functools.cache(lambda: tokenizer_from_folder(folder))
    metadata = _folder_metadata(files, folder, program, tokenizer_factory())
    return LoadedModel(program, source, tokenizer_factory, metadata)


def _folder_program(folder: Path) -> tuple[ModelFamily, Any, Program]:
    """Reads config.json only; `auto_map` and custom code beside it are data nobody runs."""
    parsed = read_json_object(folder / "config.json")

    def build() -> tuple[ModelFamily, Any, Program]:
        family = family_for_hf(parsed)
        config = family.hf_config(parsed)
        return family, config, family.trace(config)

    return _configured(folder, build)


def _folder_metadata(files: ModelFiles, folder: Path, program: Program, tokenizer: TokenizerLike) -> ModelMetadata:
    if tokenizer.vocab_size > program.vocab_size:
        raise ModelFileError(
            f"{folder}: tokenizer.json has token ids up to {tokenizer.vocab_size - 1}, config.json's vocab_size is "
            f"{program.vocab_size}"
        )
    names = special_token_names(folder)
    ends = set(_folder_end_ids(folder, program.vocab_size))
    if tokenizer.eos_token_id is not None:
        ends.add(tokenizer.eos_token_id)
    return ModelMetadata(
        name=files.name,
        kind="folder",
        context_length=program.max_model_len,
        vocab_size=program.vocab_size,
        chat_template=_checked_template(folder_template(folder), folder),
        bos_token=names.get("bos_token", ""),
        eos_token=names.get("eos_token", ""),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=tuple(sorted(ends)),
    )


def _folder_end_ids(folder: Path, vocab_size: int) -> list[int]:
    """eos_token_id of generation_config.json, or of config.json where the former does not say: one or a list."""
    for name in ("generation_config.json", "config.json"):
        value = read_json_object(folder / name).get("eos_token_id") if (folder / name).exists() else None
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if len(ids) > 64 or not all(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < vocab_size for each in ids
        ):
            raise ModelFileError(
                f"{folder / name}: eos_token_id must be one or up to 64 ids below the vocabulary's size, {vocab_size}"
            )
        return ids
    return []


# -- both


def _checked_template(source: str | None, path: Path) -> str | None:
    """A template that does not compile, or is hostile on its face, is the model file's fault and told at once."""
    if source is not None:
        _configured(path, lambda: ChatTemplate(source))
    return source


def _configured(path: Path, build: Callable[[], T]) -> T:
    """Puts the file's name before a refusal; whatever else hostile numbers provoke becomes one."""
    try:
        return build()
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error.message}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise ModelFileError(
            f"{path}: its configuration makes no model: {type(error).__name__}: {printable(str(error), 200)}"
        ) from error


def _path(files: ModelFiles) -> Path:
    assert files.path is not None, "only the fake model has no path"
    return files.path


def fake_metadata() -> ModelMetadata:
    """Of the model without weights, which has no `LoadedModel`."""
    tokenizer = FakeTokenizer()
    ends = {tokenizer.eos_token_id, *(i for i, text in tokenizer.special_tokens.items() if text == "<|im_end|>")}
    metadata = ModelMetadata(
        name="fake",
        kind="fake",
        context_length=FAKE_CONTEXT_LENGTH,
        vocab_size=tokenizer.vocab_size,
        chat_template=FAKE_CHAT_TEMPLATE,
        bos_token=BOS_TOKEN,
        eos_token=EOS_TOKEN,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=(),
    )
    return replace(metadata, eos_token_ids=tuple(sorted(end for end in ends if end is not None)))
