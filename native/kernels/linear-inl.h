// linear: the same control for every instruction set, around the tiles of simd/dot_*.h. A tile is a few rows of activations (as many as fit the registers) times one panel of 16 output rows.
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
  const uint8_t* at;
  int64_t step;

  static constexpr int64_t few_rows(Form form) { return form == Form::kInt4 ? 2 : 4; }

  template <bool kFew>
  inline void fetch(int64_t steps = 1) {
    constexpr int kLocality = kFew ? 3 : 2;
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

#include "kernels/math-inl.h"
#include "kernels/round-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

// Bytes of a panel for one step of a tile's loop.
static inline int64_t step_bytes(const Weight& weight) {
  if (weight.form == Form::kInt8) return kInt8GroupBytes;
  if (weight.form == Form::kInt4) return weight.has_min ? kInt4MinGroupBytes : kInt4GroupBytes;
  if (weight.form == Form::kW8A8) return kW8A8GroupBytes;
  return kPanelRows * 4;
}

// How many panels every tile of rows passes over before the next ones: few, so that a short call has a next block to
// ask for early, unless the activations outgrow the second-level cache, which must not be swept for every panel.
static inline int64_t panels_of_block(const Weight& weight, int64_t matrices, int64_t num_rows, size_t act_stride) {
  constexpr size_t kActivationBytes = 512 * 1024;
  const size_t block_bytes = (static_cast<size_t>(num_rows) * act_stride <= kActivationBytes ? 32 : 256) * 1024;
  const int64_t fitting = static_cast<int64_t>(block_bytes / (weight.panel_bytes * static_cast<size_t>(matrices) + 1));
  return fitting < 1 ? 1 : fitting;
}

// A tile's place in a product: rows [row, row + height) times one panel, or times one of each of several streams.
struct TilePlace {
  int64_t row, height, column;
  int64_t lanes;        // columns the panel has
  const uint8_t* act;   // of its first row
  ptrdiff_t panel_at;   // bytes into the weight
  ptrdiff_t ahead_at;   // likewise, what is asked of memory for later
  int64_t ahead_step;
  int64_t streams = 1;
  int64_t panels_apart = 0;  // from one stream to the next
};

constexpr int64_t kNearBytes = 2048, kFarBytes = 8192;  // ahead of a tile's own stream

// Few rows of a form whose tile has to wait for its own sums: whole panels, in as many streams as it takes at once.
// Returns the first panel that is left.
template <class Tile, class Body>
static inline int64_t each_stream_tile(const Weight& weight, const uint8_t* activations, int64_t num_rows,
                                       int64_t panel_begin, int64_t panel_end, const Body& body) {
  const int64_t streams = Tile::streams(num_rows);
  if (streams == 1) return panel_begin;
  const int64_t whole = weight.rows / kPanelRows < panel_end ? weight.rows / kPanelRows : panel_end;
  const int64_t length = whole > panel_begin ? (whole - panel_begin) / streams : 0;
  for (int64_t panel = panel_begin; panel < panel_begin + length; ++panel) {
    const ptrdiff_t at = panel * static_cast<int64_t>(weight.panel_bytes);
    body(TilePlace{0, num_rows, panel * kPanelRows, kPanelRows, activations, at, at + kNearBytes,
                   step_bytes(weight), streams, length});
  }
  return panel_begin + streams * length;
}

// Calls body(TilePlace) for rows [0, num_rows) times panels [panel_begin, panel_end); `matrices` weights of one shape are
// read side by side.
template <class Tile, class Body>
static inline void each_tile(const Weight& weight, int64_t matrices, const uint8_t* activations, int64_t num_rows,
                             int64_t panel_begin, int64_t panel_end, const Body& body) {
  const int64_t stream_ahead = num_rows <= Ahead::few_rows(weight.form) ? kNearBytes : kFarBytes;
  const int64_t panel_bytes = static_cast<int64_t>(weight.panel_bytes);
  const size_t act_stride = activation_bytes(weight.form, weight.cols);
  const int64_t num_tiles = (num_rows + Tile::kRows - 1) / Tile::kRows;
  panel_begin = each_stream_tile<Tile>(weight, activations, num_rows, panel_begin, panel_end, body);
  const int64_t block =
      num_tiles <= 1 ? panel_end - panel_begin : panels_of_block(weight, matrices, num_rows, act_stride);
  const int64_t step = step_bytes(weight);
  for (int64_t first = panel_begin; first < panel_end; first += block) {
    const int64_t last = first + block < panel_end ? first + block : panel_end;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      TilePlace place;
      place.row = num_rows * tile / num_tiles;  // tiles of nearly equal height
      place.height = num_rows * (tile + 1) / num_tiles - place.row;
      place.act = activations + static_cast<size_t>(place.row) * act_stride;
      for (int64_t panel = first; panel < last; ++panel) {
        const int64_t present = weight.rows - panel * kPanelRows;
        place.column = panel * kPanelRows;
        place.lanes = present < kPanelRows ? present : kPanelRows;
        place.panel_at = panel * panel_bytes;
        place.ahead_at = place.panel_at + stream_ahead;
        place.ahead_step = step;
        if (num_tiles > 1) {
          place.ahead_at = place.panel_at + block * panel_bytes + panel_bytes * tile / num_tiles;
          place.ahead_step = panel + block < panel_end ? (step + num_tiles - 1) / num_tiles : 0;
        }
        body(place);
      }
    }
  }
}

