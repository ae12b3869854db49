"""From an `EngineConfig` to an `Engine`. The only module that knows every executor, loader and tier.

Refuses to start what cannot run: an option that clashes is a ConfigError, a file that is wrong a ModelFileError, both
before memory is taken for the KV cache. What it decides for an option left open stands in `EngineInfo`, and what it
lowered in its `warnings`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.config import EngineConfig, forced_isa, octavo_home
from octavo.core.protocols import Executor
from octavo.core.scheduler import Scheduler, SchedulerConfig
from octavo.engine.engine import Engine
from octavo.engine.fake_model import FAKE_CONTEXT_LENGTH, fake_next_token
from octavo.engine.info import EngineInfo
from octavo.engine.kv_budget import KVBudget, plan_kv_budget
from octavo.engine.memory import available_bytes
from octavo.errors import ConfigError
from octavo.loading.chat_template import ChatTemplate
from octavo.loading.fake_tokenizer import FAKE_CHAT_TEMPLATE, FakeTokenizer
from octavo.loading.tokenizer import TokenizerLike
