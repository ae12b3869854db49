// A weight with its memory: what Python holds of a matrix once it is packed. Immutable after packing.
#pragma once

#include <memory>
#include <string>

#include "dispatch.h"
#include "kernels.h"

namespace octavo {

TensorType tensor_type_from(const std::string& name);  // throws std::invalid_argument
Form form_from(const std::string& name);  // "f32", "bf16", "int8", "int4", "w8a8"; throws std::invalid_argument
const char* form_name(Form form);
Activation activation_from(const std::string& name);  // "silu", "gelu", "gelu_tanh", "relu"; throws std::invalid_argument

// Bytes a tensor of this type and shape has in its file. Throws where rows are not whole quantised blocks.
size_t tensor_bytes(TensorType type, int64_t rows, int64_t cols);

// The tensor, its sizes checked: `num_scales` is the rows for kI8 and 0 for every other type. Throws
// std::invalid_argument.
FileTensor checked_tensor(const uint8_t* bytes, size_t num_bytes, const float* row_scales, size_t num_scales,
                          TensorType type, int64_t rows, int64_t cols);

// One range of addresses, in huge pages, that the matrices of a model are packed into one after another: a step reads
// them all, and small pages would cost a translation every 4 KB.
class WeightMemory {
 public:
  explicit WeightMemory(size_t bytes);  // an upper bound: what is never taken is never resident
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  uint8_t* take(size_t bytes);  // 64-byte aligned, zeroed; null when the range is used up

 private:
  size_t bytes_, used_ = 0;
  uint8_t* data_;
};

class PackedWeight {
 public:
  // Takes memory, from `memory` while it has some; packs nothing. Throws std::invalid_argument for a type that cannot
  // become this form, and for more columns than its sums allow.
  PackedWeight(const Kernels& kernels, TensorType type, Form form, int64_t rows, int64_t cols,
               std::shared_ptr<WeightMemory> memory = nullptr);
  ~PackedWeight();
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;

  const Kernels& kernels() const { return *kernels_; }
  const Weight& weight() const { return weight_; }
  size_t num_bytes() const { return weight_.panel_bytes * static_cast<size_t>(weight_.num_panels); }

  // Packs panels [begin, end) from the file's bytes.
  void pack(const FileTensor& from, int64_t begin, int64_t end) const;

 private:
  const Kernels* kernels_;
  Weight weight_;
  std::shared_ptr<WeightMemory> memory_;  // null: the weight has a mapping of its own
};

}  // namespace octavo
