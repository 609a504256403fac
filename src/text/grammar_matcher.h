// GrammarMatcher: holds one sequence's output to a Grammar, token by token. A token is allowed exactly if the text so
// far and its bytes begin some text of the grammar; tokens may cut characters anywhere. All on one thread (the
// engine's).
//
//   GrammarMatchers matchers(tokenizer, vocab_size);          // once; shares what sequences learn about a grammar
//   auto matcher = matchers.start(grammar);
//   if (!matcher->fill_mask(mask)) ...                        // bit i of word i / 64: token i is allowed
//   matcher->accept(id);
//
// The mask of a state is computed at its first use (for 4,096 tokens some 10 us, for 129,280 about 2 ms inside a JSON
// string) and kept by what the innermost frame of the grammar decides, so that all strings of a document share one;
// only the tokens that leave the frame are looked at again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/grammar_states.h"
#include "text/token_trie.h"

namespace moesaic {

class GrammarMatcher;
class GrammarMatchers;

// What all matchers of one grammar share: states and masks, made as needed.
class GrammarMasks {
 public:
  GrammarMasks(std::shared_ptr<const Grammar> grammar, const TokenTrie* trie);

  GrammarStates& states() { return states_; }
  const TokenTrie& trie() const { return *trie_; }
  // The tokens that may follow in `state`. False, with no bit set, if the grammar is too ambiguous to be followed.
  bool fill(GrammarStates::State state, std::span<uint64_t> mask);
  // Forgets all but where its matchers are. States change their numbers in the matchers.
  void forget();
  bool in_use() const { return !matchers_.empty(); }
  size_t num_bytes() const;  // about; with the grammar

 private:
  friend class GrammarMatcher;
  friend class GrammarMatchers;
  struct LocalMask {
    std::vector<uint64_t> allowed;
    std::vector<uint32_t> leaving;  // trie nodes at which the frame is left: their subtrees are open
  };

  const LocalMask* local_mask(GrammarStates::State local);
  void fill_subtree(uint32_t node, GrammarStates::State state, std::span<uint64_t> mask);

  GrammarStates states_;
  const TokenTrie* trie_;
  std::unordered_map<GrammarStates::State, LocalMask> masks_;
  size_t mask_bytes_ = 0;                   // of masks_
  std::vector<GrammarStates::State> path_;  // by depth
  std::vector<uint8_t> left_;               // by depth: the frame may have been left
  std::vector<GrammarMatcher*> matchers_;
  // For GrammarMatchers.
  uint64_t last_used_ = 0;
  size_t counted_bytes_ = 0;
};

class GrammarMatcher {
 public:
  // Both outlive it.
  GrammarMatcher(GrammarMatchers* all, GrammarMasks* masks);
  GrammarMatcher(const GrammarMatcher&) = delete;
  GrammarMatcher& operator=(const GrammarMatcher&) = delete;
  ~GrammarMatcher();

  // False, and nothing changes, if the token is not allowed (special tokens are only where the grammar names them).
  bool accept(int32_t token);
  bool accept_bytes(std::string_view bytes);
  // `mask` has TokenTrie::num_mask_words() words; all are written.
  bool fill_mask(std::span<uint64_t> mask);
  bool is_complete() const;   // the text is one of the grammar's
  bool can_continue() const;  // a longer one begins with it

 private:
  friend class GrammarMasks;

  GrammarMatchers* all_;
  GrammarMasks* masks_;
  GrammarStates::State state_;
};

// The GrammarMasks of all grammars in use and of others that may come again; requests with equal grammars share them.
// Together they take max_bytes at most, or twice what the places of the matchers in use need if that is more: then
// those unused for longest go, and those in use forget what they can make again.
class GrammarMatchers {
 public:
  GrammarMatchers(const Tokenizer& tokenizer, int64_t vocab_size, size_t max_bytes);
  // Bytes of 8,192 masks: 4 MiB for 4,096 tokens, 126 MiB for DeepSeek-V3's.
  GrammarMatchers(const Tokenizer& tokenizer, int64_t vocab_size);
  std::unique_ptr<GrammarMatcher> start(const std::shared_ptr<const Grammar>& grammar);
  size_t num_mask_words() const { return trie_.num_mask_words(); }
  size_t num_grammars() const { return masks_.size(); }
  size_t num_bytes() const { return num_bytes_; }  // about

 private:
  friend class GrammarMatcher;
  void note_use(GrammarMasks* masks);
  void shrink();

  const TokenTrie trie_;
  const size_t max_bytes_;
  std::unordered_multimap<uint64_t, GrammarMasks> masks_;  // by the grammar's hash
  size_t num_bytes_ = 0;
  size_t shrink_above_;
  uint64_t num_uses_ = 0;
};

}  // namespace moesaic
