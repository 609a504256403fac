// GrammarMatcher: holds one sequence's output to a Grammar, token by token. A token is allowed exactly if the text so
// far and its bytes begin some text of the grammar; tokens may cut characters anywhere. All on one thread (the
// engine's).
//
//   GrammarMatchers matchers(tokenizer, vocab_size);          // once; shares what sequences learn about a grammar
//   GrammarMatcher matcher = matchers.start(grammar);
//   if (!matcher.fill_mask(mask)) ...                         // bit i of word i / 64: token i is allowed
//   matcher.accept(id);  matcher.rollback(1);
//
// The mask of a state is computed at its first use (for 4,096 tokens some 10 us, for 129,280 about 2 ms inside a JSON
// string) and kept by what the innermost frame of the grammar decides, so that all strings of a document share one;
// only the tokens that leave the frame are looked at again.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar_states.h"
#include "text/token_trie.h"

namespace moesaic {

class GrammarMatcher;

// What all matchers of one grammar share: states and masks, made as needed.
class GrammarMasks {
 public:
  GrammarMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  GrammarStates& states() { return states_; }
  const TokenTrie& trie() const { return *trie_; }
  // The tokens that may follow in `state`. False, with no bit set, if the grammar is too ambiguous to be followed.
  bool fill(GrammarStates::State state, std::span<uint64_t> mask);
  // Forgets what no matcher uses if too much has gathered. States change their numbers in the matchers.
  void keep_small();
  // For tests: the bytes at which keep_small() acts.
  void set_max_bytes(size_t max_bytes) { max_bytes_ = max_bytes; }

 private:
  friend class GrammarMatcher;
  struct LocalMask {
    std::vector<uint64_t> allowed;
    std::vector<uint32_t> leaving;  // trie nodes at which the frame is left: their subtrees are open
  };

  const LocalMask* local_mask(GrammarStates::State local);
  void fill_subtree(uint32_t node, GrammarStates::State state, std::span<uint64_t> mask);

  GrammarStates states_;
  std::shared_ptr<const TokenTrie> trie_;
  std::unordered_map<GrammarStates::State, LocalMask> masks_;
  std::vector<GrammarStates::State> path_;  // by depth
  std::vector<uint8_t> left_;               // by depth: the frame may have been left
  std::vector<GrammarMatcher*> matchers_;
  size_t max_bytes_ = 32 << 20;
};

class GrammarMatcher {
 public:
  static constexpr size_t kMaxRollback = 256;

  explicit GrammarMatcher(std::shared_ptr<GrammarMasks> masks);
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;
  ~GrammarMatcher();

  // False, and nothing changes, if the token is not allowed (special tokens are only where the grammar names them).
  bool accept(int32_t token);
  bool accept_bytes(std::string_view bytes);
  // Takes back the last `count` accepted tokens, at most kMaxRollback of them.
  void rollback(size_t count);
  // `mask` has TokenTrie::num_mask_words() words; all are written.
  bool fill_mask(std::span<uint64_t> mask);
  bool is_complete() const;   // the text is one of the grammar's
  bool can_continue() const;  // a longer one begins with it

 private:
  friend class GrammarMasks;
  GrammarStates::State state() const { return history_.back(); }

  std::shared_ptr<GrammarMasks> masks_;
  std::vector<GrammarStates::State> history_;  // the state after each of the last tokens
};

// Finds the GrammarMasks of equal grammars, so that requests with the same schema share them; keeps those used last.
class GrammarMatchers {
 public:
  GrammarMatchers(const Tokenizer& tokenizer, int64_t vocab_size);
  std::unique_ptr<GrammarMatcher> start(const std::shared_ptr<const Grammar>& grammar);

 private:
  static constexpr size_t kMaxKept = 16;
  std::shared_ptr<const TokenTrie> trie_;
  std::list<std::shared_ptr<GrammarMasks>> recent_;
};

}  // namespace moesaic
