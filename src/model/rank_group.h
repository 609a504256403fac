// RankGroup: all ranks of a model as threads of this process, each with its own share of the weights, its communicators
// and a ThreadPool for its operations. With one rank everything runs on the caller's thread. One thread at a time calls
// run(). An error on one rank ends the group: the others are woken and every later run() fails.
//
//   RankGroupOptions options{.model_dir = dir, .layout = layout, ...};
//   MOESAIC_ASSIGN_OR_RETURN(auto group, RankGroup::load(options));
//   group->run([&](int rank) { return group->model(rank).forward(group->context(rank), batch, &results[rank]); });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread.h"
#include "model/deepseek.h"

namespace moesaic {

struct RankGroupOptions {
  std::string model_dir;
  ModelOptions model;           // layout, limits, formats
  int num_threads = 0;          // for all ranks together; 0 = one a CPU
  int64_t timeout_ms = 30'000;  // of every wait of a rank for another
  // (bytes read so far, bytes in all); may be empty. Called from the loading threads, one at a time.
  std::function<void(int64_t, int64_t)> progress;
};

class RankGroup {
 public:
  static absl::StatusOr<std::unique_ptr<RankGroup>> load(const RankGroupOptions& options);
  ~RankGroup();

  int size() const { return static_cast<int>(models_.size()); }
  const ModelConfig& config() const { return models_[0]->config(); }
  DeepseekModel& model(int rank) { return *models_[rank]; }
  const RankContext& context(int rank) const { return contexts_[rank]; }

  // body(rank) on every rank's thread; returns when all have, with the error that explains most (not a mere time-out of
  // another rank).
  absl::Status run(const std::function<absl::Status(int rank)>& body);

 private:
  RankGroup() = default;
  absl::Status load_weights(const RankGroupOptions& options, const ModelConfig& config, const Checkpoint& checkpoint);
  absl::Status connect(const RankGroupOptions& options, const ModelConfig& config);
  void fail(int rank, const absl::Status& why);

  std::vector<std::unique_ptr<DeepseekModel>> models_;
  std::vector<std::unique_ptr<Communicator>> world_;
  std::vector<std::unique_ptr<Communicator>> tp_groups_;  // by rank; empty when tp_size is 1
  std::vector<std::unique_ptr<AllToAll>> all_to_alls_;    // by rank; empty for a dense model
  std::vector<std::unique_ptr<ThreadPool>> pools_;        // by rank
  std::vector<RankContext> contexts_;
  std::vector<absl::Status> results_;
  std::unique_ptr<ThreadPool> rank_threads_;
};

}  // namespace moesaic
