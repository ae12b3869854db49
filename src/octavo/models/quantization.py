"""What config.json's `quantization_config` may say: nothing, or W8A8 as compressed-tensors writes it.

    int8 weights with one scale a row, symmetric; activations rounded to int8 as they come, one scale a token

Everything else is refused by the field that says it: a checkpoint run in another format than it was made for answers
with text that only looks right.
"""

from __future__ import annotations

from octavo.errors import ModelFileError
from octavo.models.fields import Fields

FORMATS = ("int-quantized",)  # weights as int8 tensors, not packed into words
# What each part of a group must say. `dynamic` and the rest stand beside in every file; what is not here is of no
# consequence for inference (observers, versions).
_WEIGHTS: dict[str, object] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
_ACTIVATIONS: dict[str, object] = {
    "num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True,
}  # fmt: skip


def check_quantization(fields: Fields) -> None:
    """`fields`: config.json. Raises ModelFileError unless its linear weights are unquantised or W8A8."""
    quantization = fields.nested("quantization_config")
    if quantization is None:
        return
    method = quantization.text("quant_method")
    if method != "compressed-tensors":
        raise quantization.refusal(
            "quant_method", method, "of quantised safetensors W8A8 by compressed-tensors is read"
        )
    written = quantization.text("format", FORMATS[0])
    if written not in FORMATS:
        raise quantization.refusal("format", written, f"only {', '.join(FORMATS)} is read")
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        nested = quantization.nested(name)
        if nested is not None and nested.values and nested.values.get("format") != "dense":
            raise ModelFileError(f"{quantization.source}: {name} is present; only W8A8 of linear weights is read")
    groups = quantization.nested("config_groups")
    if groups is None or len(groups.values) != 1:
        raise ModelFileError(f"{quantization.source}: config_groups must be one group")
    group = groups.nested(next(iter(groups.values)))
    if group is None:
        raise ModelFileError(f"{groups.source}: its group is null")
    for part, wanted in (("weights", _WEIGHTS), ("input_activations", _ACTIVATIONS)):
        said = group.nested(part)
        if said is None:
            raise ModelFileError(f"{group.source}: {part} is missing; only W8A8 is read")
        for name, value in wanted.items():
            if said.values.get(name) != value:
                raise said.refusal(name, said.values.get(name), f"W8A8 has {value!r}")
    if group.has("output_activations"):
        raise ModelFileError(f"{group.source}: output_activations is present; only W8A8 is read")
