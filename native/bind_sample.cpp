// Drawing tokens with the kernels of a named instruction set, on numpy arrays: what tests and `octavo bench kernels` call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dispatch.h"
#include "kernels/sample.h"
#include "memory.h"

namespace nb = nanobind;

namespace octavo {

namespace {

using Logits = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bitmap = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = std::vector<int32_t>;

const char* status_name(SampleStatus status) {
  switch (status) {
    case SampleStatus::kOk: return "ok";
    case SampleStatus::kNaN: return "nan";
    case SampleStatus::kInfinity: return "infinity";
    case SampleStatus::kNothingLeft: return "nothing_left";
  }
  return "";
}

// (status, token ids, their log-probabilities, best ids, their log-probabilities)
using Drawn = std::tuple<std::string, Ids, std::vector<float>, Ids, std::vector<float>>;

// A vocabulary's worth of scratch for one instruction set. Not thread-safe.
class Sampler {
 public:
  Sampler(const std::string& isa, int64_t vocab_size)
      : kernels_(&kernels_for(isa)), vocab_size_(vocab_size), bytes_(kernels_->sample_scratch_bytes(vocab_size)) {
    if (vocab_size < 1) throw std::invalid_argument("vocab_size must be at least 1");
    scratch_ = map_memory(bytes_);
  }
  ~Sampler() { unmap_memory(scratch_, bytes_); }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  Drawn sample(Logits logits, double temperature, double top_p, double min_p, int64_t top_k, float repetition_penalty,
               float frequency_penalty, float presence_penalty, const Ids& prompt, const Ids& output,
               const std::vector<std::pair<int32_t, float>>& bias, const Ids& masked, std::optional<Bitmap> allowed,
               uint64_t seed, uint32_t sample_index, int64_t num_samples, int64_t num_top) {
    require_vocabulary(logits);
    if (allowed && static_cast<int64_t>(allowed->shape(0)) * 32 < vocab_size_) {
      throw std::invalid_argument("allowed: needs a bit a token");
    }
    Ids history = prompt;
    history.insert(history.end(), output.begin(), output.end());
    Ids bias_ids;
    std::vector<float> biases;
    for (const auto& [id, value] : bias) {
      bias_ids.push_back(id);
      biases.push_back(value);
    }
    SampleRow row{};
    row.logits = logits.data();
    row.temperature = temperature;
    row.top_p = top_p;
    row.min_p = min_p;
    row.top_k = top_k;
    row.repetition_penalty = repetition_penalty;
    row.frequency_penalty = frequency_penalty;
    row.presence_penalty = presence_penalty;
    row.token_ids = history.data();
    row.num_tokens = static_cast<int64_t>(history.size());
    row.num_prompt_tokens = static_cast<int64_t>(prompt.size());
    row.bias_ids = bias_ids.data();
    row.biases = biases.data();
    row.num_biases = static_cast<int64_t>(biases.size());
    row.masked_ids = masked.data();
    row.num_masked = static_cast<int64_t>(masked.size());
    row.allowed = allowed ? allowed->data() : nullptr;
    row.seed = seed;
    row.position = static_cast<uint32_t>(history.size());
    row.sample_index = sample_index;
    row.num_samples = num_samples;
    row.num_top = num_top;
    Ids ids(static_cast<size_t>(num_samples), -1);
    Ids top_ids(num_top > 0 ? static_cast<size_t>(num_top) : 0, -1);
    std::vector<float> logprobs(num_top >= 0 ? ids.size() : 0);
    std::vector<float> top_logprobs(top_ids.size());
    const SampleOut out{ids.data(), logprobs.data(), top_ids.data(), top_logprobs.data()};
    const SampleStatus status = [&] {
      const nb::gil_scoped_release release;
      return kernels_->sample(row, vocab_size_, scratch_, out);
    }();
    return {status_name(status), ids, logprobs, top_ids, top_logprobs};
  }

  Drawn token_logprobs(Logits logits, const Ids& ids, int64_t num_top) const {
    require_vocabulary(logits);
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size_) throw std::invalid_argument("ids: outside the vocabulary");
    }
    Ids top_ids(static_cast<size_t>(num_top), -1);
    std::vector<float> logprobs(ids.size());
    std::vector<float> top_logprobs(top_ids.size());
    const SampleStatus status =
        kernels_->token_logprobs(logits.data(), vocab_size_, ids.data(), static_cast<int64_t>(ids.size()),
                                 logprobs.data(), num_top, top_ids.data(), top_logprobs.data());
    return {status_name(status), ids, logprobs, top_ids, top_logprobs};
  }

 private:
  void require_vocabulary(const Logits& logits) const {
    if (static_cast<int64_t>(logits.shape(0)) != vocab_size_) {
      throw std::invalid_argument("logits: needs vocab_size entries");
    }
  }

  const Kernels* kernels_;
  int64_t vocab_size_;
  size_t bytes_;
  void* scratch_;
};

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("uniform", &uniform, nb::arg("seed"), nb::arg("position"), nb::arg("sample_index"),
        "The number in [0, 1) that draws one token.");
  nb::class_<Sampler>(m, "Sampler", "Draws from one row of logits at a time, with one instruction set.")
      .def(nb::init<const std::string&, int64_t>(), nb::arg("isa"), nb::arg("vocab_size"))
      .def("sample", &Sampler::sample, nb::arg("logits"), nb::kw_only(), nb::arg("temperature") = 1.0,
           nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0, nb::arg("top_k") = 0, nb::arg("repetition_penalty") = 1.0f,
           nb::arg("frequency_penalty") = 0.0f, nb::arg("presence_penalty") = 0.0f, nb::arg("prompt") = Ids{},
           nb::arg("output") = Ids{}, nb::arg("bias") = std::vector<std::pair<int32_t, float>>{},
           nb::arg("masked") = Ids{}, nb::arg("allowed").none() = nb::none(), nb::arg("seed") = 0,
           nb::arg("sample_index") = 0, nb::arg("num_samples") = 1, nb::arg("num_top") = -1)
      .def("token_logprobs", &Sampler::token_logprobs, nb::arg("logits"), nb::arg("ids"), nb::arg("num_top") = 0);
}

}  // namespace octavo
