#include "text/grammar_states.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace moesaic {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint64_t pair_key(int32_t a, int32_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

}  // namespace

bool GrammarStates::Visited::insert(Place place) {
  if (2 * (size_ + 1) > slots_.size()) grow();
  const uint64_t key = pair_key(place.node, place.stack);
  for (size_t i = mix(1, key) % slots_.size();; i = (i + 1) % slots_.size()) {
    Slot& slot = slots_[i];
    if (slot.epoch != epoch_) {
      slot = {key, epoch_};
      ++size_;
      return true;
    }
    if (slot.key == key) return false;
  }
}

void GrammarStates::Visited::grow() {
  const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
  const uint64_t epoch = std::exchange(epoch_, 1);
  for (const Slot& slot : before) {
    if (slot.epoch != epoch) continue;
    size_t i = mix(1, slot.key) % slots_.size();
    while (slots_[i].epoch == epoch_) i = (i + 1) % slots_.size();
    slots_[i] = {slot.key, epoch_};
  }
}

GrammarStates::GrammarStates(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)),
      num_classes_(grammar_->num_byte_classes()),
      stacks_{{-1, -1}, {-1, -1}},
      states_(1),
      steps_(num_classes_, kDead) {
  states_[kDead].local = kDead;
}

GrammarStates::State GrammarStates::start() {
  if (start_ >= 0) return start_;
  allow_work(1 << 20);
  begin_set();
  start_ = close_over({grammar_->start(), kBottom}) ? intern_set() : kDead;
  return start_;
}

void GrammarStates::begin_set() {
  set_.clear();
  set_complete_ = false;
  set_escaped_ = false;
  visited_.clear();
}

// Adds the places of a next byte that are reached from here without one. False where a bound is hit.
bool GrammarStates::close_over(Place from) {
  constexpr size_t kMaxVisited = 4 * kMaxSet;
  work_.assign(1, from);
  while (!work_.empty()) {
    const Place place = work_.back();
    work_.pop_back();
    if (!visited_.insert(place)) continue;
    if (--work_left_ < 0) exhausted_ = true;
    if (exhausted_ || visited_.size() > kMaxVisited || set_.size() >= kMaxSet) return false;
    if (!follow(place)) return false;
  }
  return true;
}

bool GrammarStates::follow(Place place) {
  const Grammar::Node& node = grammar_->node(place.node);
  switch (node.kind) {
    case Grammar::Kind::kBytes:
      set_.push_back(place);
      break;
    case Grammar::Kind::kCall:
      work_.push_back({node.arg, push(node.next, place.stack)});
      break;
    case Grammar::Kind::kTailCall:
      work_.push_back({node.arg, place.stack});
      break;
    case Grammar::Kind::kSplit:
      if (work_.size() + node.next > 16 * kMaxSet) return false;
      for (int32_t i = 0; i < node.next; ++i) work_.push_back({grammar_->edge(node.arg + i), place.stack});
      break;
    case Grammar::Kind::kEnd:
      if (place.stack == kBottom) {
        set_complete_ = true;
      } else if (place.stack == kUnknown) {
        set_escaped_ = true;
      } else {
        work_.push_back({stacks_[place.stack].next, stacks_[place.stack].below});
      }
      break;
  }
  return true;
}

int32_t GrammarStates::push(int32_t next, int32_t below) {
  const auto [found, is_new] = stack_ids_.try_emplace(pair_key(next, below), static_cast<int32_t>(stacks_.size()));
  if (is_new) stacks_.push_back({next, below});
  return found->second;
}

