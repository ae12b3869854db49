// Running steps from Python: the persistent rows, and a runner over them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "arena.h"
#include "arrays.h"
#include "bindings.h"
#include "drawing.h"
#include "runner.h"
#include "step_layout.h"

namespace nb = nanobind;

namespace octavo {

namespace {

using OutInts = Array<int32_t, 1>;
using OutTable = Array<int32_t, 2>;
using OutDoubles = Array<double, 2>;

// The arrays of executors/rows.py, kept alive, and a step laid out over them.
class StepRows {
 public:
  StepRows(OutTable token_ids, OutInts num_tokens, std::vector<Table> block_tables, int64_t block_size)
      : token_ids_(std::move(token_ids)), num_tokens_(std::move(num_tokens)), tables_(std::move(block_tables)) {
    require(block_size > 0, "sizes are at least 1");
    require(extent(token_ids_, 0) == extent(num_tokens_, 0), "num_tokens: an entry a row");
    rows_.token_ids = token_ids_.data();
    rows_.num_tokens = num_tokens_.data();
    rows_.num_rows = extent(token_ids_, 0);
    rows_.stride = extent(token_ids_, 1);
    rows_.block_size = block_size;
    for (const Table& table : tables_) {
      require(extent(table, 0) == rows_.num_rows && extent(table, 1) == extent(tables_[0], 1),
              "block_tables: all of one shape, with an entry a row");
      rows_.block_tables.push_back(table.data());
      rows_.table_stride = extent(table, 1);
    }
  }

  const PersistentRows& rows() const { return rows_; }
  StepLayout& layout() { return layout_; }
  TokenTable tokens() const { return {rows_.token_ids, rows_.num_tokens, rows_.num_rows, rows_.stride}; }

 private:
  OutTable token_ids_;
  OutInts num_tokens_;
  std::vector<Table> tables_;
  PersistentRows rows_{};
  StepLayout layout_;
};

// For each row that draws the bitmap it is given, or null; empty where there are no bitmaps.
std::vector<const uint32_t*> row_masks(const std::optional<Bitmaps>& masks, const std::vector<int32_t>& mask_of,
                                       size_t num_draws, int64_t vocab_size) {
  if (!masks) return {};
  require(extent(*masks, 1) * 32 >= vocab_size, "masks: a bit a token of the vocabulary");
  require(mask_of.size() == num_draws, "mask_of: an entry a row that draws");
  std::vector<const uint32_t*> found;
  for (const int32_t mask : mask_of) {
    require(mask < extent(*masks, 0), "mask_of names a mask that is not there");
    found.push_back(mask < 0 ? nullptr : masks->data() + mask * extent(*masks, 1));
  }
  return found;
}

// Of ranges of the step's tokens, each summed where its row of `sums` says.
HiddenSums hidden_sums(const std::optional<Table>& pools, std::optional<OutDoubles>& sums, int64_t hidden_size) {
  HiddenSums hidden;
  if (!pools || !sums) return hidden;
  require(extent(*pools, 1) == 3, "pools: [n, 3], first token of the step, the one behind the last, row of sums");
  require(extent(*sums, 1) == hidden_size, "sums: a column a column of the hidden state");
  hidden.sums = sums->data();
  hidden.num_sums = extent(*sums, 0);
  for (int64_t i = 0; i < extent(*pools, 0); ++i) {
    const int32_t* pool = pools->data() + 3 * i;
    for (int32_t token = pool[0]; token < pool[1]; ++token) {
      hidden.tokens.push_back(token);
      hidden.entries.push_back(pool[2]);
    }
  }
  return hidden;
}

// One step; the first token each row drew is appended to it. Returns the seconds inside the model.
double run(Runner& runner, Drawing& drawing, StepRows& rows, std::vector<int32_t> row_ids,
           std::vector<int32_t> num_computed_tokens, std::vector<int32_t> num_scheduled_tokens,
           std::vector<int32_t> first_write, std::vector<int32_t> num_samples, const Table& prompt_queries,
           const std::optional<Bitmaps>& masks, const std::vector<int32_t>& mask_of, std::optional<OutMatrix> logits,
           const std::optional<Table>& pools, std::optional<OutDoubles> sums) {
  require(drawing.serves(runner.vocab_size(), runner.num_threads()), "the drawing was made for another runner");
  require(extent(prompt_queries, 1) == 3, "prompt_queries: [n, 3], token of the step, next token, alternatives");
  const StepPlan plan{std::move(row_ids), std::move(num_computed_tokens), std::move(num_scheduled_tokens),
                      std::move(first_write), std::move(num_samples)};
  StepLayout& layout = rows.layout();
  layout.lay_out(rows.rows(), plan);
  require(!logits || extent(*logits, 0) == static_cast<int64_t>(layout.draw_rows().size()),
          "logits: a row a row that draws");
  require(!logits || extent(*logits, 1) == runner.vocab_size(), "logits: a column a token of the vocabulary");
  std::vector<int32_t> wanted = layout.wanted();
  std::vector<PromptQuery> queries;
  for (int64_t i = 0; i < extent(prompt_queries, 0); ++i) {
    const int32_t* query = prompt_queries.data() + 3 * i;
    queries.push_back({query[0], query[1], query[2]});
    wanted.push_back(query[0]);
  }
  drawing.begin(rows.tokens(), layout.draw_rows(), layout.num_samples(),
                row_masks(masks, mask_of, layout.draw_rows().size(), runner.vocab_size()), std::move(queries),
                logits ? logits->data() : nullptr);
  const HiddenSums hidden = hidden_sums(pools, sums, runner.hidden_size());
  const nb::gil_scoped_release release;
  const auto began = std::chrono::steady_clock::now();
  runner.run(layout.arrays(), wanted, drawing, hidden);
  const auto ended = std::chrono::steady_clock::now();
  append_drawn(rows.rows(), drawing, layout);
  return std::chrono::duration<double>(ended - began).count();
}

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<StepRows>(m, "StepRows", "The arrays of persistent rows, which steps read, and append what is drawn to.")
      .def(nb::init<OutTable, OutInts, std::vector<Table>, int64_t>(), nb::arg("token_ids"), nb::arg("num_tokens"),
           nb::arg("block_tables"), nb::arg("block_size"));

  nb::class_<Runner>(m, "Runner", "Runs a finished program over steps.")
      .def(nb::init<const Program&, Arena&, ThreadPool&, int64_t>(), nb::arg("program"), nb::arg("arena"),
           nb::arg("pool"), nb::arg("max_model_len"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
           nb::keep_alive<1, 4>())
      .def_prop_ro("vocab_size", &Runner::vocab_size)
      .def_prop_ro("hidden_size", &Runner::hidden_size)
      .def_prop_ro("shared_queries", &Runner::shared_queries)
      .def("share_prefixes", &Runner::share_prefixes, nb::arg("share"))
      .def("trim", &Runner::trim, "Gives back the memory of activations; not during a run.")
      .def("run", &run, nb::arg("drawing"), nb::arg("rows"), nb::arg("row_ids"), nb::arg("num_computed_tokens"),
           nb::arg("num_scheduled_tokens"), nb::arg("first_write"), nb::arg("num_samples"), nb::arg("prompt_queries"),
           nb::arg("masks").none(), nb::arg("mask_of"), nb::arg("logits").none(), nb::arg("pools") = nb::none(),
           nb::arg("sums") = nb::none());
}

}  // namespace octavo
