#include "engine/step_measure.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/rng.h"

namespace moesaic {
namespace {

constexpr int64_t kShortKv = 16;    // cached rows of the sequences that decode in the table
constexpr int64_t kLongKv = 512;    // and where the time of attention is measured
constexpr int64_t kFewTokens = 64;  // prompt chunks that show what cached rows cost
constexpr int64_t kManyTokens = 512;
constexpr int64_t kVerifiedTokens = 4;  // of a sequence, where it is measured what they share
// Of a step that is not attention: on a busy machine the time of attention may come out as more than all.
constexpr double kLeastShare = 0.1;
constexpr double kNotMeasured = std::numeric_limits<double>::infinity();

// What every group does: tokens of sequences that have `decode_kv` rows, query_len each, and a chunk of a prompt.
struct Shape {
  int64_t num_decode_seqs = 0, query_len = 1, decode_kv = 0;
  int64_t num_prefill = 0, prefill_kv = 0;

  GroupWork work() const {
    GroupWork work;
    for (int64_t i = 0; i < num_decode_seqs; ++i) work.add_decode(query_len, decode_kv + query_len);
    if (num_prefill > 0) work.add_prefill(num_prefill, prefill_kv);
    return work;
  }
};

using Seconds = std::array<double, 2>;  // of a step, of a level of the draft module after it

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// Runs steps and times them. The first error is kept; after it every time is 0.
class Probe {
 public:
  Probe(Executor& executor, const EngineOptions& engine, const StepMeasureOptions& options, const Clock& clock)
      : executor_(executor), engine_(engine), options_(options), clock_(clock), begin_ns_(clock.now_ns()) {}

  const absl::Status& status() const { return status_; }
  bool out_of_time() const { return clock_.now_ns() - begin_ns_ > options_.budget_ns; }

  Seconds time(const Shape& shape) {
    std::array<std::vector<double>, 2> times;
    for (int i = 0; i <= options_.repetitions && status_.ok(); ++i) {
      fill(shape);
      const Seconds seconds = run();
      if (i == 0 && !out_of_time()) continue;
      for (const int kind : {0, 1}) times[kind].push_back(seconds[kind]);
      if (out_of_time()) break;
    }
    return status_.ok() ? Seconds{median(times[0]), median(times[1])} : Seconds{};
  }

 private:
  Seconds run() {
    const int64_t begin_ns = clock_.now_ns();
    status_ = executor_.execute(plan_, &logits_);
    const int64_t middle_ns = clock_.now_ns();
    if (status_.ok() && executor_.max_draft_depth() > 0) status_ = executor_.draft(plan_, drafts_, &tokens_);
    return {static_cast<double>(middle_ns - begin_ns) * 1e-9, static_cast<double>(clock_.now_ns() - middle_ns) * 1e-9};
  }

  // What rows hold does not matter; tokens are random, so that all experts have work.
  void fill(const Shape& shape) {
    plan_.step_id = ++step_id_;
    plan_.groups.assign(engine_.dp_size, {});
    drafts_ = {.depth = 1, .groups = std::vector<GroupDraft>(engine_.dp_size)};
    for (int group = 0; group < engine_.dp_size; ++group) {
      next_block_ = 0;
      for (int64_t i = 0; i < shape.num_decode_seqs; ++i) add_chunk(group, shape.query_len, shape.decode_kv, false);
      if (shape.num_prefill > 0) add_chunk(group, shape.num_prefill, shape.prefill_kv, true);
      plan_.groups[group].num_decode_tokens = static_cast<int32_t>(shape.num_decode_seqs * shape.query_len);
      plan_.groups[group].num_prefill_tokens = static_cast<int32_t>(shape.num_prefill);
    }
  }

  void add_chunk(int group, int64_t num_tokens, int64_t kv_begin, bool is_prefill) {
    PlannedChunk& chunk = plan_.groups[group].chunks.emplace_back();
    GroupDraft& draft = drafts_.groups[group];
    for (int64_t i = 0; i < num_tokens; ++i) {
      chunk.token_ids.push_back(static_cast<int32_t>(rng_.below(engine_.vocab_size)));
      draft.next_ids.push_back(chunk.token_ids.back());
    }
    chunk.kv_begin = static_cast<int32_t>(kv_begin);
    chunk.num_draft = is_prefill ? 0 : chunk.num_tokens() - 1;
    chunk.num_total = chunk.kv_end() - chunk.num_draft;
    chunk.is_prefill = is_prefill;
    chunk.samples = true;
    for (int32_t row = 0; row < chunk.kv_end(); row += engine_.kv_block_tokens) {
      chunk.block_table.push_back(next_block_++ % engine_.num_kv_blocks);
    }
    draft.chunks.push_back(
        {.chunk = static_cast<int32_t>(draft.chunks.size()), .num_rows = chunk.num_tokens(), .depth = 1});
  }

