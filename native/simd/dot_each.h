// A loop over a tile's rows that the compiler unrolls before it places anything.
#pragma once

// Functions and lambdas of a tile lie in its one loop: none may become a call.
#define OCTAVO_FLAT __attribute__((always_inline))

namespace octavo {
namespace OCTAVO_ISA_NS {

template <int kValue>
struct Index {
  constexpr operator int() const { return kValue; }
  constexpr int operator()() const { return kValue; }  // where a template asks for it
};

// f(0) ... f(R - 1), each with a constant: gcc 12 keeps an array in registers only if every index is one early on.
template <int R, int kFirst = 0, class F>
OCTAVO_FLAT static inline void each(const F& f) {
  if constexpr (kFirst < R) {
    f(Index<kFirst>{});
    each<R, kFirst + 1>(f);
  }
}

}  // namespace OCTAVO_ISA_NS
}  // namespace octavo
