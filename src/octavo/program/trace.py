"""Builds a `Program` from the calls a model file makes, and refuses a wrong one while the line that made it is on the
stack. Knows no model, no weights and no numpy.

Kept: a buffer is written once and read only after it; widths agree; one parameter name has one shape; rows are the
step's tokens before `select_rows` and the selected ones after, never mixed; every layer writes its K and V once,
before its attention reads them; `output` comes last.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.program.ops import (
    Activation,
    ActivationName,
    ActMul,
    Add,
    AddPosition,
    Attend,
    Concat,
    Embed,
    KVGroup,
    LayerNorm,
    Linear,
    Mul,
    Op,
    Output,
    Program,
    RmsNorm,
    Rope,
    Scale,
    SelectRows,
    Slice,
    Softcap,
    WriteKV,
)


class TraceError(ValueError):
    """A model file emitted something inconsistent: a mistake in our code, not in the user's file."""


class ProgramBuilder:
    """Emits operations in order. Every method returns the name of the buffer it wrote; sizes are in elements.

    Buffer names are the operation's, numbered: `linear_3`. Parameters are declared by being used.
    """

    def __init__(self, *, vocab_size: int, embedding_size: int, num_kv_heads: int, head_dim: int, max_model_len: int):
        for name, value in (
            ("vocab_size", vocab_size),
            ("embedding_size", embedding_size),
            ("num_kv_heads", num_kv_heads),
            ("head_dim", head_dim),
            ("max_model_len", max_model_len),
        ):
            _require(value >= 1, f"{name} is {value}, at least 1 is needed")
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.max_model_len = max_model_len
        self._ops: list[Op] = []
        self._buffers: dict[str, int] = {}
        self._parameters: dict[str, tuple[int, ...]] = {}
        self._read: set[str] = set()
        self._selected: set[str] = set()  # buffers whose rows are the selected ones
        self._written_layers: set[int] = set()
        self._windows: dict[int, int | None] = {}  # layer -> sliding window of its attention
        self._has_output = False

    def embed(self, weight: str, width: int | None = None) -> str:
        """Token embeddings; weight [vocab_size, width]. `width`: by default the embedding size."""
        width = self.embedding_size if width is None else width
        self._parameter(weight, (self.vocab_size, width))
        out = self._new("embed", width, selected=False)
        return self._emit(Embed(out, weight), out)

    def add_position(self, x: str, weight: str, num_positions: int, offset: int = 0) -> str:
        """Learned positions; weight [num_positions, width]. `offset` is added to the position."""
        width = self._use(x)
        _require(x not in self._selected, "add_position after select_rows: positions belong to the step's tokens")
        _require(0 <= offset < num_positions, f"offset {offset} with {num_positions} positions")
        self._parameter(weight, (num_positions, width))
        out = self._new_like("add_position", x)
        return self._emit(AddPosition(out, x, weight, offset), out)

    def rms_norm(self, x: str, weight: str, eps: float, group: int | None = None) -> str:
        """Over groups of `group` columns (a head), by default over the whole row; weight [group]."""
        width = self._use(x)
        group = width if group is None else group
        _require(group >= 1 and width % group == 0, f"a row of {width} columns has no groups of {group}")
        _require(eps >= 0.0, f"eps is {eps}")
        self._parameter(weight, (group,))
        out = self._new_like("rms_norm", x)
        return self._emit(RmsNorm(out, x, weight, eps), out)

    def layer_norm(self, x: str, weight: str, bias: str, eps: float) -> str:
        """Over the whole row; weight and bias [width]."""
        width = self._use(x)
        _require(eps >= 0.0, f"eps is {eps}")
        self._parameter(weight, (width,))
        self._parameter(bias, (width,))
        out = self._new_like("layer_norm", x)
        return self._emit(LayerNorm(out, x, weight, bias, eps), out)

    def linear(self, x: str, weight: str, out_width: int, bias: str | None = None) -> str:
        """x @ weight.T + bias; weight [out_width, width of x], bias [out_width]."""
        _require(out_width >= 1, f"out_width is {out_width}")
        self._parameter(weight, (out_width, self._use(x)))
        if bias is not None:
            self._parameter(bias, (out_width,))
        out = self._new("linear", out_width, selected=x in self._selected)
        return self._emit(Linear(out, x, weight, bias), out)

    def slice(self, x: str, begin: int, end: int) -> str:
        """Columns [begin, end)."""
        width = self._use(x)
        _require(0 <= begin < end <= width, f"columns [{begin}, {end}) of a row of {width}")
        out = self._new("slice", end - begin, selected=x in self._selected)
        return self._emit(Slice(out, x, begin, end), out)

    def concat(self, xs: Sequence[str]) -> str:
        """The buffers side by side."""
        _require(len(xs) >= 1, "concat of nothing")
        width = sum(self._use(x) for x in xs)
        out = self._new("concat", width, selected=self._same_rows(*xs))
        return self._emit(Concat(out, tuple(xs)), out)

    def rope(
        self, x: str, inv_freq: Sequence[float], *, head_dim: int | None = None, attention_factor: float = 1.0
    ) -> str:
        """Rotary positions over the first 2 * len(inv_freq) columns of each head."""
        width = self._use(x)
        head_dim = self.head_dim if head_dim is None else head_dim
        rotary_dim = 2 * len(inv_freq)
        _require(x not in self._selected, "rope after select_rows: positions belong to the step's tokens")
        _require(width % head_dim == 0, f"a row of {width} columns has no heads of {head_dim}")
        _require(2 <= rotary_dim <= head_dim, f"rotary_dim is {rotary_dim}, head_dim is {head_dim}")
        out = self._new_like("rope", x)
        return self._emit(Rope(out, x, head_dim, rotary_dim, tuple(inv_freq), attention_factor), out)

    def write_kv(self, layer: int, k: str, v: str) -> None:
        """Stores this step's keys and values of `layer`; k and v are [tokens, num_kv_heads * head_dim]."""
        _require(layer >= 0, f"layer is {layer}")
        _require(layer not in self._written_layers, f"layer {layer} writes its K and V twice")
        for x in (k, v):
            width = self._use(x)
            _require(width == self.num_kv_heads * self.head_dim, f"{x} has {width} columns, not whole KV heads")
            _require(x not in self._selected, f"{x} has selected rows only: every token's K and V must be written")
        self._written_layers.add(layer)
        self._ops.append(WriteKV(layer, k, v))

    def attend(
        self,
        q: str,
        layer: int,
        *,
        num_heads: int,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: str | None = None,
    ) -> str:
        """Causal attention over the cache of `layer`; q [tokens, num_heads * head_dim]."""
        width = self._use(q)
        _require(num_heads >= 1, f"num_heads is {num_heads}")
        _require(num_heads % self.num_kv_heads == 0, f"{num_heads} heads over {self.num_kv_heads} KV heads")
        _require(width == num_heads * self.head_dim, f"{q}: {width} columns, not {num_heads} heads of {self.head_dim}")
        _require(q not in self._selected, "attend after select_rows")
        _require(layer in self._written_layers, f"attention of layer {layer} before its write_kv")
        _require(sliding_window is None or sliding_window >= 1, f"sliding_window is {sliding_window}")
        _require(softcap is None or softcap > 0.0, f"softcap is {softcap}")
        known = self._windows.setdefault(layer, sliding_window)
        _require(known == sliding_window, f"layer {layer} is attended with windows {known} and {sliding_window}")
        if sinks is not None:
            self._parameter(sinks, (num_heads,))
        out = self._new_like("attend", q)
        return self._emit(Attend(out, q, layer, num_heads, scale, sliding_window, softcap, sinks), out)

    def act_mul(self, gate: str, up: str, activation: ActivationName) -> str:
        """activation(gate) * up."""
        out = self._new_pair("act_mul", gate, up)
        return self._emit(ActMul(out, gate, up, activation), out)

    def activation(self, x: str, activation: ActivationName) -> str:
        self._use(x)
        out = self._new_like("activation", x)
        return self._emit(Activation(out, x, activation), out)

    def add(self, a: str, b: str) -> str:
        out = self._new_pair("add", a, b)
        return self._emit(Add(out, a, b), out)

    def mul(self, a: str, b: str) -> str:
        out = self._new_pair("mul", a, b)
        return self._emit(Mul(out, a, b), out)

    def scale(self, x: str, factor: float) -> str:
        self._use(x)
        out = self._new_like("scale", x)
        return self._emit(Scale(out, x, factor), out)

    def softcap(self, x: str, cap: float) -> str:
        self._use(x)
        _require(cap > 0.0, f"cap is {cap}")
        out = self._new_like("softcap", x)
        return self._emit(Softcap(out, x, cap), out)

    def select_rows(self, x: str) -> str:
        """Keeps the rows whose logits are wanted. Once in a program."""
        width = self._use(x)
        _require(not self._selected, "select_rows twice")
        out = self._new("select_rows", width, selected=True)
        return self._emit(SelectRows(out, x), out)

    def output(self, x: str) -> None:
        """x [selected rows, vocab_size] are the logits; nothing may follow."""
        width = self._use(x)
        _require(x in self._selected, f"{x} has a row for every token: select_rows comes before the output")
        _require(width == self.vocab_size, f"{x} has {width} columns, the vocabulary {self.vocab_size}")
        self._ops.append(Output(x))
        self._has_output = True

    def finish(self, extra: dict[str, str] | None = None) -> Program:
        """The program. Raises TraceError where something is missing or was computed for nothing."""
        _require(self._has_output, "no output")
        unused = [name for name in self._buffers if name not in self._read]
        _require(not unused, f"never read: {', '.join(unused)}")
        unread = sorted(self._written_layers - set(self._windows))
        _require(not unread, f"layers {unread} write K and V that no attention reads")
        _require(bool(self._windows), "no attention: there is nothing to cache")
        _require(sorted(self._windows) == list(range(len(self._windows))), f"layers are {sorted(self._windows)}")
        return Program(
            ops=tuple(self._ops),
            buffers=dict(self._buffers),
            parameters=dict(self._parameters),
            kv_groups=group_layers([self._windows[layer] for layer in range(len(self._windows))]),
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            embedding_size=self.embedding_size,
            extra=dict(extra or {}),
        )

    def _use(self, x: str) -> int:
        """The width of a buffer about to be read."""
        _require(not self._has_output, "an operation after the output")
        _require(x in self._buffers, f"{x!r} is read before it is written")
        self._read.add(x)
        return self._buffers[x]

    def _new(self, kind: str, width: int, *, selected: bool) -> str:
        _require(not self._has_output, "an operation after the output")
        name = f"{kind}_{len(self._ops)}"
        _require(name not in self._buffers, f"{name} is written twice")
        self._buffers[name] = width
        if selected:
            self._selected.add(name)
        return name

    def _new_like(self, kind: str, x: str) -> str:
        return self._new(kind, self._buffers[x], selected=x in self._selected)

    def _new_pair(self, kind: str, a: str, b: str) -> str:
        widths = self._use(a), self._use(b)
        _require(widths[0] == widths[1], f"{a} has {widths[0]} columns, {b} has {widths[1]}")
        return self._new(kind, widths[0], selected=self._same_rows(a, b))

    def _same_rows(self, *xs: str) -> bool:
        kinds = {x in self._selected for x in xs}
        _require(len(kinds) == 1, f"{', '.join(xs)}: some have a row for every token, some only the selected ones")
        return kinds.pop()

    def _emit(self, op: Op, out: str) -> str:
        self._ops.append(op)
        return out

    def _parameter(self, name: str, shape: tuple[int, ...]) -> None:
        known = self._parameters.setdefault(name, shape)
        _require(known == shape, f"parameter {name} is used as {list(known)} and as {list(shape)}")


def group_layers(windows: Sequence[int | None]) -> tuple[KVGroup, ...]:
    """KV groups for layers 0, 1, ... with these attention spans (None: full), so that all blocks have equal bytes.

    The least common span gives the size of a group; commoner ones are split into groups of that size, the last of
    which may be smaller (its blocks have unused room):

        spans   F S S S S S F S S S S S S   ->   [0 6] full, [1 2] [3 4] [5 7] [8 9] [10 11] [12] sliding
    """
    by_window: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        by_window.setdefault(window, []).append(layer)
    size = min(len(layers) for layers in by_window.values())
    return tuple(
        KVGroup(tuple(layers[first : first + size]), window)
        for window, layers in by_window.items()
        for first in range(0, len(layers), size)
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise TraceError(what)