  Executor& executor_;
  const EngineOptions& engine_;
  const StepMeasureOptions& options_;
  const Clock& clock_;
  const int64_t begin_ns_;
  absl::Status status_;
  Rng rng_{1};
  int64_t step_id_ = std::numeric_limits<int64_t>::min();  // no step of the scheduler
  int32_t next_block_ = 0;
  StepPlan plan_;
  StepLogits logits_;
  DraftPlan drafts_;
  DraftTokens tokens_;
};

class Measurement {
 public:
  Measurement(Executor& executor, const EngineOptions& engine, const StepMeasureOptions& options, const Clock& clock)
      : engine_(engine),
        options_(options),
        max_draft_depth_(std::min(engine.max_draft_depth, executor.max_draft_depth())),
        short_kv_(std::clamp<int64_t>(engine.context_length - 1 - max_draft_depth_, 0, kShortKv)),
        long_kv_(std::min(kLongKv, engine.context_length / 2)),
        probe_(executor, engine, options, clock) {}

  absl::StatusOr<StepTable> run() {
    set_axes();
    measure_grid();
    for (StepTimes* times : times_) {
      times->base_s.assign(grid_.size(), 0.0);
      times->decode_pair_s.assign(table_.decode_tokens.size(), 0.0);
    }
    if (long_kv_ > 2 * short_kv_) {
      measure_decode_attention();
      if (options_.prompts) measure_prompt_attention();
    }
    MOESAIC_RETURN_IF_ERROR(probe_.status());
    for (const int kind : {0, 1}) set_base(kind);
    if (max_draft_depth_ == 0) table_.draft = {};
    return std::move(table_);
  }

 private:
  // As many sequences as may run; beyond, they have drafts.
  Shape decode_shape(int64_t num_tokens) const {
    const int64_t num_seqs = std::min<int64_t>(num_tokens, engine_.max_running_requests);
    return {.num_decode_seqs = num_seqs, .query_len = num_seqs > 0 ? num_tokens / num_seqs : 1, .decode_kv = short_kv_};
  }

  void set_axes() {
    const int64_t most_seqs = engine_.max_running_requests;
    std::vector<int64_t>& decode = table_.decode_tokens;
    decode = {0};
    for (int64_t n = 1; n < most_seqs; n *= 2) decode.push_back(n);
    for (int64_t len = 1; len < 1 + max_draft_depth_; len *= 2) decode.push_back(most_seqs * len);
    decode.push_back(most_seqs * (1 + max_draft_depth_));
    const int64_t most = std::min(options_.max_decode_tokens, engine_.max_tokens_per_step);
    while (decode.size() > 2 && decode.back() > most) decode.pop_back();
    table_.prefill_tokens = {0};
    if (!options_.prompts) return;
    // A full step has room for so many prompt tokens beside those that decode.
    const int64_t room =
        std::min(std::max<int64_t>(engine_.max_tokens_per_step - most_seqs, 1), engine_.context_length - 1);
    for (int64_t n = 16; n < room; n *= 4) table_.prefill_tokens.push_back(n);
    table_.prefill_tokens.push_back(room);
  }

  // The steps of the grid, with what attention reads in them.
  void measure_grid() {
    const size_t width = table_.prefill_tokens.size();
    for (size_t d = 0; d < table_.decode_tokens.size(); ++d) {
      if (d > 2 && probe_.out_of_time()) table_.decode_tokens.resize(d);
      for (size_t p = 0; p < width && d < table_.decode_tokens.size(); ++p) {
        Shape shape = decode_shape(table_.decode_tokens[d]);
        shape.num_prefill = table_.prefill_tokens[p];
        const int64_t num_tokens = table_.decode_tokens[d] + shape.num_prefill;
        const bool runs = num_tokens > 0 && num_tokens <= engine_.max_tokens_per_step;
        grid_.push_back(runs ? probe_.time(shape) : Seconds{kNotMeasured, kNotMeasured});
      }
    }
    // Fewer decode tokens never take longer: what says so was disturbed.
    for (size_t at = grid_.size() - width; at-- > 1;) {
      for (const int kind : {0, 1}) grid_[at][kind] = std::min(grid_[at][kind], grid_[at + width][kind]);
    }
  }

