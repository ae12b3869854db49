// Sixteen floats in one AVX-512 register. The same names exist in simd/avx2.h and simd/plain.h.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define OCTAVO_SIMD static inline __attribute__((always_inline))
#define OCTAVO_NUM_REGISTERS 32  // of 16 floats

namespace octavo {
namespace OCTAVO_ISA_NS {

struct F32 { __m512 v; };
struct Mask { __mmask16 m; };
struct Pairs { __m512i v; };  // 16 lanes of two bf16: even (low half) and odd

OCTAVO_SIMD F32 zero() { return {_mm512_setzero_ps()}; }
OCTAVO_SIMD F32 set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_SIMD F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_SIMD void store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_SIMD __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xffffu : static_cast<__mmask16>((1u << n) - 1u); }
OCTAVO_SIMD F32 load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
OCTAVO_SIMD void store_n(float* p, int64_t n, F32 a) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

OCTAVO_SIMD F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_SIMD F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_SIMD F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_SIMD F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_SIMD F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// A NaN in the second operand is the result.
OCTAVO_SIMD F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
OCTAVO_SIMD F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_SIMD F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
OCTAVO_SIMD F32 copy_sign(F32 magnitude, F32 sign) {
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(sign.v),
                                                        _mm512_castps_si512(magnitude.v), 0xca))};
}
OCTAVO_SIMD F32 round_nearest(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for whole n; 0 at kZeroPower for a in [0.5, 2].
constexpr float kZeroPower = -160.0f;
OCTAVO_SIMD F32 scale2(F32 a, F32 n) { return {_mm512_scalef_ps(a.v, n.v)}; }
OCTAVO_SIMD float sum(F32 a) { return _mm512_reduce_add_ps(a.v); }
OCTAVO_SIMD bool any_above(F32 a, float x) { return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0; }
OCTAVO_SIMD float max_lane(F32 a) { return _mm512_reduce_max_ps(a.v); }

OCTAVO_SIMD Mask mask_range(int64_t begin, int64_t end) {  // lanes begin <= i < end
  const __mmask16 below = begin <= 0 ? 0 : first_lanes(begin);
  return {static_cast<__mmask16>(end <= 0 ? 0 : first_lanes(end) & ~below)};
}
OCTAVO_SIMD Mask less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
OCTAVO_SIMD uint32_t lanes_of(Mask m) { return m.m; }  // a bit a lane
OCTAVO_SIMD F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }

// The lowest byte of each lane's bits.
OCTAVO_SIMD void store_low_bytes(uint8_t* p, F32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, _mm512_castps_si512(a.v)));
}
OCTAVO_SIMD void store_bf16(uint16_t* p, F32 a) {
  const __m256bh rounded = _mm512_cvtneps_pbh(a.v);
  __builtin_memcpy(p, &rounded, 32);
}
// 32 values in order: those of a, then those of b.
OCTAVO_SIMD void store_bf16(uint16_t* p, F32 a, F32 b) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh(b.v, a.v);
  __builtin_memcpy(p, &rounded, 64);
}
OCTAVO_SIMD F32 load_bf16(const uint16_t* p) {
  __m256i halves;
  __builtin_memcpy(&halves, p, 32);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
OCTAVO_SIMD Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_SIMD F32 even(Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16))}; }
OCTAVO_SIMD F32 odd(Pairs a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
OCTAVO_SIMD Pairs zero_odd(Pairs a) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(0x0000ffff))}; }

#define OCTAVO_PAIR_DOT 1  // acc + even * even + odd * odd, both operands bf16
OCTAVO_SIMD Pairs set1_pair(const uint16_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return {_mm512_set1_epi32(word)};
}
OCTAVO_SIMD F32 pair_dot(F32 acc, Pairs a, Pairs b) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