static inline const float* from_column(const float* row, int64_t column) {
  return row != nullptr ? row + column : nullptr;
}

template <class Tile>
static inline void run_tile(const TilePlace& at, const Weight& weight, const TileOut& to) {
  Tile::run(at.height, weight.data + at.panel_at, weight.cols, at.act, activation_bytes(weight.form, weight.cols),
            Ahead{weight.data + at.ahead_at, at.ahead_step}, to);
}

// The sums of a tile, before anything is done to them: [streams][rows][16].
struct TileSums {
  static constexpr int64_t kFloats = 16 * kPanelRows;  // the most rows and streams of a tile, one times the other
  float values[kFloats];

  template <class Tile>
  inline void compute(const TilePlace& at, const Weight& weight) {
    run_tile<Tile>(at, weight, TileOut{values, kPanelRows, nullptr, at.lanes, at.streams,
                                       at.panels_apart * static_cast<int64_t>(weight.panel_bytes),
                                       at.height * kPanelRows});
  }
};

OCTAVO_SIMD F32 with_bias(const float* sums, const float* bias, int64_t lanes) {
  return bias != nullptr ? load(sums) + load_n(bias, lanes) : load(sums);
}

// finish(first sum of 16, row, column) for every row of every panel of a tile.
template <class Finish>
OCTAVO_SIMD void each_row_of(const TilePlace& at, const Finish& finish) {
  for (int64_t s = 0; s < at.streams; ++s) {
    const int64_t column = at.column + s * at.panels_apart * kPanelRows;
    for (int64_t r = 0; r < at.height; ++r) finish((s * at.height + r) * kPanelRows, at.row + r, column);
  }
}

template <class Tile>
static void run_tiles(const Weight& weight, const uint8_t* activations, int64_t num_rows, int64_t panel_begin,
                      int64_t panel_end, const LinearOut& to) {
  each_tile<Tile>(weight, 1, activations, num_rows, panel_begin, panel_end, [&](const TilePlace& at) {
    if (to.add == nullptr) {
      const int64_t panels = at.panels_apart;
      return run_tile<Tile>(at, weight,
                            TileOut{to.out + at.row * to.stride + at.column, to.stride, from_column(to.bias, at.column),
                                    at.lanes, at.streams, panels * static_cast<int64_t>(weight.panel_bytes),
                                    panels * kPanelRows});
    }
    TileSums sums;
    sums.compute<Tile>(at, weight);
    each_row_of(at, [&](int64_t first, int64_t row, int64_t column) {
      const F32 product = with_bias(sums.values + first, from_column(to.bias, column), at.lanes);
      const F32 other = load_n(to.add + row * to.add_stride + column, at.lanes);
      store_n(to.out + row * to.stride + column, at.lanes, product + other);
    });
  });
}

template <class Tile, Activation kind>
static void run_gated_tiles(const Weight& gate, const Weight& up, const uint8_t* activations, int64_t num_rows,
                            int64_t panel_begin, int64_t panel_end, const LinearOut& to) {
  each_tile<Tile>(gate, 2, activations, num_rows, panel_begin, panel_end, [&](const TilePlace& at) {
    TileSums gates, ups;
    gates.compute<Tile>(at, gate);
    ups.compute<Tile>(at, up);
    each_row_of(at, [&](int64_t first, int64_t row, int64_t column) {
      const F32 opened = activate<kind>(with_bias(gates.values + first, from_column(to.bias, column), at.lanes));
      const F32 value = with_bias(ups.values + first, from_column(to.up_bias, column), at.lanes);
      store_n(to.out + row * to.stride + column, at.lanes, opened * value);
    });
  });
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

// body(Tile{}) for the tiles of a weight's form.
template <class Body>
static inline void with_tile(const Weight& weight, const Body& body) {
  switch (weight.form) {
    case Form::kF32: return body(F32Tile{});
    case Form::kBF16: return body(BF16Tile{});
    case Form::kInt8: return body(Int8Tile{});
    case Form::kInt4: return weight.has_min ? body(Int4MinTile{}) : body(Int4Tile{});
    case Form::kW8A8: return body(W8A8Tile{});
  }
}

static void linear(const Weight& weight, const void* activations, int64_t num_rows, int64_t panel_begin,
                   int64_t panel_end, const LinearOut& to) {
  with_tile(weight, [&](auto tile) {
    run_tiles<decltype(tile)>(weight, static_cast<const uint8_t*>(activations), num_rows, panel_begin, panel_end, to);
  });
}

static void linear_gated(Activation kind, const Weight& gate, const Weight& up, const void* activations,
                         int64_t num_rows, int64_t panel_begin, int64_t panel_end, const LinearOut& to) {
  const uint8_t* act = static_cast<const uint8_t*>(activations);
  with_tile(gate, [&](auto tile) {
    using Tile = decltype(tile);
    switch (kind) {
      case Activation::kSilu:
        return run_gated_tiles<Tile, Activation::kSilu>(gate, up, act, num_rows, panel_begin, panel_end, to);
      case Activation::kGelu:
        return run_gated_tiles<Tile, Activation::kGelu>(gate, up, act, num_rows, panel_begin, panel_end, to);
      case Activation::kGeluTanh:
        return run_gated_tiles<Tile, Activation::kGeluTanh>(gate, up, act, num_rows, panel_begin, panel_end, to);
      case Activation::kRelu:
        return run_gated_tiles<Tile, Activation::kRelu>(gate, up, act, num_rows, panel_begin, panel_end, to);
    }
  });
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
