// Tokenizer: byte-level BPE exactly as tokenizer.json describes it (pre-tokenizer, model, added tokens; the class name
// in tokenizer_config.json changes nothing). Immutable and thread-safe after load().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic {

class Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& model_dir);
  // The texts of tokenizer.json and, possibly empty, tokenizer_config.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> parse(std::string_view tokenizer_json,
                                                          std::string_view tokenizer_config_json);
  ~Tokenizer();

  // Ids of `text`; added tokens in it are recognised. No BOS is added. Invalid UTF-8 is replaced by U+FFFD first.
  std::vector<int32_t> encode(std::string_view text) const;
  // Valid UTF-8 (broken sequences become U+FFFD). Ids out of range are skipped.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = false) const;
  // The token's own bytes, which need not be valid UTF-8. Special and added tokens: their text.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // Highest id + 1 (a model's vocab_size may be larger).
  int32_t size() const;
  // Id of an added or ordinary token by its text, or -1.
  int32_t id_of(std::string_view token) const;

  bool add_bos_token() const;
  int32_t bos_id() const;  // -1 if there is none
  int32_t eos_id() const;
  const std::string& bos_token() const;
  const std::string& eos_token() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
