#include "model/rank_group.h"

#include <algorithm>
#include <charconv>
#include <mutex>

namespace moesaic {
namespace {

// Adds up what the loading threads have read and reports it.
class Progress {
 public:
  Progress(std::function<void(int64_t, int64_t)> report, int64_t total) : report_(std::move(report)), total_(total) {}
  void add(int64_t bytes) {
    if (!report_) return;
    std::lock_guard lock(mutex_);
    done_ = std::min(done_ + bytes, total_);
    report_(done_, total_);
  }

 private:
  std::mutex mutex_;
  std::function<void(int64_t, int64_t)> report_;
  int64_t total_;
  int64_t done_ = 0;
};

// A rank that waited in vain knows less than the rank that failed.
const absl::Status& best_error(const std::vector<absl::Status>& results) {
  static const absl::Status kOk;
  const absl::Status* best = &kOk;
  for (const absl::Status& status : results) {
    if (status.ok()) continue;
    if (best->ok() || best->code() == absl::StatusCode::kDeadlineExceeded) best = &status;
  }
  return *best;
}

// Every tensor of a layer that runs must have been read: config.json would describe another model than the one that is
// stored (no shared experts, no bias). Layers behind those and what stands outside of layers may be there for others.
absl::Status check_all_read(const Checkpoint& checkpoint, const ModelConfig& config) {
  constexpr std::string_view kPrefix = "model.layers.";
  for (const std::string& name : checkpoint.unread()) {
    if (!name.starts_with(kPrefix) || name.ends_with(".rotary_emb.inv_freq")) continue;
    int64_t layer = -1;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
    if (layer >= config.num_hidden_layers) continue;
    return absl::InvalidArgumentError(
        str_cat("tensor ", name, " is in the checkpoint, but config.json has no place for it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::load(const RankGroupOptions& options) {
  MOESAIC_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::load(options.model_dir));
  MOESAIC_RETURN_IF_ERROR(options.model.layout.validate_heads(config.num_attention_heads));
  MOESAIC_RETURN_IF_ERROR(options.model.layout.validate_dense(config.intermediate_size));
  if (options.model.load_mtp && config.num_nextn_predict_layers == 0) {
    return absl::FailedPreconditionError(
        str_cat(options.model_dir, " stores no MTP module (num_nextn_predict_layers is 0)"));
  }
  MOESAIC_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(options.model_dir));
  std::unique_ptr<RankGroup> group(new RankGroup());
  const int world_size = options.model.layout.world_size();
  group->rank_threads_ = std::make_unique<ThreadPool>(world_size, /*spin_us=*/world_size <= num_cpus() ? 20 : 0);
  group->results_.resize(world_size);
  MOESAIC_RETURN_IF_ERROR(group->load_weights(options, config, *checkpoint));
  MOESAIC_RETURN_IF_ERROR(group->connect(options, config));
  return group;
}

RankGroup::~RankGroup() = default;

absl::Status RankGroup::load_weights(const RankGroupOptions& options, const ModelConfig& config,
                                     const Checkpoint& checkpoint) {
  const ParallelLayout& layout = options.model.layout;
  Progress progress(options.progress, checkpoint.num_bytes());
  const LoadArgs args = {.checkpoint = &checkpoint,
                         .config = &config,
                         .layout = layout,
                         .load_mtp = options.model.load_mtp,
                         .max_position = options.model.max_position,
                         .progress = [&](int64_t bytes) { progress.add(bytes); }};
  const auto experts =
      std::make_shared<const ExpertMap>(ExpertMap::identity(static_cast<int>(config.n_routed_experts)));
  std::vector<std::shared_ptr<const ReplicatedWeights>> replicated(layout.tp_size);
  std::vector<absl::Status> errors(layout.world_size());
  rank_threads_->parallel_each(layout.tp_size, [&](int64_t tp_rank) {
    auto loaded = load_replicated_weights(args, static_cast<int>(tp_rank));
    loaded.ok() ? void(replicated[tp_rank] = *std::move(loaded)) : void(errors[tp_rank] = loaded.status());
  });
  MOESAIC_RETURN_IF_ERROR(best_error(errors));
  models_.resize(layout.world_size());
  rank_threads_->parallel_each(layout.world_size(), [&](int64_t rank) {
    auto mine = load_expert_weights(args, *experts, static_cast<int>(rank));
    if (!mine.ok()) return void(errors[rank] = mine.status());
    auto model = DeepseekModel::make(config, options.model, replicated[layout.tp_rank(static_cast<int>(rank))],
                                     *std::move(mine), experts, static_cast<int>(rank));
    model.ok() ? void(models_[rank] = *std::move(model)) : void(errors[rank] = model.status());
  });
  MOESAIC_RETURN_IF_ERROR(best_error(errors));
  MOESAIC_RETURN_IF_ERROR(check_all_read(checkpoint, config));
  return absl::OkStatus();
}

absl::Status RankGroup::connect(const RankGroupOptions& options, const ModelConfig& config) {
  const ParallelLayout& layout = options.model.layout;
  const int world_size = layout.world_size();
  const ThreadGroupOptions waiting = {.timeout_ms = options.timeout_ms};
  world_ = make_thread_communicators(world_size, waiting);
  if (layout.tp_size > 1) {
    for (int dp_rank = 0; dp_rank < layout.dp_size; ++dp_rank) {
      for (auto& member : make_thread_communicators(layout.tp_size, waiting)) tp_groups_.push_back(std::move(member));
    }
  }
  if (config.n_routed_experts > 0) {
    AllToAllOptions a2a = DeepseekModel::all_to_all_options(config, options.model);
    a2a.timeout_ms = options.timeout_ms;
    MOESAIC_ASSIGN_OR_RETURN(all_to_alls_, make_thread_all_to_all(a2a));
  }
  const int num_threads = options.num_threads > 0 ? options.num_threads : num_cpus();
  for (int rank = 0; rank < world_size; ++rank) {
    pools_.push_back(std::make_unique<ThreadPool>(std::max(1, num_threads / world_size)));
    contexts_.push_back({.rank = rank,
                         .world = world_[rank].get(),
                         .tp_group = tp_groups_.empty() ? nullptr : tp_groups_[rank].get(),
                         .all_to_all = all_to_alls_.empty() ? nullptr : all_to_alls_[rank].get(),
                         .pool = pools_[rank].get()});
  }
  return absl::OkStatus();
}

void RankGroup::fail(int rank, const absl::Status& why) {
  const RankContext& context = contexts_[rank];
  context.world->abort(why);
  if (context.tp_group != nullptr) context.tp_group->abort(why);
  if (context.all_to_all != nullptr) context.all_to_all->abort(why);
}

absl::Status RankGroup::run(const std::function<absl::Status(int rank)>& body) {
  rank_threads_->run([&](int rank) {
    results_[rank] = body(rank);
    if (!results_[rank].ok()) fail(rank, results_[rank]);
  });
  return best_error(results_);
}

}  // namespace moesaic
