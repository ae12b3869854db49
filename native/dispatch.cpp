#include "dispatch.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {

namespace plain { const Kernels& kernels(); }
#ifdef OCTAVO_HAVE_AVX2
namespace avx2 { const Kernels& kernels(); }
#endif
#ifdef OCTAVO_HAVE_AVX512
namespace avx512 { const Kernels& kernels(); }
#endif
#ifdef OCTAVO_HAVE_NEON
namespace neon { const Kernels& kernels(); }
#endif

namespace {

#if defined(__x86_64__)

struct X86 {
  bool avx2 = false;    // AVX2, FMA, F16C
  bool avx512 = false;  // F, BW, VL, DQ, VNNI, BF16
};

constexpr bool bit(unsigned word, int index) { return (word >> index) & 1u; }

X86 detect() {
  X86 found;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool osxsave = bit(c, 27), avx = bit(c, 28), fma = bit(c, 12), f16c = bit(c, 29);
  if (!osxsave || !avx) return found;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const bool saves_ymm = (low & 0x6u) == 0x6u;
  const bool saves_zmm = (low & 0xe6u) == 0xe6u;
  unsigned b7 = 0, c7 = 0, a7s1 = 0, max_sub = 0;
  if (!__get_cpuid_count(7, 0, &max_sub, &b7, &c7, &d)) return found;
  if (max_sub >= 1) __get_cpuid_count(7, 1, &a7s1, &b, &c, &d);
  found.avx2 = saves_ymm && bit(b7, 5) && fma && f16c;
  const bool f = bit(b7, 16), dq = bit(b7, 17), bw = bit(b7, 30), vl = bit(b7, 31);
  const bool vnni = bit(c7, 11), bf16 = bit(a7s1, 5);
  found.avx512 = found.avx2 && saves_zmm && f && dq && bw && vl && vnni && bf16;
  return found;
}

#endif

// Tables this process may run, best first.
std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  const X86 cpu = detect();
#ifdef OCTAVO_HAVE_AVX512
  if (cpu.avx512) tables.push_back(&avx512::kernels());
#endif
#ifdef OCTAVO_HAVE_AVX2
  if (cpu.avx2) tables.push_back(&avx2::kernels());
#endif
  (void)cpu;
#endif
#ifdef OCTAVO_HAVE_NEON
  tables.push_back(&neon::kernels());
#endif
  tables.push_back(&plain::kernels());
  return tables;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* table : runnable()) names.emplace_back(table->isa);
  return names;
}

const Kernels& kernels_for(const std::string& isa) {
  std::string names;
  for (const Kernels* table : runnable()) {
    if (isa.empty() || isa == table->isa) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->isa);
  }
  throw std::invalid_argument("instruction set '" + isa + "' is not to be had here; available: " + names);
}

}  // namespace octavo
