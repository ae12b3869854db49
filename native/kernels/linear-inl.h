// activation_bytes, round_activation, linear: the same control for every instruction set, around the tiles of
// simd/dot_*.h. A tile is a few rows of activations (as many as fit the registers) times one panel of 16 output rows.
//
// Batch invariance: a tile computes row r from row r and the panel alone, adding over k in file order (one float
// accumulator a lane; within a group of an integer form, and over all of k for w8a8, the sum is exact, so that w8a8's
// outputs are the same bits on every instruction set). Tile heights and blocks of panels only
// choose who is computed when.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/pack-inl.h"
#include "kernels/pack.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Where a tile's sums go: `lanes` columns of each row, `out` and `bias` already at the panel's first column.
struct TileOut {
  float* out;
  int64_t stride;     // floats from one row to the next
  const float* bias;  // null: none
  int64_t lanes;      // 1..16
  // Several streams of whole panels, where a tile of few rows takes them at once: the distances between neighbours.
  int64_t streams = 1;
  int64_t panel_gap = 0;  // bytes
  int64_t out_gap = 0;    // floats

  inline TileOut of_stream(int stream) const {
    return {out + stream * out_gap, stride, bias != nullptr ? bias + stream * out_gap : nullptr, lanes};
  }
};

// What a tile asks of memory for later: `step` bytes a step of its loop, from `at` on. Where all rows fit one tile that
// is the same stream a little further on; else each tile asks for its share of the next block of panels, so that
// memory works while the tiles compute. Into the second-level cache, since the first holds the activations, except for
// so few rows that a tile only waits for memory. May run past the weight's end: a prefetch never faults.
struct Ahead {
  static constexpr int kFewRows = 2;
  const uint8_t* at;
  int64_t step;

  template <int kRows>
  inline void fetch(int64_t steps = 1) {
    constexpr int kLocality = kRows <= kFewRows ? 3 : 2;
    for (int64_t i = 0; i < steps * step; i += 64) __builtin_prefetch(at + i, 0, kLocality);
    at += steps * step;
  }
};

// Spike `i` of the w8a8 activation whose tail this is: its step in a panel; four digits lie behind, at spike + 4.
static inline const uint8_t* spike_of(const uint8_t* tail, int i) { return tail + kW8A8ActSpikesAt + i * kSpikeBytes; }

