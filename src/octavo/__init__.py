"""octavo: an LLM inference server whose KV cache lies in blocks. The public names, each imported when first used.

`import octavo` itself costs nothing: no numpy, no tokenizers, no native code until a name needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.llm import LLM
    from octavo.errors import (
        BadRequest,
        ConfigError,
        EngineDead,
        InternalError,
        ModelFileError,
        NotFound,
        OctavoError,
        QueueFull,
        RequestError,
    )
    from octavo.outputs import CompletionOutput, EmbeddingOutput, RequestOutput
    from octavo.pooling_params import PoolingParams
    from octavo.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BadRequest",
    "CompletionOutput",
    "ConfigError",
    "EmbeddingOutput",
    "EngineConfig",
    "EngineDead",
    "InternalError",
    "ModelFileError",
    "NotFound",
    "OctavoError",
    "PoolingParams",
    "QueueFull",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOME_OF = {
    "LLM": "octavo.engine.llm",
    "BadRequest": "octavo.errors",
    "CompletionOutput": "octavo.outputs",
    "ConfigError": "octavo.errors",
    "EmbeddingOutput": "octavo.outputs",
    "EngineConfig": "octavo.config",
    "EngineDead": "octavo.errors",
    "InternalError": "octavo.errors",
    "ModelFileError": "octavo.errors",
    "NotFound": "octavo.errors",
    "OctavoError": "octavo.errors",
    "PoolingParams": "octavo.pooling_params",
    "QueueFull": "octavo.errors",
    "RequestError": "octavo.errors",
    "RequestOutput": "octavo.outputs",
    "SamplingParams": "octavo.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
