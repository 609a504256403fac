#include "text/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "text/files.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace moesaic {

namespace {

constexpr size_t kMaxFileBytes = 512 << 20;
// Longer texts are cut here (at a character) so that offsets fit 32 bits.
constexpr size_t kMaxSegmentBytes = 1u << 30;
constexpr size_t kMaxKeptTextBytes = 1u << 20;  // a longer text's scratch is given back: it may take 30 times as much

// Words seen by this thread and their ids: a direct-mapped cache of fixed size. Belongs to one tokenizer at a time.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 15;
  static constexpr size_t kMaxIds = 4;
  struct Key {
    uint64_t low = 0;
    uint64_t high = 0;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;  // the word's bytes, zero-filled, and its length in the last byte: never all zero
    int32_t ids[kMaxIds];
  };
  struct Slot {
    Entry entry;
    uint32_t num_ids = 0;
  };

  static Key key_of(std::string_view word) {
    char bytes[16] = {};
    std::memcpy(bytes, word.data(), word.size());
    bytes[15] = static_cast<char>(word.size());
    Key key;
    std::memcpy(&key, bytes, 16);
    return key;
  }

  void own(uint64_t owner) {
    if (owner_ == owner) return;
    owner_ = owner;
    slots_.assign(kSlots, Slot{});
  }
  Slot& slot(const Key& key) {
    const uint64_t hash = (key.low ^ (key.high * 0x9E3779B97F4A7C15ull)) * 0xD6E8FEB86659FD93ull;
    return slots_[hash >> 51];
  }

 private:
  static constexpr size_t kSlots = 1 << 13;
  uint64_t owner_ = 0;
  std::vector<Slot> slots_;
};

struct EncodeScratch {
  PreTokenizer::Scratch pieces;
  Bpe::Scratch bpe;
  WordCache cache;
};

EncodeScratch& thread_scratch() {
  static thread_local EncodeScratch scratch;
  return scratch;
}

}  // namespace

struct Tokenizer::Impl {
  TokenizerSpec spec;
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  uint64_t serial = 0;  // tells the tokenizers of a process apart in the word caches

  void encode_word(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& out) const {
    if (spec.ignore_merges) {
      if (const int32_t id = spec.vocab.find_bytes(word); id >= 0) return out.push_back(id);
    }
    spec.bpe.encode(word, scratch.bpe, out);
  }

  void encode_cached(std::string_view word, EncodeScratch& scratch, std::vector<int32_t>& out) const {
    if (word.size() > WordCache::kMaxWordBytes) return encode_word(word, scratch, out);
    const WordCache::Key key = WordCache::key_of(word);
    WordCache::Slot& slot = scratch.cache.slot(key);
    if (slot.entry.key == key) {
      out.insert(out.end(), slot.entry.ids, slot.entry.ids + slot.num_ids);
      return;
    }
    const size_t before = out.size();
    encode_word(word, scratch, out);
    const size_t num_ids = out.size() - before;
    if (num_ids > WordCache::kMaxIds) return;
    slot.entry.key = key;
    slot.num_ids = static_cast<uint32_t>(num_ids);
    std::copy(out.begin() + before, out.end(), slot.entry.ids);
  }

  // Text without added tokens.
  void encode_plain(std::string_view text, EncodeScratch& scratch, std::vector<int32_t>& out) const {
    while (!text.empty()) {
      size_t cut = std::min(text.size(), kMaxSegmentBytes);
      while (cut < text.size() && (static_cast<uint8_t>(text[cut]) & 0xC0) == 0x80) --cut;
      const std::string_view seen = spec.pre_tokenizer.split(text.substr(0, cut), scratch.pieces);
      for (const PreTokenizer::Piece& piece : scratch.pieces.pieces) {
        encode_cached(seen.substr(piece.begin, piece.end - piece.begin), scratch, out);
      }
      text.remove_prefix(cut);
    }
  }

  // Calls `between` for the text between the tokens and puts the tokens' ids.
  template <typename Between>
  static void split_at(const AddedTokens& tokens, std::string_view text, std::vector<int32_t>& out, Between between) {
    size_t at = 0;
    while (at < text.size()) {
      const AddedTokens::Hit hit = tokens.find(text, at);
      if (hit.id < 0) break;
      if (hit.begin > at) between(text.substr(at, hit.begin - at));
      out.push_back(hit.id);
      at = hit.end;
    }
    if (at < text.size()) between(text.substr(at));
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& model_dir) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string json, read_text_file(model_dir + "/tokenizer.json", kMaxFileBytes));
  absl::StatusOr<std::string> config = read_text_file(model_dir + "/tokenizer_config.json", kMaxFileBytes);
  if (!config.ok() && !absl::IsNotFound(config.status())) return config.status();
  auto tokenizer = parse(json, config.ok() ? *config : std::string());
  if (!tokenizer.ok()) return annotate(tokenizer.status(), model_dir);
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json,
                                                            std::string_view tokenizer_config_json) {
  static std::atomic<uint64_t> next_serial{1};
  auto impl = std::make_unique<Impl>();
  MOESAIC_ASSIGN_OR_RETURN(impl->spec, parse_tokenizer_spec(tokenizer_json, tokenizer_config_json));
  impl->serial = next_serial.fetch_add(1, std::memory_order_relaxed);
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(impl)));
  const TokenizerSpec& spec = tokenizer->impl_->spec;
  if (!spec.bos_token.empty()) tokenizer->impl_->bos_id = tokenizer->id_of(spec.bos_token);
  if (!spec.eos_token.empty()) tokenizer->impl_->eos_id = tokenizer->id_of(spec.eos_token);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  EncodeScratch& scratch = thread_scratch();
  scratch.cache.own(impl_->serial);
  const auto plain = [&](std::string_view part) { impl_->encode_plain(part, scratch, ids); };
  const auto normalized = [&](std::string_view part) {
    Impl::split_at(impl_->spec.normalized_added, part, ids, plain);
  };
  Impl::split_at(impl_->spec.raw_added, text, ids, normalized);
  if (text.size() > kMaxKeptTextBytes) {
    scratch.pieces = {};
    scratch.bpe = {};
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special_tokens || !is_special(id)) bytes += token_bytes(id);
  }
  return is_valid_utf8(bytes) ? bytes : repair_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->spec.vocab.bytes(id);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->spec.special.size() && impl_->spec.special[id];
}

int32_t Tokenizer::size() const {
  return impl_->spec.vocab.size();
}

int32_t Tokenizer::id_of(std::string_view token) const {
  const TokenizerSpec& spec = impl_->spec;
  for (const int32_t id : {spec.raw_added.find_exact(token), spec.normalized_added.find_exact(token),
                           spec.vocab.find_bytes(token), spec.vocab.find_spelled(token)}) {
    if (id >= 0) return id;
  }
  return -1;
}

bool Tokenizer::add_bos_token() const {
  return impl_->spec.add_bos_token;
}
int32_t Tokenizer::bos_id() const {
  return impl_->bos_id;
}
int32_t Tokenizer::eos_id() const {
  return impl_->eos_id;
}
const std::string& Tokenizer::bos_token() const {
  return impl_->spec.bos_token;
}
const std::string& Tokenizer::eos_token() const {
  return impl_->spec.eos_token;
}

}  // namespace moesaic
