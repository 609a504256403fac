#include "cli/memory_report.h"

#include <fmt/format.h>

namespace moesaic {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLeastStepTokens = 64;

bool alike(const std::vector<MemoryBuffer>& a, const std::vector<MemoryBuffer>& b) {
  const auto same = [](const MemoryBuffer& x, const MemoryBuffer& y) {
    return x.name == y.name && x.num_bytes == y.num_bytes;
  };
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", or ") + text;
  return out;
}

// The most tokens a step that fit, by halving; 0 if none do.
absl::StatusOr<int64_t> step_tokens_that_fit(const Checkpoint& checkpoint, const ModelConfig& config,
                                             const EnginePlan& plan, int64_t available_bytes) {
  EnginePlan smaller = plan;
  const int64_t least = std::max(kLeastStepTokens, plan.model.max_decode_tokens);
  for (int64_t tokens = plan.model.max_tokens_per_step / 2; tokens >= least; tokens /= 2) {
    set_step_tokens(tokens, &smaller);
    MOESAIC_ASSIGN_OR_RETURN(const MemoryPlan memory, plan_memory(checkpoint, config, smaller.model));
    if (memory.process_bytes() <= available_bytes) return tokens;
  }
  return 0;
}

}  // namespace

std::string memory_table(const MemoryPlan& memory) {
  std::string out;
  const size_t num_ranks = memory.ranks.size();
  for (size_t begin = 0; begin < num_ranks;) {
    size_t end = begin + 1;
    while (end < num_ranks && alike(memory.ranks[begin], memory.ranks[end])) ++end;
    const std::string ranks =
        end - begin == 1 ? fmt::format("rank {}", begin) : fmt::format("ranks {}..{}", begin, end - 1);
    out += fmt::format("\n{:<36}{:>16}\n", ranks, "bytes each");
    for (const MemoryBuffer& buffer : memory.ranks[begin]) {
      out += fmt::format("{:<36}{:>16}{}\n", buffer.name, buffer.num_bytes, buffer.is_shared ? "  shared" : "");
      for (const auto& [use, num_bytes] : buffer.uses) out += fmt::format("  {:<34}{:>16}\n", use, num_bytes);
    }
    out += fmt::format("{:<36}{:>16}\n", "total", memory.rank_bytes(static_cast<int>(begin)));
    begin = end;
  }
  return out + fmt::format("\n{:<36}{:>16}\n", "all ranks in one process", memory.process_bytes());
}

std::string memory_line(const MemoryPlan& memory, int64_t available_bytes) {
  const auto mib = [&](MemoryKind kind) { return memory.process_bytes(kind) / kMiB; };
  return fmt::format(
      "memory: {} of {} MiB available: weights {}, KV cache {}, work space {}, exchange between ranks {} (at most)",
      memory.process_bytes() / kMiB, available_bytes / kMiB, mib(MemoryKind::kWeights), mib(MemoryKind::kKvCache),
      mib(MemoryKind::kWorkspace), mib(MemoryKind::kExchange));
}

std::vector<std::string> changes_to_fit(const Checkpoint& checkpoint, const ModelConfig& config, const EnginePlan& plan,
                                        const MemoryPlan& memory, int64_t available_bytes) {
  std::vector<std::string> changes;
  const int64_t total = memory.process_bytes(), kv_bytes = memory.process_bytes(MemoryKind::kKvCache);
  if (total <= available_bytes) return changes;
  const ModelOptions& model = plan.model;
  const int64_t block_bytes = kv_bytes / model.num_kv_blocks;
  const int64_t num_blocks = (available_bytes - (total - kv_bytes)) / block_bytes;
  if (available_bytes > total - kv_bytes && num_blocks > 0) {
    changes.push_back(str_cat("--max-total-tokens ", num_blocks * model.kv_block_tokens, " (now ",
                              model.num_kv_blocks * model.kv_block_tokens, ")"));
  }
  const int64_t fp8_bytes = kv_bytes / kv_row_bytes(config, model.kv_dtype) * kv_row_bytes(config, DType::kE4M3);
  if (model.kv_dtype != DType::kE4M3 && total - kv_bytes + fp8_bytes <= available_bytes) {
    changes.push_back(str_cat("--kv-cache-dtype fp8 (now ", dtype_name(model.kv_dtype), ")"));
  }
  const auto step_tokens = step_tokens_that_fit(checkpoint, config, plan, available_bytes);
  if (step_tokens.ok() && *step_tokens > 0) {
    changes.push_back(str_cat("--chunked-prefill-size ", *step_tokens, " (now ", model.max_tokens_per_step, ")"));
  }
  return changes;
}

absl::Status check_memory(const Checkpoint& checkpoint, const ModelConfig& config, const EnginePlan& plan,
                          const MemoryPlan& memory, int64_t available_bytes, std::string* warning) {
  if (memory.process_bytes() <= available_bytes) return absl::OkStatus();
  const std::vector<std::string> changes = changes_to_fit(checkpoint, config, plan, memory, available_bytes);
  const std::string advice =
      changes.empty()
          ? "no single setting is enough: fewer tokens (--max-total-tokens, --chunked-prefill-size) or more memory"
          : joined(changes);
  const std::string text = str_cat(memory_line(memory, available_bytes), "; to fit: ", advice);
  const int64_t filled = memory.process_bytes() - memory.process_bytes(MemoryKind::kExchange);
  if (filled > available_bytes) return absl::ResourceExhaustedError(text);
  *warning = text;
  return absl::OkStatus();
}

}  // namespace moesaic
