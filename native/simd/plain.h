// Sixteen floats in the compiler's own vectors of four: any processor. simd/neon.h adds what Arm does in one instruction.
#pragma once

#include <stdint.h>

#define OCTAVO_SIMD static inline __attribute__((always_inline))
#define OCTAVO_NUM_REGISTERS 4  // of 16 floats

namespace octavo {
namespace OCTAVO_ISA_NS {

typedef float V4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

struct F32 { V4 a, b, c, d; };
struct Mask { I4 a, b, c, d; };
struct Pairs { I4 a, b, c, d; };  // 16 lanes of two bf16: even (low half) and odd

#define OCTAVO_EACH(f) {f(a), f(b), f(c), f(d)}

OCTAVO_SIMD V4 v4(float x) { return V4{x, x, x, x}; }
OCTAVO_SIMD I4 i4(int32_t x) { return I4{x, x, x, x}; }
OCTAVO_SIMD V4 load4(const float* p) {
  V4 x;
  __builtin_memcpy(&x, p, 16);
  return x;
}
OCTAVO_SIMD void store4(float* p, V4 x) { __builtin_memcpy(p, &x, 16); }
OCTAVO_SIMD V4 as_float(I4 x) { return reinterpret_cast<V4>(x); }
OCTAVO_SIMD I4 as_int(V4 x) { return reinterpret_cast<I4>(x); }
OCTAVO_SIMD V4 select4(I4 m, V4 x, V4 y) { return as_float((m & as_int(x)) | (~m & as_int(y))); }
#ifdef OCTAVO_FMA4
OCTAVO_SIMD V4 fma4(V4 x, V4 y, V4 z) { return OCTAVO_FMA4(x, y, z); }
#else
OCTAVO_SIMD V4 fma4(V4 x, V4 y, V4 z) { return x * y + z; }
#endif

OCTAVO_SIMD F32 set1(float x) { return {v4(x), v4(x), v4(x), v4(x)}; }
OCTAVO_SIMD F32 zero() { return set1(0.0f); }
OCTAVO_SIMD F32 load(const float* p) { return {load4(p), load4(p + 4), load4(p + 8), load4(p + 12)}; }
OCTAVO_SIMD void store(float* p, F32 x) {
  store4(p, x.a);
  store4(p + 4, x.b);
  store4(p + 8, x.c);
  store4(p + 12, x.d);
}
OCTAVO_SIMD F32 load_n(const float* p, int64_t n) {
  float lanes[16] = {};
  for (int64_t i = 0; i < 16; ++i) lanes[i] = i < n ? p[i] : 0.0f;
  return load(lanes);
}
OCTAVO_SIMD void store_n(float* p, int64_t n, F32 x) {
  float lanes[16];
  store(lanes, x);
  for (int64_t i = 0; i < 16; ++i) {
    if (i < n) p[i] = lanes[i];
  }
}

OCTAVO_SIMD F32 operator+(F32 x, F32 y) { return {x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d}; }
OCTAVO_SIMD F32 operator-(F32 x, F32 y) { return {x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d}; }
OCTAVO_SIMD F32 operator*(F32 x, F32 y) { return {x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d}; }
OCTAVO_SIMD F32 operator/(F32 x, F32 y) { return {x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d}; }
OCTAVO_SIMD F32 fma(F32 x, F32 y, F32 z) {
#define OCTAVO_LANE(l) fma4(x.l, y.l, z.l)
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
// A NaN in the second operand is the result.
OCTAVO_SIMD F32 max(F32 x, F32 y) {
#define OCTAVO_LANE(l) select4(x.l > y.l, x.l, y.l)
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD F32 min(F32 x, F32 y) {
#define OCTAVO_LANE(l) select4(x.l < y.l, x.l, y.l)
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD F32 abs(F32 x) {
#define OCTAVO_LANE(l) as_float(as_int(x.l) & i4(INT32_MAX))
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD F32 copy_sign(F32 x, F32 sign) {
#define OCTAVO_LANE(l) as_float((as_int(x.l) & i4(INT32_MAX)) | (as_int(sign.l) & i4(INT32_MIN)))
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
// For |x| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
OCTAVO_SIMD F32 round_nearest(F32 x) {
#define OCTAVO_LANE(l) ((x.l + v4(12582912.0f)) - v4(12582912.0f))
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD V4 power2(V4 n) { return as_float((__builtin_convertvector(n, I4) + i4(127)) << 23); }
// x * 2^n for whole n in [-126, 127]; 0 at kZeroPower.
constexpr float kZeroPower = -127.0f;
OCTAVO_SIMD F32 scale2(F32 x, F32 n) {
#define OCTAVO_LANE(l) (x.l * power2(n.l))
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD float sum(F32 x) {
  const V4 four = (x.a + x.c) + (x.b + x.d);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
OCTAVO_SIMD bool any_above(F32 x, float y) {
  const I4 above = ((x.a > v4(y)) | (x.b > v4(y))) | ((x.c > v4(y)) | (x.d > v4(y)));
  return (above[0] | above[1] | above[2] | above[3]) != 0;
}
OCTAVO_SIMD float max_lane(F32 x) {
  float lanes[16];
  store(lanes, x);
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

OCTAVO_SIMD I4 lanes4(int32_t base, int64_t begin, int64_t end) {
  const I4 index = I4{0, 1, 2, 3} + i4(base);
  const int32_t low = static_cast<int32_t>(begin < 0 ? 0 : begin > 16 ? 16 : begin);
  const int32_t high = static_cast<int32_t>(end < 0 ? 0 : end > 16 ? 16 : end);
  return (index >= i4(low)) & (index < i4(high));
}
OCTAVO_SIMD Mask mask_range(int64_t begin, int64_t end) {  // lanes begin <= i < end
  return {lanes4(0, begin, end), lanes4(4, begin, end), lanes4(8, begin, end), lanes4(12, begin, end)};
}
OCTAVO_SIMD Mask less(F32 x, F32 y) { return {x.a < y.a, x.b < y.b, x.c < y.c, x.d < y.d}; }
OCTAVO_SIMD uint32_t lanes_of(Mask m) {  // a bit a lane
  const I4 any = m.a | m.b | m.c | m.d;
  if ((any[0] | any[1] | any[2] | any[3]) == 0) return 0;
  int32_t lanes[16];
  __builtin_memcpy(lanes, &m, 64);
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(lanes[i] & 1) << i;
  return bits;
}
OCTAVO_SIMD F32 select(Mask m, F32 x, F32 y) {
#define OCTAVO_LANE(l) select4(m.l, x.l, y.l)
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}

// The lowest byte of each lane's bits.
OCTAVO_SIMD void store_low_bytes(uint8_t* p, F32 x) {
  uint32_t lanes[16];
  __builtin_memcpy(lanes, &x, 64);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(lanes[i]);
}
OCTAVO_SIMD uint16_t round_bf16(float x) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits | 0x00400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
OCTAVO_SIMD void store_bf16(uint16_t* p, F32 x) {
  float lanes[16];
  store(lanes, x);
  for (int i = 0; i < 16; ++i) p[i] = round_bf16(lanes[i]);
}
OCTAVO_SIMD Pairs load_pairs(const void* p) {
  Pairs x;
  __builtin_memcpy(&x, p, 64);
  return x;
}
OCTAVO_SIMD F32 even(Pairs x) {
#define OCTAVO_LANE(l) as_float(x.l << 16)
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD F32 odd(Pairs x) {
#define OCTAVO_LANE(l) as_float(x.l & i4(static_cast<int32_t>(0xffff0000u)))
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}
OCTAVO_SIMD Pairs zero_odd(Pairs x) {
#define OCTAVO_LANE(l) (x.l & i4(0x0000ffff))
  return OCTAVO_EACH(OCTAVO_LANE);
#undef OCTAVO_LANE
}

#undef OCTAVO_EACH

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
