#include "packed_weight.h"

#include <stdexcept>
#include <utility>

#include "memory.h"

namespace octavo {

TensorType tensor_type_from(const std::string& name) {
  if (name == "F32") return TensorType::kF32;
  if (name == "F16") return TensorType::kF16;
  if (name == "BF16") return TensorType::kBF16;
  if (name == "I8") return TensorType::kI8;
  if (name == "Q8_0") return TensorType::kQ8_0;
  if (name == "Q4_0") return TensorType::kQ4_0;
  if (name == "Q4_1") return TensorType::kQ4_1;
  if (name == "Q6_K") return TensorType::kQ6_K;
  throw std::invalid_argument("tensor type " + name +
                              " cannot be packed; known: F32, F16, BF16, I8, Q8_0, Q4_0, Q4_1, Q6_K");
}

Form form_from(const std::string& name) {
  if (name == "f32") return Form::kF32;
  if (name == "bf16") return Form::kBF16;
  if (name == "int8") return Form::kInt8;
  if (name == "int4") return Form::kInt4;
  if (name == "w8a8") return Form::kW8A8;
  throw std::invalid_argument("weight form " + name + " is unknown; known: f32, bf16, int8, int4, w8a8");
}

const char* form_name(Form form) {
  switch (form) {
    case Form::kF32: return "f32";
    case Form::kBF16: return "bf16";
    case Form::kInt8: return "int8";
    case Form::kInt4: return "int4";
    case Form::kW8A8: return "w8a8";
  }
  return "";
}

Activation activation_from(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  throw std::invalid_argument("activation " + name + " is unknown; known: silu, gelu, gelu_tanh, relu");
}

namespace {

struct BlockShape {
  int64_t values;
  size_t bytes;
};

BlockShape block_shape(TensorType type) {
  switch (type) {
    case TensorType::kF32: return {1, 4};
    case TensorType::kF16: return {1, 2};
    case TensorType::kBF16: return {1, 2};
    case TensorType::kI8: return {1, 1};
    case TensorType::kQ8_0: return {32, 34};
    case TensorType::kQ4_0: return {32, 18};
    case TensorType::kQ4_1: return {32, 20};
    case TensorType::kQ6_K: return {256, 210};
  }
  return {1, 4};
}

// Everything can be rounded to w8a8. Else quantised values become the integer form of their width, and keep their bits;
// six bits have no form of their own and are rounded to int8.
bool can_become(TensorType type, Form form) {
  if (form == Form::kW8A8) return true;
  switch (type) {
    case TensorType::kI8: return false;
    case TensorType::kQ8_0:
    case TensorType::kQ6_K: return form == Form::kInt8;
    case TensorType::kQ4_0:
    case TensorType::kQ4_1: return form == Form::kInt4;
    default: return form == Form::kF32 || form == Form::kBF16;
  }
}

}  // namespace

size_t tensor_bytes(TensorType type, int64_t rows, int64_t cols) {
  const BlockShape block = block_shape(type);
  if (rows < 0 || cols < 0 || cols % block.values != 0) {
    throw std::invalid_argument("rows of " + std::to_string(cols) + " values are not whole blocks of " +
                                std::to_string(block.values));
  }
  return static_cast<size_t>(rows) * static_cast<size_t>(cols / block.values) * block.bytes;
}

FileTensor checked_tensor(const uint8_t* bytes, size_t num_bytes, const float* row_scales, size_t num_scales,
                          TensorType type, int64_t rows, int64_t cols) {
  if (num_bytes != tensor_bytes(type, rows, cols)) {
    throw std::invalid_argument("raw: the wrong number of bytes for this type and shape");
  }
  if (num_scales != (type == TensorType::kI8 ? static_cast<size_t>(rows) : 0)) {
    throw std::invalid_argument("row_scales: one a row of an I8 tensor, and none for any other type");
  }
  return {bytes, type, row_scales};
}

WeightMemory::WeightMemory(size_t bytes) : bytes_(bytes), data_(static_cast<uint8_t*>(map_memory(bytes))) {}

WeightMemory::~WeightMemory() { unmap_memory(data_, bytes_); }

uint8_t* WeightMemory::take(size_t bytes) {
  const size_t begin = (used_ + 63) / 64 * 64;
  if (begin > bytes_ || bytes > bytes_ - begin) return nullptr;
  used_ = begin + bytes;
  return data_ + begin;
}

PackedWeight::PackedWeight(const Kernels& kernels, TensorType type, Form form, int64_t rows, int64_t cols,
                           std::shared_ptr<WeightMemory> memory)
    : kernels_(&kernels), weight_{}, memory_(std::move(memory)) {
  if (rows < 1 || cols < 1) throw std::invalid_argument("a weight needs at least one row and one column");
  if (!can_become(type, form)) {
    throw std::invalid_argument(std::string("this tensor type cannot be held as ") + form_name(form));
  }
  tensor_bytes(type, rows, cols);
  if (form == Form::kW8A8 && cols > kMaxW8A8Cols) {
    throw std::invalid_argument("w8a8 sums up to " + std::to_string(kMaxW8A8Cols) +
                                " columns in 32 bits, this weight has " + std::to_string(cols));
  }
  weight_.form = form;
  weight_.has_min = form == Form::kInt4 && type == TensorType::kQ4_1;
  weight_.rows = rows;
  weight_.cols = cols;
  weight_.num_panels = (rows + kPanelRows - 1) / kPanelRows;
  weight_.panel_bytes = kernels.panel_bytes(form, weight_.has_min, cols);
  if (memory_ != nullptr) weight_.data = memory_->take(num_bytes());
  if (weight_.data == nullptr) {
    memory_.reset();
    weight_.data = static_cast<uint8_t*>(map_memory(num_bytes()));
  }
}

PackedWeight::~PackedWeight() {
  if (memory_ == nullptr) unmap_memory(weight_.data, num_bytes());
}

void PackedWeight::pack(const FileTensor& from, int64_t begin, int64_t end) const {
  kernels_->pack(from, weight_, begin, end);
}

}  // namespace octavo
