// GrammarBuilder's checks over the finished nodes: what can end, and what calls itself. All iterative and linear: the
// grammars come from outside.
#include <algorithm>

#include "text/grammar_builder.h"

namespace moesaic {
namespace {

using Kind = Grammar::Kind;

// The strongly connected component of each node. `edges(node, i)` is its i-th neighbour, -1 behind the last.
template <typename Edges>
std::vector<int32_t> components(int32_t num_nodes, const Edges& edges) {
  struct Frame {
    int32_t node;
    int32_t edge;
  };
  std::vector<int32_t> index(num_nodes, -1), low(num_nodes, 0), component(num_nodes, -1), open;
  std::vector<Frame> frames;
  int32_t next_index = 0;
  int32_t next_component = 0;
  const auto enter = [&](int32_t node) {
    index[node] = low[node] = next_index++;
    open.push_back(node);
    frames.push_back({node, 0});
  };
  for (int32_t root = 0; root < num_nodes; ++root) {
    if (index[root] < 0) enter(root);
    while (!frames.empty()) {
      Frame& frame = frames.back();
      const int32_t node = frame.node;
      if (const int32_t target = edges(node, frame.edge++); target >= 0) {
        if (index[target] < 0) {
          enter(target);
        } else if (component[target] < 0) {
          low[node] = std::min(low[node], index[target]);
        }
        continue;
      }
      frames.pop_back();
      if (!frames.empty()) low[frames.back().node] = std::min(low[frames.back().node], low[node]);
      if (low[node] != index[node]) continue;
      for (int32_t member = -1; member != node;) {
        member = open.back();
        open.pop_back();
        component[member] = next_component;
      }
      ++next_component;
    }
  }
  return component;
}

}  // namespace

std::vector<bool> GrammarBuilder::reaches_end(bool through_bytes) const {
  const auto num_nodes = static_cast<int32_t>(out_.nodes_.size());
  std::vector<int32_t> missing(num_nodes, 1);  // conditions that are not yet met
  std::vector<std::vector<int32_t>> users(num_nodes);
  for (int32_t id = 0; id < num_nodes; ++id) {
    const Grammar::Node& node = out_.nodes_[id];
    if (node.kind == Kind::kBytes && through_bytes && sets_[node.arg].any()) users[node.next].push_back(id);
    if (node.kind == Kind::kCall || node.kind == Kind::kTailCall) users[node.arg].push_back(id);
    if (node.kind == Kind::kCall) {
      users[node.next].push_back(id);
      missing[id] = 2;
    }
    if (node.kind != Kind::kSplit) continue;
    for (int32_t i = 0; i < node.next; ++i) users[out_.edges_[node.arg + i]].push_back(id);
  }
  std::vector<bool> reached(num_nodes, false);
  std::vector<int32_t> work = {0};
  reached[0] = true;
  while (!work.empty()) {
    const int32_t node = work.back();
    work.pop_back();
    for (const int32_t user : users[node]) {
      if (reached[user] || --missing[user] > 0) continue;
      reached[user] = true;
      work.push_back(user);
    }
  }
  return reached;
}

void GrammarBuilder::prune(const std::vector<bool>& productive) {
  for (Grammar::Node& node : out_.nodes_) {
    if (node.kind != Kind::kSplit) continue;
    const auto begin = out_.edges_.begin() + node.arg;
    const auto end = std::remove_if(begin, begin + node.next, [&](int32_t target) { return !productive[target]; });
    node.next = static_cast<int32_t>(end - begin);
  }
}

absl::Status GrammarBuilder::check_recursion(const std::vector<bool>& nullable) {
  const auto num_nodes = static_cast<int32_t>(out_.nodes_.size());
  const auto neighbours = [&](bool all) {
    return [this, all, &nullable](int32_t id, int32_t i) -> int32_t {
      const Grammar::Node& node = out_.nodes_[id];
      switch (node.kind) {
        case Kind::kEnd:
          return -1;
        case Kind::kBytes:
          return all && i == 0 ? node.next : -1;
        case Kind::kTailCall:
          return i == 0 ? node.arg : -1;
        case Kind::kCall:
          if (i == 0) return node.arg;
          return i == 1 && (all || nullable[node.arg]) ? node.next : -1;
        case Kind::kSplit:
          return i < node.next ? out_.edges_[node.arg + i] : -1;
      }
      return -1;
    };
  };
  // A call that leads back to itself before any byte would go on for ever.
  const std::vector<int32_t> silent = components(num_nodes, neighbours(false));
  const std::vector<int32_t> any = components(num_nodes, neighbours(true));
  std::vector<bool> recursive(num_nodes, false);
  for (int32_t id = 0; id < num_nodes; ++id) {
    const Grammar::Node& node = out_.nodes_[id];
    if (node.kind != Kind::kCall && node.kind != Kind::kTailCall) continue;
    if (node.kind == Kind::kCall && silent[id] == silent[node.arg]) {
      return absl::InvalidArgumentError(
          str_cat("is left-recursive: ", rule_name_at(id), " begins with itself, which is not supported"));
    }
    if (any[id] == any[node.arg]) recursive[node.arg] = true;
  }
  for (const RuleEntry& rule : rules_) {
    if (!recursive[rule.start]) continue;
    for (int32_t node = rule.begin; node < rule.end; ++node) out_.nodes_[node].frame = true;
  }
  return absl::OkStatus();
}

}  // namespace moesaic
