// GrammarStates: a Grammar made deterministic as it is used. A state is a set of (node, stack) pairs, each the place of
// a next byte; equal sets are one state and steps are remembered, so that a step seen before is one look-up. One owner,
// one thread.
//
// The number of states has no bound in a recursive grammar: compact() forgets all but those in use.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar.h"

namespace moesaic {

class GrammarStates {
 public:
  using State = int32_t;
  static constexpr State kDead = 0;  // no text goes on from here, nor ends here

  explicit GrammarStates(std::shared_ptr<const Grammar> grammar);

  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }
  State start();
  // The state after one more byte; kDead if no text has it here. Also kDead where a bound is hit: kMaxSet places in one
  // state, or the work given to allow_work() (then exhausted() is true until the next call of it).
  State step(State state, uint8_t byte) {
    const State known = steps_[static_cast<size_t>(state) * num_classes_ + grammar_->byte_class(byte)];
    return known >= 0 ? known : new_step(state, grammar_->byte_class(byte));
  }
  bool complete(State state) const { return states_[state].complete; }  // the text may end here
  bool can_continue(State state) const { return states_[state].count > 0; }
  // The state without what lies below the innermost frame (Grammar::Node::frame) of each stack: where a text leaves
  // that frame, escaped() is true, and what may follow is unknown. The state itself if nothing lies there.
  State local(State state);
  bool escaped(State state) const { return states_[state].escaped; }

  void allow_work(int64_t num_places) {
    work_left_ = num_places;
    exhausted_ = false;
  }
  bool exhausted() const { return exhausted_; }

  size_t num_bytes() const;
  // Forgets all states but `used`, which are renumbered in place.
  void compact(std::span<State* const> used);

 private:
  static constexpr size_t kMaxSet = 4096;
  static constexpr int32_t kBottom = 0;   // the stack of a text that may end after this rule
  static constexpr int32_t kUnknown = 1;  // what local() cut off

  struct Place {
    int32_t node;
    int32_t stack;
    auto operator<=>(const Place&) const = default;
  };
  struct Frame {
    int32_t next;  // node at which to go on
    int32_t below;
  };
  struct Entry {
    uint32_t begin = 0;  // in places_
    uint32_t count = 0;
    State local = -1;
    bool complete = false;
    bool escaped = false;
  };
  // Which places a closure has met: open addressing, at most half full, emptied by a new epoch.
  class Visited {
   public:
    void clear() {
      ++epoch_;
      size_ = 0;
    }
    bool insert(Place place);
    size_t size() const { return size_; }
    size_t num_bytes() const { return slots_.size() * sizeof(Slot); }

   private:
    struct Slot {
      uint64_t key = 0;
      uint64_t epoch = 0;
    };
    void grow();

    std::vector<Slot> slots_ = std::vector<Slot>(64);
    uint64_t epoch_ = 1;
    size_t size_ = 0;
  };

  State new_step(State state, int32_t byte_class);
  void begin_set();
  bool close_over(Place from);
  bool follow(Place place);
  State intern_set();
  int32_t push(int32_t next, int32_t below);
  int32_t cut(Place place);

  std::shared_ptr<const Grammar> grammar_;
  size_t num_classes_;
  std::vector<Frame> stacks_;
  std::unordered_map<uint64_t, int32_t> stack_ids_;
  std::vector<Place> places_;
  std::vector<Entry> states_;
  std::vector<State> steps_;  // [state, byte class], -1 = not yet known
  std::unordered_multimap<uint64_t, State> state_ids_;
  State start_ = -1;
  int64_t work_left_ = 0;
  bool exhausted_ = false;

  // The set being made.
  std::vector<Place> set_;
  bool set_complete_ = false;
  bool set_escaped_ = false;
  Visited visited_;
  std::vector<Place> work_;
  std::vector<int32_t> path_;
};

}  // namespace moesaic
