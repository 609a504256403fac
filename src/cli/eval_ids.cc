#include <algorithm>
#include <cstring>
#include <map>

#include "cli/eval_modes.h"
#include "cli/model_host.h"
#include "cli/sequence_scorer.h"
#include "model/file_map.h"
#include "model/safetensors.h"

namespace moesaic {
namespace {

using IdLists = std::map<std::string, std::vector<int32_t>>;

// The i32 vectors of a safetensors file; anything else in it is an error.
absl::StatusOr<IdLists> read_id_lists(const std::string& path) {
  MOESAIC_ASSIGN_OR_RETURN(const FileMap file, FileMap::open(path));
  const auto parsed = parse_safetensors({file.data(), static_cast<size_t>(file.num_bytes())});
  if (!parsed.ok()) return annotate(parsed.status(), path);
  IdLists lists;
  for (const auto& [name, info] : parsed->tensors) {
    if (info.dtype != DType::kI32 || info.shape.rank() != 1) {
      return absl::InvalidArgumentError(str_cat(path, ": ", name, " expects an i32 tensor [n], found ",
                                                dtype_name(info.dtype), " ", info.shape.to_string()));
    }
    std::vector<int32_t>& ids = lists[name];
    ids.resize(info.shape[0]);
    std::memcpy(ids.data(), file.data() + parsed->data_begin + info.begin, ids.size() * sizeof(int32_t));
  }
  if (lists.empty()) return absl::InvalidArgumentError(str_cat(path, " holds no tensor"));
  return lists;
}

// Owns the rows that a LogitsSink receives.
struct Rows {
  std::vector<float> values;
  int64_t vocab;
  Rows(int64_t num_rows, int64_t vocab) : values(num_rows * vocab), vocab(vocab) {}
  LogitsSink sink() {
    return [this](int64_t first_row, int64_t num_rows, const float* rows) {
      std::copy(rows, rows + num_rows * vocab, values.begin() + first_row * vocab);
    };
  }
  Tensor tensor() { return Tensor(values.data(), DType::kF32, {static_cast<int64_t>(values.size()) / vocab, vocab}); }
};

}  // namespace

absl::Status eval_ids(const EvalConfig& config) {
  if (config.out.empty()) return absl::InvalidArgumentError("--ids needs --out FILE for the logits");
  MOESAIC_ASSIGN_OR_RETURN(const IdLists lists, read_id_lists(config.ids));
  MOESAIC_ASSIGN_OR_RETURN(const ModelConfig model, ModelConfig::load(config.model.model_path));
  MOESAIC_ASSIGN_OR_RETURN(const int64_t context, pick_context(config.model, model));
  int64_t longest = 0;
  for (const auto& [name, ids] : lists) {
    longest = std::max(longest, static_cast<int64_t>(ids.size()));
    if (longest <= context) continue;
    return absl::InvalidArgumentError(str_cat(config.ids, ": ", name, ": expected at most ", context,
                                              " ids, the context (--context-length), found ", longest));
  }
  MOESAIC_ASSIGN_OR_RETURN(const auto scorer, SequenceScorer::load(config.model, longest, config.mtp));
  const int64_t vocab = model.vocab_size;
  std::map<std::string, Rows> owned;
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, ids] : lists) {
    const int64_t count = static_cast<int64_t>(ids.size());
    Rows& logits = owned.emplace(name + ".logits", Rows(count, vocab)).first->second;
    tensors[name + ".logits"] = logits.tensor();
    LogitsSink on_mtp;
    if (config.mtp) {
      Rows& mtp = owned.emplace(name + ".mtp_logits", Rows(std::max<int64_t>(count - 1, 0), vocab)).first->second;
      tensors[name + ".mtp_logits"] = mtp.tensor();
      on_mtp = mtp.sink();
    }
    if (absl::Status status = scorer->score(ids, logits.sink(), on_mtp); !status.ok()) {
      return annotate(status, str_cat(config.ids, ": ", name));
    }
  }
  return write_safetensors(config.out, tensors);
}

}  // namespace moesaic
