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
#define OCTAVO_BUTTERFLY 1  // lane i: x[i] + x[i ^ kStride] where i has no bit of kStride, else x[i ^ kStride] - x[i]
template <int kStride>
OCTAVO_SIMD F32 butterfly(F32 x) {
  constexpr __mmask16 upper = kStride == 8 ? 0xff00 : kStride == 4 ? 0xf0f0 : kStride == 2 ? 0xcccc : 0xaaaa;
  __m512 other;
  if constexpr (kStride == 8) other = _mm512_maskz_shuffle_f32x4(0xffff, x.v, x.v, 0x4e);
  if constexpr (kStride == 4) other = _mm512_maskz_shuffle_f32x4(0xffff, x.v, x.v, 0xb1);
  if constexpr (kStride == 2) other = _mm512_maskz_permute_ps(0xffff, x.v, 0x4e);
  if constexpr (kStride == 1) other = _mm512_maskz_permute_ps(0xffff, x.v, 0xb1);
  return {_mm512_mask_sub_ps(_mm512_add_ps(x.v, other), upper, other, x.v)};
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

#define OCTAVO_QUAD_DOT 1  // acc + four products of bytes, unsigned by signed
struct I32 { __m512i v; };    // 16 integers
struct Quads { __m512i v; };  // 16 lanes of four bytes

OCTAVO_SIMD I32 set1_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCTAVO_SIMD Quads load_quads(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_SIMD Quads set1_quads(const uint8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return {_mm512_set1_epi32(word)};
}
// In place: gcc 12 copies the sums of the intrinsic until they no longer fit the registers.
OCTAVO_SIMD void add_quad_dot(I32& acc, Quads unsigned_bytes, Quads signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(unsigned_bytes.v), "v"(signed_bytes.v));
}
// The maskz forms, all lanes kept: gcc 12 warns about an uninitialised value inside its own unmasked ones.
OCTAVO_SIMD F32 to_float(I32 a) { return {_mm512_maskz_cvtepi32_ps(0xffff, a.v)}; }
OCTAVO_SIMD I32 to_nearest_int(F32 a) { return {_mm512_maskz_cvtps_epi32(0xffff, a.v)}; }
template <int kBits>
OCTAVO_SIMD I32 shift_right(I32 a) { return {_mm512_maskz_srai_epi32(0xffff, a.v, kBits)}; }
template <int kBits>
OCTAVO_SIMD I32 shift_left(I32 a) { return {_mm512_maskz_slli_epi32(0xffff, a.v, kBits)}; }
OCTAVO_SIMD I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
OCTAVO_SIMD I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
OCTAVO_SIMD void store_bytes(uint8_t* p, I32 a) {  // the lowest byte of each lane
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, a.v));
}
OCTAVO_SIMD int32_t sum(I32 a) { return _mm512_reduce_add_epi32(a.v); }
// Bits of the largest of 64 values that are not negative; what is no number is larger than all.
OCTAVO_SIMD uint32_t max_bits(F32 a, F32 b, F32 c, F32 d) {
  const __m512i ab = _mm512_maskz_max_epu32(0xffff, _mm512_castps_si512(a.v), _mm512_castps_si512(b.v));
  const __m512i cd = _mm512_maskz_max_epu32(0xffff, _mm512_castps_si512(c.v), _mm512_castps_si512(d.v));
  return _mm512_reduce_max_epu32(_mm512_maskz_max_epu32(0xffff, ab, cd));
}
OCTAVO_SIMD F32 multiply_unless_zero(F32 a, F32 b) {  // +0 where a is 0
  return {_mm512_maskz_mul_ps(_mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NEQ_UQ), a.v, b.v)};
}
// Upper bytes of 64 numbers of 16 bits (larger ones become the largest) at p, lower ones at p + 64. Four lanes of a, of
// b, of c, of d, then the next four of each.
OCTAVO_SIMD void store_digits(uint8_t* p, I32 a, I32 b, I32 c, I32 d) {
  const __m512i ab = _mm512_packus_epi32(a.v, b.v), cd = _mm512_packus_epi32(c.v, d.v);
  const __m512i low = _mm512_set1_epi16(255);
  _mm512_storeu_si512(p, _mm512_packus_epi16(_mm512_srli_epi16(ab, 8), _mm512_srli_epi16(cd, 8)));
  _mm512_storeu_si512(p + 64, _mm512_packus_epi16(_mm512_and_si512(ab, low), _mm512_and_si512(cd, low)));
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
