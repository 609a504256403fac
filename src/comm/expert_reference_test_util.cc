#include "comm/expert_reference_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace moesaic::testing {
namespace {

// Magnitudes of the codes 0 .. 126, ascending: 1-4-3 with bias 7; code 127 is NaN.
double e4m3_magnitude(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

float nearest_e4m3(float value) {
  if (std::isnan(value)) return value;
  const double magnitude = std::fabs(static_cast<double>(value));
  int best = 0;
  for (int code = 1; code < 127; ++code) {
    const double distance = std::fabs(e4m3_magnitude(code) - magnitude);
    const double best_distance = std::fabs(e4m3_magnitude(best) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return std::copysign(static_cast<float>(e4m3_magnitude(best)), value);
}

int slots_of_rank(const AllToAllOptions& options) {
  return (options.num_slots + options.num_ranks - 1) / options.num_ranks;
}

// (source rank, token) of every row of a slot, in the promised order.
std::vector<std::pair<int, int>> rows_of_slot(const AllToAllOptions& options, const StepTokens& step, int slot) {
  std::vector<std::pair<int, int>> rows;
  for (int source = 0; source < options.num_ranks; ++source) {
    for (int t = 0; t < step[source].num_tokens; ++t) {
      const auto begin = step[source].ids.begin() + t * options.num_experts_per_tok;
      const auto end = begin + options.num_experts_per_tok;
      if (std::find(begin, end, slot) != end) rows.emplace_back(source, t);
    }
  }
  return rows;
}

void check_rows(const AllToAllOptions& options, A2aMode mode, int rank, const StepTokens& step,
                const ExpertRows& rows) {
  const int first = std::min(options.num_slots, rank * slots_of_rank(options));
  const int last = std::min(options.num_slots, first + slots_of_rank(options));
  ASSERT_EQ(rows.group_begin.size(), static_cast<size_t>(last - first));
  ASSERT_EQ(rows.group_rows.size(), static_cast<size_t>(last - first));
  ASSERT_EQ(rows.x.dim(0), AllToAll::capacity_rows(options, mode));
  ASSERT_EQ(rows.y.dim(0), rows.x.dim(0));
  int64_t free_row = 0;
  for (int slot = first; slot < last; ++slot) {
    const auto expected = rows_of_slot(options, step, slot);
    const int64_t begin = rows.group_begin[slot - first];
    ASSERT_EQ(rows.group_rows[slot - first], static_cast<int32_t>(expected.size())) << "slot " << slot;
    ASSERT_GE(begin, free_row) << "groups overlap at slot " << slot;
    free_row = begin + static_cast<int64_t>(expected.size());
    ASSERT_LE(free_row, rows.x.dim(0));
    if (mode == A2aMode::kNormal) {
      ASSERT_EQ(begin % options.expert_alignment, 0);
    } else {
      ASSERT_EQ(begin, int64_t{slot - first} * options.num_ranks * options.max_tokens_low_latency);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto [source, token] = expected[i];
      const auto from = step[source].x.begin() + token * options.hidden;
      std::vector<float> sent(from, from + options.hidden);
      if (options.fp8) sent = fp8_round_trip(sent, options.hidden);
      ASSERT_EQ(std::memcmp(rows.x.row<float>(begin + i), sent.data(), sent.size() * sizeof(float)), 0)
          << "slot " << slot << ", row " << i << ": expected token " << token << " of rank " << source;
    }
  }
}

}  // namespace

RankTokens random_tokens(const AllToAllOptions& options, int num_tokens, Routing routing, Rng& rng) {
  RankTokens tokens;
  tokens.num_tokens = num_tokens;
  const int topk = options.num_experts_per_tok;
  for (int t = 0; t < num_tokens; ++t) {
    bool goes_somewhere = false;
    const bool is_nowhere = routing == Routing::kNowhere && rng.below(2) == 0;
    for (int k = 0; k < topk; ++k) {
      int32_t id = static_cast<int32_t>(rng.below(options.num_slots));
      if (routing == Routing::kDuplicates) id = static_cast<int32_t>(rng.below(2));
      if (routing == Routing::kHot) id = options.num_slots - 1;
      if (is_nowhere || (routing == Routing::kHoles && rng.below(3) == 0)) id = -1;
      goes_somewhere = goes_somewhere || id >= 0;
      tokens.ids.push_back(id);
      // The weight of an id of -1 must not matter.
      tokens.weights.push_back(id < 0 ? std::numeric_limits<float>::quiet_NaN()
                                      : static_cast<float>(rng.uniform() - 0.25));
    }
    for (int64_t i = 0; i < options.hidden; ++i) {
      tokens.x.push_back(goes_somewhere ? static_cast<float>((rng.uniform() - 0.5) * (t + 1))
                                        : std::numeric_limits<float>::quiet_NaN());
    }
  }
  return tokens;
}

std::vector<float> fp8_round_trip(const std::vector<float>& x, int64_t hidden) {
  std::vector<float> y(x.size());
  for (size_t row = 0; row < x.size(); row += hidden) {
    for (int64_t begin = 0; begin < hidden; begin += 128) {
      const int64_t end = std::min(hidden, begin + 128);
      float amax = 1e-4f;
      for (int64_t i = begin; i < end; ++i) amax = std::fmax(amax, std::fabs(x[row + i]));
      const float scale = amax / 448.0f;
      for (int64_t i = begin; i < end; ++i) y[row + i] = nearest_e4m3(x[row + i] / scale) * scale;
    }
  }
  return y;
}

std::vector<float> expected_output(const AllToAllOptions& options, const RankTokens& tokens) {
  const int topk = options.num_experts_per_tok;
  const std::vector<float> x = options.fp8 ? fp8_round_trip(tokens.x, options.hidden) : tokens.x;
  std::vector<float> y(x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t t = i / options.hidden;
    float sum = 0.0f;
    for (int k = 0; k < topk; ++k) {
      const int32_t id = tokens.ids[t * topk + k];
      if (id < 0) continue;
      const float part = tokens.weights[t * topk + k] * expert_value(id, x[i]);
      sum += part;
    }
    y[i] = sum;
  }
  return y;
}

absl::Status run_step(AllToAll& a2a, const AllToAllOptions& options, A2aMode mode, int rank, const StepTokens& step,
                      std::vector<float>* y) {
  ThreadPool pool(1);
  Stream stream(pool);
  RankTokens mine = step[rank];
  y->assign(mine.x.size(), -12345.0f);
  const int64_t num_tokens = mine.num_tokens, topk = options.num_experts_per_tok;
  // Senders' x is read by others until combine_recv has returned, so it comes from `step`, which outlives every rank.
  const DispatchArgs args = {
      .x = Tensor(const_cast<float*>(step[rank].x.data()), DType::kF32, {num_tokens, options.hidden}),
      .topk_ids = Tensor(mine.ids.data(), DType::kI32, {num_tokens, topk}),
      .topk_weights = Tensor(mine.weights.data(), DType::kF32, {num_tokens, topk})};
  MOESAIC_RETURN_IF_ERROR(a2a.dispatch_send(stream, mode, args));
  // Ids and weights belong to the caller again once they have been sent.
  std::fill(mine.ids.begin(), mine.ids.end(), -7);
  std::fill(mine.weights.begin(), mine.weights.end(), 1e30f);
  ExpertRows rows;
  MOESAIC_RETURN_IF_ERROR(a2a.dispatch_recv(stream, &rows));
  check_rows(options, mode, rank, step, rows);
  const int first = rank * slots_of_rank(options);
  for (size_t slot = 0; slot < rows.group_begin.size(); ++slot) {
    for (int64_t row = rows.group_begin[slot]; row < rows.group_begin[slot] + rows.group_rows[slot]; ++row) {
      for (int64_t i = 0; i < options.hidden; ++i) {
        rows.y.row<float>(row)[i] = expert_value(first + static_cast<int>(slot), rows.x.row<float>(row)[i]);
      }
    }
  }
  MOESAIC_RETURN_IF_ERROR(a2a.combine_send(stream));
  return a2a.combine_recv(stream, Tensor(y->data(), DType::kF32, {num_tokens, options.hidden}));
}

}  // namespace moesaic::testing
