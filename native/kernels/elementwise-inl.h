// Operations that treat every value alone: rotary positions, activations, sums and products of rows.
#pragma once

#include "kernels.h"
#include "kernels/math-inl.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

template <class Function>
OCTAVO_SIMD void map_rows(const float* x, int64_t x_stride, int64_t width, int64_t rows, float* out,
                            int64_t out_stride, Function function) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* in = x + r * x_stride;
    float* to = out + r * out_stride;
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) store(to + i, function(load(in + i)));
    if (i < width) store_n(to + i, width - i, function(load_n(in + i, width - i)));
  }
}

template <class Function>
OCTAVO_SIMD void map_two(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t width,
                           int64_t rows, float* out, int64_t out_stride, Function function) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* left = a + r * a_stride;
    const float* right = b + r * b_stride;
    float* to = out + r * out_stride;
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) store(to + i, function(load(left + i), load(right + i)));
    if (i < width) store_n(to + i, width - i, function(load_n(left + i, width - i), load_n(right + i, width - i)));
  }
}

static void add(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t width, int64_t rows,
                float* out, int64_t out_stride) {
  map_two(a, a_stride, b, b_stride, width, rows, out, out_stride, [](F32 x, F32 y) { return x + y; });
}

static void mul(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t width, int64_t rows,
                float* out, int64_t out_stride) {
  map_two(a, a_stride, b, b_stride, width, rows, out, out_stride, [](F32 x, F32 y) { return x * y; });
}

static void scale(const float* x, int64_t x_stride, float factor, int64_t width, int64_t rows, float* out,
                  int64_t out_stride) {
  const F32 f = set1(factor);
  map_rows(x, x_stride, width, rows, out, out_stride, [f](F32 v) { return v * f; });
}

static void softcap(const float* x, int64_t x_stride, float cap, int64_t width, int64_t rows, float* out,
                    int64_t out_stride) {
  const F32 c = set1(cap);
  map_rows(x, x_stride, width, rows, out, out_stride, [c](F32 v) { return c * tanh(v / c); });
}

template <Activation kind>
OCTAVO_SIMD void activation_of(const float* x, int64_t x_stride, int64_t width, int64_t rows, float* out,
                                 int64_t out_stride) {
  map_rows(x, x_stride, width, rows, out, out_stride, [](F32 v) { return activate<kind>(v); });
}

static void activation(Activation kind, const float* x, int64_t x_stride, int64_t width, int64_t rows, float* out,
                       int64_t out_stride) {
  switch (kind) {
    case Activation::kSilu: return activation_of<Activation::kSilu>(x, x_stride, width, rows, out, out_stride);
    case Activation::kGelu: return activation_of<Activation::kGelu>(x, x_stride, width, rows, out, out_stride);
    case Activation::kGeluTanh: return activation_of<Activation::kGeluTanh>(x, x_stride, width, rows, out, out_stride);
    case Activation::kRelu: return activation_of<Activation::kRelu>(x, x_stride, width, rows, out, out_stride);
  }
}

template <Activation kind>
OCTAVO_SIMD void act_mul_of(const float* gate, int64_t gate_stride, const float* up, int64_t up_stride, int64_t width,
                              int64_t rows, float* out, int64_t out_stride) {
  map_two(gate, gate_stride, up, up_stride, width, rows, out, out_stride,
          [](F32 g, F32 u) { return activate<kind>(g) * u; });
}

static void act_mul(Activation kind, const float* gate, int64_t gate_stride, const float* up, int64_t up_stride,
                    int64_t width, int64_t rows, float* out, int64_t out_stride) {
  switch (kind) {
    case Activation::kSilu:
      return act_mul_of<Activation::kSilu>(gate, gate_stride, up, up_stride, width, rows, out, out_stride);
    case Activation::kGelu:
      return act_mul_of<Activation::kGelu>(gate, gate_stride, up, up_stride, width, rows, out, out_stride);
    case Activation::kGeluTanh:
      return act_mul_of<Activation::kGeluTanh>(gate, gate_stride, up, up_stride, width, rows, out, out_stride);
    case Activation::kRelu:
      return act_mul_of<Activation::kRelu>(gate, gate_stride, up, up_stride, width, rows, out, out_stride);
  }
}

static void rope(const float* x, int64_t x_stride, const float* cos, const float* sin, int64_t num_heads,
                 int64_t head_dim, int64_t rotary_dim, int64_t rows, float* out, int64_t out_stride) {
  const int64_t half = rotary_dim / 2;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const float* in = x + r * x_stride + h * head_dim;
      float* to = out + r * out_stride + h * head_dim;
      for (int64_t i = 0; i < half; i += 16) {
        const int64_t n = half - i < 16 ? half - i : 16;
        const F32 c = load_n(cos + r * half + i, n), s = load_n(sin + r * half + i, n);
        const F32 a = load_n(in + i, n), b = load_n(in + half + i, n);
        store_n(to + i, n, a * c - b * s);
        store_n(to + half + i, n, b * c + a * s);
      }
      for (int64_t i = rotary_dim; i < head_dim; i += 16) {
        const int64_t n = head_dim - i < 16 ? head_dim - i : 16;
        store_n(to + i, n, load_n(in + i, n));
      }
    }
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
