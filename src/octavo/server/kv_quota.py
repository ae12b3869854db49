"""The share of the KV cache that a key's requests may hold together, seen from one request.

Refuses (BadRequest) samples of one request that could take more than that, for it could not wait for itself; several
requests are the scheduler's matter (core/quotas.py), which has them wait. One sample always passes.
"""

from __future__ import annotations

from octavo.engine.info import EngineInfo
from octavo.errors import BadRequest
from octavo.sampling_params import SamplingParams
from octavo.server.key_terms import KeyTerms


def check_kv_share(terms: KeyTerms, num_prompt_tokens: int, sampling: SamplingParams, info: EngineInfo) -> None:
    """Raises BadRequest."""
    if terms.kv_share is None or sampling.num_samples == 1:
        return
    room = max(info.max_model_len - num_prompt_tokens, 0)
    answer = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
    each = -(-answer // info.block_size) + 1  # the block that prompt and answer share is copied
    needed = num_prompt_tokens // info.block_size + sampling.num_samples * each
    most = max(int(terms.kv_share * info.num_blocks), 1)
    if needed > most:
        field = sampling.num_samples_field
        raise BadRequest(
            f"{field} {sampling.num_samples} with answers of up to {answer} tokens may take {needed} blocks, and this "
            f"key may hold {most}; lower {field} or max_tokens",
            param=field,
        )
