#include "text/grammar_matcher.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace moesaic {
namespace {

using State = GrammarStates::State;

// Places looked at for one mask or token: some 40 ms. What a schema asks for takes a hundredth of it.
constexpr int64_t kMaxWork = 1'000'000;
constexpr size_t kMaskBytes = 96;  // about what a kept mask takes beside its words

void set_bits(std::span<const int32_t> tokens, std::span<uint64_t> mask) {
  for (const int32_t id : tokens) mask[id >> 6] |= uint64_t{1} << (id & 63);
}

}  // namespace

GrammarMasks::GrammarMasks(std::shared_ptr<const Grammar> grammar, const TokenTrie* trie)
    : states_(std::move(grammar)), trie_(trie), path_(trie_->max_depth() + 1), left_(path_.size()) {}

// Walks the trie with a state that knows only its innermost frames.
const GrammarMasks::LocalMask* GrammarMasks::local_mask(State local) {
  const auto [found, is_new] = masks_.try_emplace(local);
  LocalMask& mask = found->second;
  if (!is_new) return &mask;
  mask_bytes_ += kMaskBytes + trie_->num_mask_words() * sizeof(uint64_t);
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
  mask_bytes_ += mask.leaving.size() * sizeof(uint32_t);
  if (!states_.exhausted()) return &mask;
  mask_bytes_ -= kMaskBytes + mask.allowed.size() * sizeof(uint64_t) + mask.leaving.size() * sizeof(uint32_t);
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

void GrammarMasks::forget() {
  std::vector<State*> used;
  for (GrammarMatcher* matcher : matchers_) used.push_back(&matcher->state_);
  states_.compact(used);
  masks_ = {};
  mask_bytes_ = 0;
}

size_t GrammarMasks::num_bytes() const {
  return sizeof(*this) + states_.grammar()->num_bytes() + states_.num_bytes() + mask_bytes_ +
         path_.size() * (sizeof(path_[0]) + sizeof(left_[0]));
}

GrammarMatcher::GrammarMatcher(GrammarMatchers* all, GrammarMasks* masks)
    : all_(all), masks_(masks), state_(masks->states().start()) {
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
  GrammarStates& states = masks_->states();
  states.allow_work(kMaxWork);
  State next = state_;
  for (size_t i = 0; i < bytes.size() && next != GrammarStates::kDead; ++i) {
    next = states.step(next, static_cast<uint8_t>(bytes[i]));
  }
  const bool allowed = next != GrammarStates::kDead;
  if (allowed) state_ = next;
  all_->note_use(masks_);
  return allowed;
}

bool GrammarMatcher::fill_mask(std::span<uint64_t> mask) {
  const bool filled = masks_->fill(state_, mask);
  all_->note_use(masks_);
  return filled;
}

bool GrammarMatcher::is_complete() const {
  return masks_->states().complete(state_);
}

bool GrammarMatcher::can_continue() const {
  return masks_->states().can_continue(state_);
}

GrammarMatchers::GrammarMatchers(const Tokenizer& tokenizer, int64_t vocab_size, size_t max_bytes)
    : trie_(tokenizer, vocab_size), max_bytes_(max_bytes), shrink_above_(max_bytes) {}

GrammarMatchers::GrammarMatchers(const Tokenizer& tokenizer, int64_t vocab_size)
    : GrammarMatchers(tokenizer, vocab_size, 8192 * static_cast<size_t>(vocab_size + 63) / 64 * sizeof(uint64_t)) {}

std::unique_ptr<GrammarMatcher> GrammarMatchers::start(const std::shared_ptr<const Grammar>& grammar) {
  const auto is_equal = [&](const std::shared_ptr<const Grammar>& known) {
    return known == grammar || *known == *grammar;  // choices of one request have the same
  };
  auto [found, end] = masks_.equal_range(grammar->hash());
  while (found != end && !is_equal(found->second.states().grammar())) ++found;
  if (found == end) {
    found = masks_.emplace(std::piecewise_construct, std::forward_as_tuple(grammar->hash()),
                           std::forward_as_tuple(grammar, &trie_));
  }
  auto matcher = std::make_unique<GrammarMatcher>(this, &found->second);
  note_use(&found->second);
  return matcher;
}

// What was just used may have grown.
void GrammarMatchers::note_use(GrammarMasks* masks) {
  masks->last_used_ = ++num_uses_;
  num_bytes_ -= masks->counted_bytes_;
  masks->counted_bytes_ = masks->num_bytes();
  num_bytes_ += masks->counted_bytes_;
  if (num_bytes_ > shrink_above_) shrink();
}

// To a half, so that it is rare.
void GrammarMatchers::shrink() {
  std::vector<decltype(masks_)::iterator> order;
  for (auto it = masks_.begin(); it != masks_.end(); ++it) order.push_back(it);
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a->second.last_used_ < b->second.last_used_; });
  for (const auto& it : order) {
    if (num_bytes_ <= max_bytes_ / 2) break;
    GrammarMasks& masks = it->second;
    num_bytes_ -= masks.counted_bytes_;
    if (!masks.in_use()) {
      masks_.erase(it);
      continue;
    }
    masks.forget();
    masks.counted_bytes_ = masks.num_bytes();
    num_bytes_ += masks.counted_bytes_;
  }
  shrink_above_ = std::max(max_bytes_, 2 * num_bytes_);
}

}  // namespace moesaic
