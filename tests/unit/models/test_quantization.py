"""`quantization_config`: W8A8 passes, everything else is refused by the field that says it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo.errors import ModelFileError
from octavo.models.fields import Fields
from octavo.models.quantization import check_quantization
from support.hf_folder import W8A8_CONFIG

GROUP = ("config_groups", "group_0")


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """W8A8's configuration with another value at `path`; ... takes the field out."""
    config = copy.deepcopy(W8A8_CONFIG)
    at: Any = config
    for name in path[:-1]:
        at = at[name]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return config


def check(quantization: object) -> None:
    check_quantization(Fields({"quantization_config": quantization}, "config.json"))


def test_none_and_w8a8_pass() -> None:
    check_quantization(Fields({}, "config.json"))
    check(None)
    check(W8A8_CONFIG)
    check(changed(("format",), ...))
    check(changed(("sparsity_config",), {"format": "dense"}))
    check(changed((*GROUP, "weights", "observer"), "mse"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("quant_method",), "awq"),
        (("quant_method",), ...),
        (("format",), "pack-quantized"),
        (("format",), "float-quantized"),
        (("kv_cache_scheme",), {"num_bits": 8}),
        (("sparsity_config",), {"format": "sparse-24-bitmask"}),
        (("transform_config",), {"config_groups": {}}),
        (("config_groups",), ...),
        (("config_groups",), {}),
        (("config_groups",), {"group_0": {}, "group_1": {}}),
        (("config_groups",), 7),
        (GROUP, None),
        (GROUP, "W8A8"),
        ((*GROUP, "weights"), None),
        ((*GROUP, "input_activations"), None),
        ((*GROUP, "output_activations"), {"num_bits": 8}),
        ((*GROUP, "weights", "num_bits"), 4),
        ((*GROUP, "weights", "type"), "float"),
        ((*GROUP, "weights", "strategy"), "group"),
        ((*GROUP, "weights", "strategy"), "tensor"),
        ((*GROUP, "weights", "symmetric"), False),
        ((*GROUP, "weights", "num_bits"), ...),
        ((*GROUP, "input_activations", "dynamic"), False),
        ((*GROUP, "input_activations", "strategy"), "tensor"),
        ((*GROUP, "input_activations", "symmetric"), False),
        ((*GROUP, "input_activations", "num_bits"), 16),
    ],
)
def test_everything_else_is_refused_by_its_field(path: tuple[str, ...], value: Any) -> None:
    name = "group" if path == GROUP else path[-1]
    with pytest.raises(ModelFileError, match=rf"quantization_config|config_groups.*{name}") as caught:
        check(changed(path, value))
    assert name in caught.value.message


def test_a_configuration_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ModelFileError, match="quantization_config"):
        check("w8a8")
