"""Parameters in the file formats of quantised checkpoints, made from float32 ones, for tests of executors."""

from __future__ import annotations

from collections.abc import Mapping

import gguf
import numpy as np
import numpy.typing as npt

from octavo.program.parameters import TensorInfo, TensorType

Float32 = npt.NDArray[np.float32]


class QuantisedSource:
    """Implements `ParameterSource`: matrices whose rows are whole blocks of 32 are held as their `types` say, the
    first name that a parameter's name contains decides; everything else is F32."""

    def __init__(self, arrays: Mapping[str, Float32], types: Mapping[str, TensorType]) -> None:
        self._raw: dict[str, npt.NDArray[np.uint8]] = {}
        self._info: dict[str, TensorInfo] = {}
        self._float32: dict[str, Float32] = {}
        for name, array in arrays.items():
            kind: TensorType = next((t for part, t in types.items() if part in name), "F32")
            if array.ndim != 2 or array.shape[1] % 32:
                kind = "F32"
            which = gguf.GGMLQuantizationType[kind]
            raw = np.ascontiguousarray(gguf.quants.quantize(np.ascontiguousarray(array), which)).view(np.uint8)
            self._raw[name] = raw.reshape(-1)
            self._info[name] = TensorInfo(kind, array.shape, raw.nbytes)
            values = gguf.quants.dequantize(raw, which) if kind != "F32" else array
            self._float32[name] = np.ascontiguousarray(values, np.float32).reshape(array.shape)

    def info(self, name: str) -> TensorInfo:
        return self._info[name]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self._raw[name]

    def row_scales(self, name: str) -> Float32:
        raise AssertionError(f"{name} is no I8 tensor")

    def float32(self, name: str) -> Float32:
        return self._float32[name]

    @property
    def fingerprint(self) -> bytes:
        return bytes(32)