GrammarStates::State GrammarStates::intern_set() {
  if (set_.empty() && !set_complete_ && !set_escaped_) return kDead;
  std::sort(set_.begin(), set_.end());
  set_.erase(std::unique(set_.begin(), set_.end()), set_.end());
  uint64_t hash = 2 * set_complete_ + set_escaped_;
  for (const Place& place : set_) hash = mix(hash, pair_key(place.node, place.stack));
  const auto [first, last] = state_ids_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Entry& entry = states_[it->second];
    const auto begin = places_.begin() + entry.begin;
    if (entry.complete == set_complete_ && entry.escaped == set_escaped_ && entry.count == set_.size() &&
        std::equal(set_.begin(), set_.end(), begin)) {
      return it->second;
    }
  }
  const auto id = static_cast<State>(states_.size());
  states_.push_back({.begin = static_cast<uint32_t>(places_.size()),
                     .count = static_cast<uint32_t>(set_.size()),
                     .complete = set_complete_,
                     .escaped = set_escaped_});
  places_.insert(places_.end(), set_.begin(), set_.end());
  steps_.insert(steps_.end(), num_classes_, -1);
  state_ids_.emplace(hash, id);
  return id;
}

GrammarStates::State GrammarStates::new_step(State state, int32_t byte_class) {
  const Entry from = states_[state];
  if (exhausted_) return kDead;
  begin_set();
  bool whole = true;
  for (uint32_t i = from.begin; whole && i < from.begin + from.count; ++i) {
    const Place place = places_[i];
    const Grammar::Node& node = grammar_->node(place.node);
    if (--work_left_ < 0) exhausted_ = true;
    if (grammar_->has(node.arg, byte_class)) whole = close_over({node.next, place.stack});
  }
  if (exhausted_) return kDead;
  const State to = whole ? intern_set() : kDead;
  steps_[static_cast<size_t>(state) * num_classes_ + byte_class] = to;
  return to;
}

// The stack of a place down to its innermost frame.
int32_t GrammarStates::cut(Place place) {
  path_.clear();
  int32_t node = place.node;
  int32_t stack = place.stack;
  while (stack != kBottom && stack != kUnknown && !grammar_->node(node).frame) {
    node = stacks_[stack].next;
    stack = stacks_[stack].below;
    path_.push_back(node);
  }
  stack = stack == kBottom ? kBottom : kUnknown;
  for (auto next = path_.rbegin(); next != path_.rend(); ++next) stack = push(*next, stack);
  return stack;
}

GrammarStates::State GrammarStates::local(State state) {
  if (states_[state].local >= 0) return states_[state].local;
  const Entry from = states_[state];
  begin_set();
  set_complete_ = from.complete;
  set_escaped_ = from.escaped;
  for (uint32_t i = from.begin; i < from.begin + from.count; ++i) {
    set_.push_back({places_[i].node, cut(places_[i])});
  }
  const State to = intern_set();
  states_[state].local = to;
  return to;
}

size_t GrammarStates::num_bytes() const {
  constexpr size_t kMapNode = 48;  // about what a node of the hash maps takes
  return stacks_.size() * (sizeof(Frame) + kMapNode) + places_.size() * sizeof(Place) +
         states_.size() * (sizeof(Entry) + kMapNode) + steps_.size() * sizeof(State) + visited_.num_bytes();
}

void GrammarStates::compact(std::span<State* const> used) {
  GrammarStates fresh(grammar_);
  std::unordered_map<State, State> moved;
  for (State* const state : used) {
    const auto [found, is_new] = moved.try_emplace(*state, kDead);
    if (is_new && *state != kDead) {
      const Entry& entry = states_[*state];
      fresh.begin_set();
      fresh.set_complete_ = entry.complete;
      fresh.set_escaped_ = entry.escaped;
      for (uint32_t i = entry.begin; i < entry.begin + entry.count; ++i) {
        fresh.path_.clear();
        int32_t stack = places_[i].stack;
        for (; stack != kBottom && stack != kUnknown; stack = stacks_[stack].below) {
          fresh.path_.push_back(stacks_[stack].next);
        }
        for (auto next = fresh.path_.rbegin(); next != fresh.path_.rend(); ++next) stack = fresh.push(*next, stack);
        fresh.set_.push_back({places_[i].node, stack});
      }
      found->second = fresh.intern_set();
    }
    *state = found->second;
  }
  *this = std::move(fresh);
}

}  // namespace moesaic