static inline const uint8_t* step_of(const uint8_t* spike, const uint8_t* panel) {
  int32_t at;
  memcpy(&at, spike, 4);
  return panel + at;
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo

#if defined(OCTAVO_ISA_AVX512)
#include "simd/dot_avx512.h"
#elif defined(OCTAVO_ISA_AVX2)
#include "simd/dot_avx2.h"
#elif defined(OCTAVO_ISA_NEON)
#include "simd/dot_neon.h"
#else
#include "simd/dot_plain.h"
#endif

namespace octavo {
namespace OCTAVO_ISA_NS {

static size_t activation_bytes(Form form, int64_t cols) {
  int64_t bytes = 0;
  switch (form) {
    case Form::kF32: bytes = cols * 4; break;
    case Form::kBF16: bytes = (cols + 1) / 2 * (kPairsOfBF16 ? 4 : 8); break;
    case Form::kInt8: bytes = cols / kGroup * kInt8ActGroupBytes; break;
    case Form::kInt4: bytes = cols / kGroup * kInt4ActGroupBytes; break;
    case Form::kW8A8: bytes = padded_cols(cols) + kW8A8ActTailBytes; break;
  }
  // An odd number of cache lines: a tile's rows, read side by side, must not all fall into the same set of the cache.
  return static_cast<size_t>(((bytes + 63) / 64 | 1) * 64);
}

// One group by its largest |x|. `broken` makes the scale NaN, and so every output of the row. Returns the sum.
static inline int32_t round_group(const float* x, bool broken, uint8_t* out) {
  const float top = float_of_bits(static_cast<uint32_t>(max_abs_bits(x, kGroup)));
  const Int8Scale to = int8_scale(top);
  int8_t rounded[kGroup];
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroup; ++i) {
    const int32_t q = round_to_int8(broken ? 0.0f : x[i], to.inverse);
    rounded[i] = static_cast<int8_t>(q);
    sum += q;
  }
  const float scale = broken ? float_of_bits(0x7fc00000u) : to.scale;
  memcpy(out, rounded, kGroup);
  memcpy(out + kActScaleAt, &scale, 4);
  return sum;
}

// The largest of what was put in, as bits of |x|, in falling order, and where each lies; zeros where there are no more.
struct Largest {
  static constexpr int kCount = kSpikes + 1;
  int32_t bits[kCount] = {};
  int64_t at[kCount] = {};

  inline void put(int32_t value, int64_t place) {
    if (value <= bits[kCount - 1]) return;
    int i = kCount - 1;
    for (; i > 0 && bits[i - 1] < value; --i) bits[i] = bits[i - 1], at[i] = at[i - 1];
    bits[i] = value;
    at[i] = place;
  }
};

// Of a row: they lie in the groups whose own largest are the largest, since another group has nothing above these.
static inline Largest largest_of(const float* x, int64_t cols) {
  Largest groups, values;
  for (int64_t k = 0; k < cols; k += kGroup) groups.put(max_abs_bits(x + k, cols - k < kGroup ? cols - k : kGroup), k);
  for (int g = 0; g < Largest::kCount && groups.bits[g] > 0; ++g) {
    const int64_t first = groups.at[g], last = first + kGroup < cols ? first + kGroup : cols;
    for (int64_t k = first; k < last; ++k) {
      values.put(static_cast<int32_t>(bits_of_float(x[k]) & 0x7fffffffu), k);
    }
  }
  return values;
}

// The scale that makes the fifth largest 127, unless the largest would pass kMaxSpike then.
static inline Int8Scale spiked_scale(const Largest& largest) {
  const float top = float_of_bits(static_cast<uint32_t>(largest.bits[0]));
  const float rest = float_of_bits(static_cast<uint32_t>(largest.bits[kSpikes]));
  if (rest / 127.0f >= top / kMaxSpike) return int8_scale(rest);
  const float inverse = kMaxSpike / top;
  if (!(inverse <= 3.4028235e38f)) return {0.0f, 0.0f};
  return {top / kMaxSpike, inverse};
}

// A whole row of w8a8.
static inline void round_row(const float* x, int64_t cols, bool broken, uint8_t* out) {
  const int64_t padded = padded_cols(cols);
  uint8_t* tail = out + padded;
  memset(tail, 0, kW8A8ActTailBytes);
  if (broken) {
    memset(out, 0, static_cast<size_t>(padded));
    memset(tail, 0xff, 4);  // a NaN
    return;
  }
  const Largest largest = largest_of(x, cols);
  const Int8Scale to = spiked_scale(largest);
  int32_t sum = 0;
  for (int64_t k = 0; k < cols; ++k) {
    const int32_t q = round_to_int8(x[k], to.inverse);
    out[k] = static_cast<uint8_t>(q);
    sum += q;
  }
  memset(out + cols, 0, static_cast<size_t>(padded - cols));
  for (int i = 0; i < kSpikes && largest.bits[i] > largest.bits[kSpikes]; ++i) {
    const int64_t k = largest.at[i];
    const int32_t q = round_to_int8(x[k], to.inverse);
    const int32_t high = (q + (1 << (kSpikeShift - 1))) >> kSpikeShift;
    out[k] = static_cast<uint8_t>(q - high * (1 << kSpikeShift));
    uint8_t* spike = tail + kW8A8ActSpikesAt + i * kSpikeBytes;
    const int32_t at = static_cast<int32_t>(w8a8_step_at(k));
    memcpy(spike, &at, 4);
    spike[4 + k % 4] = static_cast<uint8_t>(high);
  }
  const int32_t start = -128 * sum;
  memcpy(tail, &to.scale, 4);
  memcpy(tail + kW8A8ActStartAt, &start, 4);
}

static void round_activation(Form form, const float* x, int64_t cols, void* out) {
  uint8_t* to = static_cast<uint8_t*>(out);
  const bool broken = max_abs_bits(x, cols) > 0x7f7fffff;
  switch (form) {
    case Form::kF32:
      memcpy(to, x, static_cast<size_t>(cols) * 4);
      if (broken) memset(to, 0xff, 4);  // a NaN: an infinity alone would leave finite rows of zeros beside it
      break;
    case Form::kBF16: {
      if (kPairsOfBF16) {
        uint16_t* values = static_cast<uint16_t*>(out);
        for (int64_t k = 0; k < cols; ++k) values[k] = bf16_of_float(x[k]);
        if (cols % 2 != 0) values[cols] = 0;
      } else {
        float* values = static_cast<float*>(out);
        for (int64_t k = 0; k < cols; ++k) values[k] = float_of_bf16(bf16_of_float(x[k]));
        if (cols % 2 != 0) values[cols] = 0.0f;
      }
      if (broken) memset(to, 0xff, 4);
      break;
    }
    case Form::kInt8:
      for (int64_t k = 0; k < cols; k += kGroup, to += kInt8ActGroupBytes) {
        const int32_t start = -128 * round_group(x + k, broken, to);
        memcpy(to + kActStartAt, &start, 4);
      }
      break;
    case Form::kInt4:
      for (int64_t k = 0; k < cols; k += kGroup, to += kInt4ActGroupBytes) {
        const int32_t sum = round_group(x + k, broken, to);
        const int32_t start = -8 * sum;
        const float scaled = read_f32(to + kActScaleAt) * static_cast<float>(sum);
        memcpy(to + kActStartAt, &start, 4);
        memcpy(to + kActSumAt, &scaled, 4);
      }
      break;
    case Form::kW8A8: round_row(x, cols, broken, to); break;
  }
}

// Bytes of a panel for one step of a tile's loop.
static inline int64_t step_bytes(const Weight& weight) {
  if (weight.form == Form::kInt8) return kInt8GroupBytes;
  if (weight.form == Form::kInt4) return weight.has_min ? kInt4MinGroupBytes : kInt4GroupBytes;
  if (weight.form == Form::kW8A8) return kW8A8GroupBytes;
  return kPanelRows * 4;
}

// How many panels every tile of rows passes over before the next ones: few, so that a short call has a next block to
// ask for early, unless the activations outgrow the second-level cache, which must not be swept for every panel.
static inline int64_t panels_of_block(const Weight& weight, int64_t num_rows, size_t act_stride) {
  constexpr size_t kActivationBytes = 512 * 1024;
  const size_t block_bytes = (static_cast<size_t>(num_rows) * act_stride <= kActivationBytes ? 32 : 256) * 1024;
  const int64_t fitting = static_cast<int64_t>(block_bytes / (weight.panel_bytes + 1));
  return fitting < 1 ? 1 : fitting;
}

// Few rows of a form whose tile has to wait for its own sums: whole panels, in as many streams as it takes at once.
// Returns the first panel that is left.
template <class Tile>
static int64_t run_streams(const Weight& weight, const uint8_t* activations, int64_t num_rows, int64_t panel_begin,
                           int64_t panel_end, float* out, int64_t out_stride, const float* bias, int64_t ahead_bytes) {
  const int64_t streams = Tile::streams(num_rows);
  if (streams == 1) return panel_begin;
  const int64_t whole = weight.rows / kPanelRows < panel_end ? weight.rows / kPanelRows : panel_end;
  const int64_t length = whole > panel_begin ? (whole - panel_begin) / streams : 0;
  const int64_t panel_bytes = static_cast<int64_t>(weight.panel_bytes);
  const size_t act_stride = activation_bytes(weight.form, weight.cols);
  for (int64_t panel = panel_begin; panel < panel_begin + length; ++panel) {
    const int64_t column = panel * kPanelRows;
    const uint8_t* data = weight.data + panel * panel_bytes;
    const TileOut to{out + column, out_stride, bias != nullptr ? bias + column : nullptr, kPanelRows,
                     streams, length * panel_bytes, length * kPanelRows};
    Tile::run(num_rows, data, weight.cols, activations, act_stride, Ahead{data + ahead_bytes, step_bytes(weight)}, to);
  }
  return panel_begin + streams * length;
}

// Rows [0, num_rows) times panels [panel_begin, panel_end).
template <class Tile>
static void run_tiles(const Weight& weight, const uint8_t* activations, int64_t num_rows, int64_t panel_begin,
                      int64_t panel_end, float* out, int64_t out_stride, const float* bias) {
  constexpr int64_t kNearBytes = 2048, kFarBytes = 8192;
  const int64_t stream_ahead = num_rows <= Ahead::kFewRows ? kNearBytes : kFarBytes;
  const size_t act_stride = activation_bytes(weight.form, weight.cols);
  const int64_t num_tiles = (num_rows + Tile::kRows - 1) / Tile::kRows;
  panel_begin = run_streams<Tile>(weight, activations, num_rows, panel_begin, panel_end, out, out_stride, bias,
                                  kNearBytes);
  const int64_t block = num_tiles <= 1 ? panel_end - panel_begin : panels_of_block(weight, num_rows, act_stride);
  const int64_t step = step_bytes(weight);
  for (int64_t first = panel_begin; first < panel_end; first += block) {
    const int64_t last = first + block < panel_end ? first + block : panel_end;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t row = num_rows * tile / num_tiles;  // tiles of nearly equal height
      const int64_t height = num_rows * (tile + 1) / num_tiles - row;
      const uint8_t* act = activations + static_cast<size_t>(row) * act_stride;
      for (int64_t panel = first; panel < last; ++panel) {
        const int64_t column = panel * kPanelRows;
        const int64_t present = weight.rows - column;
        const uint8_t* data = weight.data + static_cast<size_t>(panel) * weight.panel_bytes;
        Ahead ahead{data + stream_ahead, step};
        if (num_tiles > 1) {
          const int64_t share = static_cast<int64_t>(weight.panel_bytes) * tile / num_tiles;
          ahead.at = data + static_cast<size_t>(block) * weight.panel_bytes + share;
          ahead.step = panel + block < panel_end ? (step + num_tiles - 1) / num_tiles : 0;
        }
        const TileOut to{out + row * out_stride + column, out_stride, bias != nullptr ? bias + column : nullptr,
                         present < kPanelRows ? present : kPanelRows};
        Tile::run(height, data, weight.cols, act, act_stride, ahead, to);
      }
    }
  }
}

// Chooses the instance for a tile's height.
#define OCTAVO_TILE(name, function, rows, streams_of)                                                                 \
  struct name {                                                                                                       \
    static constexpr int64_t kRows = rows;                                                                            \
    static constexpr int64_t streams(int64_t height) { return streams_of(height); }                                   \
    static inline void run(int64_t height, const uint8_t* panel, int64_t cols, const uint8_t* act, size_t stride,     \
                           Ahead ahead, const TileOut& to) {                                                          \
      switch (height) {                                                                                               \
        case 1: function<1 <= rows ? 1 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 2: function<2 <= rows ? 2 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 3: function<3 <= rows ? 3 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 4: function<4 <= rows ? 4 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 5: function<5 <= rows ? 5 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 6: function<6 <= rows ? 6 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 7: function<7 <= rows ? 7 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 8: function<8 <= rows ? 8 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 9: function<9 <= rows ? 9 : 1>(panel, cols, act, stride, ahead, to); break;                              \
        case 10: function<10 <= rows ? 10 : 1>(panel, cols, act, stride, ahead, to); break;                           \
        case 11: function<11 <= rows ? 11 : 1>(panel, cols, act, stride, ahead, to); break;                           \
        case 12: function<12 <= rows ? 12 : 1>(panel, cols, act, stride, ahead, to); break;                           \
        case 13: function<13 <= rows ? 13 : 1>(panel, cols, act, stride, ahead, to); break;                           \
        case 14: function<14 <= rows ? 14 : 1>(panel, cols, act, stride, ahead, to); break;                           \
        case 15: function<15 <= rows ? 15 : 1>(panel, cols, act, stride, ahead, to); break;                           \
        case 16: function<16 <= rows ? 16 : 1>(panel, cols, act, stride, ahead, to); break;                           \
      }                                                                                                               \
    }                                                                                                                 \
  }

OCTAVO_TILE(F32Tile, tile_f32, kF32TileRows, float_streams);
OCTAVO_TILE(BF16Tile, tile_bf16, kBF16TileRows, float_streams);
OCTAVO_TILE(Int8Tile, tile_int8, kIntTileRows, int_streams);
OCTAVO_TILE(Int4Tile, tile_int4, kIntTileRows, int_streams);
OCTAVO_TILE(Int4MinTile, tile_int4_min, kIntTileRows, int_streams);
OCTAVO_TILE(W8A8Tile, tile_w8a8, kW8A8TileRows, int_streams);

#undef OCTAVO_TILE

static void linear(const Weight& weight, const void* activations, int64_t num_rows, int64_t panel_begin,
                   int64_t panel_end, float* out, int64_t out_stride, const float* bias) {
  const uint8_t* act = static_cast<const uint8_t*>(activations);
  switch (weight.form) {
    case Form::kF32:
      run_tiles<F32Tile>(weight, act, num_rows, panel_begin, panel_end, out, out_stride, bias);
      break;
    case Form::kBF16:
      run_tiles<BF16Tile>(weight, act, num_rows, panel_begin, panel_end, out, out_stride, bias);
      break;
    case Form::kInt8:
      run_tiles<Int8Tile>(weight, act, num_rows, panel_begin, panel_end, out, out_stride, bias);
      break;
    case Form::kInt4:
      if (weight.has_min) {
        run_tiles<Int4MinTile>(weight, act, num_rows, panel_begin, panel_end, out, out_stride, bias);
      } else {
        run_tiles<Int4Tile>(weight, act, num_rows, panel_begin, panel_end, out, out_stride, bias);
      }
      break;
    case Form::kW8A8:
      run_tiles<W8A8Tile>(weight, act, num_rows, panel_begin, panel_end, out, out_stride, bias);
      break;
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
