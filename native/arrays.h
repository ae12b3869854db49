// The numpy arrays the module takes, and how a wrong one is refused.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

namespace octavo {

template <class T, int kDims>
using Array = nanobind::ndarray<T, nanobind::ndim<kDims>, nanobind::c_contig, nanobind::device::cpu>;

using Bytes = Array<const uint8_t, 1>;
using Vector = Array<const float, 1>;
using Matrix = Array<const float, 2>;
using OutVector = Array<float, 1>;
using OutMatrix = Array<float, 2>;
using Ints = Array<const int32_t, 1>;
using Longs = Array<const int64_t, 1>;
using Table = Array<const int32_t, 2>;
using Bitmaps = Array<const uint32_t, 2>;

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class A>
int64_t extent(const A& array, size_t axis) {
  return static_cast<int64_t>(array.shape(axis));
}

}  // namespace octavo
