// What one thread of this instruction set can do at most, from loops that touch no memory.
//
// A peak is that of the shortest sequence of instructions that multiplies and adds such numbers, never of a particular
// kernel: a kernel that also unpacks, scales or checks stays below it. Independent chains hide the latency.
#pragma once

#include "kernels.h"
#include "simd/dot_each.h"
#include "simd/vector.h"

namespace octavo {
namespace OCTAVO_ISA_NS {

constexpr int kChains = OCTAVO_NUM_REGISTERS >= 32 ? 12 : OCTAVO_NUM_REGISTERS >= 8 ? 6 : 2;

// Two operations a lane and multiply-add. All lanes start apart: the compiler would compute equal registers once.
static int64_t spin_floats(int64_t rounds) {
  float starts[16 * kChains];
  for (int i = 0; i < 16 * kChains; ++i) starts[i] = static_cast<float>(i);
  F32 sums[kChains];
  each<kChains>([&](auto c) OCTAVO_FLAT { sums[c] = load(starts + 16 * c); });
  const F32 x = set1(1e-3f);
  for (int64_t i = 0; i < rounds; ++i) {
    each<kChains>([&](auto c) OCTAVO_FLAT { sums[c] = fma(x, x, sums[c]); });
  }
  F32 all = zero();
  each<kChains>([&](auto c) OCTAVO_FLAT { all = all + sums[c]; });
  volatile float kept = sum(all);
  (void)kept;
  return rounds * kChains * 16 * 2;
}

#if defined(OCTAVO_ISA_AVX512)

static int64_t spin_pairs(int64_t rounds) {
  __m512 sums[kChains];
  each<kChains>([&](auto c) OCTAVO_FLAT { sums[c] = _mm512_setzero_ps(); });
  const __m512i x = _mm512_set1_epi32(0x3f803f80);
  for (int64_t i = 0; i < rounds; ++i) {
    each<kChains>([&](auto c) OCTAVO_FLAT { asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[c]) : "v"(x)); });
  }
  return rounds * kChains * 32 * 2;
}

static int64_t spin_bytes(int64_t rounds) {
  __m512i sums[kChains];
  each<kChains>([&](auto c) OCTAVO_FLAT { sums[c] = _mm512_setzero_si512(); });
  const __m512i x = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    each<kChains>([&](auto c) OCTAVO_FLAT { asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[c]) : "v"(x)); });
  }
  return rounds * kChains * 64 * 2;
}

#else

// No instruction for pairs of bf16: they are multiplied as floats.
static int64_t spin_pairs(int64_t rounds) { return spin_floats(rounds); }

#if defined(OCTAVO_ISA_AVX2)

// Products of bytes summed in 16 bits, as short as it gets; sums of full-size bytes have to widen, too.
static int64_t spin_bytes(int64_t rounds) {
  __m256i sums[kChains];
  each<kChains>([&](auto c) OCTAVO_FLAT { sums[c] = _mm256_setzero_si256(); });
  const __m256i x = _mm256_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    each<kChains>([&](auto c) OCTAVO_FLAT {
      __m256i products;
      asm volatile("vpmaddubsw %2, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sums[c]), "=&x"(products) : "x"(x));
    });
  }
  return rounds * kChains * 32 * 2;
}

#elif defined(OCTAVO_ISA_NEON) && defined(__ARM_FEATURE_DOTPROD)

static int64_t spin_bytes(int64_t rounds) {
  int32x4_t sums[4 * kChains];
  each<4 * kChains>([&](auto c) OCTAVO_FLAT { sums[c] = vdupq_n_s32(0); });
  const int8x16_t x = vdupq_n_s8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    each<4 * kChains>([&](auto c) OCTAVO_FLAT {
      asm volatile("sdot %0.4s, %1.16b, %1.16b" : "+w"(sums[c]) : "w"(x));
    });
  }
  return rounds * 4 * kChains * 16 * 2;
}

#else

// Bytes are multiplied as floats, which hold their products exactly.
static int64_t spin_bytes(int64_t rounds) { return spin_floats(rounds); }

#endif
#endif

static int64_t spin(Unit unit, int64_t rounds) {
  switch (unit) {
    case Unit::kPairs: return spin_pairs(rounds);
    case Unit::kBytes: return spin_bytes(rounds);
    case Unit::kFloats: break;
  }
  return spin_floats(rounds);
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
