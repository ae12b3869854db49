"""Tokenizer and chat template of a model, as the server holds them: for `octavo serve` and for batches.

Refuses a template file that cannot be read (ConfigError). Owns nothing: who is given the render workers closes them.
"""

from __future__ import annotations

import asyncio

from octavo.config import octavo_home
from octavo.errors import ConfigError
from octavo.loading import front as fronts
from octavo.loading.front import Front
from octavo.loading.model_files import resolve
from octavo.server.config import ServerConfig
from octavo.server.protocol import TokenizerLike
from octavo.server.template_workers import TemplateWorkers


def load_front(model: str) -> Front:
    """Of files that are here. Raises ModelFileError."""
    return fronts.load_front(resolve(model, home=octavo_home(), download=False))


async def text_parts(front: Front, config: ServerConfig) -> tuple[TokenizerLike, TemplateWorkers | None]:
    """Ready to be used: both have built what they build at first use. Raises ConfigError, ModelFileError."""
    source = _template_source(config, front)
    workers = None
    if source is not None:
        workers = TemplateWorkers(source, bos_token=front.bos_token, eos_token=front.eos_token, limits=config.limits)
    try:
        checks = () if workers is None else (workers.check(),)
        await asyncio.gather(asyncio.to_thread(front.tokenizer.encode, ""), *checks)
    except BaseException:
        if workers is not None:
            await workers.close()
        raise
    return front.tokenizer, workers


def _template_source(config: ServerConfig, front: Front) -> str | None:
    if config.chat_template is None:
        return front.chat_template
    try:
        return config.chat_template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--chat-template {config.chat_template} cannot be read: {reason}", param="chat_template")
