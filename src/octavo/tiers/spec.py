"""From what `--kv-tier` says to an open tier. Refuses, at the start, a tier that could never hold one block."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.protocols import Tier
from octavo.errors import ConfigError
from octavo.tier_spec import TierSpec, parse_tiers
from octavo.tiers.chain import TierChain
from octavo.tiers.disk import STAGING_BYTES, DiskTier
from octavo.tiers.disk_store import least_bytes
from octavo.tiers.ram import RamTier, ram_charge


def open_tier(specs: Sequence[str], *, block_bytes: int, staging_bytes: int = STAGING_BYTES) -> Tier | None:
    """The tier, or the chain of two, for payloads of `block_bytes`; None where `specs` is empty.

    Raises ConfigError (param "kv_tier") for text that is no tier, a SIZE
    too small for a block, and a PATH that cannot be used.
    """
    parsed = parse_tiers(specs)
    for spec in parsed:
        _check_size(spec, block_bytes)
    if not parsed:
        return None
    if parsed[-1].kind == "ram":
        return RamTier(parsed[-1].max_bytes)
    disk = DiskTier(parsed[-1].path, parsed[-1].max_bytes, block_bytes=block_bytes, staging_bytes=staging_bytes)
    return TierChain(parsed[0].max_bytes, disk) if len(parsed) == 2 else disk


def _check_size(spec: TierSpec, block_bytes: int) -> None:
    least = ram_charge(block_bytes) if spec.kind == "ram" else least_bytes(block_bytes)
    if spec.max_bytes < least:
        raise ConfigError(
            f"kv_tier: a {spec.kind} tier of {spec.max_bytes:,} bytes is too small for this model's blocks of "
            f"{block_bytes:,} bytes; give it at least {-(-least // 1024)}KiB",
            param="kv_tier",
        )