  // What `shape` takes longer for each row before its sequences, given its time with the short ones.
  Seconds per_row(const Seconds& near, Shape shape) {
    const bool is_prompt = shape.num_prefill > 0;
    (is_prompt ? shape.prefill_kv : shape.decode_kv) = long_kv_;
    Seconds far = probe_.time(shape);
    for (const int kind : {0, 1}) {
      far[kind] = (far[kind] - near[kind]) / static_cast<double>(long_kv_ - (is_prompt ? 0 : short_kv_));
    }
    return far;
  }

  void measure_decode_attention() {
    const std::vector<int64_t>& tokens = table_.decode_tokens;
    for (size_t d = 1; d < tokens.size(); ++d) {
      const Shape shape = decode_shape(tokens[d]);
      const bool copies = d > 1 && probe_.out_of_time();
      const Seconds row_s = copies ? Seconds{} : per_row(grid_[d * table_.prefill_tokens.size()], shape);
      for (const int kind : {0, 1}) {
        StepTimes& times = *times_[kind];
        const double pairs = static_cast<double>(shape.num_decode_seqs) *
                             std::lerp(static_cast<double>(shape.query_len), 1.0, times.decode_reuse);
        times.decode_pair_s[d] = copies ? times.decode_pair_s[d - 1] : std::max(0.0, row_s[kind]) / pairs;
      }
      const bool drafts_follow = d + 1 == tokens.size() || decode_shape(tokens[d + 1]).query_len > 1;
      if (shape.query_len == 1 && drafts_follow) measure_reuse(d);
    }
    for (StepTimes* times : times_) times->decode_pair_s[0] = times->decode_pair_s[1];
  }

  // The same number of tokens, of fewer sequences: rows that their queries meet together cost less.
  void measure_reuse(size_t d) {
    const int64_t len = std::min(kVerifiedTokens, engine_.max_tokens_per_step);
    if (len < 2) return;
    const Shape shape{.num_decode_seqs = std::max<int64_t>(table_.decode_tokens[d] / len, 1),
                      .query_len = len,
                      .decode_kv = short_kv_};
    const Seconds row_s = per_row(probe_.time(shape), shape);
    for (const int kind : {0, 1}) {
      const double alone_s = times_[kind]->decode_pair_s[d] * static_cast<double>(shape.num_decode_seqs);
      if (alone_s <= 0.0) continue;
      times_[kind]->decode_reuse =
          std::clamp((static_cast<double>(len) - row_s[kind] / alone_s) / static_cast<double>(len - 1), 0.0, 1.0);
    }
  }

  // n tokens behind kv rows: kv * (n * pair + cached), at two n.
  void measure_prompt_attention() {
    const int64_t many = std::min({kManyTokens, engine_.max_tokens_per_step, engine_.context_length - long_kv_});
    const int64_t few = std::min(kFewTokens, many / 2);
    const Shape small{.num_prefill = few}, large{.num_prefill = many};
    const Seconds of_few = per_row(probe_.time(small), small), of_many = per_row(probe_.time(large), large);
    for (const int kind : {0, 1}) {
      const double pair_s = std::max(0.0, (of_many[kind] - of_few[kind]) / static_cast<double>(many - few));
      times_[kind]->prefill_pair_s = pair_s;
      times_[kind]->prefill_cached_s = std::max(0.0, of_few[kind] - pair_s * static_cast<double>(few));
    }
  }

  void set_base(int kind) {
    const size_t width = table_.prefill_tokens.size();
    std::vector<double> base(grid_.size());
    for (size_t at = 1; at < grid_.size(); ++at) {
      Shape shape = decode_shape(table_.decode_tokens[at / width]);
      shape.num_prefill = table_.prefill_tokens[at % width];
      const double seconds = grid_[at][kind];
      const double attention = table_.seconds(*times_[kind], shape.work());
      if (seconds < kNotMeasured) {
        base[at] = std::max(seconds - attention, kLeastShare * seconds);
      } else {  // more than a step may hold
        base[at] = base[at - 1] + base[at - width] - base[at - width - 1];
      }
    }
    base[0] = base[width];  // a token that decodes is the least that was measured
    times_[kind]->base_s = std::move(base);
  }

  const EngineOptions& engine_;
  const StepMeasureOptions& options_;
  const int max_draft_depth_;
  const int64_t short_kv_, long_kv_;
  Probe probe_;
  StepTable table_;
  const std::array<StepTimes*, 2> times_{&table_.step, &table_.draft};
  std::vector<Seconds> grid_;  // [decode][prefill]
};

}  // namespace

absl::StatusOr<StepTable> measure_steps(Executor& executor, const EngineOptions& engine,
                                        const StepMeasureOptions& options, const Clock& clock) {
  return Measurement(executor, engine, options, clock).run();
}

}  // namespace moesaic
