// Grammar: the set of texts that a constrained output may be, as byte-level rules: each rule is a small automaton whose
// edges are byte sets or calls of other rules, so that any context-free language without left recursion fits, and a
// regular one needs no stack. Built by GrammarBuilder (grammar_builder.h) from a JSON schema, a regex or EBNF; then
// immutable, any thread. Every node can reach the end of a text: what cannot was cut away by the builder.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesaic {

using ByteSet = std::bitset<256>;

// Stands before the text of a special token, which is otherwise never part of an output: no UTF-8 text has it.
inline constexpr uint8_t kSpecialByte = 0xff;

class Grammar {
 public:
  enum class Kind : uint8_t {
    kEnd,       // of the rule: go on where it was called
    kBytes,     // one byte of set `arg`, then `next`
    kCall,      // the rule that starts at node `arg`, then `next`
    kTailCall,  // the same where `next` would be the end: needs no return address
    kSplit,     // any of edges()[arg .. arg + next)
  };
  struct Node {
    Kind kind = Kind::kEnd;
    // What may follow while this rule lasts is decided without its callers (true for recursive rules and for those that
    // the builder was told to share). It affects speed alone.
    bool frame = false;
    int32_t arg = 0;
    int32_t next = 0;
    bool operator==(const Node&) const = default;
  };

  int32_t start() const { return start_; }
  const Node& node(int32_t id) const { return nodes_[id]; }
  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size()); }
  int32_t edge(int32_t index) const { return edges_[index]; }

  // Bytes of one class are in the same sets.
  int32_t byte_class(uint8_t byte) const { return byte_class_[byte]; }
  int32_t num_byte_classes() const { return num_byte_classes_; }
  // Whether set `arg` of a kBytes node has the bytes of this class.
  bool has(int32_t set, int32_t byte_class) const { return sets_[set].test(byte_class); }

  bool operator==(const Grammar&) const = default;
  uint64_t hash() const { return hash_; }
  size_t num_bytes() const {
    return sizeof(*this) + nodes_.size() * sizeof(Node) + edges_.size() * sizeof(int32_t) +
           sets_.size() * sizeof(ByteSet);
  }

 private:
  friend class GrammarBuilder;
  Grammar() = default;

  int32_t start_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> edges_;
  std::vector<ByteSet> sets_;  // over byte classes
  std::array<uint8_t, 256> byte_class_{};
  int32_t num_byte_classes_ = 1;
  uint64_t hash_ = 0;
};

}  // namespace moesaic
