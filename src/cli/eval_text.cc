#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "cli/eval_modes.h"
#include "cli/model_host.h"
#include "cli/sequence_scorer.h"
#include "model/file_map.h"
#include "text/tokenizer.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxTextBytes = 64 << 20;
constexpr int64_t kDefaultWindow = 2048;

}  // namespace

absl::Status eval_text(const EvalConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(config.text, kMaxTextBytes));
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::load(config.model.model_path));
  MOESAIC_ASSIGN_OR_RETURN(const ModelConfig model, ModelConfig::load(config.model.model_path));
  const std::vector<int32_t> ids = tokenizer->encode(text);
  if (ids.size() < 2) return absl::InvalidArgumentError(str_cat(config.text, ": expected at least two tokens"));
  MOESAIC_ASSIGN_OR_RETURN(const int64_t context, pick_context(config.model, model));
  const int64_t window = std::min(config.window > 0 ? config.window : kDefaultWindow, context);
  MOESAIC_ASSIGN_OR_RETURN(const auto scorer, SequenceScorer::load(config.model, window, /*load_mtp=*/false));
  const int64_t vocab = model.vocab_size;
  const bool has_bos = tokenizer->bos_id() >= 0;
  double nll = 0.0;
  int64_t num_scored = 0;
  const int64_t step = has_bos ? window - 1 : window;
  for (int64_t begin = 0; begin < static_cast<int64_t>(ids.size()); begin += step) {
    std::vector<int32_t> part;
    if (has_bos) part.push_back(tokenizer->bos_id());
    part.insert(part.end(), ids.begin() + begin,
                ids.begin() + std::min<int64_t>(begin + step, static_cast<int64_t>(ids.size())));
    const auto on_logits = [&](int64_t first_row, int64_t num_rows, const float* rows) {
      for (int64_t i = 0; i < num_rows && first_row + i + 1 < static_cast<int64_t>(part.size()); ++i) {
        nll += negative_log_likelihood({rows + i * vocab, static_cast<size_t>(vocab)}, part[first_row + i + 1]);
        ++num_scored;
      }
    };
    MOESAIC_RETURN_IF_ERROR(scorer->score(part, on_logits, {}));
  }
  const double mean = nll / static_cast<double>(num_scored);
  const char* format = config.json ? "{{\"tokens\": {}, \"nll\": {:.6f}, \"perplexity\": {:.6f}, \"window\": {}}}\n"
                                   : "{} tokens, mean negative log-likelihood {:.6f}, perplexity {:.4f}, window {}\n";
  std::fputs(fmt::format(fmt::runtime(format), num_scored, mean, std::exp(mean), window).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace moesaic
