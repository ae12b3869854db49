// The thread pool, packed weights and the KV arena as Python holds them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "arena.h"
#include "arrays.h"
#include "bindings.h"
#include "packed_weight.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace octavo {

namespace {

KVType kv_type_from(const std::string& name) {
  if (name == "bfloat16") return KVType::kBF16;
  if (name == "float32") return KVType::kF32;
  if (name == "int8") return KVType::kInt8;
  throw std::invalid_argument("KV type " + name + " is unknown; known: bfloat16, float32, int8");
}

std::unique_ptr<PackedWeight> pack_weight(ThreadPool& pool, std::shared_ptr<WeightMemory> memory,
                                          const std::string& isa, Bytes raw, const std::string& type_name,
                                          const std::string& form, int64_t rows, int64_t cols,
                                          std::optional<Vector> row_scales) {
  const TensorType type = tensor_type_from(type_name);
  const FileTensor from = checked_tensor(raw.data(), raw.size(), row_scales ? row_scales->data() : nullptr,
                                         row_scales ? row_scales->size() : 0, type, rows, cols);
  auto packed = std::make_unique<PackedWeight>(kernels_for(isa), type, form_from(form), rows, cols,
                                               std::move(memory));
  const nb::gil_scoped_release release;
  pool.run([&](int thread) {
    const Share panels = share_of(packed->weight().num_panels, thread, pool.size());
    packed->pack(from, panels.begin, panels.end);
  });
  return packed;
}

// For tests of the pool: each thread adds one to a cell of its own between barriers and checks that every other thread's
// cell is as far; returns how often each thread saw all in step.
std::vector<int64_t> count_in_step(ThreadPool& pool, int num_runs, int num_barriers) {
  const size_t size = static_cast<size_t>(pool.size());
  std::vector<int64_t> cells(size * 16), in_step(size * 16);
  const nb::gil_scoped_release release;
  for (int run = 0; run < num_runs; ++run) {
    pool.run([&](int thread) {
      const size_t own = static_cast<size_t>(thread) * 16;
      for (int i = 0; i < num_barriers; ++i) {
        ++cells[own];
        pool.barrier(thread);
        bool same = true;
        for (size_t other = 0; other < size; ++other) same = same && cells[other * 16] == cells[own];
        in_step[own] += same;
        pool.barrier(thread);
      }
    });
  }
  std::vector<int64_t> counts;
  for (size_t thread = 0; thread < size; ++thread) counts.push_back(in_step[thread * 16]);
  return counts;
}

nb::bytes read_block(const Arena& arena, int64_t id) {
  return nb::bytes(reinterpret_cast<const char*>(arena.block(id)), arena.block_bytes());
}

void write_block(Arena& arena, int64_t id, nb::bytes payload) {
  require(payload.size() == arena.block_bytes(), "payload: must be block_bytes long");
  std::memcpy(arena.block(id), payload.c_str(), arena.block_bytes());
}

}  // namespace

void bind_arena(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool", "A fixed team of threads; the caller's is one of them.")
      .def(nb::init<int>(), nb::arg("num_threads"))
      .def_prop_ro("size", &ThreadPool::size)
      .def("count", &count_in_step, nb::arg("num_runs"), nb::arg("num_barriers"));

  nb::class_<WeightMemory>(m, "WeightMemory", "One range in huge pages that matrices are packed into.")
      .def(nb::init<size_t>(), nb::arg("num_bytes"));

  nb::class_<PackedWeight>(m, "PackedWeight", "A matrix packed for one instruction set; immutable.")
      .def_prop_ro("isa", [](const PackedWeight& w) { return std::string(w.kernels().isa); })
      .def_prop_ro("form", [](const PackedWeight& w) { return std::string(form_name(w.weight().form)); })
      .def_prop_ro("has_min", [](const PackedWeight& w) { return w.weight().has_min; })
      .def_prop_ro("rows", [](const PackedWeight& w) { return w.weight().rows; })
      .def_prop_ro("cols", [](const PackedWeight& w) { return w.weight().cols; })
      .def_prop_ro("num_bytes", &PackedWeight::num_bytes);

  m.def("pack_weight", &pack_weight, nb::arg("pool"), nb::arg("memory").none(), nb::arg("isa"), nb::arg("raw"), nb::arg("tensor_type"),
        nb::arg("form"), nb::arg("rows"), nb::arg("cols"), nb::arg("row_scales").none() = nb::none(),
        "Packs a tensor's file bytes with every thread of the pool.");

  nb::class_<Arena>(m, "Arena", "Paged KV memory of one executor.")
      .def("__init__",
           [](Arena* self, int64_t num_blocks, int64_t block_size, int64_t num_layers, int64_t num_kv_heads,
              int64_t head_dim, const std::string& dtype) {
             new (self) Arena(num_blocks, block_size, num_layers, num_kv_heads, head_dim, kv_type_from(dtype));
           },
           nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("num_layers"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::arg("dtype"))
      .def_prop_ro("num_blocks", &Arena::num_blocks)
      .def_prop_ro("block_bytes", &Arena::block_bytes)
      .def("copy", &Arena::copy, nb::arg("source_target"))
      .def("release", &Arena::release, nb::arg("blocks"))
      .def("read", &read_block, nb::arg("block"))
      .def("write", &write_block, nb::arg("block"), nb::arg("payload"));
}

}  // namespace octavo
