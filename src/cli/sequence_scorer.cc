#include "cli/sequence_scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "cli/model_host.h"

namespace moesaic {
namespace {

constexpr int64_t kChunkTokens = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceScorer>> SequenceScorer::load(const ModelSettings& settings, int64_t max_tokens,
                                                                     bool load_mtp) {
  std::unique_ptr<SequenceScorer> scorer(new SequenceScorer());
  ModelOptions& options = scorer->options_;
  MOESAIC_ASSIGN_OR_RETURN(options, model_options(settings));
  const int64_t num_blocks = (std::max<int64_t>(max_tokens, 1) + options.kv_block_tokens - 1) / options.kv_block_tokens;
  options.num_kv_blocks = num_blocks;
  options.max_position = num_blocks * options.kv_block_tokens;
  options.max_tokens_per_step = std::min(kChunkTokens, options.max_position);
  options.max_chunks = 1;
  options.max_decode_tokens = 1;
  options.max_logit_rows = options.max_tokens_per_step;
  options.load_mtp = load_mtp;
  const RankGroupOptions group_options = {
      .model_dir = settings.model_path,
      .model = options,
      .num_threads = settings.num_threads,
      .timeout_ms = settings.step_timeout_ms,
      .progress = progress_printer([](const std::string& text) { log_debug(str_cat("loading: ", text)); })};
  MOESAIC_ASSIGN_OR_RETURN(scorer->group_, RankGroup::load(group_options));
  scorer->block_table_.resize(num_blocks);
  std::iota(scorer->block_table_.begin(), scorer->block_table_.end(), 0);
  scorer->rows_.resize(options.max_tokens_per_step);
  std::iota(scorer->rows_.begin(), scorer->rows_.end(), 0);
  return scorer;
}

absl::Status SequenceScorer::check(std::span<const int32_t> ids) const {
  if (ids.empty()) return absl::InvalidArgumentError("expected at least one token id, found none");
  if (static_cast<int64_t>(ids.size()) > options_.max_position) {
    return absl::InvalidArgumentError(
        str_cat("expected at most ", options_.max_position, " token ids, found ", ids.size()));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config().vocab_size) {
      return absl::InvalidArgumentError(
          str_cat("expected token ids from 0 to ", config().vocab_size - 1, ", found ", ids[i], " at position ", i));
    }
  }
  return absl::OkStatus();
}

absl::Status SequenceScorer::score_chunk(std::span<const int32_t> ids, int64_t begin, const LogitsSink& on_logits,
                                         const LogitsSink& on_mtp) {
  const int64_t total = static_cast<int64_t>(ids.size());
  const int64_t count = std::min(options_.max_tokens_per_step, total - begin);
  const int64_t mtp_count = on_mtp ? std::min(count, total - 1 - begin) : 0;
  const auto chunk_of = [&](int64_t num_tokens) {
    return SequenceChunk{.token_begin = 0,
                         .num_tokens = static_cast<int32_t>(num_tokens),
                         .kv_begin = static_cast<int32_t>(begin),
                         .is_prefill = true,
                         .block_table = block_table_.data()};
  };
  const SequenceChunk main_chunk = chunk_of(count);
  const SequenceChunk mtp_chunk = chunk_of(mtp_count);
  const auto batch_of = [&](const SequenceChunk& chunk) {
    return ForwardBatch{.a2a_mode = A2aMode::kNormal,
                        .token_ids = ids.subspan(begin, chunk.num_tokens),
                        .chunks = {&chunk, 1},
                        .logit_rows = std::span(rows_).first(chunk.num_tokens)};
  };
  const ForwardBatch idle = {.a2a_mode = A2aMode::kNormal};  // the other groups only serve their experts
  return group_->run([&](int rank) -> absl::Status {
    const bool mine = options_.layout.dp_rank(rank) == 0;
    DeepseekModel& model = group_->model(rank);
    ForwardResult result;
    MOESAIC_RETURN_IF_ERROR(model.forward(group_->context(rank), mine ? batch_of(main_chunk) : idle, &result));
    if (rank == 0) on_logits(begin, count, result.logits.f32());
    if (mtp_count <= 0) return absl::OkStatus();
    ForwardResult mtp;
    MOESAIC_RETURN_IF_ERROR(model.forward_mtp(
        group_->context(rank), mine ? batch_of(mtp_chunk) : idle, result.hidden.rows(0, mine ? mtp_count : 0),
        mine ? ids.subspan(begin + 1, mtp_count) : std::span<const int32_t>(), &mtp));
    if (rank == 0) on_mtp(begin, mtp_count, mtp.logits.f32());
    return absl::OkStatus();
  });
}

absl::Status SequenceScorer::score(std::span<const int32_t> ids, const LogitsSink& on_logits,
                                   const LogitsSink& on_mtp) {
  MOESAIC_RETURN_IF_ERROR(check(ids));
  for (int64_t begin = 0; begin < static_cast<int64_t>(ids.size()); begin += options_.max_tokens_per_step) {
    MOESAIC_RETURN_IF_ERROR(score_chunk(ids, begin, on_logits, on_mtp));
  }
  return absl::OkStatus();
}

double negative_log_likelihood(std::span<const float> logits, int32_t id) {
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - best);
  return std::log(sum) + best - static_cast<double>(logits[id]);
}

}  // namespace moesaic
