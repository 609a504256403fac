#include "text/grammar_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace moesaic {
namespace {

using State = GrammarStates::State;

// Places looked at for one mask or token: some 40 ms. What a schema asks for takes a hundredth of it.
constexpr int64_t kMaxWork = 1'000'000;

void set_bits(std::span<const int32_t> tokens, std::span<uint64_t> mask) {
  for (const int32_t id : tokens) mask[id >> 6] |= uint64_t{1} << (id & 63);
}

}  // namespace

GrammarMasks::GrammarMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : states_(std::move(grammar)), trie_(std::move(trie)), path_(trie_->max_depth() + 1), left_(path_.size()) {}

// Walks the trie with a state that knows only its innermost frames.
const GrammarMasks::LocalMask* GrammarMasks::local_mask(State local) {
  const auto [found, is_new] = masks_.try_emplace(local);
  LocalMask& mask = found->second;
  if (!is_new) return &mask;
  mask.allowed.assign(trie_->num_mask_words(), 0);
  path_[0] = local;
  left_[0] = states_.escaped(local);
  for (uint32_t i = 0; i < trie_->num_nodes();) {
    const TokenTrie::Node& node = trie_->node(i);
    const State state = states_.step(path_[node.depth - 1], node.byte);
    if (state == GrammarStates::kDead) {
      if (left_[node.depth - 1]) mask.leaving.push_back(i);
      i = node.skip;
      continue;
    }
    path_[node.depth] = state;
    left_[node.depth] = left_[node.depth - 1] || states_.escaped(state);
    set_bits(trie_->tokens(i), mask.allowed);
    ++i;
  }
  if (!states_.exhausted()) return &mask;
  masks_.erase(found);
  return nullptr;
}

// Adds the tokens of the subtree under `root` that the whole state allows.
void GrammarMasks::fill_subtree(uint32_t root, State state, std::span<uint64_t> mask) {
  for (const char byte : trie_->path(root)) {
    state = states_.step(state, static_cast<uint8_t>(byte));
    if (state == GrammarStates::kDead) return;
  }
  path_[trie_->node(root).depth] = state;
  set_bits(trie_->tokens(root), mask);
  for (uint32_t i = root + 1; i < trie_->node(root).skip;) {
    const TokenTrie::Node& node = trie_->node(i);
    const State next = states_.step(path_[node.depth - 1], node.byte);
    if (next == GrammarStates::kDead) {
      i = node.skip;
      continue;
    }
    path_[node.depth] = next;
    set_bits(trie_->tokens(i), mask);
    ++i;
  }
}

bool GrammarMasks::fill(State state, std::span<uint64_t> mask) {
  MOESAIC_CHECK_EQ(mask.size(), trie_->num_mask_words());
  states_.allow_work(kMaxWork);
  const LocalMask* local = local_mask(states_.local(state));
  if (local != nullptr) {
    std::copy(local->allowed.begin(), local->allowed.end(), mask.begin());
    for (const uint32_t node : local->leaving) fill_subtree(node, state, mask);
  }
  if (local != nullptr && !states_.exhausted()) return true;
  std::fill(mask.begin(), mask.end(), 0);
  return false;
}

void GrammarMasks::keep_small() {
  const size_t mask_bytes = masks_.size() * trie_->num_mask_words() * sizeof(uint64_t);
  if (states_.num_bytes() + mask_bytes <= max_bytes_) return;
  std::vector<State*> used;
  for (GrammarMatcher* matcher : matchers_) {
    for (State& state : matcher->history_) used.push_back(&state);
  }
  states_.compact(used);
  masks_.clear();
  if (states_.num_bytes() > max_bytes_ / 2) max_bytes_ *= 2;  // what is in use alone is that large
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<GrammarMasks> masks) : masks_(std::move(masks)) {
  history_.push_back(masks_->states().start());
  masks_->matchers_.push_back(this);
}

GrammarMatcher::~GrammarMatcher() {
  std::erase(masks_->matchers_, this);
}

bool GrammarMatcher::accept(int32_t token) {
  return accept_bytes(masks_->trie().bytes(token));
}

bool GrammarMatcher::accept_bytes(std::string_view bytes) {
  if (bytes.empty()) return false;
  masks_->keep_small();
  GrammarStates& states = masks_->states();
  states.allow_work(kMaxWork);
  State next = state();
  for (const char byte : bytes) {
    next = states.step(next, static_cast<uint8_t>(byte));
    if (next == GrammarStates::kDead) return false;
  }
  if (history_.size() > 2 * kMaxRollback) history_.erase(history_.begin(), history_.end() - kMaxRollback);
  history_.push_back(next);
  return true;
}

void GrammarMatcher::rollback(size_t count) {
  MOESAIC_CHECK_LT(count, history_.size());
  history_.resize(history_.size() - count);
}

bool GrammarMatcher::fill_mask(std::span<uint64_t> mask) {
  masks_->keep_small();
  return masks_->fill(state(), mask);
}

bool GrammarMatcher::is_complete() const {
  return masks_->states().complete(state());
}

bool GrammarMatcher::can_continue() const {
  return masks_->states().can_continue(state());
}

GrammarMatchers::GrammarMatchers(const Tokenizer& tokenizer, int64_t vocab_size)
    : trie_(std::make_shared<TokenTrie>(tokenizer, vocab_size)) {}

std::unique_ptr<GrammarMatcher> GrammarMatchers::start(const std::shared_ptr<const Grammar>& grammar) {
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& masks) {
    const Grammar& known = *masks->states().grammar();
    return &known == grammar.get() || (known.hash() == grammar->hash() && known == *grammar);
  });
  if (found == recent_.end()) {
    recent_.push_front(std::make_shared<GrammarMasks>(grammar, trie_));
    if (recent_.size() > kMaxKept) recent_.pop_back();
  } else {
    recent_.splice(recent_.begin(), recent_, found);
  }
  return std::make_unique<GrammarMatcher>(recent_.front());
}

}  // namespace moesaic
