// Sixteen floats in two AVX2 registers, with fused multiply-add.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define OCTAVO_SIMD static inline __attribute__((always_inline))
#define OCTAVO_NUM_REGISTERS 8  // of 16 floats

namespace octavo {
namespace OCTAVO_ISA_NS {

struct F32 { __m256 a, b; };
struct Mask { __m256 a, b; };
struct Pairs { __m256i a, b; };  // 16 lanes of two bf16: even (low half) and odd

OCTAVO_SIMD F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OCTAVO_SIMD F32 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_SIMD F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_SIMD void store(float* p, F32 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
OCTAVO_SIMD __m256i lanes_below(int64_t n) {  // all ones in lanes i < n, of eight
  const int32_t bound = static_cast<int32_t>(n < 0 ? 0 : n > 8 ? 8 : n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
OCTAVO_SIMD F32 load_n(const float* p, int64_t n) {
  F32 x = {_mm256_maskload_ps(p, lanes_below(n)), _mm256_setzero_ps()};
  if (n > 8) x.b = _mm256_maskload_ps(p + 8, lanes_below(n - 8));
  return x;
}
OCTAVO_SIMD void store_n(float* p, int64_t n, F32 x) {
  _mm256_maskstore_ps(p, lanes_below(n), x.a);
  if (n > 8) _mm256_maskstore_ps(p + 8, lanes_below(n - 8), x.b);
}

OCTAVO_SIMD F32 operator+(F32 x, F32 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
OCTAVO_SIMD F32 operator-(F32 x, F32 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
OCTAVO_SIMD F32 operator*(F32 x, F32 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OCTAVO_SIMD F32 operator/(F32 x, F32 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
OCTAVO_SIMD F32 fma(F32 x, F32 y, F32 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// A NaN in the second operand is the result.
OCTAVO_SIMD F32 max(F32 x, F32 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
OCTAVO_SIMD F32 min(F32 x, F32 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
OCTAVO_SIMD F32 abs(F32 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
OCTAVO_SIMD F32 copy_sign(F32 magnitude, F32 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.a), _mm256_and_ps(bit, sign.a)),
          _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.b), _mm256_and_ps(bit, sign.b))};
}
OCTAVO_SIMD F32 round_nearest(F32 x) {
  return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
OCTAVO_SIMD __m256 power2(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
// x * 2^n for whole n in [-126, 127]; 0 at kZeroPower.
constexpr float kZeroPower = -127.0f;
OCTAVO_SIMD F32 scale2(F32 x, F32 n) { return {_mm256_mul_ps(x.a, power2(n.a)), _mm256_mul_ps(x.b, power2(n.b))}; }
OCTAVO_SIMD float sum(F32 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
OCTAVO_SIMD bool any_above(F32 x, float y) {
  const __m256 bound = _mm256_set1_ps(y);
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, bound, _CMP_GT_OQ), _mm256_cmp_ps(x.b, bound, _CMP_GT_OQ))) !=
         0;
}
OCTAVO_SIMD float max_lane(F32 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

OCTAVO_SIMD Mask mask_range(int64_t begin, int64_t end) {  // lanes begin <= i < end
  return {_mm256_castsi256_ps(_mm256_andnot_si256(lanes_below(begin), lanes_below(end))),
          _mm256_castsi256_ps(_mm256_andnot_si256(lanes_below(begin - 8), lanes_below(end - 8)))};
}
OCTAVO_SIMD Mask less(F32 x, F32 y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
OCTAVO_SIMD uint32_t lanes_of(Mask m) {  // a bit a lane
  return static_cast<uint32_t>(_mm256_movemask_ps(m.a) | _mm256_movemask_ps(m.b) << 8);
}
OCTAVO_SIMD F32 select(Mask m, F32 x, F32 y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}

// The lowest byte of each lane's bits.
OCTAVO_SIMD void store_low_bytes(uint8_t* p, F32 x) {
  const __m256i low = _mm256_set1_epi32(255);
  const __m256i a = _mm256_and_si256(_mm256_castps_si256(x.a), low), b = _mm256_and_si256(_mm256_castps_si256(x.b), low);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
  const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
OCTAVO_SIMD __m128i round_bf16(__m256 x) {  // to nearest, ties to even; NaN stays NaN
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lowest, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000)), nan);
  rounded = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
OCTAVO_SIMD void store_bf16(uint16_t* p, F32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), round_bf16(x.a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), round_bf16(x.b));
}
OCTAVO_SIMD Pairs load_pairs(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
OCTAVO_SIMD F32 even(Pairs x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16))};
}
OCTAVO_SIMD F32 odd(Pairs x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(x.a, high)), _mm256_castsi256_ps(_mm256_and_si256(x.b, high))};
}
OCTAVO_SIMD Pairs zero_odd(Pairs x) {
  const __m256i low = _mm256_set1_epi32(0x0000ffff);
  return {_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)};
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
